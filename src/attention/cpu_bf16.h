// The products of CPU attention through AVX512-BF16's dot instruction: twice the arithmetic of f32 per instruction, and bf16 keys enter
// as they lie in the cache. A pair is two bf16 in 32 bits, the even one low: consecutive dims of Q and K, consecutive keys of P and V.
// Used where Q and O are bf16 and K and V are bf16 or an 8-bit type, whose values bf16 holds exactly; sums are f32 (schedule.cc decides).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/prefetch.h"

namespace girih::attention::bf16 {

/// scores[key][0..columns) = (K[key] . Q) * factors[key] for `n` keys. k_at: rows of 2 * depth bf16, any alignment. q: pairs [depth,
/// columns] with rows `ldr` apart, as those of scores; columns % 16 == 0.
void large_scores(const std::byte* const* k_at, const float* factors, int n, const std::uint32_t* q, int ldr, int columns, int depth,
                  float* scores);

/// Weights f32 [n, columns] as pairs [ceil(n / 2), columns], rows of both `ldr` apart; a missing last key weighs 0.
void pack_weights(const float* weights, int n, int ldr, int columns, std::uint32_t* pairs);

/// V rows of `dim` bf16 (n >= 1) as pairs [ceil(n / 2), ldv], zero past dim; a missing last row is 0.
void pack_values(const std::byte* const* v_at, int n, int dim, int ldv, std::uint32_t* pairs);

/// o[row][0..ldv) = o * corr[row] + P V. p: pairs [depth, ldr]; v: pairs [depth, ldv], ldv % 16 == 0.
void large_outputs(const std::uint32_t* p, int ldr, const std::uint32_t* v, int ldv, int rows, int depth, const float* corr, float* o);

/// f32 to bf16, nearest even; n % 16 == 0.
void narrow(const float* from, int n, std::uint16_t* to);

/// scores[r][key] = q[r] . K[key] of `rows` rows for n keys; dim % 32 == 0; q: bf16 [rows, ldq]; K[key] = k_at[key] + offset, k_at: a
/// multiple of 4 entries. `ahead` steps by a row of dim a key.
void small_scores(const std::uint16_t* q, int ldq, int rows, const std::byte* const* k_at, std::int64_t offset, int n, Ahead& ahead,
                  int dim, float* scores, int lds);

/// o[r][0..dim) = o * corr[r] + p[r] V; dim % 32 == 0; p: bf16 [rows, ldp], 0 past n; V[key] = v_at[key] + offset.
void small_outputs(const std::uint16_t* p, int ldp, int rows, const std::byte* const* v_at, std::int64_t offset, int n, Ahead& ahead,
                   int dim, const float* corr, float* o, int ldv);

}  // namespace girih::attention::bf16
