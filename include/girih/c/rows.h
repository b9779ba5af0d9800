// C ABI: operators on rows: norms, gated activations, quantisation, bit packing (girih/norm.h, activation.h, quantize.h).
#pragma once

#include "girih/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// What shares a scale (enum QuantScale in girih/quantize.h has the formulas).
typedef int32_t girih_quant_scale;
enum {
  GIRIH_QUANT_NONE = 0,    ///< f32, f16, bf16
  GIRIH_QUANT_TENSOR = 1,  ///< e4m3, e5m2, i8: one f32 scale, an input
  GIRIH_QUANT_TOKEN = 2,   ///< e4m3, e5m2, i8: f32, computed
  GIRIH_QUANT_BLOCK = 3,   ///< e4m3, e5m2, i8: 128 elements; nvfp4: 16; mxfp4: 32
  GIRIH_QUANT_MX = 4,      ///< e4m3, e5m2: 32 elements share an e8m0 scale
  GIRIH_QUANT_TILE = 5,    ///< e4m3, e5m2, i8: 128 rows x 128 elements; girih_quantize and girih_dequantize only
};

/// Zeroed: no quantisation.
typedef struct girih_quantization {
  girih_tensor scales;  ///< shape and type by `scale`: struct Quantization in girih/quantize.h
  girih_quant_scale scale;
  float global_scale;  ///< finite and > 0; multiplies every scale. 0 (of a zeroed struct) = 1
  int32_t swizzled;    ///< block scales in tiles of 128 rows x 4 blocks, the order that block-scaled tensor-core instructions read
  int32_t reserved;
} girih_quantization;

/// Tensors are [rows, dim], or [rows, heads, dim] to normalise every head by itself, with any strides; f32, f16 or bf16.
typedef struct girih_norm_args {
  uint64_t struct_size;
  girih_tensor x;
  girih_tensor weight;        ///< [dim], or [heads, dim]; dense, f32 or x's type. Not given: 1 everywhere
  girih_tensor bias;          ///< of girih_layer_norm: as weight; not given: 0
  girih_tensor residual;      ///< given: h = x + residual is normalised in place of x
  girih_tensor residual_out;  ///< given with residual: takes h rounded to x's type; may be `residual` or `x` itself
  girih_tensor out;           ///< x's shape; f32, f16, bf16, or a quantised type with `quantization`
  girih_quantization quantization;
  float eps;
  float weight_offset;  ///< added to every weight: 1 for Gemma's (1 + w)
} girih_norm_args;
GIRIH_API girih_status girih_norm_args_init(girih_norm_args* out, uint64_t struct_size);
/// out = h / sqrt(mean(h^2) + eps) * (weight + weight_offset). Errors: invalid_argument, before anything is written.
GIRIH_API girih_status girih_rms_norm(const girih_context* context, const girih_norm_args* args, void* stream);
/// out = (h - mean(h)) / sqrt(variance(h) + eps) * (weight + weight_offset) + bias. Errors as girih_rms_norm.
GIRIH_API girih_status girih_layer_norm(const girih_context* context, const girih_norm_args* args, void* stream);

typedef int32_t girih_activation;
enum { GIRIH_SILU = 0, GIRIH_GELU = 1, GIRIH_GELU_TANH = 2, GIRIH_SWIGLUOAI = 3, GIRIH_MULTIPLY = 4 };
typedef struct girih_activation_args {
  uint64_t struct_size;
  girih_tensor x;    ///< [rows, 2 * dim]: gates, then ups (interleaved: alternating). Where `up` is given: the gates [rows, dim]
  girih_tensor up;   ///< [rows, dim] of x's type, or not given
  girih_tensor out;  ///< [rows, dim]; f32, f16, bf16, or a quantised type with `quantization`
  girih_quantization quantization;
  float alpha;  ///< of swigluoai
  float limit;  ///< of swigluoai, > 0; infinity: no clamping
  int32_t interleaved;
  int32_t reserved;
} girih_activation_args;
GIRIH_API girih_status girih_activation_args_init(girih_activation_args* out, uint64_t struct_size);
/// out = act(gate) * up. Errors: invalid_argument, before anything is written.
GIRIH_API girih_status girih_activate(const girih_context* context, girih_activation activation, const girih_activation_args* args,
                                      void* stream);

/// Codes and scales of x [rows, dim] or [rows, heads, dim] (f32, f16 or bf16) into `out`, of x's shape.
GIRIH_API girih_status girih_quantize(const girih_context* context, const girih_tensor* x, const girih_tensor* out,
                                      const girih_quantization* quantization, void* stream);
/// out = code * (scale * global_scale), rounded to out's type.
GIRIH_API girih_status girih_dequantize(const girih_context* context, const girih_tensor* x, const girih_tensor* out,
                                        const girih_quantization* quantization, void* stream);

typedef int32_t girih_bit_order;
enum { GIRIH_LITTLE = 0, GIRIH_BIG = 1 };
/// Bit i % 8 of out[i / 8] (LITTLE: the lowest bit first) is x[i] != 0. x: u8 [n], out: u8 [ceil(n / 8)], both dense.
GIRIH_API girih_status girih_packbits(const girih_context* context, const girih_tensor* x, const girih_tensor* out, girih_bit_order order,
                                      void* stream);
/// The same for each segment [indptr[i], indptr[i + 1]) of x, whose bytes begin at out_indptr[i] = the sum of ceil(length / 8) before it.
/// indptr is host memory; out_indptr [capacity >= segments + 1] receives the offsets (NULL with 0: not wanted).
GIRIH_API girih_status girih_segment_packbits(const girih_context* context, const girih_tensor* x, const girih_indices* indptr,
                                              const girih_tensor* out, girih_bit_order order, int64_t* out_indptr, int64_t capacity,
                                              void* stream);

#ifdef __cplusplus
}
#endif
