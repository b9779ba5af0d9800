// The query rows of a 16-row tile in fragment form: Q as A operands straight from memory, and what hooks ask of the two rows that a lane
// shares (group, group + 8). Rows past the tile's last one are zeros, and hooks see the last one in their place.
#pragma once

#include "attention/config.cuh"
#include "attention/fragments.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/variant.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

/// The logits hook asks for something of its query row.
template <class Variant>
constexpr bool kLogitsRead = Variant::kHasLogits && !__is_empty(typename Variant::LogitsRow);

/// Two neighbouring 16-bit elements at any alignment of them.
__device__ __forceinline__ u32 load_pair(const u8* g_pair, bool aligned) {
  if (aligned) return *reinterpret_cast<const u32*>(g_pair);
  const u16* halves = reinterpret_cast<const u16*>(g_pair);
  return halves[0] | static_cast<u32>(halves[1]) << 16;
}
/// The elements of Q from `dim` of a row on that fill a register, at any alignment of them: two of 16 bits, or four codes; two codes where
/// they become f16.
template <Config c>
__device__ __forceinline__ u32 load_word(const u8* g_row, int dim, bool aligned) {
  const u8* g_word = g_row + bytes(c.q_type, dim);
  if constexpr (bits(c.q_type) == 16) {
    return load_pair(g_word, aligned);
  } else if constexpr (c.byte_products) {
    if (aligned) return *reinterpret_cast<const u32*>(g_word);
    return g_word[0] | g_word[1] << 8 | g_word[2] << 16 | static_cast<u32>(g_word[3]) << 24;
  } else {
    u32 pairs[2];
    widen<Storage<kKeyOperand<c>>, Storage<c.q_type>>(pairs, g_word[0] | g_word[1] << 8);
    return pairs[0];
  }
}

/// A's fragments of all inner steps for the tile's rows, the dims named as `Keys` has them: of rows group and, where a tile may have more
/// than eight, group + 8, whose pairs alternate.
template <Config c, class Keys, int kPairs>
__device__ __forceinline__ void load_query_fragments(const Args& p, const abi::WorkItem& item, u32 (&q)[Keys::kSteps][kPairs]) {
  constexpr int kHalves = kPairs / 2;
  static_assert(bits(c.q_type) <= 16 && c.head_dim_qk % 8 == 0 && c.head_dim_first() % 8 == 0);
  const int group = ptx::lane_idx() / 4;
  const int pair = ptx::lane_idx() % 4;
  const bool aligned = rows_aligned(p.q, 4) && (c.head_dim_rope == 0 || rows_aligned(p.q_rope, 4));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = group + 8 * half;
    if (row >= item.row_count) {
#pragma unroll
      for (int s = 0; s < Keys::kSteps; ++s) q[s][half] = q[s][kHalves + half] = 0;
      continue;
    }
    const RowPlace place = place_row<c>(item.row_begin + row, item.kv_head);
    const u8* g_first = row_address(p.q, place.token, place.q_head);
    const u8* g_rope = c.head_dim_rope > 0 ? row_address(p.q_rope, place.token, place.q_head) : nullptr;
#pragma unroll
    for (int s = 0; s < Keys::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int dim = Keys::first_dim(s, pair) + i * Keys::second_dim(s);
        u32 both = 0;
        if (dim < c.head_dim_first()) {
          both = load_word<c>(g_first, dim, aligned);
        } else if (dim < c.head_dim_qk) {
          both = load_word<c>(g_rope, dim - c.head_dim_first(), aligned);
        }
        q[s][kHalves * i + half] = both;
      }
    }
  }
}

// Q of bf16 where K's operands are f16 (kScalesQuery): each row is multiplied by the power of two that brings its largest finite element to
// [2^15, 2^16). Elements down to 2^-32 of that keep all their bits; smaller ones are rounded to multiples of 2^-39 of it.

/// `inverse` joins the row's score factor.
struct QueryScale {
  float scale, inverse;
};
/// `largest`: the row's largest finite magnitude, bf16 bits. Rows below 2^-111 are brought as far as f32 can.
__device__ __forceinline__ QueryScale query_scale(u32 largest) {
  const u32 exponent = max(largest >> 7, 16U);
  return {float_of((269U - exponent) << 23), float_of((exponent - 15U) << 23)};
}

