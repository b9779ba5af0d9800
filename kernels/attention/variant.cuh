// What the generated struct Variant builds on: the hooks' meaning where they are absent, and the operations of printed expressions. A hook
// has two halves: NAME_row() computes once per query row (or key) what does not change along the other axis, NAME() the rest. Integers are
// 64-bit and wrap; divisions round down and by 0 give 0; an index outside an array reads 0. Same results as the CPU's evaluator bit for bit
// in integers and conditions.
#pragma once

#include "attention/problem.cuh"
#include "core/math.cuh"
#include "core/types.cuh"
#include "ptx/math.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

struct NoRow {};

/// A variant without hooks: plain softmax attention. `Variant` derives from it and hides what it has of its own.
struct PlainVariant {
  static constexpr bool kSoftmax = true;
  static constexpr bool kHasQuery = false, kHasKey = false, kHasValue = false, kHasLogits = false, kHasMask = false, kHasSink = false,
                        kHasOutput = false;
  static constexpr bool kQueryMeanSquare = false, kKeyMeanSquare = false, kValueMeanSquare = false;  // the hook asks for it
  static constexpr bool kKeyPos = false, kValuePos = false, kLogitsPos = false;                      // the hook asks for kv_pos
  static constexpr bool kLogitsScaled = false, kLogitsLogistic = false, kLogitsAdditive = false;
  static constexpr float kLogitsBound = kInfinity;
  static constexpr bool kMaskAtRun = false;   // the mask depends on run-time values: hardly a step is without it
  static constexpr bool kMaskByHead = false;  // rows of one token may differ in what they see
  static constexpr bool kHasRope = false, kRopeInterleave = false;
  static constexpr int kRopeBegin = 0, kRopePairs = 0;

  /// Parameters as the hooks read them.
  struct Params {};
  static __device__ __forceinline__ Params load_params(const Args&) { return {}; }

  using QueryRow = NoRow;
  using KeyRow = NoRow;
  using ValueRow = NoRow;
  using LogitsRow = NoRow;
  using MaskRow = NoRow;
  using OutputRow = NoRow;
  template <typename P>
  static __device__ __forceinline__ NoRow logits_row(const P&, const RowVars&) {
    return {};
  }
  template <typename P>
  static __device__ __forceinline__ float logits(const P&, NoRow, float score, i64) {
    return score;
  }
  template <typename P>
  static __device__ __forceinline__ NoRow mask_row(const P&, const RowVars&) {
    return {};
  }
  template <typename P>
  static __device__ __forceinline__ bool mask(const P&, NoRow, i64) {
    return true;
  }
};

// ------------------------------------------------------------------------------------------------------------------ operations

__device__ __forceinline__ i64 wrap_add(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }
__device__ __forceinline__ i64 wrap_sub(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b)); }
__device__ __forceinline__ i64 wrap_mul(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }
__device__ __forceinline__ i64 wrap_abs(i64 a) { return a < 0 ? wrap_sub(0, a) : a; }

