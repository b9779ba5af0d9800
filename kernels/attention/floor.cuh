// The floor: attention on CUDA cores for everything the library takes: any head dims, element types, scales, layouts, variants, RoPE, MLA.
// A block works on tile_rows packed query rows of one KV head and steps through the keys, kv_block at a time: K and V rows are widened to
// f32 in shared memory (scaled, transformed and rotated there), scores are register patches of rows x keys whose dims are split over
// neighbouring lanes, softmax gives a warp a row and a lane a key, and O stays in registers as patches of rows x 4 dims.
// Every layout question is asked while staging, so the products know nothing of types, pages or hooks. Longer than most kernels, because
// all of that is here once.
#pragma once

#include "attention/merge.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/rope.cuh"
#include "attention/state.cuh"
#include "attention/variant.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

/// Where a row to be staged lies. data null: zeros.
struct RowSource {
  const u8* data;
  const u8* scales;  // 4-bit: one byte a block; token_group: f32
  float scale;
};

/// Shapes and the shared memory's layout. The host adds up the same pieces (src/attention/cuda_floor.cc) and the kernel checks the sum.
template <Config c, class Variant>
struct Floor {
  static constexpr int kRows = c.tile_rows;
  static constexpr int kKeys = c.kv_block;  // 8, 16 or 32
  static constexpr int kThreads = c.threads;
  static constexpr int kWarps = kThreads / ptx::kWarp;
  static_assert(kKeys <= ptx::kWarp && kRows % kWarps == 0);

  // Scores: patches of kPatchRows x kPatchKeys, each by kSplit lanes that share its dims.
  static constexpr int kPatchRows = 4;
  static constexpr int kPatchKeys = 2 * kRows * kKeys >= kThreads ? 4 : 2;  // so that kSplit fits a warp
  static constexpr int kRowPatches = kRows / kPatchRows;
  static constexpr int kSplit = kThreads / (kRowPatches * (kKeys / kPatchKeys));
  static_assert(kSplit >= 1 && kSplit <= ptx::kWarp && (kSplit & (kSplit - 1)) == 0);

  /// Floats of a staged row: lanes of a quarter warp that read kSplit neighbouring vectors of several rows meet different banks.
  static __device__ constexpr int leading(int dims) {
    int vectors = ceil_div(dims, 4);
    while (kSplit < 8 && vectors % 8 != kSplit) ++vectors;
    return 4 * vectors;
  }
  static constexpr int kLdk = leading(c.head_dim_qk);
  static constexpr int kLdv = 4 * ceil_div(c.head_dim_vo, 4);
  static constexpr int kLdp = kKeys + 4;

  // Outputs: a thread has kOutRows rows x 4 dims, kPasses times.
  static __device__ constexpr int power_of_two_from(int n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
  }
  static constexpr int kVectors = power_of_two_from(kLdv / 4);
  static constexpr int kPasses = kVectors > kThreads ? kVectors / kThreads : 1;
  static constexpr int kAcross = kVectors / kPasses;  // threads side by side over the dims
  static constexpr int kRowGroups = min(kThreads / kAcross, kRows);
  static constexpr int kOutRows = kRows / kRowGroups;

  // V rows are the leading part of staged K rows (MLA), or have a buffer of their own, or take K's after the scores.
  static constexpr bool kValueInKey =
      c.v_is_k && !Variant::kHasKey && !Variant::kHasValue && (!Variant::kHasRope || Variant::kRopeBegin >= c.head_dim_vo);
  static constexpr bool kValueApart = !kValueInKey && c.stages > 1;
  static constexpr int kLdValue = kValueInKey ? kLdk : kLdv;

  static constexpr bool kNeedsRows = Variant::kHasQuery || Variant::kHasRope || Variant::kHasLogits || Variant::kHasMask;
  static constexpr bool kNeedsPositions =
      Variant::kHasRope || Variant::kHasMask || Variant::kLogitsPos || Variant::kKeyPos || Variant::kValuePos;

  /// What hooks read of a row of the tile.
  struct RowHooks {
    typename Variant::MaskRow mask;
    typename Variant::LogitsRow logits;
  };

