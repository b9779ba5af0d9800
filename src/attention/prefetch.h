// Software prefetch of the block of keys that comes next. Hardware prefetchers do not follow page tables, and with the NHD layout one
// head's rows are far apart; asked for in address order, a row's worth per key that is worked on, lines also train the L2 streamer.
// Measured on one core (GB/s, 8 heads of 128 bf16): one head at a time 26, several heads and lines in address order 33, no prefetch 15.
#pragma once

#include <cstddef>

namespace girih::attention {

struct Ahead {
  const std::byte* const* rows = nullptr;
  int num_rows = 0;
  int begin = 0;  // bytes [begin, end) of each row are asked for
  int end = 0;
  int row = 0;
  int at = 0;

  /// The next `bytes` bytes; end - begin must be a multiple of it (or at most it).
  __attribute__((always_inline)) void step(int bytes) {
    if (row >= num_rows) return;
    const std::byte* p = rows[row] + at;
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
    at += bytes;
    if (at >= end) {
      at = begin;
      ++row;
    }
  }
};

}  // namespace girih::attention