/// The larger of `top` and the magnitudes (bits) of a pair; kFinite: of its finite elements.
template <bool kFinite>
__device__ __forceinline__ u32 larger_of_pair(u32 top, u32 pair) {
  u32 low = pair & 0x7fffU;
  u32 high = pair >> 16 & 0x7fffU;
  if constexpr (kFinite) {
    low = low < 0x7f80U ? low : 0U;
    high = high < 0x7f80U ? high : 0U;
  }
  return max(top, max(low, high));
}

/// A pair of bf16 times a row's scale as f16. Infinities and NaN stay. kKeepsTiny: what is not zero stays so, for K that holds infinities.
template <bool kKeepsTiny>
__device__ __forceinline__ u32 scale_query_pair(u32 pair, float scale) {
  u32 scaled = pack<f16>(low_of<bf16>(pair) * scale, high_of<bf16>(pair) * scale);
  if constexpr (kKeepsTiny) {
    if ((scaled & 0x7fffU) == 0 && (pair & 0x7fffU) != 0) scaled |= 1U;
    if ((scaled & 0x7fff0000U) == 0 && (pair & 0x7fff0000U) != 0) scaled |= 0x10000U;
  }
  return scaled;
}

/// The largest finite magnitude of row half of the fragments, over the four lanes that share it.
template <int kSteps, int kPairs>
__device__ __forceinline__ u32 largest_of_row(const u32 (&q)[kSteps][kPairs], int half) {
  const auto over_lanes = [](u32 top) {
    top = max(top, ptx::shuffle_xor(top, 1));
    return max(top, ptx::shuffle_xor(top, 2));
  };
  u32 top = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) top = larger_of_pair<false>(larger_of_pair<false>(top, q[s][half]), q[s][kPairs / 2 + half]);
  top = over_lanes(top);
  if (ptx::any(top >= 0x7f80U)) {
    top = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) top = larger_of_pair<true>(larger_of_pair<true>(top, q[s][half]), q[s][kPairs / 2 + half]);
    top = over_lanes(top);
  }
  return top;
}

/// Fragments of bf16 become f16; the inverse scales of this lane's rows group and group + 8.
template <Config c, int kSteps, int kPairs>
__device__ __forceinline__ void scale_query_fragments(u32 (&q)[kSteps][kPairs], float (&inverse)[kPairs / 2]) {
#pragma unroll
  for (int half = 0; half < kPairs / 2; ++half) {
    const QueryScale scale = query_scale(largest_of_row(q, half));
    inverse[half] = scale.inverse;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      q[s][half] = scale_query_pair<c.k_type == Type::e5m2>(q[s][half], scale.scale);
      u32& second = q[s][kPairs / 2 + half];
      second = scale_query_pair<c.k_type == Type::e5m2>(second, scale.scale);
    }
  }
}

/// The same for kRows rows in shared memory by one warp, a lane a row; s_inverse[row].
template <Config c, class Rows, int kRows>
__device__ __forceinline__ void scale_query_rows(u8* s_query, float* s_inverse) {
  static_assert(kRows <= ptx::kWarp);
  const int row = ptx::lane_idx();
  if (row >= kRows) return;
  const auto chunk_at = [&](int chunk) { return reinterpret_cast<Vec16*>(s_query + Rows::offset(row, chunk)); };
  u32 top = 0;
#pragma unroll 4
  for (int chunk = 0; chunk < Rows::kChunks; ++chunk) {
    const Vec16 v = *chunk_at(chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) top = larger_of_pair<true>(top, v.x[i]);
  }
  const QueryScale scale = query_scale(top);
  s_inverse[row] = scale.inverse;
#pragma unroll 4
  for (int chunk = 0; chunk < Rows::kChunks; ++chunk) {
    Vec16 v = *chunk_at(chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) v.x[i] = scale_query_pair<c.k_type == Type::e5m2>(v.x[i], scale.scale);
    *chunk_at(chunk) = v;
  }
}

/// Rows of Q are laid out in shared memory as they lie.
template <Config c>
constexpr bool kQueryInOrder = bits(c.k_type) == bits(kKeyOperand<c>) && c.head_dim_rope == 0 && c.head_dim_qk % chunk_dims(c.q_type) == 0;

