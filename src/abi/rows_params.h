// The row operators' kernel: what it is compiled for (PartConfig) and its parameters, by value. Host and NVRTC compile it.
// A launch works on up to kMaxParts tensors of the same rows; each goes through its own pipeline: load (a sum with a residual, or an
// activation of two operands) -> normalise -> rotate -> convert or quantise -> store, densely or into pages. All strides are bytes.
#pragma once

#include <cstdint>

#include "abi/page_params.h"

namespace girih::abi {

enum class Elem : std::uint8_t { f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4 };
enum class Norm : std::uint8_t { none, rms, layer };
/// `multiply`: the two operands' product.
enum class Act : std::uint8_t { none, silu, gelu, gelu_tanh, swigluoai, multiply };
enum class Rotation : std::uint8_t { none, half, interleaved };
/// Where scales come from: given (one, or one a head), computed for a row and head (f32), or for a block (nvfp4: 16 and e4m3; mxfp4 and
/// `mx`: 32 and e8m0; `block`: 128 and f32; `tile`: 128 x 128 and f32, by a kernel of its own).
enum class Scaling : std::uint8_t { none, tensor, head, row, block, mx, tile };

/// One part's pipeline; all of it is known at compile time.
struct PartConfig {
  Elem x = Elem::f32;       // also of the second operand and the residual
  Elem weight = Elem::f32;  // also of the bias
  Elem out = Elem::f32;
  int dim = 0;     // elements of a row and head
  int rotary = 0;  // rotated elements: [rotary_begin, rotary_begin + rotary)
  int rotary_begin = 0;
  int threads = 32;          // that share a row: a power of two up to 32, or more and then the whole block
  int vectors = 1;           // of 16 bytes that each of them holds
  int heads = 1;             // of a row that the same threads take together: what rows share is then found and loaded once
  bool aligned = false;      // every row may be read and written 16 bytes at a time
  bool residual = false;     // x + residual is worked on, and stored where residual_out is given
  bool interleaved = false;  // the activation's operands alternate: x[2 d] and x[2 d + 1]
  bool has_weight = false;
  bool has_bias = false;
  bool head_weights = false;  // weights and biases differ between heads
  bool paged = false;         // rows go to places of a page table
  bool listed = false;        // which arrays on the device say (AppendTable)
  Act act = Act::none;
  Norm norm = Norm::none;
  Rotation rotation = Rotation::none;
  Scaling scaling = Scaling::none;

  friend constexpr bool operator==(const PartConfig&, const PartConfig&) = default;
};

/// Whether a thread that holds an element that is rotated by halves holds its partner, too: these lie whole rounds of vectors apart.
constexpr bool holds_partners(const PartConfig& c) {
  const int round = c.threads * (c.x == Elem::f32 ? 4 : 8);
  return c.rotation == Rotation::half && c.rotary_begin % round == 0 && c.rotary / 2 % round == 0;
}

/// [rows, heads, dim]; null where a part has none.
struct RowTensor {
  unsigned char* data;
  std::int64_t row_stride;
  std::int64_t head_stride;
  std::int64_t dim_stride;
};

struct RowPart {
  RowTensor x;             // an activation's gate
  RowTensor second;        // an activation's other operand, or the residual
  RowTensor residual_out;  // [rows, heads, dim] of x's type, or null
  RowTensor out;           // row_stride is a token's within a page where places decide
  std::int64_t page_stride;
  unsigned char* scales;
  std::int64_t scale_page_stride;
  std::int64_t scale_row_stride;
  std::int64_t scale_head_stride;
  std::int64_t scale_block_stride;
  std::int64_t swizzled_columns;  // > 0: block scales lie in tiles of 128 rows x 4 columns, of that many columns (a multiple of 4)
  const unsigned char* weight;    // [dim], dense
  const unsigned char* bias;      // [dim], dense
  std::int64_t weight_head_stride;
  float eps;
  float weight_offset;  // added to every weight
  float global_scale;
  float alpha;  // swigluoai
  float limit;
  std::int32_t heads;
  std::int32_t num_blocks;  // that work on the part; those of the parts before come first
};

inline constexpr int kMaxParts = 5;

struct RowsParams {
  RowPart parts[kMaxParts];
  std::int64_t rows;
  // Rotation: cos [rotary / 2] and sin [rotary / 2] of a position, f32.
  const float* cos_sin;
  std::int64_t cos_sin_stride;  // elements between positions
  std::int64_t num_positions;
  const unsigned char* positions;  // [rows] i32 or i64, or null
  std::int64_t position_stride;    // bytes
  const unsigned char* indptr;     // [requests + 1] and offsets [requests], i32 or i64: row r of request i is at offsets[i] + r - indptr[i]
  const unsigned char* offsets;
  std::int64_t requests;
  std::int32_t positions_64;
  std::int32_t segment;      // of the plan
  const TokenPlace* places;  // [rows], or null: `table`, or the plan's query tokens
  const PlanHeader* plan;
  const std::int32_t* kv_indices;
  FastDivider page_size;
  AppendTable table;  // of parts that are listed
};

struct PackBitsParams {
  const unsigned char* x;
  unsigned char* out;
  const std::int64_t* indptr;      // [segments + 1] bits, or null: all of x is one segment
  const std::int64_t* out_indptr;  // [segments + 1] bytes, or null
  std::int64_t num_segments;
  std::int64_t num_bits;
  std::int64_t num_bytes;
  std::int32_t big;
};

/// Where the scale of `column` of `row` lies in tiles of 128 x 4: the 32 x 16 byte order that block-scaled matrix instructions read.
constexpr std::int64_t swizzled_offset(std::int64_t row, std::int64_t column, std::int64_t columns) {
  return (row / 128 * (columns / 4) + column / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

}  // namespace girih::abi
