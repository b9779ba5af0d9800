// What a kernel family tells about itself: which classes of which specs it takes, and with what tile. cuda_kernels.cc asks the families in
// order of preference and prints the kernel of the first that takes a class.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "attention/cuda.h"
#include "variant/cuda.h"

namespace girih::attention {

inline constexpr std::int64_t kReservedPerBlock = 1024;  // shared memory that the driver takes of each block

/// A family's choice for one tile class. Fields go into attention::Config (kernels/attention/config.cuh) by the same names.
struct CudaTile {
  ClassTune tune;  // tile_rows and kv_block, and what they cost
  int threads = 128;
  int blocks_per_sm = 1;
  int unit_turns = 1;  // > 1: the kernel takes units beyond its blocks' own
  int producers = 0;
  int stages = 1;
  int warps_rows = 1;
  int warps_values = 0;
  bool byte_products = false;
  bool few_rows = false;    // beside another of the class: for groups of up to kFewRows rows
  bool shares_sms = false;  // beside another of the class: for cascades (CudaKernel::shares_sms)
  std::int64_t shared_bytes = 0;
  std::int64_t cost_bytes = 0;  // that a unit of cost reads, where they are what it costs
  variant::CudaMath math = variant::CudaMath::exact;
  // In place of the family's own, where it has kernels apart:
  std::string_view include;
  std::string_view function;
};

struct CudaRequest {
  const AttentionSpec& spec;  // normalised
  const variant::Program& program;
  const cuda::DeviceInfo& device;
  std::int64_t max_rows;         // packed rows of a group at most
  bool cascades = false;         // a group's rows may have keys in several segments
  std::string_view wanted = {};  // the family that the caller asks for; empty: the table's choice
};

struct CudaFamily {
  std::string_view name;
  std::string_view include;   // "attention/floor.cuh"
  std::string_view function;  // "run_floor"
  /// Why the family does not take a class; empty where it does.
  std::string (*refusal)(const CudaRequest& request, int tile_class);
  CudaTile (*tile)(const CudaRequest& request, int tile_class);
  bool large_only = false;  // where it is asked for, small tiles that it does not take go to the next family
};

extern const CudaFamily kWgmmaFamily;
/// Its MLA (cuda_wgmma_mla.cc), for tiles of both classes.
std::string wgmma_mla_refusal(const CudaRequest& request);
CudaTile wgmma_mla_tile(const CudaRequest& request);
extern const CudaFamily kMmaFamily;
extern const CudaFamily kFloorFamily;

}  // namespace girih::attention
