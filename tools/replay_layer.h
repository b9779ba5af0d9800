// What a decoder layer does beside attention, for `girih replay --full-step`: norms, RoPE, the activation, and sampling at the end of a
// step. They run on data of their own of the layer's shapes, so that attention's data stays what --verify recomputes. No GEMMs: their time
// is the model's, not the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "cuda/driver.h"
#include "girih/context.h"
#include "tools/models.h"
#include "tools/replay_kv.h"

namespace girih::tools {

/// Seconds by the host's clock, waits for a GPU included.
struct LayerSeconds {
  double norm = 0, rope = 0, activation = 0, sampling = 0;
  double total() const { return norm + rope + activation + sampling; }
  LayerSeconds& operator+=(const LayerSeconds& other);
};

class LayerOperators {
 public:
  /// Memory for steps of up to `max_tokens` tokens at positions below `max_positions`, of which up to `max_rows` are sampled for.
  LayerOperators(const Context& context, const ModelPreset& model, DType dtype, std::int64_t max_tokens, std::int64_t max_rows,
                 std::int64_t max_positions, std::uint64_t seed);

  /// The positions of the step's tokens.
  void begin_step(std::span<const std::int32_t> positions);
  /// One layer: residual addition and RMSNorm before attention and before the feed-forward part, RoPE of Q and K, the gated activation.
  void run_layer(LayerSeconds& seconds);
  /// One token for each of `rows` rows of logits: temperature 0.7, top-p 0.95.
  void sample_tokens(std::int64_t rows, LayerSeconds& seconds);

 private:
  /// A dense tensor on the context's device, filled with numbers in [-1, 1).
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView place(const void* host, DType dtype, std::initializer_list<std::int64_t> shape);
  void copy_in(const TensorView& to, const void* host);
  void timed(double& seconds, const std::function<void()>& body) const;

  const Context& context_;
  const ModelPreset& model_;
  std::optional<cuda::CurrentDevice> current_;  // on a GPU
  std::uint64_t seed_, step_ = 0;
  std::int64_t num_tokens_ = 0;
  std::list<Buffer> host_;
  std::list<cuda::DeviceBuffer> device_;
  TensorView x_, residual_, sum_, normed_, weight_, q_, k_, cos_sin_, positions_, gate_up_, activated_, logits_, tokens_;
};

}  // namespace girih::tools
