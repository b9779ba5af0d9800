// Which kernel serves a tile class of a spec, and its source text: pure, no driver needed. The text is the kernel's identity: what differs
// between two kernels stands in it, so that equal kernels share one entry of the cache.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "attention/cuda_family.h"
#include "attention/rope.h"
#include "attention/spec.h"
#include "base/error.h"

namespace girih::attention {
namespace {

constexpr const char* kOp = "attention.schedule";

/// In order of preference.
constexpr std::array<const CudaFamily*, 3> kFamilies = {&kWgmmaFamily, &kMmaFamily, &kFloorFamily};

std::string_view scale_name(ScaleGranularity g) {
  return std::array<std::string_view, 6>{"none", "tensor", "head", "token_head", "block", "token_group"}[static_cast<std::size_t>(g)];
}
std::string_view lse_name(LseKind k) { return std::array<std::string_view, 3>{"none", "natural", "base2"}[static_cast<std::size_t>(k)]; }

/// Turns a position of each pair, in 2^-64 turns: whole turns drop out of the wrapping product with a position.
std::vector<std::uint64_t> rope_turns(const Rope& rope, int head_dim) {
  std::vector<std::uint64_t> turns;
  for (const double frequency : rope_frequencies(rope, head_dim)) {
    const double exact = frequency / (2 * std::numbers::pi);
    turns.push_back(static_cast<std::uint64_t>(std::ldexp(exact - std::floor(exact), 64)));
  }
  return turns;
}

/// Config as a designated initialiser, fields in the struct's order.
std::string print_config(const AttentionSpec& s, const CudaTile& tile, int tile_class) {
  std::string text = fmt::format(".head_dim_qk = {}, .head_dim_vo = {}, .head_dim_rope = {}, .group = {}", s.head_dim_qk, s.head_dim_vo,
                                 s.head_dim_rope, s.num_qo_heads / s.num_kv_heads);
  text += fmt::format(",\n    .q_type = Type::{}, .k_type = Type::{}, .v_type = Type::{}, .o_type = Type::{}", name(s.q_dtype),
                      name(s.k_dtype), name(s.v_dtype), name(s.o_dtype));
  text += fmt::format(", .k_scale = Scale::{}, .v_scale = Scale::{}, .v_is_k = {}", scale_name(s.k_scale), scale_name(s.v_scale), s.v_is_k);
  text +=
      fmt::format(",\n    .lse = Lse::{}, .partial_state = {}, .batch_invariant = {}", lse_name(s.lse), s.partial_state, s.batch_invariant);
  return text +
         fmt::format(
             ",\n    .tile_class = {}, .tile_rows = {}, .kv_block = {}, .threads = {}, .producers = {}, .stages = {}, .warps_rows = {}, "
             ".warps_values = {}, .shared_bytes = {}{}",
             tile_class, tile.tune.tile_rows, tile.tune.kv_block, tile.threads, tile.producers, tile.stages, tile.warps_rows,
             tile.warps_values, tile.shared_bytes, tile.byte_products ? ", .byte_products = true" : "") +
         (s.head_dim_rope > 0 && rope_dtype(s) != s.k_dtype
              ? fmt::format(", .rope_apart = true, .rope_type = Type::{}", name(rope_dtype(s)))
              : std::string());
}

CudaKernel print_kernel(const CudaRequest& request, const CudaFamily& family, const CudaTile& tile, int tile_class) {
  const std::string key = spec_key(request.spec, request.program);
  const std::string_view role = tile_class == kLarge ? (tile.shares_sms ? "cascade" : "prefill") : tile.few_rows ? "decode8" : "decode";
  std::vector<std::uint64_t> turns;
  variant::CudaRope rope;
  if (request.program.rope) {
    turns = rope_turns(*request.program.rope, request.spec.head_dim_qk);
    rope = {.begin = request.program.rope->rotary_begin, .interleave = request.program.rope->interleave, .turns = turns};
  }
  CudaKernel kernel;
  kernel.name = fmt::format("{}_{}_{}", key, family.name, role);
  kernel.family = family.name;
  kernel.tile_rows = tile.tune.tile_rows;
  kernel.num_threads = tile.threads;
  kernel.shared_bytes = tile.shared_bytes;
  kernel.blocks_per_sm = tile.blocks_per_sm;
  kernel.unit_turns = tile.unit_turns;
  kernel.cost_bytes = tile.cost_bytes;
  kernel.shares_sms = tile.shares_sms;
  kernel.source = fmt::format(
      "// {} {} {}\n"
      "#include \"{}\"\n"
      "namespace girih::attention {{\n"
      "{}"
      "}}  // namespace girih::attention\n"
      "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const __grid_constant__ girih::abi::AttentionParams p) {{\n"
      "  using namespace girih::attention;\n"
      "  {}<Config{{{}}},\n            Variant>(p);\n"
      "}}\n",
      key, family.name, role, tile.include.empty() ? family.include : tile.include, variant::print_cuda(request.program, rope, tile.math),
      tile.threads, tile.blocks_per_sm, kernel.name, tile.function.empty() ? family.function : tile.function,
      print_config(request.spec, tile, tile_class));
  return kernel;
}

const CudaFamily& choose_family(const CudaRequest& request, std::string_view wanted, int tile_class) {
  for (const CudaFamily* family : kFamilies) {
    if (family->name == wanted && family->large_only && tile_class == kSmall && !family->refusal(request, tile_class).empty()) wanted = "";
  }
  std::string reasons;
  for (const CudaFamily* family : kFamilies) {
    if (!wanted.empty() && family->name != wanted) continue;
    const std::string refusal = family->refusal(request, tile_class);
    if (refusal.empty()) return *family;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", family->name, refusal);
  }
  if (reasons.empty()) {
    for (const CudaFamily* family : kFamilies) reasons += fmt::format("{}{}", reasons.empty() ? "" : ", ", family->name);
    fail(Code::invalid_argument, kOp, "family=\"{}\" is unknown; choose one of {}", wanted, reasons);
  }
  fail(Code::unsupported, kOp, "no kernel on sm_{} takes {} tiles of this spec ({})", request.device.arch,
       tile_class == kSmall ? "small" : "large", reasons);
}

}  // namespace

CudaKernels choose_cuda_kernels(const AttentionSpec& spec, const variant::Program& program, const cuda::DeviceInfo& device,
                                std::string_view family, std::int64_t max_rows, bool cascades) {
  if (device.arch < 75) fail(Code::unsupported, kOp, "device is sm_{}; kernels exist from sm_75 on", device.arch);
  const CudaRequest request{spec, program, device, max_rows, cascades, family};
  CudaKernels kernels;
  for (int c = 0; c < kNumClasses; ++c) {
    const CudaFamily& chosen = choose_family(request, family, c);
    const CudaTile tile = chosen.tile(request, c);
    kernels.classes[c] = print_kernel(request, chosen, tile, c);
    kernels.tune.classes[static_cast<std::size_t>(c)] = tile.tune;
  }
  kernels.tune.small_rows = kernels.tune.classes[kSmall].tile_rows;
  kernels.tune.invariant_chunk = kInvariantChunk;
  return kernels;
}

std::vector<CudaKernel> cuda_kernels_of(const AttentionSpec& spec, const cuda::DeviceInfo& device, std::string_view family) {
  const variant::Program program = variant::compile(spec.variant);
  const AttentionSpec normal = normalise(spec, program, DeviceKind::cuda);
  std::vector<CudaKernel> kernels;
  struct Limits {
    std::int64_t max_rows;
    bool cascades;
  };
  for (const Limits limits : {Limits{kFewRows, false}, Limits{kAnyRows, false}, Limits{kCascadeRows, true}}) {
    for (CudaKernel& kernel : choose_cuda_kernels(normal, program, device, family, limits.max_rows, limits.cascades).classes) {
      const bool seen = std::any_of(kernels.begin(), kernels.end(), [&](const CudaKernel& k) { return k.source == kernel.source; });
      if (!seen) kernels.push_back(std::move(kernel));
    }
  }
  return kernels;
}

void check_cuda_limits(const AttentionLimits& limits) {
  if (limits.max_segments > abi::kMaxCudaSegments) {
    fail(Code::unsupported, kOp,
         "limits.max_segments={}; on CUDA at most {} segments are supported, since their pointers are kernel parameters",
         limits.max_segments, abi::kMaxCudaSegments);
  }
  constexpr std::int64_t kMaxKeys = INT32_MAX - 1024;  // kernels count keys in 32 bits, a few steps past the last one
  if (limits.max_kv_len > kMaxKeys)
    fail(Code::unsupported, kOp, "limits.max_kv_len={}; on CUDA at most {} keys of one group are supported", limits.max_kv_len, kMaxKeys);
}

}  // namespace girih::attention
