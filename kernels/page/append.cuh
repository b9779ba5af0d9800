// append(): new K and V rows into the pages of a store, converted and quantised as they are written; a warp takes one token and head.
// Where a token goes: places.cuh. How scales are chosen: rows/quantize.cuh.
#pragma once

#include "abi/page_params.h"
#include "core/convert.cuh"
#include "core/types.cuh"
#include "page/places.cuh"
#include "ptx/thread.cuh"
#include "rows/quantize.cuh"

namespace girih::page {

/// Storage types of planes that are no C type: codes of 4 bits in blocks.
struct nvfp4 {};
struct mxfp4 {};
enum class Scale : u8 { none, tensor, head, token_head, block };

template <typename T>
__device__ __forceinline__ float load(const u8* source) {
  return to_f32(*reinterpret_cast<const T*>(source));
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
  const ChosenScale chosen = f32_scale(float_of(largest_of_warp(most)), kLargest<Target>, p.global_scale);
  if (ptx::lane_idx() == 0) *reinterpret_cast<float*>(at.scales) = chosen.stored;
  scale_row<Source, Target>(p, at, chosen.scale);
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
    const ChosenScale chosen = kNv ? nvfp4_scale(most, p.global_scale) : mx_scale(most, 2, p.global_scale);
    const float scale = chosen.scale;
    at.scales[begin / kBlock] = static_cast<u8>(chosen.code);
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

/// Calls write(row, head, place) for this warp's share of rows x heads.
template <typename Write>
__device__ __forceinline__ void for_each_row(const abi::AppendParams& p, Write write) {
  i64 rows = p.rows;
  if (p.plan != nullptr) rows = min(rows, p.plan->num_tokens);
  const int warps = ptx::num_threads() / ptx::kWarp;
  const i64 step = static_cast<i64>(ptx::num_blocks()) * warps;
  for (i64 i = static_cast<i64>(ptx::block_idx()) * warps + ptx::warp_idx(); i < rows * p.heads; i += step) {
    const i64 row = i / p.heads;
    const abi::TokenPlace place = p.table.given != 0 ? listed_place(p, row) : key_of(p, row).place;
    if (place.token >= 0) write(row, i - row * p.heads, place);
  }
}

}  // namespace girih::page
