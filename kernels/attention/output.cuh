// A row's end: its state becomes the final O and LSE, or a part in the workspace that a merge takes up. Families hold their values each in
// their own way; here a RowWriter takes any kN neighbouring dims at a time, from any thread.
//   const auto writer = RowWriter<c, Variant>::make(p, params, item, row, state, value_factor);
//   writer.template write<4>(dim, o);   // unnormalised o, every dim once
//   if (one thread of the row) writer.write_state();
#pragma once

#include "attention/config.cuh"
#include "attention/problem.cuh"
#include "attention/state.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"

namespace girih::attention {

/// Storage of a type.
template <Type t>
struct StorageOf;
template <>
struct StorageOf<Type::f32> {
  using T = float;
};
template <>
struct StorageOf<Type::f16> {
  using T = f16;
};
template <>
struct StorageOf<Type::bf16> {
  using T = bf16;
};
template <>
struct StorageOf<Type::e4m3> {
  using T = e4m3;
};
template <>
struct StorageOf<Type::e5m2> {
  using T = e5m2;
};
template <>
struct StorageOf<Type::i8> {
  using T = i8;
};
template <>
struct StorageOf<Type::nvfp4> {
  using T = e2m1x2;
};
template <>
struct StorageOf<Type::mxfp4> {
  using T = e2m1x2;
};
template <Type t>
using Storage = typename StorageOf<t>::T;

/// Whether rows can be accessed `bytes` (a power of two) at a time at multiples of that.
__device__ __forceinline__ bool rows_aligned(const abi::RowsArg& rows, int bytes) {
  const u64 all = reinterpret_cast<u64>(rows.data) | static_cast<u64>(rows.token_stride) | static_cast<u64>(rows.head_stride);
  return (all & static_cast<u64>(bytes - 1)) == 0;
}

/// Rounds x into dims [dim, dim + kN) of a row of `dims` elements. `aligned`: the row begins at a multiple of 16 bytes.
template <Type t, int kN>
__device__ __forceinline__ void store_row(u8* g_row, int dim, int dims, const float (&x)[kN], bool aligned) {
  using T = Storage<t>;
  if (aligned && dim + kN <= dims) {
    if constexpr (t == Type::f32) return store_floats(reinterpret_cast<float*>(g_row) + dim, x);
    if constexpr (bits(t) == 8 && kN % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kN; i += 4) *reinterpret_cast<u32*>(g_row + dim + i) = pack_codes<T>(x[i], x[i + 1], x[i + 2], x[i + 3]);
      return;
    }
    if constexpr (bits(t) == 16 && kN % 2 == 0) {
      u32 pairs[kN / 2];
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) pairs[i] = pack<T>(x[2 * i], x[2 * i + 1]);
      u8* target = g_row + 2 * dim;
      if constexpr (kN % 8 == 0) {
#pragma unroll
        for (int i = 0; i < kN / 2; i += 4) {
          *reinterpret_cast<Vec16*>(target + 4 * i) = Vec16{pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]};
        }
      } else if constexpr (kN == 4) {
        *reinterpret_cast<Vec8*>(target) = Vec8{pairs[0], pairs[1]};
      } else {
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) *reinterpret_cast<u32*>(target + 4 * i) = pairs[i];
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    if (dim + i < dims) reinterpret_cast<T*>(g_row)[dim + i] = from_f32<T>(x[i]);
  }
}

/// What becomes of a finished row's values, and its LSE in base-2 units.
struct RowEnd {
  float factor;
  float lse;
  bool empty;
};

/// Normalises; the sink, if any, joins the denominator.
template <Config c, class Variant>
__device__ __forceinline__ RowEnd end_row(const typename Variant::Params& params, RowState s, i32 q_head) {
  if constexpr (!Variant::kSoftmax) return {1.0F, 0.0F, false};
  const bool empty = is_empty(s);
  float scale = 1.0F;  // of the row's values
  if constexpr (Variant::kHasSink && !c.partial_state) {
    // The sink is one more score; the logarithm is that of the LSE, if any.
    const float sink = Variant::sink(params, q_head) * kLog2E;
    if (empty) {
      s = {sink, sink == -kInfinity ? 0.0F : 1.0F};
    } else if (sink != -kInfinity) {
      const float top = sink > s.m ? sink : s.m;
      scale = exp2(s.m - top);
      s.l = ptx::fma(s.l, scale, exp2(sink - top));
      s.m = top;
    }
  }
  const float lse = c.lse == Lse::none ? 0.0F : is_empty(s) ? -kInfinity : s.m + log2(s.l);
  return {.factor = empty ? 0.0F : scale / s.l, .lse = lse, .empty = empty};
}

