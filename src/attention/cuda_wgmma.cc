// The wgmma family's tiles (kernels/attention/wgmma.cuh): large tiles of 16-bit Q, K and V on Hopper.
#include <algorithm>
#include <array>

#include "attention/cuda_family.h"
#include "attention/spec.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

constexpr int kTileRows = 128;  // of two warpgroups
constexpr int kProducers = 128;
constexpr int kThreads = 2 * 128 + kProducers;
constexpr int kStages = 2;
constexpr int kStackDims = 64;  // a row of shared memory has 128 bytes

/// Keys a step, longest first: the widths that kernels/ptx/wgmma.cuh has.
constexpr std::array<int, 4> kSteps = {176, 128, 96, 64};

/// V of more dims than a warpgroup can sum, in K.
bool is_mla(const AttentionSpec& spec) { return spec.v_is_k && spec.head_dim_vo > 256; }

bool keeps_rows(const CudaRequest& request) { return !request.program.mask.empty() || !request.program.logits.empty(); }

std::int64_t shared_bytes(const CudaRequest& request, int step) {
  const std::int64_t key_row = round_up(request.spec.head_dim_qk, kStackDims) * 2;
  const std::int64_t value_row = round_up(request.spec.head_dim_vo, kStackDims) * 2;
  const std::int64_t rows = keeps_rows(request) ? kTileRows * 64 : 0;
  return kStages * step * (key_row + value_row) + kTileRows * key_row + rows + (4 * kStages + 2) * 8 + 16;
}

/// Registers of a consumer: its share of O, of S, and of P as 16-bit pairs; 44 are left for all else.
bool has_registers(const AttentionSpec& spec, int step) { return spec.head_dim_vo / 2 + step / 2 + step / 4 <= 240 - 44; }

/// 0: none fits.
int step_of(const CudaRequest& request) {
  const auto fits = [&](int step) {
    if (request.spec.batch_invariant && kInvariantChunk % step != 0) return false;
    return has_registers(request.spec, step) && shared_bytes(request, step) <= request.device.shared_per_block;
  };
  const auto* found = std::find_if(kSteps.begin(), kSteps.end(), fits);
  return found == kSteps.end() ? 0 : *found;
}

std::string wgmma_refusal(const CudaRequest& request, int tile_class) {
  const AttentionSpec& s = request.spec;
  const variant::Program& v = request.program;
  if (request.device.arch != 90) return "needs sm_90";
  if (is_mla(s)) return wgmma_mla_refusal(request);
  if (tile_class == kSmall) return "takes large tiles only";
  if (s.q_dtype != DType::f16 && s.q_dtype != DType::bf16) return "q_dtype must be f16 or bf16";
  if (s.k_dtype != s.q_dtype || s.v_dtype != s.q_dtype) return "K and V must have Q's type";
  if (s.v_is_k || s.head_dim_rope > 0) return "K in two tensors, and V in K's";
  if (!v.query.empty() || !v.key.empty() || !v.value.empty() || v.rope) return "transforms and RoPE on Q, K and V";
  if (!v.softmax && s.q_dtype == DType::f16) return "weights that are no softmax may exceed f16";
  constexpr std::array<int, 5> kValueDims = {64, 96, 128, 192, 256};
  if (std::find(kValueDims.begin(), kValueDims.end(), s.head_dim_vo) == kValueDims.end())
    return "head_dim_vo must be 64, 96, 128, 192 or 256";
  if (s.head_dim_qk % 16 != 0 || s.head_dim_qk < 64 || s.head_dim_qk > 256) return "head_dim_qk must be a multiple of 16 from 64 to 256";
  if (step_of(request) == 0) return "no tile fits the device's shared memory";
  return {};
}

CudaTile wgmma_tile(const CudaRequest& request, int) {
  if (is_mla(request.spec)) return wgmma_mla_tile();
  const int step = step_of(request);
  CudaTile tile;
  tile.threads = kThreads;
  tile.producers = kProducers;
  tile.stages = kStages;
  tile.shared_bytes = shared_bytes(request, step);
  tile.math = variant::CudaMath::approximate;
  // A step costs the same whatever rows a tile has; a tile's beginning (the first scores, with no sums to add meanwhile) and its end are
  // worth about four.
  tile.tune = {.tile_rows = kTileRows, .kv_block = step, .cost_piece = 4 * step, .cost_block = step, .cost_block_row = 0};
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
