// Where a row's order is cut: the first entries whose count, or whose mass, reaches what is needed. Found by histograms over the bits of
// keys, most significant first, so that nothing is sorted and the work is bounded.
#pragma once

#include <cstdint>
#include <vector>

namespace girih::sampling {

/// What is kept: keys above `key`, and the first `ties` entries with that key.
struct Cut {
  std::uint32_t key = 0;
  std::int64_t ties = 0;
  std::uint64_t amount = 0;  ///< count or mass of what is kept
};

struct CutScratch {
  std::vector<std::uint64_t> histogram;
  std::vector<std::int32_t> inside;
};

/// The shortest prefix of the order whose amount is >= `need` (>= 1). Amounts are `masses`, or 1 each where that is null; entries with one
/// key have one mass. All entries must amount to that much.
Cut cut_row(const std::uint32_t* keys, const std::uint64_t* masses, std::int64_t n, std::uint64_t need, CutScratch& scratch);

}  // namespace girih::sampling