  static __device__ __forceinline__ RowHooks row_hooks(const typename Variant::Params& params, const RowVars& vars) {
    return {Variant::mask_row(params, vars), Variant::logits_row(params, vars)};
  }
  static constexpr bool kKeepsHooks = sizeof(RowHooks) <= 64;  // else they are computed anew for every block

  struct Shared {
    RowVars vars[kNeedsRows ? kRows : 1];
    RowHooks hooks[kKeepsHooks ? kRows : 1];
    RowSource q[kRows], q_rope[c.head_dim_rope > 0 ? kRows : 1];
    RowSource k[kKeys], k_rope[c.head_dim_rope > 0 ? kKeys : 1], v[kKeys];
    i64 position[kKeys], rope_position[kKeys];
    RowState state[kRows];
    float correction[kRows];
    u32 last;
    alignas(16) float queries[kRows * kLdk];
    alignas(16) float weights[kRows * kLdp];
    alignas(16) float keys[kKeys * (kValueInKey || kValueApart ? kLdk : max(kLdk, kLdv))];
    alignas(16) float values[kValueApart ? kKeys * kLdv : 4];
  };
};

// ------------------------------------------------------------------------------------------------------------------ staging

template <Type t>
__device__ __forceinline__ float block_scale(const u8* scales, int dim, float global_scale) {
  const u32 code = scales[dim / scale_block(t)];
  return (t == Type::nvfp4 ? to_f32(e4m3{static_cast<u8>(code)}) : e8m0_to_f32(code)) * global_scale;
}

/// The scale of the part of a row that `dim` lies in.
__device__ __forceinline__ float group_scale(const u8* scales, int dim, float global_scale) {
  return reinterpret_cast<const float*>(scales)[dim / kScaleGroup] * global_scale;
}

template <Type t>
__device__ __forceinline__ float load_element(const u8* row, int dim, i64 dim_stride) {
  if constexpr (is_four_bit(t)) {
    return e2m1_to_f32(static_cast<u32>(row[dim >> 1]) >> (4 * (dim & 1)));
  } else {
    return to_f32(*reinterpret_cast<const Storage<t>*>(row + dim * dim_stride));
  }
}

/// Whether rows of a plane are dense and begin at multiples of 16 bytes.
template <Type t>
__device__ __forceinline__ bool vectors_fit(const abi::PlaneArg& plane) {
  const u64 all = reinterpret_cast<u64>(plane.data) | static_cast<u64>(plane.page_stride) | static_cast<u64>(plane.token_stride) |
                  static_cast<u64>(plane.head_stride);
  return (all & 15U) == 0 && (is_four_bit(t) || plane.dim_stride == bits(t) / 8);
}

/// One vector of a row, scaled, to shared memory. kAligned: the target is a multiple of 16 bytes.
template <Type t, Scale scale, bool kAligned>
__device__ __forceinline__ void stage_vector(float* s_target, const RowSource& source, int vector, float global_scale) {
  using T = Storage<t>;
  constexpr int kWord = kPerWord<T>;
  constexpr int kVector = 4 * kWord;
  Vec16 raw{};
  if (source.data != nullptr) raw = *reinterpret_cast<const Vec16*>(source.data + 16 * vector);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int dim = vector * kVector + w * kWord;
    float x[kWord];
    unpack<T>(x, raw.x[w]);
    float factor = source.scale;
    if constexpr (is_four_bit(t)) factor = source.data != nullptr ? block_scale<t>(source.scales, dim, global_scale) : 0.0F;
    if constexpr (scale == Scale::token_group) factor = source.data != nullptr ? group_scale(source.scales, dim, global_scale) : 0.0F;
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      if constexpr (scale != Scale::none) x[i] *= factor;
    }
    if constexpr (kAligned || kWord == 1) {
      store_floats(s_target + dim, x);
    } else {
#pragma unroll
      for (int i = 0; i < kWord; ++i) s_target[dim + i] = x[i];
    }
  }
}