/// 64-bit division is a hundred instructions: positions nearly always fit the 32-bit one.
__device__ __forceinline__ i64 floor_div(i64 a, i64 b) {
  if (((static_cast<u64>(a) | static_cast<u64>(b)) >> 32) == 0) {
    return b == 0 ? 0 : static_cast<i64>(static_cast<u32>(a) / static_cast<u32>(b));
  }
  if (b == 0) return 0;
  if (b == -1) return wrap_sub(0, a);
  const i64 q = a / b;
  return q - ((a - q * b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
__device__ __forceinline__ i64 floor_mod(i64 a, i64 b) { return b == 0 ? 0 : wrap_sub(a, wrap_mul(b, floor_div(a, b))); }

/// Rounded to nearest even. The 32-bit conversion is four times as fast.
__device__ __forceinline__ float to_number(i64 a) {
  const i32 low = static_cast<i32>(a);
  return static_cast<i32>(a >> 32) == low >> 31 ? static_cast<float>(low) : static_cast<float>(a);
}

/// Numbers that conditions depend on: one rounding each, never contracted to a fused multiply-add.
__device__ __forceinline__ float exact_add(float a, float b) { return ptx::fma(a, 1.0F, b); }
__device__ __forceinline__ float exact_sub(float a, float b) { return ptx::fma(b, -1.0F, a); }
__device__ __forceinline__ float exact_mul(float a, float b) { return ptx::fma(a, b, -0.0F); }

/// Of a NaN and a number, the number.
__device__ __forceinline__ float number_min(float a, float b) { return b != b ? a : (a < b ? a : b); }
__device__ __forceinline__ float number_max(float a, float b) { return b != b ? a : (a > b ? a : b); }

/// 1 / (1 + e^-x): absolute error <= 2^-21.
__device__ __forceinline__ float sigmoid_approx(float x) { return rcp_approx(1.0F + exp2_approx(-kLog2E * x)); }

template <typename T>
__device__ __forceinline__ T element(const void* data, i64 size, i64 index) {
  return static_cast<u64>(index) < static_cast<u64>(size) ? static_cast<const T*>(data)[index] : T{};
}
/// Bit `index` of little-endian packed bytes; `size` in bits.
__device__ __forceinline__ bool bit_at(const void* data, i64 size, i64 index) {
  return static_cast<u64>(index) < static_cast<u64>(size) && ((static_cast<const u8*>(data)[index >> 3] >> (index & 7)) & 1) != 0;
}

/// An array as CUDA text has it.
template <typename T>
struct Elements {
  const void* data;
  i64 size;
  __device__ __forceinline__ auto operator[](i64 index) const {
    if constexpr (kSame<T, float>) return element<float>(data, size, index);
    if constexpr (!kSame<T, float>) return i64{element<T>(data, size, index)};
  }
};
struct Bits {
  const void* data;
  i64 size;
  __device__ __forceinline__ bool operator[](i64 index) const { return bit_at(data, size, index); }
};

// ------------------------------------------------------------------------------------------------------------------ words of keys

/// Bits [0, n).
__device__ __forceinline__ u32 low_bits(int n) { return n >= 32 ? 0xffffffffU : n <= 0 ? 0U : (1U << n) - 1U; }

/// Bit i: a + i < b.
__device__ __forceinline__ u32 keys_below(i64 a, i64 b) {
  const u64 n = static_cast<u64>(b) - static_cast<u64>(a);
  return b <= a ? 0U : n >= 32 ? 0xffffffffU : (1U << static_cast<u32>(n)) - 1U;
}
/// Bit i: a + i <= b.
__device__ __forceinline__ u32 keys_up_to(i64 a, i64 b) {
  const u64 n = static_cast<u64>(b) - static_cast<u64>(a);
  return b < a ? 0U : n >= 31 ? 0xffffffffU : (2U << static_cast<u32>(n)) - 1U;
}
/// Bit i: a + i == b.
__device__ __forceinline__ u32 key_at(i64 a, i64 b) {
  const u64 n = static_cast<u64>(b) - static_cast<u64>(a);
  return n >= 32 ? 0U : 1U << static_cast<u32>(n);
}
/// Bit i: a + i lies in a chunk of `size` before chunk `chunk` + `more`. Chunks beyond all positions are clamped, lest the product wrap.
__device__ __forceinline__ u32 keys_below_chunk(i64 a, i64 chunk, i64 size, int more) {
  constexpr i64 kFar = i64{1} << 31;
  return keys_below(a, (max(min(chunk, kFar), -kFar) + more) * size);
}
/// Bits [index, index + 32) of an array; those outside are 0.
__device__ __forceinline__ u32 bits_at(const void* data, i64 size, i64 index) {
  const u8* bytes = static_cast<const u8*>(data);
  const i64 first = index >> 3;
  const i64 end = size >> 3;
  const i64 skipped = (static_cast<i64>(reinterpret_cast<u64>(data) & 3) + first) & 3;
  if (first >= skipped && first - skipped + 8 <= end) {
    const u32* pair = reinterpret_cast<const u32*>(bytes + (first - skipped));
    return static_cast<u32>((static_cast<u64>(pair[1]) << 32 | pair[0]) >> (8 * skipped + (index & 7)));
  }
  u64 bits = 0;
#pragma unroll 1
  for (i64 i = 0; i < 5; ++i) {
    if (first + i >= 0 && first + i < end) bits |= static_cast<u64>(bytes[first + i]) << (8 * i);
  }
  return static_cast<u32>(bits >> (index & 7));
}

/// A lane's value.
__device__ __forceinline__ bool of_lane(bool value, int lane) { return ptx::shuffle(static_cast<u32>(value), lane) != 0; }
__device__ __forceinline__ float of_lane(float value, int lane) { return ptx::shuffle(value, lane); }
__device__ __forceinline__ i64 of_lane(i64 value, int lane) {
  const u64 bits = static_cast<u64>(value);
  const u64 high = ptx::shuffle(static_cast<u32>(bits >> 32), lane);
  return static_cast<i64>(high << 32 | ptx::shuffle(static_cast<u32>(bits), lane));
}

// ------------------------------------------------------------------------------------------------------------------ plan-time values

__device__ __forceinline__ const u8* plan_array(const Args& p, int i) {
  return blob_array<u8>(p, p.plan->param_data) + blob_array<abi::PlanParam>(p, p.plan->params)[i].offset;
}
__device__ __forceinline__ i64 plan_size(const Args& p, int i) { return blob_array<abi::PlanParam>(p, p.plan->params)[i].size; }
__device__ __forceinline__ i64 plan_integer(const Args& p, int i) { return *reinterpret_cast<const i64*>(plan_array(p, i)); }
__device__ __forceinline__ float plan_number(const Args& p, int i) {
  return static_cast<float>(*reinterpret_cast<const double*>(plan_array(p, i)));
}

}  // namespace girih::attention
