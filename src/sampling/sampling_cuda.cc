// See sampling_cuda.h.
#include "sampling/sampling_cuda.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/math.h"
#include "cuda/runtime.h"

namespace girih::sampling {
namespace {

constexpr int kThreads = 512;  // as kernels/sampling/block.cuh
constexpr int kMaxCluster = 8;
constexpr std::int64_t kResidentFixed = 14080;  // as kernels/sampling/resident.cuh
constexpr std::int64_t kResidentTopK = 1024;
constexpr std::int64_t kFewPassesLeast = 20480;  // kLeast in kernels/sampling/stream.cuh
constexpr std::int64_t kStreamRing = 98304;      // kRingBytes there
constexpr std::int64_t kNucleusBytes = 218624;   // kBytes in kernels/sampling/nucleus.cuh

constexpr std::array<std::string_view, 7> kKindNames = {
    "sample", "softmax", "top_p_renorm", "top_k_renorm", "top_k_mask", "top_k", "chain_speculative_sample"};

/// kernels/sampling/list.cuh's Config, by what shared memory there is.
struct Sizes {
  std::int64_t list_capacity;
  std::int64_t tile_bytes;
  std::int64_t bins;
};
Sizes sizes_for(std::int64_t shared_limit, KernelKind kind) {
  if (shared_limit >= (std::int64_t{200} << 10)) return {12288, 16384, 2048};
  if (shared_limit >= (std::int64_t{160} << 10)) return {8192, 16384, 2048};
  if (shared_limit >= (std::int64_t{96} << 10)) return {4096, 8192, 2048};
  return {kind == KernelKind::top_k ? 4096 : 2048, 8192, 1024};
}

/// An upper bound of sizeof(Shared<config>); the kernel asserts it.
std::int64_t fixed_bytes(const Sizes& sizes) {
  constexpr std::int64_t kOther = 6144;
  const std::int64_t tiles = abi::kMaxVocab * 4 / sizes.tile_bytes + 2;
  return round_up(sizes.list_capacity * 8 + sizes.bins * 8 + tiles * 12 + kOther, 128);
}

/// A kernel's use of shared memory.
struct Footprint {
  Sizes sizes;
  std::int64_t fixed;  ///< bytes ahead of the slots for tiles
  std::int64_t slots;  ///< at least 1
  std::int64_t ring;   ///< of them, for tiles on their way
  std::int64_t shared_bytes;
  std::int64_t tile;
};
Footprint footprint_of(KernelKind kind, DType type, std::int64_t shared_limit, const SampleTraits& traits) {
  Footprint f{.sizes = sizes_for(shared_limit, kind), .fixed = 0, .slots = 0, .ring = 0, .shared_bytes = 0, .tile = 0};
  f.tile = f.sizes.tile_bytes / (bits(type) / 8);
  f.fixed = fixed_bytes(f.sizes) + (traits.edits ? f.tile * 4 : 0);
  f.slots = std::min<std::int64_t>((shared_limit - 1024 - f.fixed) / f.sizes.tile_bytes, 16);
  f.ring = std::min<std::int64_t>(f.slots, 4);
  if (f.ring < 1) bug("sampling: {} bytes of shared memory hold no tile", shared_limit);
  f.shared_bytes = f.fixed + f.slots * f.sizes.tile_bytes;
  return f;
}

std::string kernel_name(KernelKind kind, DType type, const SampleTraits& t) {
  std::string text(kKindNames[static_cast<std::size_t>(kind)]);
  text.append("_").append(name(type));
  if (t.few) text += "_few";
  if (kind != KernelKind::sample) return text;
  text += t.probs ? "_probs" : "_logits";
  if (t.edits) text += "_edits";
  if (t.masked) text += "_mask";
  if (t.top_k) text += "_top_k";
  if (t.top_p) text += "_top_p";
  if (t.first) text += "_first";
  if (t.min_p) text += "_min_p";
  return text;
}

std::string resident_name(KernelKind kind, DType type, const SampleTraits& t) { return kernel_name(kind, type, t) + "_resident"; }

/// What has a way of few passes for a call, where its rows are of f32.
enum class FewPasses : std::uint8_t { none, nucleus, shortlist };  // as the files in kernels/sampling
FewPasses way_of(KernelKind kind, const SampleTraits& t, bool min_p) {
  switch (kind) {
    case KernelKind::top_p_renorm: return FewPasses::nucleus;
    case KernelKind::top_k:
    case KernelKind::top_k_renorm:
    case KernelKind::top_k_mask: return FewPasses::shortlist;
    case KernelKind::sample: break;
    default: return FewPasses::none;
  }
  if (t.masked || t.first || (t.probs && t.edits)) return FewPasses::none;
  if (t.top_k) return FewPasses::shortlist;
  if (t.top_p) return min_p ? FewPasses::none : FewPasses::nucleus;
  return min_p ? FewPasses::shortlist : FewPasses::nucleus;
}

/// Where few passes have been measured to be faster than whatever else would do the call: from so many rows and entries on.
struct Measured {
  KernelKind kind;
  bool top_k, top_p, min_p;  // of sample()
  std::int64_t rows, vocab;
};
constexpr Measured kMeasured[] = {{KernelKind::sample, false, true, false, 1, kFewPassesLeast}};
bool few_passes_measured(const FewPassesCall& c) {
  return std::any_of(std::begin(kMeasured), std::end(kMeasured), [&](const Measured& m) {
    return m.kind == c.kind && m.top_k == c.traits.top_k && m.top_p == c.traits.top_p && m.min_p == c.min_p && c.rows >= m.rows &&
           c.vocab >= m.vocab;
  });
}

/// The kernel's text checks what is assumed here.
std::string few_passes_asserts(KernelKind kind, const SampleTraits& t) {
  if (way_of(kind, t, t.min_p) == FewPasses::nucleus)
    return fmt::format("using Few = Nucleus<{}, {}>;\n  static_assert(Few::kLeast == {} && Few::kBytes == {});\n  ",
                       t.probs || kind != KernelKind::sample, t.edits, kFewPassesLeast, kNucleusBytes);
  return fmt::format("static_assert(Stream<false, 0>::kLeast == {} && Stream<false, 0>::kRingBytes == {});\n  ", kFewPassesLeast,
                     kStreamRing);
}

/// Shared memory of each of two blocks of a multiprocessor.
std::int64_t resident_limit(const cuda::DeviceInfo& info) { return std::min(info.shared_per_sm / 2 - 1024, info.shared_per_block); }

std::string_view type_name(DType t) { return t == DType::f32 ? "float" : name(t); }

struct Loaded {
  const jit::Kernel& kernel;
  std::int64_t shared_bytes;
  std::int64_t tile;
};
/// The source of a kernel is only made for one that is not loaded yet.
Loaded load(const Context& context, std::string_view op, KernelKind kind, DType type, const SampleTraits& traits, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const std::int64_t limit = runtime.device->info().shared_per_block;
  const Footprint footprint = footprint_of(kind, type, limit, traits);
  const std::string name = kernel_name(kind, type, traits);
  if (const jit::Kernel* found = runtime.find(name)) return {*found, footprint.shared_bytes, footprint.tile};
  const SamplingKernel kernel = sampling_kernel(kind, type, limit, traits);
  return {runtime.kernel(op, name, kernel.source, stream, kernel.shared_bytes), kernel.shared_bytes, kernel.tile};
}

bool few_passes(const Context& context, const FewPassesCall& call) {
  const cuda::Runtime& runtime = context.cuda();
  return takes_few_passes(call, runtime.device->info().shared_per_block, runtime.sampling);
}

template <typename Params>
void launch(const Context& context, std::string_view op, const Loaded& kernel, int cluster, std::int64_t rows, const Params& p,
            void* stream) {
  cuda::Runtime& runtime = context.cuda();
  if (rows * cluster > INT32_MAX) fail(Code::invalid_argument, op, "the batch has {} rows; must be at most {}", rows, INT32_MAX / cluster);
  const cuda::CurrentDevice current(*runtime.device);
  runtime.device->driver().launch({.function = kernel.kernel.function,
                                   .num_blocks = static_cast<int>(rows * cluster),
                                   .num_threads = kThreads,
                                   .shared_bytes = kernel.shared_bytes,
                                   .stream = stream,
                                   .cluster_size = cluster},
                                  &p);
}

/// A kernel of rows that pass by, for the cluster that suits it.
template <typename Params>
void launch_passing(const Context& context, std::string_view op, const Loaded& kernel, std::int64_t rows, std::int64_t vocab,
                    const Params& p, void* stream) {
  launch(context, op, kernel, cluster_size(context.cuda().device->info(), rows, vocab, kernel.tile), rows, p, stream);
}

/// True: the call is done by a kernel of rows that stay.
template <typename Params>
bool launch_resident(const Context& context, std::string_view op, KernelKind kind, DType type, const SampleTraits& traits, const Params& p,
                     std::int64_t k, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::DeviceInfo& info = runtime.device->info();
  const ResidentShape shape = resident_shape(info, kind, type, traits, p.rows, p.vocab, k);
  if (shape.cluster == 0) return false;
  const std::string name = resident_name(kind, type, traits);
  const jit::Kernel* found = runtime.find(name);
  if (found == nullptr) found = &runtime.kernel(op, name, resident_kernel(kind, type, traits).source, stream, resident_limit(info));
  launch(context, op, {*found, shape.shared_bytes, 0}, shape.cluster, p.rows, p, stream);
  return true;
}

}  // namespace

ResidentShape resident_shape(const cuda::DeviceInfo& info, KernelKind kind, DType type, const SampleTraits& traits, std::int64_t rows,
                             std::int64_t vocab, std::int64_t k) {
  if (info.arch < 90 || kind == KernelKind::speculative || k > kResidentTopK) return {};
  if (kind == KernelKind::sample && (traits.first || (traits.edits && type != DType::f32))) return {};
  constexpr std::int64_t kGroup = 512;  // bytes that a warp takes at a time
  const std::int64_t item = bits(type) / 8;
  const std::int64_t groups = ceil_div(vocab * item + 16 - item, kGroup);  // of a row at any address
  const auto bytes = [&](int blocks) { return kResidentFixed + ceil_div(groups, std::int64_t{blocks}) * kGroup; };
  int cluster = 1;
  while (cluster < kMaxCluster && bytes(cluster) > resident_limit(info)) cluster *= 2;
  if (bytes(cluster) > resident_limit(info)) return {};
  // Cuts wait for other blocks at every step, and for one another where more rows come than fit at once: then rows that pass by are faster.
  const bool cuts =
      kind == KernelKind::sample ? traits.top_k || traits.top_p : kind != KernelKind::softmax && kind != KernelKind::top_p_renorm;
  if (cuts && rows * cluster > 2 * info.num_sms) return {};
  while (cluster < kMaxCluster && rows * cluster < info.num_sms && groups >= 2 * cluster * (kThreads / 32)) cluster *= 2;
  return {cluster, bytes(cluster)};
}

SamplingKernel resident_kernel(KernelKind kind, DType type, const SampleTraits& t) {
  SamplingKernel kernel{.name = resident_name(kind, type, t), .source = {}, .shared_bytes = kResidentFixed, .tile = 0};
  const std::string call =
      kind == KernelKind::sample ? fmt::format("run_resident_sample<{}, Traits{{{}, {}, {}, {}, {}, false, false}}>(p)", type_name(type),
                                               t.probs, t.edits, t.masked, t.top_k, t.top_p)
      : kind == KernelKind::top_k
          ? fmt::format("run_resident_top_k<{}>(p)", type_name(type))
          : fmt::format("run_resident_rows<{}, RowKind::{}>(p)", type_name(type), kKindNames[static_cast<std::size_t>(kind)]);
  kernel.source = fmt::format(
      "// {}\n#include \"sampling/resident_rows.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}, 2) {}(const __grid_constant__ girih::abi::{} p) {{\n"
      "  using namespace girih;\n  using namespace girih::sampling;\n  static_assert(kResidentFixed == {});\n  {};\n}}\n",
      kernel.name, kThreads, kernel.name, kind == KernelKind::top_k ? "TopKParams" : "SampleParams", kResidentFixed, call);
  return kernel;
}

bool takes_few_passes(const FewPassesCall& c, std::int64_t shared_limit, SamplingChoice choice) {
  if (choice == SamplingChoice::passes || c.type != DType::f32 || c.stride != 4 || c.vocab < kFewPassesLeast) return false;
  const FewPasses way = way_of(c.kind, c.traits, c.min_p);
  if (way == FewPasses::none) return false;
  const Footprint f = footprint_of(c.kind, c.type, shared_limit, c.traits);
  if (f.shared_bytes < (way == FewPasses::nucleus ? kNucleusBytes : fixed_bytes(f.sizes) + kStreamRing)) return false;
  return choice == SamplingChoice::few || few_passes_measured(c);
}

SampleTraits traits_of(const abi::SampleParams& p) {
  return {.probs = p.probs != 0,
          .edits = p.bias.indptr.rows != nullptr || p.history.indptr.rows != nullptr,
          .masked = p.allowed != nullptr,
          .top_k = p.top_k.rows != nullptr || (p.top_k.value > 0 && p.top_k.value < p.vocab),
          .top_p = p.top_p.rows != nullptr || p.top_p.value<1, .first = p.num_top> 0};
}

SamplingKernel sampling_kernel(KernelKind kind, DType type, std::int64_t shared_limit, const SampleTraits& t) {
  const Footprint f = footprint_of(kind, type, shared_limit, t);
  const std::string_view what = kKindNames[static_cast<std::size_t>(kind)];
  SamplingKernel kernel{.name = kernel_name(kind, type, t), .source = {}, .shared_bytes = f.shared_bytes, .tile = f.tile};
  const std::string config =
      fmt::format("Config{{{}, {}, {}, {}, {}}}", f.sizes.list_capacity, f.sizes.tile_bytes, f.ring, f.sizes.bins, t.few);
  std::string_view file = "sample", params = "SampleParams";
  std::string call;
  switch (kind) {
    case KernelKind::sample:
      if (t.few) call = few_passes_asserts(kind, t);
      call += fmt::format("run_sample<kConfig, {}, Traits{{{}, {}, {}, {}, {}, {}, {}, {}}}>(p, {})", type_name(type), t.probs, t.edits,
                          t.masked, t.top_k, t.top_p, t.first, t.few, t.min_p, f.slots);
      break;
    case KernelKind::top_k:
      file = "top_k";
      params = "TopKParams";
      if (t.few) call = few_passes_asserts(kind, t);
      call += fmt::format("run_top_k<kConfig, {}, {}>(p, {})", type_name(type), t.few, f.slots);
      break;
    case KernelKind::speculative:
      file = "speculative";
      params = "SpeculativeParams";
      call = fmt::format("run_speculative<kConfig, {}>(p, {})", type_name(type), f.slots);
      break;
    default:
      if (t.few) call = few_passes_asserts(kind, t);
      call += fmt::format("run_rows<kConfig, {}, RowKind::{}, {}>(p, {})", type_name(type), what, t.few, f.slots);
  }
  kernel.source = fmt::format(
      "// {}\n#include \"sampling/{}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ girih::abi::{} p) {{\n"
      "  using namespace girih;\n  using namespace girih::sampling;\n"
      "  constexpr Config kConfig = {};\n  static_assert(Layout<kConfig, {}, {}>::kSlots <= {});\n  {};\n}}\n",
      kernel.name, file, kThreads, kernel.name, params, config, type_name(type), t.edits, f.fixed, call);
  return kernel;
}

int cluster_size(const cuda::DeviceInfo& info, std::int64_t rows, std::int64_t vocab, std::int64_t tile) {
  if (info.arch < 90) return 1;
  // Blocks of a cluster lie in one GPC: of clusters of eight, as many as would take all multiprocessors do not fit at once.
  int size = rows * kMaxCluster > info.num_sms * 7 / 8 ? kMaxCluster / 2 : kMaxCluster;
  while (size > 1 && (rows * size > info.num_sms || ceil_div(vocab, tile) < size)) size /= 2;
  return size;
}

void sample_on_device(const Context& context, const abi::SampleParams& p, DType type, void* stream) {
  SampleTraits traits = traits_of(p);
  traits.few = few_passes(context, {.kind = KernelKind::sample,
                                    .type = type,
                                    .traits = traits,
                                    .min_p = p.min_p.rows != nullptr || p.min_p.value > 0,
                                    .rows = p.rows,
                                    .vocab = p.vocab,
                                    .stride = p.input.stride});
  traits.min_p = traits.few && !traits.top_k && !traits.top_p && (p.min_p.rows != nullptr || p.min_p.value > 0);
  if (!traits.few && launch_resident(context, "sample", KernelKind::sample, type, traits, p, 0, stream)) return;
  launch_passing(context, "sample", load(context, "sample", KernelKind::sample, type, traits, stream), p.rows, p.vocab, p, stream);
}

void rows_on_device(const Context& context, KernelKind kind, const abi::SampleParams& p, DType type, void* stream) {
  const std::string_view op = kKindNames[static_cast<std::size_t>(kind)];
  const SampleTraits traits{
      .few = few_passes(context, {.kind = kind, .type = type, .traits = {}, .rows = p.rows, .vocab = p.vocab, .stride = p.input.stride})};
  if (!traits.few && launch_resident(context, op, kind, type, traits, p, 0, stream)) return;
  launch_passing(context, op, load(context, op, kind, type, traits, stream), p.rows, p.vocab, p, stream);
}

void top_k_on_device(const Context& context, const abi::TopKParams& p, DType type, void* stream) {
  const SampleTraits traits{
      .few = few_passes(
          context, {.kind = KernelKind::top_k, .type = type, .traits = {}, .rows = p.rows, .vocab = p.vocab, .stride = p.input.stride})};
  if (!traits.few && launch_resident(context, "top_k", KernelKind::top_k, type, traits, p, p.k, stream)) return;
  launch_passing(context, "top_k", load(context, "top_k", KernelKind::top_k, type, traits, stream), p.rows, p.vocab, p, stream);
}

void speculative_on_device(const Context& context, const abi::SpeculativeParams& p, DType type, void* stream) {
  constexpr std::string_view kOp = "chain_speculative_sample";
  launch_passing(context, kOp, load(context, kOp, KernelKind::speculative, type, {}, stream), p.batch, p.vocab, p, stream);
}

}  // namespace girih::sampling
