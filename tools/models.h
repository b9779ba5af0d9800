// Shapes of published models, for `girih replay --model`. Heads, dims, masks and caps as in each model's published
// configuration; weights play no part, since the data is random.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "girih/activation.h"
#include "girih/attention.h"

namespace girih::tools {

struct ModelPreset {
  std::string_view name;
  std::string_view note;  ///< what is special, for --help
  int num_qo_heads = 32;
  int num_kv_heads = 8;
  int head_dim_qk = 128;
  int head_dim_vo = 128;
  bool v_is_k = false;               ///< MLA in absorbed form: one latent head, V is its first head_dim_vo dims
  double sm_scale = 0;               ///< 0 = 1 / sqrt(head_dim_qk)
  std::int64_t windows[2] = {0, 0};  ///< keys visible including self in even and odd layers; 0 = all
  float soft_cap = 0;                ///< 0 = none
  bool sinks = false;                ///< a learned logit per query head
  int num_layers = 32;

  // What is beside attention, for --full-step.
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 14336;  ///< of the feed-forward part, or of one expert
  std::int64_t experts_per_token = 1;      ///< shared ones included
  std::int64_t vocab_size = 128256;
  int rotary_dim = 128;
  double rope_theta = 500000;
  Activation activation = Activation::silu;
};

std::span<const ModelPreset> model_presets();
/// Throws invalid_argument, listing the names.
const ModelPreset& model_preset(std::string_view name);

/// Distinct kinds of layer among the first `num_layers`: their windows. Layer l is of kind l % size.
std::vector<std::int64_t> layer_windows(const ModelPreset& model, int num_layers);

/// The attention of layers with this window. Q and O in f32 if `kv_dtype` is f32, in f16 if it is f16, else in bf16; LSE on.
AttentionSpec model_spec(const ModelPreset& model, std::int64_t window, DType kv_dtype);

/// The scales that replay uses for a KV type.
ScaleGranularity scale_granularity(DType kv_dtype);

}  // namespace girih::tools
