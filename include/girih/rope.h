// Rotary position embedding: tables of cosines and sines, rotation of Q and K (with a norm of each head before, if wanted), and the same
// fused with quantisation and the write to the paged cache.
#pragma once

#include <optional>
#include <vector>

#include "girih/page.h"
#include "girih/quantize.h"
#include "girih/variant.h"

namespace girih {

/// Angles of a model: pair i of rotary_dim / 2 turns by frequency(i) = theta^(-2i / rotary_dim) a position (Su et al. 2021, eq. 15), after
/// the scaling that is given (one at most).
struct RopeTable {
  int rotary_dim = 0;  ///< even
  double theta = 10000.0;
  double linear = 1.0;                     ///< > 0: frequencies are divided by it
  std::optional<Rope::Llama31> llama31{};  ///< Llama 3.1's rule by wavelength
  /// YaRN (Peng et al. 2023, eq. 17-24): pairs that turn more than beta_fast times within the original context keep their frequency, those
  /// that turn less than beta_slow times are divided by factor, the ones between are blended over the pairs' index.
  struct Yarn {
    double factor = 1.0;
    double original_context_len = 4096.0;
    double beta_fast = 32.0;
    double beta_slow = 1.0;
    bool whole_pairs = true;  ///< the blend begins and ends at whole indices (gpt-oss: false)
    /// Cosines and sines are multiplied by it. 0: 0.1 ln(factor) + 1. (DeepSeek, whose scores carry the factor: 1.)
    double attention_factor = 0.0;
  };
  std::optional<Yarn> yarn{};
  /// NTK-aware: theta becomes theta * ntk^(rotary_dim / (rotary_dim - 2)). Dynamic NTK for a length L beyond the original context C with
  /// factor s is ntk = s L / C - (s - 1).
  double ntk = 1.0;
};

/// Radians a position of each pair, [rotary_dim / 2]. Throws invalid_argument for numbers that make no table.
std::vector<double> rope_frequencies(const RopeTable& table);
/// [num_positions, rotary_dim]: of each position the cosines of all pairs, then the sines; worked out in double and rounded once.
std::vector<float> rope_cos_sin(const RopeTable& table, std::int64_t num_positions);

/// Tensors are [rows, heads, dim], f32, f16 or bf16, any strides; a row is a token. Elements [rotary_begin, rotary_begin + rotary_dim) of a
/// head rotate, the others are copied. Everything between load and store is f32.
struct RopeArgs {
  TensorView q{}, k{};          ///< either may be rank 0
  TensorView q_out{}, k_out{};  ///< the same shapes; may be q and k themselves where type and strides are theirs
  /// f32 [num_positions, rotary_dim], last dimension dense: as rope_cos_sin() makes it. f16 tables, which are wrong by more than a bf16's
  /// last place from position 2048 on, are refused.
  TensorView cos_sin{};
  /// i32 or i64 [rows]; or by requests: row r of request i, indptr[i] <= r < indptr[i + 1], is at offsets[i] + r - indptr[i]. On the CPU a
  /// position outside of the table is refused; a GPU takes the table's first or last instead.
  TensorView positions{};
  TensorView indptr{}, offsets{};  ///< [num_requests + 1], [num_requests], both i32 or both i64, dense
  int rotary_begin = 0;            ///< even with interleaved
  bool interleaved = false;        ///< pairs (2i, 2i + 1) if true, (i, i + rotary_dim / 2) if false
  /// QK-norm: RMSNorm of every head before it is rotated. [dim], or [heads, dim]; f32 or the tensor's type. Rank 0: no norm.
  TensorView q_weight{}, k_weight{};
  float eps = 1e-6F;
  float weight_offset = 0.0F;  ///< added to every weight
  Quantization q_quantization{}, k_quantization{};
};

/// Errors: invalid_argument for shapes, types, devices, strides or overlaps that do not fit, before anything is written. On a CUDA device
/// queued on `stream`; can be captured once a call outside of a capture has loaded its kernel.
void rope(const Context& context, const RopeArgs& args, void* stream = nullptr);

/// Rotation fused with append() (page.h): K goes, normalised, rotated and quantised, to the places of the batch, as does V (unchanged but
/// for its type); Q is rotated and, where q_quantization asks, quantised. One pass over memory and one kernel.
struct RopeAppendArgs {
  /// k_out and k_quantization stay empty: the store's planes say how keys are kept. Positions that are not given are the keys' own: their
  /// index in the request's list (with a plan: as the segment's kv_rope_pos has it). q may be rank 0.
  RopeArgs rope{};
  TensorView v{};  ///< [rows, kv heads, dim_v] for store.v; rank 0 = the store has no V plane (MLA)
  /// MLA: what is not rotated. k_nope [rows, kv heads, dim] goes to store.k and the rotated rope.k to store.k_rope. q_nope to q_nope_out,
  /// with q's quantisation (whose scales must then be a tensor's).
  TensorView k_nope{}, q_nope{}, q_nope_out{};
};
void rope_append(const Context& context, const KvStore& store, const AppendBatch& batch, const RopeAppendArgs& args,
                 void* stream = nullptr);
/// The same by a plan, as append()'s second form. CUDA only.
void rope_append(const Context& context, const DevicePlan& plan, const KvStore& store, std::span<const std::int32_t> kv_indices,
                 const RopeAppendArgs& args, std::int64_t segment = 0, void* stream = nullptr);

}  // namespace girih
