// The wgmma family's tiles (kernels/attention/wgmma.cuh): large tiles of Q, K and V of 16 bits or of e4m3 on Hopper; where it is asked
// for, of 16-bit Q beside keys of 8 bits.
#include <algorithm>
#include <array>
#include <numeric>

#include "attention/cuda_family.h"
#include "attention/spec.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kTileRows = 2 * kGroupRows;
constexpr int kProducers = 128;
constexpr int kWideners = 128;  // producers more where K and V are widened
constexpr int kGroupThreads = 128;
constexpr std::int64_t kStackRow = 128;  // bytes of a row of shared memory

struct Shape {
  int step = 0;          // keys
  int stages = 2;        // of K, and of V as it is brought
  int rows = kTileRows;  // of a tile
  int blocks_per_sm = 1;
};
/// Longest steps first: the widths that kernels/ptx/wgmma.cuh has.
constexpr std::array<Shape, 4> kShapes16 = {{{176, 2}, {128, 2}, {96, 2}, {64, 2}}};
/// Of three warpgroups, where sums take few registers: while products of one have the tensor cores, two are at their weights.
constexpr Shape kTallShape16 = {128, 2, 3 * kGroupRows};
constexpr int kMostTallDims = 64;
/// Of one warpgroup, so that a multiprocessor has room for two blocks, or for one beside a block of decode.
constexpr std::array<Shape, 5> kHalfShapes16 = {
    {{176, 2, kGroupRows, 2}, {128, 2, kGroupRows, 2}, {96, 2, kGroupRows, 2}, {80, 2, kGroupRows, 2}, {64, 2, kGroupRows, 2}}};
/// Of 8 bits, the widths of wgmma_fp8.cuh: steps take half the time, so more of them are under way.
constexpr std::array<Shape, 6> kShapes8 = {{{128, 4}, {128, 2}, {96, 4}, {96, 2}, {64, 4}, {64, 2}}};
/// Widened, with the codes in shared memory as well.
constexpr std::array<Shape, 5> kShapesWidened = {{{128, 2}, {128, 1}, {96, 2}, {64, 2}, {64, 1}}};
constexpr int kConsumedStages = 2;  // of V that is transposed, and of K and V that are widened

bool is_fp8(const AttentionSpec& spec) { return bits(spec.q_dtype) == 8; }
bool is_widened(const AttentionSpec& spec) { return bits(spec.k_dtype) < bits(spec.q_dtype); }

/// V of more dims than a warpgroup can sum, in K.
bool is_mla(const AttentionSpec& spec) { return spec.v_is_k && spec.head_dim_vo > 256; }

bool keeps_rows(const CudaRequest& request) { return !request.program.mask.empty() || !request.program.logits.empty(); }

std::int64_t shared_bytes(const CudaRequest& request, Shape shape) {
  const std::int64_t size = bits(request.spec.q_dtype) / 8;
  const std::int64_t key_row = round_up(request.spec.head_dim_qk * size, kStackRow);
  const std::int64_t value_row = round_up(request.spec.head_dim_vo * size, kStackRow);
  const std::int64_t rows = keeps_rows(request) ? shape.rows * 64 : 0;
  std::int64_t keys = shape.stages * shape.step * (key_row + value_row);
  std::int64_t rings = 2 * shape.stages;
  if (is_fp8(request.spec)) {
    keys += shape.stages * request.spec.head_dim_vo * kStackRow;
    rings += shape.stages;
  } else if (is_widened(request.spec)) {
    const std::int64_t stored = round_up(request.spec.head_dim_qk, kStackRow) + round_up(request.spec.head_dim_vo, kStackRow);
    keys = shape.step * (kConsumedStages * (key_row + value_row) + shape.stages * stored);
    rings += 2 * kConsumedStages;
  }
  const std::int64_t query_places = is_fp8(request.spec) ? 1 : shape.rows / kGroupRows;
  const std::int64_t places = 2 * round_up(shape.step, 32) * 8;  // of copied rows
  return keys + shape.rows * key_row + rows + places + 2 * (rings + query_places) * 8 + 16;
}

/// Registers of a consumer: its share of O, of S, and of P as pairs; 44 are left for all else, 32 with three warpgroups (numbers used once
/// a step are spilled). Of e4m3 P is fours, and the sums of a step are apart from O, 64 dims at a time (96 where V has so many); 32 are
/// left.
bool has_registers(const AttentionSpec& spec, Shape shape) {
  if (is_fp8(spec)) return (spec.head_dim_vo + (spec.head_dim_vo == 96 ? 96 : 64) + shape.step) / 2 + shape.step / 8 <= 232 - 32;
  const int needed = spec.head_dim_vo / 2 + shape.step / 2 + shape.step / 4;
  if (shape.rows > kTileRows) return needed <= 160 - 32;
  return needed <= (is_widened(spec) ? 216 : shape.rows < kTileRows ? 232 : 240) - 44;
}

/// A level that many requests share, beside their own keys: both lists run at once where a block of each fits a multiprocessor. Fewer rows
/// are bound by memory, for which whole tiles have more keys under way; more rows are bound by products, of which whole tiles do more.
bool takes_half_tiles(const CudaRequest& request) {
  constexpr int kMostDims = 192;  // sums of 256 dims do not fit the 128 registers that the assembler takes two such blocks to have
  if (!request.cascades || request.spec.batch_invariant || request.spec.head_dim_vo > kMostDims) return false;
  return request.max_rows > kGroupRows && request.max_rows <= kCascadeRows;
}

