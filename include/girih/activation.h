// Gated activations of feed-forward layers: act(gate) * up, with a quantised output where wanted, in one pass over memory.
#pragma once

#include "girih/quantize.h"

namespace girih {

/// silu       gate / (1 + e^-gate) * up
/// gelu       gate * Phi(gate) * up, Phi the normal distribution function (erf, not its tanh form)
/// gelu_tanh  gate * (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2 * up
/// swigluoai  g / (1 + e^(-alpha g)) * (u + 1), g = min(gate, limit), u = up clamped to +-limit (gpt-oss)
/// multiply   gate * up
/// An infinite gate follows the formula (-inf * 0 is NaN); NaN stays NaN.
enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, swigluoai, multiply };

/// Any strides; rows < 2^31, dim <= 131072. Elements of x and up are f32, f16 or bf16; everything between load and store is f32.
struct ActivationArgs {
  /// [rows, 2 * dim]: the gates, then the ups; with `interleaved` gate and up alternate. Where `up` is given: the gates [rows, dim].
  TensorView x{};
  TensorView up{};  ///< [rows, dim] of x's type, or rank 0
  bool interleaved = false;
  /// [rows, dim]; f32, f16, bf16, or a quantised type with `quantization`. May be the gates' (or up's) own memory where it has their type
  /// and strides; not with `interleaved`.
  TensorView out{};
  Quantization quantization{};
  float alpha = 1.702F;  ///< of swigluoai
  float limit = 7.0F;    ///< of swigluoai, > 0; infinity: no clamping
};

/// Errors: invalid_argument for shapes, types, devices, strides or overlaps that do not fit, before anything is written. On a CUDA device
/// queued on `stream`; can be captured once a call outside of a capture has loaded its kernel.
void activate(const Context& context, Activation activation, const ActivationArgs& args, void* stream = nullptr);

}  // namespace girih