/// Rows [first_row, first_row + kRows) of the tile's Q into shared memory by kThreads threads, so that ldmatrix brings what
/// load_query_fragments would: `Rows` have Keys::kSteps * 16 dims,
/// the inner step s in the chunks 2 s (pairs first_dim of lanes 0..3) and 2 s + 1 (their second pairs). Zeros past the rows and dims;
/// `negate`: with their signs changed, so that the scores' need not be.
template <Config c, class Keys, class Rows, int kRows, int kThreads>
__device__ __forceinline__ void load_query(const Args& p, const abi::WorkItem& item, int first_row, int thread, bool negate, u8* s_query) {
  const u32 flip = negate ? (bits(kKeyOperand<c>) == 8 ? 0x80808080U : 0x80008000U) : 0U;
  constexpr int kTotal = kRows * Rows::kChunks;
  static_assert(kTotal % kThreads == 0);
  if (kQueryInOrder<c> && rows_aligned(p.q, 16)) {
    constexpr int kAtOnce = min(kThreads == ptx::kWarp ? 16 : c.is_wide() ? 12 : 8, kTotal / kThreads);
#pragma unroll 1
    for (int begin = thread; begin < kTotal; begin += kAtOnce * kThreads) {
      Vec16 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first_row + (begin + i * kThreads) / Rows::kChunks;
        const int chunk = (begin + i * kThreads) % Rows::kChunks;
        v[i] = Vec16{};
        if (row >= item.row_count || chunk_dims(c.q_type) * chunk >= c.head_dim_qk) continue;
        const RowPlace place = place_row<c>(item.row_begin + row, item.kv_head);
        v[i] = *reinterpret_cast<const Vec16*>(row_address(p.q, place.token, place.q_head) + 16 * chunk);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int idx = begin + i * kThreads;
#pragma unroll
        for (int j = 0; j < 4; ++j) v[i].x[j] ^= flip;
        if (idx < kTotal) *reinterpret_cast<Vec16*>(s_query + Rows::offset(idx / Rows::kChunks, idx % Rows::kChunks)) = v[i];
      }
    }
    return;
  }
#pragma unroll 1
  for (int idx = thread; idx < kTotal; idx += kThreads) {
    const int row = first_row + idx / Rows::kChunks;
    const int chunk = idx % Rows::kChunks;
    Vec16 v{};
    if (row < item.row_count) {
      const RowPlace place = place_row<c>(item.row_begin + row, item.kv_head);
      const u8* g_first = row_address(p.q, place.token, place.q_head);
      const u8* g_rope = c.head_dim_rope > 0 ? row_address(p.q_rope, place.token, place.q_head) : nullptr;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int dim = Keys::first_dim(chunk / 2, pair) + chunk % 2 * Keys::second_dim(chunk / 2);
        if (dim < c.head_dim_first()) {
          v.x[pair] = load_word<c>(g_first, dim, false) ^ flip;
        } else if (dim < c.head_dim_qk) {
          v.x[pair] = load_word<c>(g_rope, dim - c.head_dim_first(), false) ^ flip;
        }
      }
    }
    *reinterpret_cast<Vec16*>(s_query + Rows::offset(idx / Rows::kChunks, idx % Rows::kChunks)) = v;
  }
}
/// Starts copies of kRows rows to where load_query would put them, by one warp. Only with kQueryInOrder and rows aligned to 16 bytes.
template <Config c, class Rows, int kRows>
__device__ __forceinline__ void copy_query_rows(const Args& p, const abi::WorkItem& item, int first_row, u8* s_query) {
#pragma unroll 4
  for (int idx = ptx::lane_idx(); idx < kRows * Rows::kChunks; idx += ptx::kWarp) {
    const int row = first_row + idx / Rows::kChunks;
    const int chunk = idx % Rows::kChunks;
    const RowPlace place = place_row<c>(item.row_begin + min(row, item.row_count - 1), item.kv_head);
    ptx::cp_async_16(s_query + Rows::offset(idx / Rows::kChunks, chunk), row_address(p.q, place.token, place.q_head) + 16 * chunk,
                     row < item.row_count && chunk_dims(c.q_type) * chunk < c.head_dim_qk);
  }
}
/// The whole tile by all threads of the block.
template <Config c, class Keys, class Rows>
__device__ __forceinline__ void load_query_tile(const Args& p, const abi::WorkItem& item, bool negate, u8* s_query) {
  load_query<c, Keys, Rows, c.tile_rows, c.threads>(p, item, 0, ptx::thread_idx(), negate, s_query);
}
/// Some of its rows by one warp.
template <Config c, class Keys, class Rows, int kRows>
__device__ __forceinline__ void load_query_rows(const Args& p, const abi::WorkItem& item, int first_row, bool negate, u8* s_query) {
  load_query<c, Keys, Rows, kRows, ptx::kWarp>(p, item, first_row, ptx::lane_idx(), negate, s_query);
}