/// Rows of kDims elements as f32 into s_rows [num_rows, ld] at column kOffset, by the whole block. `vectors`: 16 bytes at a time.
template <Type t, Scale scale, int kDims, int kOffset, int kThreads>
__device__ __forceinline__ void stage_rows(float* s_rows, int ld, int num_rows, const RowSource* s_sources, bool vectors, i64 dim_stride,
                                           i64 row_stride, float global_scale) {
  constexpr int kVector = 128 / bits(t);
  constexpr int kWhole = kDims / kVector;
  int first = 0;  // of the dims taken one by one
  if (vectors && kWhole > 0) {
    first = kWhole * kVector;
    for (int i = ptx::thread_idx(); i < num_rows * kWhole; i += kThreads) {
      const int row = i / max(kWhole, 1);
      stage_vector<t, scale, kOffset % 4 == 0>(s_rows + row * ld + kOffset, s_sources[row], i % max(kWhole, 1), global_scale);
    }
    if constexpr (kWhole * kVector == kDims) return;
  }
  const int rest = kDims - first;
  const bool across_rows = dim_stride > row_stride && row_stride != 0;  // neighbouring threads take neighbouring addresses
  for (int i = ptx::thread_idx(); i < num_rows * rest; i += kThreads) {
    const int row = across_rows ? i % num_rows : i / rest;
    const int dim = first + (across_rows ? i / num_rows : i % rest);
    const RowSource source = s_sources[row];
    float x = 0.0F;
    if (source.data != nullptr) {
      x = load_element<t>(source.data, dim, dim_stride);
      if constexpr (is_four_bit(t)) {
        x *= block_scale<t>(source.scales, dim, global_scale);
      } else if constexpr (scale == Scale::token_group) {
        x *= group_scale(source.scales, dim, global_scale);
      } else if constexpr (scale != Scale::none) {
        x *= source.scale;
      }
    }
    s_rows[row * ld + kOffset + dim] = x;
  }
}

/// Zeros from column kDims to the next multiple of 4, which products run over.
template <int kDims, int kThreads>
__device__ __forceinline__ void pad_rows(float* s_rows, int ld, int num_rows) {
  if constexpr (kDims % 4 != 0) {
    for (int row = ptx::thread_idx(); row < num_rows; row += kThreads) {
#pragma unroll
      for (int dim = kDims; dim < ceil_div(kDims, 4) * 4; ++dim) s_rows[row * ld + dim] = 0.0F;
    }
  }
}

/// Sum over a warp, the same in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = 1; mask < ptx::kWarp; mask *= 2) x += ptx::shuffle_xor(x, mask);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int mask = 1; mask < ptx::kWarp; mask *= 2) {
    const float other = ptx::shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}

template <int kDims>
__device__ __forceinline__ float mean_square_of(const float* s_row) {
  float sum = 0.0F;
  for (int dim = ptx::lane_idx(); dim < kDims; dim += ptx::kWarp) sum += s_row[dim] * s_row[dim];
  return warp_sum(sum) / static_cast<float>(kDims);
}

/// Rotates a row by one warp.
template <class Variant>
__device__ __forceinline__ void rotate_row(float* s_row, i64 position) {
  using Pair = RopePair<Variant>;
  for (int i = ptx::lane_idx(); i < Variant::kRopePairs; i += ptx::kWarp) {
    rotate_pair<Variant>(i, position, s_row[Pair::first(i)], s_row[Pair::second(i)]);
  }
}

// ------------------------------------------------------------------------------------------------------------------ a tile's rows