template <Config c, class Variant>
struct RowWriter {
  static constexpr bool kHooked = Variant::kHasOutput && !c.partial_state;

  const Args& p;
  const typename Variant::Params& params;
  // What V's scales have in common, if left out of the products; 1 where there is none, and with chunks (already applied).
  float value_factor;
  RowState state;
  float* g_part;  // null: the row is final
  float* g_part_ml;
  u8* g_o;
  float* g_lse;
  float code_factor;  // of O of 8 bits: what values are multiplied by
  RowEnd end;
  typename Variant::OutputRow hook;
  bool aligned;

  /// Row `row` of a tile that ends with `item`.
  static __device__ __forceinline__ RowWriter make(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item,
                                                   int row, RowState state, float value_factor) {
    if (item.part_row < 0) return final_row(p, params, item.row_begin + row, item.kv_head, state, value_factor);
    const i64 part = static_cast<i64>(item.part_row) + row;
    return {.p = p,
            .params = params,
            .value_factor = value_factor,
            .state = state,
            .g_part = p.part_o + part * c.part_stride(),
            .g_part_ml = p.part_ml + 2 * part,
            .g_o = nullptr,
            .g_lse = nullptr,
            .code_factor = 1.0F,
            .end = {},
            .hook = {},
            .aligned = true};
  }

  /// Packed row `row` of a KV head, complete.
  static __device__ __forceinline__ RowWriter final_row(const Args& p, const typename Variant::Params& params, i32 row, i32 kv_head,
                                                        RowState state, float value_factor) {
    const RowPlace place = place_row<c>(row, kv_head);
    RowWriter w = {.p = p,
                   .params = params,
                   .value_factor = value_factor,
                   .state = state,
                   .g_part = nullptr,
                   .g_part_ml = nullptr,
                   .g_o = row_address(p.o, place.token, place.q_head),
                   .g_lse = nullptr,
                   .code_factor = 1.0F,
                   .end = end_row<c, Variant>(params, state, place.q_head),
                   .hook = {},
                   .aligned = rows_aligned(p.o, 16)};
    if constexpr (c.lse != Lse::none) w.g_lse = p.lse + place.token * p.lse_token_stride + place.q_head * p.lse_head_stride;
    if constexpr (bits(c.o_type) == 8) w.code_factor = p.o_scale != nullptr ? 1.0F / *p.o_scale : 1.0F;
    if constexpr (kHooked) w.hook = Variant::output_row(params, describe_row<c>(p, row, kv_head));
    return w;
  }

  /// What becomes of an unnormalised value of a final row without output hook.
  __device__ __forceinline__ float finish(float o) const {
    const float x = c.v_scale != Scale::none ? o * value_factor : o;
    return Variant::kSoftmax ? (end.empty ? 0.0F : x * end.factor) : x;
  }

  /// Unnormalised values of dims [dim, dim + kN); dim is a multiple of kN, dims past head_dim_vo are left out.
  template <int kN>
  __device__ __forceinline__ void write(int dim, const float (&o)[kN]) const {
    float x[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) x[i] = c.v_scale != Scale::none ? o[i] * value_factor : o[i];
    if (g_part != nullptr) {
      store_floats(g_part + dim, x);
      return;
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      x[i] = Variant::kSoftmax && end.empty ? 0.0F : Variant::kSoftmax ? x[i] * end.factor : x[i];
      if constexpr (kHooked) x[i] = Variant::output(params, hook, x[i], dim + i);
      if constexpr (bits(c.o_type) == 8) x[i] *= code_factor;
    }
    store_row<c.o_type>(g_o, dim, c.head_dim_vo, x, aligned);
  }

  /// The part's (m, l), or the LSE: by one thread of the row.
  __device__ __forceinline__ void write_state() const {
    if constexpr (!Variant::kSoftmax) return;
    if (g_part != nullptr) {
      g_part_ml[0] = state.m;
      g_part_ml[1] = state.l;
    } else if constexpr (c.lse != Lse::none) {
      *g_lse = c.lse == Lse::natural ? end.lse * kLn2 : end.lse;
    }
  }
};

}  // namespace girih::attention
