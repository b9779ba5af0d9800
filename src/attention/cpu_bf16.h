// The products of CPU attention through AVX512-BF16's dot instruction: twice the arithmetic of f32 per instruction, and bf16 keys enter
// as they lie in the cache. A pair is two bf16 in 32 bits, the even one low: consecutive dims of Q and K, consecutive keys of P and V.
// Used where Q and O are bf16 and K and V are bf16 or an 8-bit type, whose values bf16 holds exactly; sums are f32 (schedule.cc decides).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/prefetch.h"
#include "girih/tensor.h"

namespace girih::attention::bf16 {

/// scores[key][0..ldr) = K[key] . Q for `n` keys. k_at: rows of 2 * depth bf16, any alignment. q: pairs [depth, ldr], ldr % 16 == 0.
void large_scores(const std::byte* const* k_at, int n, const std::uint32_t* q, int ldr, int depth, float* scores);

/// Weights f32 [n, ldr] as pairs [ceil(n / 2), ldr]; a missing last key weighs 0.
void pack_weights(const float* weights, int n, int ldr, std::uint32_t* pairs);

/// V rows of `dim` bf16 (n >= 1) as pairs [ceil(n / 2), ldv], zero past dim; a missing last row is 0.
void pack_values(const std::byte* const* v_at, int n, int dim, int ldv, std::uint32_t* pairs);

/// o[row][0..ldv) = o * corr[row] + P V. p: pairs [depth, ldr]; v: pairs [depth, ldv], ldv % 16 == 0.
void large_outputs(const std::uint32_t* p, int ldr, const std::uint32_t* v, int ldv, int rows, int depth, const float* corr, float* o);

/// f32 to bf16, nearest even; n % 16 == 0.
void narrow(const float* from, int n, std::uint16_t* to);

/// Neighbouring KV heads served together: row h * rows + r is query row r of head h, whose K or V lie h * stride bytes past a key's
/// address.
struct SmallHeads {
  int num_heads = 1;
  int rows = 0;             // of one head
  std::int64_t stride = 0;  // bytes
  int dim = 0;              // a multiple of 32
  int num_keys = 0;

  int score_keys = 4;   // worked on at once: 4, or 1 by one: four heads of a row, or four rows of a head
  int output_keys = 4;  // worked on at once
};

/// scores[row][key] = q[row] . K[key]. q: bf16 [rows, ldq]; k_at: a multiple of 4 entries.
void small_scores(const SmallHeads& heads, const std::uint16_t* q, int ldq, const std::byte* const* k_at, Ahead ahead, float* scores,
                  int lds);

/// o[row][0..dim) += p[row] V; p: bf16 [rows, ldp], 0 past the last key.
void small_outputs(const SmallHeads& heads, const std::uint16_t* p, int ldp, const std::byte* const* v_at, Ahead ahead, float* o, int ldv);

// The same for codes of 8 bits (cpu_bf16_bytes.cc; dim % 64 == 0, needs AVX512-VBMI). They widen in an order of their own: q comes, and o
// stays, with the dims of each 64 permuted.
void small_scores(const SmallHeads& heads, DType dtype, const std::uint16_t* q, int ldq, const std::byte* const* k_at, Ahead ahead,
                  float* scores, int lds);
void small_outputs(const SmallHeads& heads, DType dtype, const std::uint16_t* p, int ldp, const std::byte* const* v_at, Ahead ahead,
                   float* o, int ldv);
/// A row of queries into that order, in place.
void permute_query(std::uint16_t* q, int dim);
/// A row of outputs out of it, in place.
void restore_output(float* o, int dim);

}  // namespace girih::attention::bf16
