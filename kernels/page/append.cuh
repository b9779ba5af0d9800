// append(): new K and V rows into the pages of a store, converted and quantised as they are written; a warp takes one token and head.
// Where a token goes is either given (places) or follows from an attention plan: the query tokens of a request are the last keys of its
// group. With a plan nothing but device memory decides, so that a captured graph appends whatever batch is uploaded.
// The rules of scales and rounding are those of src/page/quantize.cc, bit for bit.
#pragma once

#include "abi/page_params.h"
#include "core/convert.cuh"
#include "core/types.cuh"
#include "ptx/thread.cuh"

namespace girih::page {

/// Storage types of planes that are no C type: codes of 4 bits in blocks.
struct nvfp4 {};
struct mxfp4 {};
enum class Scale : u8 { none, tensor, head, token_head, block };

constexpr float kMaxF32 = __builtin_bit_cast(float, 0x7f7fffffU);

template <typename T>
constexpr float kLargest = kSame<T, e4m3>   ? 448.0F
                           : kSame<T, e5m2> ? 57344.0F
                                            : 127.0F;

template <typename T>
__device__ __forceinline__ float load(const u8* source) {
  return to_f32(*reinterpret_cast<const T*>(source));
}

/// |x| where it is finite, else 0, as bits: magnitudes of f32 order as integers.
__device__ __forceinline__ u32 finite_magnitude(float x) {
  const u32 b = bits_of(x) & 0x7fffffffU;
  return b < 0x7f800000U ? b : 0U;
}

__device__ __forceinline__ u32 largest_of_warp(u32 value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value = max(value, ptx::shuffle_xor(value, mask));
  return value;
}

/// Where a row and head of a plane begin.
struct RowPlaces {
  const u8* source;
  u8* data;
  u8* scales;
};
__device__ __forceinline__ RowPlaces places_of(const abi::AppendPlane& p, i64 row, i64 head, abi::TokenPlace at) {
  return {p.source + row * p.source_row_stride + head * p.source_head_stride,
          p.data + at.page * p.page_stride + at.token * p.token_stride + head * p.head_stride,
          p.scales + at.page * p.scale_page_stride + at.token * p.scale_token_stride + head * p.scale_head_stride};
}

__device__ __forceinline__ bool aligned16(const void* pointer) { return reinterpret_cast<u64>(pointer) % 16 == 0; }

/// Elements as they are.
template <typename T>
__device__ __forceinline__ void move_row(const abi::AppendPlane& p, const RowPlaces& at) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  const bool dense = p.source_dim_stride == sizeof(T) && p.dim_stride == sizeof(T) && aligned16(at.source) && aligned16(at.data);
  const int vectors = dense ? p.dim / kVector : 0;
  for (int i = ptx::lane_idx(); i < vectors; i += ptx::kWarp) {
    reinterpret_cast<Vec16*>(at.data)[i] = reinterpret_cast<const Vec16*>(at.source)[i];
  }
  for (int d = vectors * kVector + ptx::lane_idx(); d < p.dim; d += ptx::kWarp) {
    *reinterpret_cast<T*>(at.data + d * p.dim_stride) = *reinterpret_cast<const T*>(at.source + d * p.source_dim_stride);
  }
}

template <typename Source, typename Target>
__device__ __forceinline__ void convert_row(const abi::AppendPlane& p, const RowPlaces& at) {
  for (int d = ptx::lane_idx(); d < p.dim; d += ptx::kWarp) {
    *reinterpret_cast<Target*>(at.data + d * p.dim_stride) = from_f32<Target>(load<Source>(at.source + d * p.source_dim_stride));
  }
}

template <typename Source, typename Target>
__device__ __forceinline__ void scale_row(const abi::AppendPlane& p, const RowPlaces& at, float scale) {
  for (int d = ptx::lane_idx(); d < p.dim; d += ptx::kWarp) {
    *reinterpret_cast<Target*>(at.data + d * p.dim_stride) = from_f32<Target>(load<Source>(at.source + d * p.source_dim_stride) / scale);
  }
}

/// The scale of a whole row is computed and stored.
template <typename Source, typename Target>
__device__ __forceinline__ void scale_row_by_its_largest(const abi::AppendPlane& p, const RowPlaces& at) {
  u32 most = 0;
  for (int d = ptx::lane_idx(); d < p.dim; d += ptx::kWarp)
    most = max(most, finite_magnitude(load<Source>(at.source + d * p.source_dim_stride)));
  float stored = min(float_of(largest_of_warp(most)) / kLargest<Target> / p.global_scale, kMaxF32);
  if (!(stored * p.global_scale > 0.0F)) stored = 1.0F;  // zeros, or so small that the scale underflows
  if (ptx::lane_idx() == 0) *reinterpret_cast<float*>(at.scales) = stored;
  scale_row<Source, Target>(p, at, stored * p.global_scale);
}

