// Quantisation: which scales operators write or are given beside 8- and 4-bit codes; conversions both ways; packed bit masks.
#pragma once

#include <cstdint>
#include <vector>

#include "girih/context.h"
#include "girih/tensor.h"

namespace girih {

/// What shares a scale. A value is code * scale * global_scale.
///   none     f32, f16, bf16
///   tensor   e4m3, e5m2, i8: one f32 scale, an input
///   token    e4m3, e5m2, i8: f32, computed: M / 448, M / 57344 or M / 127, over global_scale
///   block    e4m3, e5m2, i8: 128 elements of a row share an f32 scale, computed as for `token`;
///            nvfp4: 16, scale e4m3(M / 6 / global_scale); mxfp4: 32, scale 2^(floor(log2(M / global_scale)) - 2) as e8m0
///   mx       e4m3, e5m2: 32 share 2^(floor(log2(M / global_scale)) - 8, or - 15) as e8m0 (OCP MX 1.0)
///   tile     e4m3, e5m2, i8: 128 rows x 128 elements share an f32 scale (weights); quantize() and dequantize() only, rows without heads
/// M is the largest finite |x| of what shares the scale. Where M is 0, codes are 0 and the scale is 1 (f32, e8m0) or 0 (nvfp4).
enum class QuantScale : std::uint8_t { none, tensor, token, block, mx, tile };

/// Codes are nearest(x / (scale * global_scale)), ties to even, saturated: infinities become the largest code of their sign. NaN stays NaN
/// in e4m3 and e5m2 (with its sign) and becomes 0 in i8 and 4-bit types; i8 never holds -128. Two 4-bit codes share a byte, the even
/// element in the low nibble; an odd row leaves its last high nibble 0.
struct Quantization {
  QuantScale scale = QuantScale::none;
  /// f32 for tensor [1], token [rows] or [rows, heads] and 128-element blocks [rows, ceil(dim / 128)] (with heads: [rows, heads, ...]);
  /// tile: f32 [ceil(rows / 128), ceil(dim / 128)];
  /// e4m3 or u8 for nvfp4, u8 for e8m0: [rows, ceil(dim / 16 or 32)] likewise. Any strides.
  TensorView scales{};
  float global_scale = 1.0F;  ///< finite and > 0; an input, which multiplies every scale
  /// Block scales of rows without heads in tiles of 128 rows x 4 blocks, the order that block-scaled tensor-core instructions read: byte
  /// (r / 128 * C / 4 + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4, C = the number of blocks rounded up to 4. `scales` is then
  /// dense u8 (or e4m3), of at least round_up(rows, 128) * C elements; those of no row or block are left alone.
  bool swizzled = false;
};

/// Codes and scales of x [rows, dim] or [rows, heads, dim] (f32, f16 or bf16, any strides) into `out`, of x's shape. Errors:
/// invalid_argument for shapes, types, devices, strides or overlaps that do not fit, before anything is written. On a CUDA device queued on
/// `stream`; can be captured once a call outside of a capture has loaded its kernel.
void quantize(const Context& context, const TensorView& x, const TensorView& out, const Quantization& quantization, void* stream = nullptr);

/// out = code * (scale * global_scale), rounded to out's type (f32, f16 or bf16). x: codes as quantize() writes them; scales are inputs, of
/// any values (a NaN scale makes NaN). Errors as quantize().
void dequantize(const Context& context, const TensorView& x, const TensorView& out, const Quantization& quantization,
                void* stream = nullptr);

/// Packs bits: bit i % 8 of out[i / 8] (little: the lowest bit first; big: the highest) is x[i] != 0. x: u8 [n], out: u8 [ceil(n / 8)],
/// both dense; the last byte's spare bits are 0.
enum class BitOrder : std::uint8_t { little, big };
void packbits(const Context& context, const TensorView& x, const TensorView& out, BitOrder order = BitOrder::little,
              void* stream = nullptr);
/// The same for each segment [indptr[i], indptr[i + 1]) of x, whose bytes begin at out_indptr[i] = the sum of ceil(length / 8) before it.
/// indptr is host memory; returns out_indptr [segments + 1]. out needs out_indptr.back() bytes. On a CUDA device not to be captured.
std::vector<std::int64_t> segment_packbits(const Context& context, const TensorView& x, Indices indptr, const TensorView& out,
                                           BitOrder order = BitOrder::little, void* stream = nullptr);

}  // namespace girih
