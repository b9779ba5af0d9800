// See cut.h.
#include "sampling/cut.h"

#include <algorithm>

namespace girih::sampling {
namespace {

constexpr int kShifts[] = {21, 10, 0};
constexpr std::uint32_t kBins = 2048;

}  // namespace

Cut cut_row(const std::uint32_t* keys, const std::uint64_t* masses, std::int64_t n, std::uint64_t need, CutScratch& scratch) {
  const auto amount_of = [masses](std::int64_t i) { return masses == nullptr ? std::uint64_t{1} : masses[i]; };
  std::vector<std::uint64_t>& histogram = scratch.histogram;
  std::vector<std::int32_t>& inside = scratch.inside;
  std::uint64_t above = 0;
  std::uint32_t prefix = 0;
  for (int level = 0; level < 3; ++level) {
    const int shift = kShifts[level];
    const std::uint32_t mask = level == 0 ? kBins - 1 : (1U << (kShifts[level - 1] - shift)) - 1;
    histogram.assign(kBins, 0);
    if (level == 0) {
      for (std::int64_t i = 0; i < n; ++i) histogram[keys[i] >> shift] += amount_of(i);
    } else if (level == 1) {
      inside.clear();
      for (std::int64_t i = 0; i < n; ++i) {
        if (keys[i] >> kShifts[0] != prefix) continue;
        inside.push_back(static_cast<std::int32_t>(i));
        histogram[(keys[i] >> shift) & mask] += amount_of(i);
      }
    } else {
      std::erase_if(inside, [&](std::int32_t i) { return keys[i] >> kShifts[1] != prefix; });
      for (const std::int32_t i : inside) histogram[keys[i] & mask] += amount_of(i);
    }
    std::uint32_t bin = kBins - 1;
    while (bin > 0 && above + histogram[bin] < need) above += histogram[bin--];
    prefix = level == 0 ? bin : prefix << (kShifts[level - 1] - shift) | bin;
  }
  const auto tie = std::find_if(inside.begin(), inside.end(), [&](std::int32_t i) { return keys[i] == prefix; });
  const std::uint64_t mass = tie == inside.end() ? 0 : amount_of(*tie);
  Cut cut{.key = prefix, .ties = 0, .amount = above};
  if (mass > 0) {
    cut.ties = static_cast<std::int64_t>((need - above + mass - 1) / mass);
    cut.amount = above + static_cast<std::uint64_t>(cut.ties) * mass;
  }
  return cut;
}

}  // namespace girih::sampling
