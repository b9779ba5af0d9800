// Model presets (models.h): data, and the spec made of it.
#include "tools/models.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "girih/error.h"

namespace girih::tools {
namespace {

// DeepSeek-V3 scales by the un-absorbed width, 128 + 64, and by YaRN's factor squared: 192^-0.5 * (0.1 * ln(40) + 1)^2.
constexpr double kDeepseekScale = 0.13523377;

const std::array<ModelPreset, 6>& presets() {
  static const std::array<ModelPreset, 6> table{{
      {.name = "llama3-8b", .note = "32/8 heads of 128"},
      {.name = "llama3-70b",
       .note = "64/8 heads of 128",
       .num_qo_heads = 64,
       .num_layers = 80,
       .hidden_size = 8192,
       .intermediate_size = 28672},
      {.name = "mistral-7b", .note = "32/8 heads of 128, window 4096", .windows = {4096, 4096}, .vocab_size = 32000, .rope_theta = 10000},
      {.name = "gemma2-9b",
       .note = "16/8 heads of 256, soft cap 50, window 4096 in even layers",
       .num_qo_heads = 16,
       .num_kv_heads = 8,
       .head_dim_qk = 256,
       .head_dim_vo = 256,
       .windows = {4096, 0},
       .soft_cap = 50.0F,
       .num_layers = 42,
       .hidden_size = 3584,
       .vocab_size = 256000,
       .rotary_dim = 256,
       .rope_theta = 10000,
       .activation = Activation::gelu_tanh},
      {.name = "gpt-oss-20b",
       .note = "64/8 heads of 64, sinks, window 128 in even layers",
       .num_qo_heads = 64,
       .num_kv_heads = 8,
       .head_dim_qk = 64,
       .head_dim_vo = 64,
       .windows = {128, 0},
       .sinks = true,
       .num_layers = 24,
       .hidden_size = 2880,
       .intermediate_size = 2880,
       .experts_per_token = 4,
       .vocab_size = 201088,
       .rotary_dim = 64,
       .rope_theta = 150000,
       .activation = Activation::swigluoai},
      {.name = "deepseek-v3",
       .note = "MLA, 128 heads on one latent of 576/512",
       .num_qo_heads = 128,
       .num_kv_heads = 1,
       .head_dim_qk = 576,
       .head_dim_vo = 512,
       .v_is_k = true,
       .sm_scale = kDeepseekScale,
       .num_layers = 61,
       .hidden_size = 7168,
       .intermediate_size = 2048,
       .experts_per_token = 9,
       .vocab_size = 129280,
       .rotary_dim = 64,
       .rope_theta = 10000},
  }};
  return table;
}

}  // namespace

std::span<const ModelPreset> model_presets() { return presets(); }

const ModelPreset& model_preset(std::string_view name) {
  std::string names;
  for (const ModelPreset& preset : presets()) {
    if (preset.name == name) return preset;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
  }
  throw Error(Code::invalid_argument, fmt::format("--model {} is not known; one of {}", name, names));
}

std::vector<std::int64_t> layer_windows(const ModelPreset& model, int num_layers) {
  if (num_layers == 1 || model.windows[0] == model.windows[1]) return {model.windows[0]};
  return {model.windows[0], model.windows[1]};
}

ScaleGranularity scale_granularity(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::e4m3:
    case DType::e5m2: return ScaleGranularity::tensor;
    case DType::i8: return ScaleGranularity::token_head;
    case DType::nvfp4:
    case DType::mxfp4: return ScaleGranularity::block;
    default: return ScaleGranularity::none;
  }
}

AttentionSpec model_spec(const ModelPreset& model, std::int64_t window, DType kv_dtype) {
  const DType q_dtype = kv_dtype == DType::f32 || kv_dtype == DType::f16 ? kv_dtype : DType::bf16;
  AttentionSpec spec{.num_qo_heads = model.num_qo_heads,
                     .num_kv_heads = model.num_kv_heads,
                     .head_dim_qk = model.head_dim_qk,
                     .head_dim_vo = model.head_dim_vo,
                     .q_dtype = q_dtype,
                     .k_dtype = kv_dtype,
                     .v_dtype = kv_dtype,
                     .o_dtype = q_dtype,
                     .k_scale = scale_granularity(kv_dtype),
                     .v_scale = scale_granularity(kv_dtype),
                     .v_is_k = model.v_is_k,
                     .sm_scale = model.sm_scale,
                     .lse = LseKind::natural};
  spec.variant.name = std::string(model.name);
  spec.variant.mask = window > 0 ? variants::sliding_window(window) : variants::causal();
  if (model.soft_cap > 0) spec.variant.logits = variants::soft_cap(model.soft_cap);
  if (model.sinks) spec.variant.sink = variants::sinks();
  return spec;
}

}  // namespace girih::tools