/// Describes the rows of the tile that `item` begins and brings Q in: transformed, rotated and scaled.
template <Config c, class Variant>
__device__ __forceinline__ void load_queries(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item,
                                             typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  const int t = ptx::thread_idx();
  if (t < F::kRows) {
    const bool valid = t < item.row_count;
    const i32 row = item.row_begin + (valid ? t : 0);
    const RowPlace place = place_row<c>(row, item.kv_head);
    s.q[t] = {valid ? row_address(p.q, place.token, place.q_head) : nullptr, nullptr, 1.0F};
    if constexpr (c.head_dim_rope > 0) {
      s.q_rope[t] = {valid ? row_address(p.q_rope, place.token, place.q_head) : nullptr, nullptr, 1.0F};
    }
    if constexpr (F::kNeedsRows) {
      const RowVars vars = describe_row<c>(p, row, item.kv_head);
      s.vars[t] = vars;
      if constexpr (F::kKeepsHooks) s.hooks[t] = F::row_hooks(params, vars);
    }
  }
  ptx::sync_block();
  constexpr i64 kStep = bits(c.q_type) / 8;
  stage_rows<c.q_type, Scale::none, c.head_dim_first(), 0, F::kThreads>(s.queries, F::kLdk, F::kRows, s.q, rows_aligned(p.q, 16), kStep, 0,
                                                                        1.0F);
  if constexpr (c.head_dim_rope > 0) {
    stage_rows<c.q_type, Scale::none, c.head_dim_rope, c.head_dim_first(), F::kThreads>(s.queries, F::kLdk, F::kRows, s.q_rope,
                                                                                        rows_aligned(p.q_rope, 16), kStep, 0, 1.0F);
  }
  pad_rows<c.head_dim_qk, F::kThreads>(s.queries, F::kLdk, F::kRows);
  ptx::sync_block();
  for (int row = ptx::warp_idx(); row < F::kRows; row += F::kWarps) {
    float* s_row = s.queries + row * F::kLdk;
    if constexpr (Variant::kHasQuery) {
      const float mean_square = Variant::kQueryMeanSquare ? mean_square_of<c.head_dim_qk>(s_row) : 0.0F;
      const typename Variant::QueryRow hook = Variant::query_row(params, s.vars[row], mean_square);
      for (int dim = ptx::lane_idx(); dim < c.head_dim_qk; dim += ptx::kWarp) s_row[dim] = Variant::query(params, hook, s_row[dim], dim);
      ptx::sync_warp();
    }
    if constexpr (Variant::kHasRope) {
      rotate_row<Variant>(s_row, s.vars[row].q_rope_pos);
      ptx::sync_warp();
    }
    for (int dim = ptx::lane_idx(); dim < c.head_dim_qk; dim += ptx::kWarp) s_row[dim] *= p.score_factor;
  }
  ptx::sync_block();
}

// ------------------------------------------------------------------------------------------------------------------ a block's keys

template <Scale scale>
__device__ __forceinline__ RowSource source_of(const abi::PlaneArg& plane, i64 page, i64 slot, i32 head, bool valid) {
  if (!valid) return {nullptr, nullptr, 0.0F};
  RowSource row = {key_address(plane, page, slot, head), nullptr, 1.0F};
  if constexpr (scale == Scale::block || scale == Scale::token_group) row.scales = scale_address(plane, page, slot, head);
  if constexpr (scale == Scale::tensor || scale == Scale::head) row.scale = head_scale<scale>(plane, head);
  if constexpr (scale == Scale::token_head) row.scale = token_scale<scale>(plane, page, slot, head);
  return row;
}

/// Where key `key` lies and what is known of it, into slot i.
template <Config c, class Variant>
__device__ __forceinline__ void describe_key(const KeyList& keys, int i, i32 key, bool valid, KeySlot at, i64 page,
                                             typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  s.k[i] = source_of<c.k_scale>(keys.segment->k, page, at.slot, keys.kv_head, valid);
  if constexpr (c.head_dim_rope > 0) s.k_rope[i] = source_of<c.k_rope_scale()>(keys.segment->k_rope, page, at.slot, keys.kv_head, valid);
  if constexpr (!F::kValueInKey) s.v[i] = source_of<c.v_scale>(value_plane<c>(*keys.segment), page, at.slot, keys.kv_head, valid);
  if constexpr (F::kNeedsPositions) {
    const i64 position = valid ? keys.position(key, at) : 0;
    s.position[i] = position;
    s.rope_position[i] = position + keys.rope_shift;
  }
}