/// Asks for rows [first_row, first_row + kRows) of the tile's Q: by one warp, a lane a row.
template <Config c, int kRows>
__device__ __forceinline__ void prefetch_query_rows(const Args& p, const abi::WorkItem& item, int first_row) {
  const int row = first_row + ptx::lane_idx();
  if (ptx::lane_idx() >= kRows || row >= item.row_count) return;
  const RowPlace place = place_row<c>(item.row_begin + row, item.kv_head);
  const u8* g_row = row_address(p.q, place.token, place.q_head);
#pragma unroll
  for (int i = 0; i < bytes(c.q_type, c.head_dim_first()); i += 128) ptx::prefetch_l2(g_row + i);
}

/// What the hooks of the scores know of a row, worked out once a tile where it takes no more room than what it is worked out from.
template <class Variant>
struct HookRow {
  typename Variant::MaskRow mask;
  typename Variant::LogitsRow logits;
};
template <class Variant>
constexpr bool kKeepsHooks = sizeof(HookRow<Variant>) <= sizeof(RowVars);

/// Describes rows [first_row, first_row + kRows) of the item's tile by one warp, a lane a row: s_rows holds HookRow or RowVars,
/// sizeof(RowVars) apart.
template <Config c, class Variant, int kRows>
__device__ __forceinline__ void describe_rows(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item,
                                              int first_row, u8* s_rows) {
  static_assert(kRows <= ptx::kWarp);
  const auto* requests = blob_array<abi::RequestInfo>(p, p.plan->requests);
  i32 request = find_request_warp(requests, p.plan->num_requests, (item.row_begin + min(first_row, item.row_count - 1)) / c.group);
  const int row = ptx::lane_idx();
  if (row >= kRows) return;
  const RowPlace place = place_row<c>(item.row_begin + min(first_row + row, item.row_count - 1), item.kv_head);
#pragma unroll 1
  while (place.token >= requests[request].q_begin + requests[request].q_len) ++request;
  const RowVars vars = describe_row(requests[request], request, place, item.kv_head);
  if constexpr (kKeepsHooks<Variant>) {
    *reinterpret_cast<HookRow<Variant>*>(s_rows + row * sizeof(RowVars)) = {Variant::mask_row(params, vars),
                                                                            Variant::logits_row(params, vars)};
  } else {
    *reinterpret_cast<RowVars*>(s_rows + row * sizeof(RowVars)) = vars;
  }
}

/// Describes two rows of the item's tile, first_row and first_row + apart, for the hooks.
template <Config c, class Variant>
__device__ __forceinline__ void describe_two_rows(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item,
                                                  int first_row, int apart, typename Variant::MaskRow (&mask_rows)[2],
                                                  typename Variant::LogitsRow (&logits_rows)[2]) {
  const auto* requests = blob_array<abi::RequestInfo>(p, p.plan->requests);
  const i32 first = find_request_warp(requests, p.plan->num_requests, item.row_begin / c.group);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(first_row + apart * half, item.row_count - 1);
    const RowPlace place = place_row<c>(item.row_begin + row, item.kv_head);
    i32 request = first;
#pragma unroll 1
    while (place.token >= requests[request].q_begin + requests[request].q_len) ++request;
    const RowVars vars = describe_row(requests[request], request, place, item.kv_head);
    mask_rows[half] = Variant::mask_row(params, vars);
    logits_rows[half] = Variant::logits_row(params, vars);
  }
}
/// Those of this lane in A's fragments: first_row + group and first_row + group + 8.
template <Config c, class Variant>
__device__ __forceinline__ void describe_fragment_rows(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item,
                                                       int first_row, typename Variant::MaskRow (&mask_rows)[2],
                                                       typename Variant::LogitsRow (&logits_rows)[2]) {
  describe_two_rows<c, Variant>(p, params, item, first_row + ptx::lane_idx() / 4, 8, mask_rows, logits_rows);
}

}  // namespace girih::attention