/// step 0: none fits.
Shape shape_of(const CudaRequest& request) {
  const auto fits = [&](Shape shape) {
    if (request.spec.batch_invariant && kInvariantChunk % shape.step != 0) return false;
    const std::int64_t needed = shared_bytes(request, shape);
    if (shape.blocks_per_sm * (needed + kReservedPerBlock) > request.device.shared_per_sm) return false;
    return has_registers(request.spec, shape) && needed <= request.device.shared_per_block;
  };
  const auto first = [&](const auto& shapes) {
    const auto found = std::find_if(shapes.begin(), shapes.end(), fits);
    return found == shapes.end() ? Shape{} : *found;
  };
  if (is_widened(request.spec)) return first(kShapesWidened);
  if (is_fp8(request.spec)) return first(kShapes8);
  if (takes_half_tiles(request)) {
    const Shape half = first(kHalfShapes16);
    if (half.step > 0) return half;
  }
  if (request.spec.head_dim_vo <= kMostTallDims && fits(kTallShape16)) return kTallShape16;
  return first(kShapes16);
}

/// Of Q, K and V's types; empty where they are served.
std::string types_refusal(const CudaRequest& request) {
  const AttentionSpec& s = request.spec;
  if (is_fp8(s)) {
    if (s.k_dtype != DType::e4m3 || s.v_dtype != DType::e4m3) return "Q of e4m3 needs K and V of e4m3";
    if (s.k_scale == ScaleGranularity::token_head || s.v_scale == ScaleGranularity::token_head)
      return "scales of single keys (token_head) beside Q of e4m3";
    if (!request.program.softmax) return "weights that are no softmax may exceed e4m3";
    if (s.head_dim_qk % 32 != 0) return "head_dim_qk must be a multiple of 32 where Q is e4m3";
    return {};
  }
  if (s.q_dtype != DType::f16 && s.q_dtype != DType::bf16) return "q_dtype must be f16, bf16 or e4m3";
  if (!request.program.softmax && s.q_dtype == DType::f16) return "weights that are no softmax may exceed f16";
  if (s.k_dtype == s.q_dtype && s.v_dtype == s.q_dtype) return {};
  if (bits(s.k_dtype) != 8 || bits(s.v_dtype) != 8) return "K and V must have Q's type, or both one of 8 bits";
  if (s.k_scale == ScaleGranularity::token_head || s.v_scale == ScaleGranularity::token_head) return "scales of single keys (token_head)";
  if (request.wanted != "wgmma") return "K and V of 8 bits beside Q of 16, where mma is faster, only if asked for: family=wgmma";
  return {};
}

std::string wgmma_refusal(const CudaRequest& request, int tile_class) {
  const AttentionSpec& s = request.spec;
  const variant::Program& v = request.program;
  if (request.device.arch != 90) return "needs sm_90";
  if (is_mla(s)) return wgmma_mla_refusal(request);
  if (s.k_scale == ScaleGranularity::token_group || s.v_scale == ScaleGranularity::token_group)
    return "scales of parts of a row (token_group)";
  if (tile_class == kSmall) return "takes large tiles only";
  if (s.v_is_k || s.head_dim_rope > 0) return "K in two tensors, and V in K's";
  if (!v.query.empty() || !v.key.empty() || !v.value.empty() || v.rope) return "transforms and RoPE on Q, K and V";
  if (std::string refusal = types_refusal(request); !refusal.empty()) return refusal;
  constexpr std::array<int, 5> kValueDims = {64, 96, 128, 192, 256};
  if (std::find(kValueDims.begin(), kValueDims.end(), s.head_dim_vo) == kValueDims.end())
    return "head_dim_vo must be 64, 96, 128, 192 or 256";
  if (s.head_dim_qk % 16 != 0 || s.head_dim_qk < 64 || s.head_dim_qk > 256) return "head_dim_qk must be a multiple of 16 from 64 to 256";
  if (shape_of(request).step == 0) return "no tile fits the device's shared memory";
  return {};
}

CudaTile wgmma_tile(const CudaRequest& request, int) {
  if (is_mla(request.spec)) return wgmma_mla_tile(request);
  const Shape shape = shape_of(request);
  CudaTile tile;
  tile.producers = kProducers + (is_widened(request.spec) ? kWideners : 0);
  tile.threads = shape.rows / kGroupRows * kGroupThreads + tile.producers;
  tile.blocks_per_sm = shape.blocks_per_sm;
  tile.shares_sms = shape.rows < kTileRows;
  tile.stages = shape.stages;
  tile.shared_bytes = shared_bytes(request, shape);
  tile.math = variant::CudaMath::approximate;
  // A step costs the same whatever rows a tile has; a tile's beginning (the first scores, with no sums to add meanwhile) and its end are
  // worth about four.
  // Windows and documents begin where they may: boxes of keys in pages are no longer than kAlign.
  constexpr int kAlign = 128;
  tile.tune = {.tile_rows = shape.rows,
               .kv_block = shape.step,
               .kv_align = std::gcd(shape.step, kAlign),
               .cost_piece = 4 * shape.step,
               .cost_block = shape.step,
               .cost_block_row = 0};
  return tile;
}

}  // namespace

const CudaFamily kWgmmaFamily = {.name = "wgmma",
                                 .include = "attention/wgmma.cuh",
                                 .function = "run_wgmma",
                                 .refusal = wgmma_refusal,
                                 .tile = wgmma_tile,
                                 .large_only = true};

}  // namespace girih::attention
