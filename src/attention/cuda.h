// The CUDA backend's seam: which kernel serves a tile class of a spec on a device, its source text, and the parameters of a launch.
// cuda_kernels.cc chooses and prints (pure: no driver needed), cuda.cc launches.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "abi/attention_params.h"
#include "attention/plan.h"
#include "attention/schedule.h"
#include "cuda/driver.h"
#include "girih/attention.h"

namespace girih::attention {

/// One kernel, ready to be compiled and launched.
struct CudaKernel {
  std::string name;     // extern "C" entry, e.g. attention_32x8_d128_..._mma_decode
  std::string family;   // "floor", "mma", "wgmma"
  std::string source;   // about ten lines around one include
  int tile_rows = 0;    // packed rows of a tile; the more, the more code
  int num_threads = 0;  // a block
  std::int64_t shared_bytes = 0;
  int blocks_per_sm = 1;        // what the grid is sized for; the kernel is compiled to fit
  std::int64_t cost_bytes = 0;  // CudaTile::cost_bytes
  bool shares_sms = false;      // two blocks fill a multiprocessor; where small tiles have work, too, theirs take the place of the second
  int unit_turns = 1;           // units of a class for each block: the first is its own, the others go to whoever is free
};

/// Both tile classes of a schedule. Kernels of equal source are one entry of the cache.
struct CudaKernels {
  std::array<CudaKernel, kNumClasses> classes;
  Tune tune;  // tiles and costs that go with them
};

inline constexpr std::int64_t kAnyRows = INT64_MAX;
/// Where no group has more packed rows than this, small tiles may have a kernel of their own.
inline constexpr std::int64_t kFewRows = 8;
/// Where groups may have keys in several segments and have no more packed rows than this, large tiles may have a kernel of their own.
inline constexpr std::int64_t kCascadeRows = 256;

/// The fastest family that takes the spec for each class ("floor" takes every spec that the capability table allows).
/// `family`: "" = the table's choice, or one family's name (throws unsupported if it does not take the spec). `max_rows`: packed rows of a
/// group at most. `cascades`: a request may have keys in several segments.
CudaKernels choose_cuda_kernels(const AttentionSpec& spec, const variant::Program& program, const cuda::DeviceInfo& device,
                                std::string_view family = "", std::int64_t max_rows = kAnyRows, bool cascades = false);

/// All kernels that schedules of a spec may have, whatever their limits, each once. The spec as it is given: it is checked and completed
/// first, as schedule() does.
std::vector<CudaKernel> cuda_kernels_of(const AttentionSpec& spec, const cuda::DeviceInfo& device, std::string_view family = "");

/// Refuses what a launch's parameters cannot hold.
void check_cuda_limits(const AttentionLimits& limits);

}  // namespace girih::attention