template <Config c, class Variant>
__device__ __forceinline__ void stage_keys(const KeyList& keys, typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  const abi::PlaneArg& k = keys.segment->k;
  stage_rows<c.k_type, c.k_scale, c.head_dim_first(), 0, F::kThreads>(s.keys, F::kLdk, F::kKeys, s.k, vectors_fit<c.k_type>(k),
                                                                      k.dim_stride, k.token_stride, k.global_scale);
  if constexpr (c.head_dim_rope > 0) {
    const abi::PlaneArg& r = keys.segment->k_rope;
    stage_rows<c.k_rope_type(), c.k_rope_scale(), c.head_dim_rope, c.head_dim_first(), F::kThreads>(
        s.keys, F::kLdk, F::kKeys, s.k_rope, vectors_fit<c.k_rope_type()>(r), r.dim_stride, r.token_stride, r.global_scale);
  }
  pad_rows<c.head_dim_qk, F::kThreads>(s.keys, F::kLdk, F::kKeys);
}

template <Config c, class Variant>
__device__ __forceinline__ void stage_values(const KeyList& keys, float* s_values, typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  const abi::PlaneArg& v = value_plane<c>(*keys.segment);
  stage_rows<c.v_type, c.v_scale, c.head_dim_vo, 0, F::kThreads>(s_values, F::kLdv, F::kKeys, s.v, vectors_fit<c.v_type>(v), v.dim_stride,
                                                                 v.token_stride, v.global_scale);
}

/// The key hook and RoPE on staged K rows [0, n).
template <Config c, class Variant>
__device__ __forceinline__ void transform_keys(const typename Variant::Params& params, i32 kv_head, int n,
                                               typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  for (int key = ptx::warp_idx(); key < n; key += F::kWarps) {
    float* s_row = s.keys + key * F::kLdk;
    if constexpr (Variant::kHasKey) {
      const float mean_square = Variant::kKeyMeanSquare ? mean_square_of<c.head_dim_qk>(s_row) : 0.0F;
      const typename Variant::KeyRow hook = Variant::key_row(params, kv_head, s.position[key], mean_square);
      for (int dim = ptx::lane_idx(); dim < c.head_dim_qk; dim += ptx::kWarp) s_row[dim] = Variant::key(params, hook, s_row[dim], dim);
      ptx::sync_warp();
    }
    if constexpr (Variant::kHasRope) rotate_row<Variant>(s_row, s.rope_position[key]);
  }
}

/// The value hook on staged V rows [0, n); the others stay zero.
template <Config c, class Variant>
__device__ __forceinline__ void transform_values(const typename Variant::Params& params, i32 kv_head, int n, float* s_values,
                                                 typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  for (int key = ptx::warp_idx(); key < n; key += F::kWarps) {
    float* s_row = s_values + key * F::kLdv;
    const float mean_square = Variant::kValueMeanSquare ? mean_square_of<c.head_dim_vo>(s_row) : 0.0F;
    const typename Variant::ValueRow hook = Variant::value_row(params, kv_head, Variant::kValuePos ? s.position[key] : 0, mean_square);
    ptx::sync_warp();
    for (int dim = ptx::lane_idx(); dim < c.head_dim_vo; dim += ptx::kWarp) s_row[dim] = Variant::value(params, hook, s_row[dim], dim);
  }
}

// ------------------------------------------------------------------------------------------------------------------ products

