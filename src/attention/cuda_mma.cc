// The mma family's tiles: what kernels/attention/mma.cuh takes, and how much of it fits a device. A shape is tried from the fastest down to
// the smallest; the arithmetic of shared memory repeats that of the kernels, which assert that it suffices.
#include <algorithm>
#include <array>

#include "attention/cuda_family.h"
#include "attention/spec.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

constexpr int kDecodeRows = 16;
constexpr int kMaxDim = 256;

/// A row of shared memory: SharedRows::kStride.
std::int64_t row_stride(std::int64_t row_bytes) {
  const std::int64_t chunks = row_bytes / 16;
  return (chunks % 8 == 0 ? chunks : chunks | 1) * 16;
}

/// Bytes of a key's own scales in the ring, for rows of `row_bytes` (token_group: of codes).
std::int64_t scale_bytes(ScaleGranularity scale, DType dtype, std::int64_t row_bytes) {
  if (scale == ScaleGranularity::token_head) return 4;
  if (scale == ScaleGranularity::token_group) return row_bytes / kScaleGroup * 4;
  return scale == ScaleGranularity::block ? round_up(2 * row_bytes / (dtype == DType::nvfp4 ? 16 : 32), 4) : 0;
}

/// MLA's codes with scales of groups of dims, the RoPE part of Q's type behind them.
bool has_groups(const AttentionSpec& spec) { return spec.k_scale == ScaleGranularity::token_group; }

struct Rows {
  std::int64_t key, value, query;  // bytes of a row, padded
  std::int64_t stored;             // of a key in the ring, scales included
};

Rows rows_of(const AttentionSpec& spec, bool byte_products = false) {
  Rows r{};
  if (has_groups(spec)) {
    r.key = r.value = round_up(bytes(spec.k_dtype, first_part_dim(spec)) + bytes(spec.q_dtype, spec.head_dim_rope), 32);
    r.query = bytes(spec.q_dtype, spec.head_dim_qk);
    r.stored = row_stride(r.key) + scale_bytes(spec.k_scale, spec.k_dtype, first_part_dim(spec));
    return r;
  }
  r.key = round_up(bytes(spec.k_dtype, spec.head_dim_qk), 32);
  r.value = spec.v_is_k ? r.key : round_up(bytes(spec.v_dtype, spec.head_dim_vo), 32);
  r.query = r.key * (byte_products ? 8 : 16) / bits(spec.k_dtype);
  r.stored = std::max(row_stride(r.key), row_stride(r.value)) +
             std::max(scale_bytes(spec.k_scale, spec.k_dtype, r.key), scale_bytes(spec.v_scale, spec.v_dtype, r.value));
  return r;
}

/// Planes that a key has a place in: those of StreamShape.
int planes_of(const AttentionSpec& spec) {
  const auto scaled = [](ScaleGranularity scale) {
    return scale == ScaleGranularity::token_head || scale == ScaleGranularity::block ? 1 : 0;
  };
  return (spec.head_dim_rope > 0 ? 2 : 1) + (spec.v_is_k ? 0 : 1) + scaled(spec.k_scale) + scaled(spec.v_scale);
}

struct Shape {
  int tile_rows, threads, blocks_per_sm, slots;
  int kv_block = 64;
  int warps_rows = 1;
  int warps_values = 0;
};

/// mma_wide.cuh: V of more dims than a warp can sum.
bool is_wide(const AttentionSpec& spec) { return spec.v_is_k && spec.head_dim_vo > kMaxDim; }

/// Where tensor cores multiply e4m3 by mma.sync; compilers for the other chips widen it, at each product.
bool multiplies_bytes(const CudaRequest& request) {
  const int arch = request.device.arch;
  return bits(request.spec.q_dtype) == 8 && request.spec.k_dtype == DType::e4m3 && (arch == 89 || arch == 120 || arch == 121);
}

std::int64_t shared_bytes(const CudaRequest& request, const Shape& shape) {
  const Rows r = rows_of(request.spec, multiplies_bytes(request));
  const std::int64_t ring = shape.slots * shape.kv_block * r.stored;
  if (is_wide(request.spec)) {
    const std::int64_t sharers = (shape.threads / 32 - shape.warps_values) / shape.warps_rows;
    const std::int64_t query = shape.warps_rows == 1 ? 0 : row_stride(r.query);
    const std::int64_t weights = (has_groups(request.spec) ? 8 : 4) * shape.kv_block;
    return ring + shape.tile_rows * (query + weights + 12 * (1 + sharers)) + 32 + round_up(8 * (4 + shape.slots), 16) + 16;
  }
  if (shape.tile_rows <= kDecodeRows) {
    const std::int64_t warps = shape.threads / 32;
    return ring + warps * 8 * round_up(request.spec.head_dim_vo, 32) * 4 + warps * 16 * 8 + 16;
  }
  const std::int64_t places = shape.threads * 8 * planes_of(request.spec) + shape.threads / 32 * 64;
  const std::int64_t barriers = shape.slots / (request.spec.v_is_k ? 1 : 2) * 16;
  const bool keeps_rows = !request.program.mask.empty() || !request.program.logits.empty();
  const std::int64_t inverse = bits(request.spec.k_dtype) == 8 && request.spec.q_dtype == DType::bf16 ? 4 : 0;
  // A warp's rows of Q, or eight rows' sums.
  const std::int64_t warps = shape.threads / 32;
  const std::int64_t query = std::max(shape.tile_rows * row_stride(r.query), warps * 8 * round_up(request.spec.head_dim_vo, 32) * 4);
  return ring + places + barriers + query + shape.tile_rows * (inverse + (keeps_rows ? 64 : 0)) + 16;
}

