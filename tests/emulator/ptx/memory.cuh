// Twin of kernels/ptx/memory.cuh. Asynchronous copies land in cp_async_wait and not before.
#pragma once

#include <atomic>

#include "core/types.cuh"
#include "emulator/emulator.h"

namespace girih::ptx {

inline u32 shared_address(const void* s_pointer) {
  return static_cast<u32>(static_cast<const std::byte*>(s_pointer) - emulator::current().block->shared);
}

struct SharedPointer {
  const u8* place;
  SharedPointer() = default;
  SharedPointer(const void* s_pointer) : place(static_cast<const u8*>(s_pointer)) {}
  SharedPointer operator+(int bytes) const { return place + bytes; }
  SharedPointer operator^(int bits) const { return emulator::current().block->shared + (shared_address(place) ^ static_cast<u32>(bits)); }
};
inline u32 shared_word(SharedPointer pointer) { return shared_address(pointer.place); }
inline SharedPointer opaque(SharedPointer pointer) { return pointer; }
inline int opaque(int value) { return value; }

inline Vec16 load_stream(const void* g_source, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::check_aligned(g_source, 16, {"load_stream", file, line});
  emulator::may_give_way();
  return *static_cast<const Vec16*>(g_source);
}

inline void prefetch_l2(const void*) {}
inline void prefetch_l1(const void*) {}

inline constexpr auto kCopy = emulator::kArch >= 800 ? emulator::issue_copy : emulator::copy_at_once;
inline void cp_async_16(void* s_destination, const void* g_source, bool valid, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
  kCopy(s_destination, g_source, 16, valid, {"cp_async_16", file, line});
}
inline void cp_async_16(SharedPointer destination, const void* g_source, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  kCopy(const_cast<u8*>(destination.place), g_source, 16, true, {"cp_async_16", file, line});
}
inline u64 l2_policy(bool leaves_first) { return leaves_first ? 1 : 0; }
inline void cp_async_16(void* s_destination, const void* g_source, bool valid, u64, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
  kCopy(s_destination, g_source, 16, valid, {"cp_async_16", file, line});
}
inline void cp_async_4(void* s_destination, const void* g_source, bool valid, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  kCopy(s_destination, g_source, 4, valid, {"cp_async_4", file, line});
}
inline void cp_async_commit() { emulator::commit_copies(); }
template <int kPending>
inline void cp_async_wait() {
  emulator::wait_copies(kPending);
}

inline int atomic_add(int* g_counter, int value) {
  emulator::may_give_way();
  const int old = std::atomic_ref<int>(*g_counter).fetch_add(value, std::memory_order_relaxed);
  emulator::may_give_way();
  return old;
}
inline int atomic_add_ordered(int* g_counter, int value) {
  emulator::may_give_way();
  const int old = std::atomic_ref<int>(*g_counter).fetch_add(value, std::memory_order_acq_rel);
  emulator::may_give_way();
  return old;
}
inline u32 atomic_add_shared(u32* s_counter, u32 value) {
  emulator::may_give_way();
  const u32 old = *s_counter;
  *s_counter = old + value;
  return old;
}
inline void atomic_max_shared(u32* s_most, u32 value) {
  emulator::may_give_way();
  *s_most = max(*s_most, value);
}

}  // namespace girih::ptx
