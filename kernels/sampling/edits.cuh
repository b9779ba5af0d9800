// Bias and penalties of a row, as they are patched into a tile of f32 that passes by.
#pragma once

#include "abi/sampling_params.h"
#include "core/math.cuh"
#include "sampling/block.cuh"

namespace girih::sampling {

/// Row r's tokens with their values, as a kernel may use them whatever the memory holds.
struct List {
  const i32* tokens;
  const void* values;
  int count;

  __device__ __forceinline__ void open(const abi::ListArg& arg, i64 row) {
    count = 0;
    if (arg.indptr.rows == nullptr) return;
    const i64 begin = min(max(arg.indptr.at(row), i64{0}), arg.n);
    const i64 end = min(max(arg.indptr.at(row + 1), begin), arg.n);
    tokens = arg.tokens + begin;
    count = static_cast<int>(min(end - begin, static_cast<i64>(abi::kMaxVocab)));
    values = arg.values == nullptr ? nullptr : static_cast<const u8*>(arg.values) + begin * 4;
  }
  /// Calls f(place in the tile, number in the list) for this thread's share of the tokens in [first, first + length).
  template <typename F>
  __device__ __forceinline__ void for_each_in(int first, int length, F f) const {
#pragma unroll 1
    for (int at = ptx::thread_idx(); at < count; at += kThreads) {
      const i32 token = tokens[at];
      if (token >= max(first, 0) && token < first + length) f(token - first, at);
    }
  }
};

/// In shared memory.
struct Edits {
  List bias;
  List history;
  float repetition;
  float frequency;
  float presence;

  __device__ __forceinline__ void open(const abi::SampleParams& p, i64 r) {
    bias.open(p.bias, r);
    history.open(p.history, r);
    repetition = p.repetition.at(r);
    frequency = p.frequency.at(r);
    presence = p.presence.at(r);
  }
};

/// A logit of a token that has come `count` times. NaN becomes `nothing`.
__device__ __forceinline__ float penalised(float x, i32 count, float repetition, float frequency, float presence, float nothing) {
  x = x > 0.0F ? x / repetition : x * repetition;
  if (count > 0) x = ptx::fma(-frequency, static_cast<float>(count), x) - presence;
  return ptx::max_number(x, nothing);
}

/// s_tile: `length` entries from number `first` of the row on. NaN becomes `nothing`. The tile is the block's after the next barrier.
__device__ __attribute__((noinline)) inline void patch(const Edits& edits, float* s_tile, int first, int length, float nothing) {
  edits.bias.for_each_in(first, length, [&](int place, int i) {
    s_tile[place] = ptx::max_number(s_tile[place] + static_cast<const float*>(edits.bias.values)[i], nothing);
  });
  if (edits.bias.count > 0) ptx::sync_block();
  edits.history.for_each_in(first, length, [&](int place, int i) {
    const i32 count = edits.history.values == nullptr ? 1 : static_cast<const i32*>(edits.history.values)[i];
    s_tile[place] = penalised(s_tile[place], count, edits.repetition, edits.frequency, edits.presence, nothing);
  });
}

}  // namespace girih::sampling
