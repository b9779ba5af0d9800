// Minimum and maximum of an array over index ranges: the plan-time arrays of a mask. A segment tree over blocks of 16 elements; O(n) to
// build into memory that is kept, O(log n) to ask.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace girih::variant {

/// T: std::int32_t, std::int64_t or float (NaNs are noted and left out of the hull).
template <typename T>
class RangeTree {
 public:
  struct Hull {
    T lo = std::numeric_limits<T>::max();
    T hi = std::numeric_limits<T>::lowest();
    bool nan = false;
  };

  void build(const T* data, std::int64_t size) {
    const std::int64_t blocks = (size + kBlock - 1) / kBlock;
    leaves_ = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(blocks, 1))));
    nodes_.assign(static_cast<std::size_t>(2 * leaves_), Hull{});
    for (std::int64_t b = 0; b < blocks; ++b) {
      scan(data, b * kBlock, std::min(size, (b + 1) * kBlock) - 1, nodes_[static_cast<std::size_t>(leaves_ + b)]);
    }
    for (std::int64_t i = leaves_ - 1; i > 0; --i) {
      join(nodes_[static_cast<std::size_t>(i)], nodes_[static_cast<std::size_t>(2 * i)]);
      join(nodes_[static_cast<std::size_t>(i)], nodes_[static_cast<std::size_t>(2 * i + 1)]);
    }
  }

  /// Joins [first, last], both inside the array given to build(), to `hull`.
  void join_range(const T* data, std::int64_t first, std::int64_t last, Hull& hull) const {
    // Whole blocks are nodes; what lies before and behind them is read.
    const std::int64_t first_block = (first + kBlock - 1) / kBlock;
    const std::int64_t end_block = (last + 1) / kBlock;
    if (first_block >= end_block) return scan(data, first, last, hull);
    if (first < first_block * kBlock) scan(data, first, first_block * kBlock - 1, hull);
    if (end_block * kBlock <= last) scan(data, end_block * kBlock, last, hull);
    std::uint64_t l = static_cast<std::uint64_t>(leaves_ + first_block);
    std::uint64_t r = static_cast<std::uint64_t>(leaves_ + end_block);
    for (; l < r; l /= 2, r /= 2) {
      if (l % 2 == 1) join(hull, nodes_[l++]);
      if (r % 2 == 1) join(hull, nodes_[--r]);
    }
  }

 private:
  static constexpr std::int64_t kBlock = 16;

  static void join(Hull& a, const Hull& b) {
    a.lo = std::min(a.lo, b.lo);
    a.hi = std::max(a.hi, b.hi);
    a.nan = a.nan || b.nan;
  }

  static void scan(const T* data, std::int64_t first, std::int64_t last, Hull& hull) {
    T lo = hull.lo;
    T hi = hull.hi;
    bool nan = hull.nan;
    for (std::int64_t i = first; i <= last; ++i) {
      const T value = data[i];
      lo = value < lo ? value : lo;
      hi = value > hi ? value : hi;
      nan = nan || value != value;
    }
    hull = {lo, hi, nan};
  }

  std::int64_t leaves_ = 0;
  std::vector<Hull> nodes_;  // heap order: children of i are 2i and 2i + 1
};

}  // namespace girih::variant
