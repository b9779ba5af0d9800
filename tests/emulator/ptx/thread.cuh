// Twin of kernels/ptx/thread.cuh on fibers.
#pragma once

#include "core/types.cuh"
#include "emulator/emulator.h"

namespace girih::ptx {

constexpr int kWarp = 32;
constexpr u32 kAllLanes = 0xffffffffU;

inline int thread_idx() { return emulator::current().thread_idx; }
inline int block_idx() { return emulator::current().block->block_idx; }
inline int num_threads() { return emulator::current().block->num_threads; }
inline int num_blocks() { return emulator::current().block->num_blocks; }
inline int lane_idx() { return emulator::current().lane; }

inline void sync_block(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::join_barrier(0, num_threads(), {"sync_block", file, line});
}
inline void sync_named(int barrier, int threads, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const emulator::Site site{"sync_named", file, line};
  if (barrier == 0) emulator::misuse("barrier 0 is sync_block's", site);
  emulator::join_barrier(barrier, threads, site);
}
inline void arrive_named(int barrier, int threads, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const emulator::Site site{"arrive_named", file, line};
  if (barrier == 0) emulator::misuse("barrier 0 is sync_block's", site);
  emulator::pass_barrier(barrier, threads, site);
}
template <int kCount>
inline void lower_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24);
}
template <int kCount>
inline void raise_registers() {
  static_assert(kCount % 8 == 0 && kCount <= 256);
}
inline void sync_warp(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  char nothing = 0;
  emulator::warp_collective(nothing, {"sync_warp", file, line}, [](const auto&) {});
}

/// What one lane brings to a shuffle and takes from it.
template <typename T>
struct ShuffleOperand {
  T value;
  int source;
  T result;
};
template <typename T>
inline T shuffle_from(T value, int source, const emulator::Site& site) {
  ShuffleOperand<T> operand{value, source, value};
  emulator::warp_collective(operand, site, [](const auto& lanes) {
    for (ShuffleOperand<T>* lane : lanes) lane->result = lanes[static_cast<std::size_t>(lane->source)]->value;
  });
  return operand.result;
}
template <typename T>
inline T shuffle(T value, int lane, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return shuffle_from(value, lane & (kWarp - 1), {"shuffle", file, line});
}
template <typename T>
inline T shuffle_xor(T value, int mask, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const emulator::Site site{"shuffle_xor", file, line};
  if (mask < 0 || mask >= kWarp) emulator::misuse("mask " + std::to_string(mask) + " leaves the warp", site);
  return shuffle_from(value, lane_idx() ^ mask, site);
}

inline int warp_idx(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return shuffle_from(thread_idx() / kWarp, 0, {"warp_idx", file, line});
}

struct VoteOperand {
  bool value;
  u32 result;
};
inline u32 vote(bool value, const emulator::Site& site) {
  VoteOperand operand{value, 0};
  emulator::warp_collective(operand, site, [](const auto& lanes) {
    u32 mask = 0;
    for (int i = 0; i < kWarp; ++i) mask |= static_cast<u32>(lanes[static_cast<std::size_t>(i)]->value) << i;
    for (VoteOperand* lane : lanes) lane->result = mask;
  });
  return operand.result;
}
inline bool any(bool value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return vote(value, {"any", file, line}) != 0;
}
inline bool all(bool value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return vote(value, {"all", file, line}) == kAllLanes;
}
inline u32 ballot(bool value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return vote(value, {"ballot", file, line});
}
inline int popcount(u32 value) { return __builtin_popcount(value); }
inline int leading_zeros(u32 value) { return value == 0 ? 32 : __builtin_clz(value); }
inline u32 sum_warp(u32 value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::warp_collective(value, {"sum_warp", file, line}, [](const auto& lanes) {
    u32 sum = 0;
    for (const u32* lane : lanes) sum += *lane;
    for (u32* lane : lanes) *lane = sum;
  });
  return value;
}

inline u32 max_warp(u32 value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::warp_collective(value, {"max_warp", file, line}, [](const auto& lanes) {
    u32 most = 0;
    for (const u32* lane : lanes) most = max(most, *lane);
    for (u32* lane : lanes) *lane = most;
  });
  return value;
}

inline int cluster_size() { return emulator::current().block->cluster_size; }
inline int cluster_rank() { return emulator::current().block->cluster_rank; }
inline void sync_cluster(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::join_cluster({"sync_cluster", file, line});
}
template <typename T>
inline T* in_block(T* s_pointer, int rank, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return static_cast<T*>(emulator::in_block(s_pointer, rank, {"in_block", file, line}));
}

inline u8* shared_memory() { return reinterpret_cast<u8*>(emulator::current().block->shared); }

}  // namespace girih::ptx
