// Twin of kernels/ptx/wgmma.cuh: products are computed in wgmma_wait (tests/emulator/warp.cc) and not before. Fences are not checked.
#pragma once

#include "core/types.cuh"
#include "emulator/emulator.h"
#include "ptx/memory.cuh"

namespace girih::ptx {

constexpr u64 kSwizzle128 = u64{1} << 62;
inline u64 rows_along_mn(SharedPointer tile) {
  return kSwizzle128 | u64{1024 >> 4} << 32 | u64{1} << 16 | (shared_word(tile) & 0x3ffffU) >> 4;
}
inline u64 rows_along_k(SharedPointer tile, int tile_bytes) {
  return kSwizzle128 | u64{1024 >> 4} << 32 | static_cast<u64>(tile_bytes >> 4) << 16 | (shared_word(tile) & 0x3ffffU) >> 4;
}

inline void wgmma_fence() {}
inline void wgmma_commit(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::commit_products({"wgmma_commit", file, line});
}
template <int kPending>
inline void wgmma_wait(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::wait_products(kPending, {"wgmma_wait", file, line});
}

template <typename T>
constexpr emulator::MmaType kGroupType = kSame<T, f16> ? emulator::MmaType::f16 : emulator::MmaType::bf16;
template <typename T, int kTiles>
inline void wgmma_shared(float (&c)[kTiles][4], u64 a, u64 b, bool accumulate, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  emulator::issue_product({&c[0][0], nullptr, a, b, accumulate}, kTiles, kGroupType<T>, {"wgmma_shared", file, line});
}
template <typename T, int kTiles>
inline void wgmma_registers(float (&c)[kTiles][4], const u32 (&a)[4], u64 b, bool accumulate, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  emulator::issue_product({&c[0][0], &a[0], 0, b, accumulate}, kTiles, kGroupType<T>, {"wgmma_registers", file, line});
}

}  // namespace girih::ptx