/// Scores of the block into s.weights [kRows, kLdp].
template <Config c, class Variant>
__device__ __forceinline__ void score_block(typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  constexpr int kKeyStep = F::kKeys / F::kPatchKeys;
  const int patch = ptx::thread_idx() / F::kSplit;
  const int part = ptx::thread_idx() % F::kSplit;
  const int row = patch % F::kRowPatches;  // and every kRowPatches-th after it
  const int key = patch / F::kRowPatches;
  const float* s_q = s.queries + row * F::kLdk;
  const float* s_k = s.keys + key * F::kLdk;
  float sum[F::kPatchRows][F::kPatchKeys] = {};
  for (int vector = part; vector < ceil_div(c.head_dim_qk, 4); vector += F::kSplit) {
    float k[F::kPatchKeys][4];
#pragma unroll
    for (int j = 0; j < F::kPatchKeys; ++j) load_floats(s_k + j * kKeyStep * F::kLdk + 4 * vector, k[j]);
#pragma unroll
    for (int i = 0; i < F::kPatchRows; ++i) {
      float q[4];
      load_floats(s_q + i * F::kRowPatches * F::kLdk + 4 * vector, q);
#pragma unroll
      for (int j = 0; j < F::kPatchKeys; ++j) {
#pragma unroll
        for (int d = 0; d < 4; ++d) sum[i][j] = ptx::fma(q[d], k[j][d], sum[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < F::kPatchRows; ++i) {
#pragma unroll
    for (int j = 0; j < F::kPatchKeys; ++j) {
#pragma unroll
      for (int mask = 1; mask < F::kSplit; mask *= 2) sum[i][j] += ptx::shuffle_xor(sum[i][j], mask);
      if (part == 0) s.weights[(row + i * F::kRowPatches) * F::kLdp + key + j * kKeyStep] = sum[i][j];
    }
  }
}

/// The warp's rows of the block's scores become weights: hooks, mask, softmax. `n` keys are there; `masked`: some may be hidden.
template <Config c, class Variant>
__device__ __forceinline__ void weigh_block(const typename Variant::Params& params, int n, bool masked,
                                            float (&m)[Floor<c, Variant>::kRows / Floor<c, Variant>::kWarps],
                                            float (&l)[Floor<c, Variant>::kRows / Floor<c, Variant>::kWarps],
                                            typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  const int warp = ptx::warp_idx();
  const int key = ptx::lane_idx();
  const bool there = key < n;
  const i64 position = F::kNeedsPositions && there ? s.position[key] : 0;
#pragma unroll
  for (int i = 0; i < F::kRows / F::kWarps; ++i) {
    const int row = warp + i * F::kWarps;
    float* s_weight = s.weights + row * F::kLdp + key;
    float x = there ? *s_weight : 0.0F;
    typename F::RowHooks hooks;
    if constexpr (F::kKeepsHooks) {
      hooks = s.hooks[row];
    } else {
      hooks = F::row_hooks(params, s.vars[row]);
    }
    if constexpr (Variant::kHasLogits) x = Variant::logits(params, hooks.logits, x, position);
    bool visible = there;
    if constexpr (Variant::kHasMask) visible = there && (!masked || Variant::mask(params, hooks.mask, position));
    if constexpr (Variant::kSoftmax) {
      if constexpr (Variant::kHasLogits) x *= kLog2E;
      x = visible ? x : -kInfinity;
      const float correction = raise_maximum(m[i], warp_max(x));
      x = exp2_approx(x - base_of(m[i]));
      l[i] = l[i] * correction + x;
      if (key == 0) s.correction[row] = correction;
    } else {
      x = visible ? x : 0.0F;
    }
    if (key < F::kKeys) *s_weight = x;
  }
}

/// O := O * correction + weights V, the thread's patches.
template <Config c, class Variant>
__device__ __forceinline__ void add_values(const float* s_values, int n,
                                           float (&o)[Floor<c, Variant>::kPasses][Floor<c, Variant>::kOutRows][4],
                                           const typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  const int across = ptx::thread_idx() % F::kAcross;
  const int first_row = ptx::thread_idx() / F::kAcross * F::kOutRows;
  if (first_row >= F::kRows) return;
  if constexpr (Variant::kSoftmax) {
#pragma unroll
    for (int i = 0; i < F::kOutRows; ++i) {
      const float correction = s.correction[first_row + i];
#pragma unroll
      for (int pass = 0; pass < F::kPasses; ++pass) {
#pragma unroll
        for (int d = 0; d < 4; ++d) o[pass][i][d] *= correction;
      }
    }
  }
#pragma unroll
  for (int pass = 0; pass < F::kPasses; ++pass) {
    const int vector = across + pass * F::kAcross;
    if (vector >= F::kLdv / 4) break;
    for (int key = 0; key < n; key += 4) {
      float v[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) load_floats(s_values + (key + k) * F::kLdValue + 4 * vector, v[k]);
#pragma unroll
      for (int i = 0; i < F::kOutRows; ++i) {
        float w[4];
        load_floats(s.weights + (first_row + i) * F::kLdp + key, w);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int d = 0; d < 4; ++d) o[pass][i][d] = ptx::fma(w[k], v[k][d], o[pass][i][d]);
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------------------------ a tile's end

/// The item's (m, l) of all rows into s.state.
template <Config c, class Variant>
__device__ __forceinline__ void gather_state(const float (&m)[Floor<c, Variant>::kRows / Floor<c, Variant>::kWarps],
                                             const float (&l)[Floor<c, Variant>::kRows / Floor<c, Variant>::kWarps],
                                             typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  const int warp = ptx::warp_idx();
#pragma unroll
  for (int i = 0; i < F::kRows / F::kWarps; ++i) {
    const float sum = warp_sum(l[i]);
    if (ptx::lane_idx() == 0) s.state[warp + i * F::kWarps] = {m[i], sum};
  }
  ptx::sync_block();
}

/// Calls f(row of the tile, dim, o, whether the thread is the row's first) for the thread's patches of rows below `num_rows`.
template <Config c, class Variant, class Function>
__device__ __forceinline__ void for_each_patch(int num_rows, float (&o)[Floor<c, Variant>::kPasses][Floor<c, Variant>::kOutRows][4],
                                               const Function& f) {
  using F = Floor<c, Variant>;
  const int across = ptx::thread_idx() % F::kAcross;
  const int first_row = ptx::thread_idx() / F::kAcross * F::kOutRows;
#pragma unroll
  for (int i = 0; i < F::kOutRows; ++i) {
    if (first_row + i >= num_rows) continue;
#pragma unroll
    for (int pass = 0; pass < F::kPasses; ++pass) {
      const int vector = across + pass * F::kAcross;
      if (vector < F::kLdv / 4) f(first_row + i, 4 * vector, o[pass][i], vector == 0);
    }
  }
}

/// Folds a finished chunk into what its tile has so far; o and s.state become the fold.
template <Config c, class Variant>
__device__ __forceinline__ void fold_chunk(const Args& p, const abi::WorkItem& item,
                                           float (&o)[Floor<c, Variant>::kPasses][Floor<c, Variant>::kOutRows][4],
                                           typename Floor<c, Variant>::Shared& s) {
  using Row = ChunkRow<c, Variant::kSoftmax>;
  for_each_patch<c, Variant>(item.row_count, o, [&](int row, int dim, float(&x)[4], bool) {
    RowState state = s.state[row];
    Row::begin(p, row, state, is_first(item)).fold_values(dim, x);
  });
  ptx::sync_block();
  const int row = ptx::thread_idx();
  if (row < item.row_count) {
    RowState state = s.state[row];
    Row::begin(p, row, state, is_first(item)).write_state(state);
    s.state[row] = state;
  }
  ptx::sync_block();
}

template <Config c, class Variant>
__device__ __forceinline__ void write_rows(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item,
                                           float (&o)[Floor<c, Variant>::kPasses][Floor<c, Variant>::kOutRows][4],
                                           typename Floor<c, Variant>::Shared& s) {
  for_each_patch<c, Variant>(item.row_count, o, [&](int row, int dim, float(&x)[4], bool first) {
    const auto writer = RowWriter<c, Variant>::make(p, params, item, row, s.state[row], 1.0F);
    writer.write(dim, x);
    if (first) writer.write_state();
  });
  if (item.part_row >= 0) arrive<c, Variant>(p, params, item, &s.last);
}

// ------------------------------------------------------------------------------------------------------------------ the kernel

/// All keys of an item into the state (m, l, o).
template <Config c, class Variant>
__device__ __forceinline__ void reduce_item(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item,
                                            float (&m)[Floor<c, Variant>::kRows / Floor<c, Variant>::kWarps],
                                            float (&l)[Floor<c, Variant>::kRows / Floor<c, Variant>::kWarps],
                                            float (&o)[Floor<c, Variant>::kPasses][Floor<c, Variant>::kOutRows][4],
                                            typename Floor<c, Variant>::Shared& s) {
  using F = Floor<c, Variant>;
  const KeyList keys = key_list(p, item);
  const int t = ptx::thread_idx();
  // Threads below kKeys hold the place of a key of the next block: its page id is asked for a block ahead.
  KeySlot at = {0, 0};
  i64 page = 0;
  // Unsigned: a block past the last of 2^31 - 1 keys must not wrap.
  const u32 end = static_cast<u32>(item.kv_end);
  const auto look_up = [&](u32 key) {
    if (t >= F::kKeys || key >= end) return;
    at = keys.slot_of(static_cast<i32>(key));
    page = keys.page_of(at.entry);
  };
  look_up(static_cast<u32>(item.kv_begin) + t);
  for (u32 next = static_cast<u32>(item.kv_begin); next < end; next += F::kKeys) {
    const i32 begin = static_cast<i32>(next);
    const int n = min(F::kKeys, item.kv_end - begin);
    if (t < F::kKeys) describe_key<c, Variant>(keys, t, t < n ? begin + t : begin, t < n, at, page, s);
    ptx::sync_block();
    look_up(next + F::kKeys + t);
    stage_keys<c, Variant>(keys, s);
    if constexpr (F::kValueApart) stage_values<c, Variant>(keys, s.values, s);
    ptx::sync_block();
    if constexpr (Variant::kHasKey || Variant::kHasRope) {
      transform_keys<c, Variant>(params, item.kv_head, n, s);
      ptx::sync_block();
    }
    score_block<c, Variant>(s);
    ptx::sync_block();
    weigh_block<c, Variant>(params, n, !all_visible(item, begin, begin + n), m, l, s);
    float* s_values = F::kValueApart ? s.values : s.keys;
    if constexpr (!F::kValueApart && !F::kValueInKey) {
      stage_values<c, Variant>(keys, s_values, s);
      if constexpr (Variant::kHasValue) ptx::sync_block();
    }
    if constexpr (Variant::kHasValue) transform_values<c, Variant>(params, item.kv_head, n, s_values, s);
    ptx::sync_block();
    add_values<c, Variant>(s_values, n, o, s);
  }
}

template <Config c, class Variant>
__device__ __forceinline__ void run_floor(const Args& p) {
  using F = Floor<c, Variant>;
  static_assert(sizeof(typename F::Shared) <= c.shared_bytes);
  begin_list(p);
  auto& s = *reinterpret_cast<typename F::Shared*>(ptx::shared_memory());
  const typename Variant::Params params = Variant::load_params(p);
  float m[F::kRows / F::kWarps];
  float l[F::kRows / F::kWarps];
  float o[F::kPasses][F::kOutRows][4];
  const UnitItems items = unit_items(p);
  for (const abi::WorkItem* next = items.begin; next < items.end; ++next) {
    const abi::WorkItem item = *next;
    if (item.row_count == 0) continue;
    ptx::sync_block();  // the tile before is done with shared memory
    if (is_first(item)) load_queries<c, Variant>(p, params, item, s);
    if (is_first(item) || is_chunk(item)) {
#pragma unroll
      for (int i = 0; i < F::kRows / F::kWarps; ++i) {
        m[i] = -kInfinity;
        l[i] = 0.0F;
      }
#pragma unroll
      for (int pass = 0; pass < F::kPasses; ++pass) {
#pragma unroll
        for (int i = 0; i < F::kOutRows; ++i) {
#pragma unroll
          for (int d = 0; d < 4; ++d) o[pass][i][d] = 0.0F;
        }
      }
    }
    reduce_item<c, Variant>(p, params, item, m, l, o, s);
    if (is_chunk(item) || is_last(item)) gather_state<c, Variant>(m, l, s);
    if constexpr (c.batch_invariant) {
      if (is_chunk(item)) fold_chunk<c, Variant>(p, item, o, s);
    }
    if (is_last(item)) write_rows<c, Variant>(p, params, item, o, s);
  }
  write_empty_rows<c, Variant>(p, params);
  end_list(p);
}

}  // namespace girih::attention