/// MLA stages the sums of eight rows in a slot of the ring (WideShape).
bool has_room_for_sums(const CudaRequest& request, const Shape& shape) {
  return !is_wide(request.spec) || 8 * request.spec.head_dim_vo * 4 <= shape.kv_block * rows_of(request.spec).stored;
}

bool fits(const CudaRequest& request, const Shape& shape) {
  if (!has_room_for_sums(request, shape)) return false;
  // A value warp's dims share a scale.
  if (has_groups(request.spec) && kScaleGroup % (request.spec.head_dim_vo / shape.warps_values) != 0) return false;
  const std::int64_t needed = shared_bytes(request, shape);
  return needed <= request.device.shared_per_block && shape.blocks_per_sm * (needed + kReservedPerBlock) <= request.device.shared_per_sm;
}

/// Two blocks a multiprocessor hide each other's tile ends.
constexpr std::array<Shape, 7> kDecodeShapes = {{{kDecodeRows, 128, 2, 12},
                                                 {kDecodeRows, 128, 2, 8},
                                                 {kDecodeRows, 128, 2, 6},
                                                 {kDecodeRows, 128, 2, 4},
                                                 {kDecodeRows, 128, 2, 2},
                                                 {kDecodeRows, 128, 1, 4},
                                                 {kDecodeRows, 128, 1, 2}}};
/// Keys of 8 bits: what a step costs beside its bytes weighs double, so steps are twice as long, as far as that leaves several under way.
constexpr std::array<Shape, 9> kDecodeShapes8 = {{{kDecodeRows, 128, 2, 12, 128},
                                                  {kDecodeRows, 128, 2, 6, 128},
                                                  {kDecodeRows, 128, 2, 4, 128},
                                                  {kDecodeRows, 128, 2, 8},
                                                  {kDecodeRows, 128, 2, 6},
                                                  {kDecodeRows, 128, 2, 4},
                                                  {kDecodeRows, 128, 2, 2},
                                                  {kDecodeRows, 128, 1, 4},
                                                  {kDecodeRows, 128, 1, 2}}};
/// Eight warps of 32 rows, two for each scheduler of a multiprocessor; four where shared memory is short.
constexpr std::array<Shape, 6> kPrefillShapes = {
    {{256, 256, 1, 8, 64}, {256, 256, 1, 6, 64}, {256, 256, 1, 4, 64}, {128, 128, 1, 4, 64}, {128, 128, 1, 4, 32}, {64, 128, 1, 4, 32}}};
/// O of more than 128 dims leaves a warp room for 16 rows.
constexpr std::array<Shape, 2> kLongPrefillShapes = {{{128, 256, 1, 4, 64}, {64, 128, 1, 4, 32}}};

/// MLA. Few rows: each of four warps has 16 keys; where shared memory is short, fewer warps. Many: each has 16 rows.
constexpr std::array<Shape, 6> kWideSmallShapes = {{{16, 256, 1, 5, 64, 1, 4},
                                                    {16, 256, 1, 3, 64, 1, 4},
                                                    {16, 256, 1, 2, 64, 1, 4},
                                                    {16, 192, 1, 3, 32, 1, 4},
                                                    {16, 192, 1, 2, 32, 1, 4},
                                                    {16, 96, 1, 2, 16, 1, 2}}};
constexpr std::array<Shape, 6> kWideLargeShapes = {{{64, 384, 1, 6, 32, 4, 8},
                                                    {64, 384, 1, 4, 32, 4, 8},
                                                    {32, 192, 1, 3, 32, 2, 4},
                                                    {32, 192, 1, 3, 16, 2, 4},
                                                    {16, 192, 1, 2, 32, 1, 4},
                                                    {16, 96, 1, 2, 16, 1, 2}}};

/// tile_rows 0: none fits.
Shape shape_of(const CudaRequest& request, int tile_class) {
  const auto first = [&](const auto& shapes) {
    const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const Shape& s) { return fits(request, s); });
    return found == shapes.end() ? Shape{} : *found;
  };
  if (is_wide(request.spec)) {
    return tile_class == kSmall ? first(kWideSmallShapes) : first(kWideLargeShapes);
  }
  if (tile_class == kSmall) {
    const bool bytes = bits(request.spec.k_dtype) == 8 && bits(request.spec.v_dtype) == 8;
    Shape shape = bytes ? first(kDecodeShapes8) : first(kDecodeShapes);
    const bool few_rows = request.max_rows <= kFewRows && request.spec.num_qo_heads / request.spec.num_kv_heads <= kFewRows;
    if (few_rows) shape.tile_rows = std::min<int>(shape.tile_rows, kFewRows);
    return shape;
  }
  return request.spec.head_dim_vo > 128 ? first(kLongPrefillShapes) : first(kPrefillShapes);
}

