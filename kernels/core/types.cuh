// The vocabulary of the kernels: storage types, 16-byte vectors, small integer arithmetic. No CUDA headers: NVRTC compiles in a tenth of
// the time without them, and the CPU emulator compiles the same text.
#pragma once

#include <cstdint>

namespace girih {

using i8 = std::int8_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using i32 = std::int32_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;

/// Storage of the 16-bit floating-point types; arithmetic happens in f32 or in packed pairs (u32, low half first).
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct e4m3 {
  u8 bits;
};
struct e5m2 {
  u8 bits;
};

/// 16 bytes: the widest access of one thread.
struct alignas(16) Vec16 {
  u32 x[4];
};
struct alignas(8) Vec8 {
  u32 x[2];
};

/// Whether two types are one.
template <typename A, typename B>
constexpr bool kSame = false;
template <typename A>
constexpr bool kSame<A, A> = true;

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000U);
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

template <typename T>
__device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <typename T>
__device__ constexpr T min(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
__device__ constexpr T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace girih
