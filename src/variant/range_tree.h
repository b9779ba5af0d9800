// Minimum and maximum of an array over index ranges: the plan-time arrays of a mask. A segment tree over blocks of 32 elements; O(n) to
// build into memory that is kept, O(log n) to ask.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace girih::variant {

/// T: std::int64_t over i32 or i64 data, or float (NaNs are noted and left out of the hull).
template <typename T>
class RangeTree {
 public:
  struct Hull {
    T lo = std::numeric_limits<T>::max();
    T hi = std::numeric_limits<T>::lowest();
    bool nan = false;
  };

  template <typename Element>
  void build(const Element* data, std::int64_t size) {
    const std::int64_t blocks = (size + kBlock - 1) / kBlock;
    leaves_ = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(blocks, 1))));
    nodes_.assign(static_cast<std::size_t>(2 * leaves_), Hull{});
    for (std::int64_t b = 0; b < blocks; ++b) {
      nodes_[static_cast<std::size_t>(leaves_ + b)] = scan(data, b * kBlock, std::min(size, (b + 1) * kBlock) - 1);
    }
    for (std::int64_t i = leaves_ - 1; i > 0; --i) {
      Hull hull = nodes_[static_cast<std::size_t>(2 * i)];
      join(hull, nodes_[static_cast<std::size_t>(2 * i + 1)]);
      nodes_[static_cast<std::size_t>(i)] = hull;
    }
  }

  /// Over [first, last], both inside the array given to build().
  template <typename Element>
  Hull range(const Element* data, std::int64_t first, std::int64_t last) const {
    const std::int64_t first_block = first / kBlock;
    const std::int64_t last_block = last / kBlock;
    if (first_block == last_block) return scan(data, first, last);
    Hull hull = scan(data, first, (first_block + 1) * kBlock - 1);
    join(hull, scan(data, last_block * kBlock, last));
    std::int64_t l = leaves_ + first_block + 1;
    std::int64_t r = leaves_ + last_block;
    for (; l < r; l /= 2, r /= 2) {
      if (l % 2 == 1) join(hull, nodes_[static_cast<std::size_t>(l++)]);
      if (r % 2 == 1) join(hull, nodes_[static_cast<std::size_t>(--r)]);
    }
    return hull;
  }

 private:
  static constexpr std::int64_t kBlock = 32;

  static void join(Hull& a, const Hull& b) {
    a.lo = std::min(a.lo, b.lo);
    a.hi = std::max(a.hi, b.hi);
    a.nan = a.nan || b.nan;
  }

  template <typename Element>
  static Hull scan(const Element* data, std::int64_t first, std::int64_t last) {
    Hull hull;
    for (std::int64_t i = first; i <= last; ++i) {
      const T value = static_cast<T>(data[i]);
      hull.lo = value < hull.lo ? value : hull.lo;
      hull.hi = value > hull.hi ? value : hull.hi;
      hull.nan = hull.nan || value != value;
    }
    return hull;
  }

  std::int64_t leaves_ = 0;
  std::vector<Hull> nodes_;  // heap order: children of i are 2i and 2i + 1
};

}  // namespace girih::variant