std::string mma_refusal(const CudaRequest& request, int tile_class) {
  const AttentionSpec& s = request.spec;
  const variant::Program& v = request.program;
  if (bits(s.q_dtype) == 8) {
    if (bits(s.k_dtype) != 8 || bits(s.v_dtype) != 8) return "Q of e4m3 needs K and V of 8 bits";
    if (is_wide(s)) return "MLA with Q of e4m3";
    if (!v.softmax) return "Q of e4m3 without softmax";
  } else if (s.q_dtype != DType::f16 && s.q_dtype != DType::bf16) {
    return "q_dtype must be f16, bf16 or e4m3";
  } else if (request.device.arch < 80 && s.q_dtype != DType::f16) {
    return "tensor cores before sm_80 take f16 only";
  }
  for (const DType kv : {s.k_dtype, s.v_dtype}) {
    if (bits(kv) > 8 && kv != s.q_dtype) return "K and V must have Q's type or a quantised one";
    if (kv == DType::mxfp4 && s.q_dtype == DType::f16) return "mxfp4's scales exceed f16";
    if (bits(kv) == 4 && is_wide(s)) return "MLA with 4-bit K";
  }
  if (s.k_scale == ScaleGranularity::token_group || s.v_scale == ScaleGranularity::token_group) {
    if (!is_wide(s)) return "scales of parts of a row (token_group) but MLA's";
    if (s.q_dtype != DType::bf16) return "scales of parts of a row (token_group) exceed f16";
    if (s.head_dim_rope > 0 && (rope_dtype(s) != s.q_dtype || s.head_dim_rope % 16 != 0))
      return "K's second tensor beside token_group scales must have Q's type and a multiple of 16 dims";
  } else if (s.head_dim_rope > 0) {
    if (rope_dtype(s) != s.k_dtype) return "K in two tensors of different types";
    if (s.k_scale != ScaleGranularity::none) return "quantised K in two tensors";
  }
  if (!v.query.empty() || !v.key.empty() || !v.value.empty() || v.rope) return "transforms and RoPE on Q, K and V";
  if (!v.softmax && s.q_dtype == DType::f16) return "weights that are no softmax may exceed f16";
  if (is_wide(s)) {
    if (s.head_dim_vo != 512 || s.head_dim_qk > 576 || s.head_dim_qk % 32 != 0)
      return "MLA must have 512 dims of V within at most 576 of K";
  } else if (s.head_dim_qk > kMaxDim || s.head_dim_vo > kMaxDim) {
    return "head dims must be at most 256";
  }
  if (s.head_dim_qk % 8 != 0 || s.head_dim_vo % 8 != 0) return "head dims must be multiples of 8";
  if (s.head_dim_rope > 0) {
    if ((s.head_dim_qk - s.head_dim_rope) * bits(s.k_dtype) / 8 % 128 != 0) return "K's first tensor must have rows of 128 bytes each";
  }
  if (shape_of(request, tile_class).tile_rows == 0) return "no tile fits the device's shared memory";
  return {};
}

CudaTile mma_tile(const CudaRequest& request, int tile_class) {
  const Shape shape = shape_of(request, tile_class);
  CudaTile tile;
  tile.threads = shape.threads;
  tile.blocks_per_sm = shape.blocks_per_sm;
  tile.stages = shape.slots;
  tile.warps_rows = shape.warps_rows;
  tile.warps_values = shape.warps_values;
  tile.few_rows = shape.tile_rows <= kFewRows;
  tile.byte_products = multiplies_bytes(request);
  tile.shared_bytes = shared_bytes(request, shape);
  tile.math = variant::CudaMath::approximate;
  if (tile_class == kSmall) {
    tile.unit_turns = is_wide(request.spec) ? 1 : 2;
    // Bound by memory: a step costs its bytes, whatever rows it serves. Starting and ending a tile, and merging it, is worth about three
    // steps of 32 KiB.
    tile.cost_bytes = 2048;
    const std::int64_t step = std::max<std::int64_t>(1, 2 * shape.kv_block * rows_of(request.spec).stored / tile.cost_bytes);
    tile.tune = {.tile_rows = shape.tile_rows, .kv_block = shape.kv_block, .cost_piece = 48, .cost_block = step, .cost_block_row = 0};
  } else {
    // Rows come in operands of a warp; the copies of a step are the same for all. A tile's beginning (the chain to its rows of Q, with
    // nothing else to do meanwhile), its masked steps and its end are worth about four steps of a full one.
    tile.tune = {.tile_rows = shape.tile_rows,
                 .kv_block = shape.kv_block,
                 .cost_piece = 4 * (64 + shape.tile_rows),
                 .cost_block = 64,
                 .cost_block_row = 1};
  }
  return tile;
}

}  // namespace

const CudaFamily kMmaFamily = {
    .name = "mma", .include = "attention/mma.cuh", .function = "run_mma", .refusal = mma_refusal, .tile = mma_tile};

}  // namespace girih::attention
