// The floor family's tiles. It takes every spec; tiles are as large as registers and 64 KiB of shared memory (the least of all chips)
// allow.
#include <algorithm>

#include "attention/cuda_family.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

constexpr int kThreads = 128;

struct Shape {
  int rows, keys;
};

/// A staged key is up to 4 KiB, and O takes up to 32 registers a thread.
Shape shape_of(const AttentionSpec& spec, int tile_class) {
  const int dims = std::max(spec.head_dim_qk, spec.head_dim_vo);
  const int keys = dims <= 128 ? 32 : dims <= 256 ? 16 : 8;
  if (dims > 640) return {4, keys};
  const int large_rows = dims <= 128 ? 32 : dims <= 256 ? 16 : 8;
  return {tile_class == kSmall ? 8 : large_rows, keys};
}

/// Floor<c, Variant>::leading.
int leading_dim(Shape shape, int dims) {
  const int patch_keys = 2 * shape.rows * shape.keys >= kThreads ? 4 : 2;
  const int split = kThreads / (shape.rows / 4 * (shape.keys / patch_keys));
  int vectors = ceil_div(dims, 4);
  while (split < 8 && vectors % 8 != split) ++vectors;
  return 4 * vectors;
}

/// At least sizeof(Floor<c, Variant>::Shared).
std::int64_t shared_bytes(const AttentionSpec& spec, Shape shape, bool value_apart) {
  constexpr std::int64_t kRow = 64 + 64 + 2 * 24 + 8 + 4;  // RowVars, RowHooks, RowSources, state, correction
  constexpr std::int64_t kKey = 3 * 24 + 2 * 8;            // RowSources, positions
  const std::int64_t ldk = leading_dim(shape, spec.head_dim_qk);
  const std::int64_t ldv = round_up(spec.head_dim_vo, 4);
  const std::int64_t floats = shape.rows * (ldk + shape.keys + 4) + shape.keys * (value_apart ? ldk + ldv : std::max(ldk, ldv));
  return round_up(shape.rows * kRow + shape.keys * kKey + 4 * floats + 256, 128);
}

CudaTile floor_tile(const CudaRequest& request, int tile_class) {
  const AttentionSpec& spec = request.spec;
  const Shape shape = shape_of(spec, tile_class);
  CudaTile tile;
  tile.threads = kThreads;
  // V of its own where three blocks still fit: its loads are then under way with K's.
  const std::int64_t per_sm = std::max<std::int64_t>(request.device.shared_per_sm, 64 << 10) - (4 << 10);
  tile.stages = 3 * shared_bytes(spec, shape, true) <= per_sm ? 2 : 1;
  tile.shared_bytes = shared_bytes(spec, shape, tile.stages == 2);
  // Three blocks leave a thread 168 registers; those of long heads need more.
  const std::int64_t most = std::max(spec.head_dim_qk, spec.head_dim_vo) > 256 ? 2 : 3;
  tile.blocks_per_sm = static_cast<int>(std::clamp<std::int64_t>(per_sm / tile.shared_bytes, 1, most));
  // Work of a block of keys is that of a full tile, whatever rows the item has: staging, then rows x keys x dims products.
  const std::int64_t dims = spec.head_dim_qk + spec.head_dim_vo;
  tile.tune = {.tile_rows = shape.rows,
               .kv_block = shape.keys,
               .cost_piece = 16 + dims * shape.rows / 512,
               .cost_block = std::max<std::int64_t>(1, dims * shape.keys * (shape.rows + 8) / 16384),
               .cost_block_row = 0};
  return tile;
}

std::string floor_refusal(const CudaRequest& request, int tile_class) {
  const std::int64_t needed = floor_tile(request, tile_class).shared_bytes;
  if (needed <= request.device.shared_per_block) return {};
  return fmt::format("a tile needs {} bytes of shared memory; the device gives a block {}", needed, request.device.shared_per_block);
}

}  // namespace

const CudaFamily kFloorFamily = {
    .name = "floor", .include = "attention/floor.cuh", .function = "run_floor", .refusal = floor_refusal, .tile = floor_tile};

}  // namespace girih::attention