/// A lane takes a block: 16 or 32 elements, their scale and 8 or 16 bytes of codes.
template <typename Source, typename Target>
__device__ __forceinline__ void write_blocks(const abi::AppendPlane& p, const RowPlaces& at) {
  constexpr bool kNv = kSame<Target, nvfp4>;
  constexpr int kBlock = kNv ? 16 : 32;
  for (int begin = ptx::lane_idx() * kBlock; begin < p.dim; begin += ptx::kWarp * kBlock) {
    const int count = min(kBlock, p.dim - begin);
    const u8* source = at.source + begin * p.source_dim_stride;
    u32 most_bits = 0;
    for (int d = 0; d < count; ++d) most_bits = max(most_bits, finite_magnitude(load<Source>(source + d * p.source_dim_stride)));
    const float most = float_of(most_bits);
    u32 code = 0;
    float scale = 0.0F;
    if constexpr (kNv) {
      const e4m3 rounded = from_f32<e4m3>(most / 6.0F / p.global_scale);
      code = rounded.bits;
      scale = to_f32(rounded) * p.global_scale;
    } else {
      const float relative = min(most / p.global_scale, kMaxF32);
      code = exponent_to_e8m0(relative > 0.0F ? exponent_of(relative) - 2 : 0);
      scale = e8m0_to_f32(code) * p.global_scale;
    }
    at.scales[begin / kBlock] = static_cast<u8>(code);
    for (int d = 0; d < count; d += 2) {
      u32 pair = 0;
      if (scale > 0.0F) {
        pair = e2m1_from_f32(load<Source>(source + d * p.source_dim_stride) / scale);
        if (d + 1 < count) pair |= e2m1_from_f32(load<Source>(source + (d + 1) * p.source_dim_stride) / scale) << 4;
      }
      at.data[(begin + d) / 2] = static_cast<u8>(pair);
    }
  }
}

/// One token and head of a plane; all lanes of a warp take part. Source: float, f16, bf16; Target: a storage type, nvfp4 or mxfp4.
template <typename Source, typename Target, Scale kScale>
__device__ __forceinline__ void write_row(const abi::AppendPlane& p, i64 row, i64 head, abi::TokenPlace place) {
  const RowPlaces at = places_of(p, row, head, place);
  if constexpr (kSame<Source, Target>) {
    move_row<Source>(p, at);
  } else if constexpr (kScale == Scale::none) {
    convert_row<Source, Target>(p, at);
  } else if constexpr (kScale == Scale::token_head) {
    scale_row_by_its_largest<Source, Target>(p, at);
  } else if constexpr (kScale == Scale::block) {
    write_blocks<Source, Target>(p, at);
  } else {
    const i64 offset = kScale == Scale::head ? head * p.scale_head_stride : 0;
    scale_row<Source, Target>(p, at, *reinterpret_cast<const float*>(p.scales + offset) * p.global_scale);
  }
}

/// Where the plan's query token `row` lies as a key; token < 0 where its group has fewer keys than query rows before it, or none.
__device__ __forceinline__ abi::TokenPlace planned_place(const abi::AppendParams& p, i64 row) {
  const u8* blob = reinterpret_cast<const u8*>(p.plan);
  const abi::SegmentInfo& segment = reinterpret_cast<const abi::SegmentInfo*>(blob + p.plan->segments.offset)[p.segment];
  const abi::KvRow* rows = reinterpret_cast<const abi::KvRow*>(blob + p.plan->kv_rows.offset) + segment.kv_row_begin;
  // The first group that ends after the row: groups are ascending.
  i64 low = 0;
  i64 high = segment.num_groups;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (rows[middle].q_end <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == segment.num_groups || rows[low].q_begin > row) return {0, -1};
  const i64 key = rows[low].kv_len - (rows[low].q_end - row);
  if (key < 0) return {0, -1};
  if (p.page_size.divisor == 0) return {0, rows[low].table_begin + key};
  const u32 index = static_cast<u32>((static_cast<u64>(static_cast<u32>(key)) * p.page_size.magic) >> p.page_size.shift);
  return {p.kv_indices[rows[low].table_begin + index], key - static_cast<i64>(index) * p.page_size.divisor};
}

/// Calls write(row, head, place) for this warp's share of rows x heads.
template <typename Write>
__device__ __forceinline__ void for_each_row(const abi::AppendParams& p, Write write) {
  i64 rows = p.rows;
  if (p.plan != nullptr) rows = min(rows, p.plan->num_tokens);
  const int warps = ptx::num_threads() / ptx::kWarp;
  const i64 step = static_cast<i64>(ptx::num_blocks()) * warps;
  for (i64 i = static_cast<i64>(ptx::block_idx()) * warps + ptx::warp_idx(); i < rows * p.heads; i += step) {
    const i64 row = i / p.heads;
    const abi::TokenPlace place = p.places != nullptr ? p.places[row] : planned_place(p, row);
    if (place.token >= 0) write(row, i - row * p.heads, place);
  }
}

}  // namespace girih::page
