// Vectors of row elements: 16 bytes of a source as f32, and as many f32 as codes of any type. Rows that may not be touched 16 bytes at a
// time are read and written one element at a time into the same registers, so that what lies between need not know.
#pragma once

#include "abi/rows_params.h"
#include "core/convert.cuh"
#include "core/types.cuh"

namespace girih::rows {

using abi::Elem;

template <Elem kElem>
struct StorageOf;
template <>
struct StorageOf<Elem::f32> {
  using Type = float;
};
template <>
struct StorageOf<Elem::f16> {
  using Type = f16;
};
template <>
struct StorageOf<Elem::bf16> {
  using Type = bf16;
};
template <>
struct StorageOf<Elem::e4m3> {
  using Type = e4m3;
};
template <>
struct StorageOf<Elem::e5m2> {
  using Type = e5m2;
};
template <>
struct StorageOf<Elem::i8> {
  using Type = i8;
};
template <>
struct StorageOf<Elem::nvfp4> {
  using Type = e2m1x2;
};
template <>
struct StorageOf<Elem::mxfp4> {
  using Type = e2m1x2;
};
template <Elem kElem>
using Storage = typename StorageOf<kElem>::Type;

constexpr int bits_of_elem(Elem e) {
  return e == Elem::f32 ? 32 : (e == Elem::f16 || e == Elem::bf16 ? 16 : (e == Elem::nvfp4 || e == Elem::mxfp4 ? 4 : 8));
}

/// Where a code's largest power of two is: mxfp4 4, e4m3 256, e5m2 32768.
constexpr int largest_exponent(Elem e) { return e == Elem::e4m3 ? 8 : (e == Elem::e5m2 ? 15 : 2); }

/// Elements [0, kCount) at `row` + their stride, those from `left` on zero, packed as a vector holds them.
template <typename T>
__device__ __forceinline__ Vec16 gather(const u8* source, i64 stride, int left) {
  constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  Vec16 v{};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i >= left) break;
    if constexpr (sizeof(T) == 4) {
      v.x[i] = *reinterpret_cast<const u32*>(source + i * stride);
    } else if constexpr (sizeof(T) == 2) {
      v.x[i / 2] |= static_cast<u32>(*reinterpret_cast<const u16*>(source + i * stride)) << (16 * (i % 2));
    } else {
      v.x[i / 4] |= static_cast<u32>(*(source + i * stride)) << (8 * (i % 4));
    }
  }
  return v;
}

/// Stores the first `left` elements of a vector one at a time.
template <typename T>
__device__ __forceinline__ void scatter_bits(u8* at, i64 stride, int left, const Vec16& v) {
  constexpr int kCount = 16 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i >= left) break;
    if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<u32*>(at + i * stride) = v.x[i];
    } else if constexpr (sizeof(T) == 2) {
      *reinterpret_cast<u16*>(at + i * stride) = static_cast<u16>(v.x[i / 2] >> (16 * (i % 2)));
    } else {
      at[i * stride] = static_cast<u8>(v.x[i / 4] >> (8 * (i % 4)));
    }
  }
}

/// The elements of a vector as f32.
template <typename T, int kCount>
__device__ __forceinline__ void widen_vector(float (&x)[kCount], int at, const Vec16& v) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float part[kPerWord<T>];
    unpack<T>(part, v.x[w]);
#pragma unroll
    for (int i = 0; i < kPerWord<T>; ++i) x[at + w * kPerWord<T> + i] = part[i];
  }
}

/// Words of a kept weight, and what they hold.
template <int kWords>
__device__ __forceinline__ void load_words(u32 (&words)[kWords], const u8* source) {
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const Vec16 v = reinterpret_cast<const Vec16*>(source)[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) words[4 * i + j] = v.x[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const u32*>(source)[i];
  }
}
template <typename T, int kCount, int kWords>
__device__ __forceinline__ void widen_words(float (&x)[kCount], const u32 (&words)[kWords]) {
  static_assert(kWords * kPerWord<T> == kCount);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    float part[kPerWord<T>];
    unpack<T>(part, words[w]);
#pragma unroll
    for (int i = 0; i < kPerWord<T>; ++i) x[w * kPerWord<T> + i] = part[i];
  }
}

/// `kCount` consecutive f32 of weights or tables, rows of T.
template <typename T, int kCount>
__device__ __forceinline__ void load_dense(float (&x)[kCount], const u8* source, int d, int dim, bool aligned) {
  const T* row = reinterpret_cast<const T*>(source);
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  if (aligned && kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i)
      widen_vector<T>(x, i * 16 / static_cast<int>(sizeof(T)), reinterpret_cast<const Vec16*>(row + d)[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = d + i < dim ? to_f32(row[d + i]) : 0.0F;
  }
}

/// `kCount` values as words of codes; 4-bit: numbers, the even element in the low nibble.
template <typename T, int kCount>
__device__ __forceinline__ void pack_vector(u32 (&words)[(kCount * (kSame<T, e2m1x2> ? 4 : 8 * static_cast<int>(sizeof(T))) + 31) / 32],
                                            const float* x) {
  if constexpr (kSame<T, float>) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) words[i] = bits_of(x[i]);
  } else if constexpr (kSame<T, f16> || kSame<T, bf16>) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) words[i] = pack<T>(x[2 * i], x[2 * i + 1]);
  } else if constexpr (kSame<T, e2m1x2>) {
#pragma unroll
    for (int i = 0; i < (kCount + 7) / 8; ++i) {
      u32 word = 0;
#pragma unroll
      for (int j = 0; j < (kCount < 8 ? kCount : 8); ++j) word |= e2m1_from_number(x[8 * i + j]) << (4 * j);
      words[i] = word;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) words[i] = pack_codes<T>(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
}

/// Stores `kCount` values, aligned to what they take or to 16 bytes.
template <typename T, int kCount>
__device__ __forceinline__ void store_vector(u8* at, const float* x) {
  constexpr int kBytes = kCount * (kSame<T, e2m1x2> ? 4 : 8 * static_cast<int>(sizeof(T))) / 8;
  u32 words[(kBytes + 3) / 4];
  pack_vector<T, kCount>(words, x);
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i)
      reinterpret_cast<Vec16*>(at)[i] = Vec16{{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}};
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<Vec8*>(at) = Vec8{{words[0], words[1]}};
  } else if constexpr (kBytes == 4) {
    *reinterpret_cast<u32*>(at) = words[0];
  } else {
    static_assert(kBytes == 2);
    *reinterpret_cast<u16*>(at) = static_cast<u16>(words[0]);
  }
}

/// Stores the first `left` of `kCount` values one at a time. A 4-bit row that ends at an odd element leaves its last high nibble 0.
template <typename T, int kCount>
__device__ __forceinline__ void scatter(u8* at, i64 stride, int left, const float* x) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i >= left) break;
    if constexpr (kSame<T, e2m1x2>) {
      if (i % 2 == 0) at[i / 2] = static_cast<u8>(e2m1_from_f32(x[i]) | (i + 1 < left ? e2m1_from_f32(x[i + 1]) << 4 : 0U));
    } else {
      *reinterpret_cast<T*>(at + i * stride) = from_f32<T>(x[i]);
    }
  }
}

}  // namespace girih::rows
