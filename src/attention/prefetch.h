// Software prefetch for the small tiles. Keys and values lie behind a page table, which hardware prefetchers do not follow. A run is what
// one token holds of all heads that are served together; runs are asked for in address order, a few KiB ahead of the work: K of a block,
// then V of the block, then K of the next. What bounds a core otherwise is the address translation: with 4 KiB pages of the system every
// second run or so is a page walk, so one line of each page is touched a whole phase ahead (8 heads of 128 bf16: 63 to 84 % of a
// sequential read's bandwidth, 32 heads: 79 to over 100 %; one head at a time: 39 to 55 %).
#pragma once

#include <cstddef>
#include <cstdint>

namespace girih::attention {

struct Ahead {
  static constexpr int kDistance = 8 << 10;  // bytes ahead: with what is at work they fit L1
  static constexpr int kSystemPage = 4096;
  static constexpr int kLocality = 3;  // into L1: into L2 is a tenth slower

  const std::byte* const* runs = nullptr;  // of the phase at work
  int num_runs = 0;
  const std::byte* const* then = nullptr;  // of the phase after it
  int num_then = 0;
  int run_bytes = 0;
  int then_bytes = 0;
  int run = 0;  // the next to ask for, counted through both phases
  int at = 0;   // bytes of it that are asked for
  std::uintptr_t page = 0;

  /// What lies within the distance of the phase's begin was asked for in the phase before.
  void start(int keys_at_once) {
    at = 0;
    run = num_runs == 0 ? 0 : kDistance / run_bytes;
    if (run < keys_at_once) run = keys_at_once;
    if (run > num_runs) run = num_runs;
  }

  /// Asks for the next `bytes` bytes.
  __attribute__((always_inline)) void step(int bytes) {
    while (bytes > 0 && run < num_runs + num_then) {
      const bool now = run < num_runs;
      const int left = (now ? run_bytes : then_bytes) - at;
      const int n = left < bytes ? left : bytes;
      const std::byte* p = (now ? runs[run] : then[run - num_runs]) + at;
      int i = 0;
      for (; i + 256 <= n; i += 256) {
        __builtin_prefetch(p + i, 0, kLocality);
        __builtin_prefetch(p + i + 64, 0, kLocality);
        __builtin_prefetch(p + i + 128, 0, kLocality);
        __builtin_prefetch(p + i + 192, 0, kLocality);
      }
      for (; i < n; i += 64) __builtin_prefetch(p + i, 0, kLocality);
      bytes -= n;
      at += n;
      if (n == left) {
        at = 0;
        ++run;
      }
    }
  }

  /// Touches the system's pages of runs [begin, end) of the phase to come.
  __attribute__((always_inline)) void touch_pages(int begin, int end) {
    if (end > num_then) end = num_then;
    for (int i = begin; i < end; ++i) {
      const std::byte* p = then[i];
      for (int b = 0; b < then_bytes; b += kSystemPage) {
        const std::uintptr_t now = reinterpret_cast<std::uintptr_t>(p + b) / kSystemPage;
        if (now != page) __builtin_prefetch(p + b, 0, 2);
        page = now;
      }
    }
  }
};

}  // namespace girih::attention
