// The sampling operators on a CUDA device: a kernel of kernels/sampling is compiled for the types at hand (once a Context) and launched,
// one cluster of blocks a row.
#pragma once

#include <string>

#include "abi/sampling_params.h"
#include "base/env.h"
#include "cuda/driver.h"
#include "girih/sampling.h"

namespace girih::sampling {

enum class KernelKind : std::uint8_t { sample, softmax, top_p_renorm, top_k_renorm, top_k_mask, top_k, speculative };

/// A kernel's source and how it is launched.
struct SamplingKernel {
  std::string name;
  std::string source;
  std::int64_t shared_bytes = 0;
  std::int64_t tile = 0;  ///< entries that a block has under way together
};
/// What a call of sample() asks for, as kernels/sampling/sample.cuh's Traits: what is off in all its rows is not in its kernel.
struct SampleTraits {
  bool probs = false, edits = false, masked = false, top_k = false, top_p = false, first = false;
  bool few = false;    ///< of all kinds: rows in few passes, where they lend themselves
  bool min_p = false;  ///< beside few: by min-p, which is the only cut
};
SampleTraits traits_of(const abi::SampleParams& p);
/// `shared_limit`: bytes of a block, at least 64 KiB. `traits`: of sample(), and `few`.
SamplingKernel sampling_kernel(KernelKind kind, DType type, std::int64_t shared_limit, const SampleTraits& traits = {});

/// How a row stays in the shared memory of a cluster (kernels/sampling/resident.cuh): two blocks a multiprocessor. No blocks: it does not.
struct ResidentShape {
  int cluster = 0;
  std::int64_t shared_bytes = 0;
};
/// `k`: of top_k().
ResidentShape resident_shape(const cuda::DeviceInfo& info, KernelKind kind, DType type, const SampleTraits& traits, std::int64_t rows,
                             std::int64_t vocab, std::int64_t k = 0);
/// The kernel for any such shape.
SamplingKernel resident_kernel(KernelKind kind, DType type, const SampleTraits& traits = {});

/// A call, as far as it decides in how many passes its rows are done.
struct FewPassesCall {
  KernelKind kind = KernelKind::sample;
  DType type = DType::f32;
  SampleTraits traits;
  bool min_p = false;
  std::int64_t rows = 1, vocab = 1, stride = 4;
};
/// Whether the call's rows are done in few passes (kernels/sampling/nucleus.cuh: top-p and its renorm; shortlist.cuh: top-k, also with
/// top-p, min-p): where a kernel can, and `choice` says so or, unless it says anything, where that has been measured to be faster.
bool takes_few_passes(const FewPassesCall& call, std::int64_t shared_limit, SamplingChoice choice);

/// Blocks that share a row: as many as the device has room for, up to 8, while each has a tile.
int cluster_size(const cuda::DeviceInfo& info, std::int64_t rows, std::int64_t vocab, std::int64_t tile);

void sample_on_device(const Context& context, const abi::SampleParams& p, DType type, void* stream);
void rows_on_device(const Context& context, KernelKind kind, const abi::SampleParams& p, DType type, void* stream);
void top_k_on_device(const Context& context, const abi::TopKParams& p, DType type, void* stream);
void speculative_on_device(const Context& context, const abi::SpeculativeParams& p, DType type, void* stream);

}  // namespace girih::sampling
