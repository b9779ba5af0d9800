// Twin of kernels/ptx/mbarrier.cuh. Copies that a barrier waits for land when a thread waits at it and not before.
#pragma once

#include "core/types.cuh"
#include "emulator/emulator.h"

namespace girih::ptx {

inline void mbarrier_init(u64* s_barrier, u32 arrivals, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::init_mbarrier(s_barrier, static_cast<int>(arrivals), {"mbarrier_init", file, line});
}
inline void mbarrier_arrive(u64* s_barrier, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::arrive_at_mbarrier(s_barrier, {"mbarrier_arrive", file, line});
}
inline void mbarrier_arrive_after_copies(u64* s_barrier, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::arrive_after_copies(s_barrier, {"mbarrier_arrive_after_copies", file, line});
}
inline void mbarrier_arrive_many(u64* s_barrier, u32 count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  for (u32 i = 0; i < count; ++i) emulator::arrive_at_mbarrier(s_barrier, {"mbarrier_arrive_many", file, line});
}
inline void mbarrier_arrive_expect(u64* s_barrier, u32 bytes, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::arrive_and_expect(s_barrier, bytes, {"mbarrier_arrive_expect", file, line});
}
inline void mbarrier_fence_init() {}
inline void mbarrier_wait(u64* s_barrier, u32 parity, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::wait_at_mbarrier(s_barrier, parity, {"mbarrier_wait", file, line});
}

}  // namespace girih::ptx
