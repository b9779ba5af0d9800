// See sampling_cuda.h.
#include "sampling/sampling_cuda.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/math.h"
#include "cuda/runtime.h"

namespace girih::sampling {
namespace {

constexpr int kThreads = 512;  // as kernels/sampling/block.cuh
constexpr int kMaxCluster = 8;

constexpr std::array<std::string_view, 7> kKindNames = {
    "sample", "softmax", "top_p_renorm", "top_k_renorm", "top_k_mask", "top_k", "chain_speculative_sample"};

/// kernels/sampling/row.cuh's Config, by what shared memory there is.
struct Sizes {
  std::int64_t list_capacity;
  std::int64_t tile_bytes;
  std::int64_t ring;
};
Sizes sizes_for(std::int64_t shared_limit, KernelKind kind) {
  if (shared_limit >= (std::int64_t{200} << 10)) return {12288, 16384, 4};
  if (shared_limit >= (std::int64_t{160} << 10)) return {8192, 16384, 4};
  if (shared_limit >= (std::int64_t{96} << 10)) return {4096, 8192, 4};
  return {kind == KernelKind::top_k ? 4096 : 1024, 8192, 1};
}

/// An upper bound of sizeof(Shared<config>); the kernel asserts it.
std::int64_t fixed_bytes(const Sizes& sizes) {
  constexpr std::int64_t kBins = 2048, kOther = 14336;
  const std::int64_t tiles = abi::kMaxVocab * 4 / sizes.tile_bytes + 2;
  return round_up(sizes.list_capacity * 8 + kBins * 8 + tiles * 12 + kOther, 128);
}

std::string_view type_name(DType t) { return t == DType::f32 ? "float" : name(t); }

const jit::Kernel& load(const Context& context, std::string_view op, const SamplingKernel& kernel, void* stream) {
  return context.cuda().kernel(op, kernel.name, kernel.source, stream, kernel.shared_bytes);
}

template <typename Params>
void launch(const Context& context, std::string_view op, const SamplingKernel& kernel, std::int64_t rows, std::int64_t vocab,
            const Params& p, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::Function function = load(context, op, kernel, stream).function;
  const int cluster = cluster_size(runtime.device->info(), rows, vocab, kernel.tile);
  if (rows * cluster > INT32_MAX) fail(Code::invalid_argument, op, "the batch has {} rows; must be at most {}", rows, INT32_MAX / cluster);
  const cuda::CurrentDevice current(*runtime.device);
  runtime.device->driver().launch({.function = function,
                                   .num_blocks = static_cast<int>(rows * cluster),
                                   .num_threads = kThreads,
                                   .shared_bytes = kernel.shared_bytes,
                                   .stream = stream,
                                   .cluster_size = cluster},
                                  &p);
}

std::int64_t shared_limit(const Context& context) { return context.cuda().device->info().shared_per_block; }

}  // namespace

SampleTraits traits_of(const abi::SampleParams& p) {
  return {.probs = p.probs != 0,
          .edits = p.bias.indptr.rows != nullptr || p.history.indptr.rows != nullptr,
          .masked = p.allowed != nullptr,
          .top_k = p.top_k.rows != nullptr || (p.top_k.value > 0 && p.top_k.value < p.vocab),
          .top_p = p.top_p.rows != nullptr || p.top_p.value<1, .first = p.num_top> 0};
}

SamplingKernel sampling_kernel(KernelKind kind, DType type, std::int64_t shared_limit, const SampleTraits& t) {
  const Sizes sizes = sizes_for(shared_limit, kind);
  const std::int64_t item = bits(type) / 8;
  const std::int64_t fixed = fixed_bytes(sizes) + (t.edits ? sizes.tile_bytes / item * 4 : 0);
  const std::int64_t slots = std::min<std::int64_t>((shared_limit - 1024 - fixed) / sizes.tile_bytes, 16);
  const bool samples = kind == KernelKind::sample;
  const std::string_view what = kKindNames[static_cast<std::size_t>(kind)];
  SamplingKernel kernel;
  kernel.tile = sizes.tile_bytes / item;
  kernel.shared_bytes = fixed + slots * sizes.tile_bytes;
  kernel.name = fmt::format("{}_{}", what, name(type));
  if (samples) {
    kernel.name += fmt::format("_{}{}{}{}{}{}", t.probs ? "probs" : "logits", t.edits ? "_edits" : "", t.masked ? "_mask" : "",
                               t.top_k ? "_top_k" : "", t.top_p ? "_top_p" : "", t.first ? "_first" : "");
  }
  const std::string config = fmt::format("Config{{{}, {}, {}}}", sizes.list_capacity, sizes.tile_bytes, sizes.ring);
  std::string_view file = "sample", params = "SampleParams";
  std::string call;
  switch (kind) {
    case KernelKind::sample:
      call = fmt::format("run_sample<kConfig, {}, Traits{{{}, {}, {}, {}, {}, {}}}>(p, {})", type_name(type), t.probs, t.edits, t.masked,
                         t.top_k, t.top_p, t.first, slots);
      break;
    case KernelKind::top_k:
      file = "top_k";
      params = "TopKParams";
      call = fmt::format("run_top_k<kConfig, {}>(p, {})", type_name(type), slots);
      break;
    case KernelKind::speculative:
      file = "speculative";
      params = "SpeculativeParams";
      call = fmt::format("run_speculative<kConfig, {}>(p, {})", type_name(type), slots);
      break;
    default: call = fmt::format("run_rows<kConfig, {}, RowKind::{}>(p, {})", type_name(type), what, slots);
  }
  kernel.source = fmt::format(
      "// {}\n#include \"sampling/{}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ girih::abi::{} p) {{\n"
      "  using namespace girih;\n  using namespace girih::sampling;\n"
      "  constexpr Config kConfig = {};\n  static_assert(Layout<kConfig, {}, {}>::kSlots <= {});\n  {};\n}}\n",
      kernel.name, file, kThreads, kernel.name, params, config, type_name(type), t.edits, fixed, call);
  return kernel;
}

int cluster_size(const cuda::DeviceInfo& info, std::int64_t rows, std::int64_t vocab, std::int64_t tile) {
  if (info.arch < 90) return 1;
  int size = kMaxCluster;
  while (size > 1 && (rows * size > info.num_sms || ceil_div(vocab, tile) < size)) size /= 2;
  return size;
}

void sample_on_device(const Context& context, const abi::SampleParams& p, DType type, void* stream) {
  launch(context, "sample", sampling_kernel(KernelKind::sample, type, shared_limit(context), traits_of(p)), p.rows, p.vocab, p, stream);
}

void rows_on_device(const Context& context, KernelKind kind, const abi::SampleParams& p, DType type, void* stream) {
  launch(context, kKindNames[static_cast<std::size_t>(kind)], sampling_kernel(kind, type, shared_limit(context)), p.rows, p.vocab, p,
         stream);
}

void top_k_on_device(const Context& context, const abi::TopKParams& p, DType type, void* stream) {
  launch(context, "top_k", sampling_kernel(KernelKind::top_k, type, shared_limit(context)), p.rows, p.vocab, p, stream);
}

void speculative_on_device(const Context& context, const abi::SpeculativeParams& p, DType type, void* stream) {
  launch(context, "chain_speculative_sample", sampling_kernel(KernelKind::speculative, type, shared_limit(context)), p.batch, p.vocab, p,
         stream);
}

}  // namespace girih::sampling
