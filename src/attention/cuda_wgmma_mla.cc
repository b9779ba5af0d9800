// The wgmma family's MLA (kernels/attention/wgmma_mla.cuh): one tile for all specs that it takes.
#include "attention/cuda_family.h"
#include "attention/spec.h"

namespace girih::attention {
namespace {

constexpr int kRows = 64;  // of a tile, and keys of a step
constexpr int kKeyDims = 576;
constexpr int kValueDims = 512;
constexpr int kRopeDims = kKeyDims - kValueDims;
constexpr int kStages = 2;
constexpr int kComputing = 256;  // threads
constexpr int kProducers = 128;

/// Keys, the first dims of Q, weights; then of each stage's rows bases and corrections, of two tiles' ends two sums, and places of a step's
/// rows; flags, barriers, a word.
constexpr std::int64_t kSharedBytes = kRows * (kStages * kKeyDims * 2 + kValueDims * 2 + kStages * kRows * 2) +
                                      kRows * (kStages * 8 + 16 + 8) + kStages * 16 + (6 * kStages + 2) * 8 + 16;

/// Of K's type and scales; empty where they are served.
std::string keys_refusal(const CudaRequest& request) {
  const AttentionSpec& s = request.spec;
  const bool groups = s.k_scale == ScaleGranularity::token_group;
  if (s.k_dtype != s.q_dtype && bits(s.k_dtype) != 8) return "K and V must have Q's type, or one of 8 bits";
  if (s.k_scale == ScaleGranularity::token_head) return "scales of single keys (token_head)";
  if (groups && s.q_dtype != DType::bf16) return "codes times scales of groups may exceed f16";
  if (s.head_dim_rope != 0 && rope_dtype(s) != (groups ? s.q_dtype : s.k_dtype))
    return "a second tensor of K must have Q's type beside scales of groups, else the first's";
  if (bits(s.k_dtype) == 8 && request.wanted != "wgmma")
    return "MLA with K of 8 bits, which has not been timed, only if asked for: family=wgmma";
  return {};
}

}  // namespace

std::string wgmma_mla_refusal(const CudaRequest& request) {
  const AttentionSpec& s = request.spec;
  const variant::Program& v = request.program;
  if (s.q_dtype != DType::f16 && s.q_dtype != DType::bf16) return "q_dtype must be f16 or bf16";
  if (s.head_dim_qk != kKeyDims || s.head_dim_vo != kValueDims) return "MLA must have 576 dims of K, the first 512 of them V";
  if (s.head_dim_rope != 0 && s.head_dim_rope != kRopeDims) return "a second tensor of K must have its last 64 dims";
  if (std::string refusal = keys_refusal(request); !refusal.empty()) return refusal;
  if (!v.query.empty() || !v.key.empty() || !v.value.empty() || v.rope) return "transforms and RoPE on Q, K and V";
  if (!v.logits.empty() || !v.softmax) return "MLA with a logits hook or without softmax";
  if (kSharedBytes > request.device.shared_per_block) return "no tile fits the device's shared memory";
  return {};
}

CudaTile wgmma_mla_tile(const CudaRequest& request) {
  CudaTile tile;
  tile.threads = kComputing + kProducers;
  tile.producers = kProducers;
  tile.stages = kStages;
  tile.shared_bytes = kSharedBytes;
  tile.math = variant::CudaMath::approximate;
  tile.include = "attention/wgmma_mla.cuh";
  tile.function = "run_wgmma_mla";
  // In single runs on an H200, beside mma's MLA, in us: 128 heads 155 and 289 (64 requests of 5,120 keys), 245 and 503 (128 of 4,096); 16
  // heads 115 and 122, 36 and 42 (16 of 2,048), 59 and 56 (128 of 1,000); 8 heads 113 both, 31 and 33.
  // A step costs the same whatever rows a tile has. A tile's beginning, with nothing to multiply until Q is there, and its end are taken to
  // cost about four. In merges of 64 to 128 parts a row of a part took 50 ns, where a step takes 1.8 us.
  const int group = request.spec.num_qo_heads / request.spec.num_kv_heads;
  tile.tune = {.tile_rows = kRows,
               .kv_block = kRows,
               .cost_piece = 4 * kRows,
               .cost_block = kRows,
               .cost_block_row = 0,
               .gang = group % kRows == 0 ? group / kRows : 1,  // as MlaShape has it
               .cost_part_row = 2};
  return tile;
}

}  // namespace girih::attention
