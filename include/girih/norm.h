// Normalisation of rows: RMSNorm and LayerNorm, with a residual added before and a quantised output after, in one pass over memory.
#pragma once

#include "girih/quantize.h"

namespace girih {

/// Tensors are [rows, dim], or [rows, heads, dim] to normalise every head by itself (QK-norm, group norm), with any strides; dim <= 131072,
/// rows * heads < 2^31. Elements are f32, f16 or bf16; sums and everything between load and store are f32.
struct NormArgs {
  TensorView x{};
  TensorView weight{};  ///< [dim], or [heads, dim] with a weight for each head; dense, f32 or x's type. Rank 0: 1 everywhere
  TensorView bias{};    ///< of layer_norm: as weight, of the same type; rank 0: 0
  /// Given: h = x + residual is normalised in place of x. As x in shape and type.
  TensorView residual{};
  /// Given with residual: takes h rounded to x's type. May be `residual` or `x` itself. (What is normalised is h before rounding.)
  TensorView residual_out{};
  /// x's shape; f32, f16, bf16, or a quantised type with `quantization`. May be x or residual itself where it has its type and strides.
  TensorView out{};
  Quantization quantization{};
  float eps = 1e-6F;
  float weight_offset = 0.0F;  ///< added to every weight: 1 for Gemma's (1 + w)
};

/// out = h / sqrt(mean(h^2) + eps) * (weight + weight_offset)   (Zhang and Sennrich 2019, eq. 4)
/// Errors: invalid_argument for shapes, types, devices, strides or overlaps that do not fit, before anything is written. On a CUDA device
/// queued on `stream`; can be captured once a call outside of a capture has loaded its kernel.
void rms_norm(const Context& context, const NormArgs& args, void* stream = nullptr);

/// out = (h - mean(h)) / sqrt(variance(h) + eps) * (weight + weight_offset) + bias, the variance being that of the row itself (Ba et al.
/// 2016, eq. 4). Computed in two passes over the row in registers: no cancellation for rows with a large mean. Errors as rms_norm.
void layer_norm(const Context& context, const NormArgs& args, void* stream = nullptr);

}  // namespace girih
