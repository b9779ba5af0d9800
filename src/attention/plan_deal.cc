// Before the cut of a list on CUDA: tiles of one KV head read the same keys, and blocks that work on neighbouring tiles at a time find them
// in L2. So most of the line is dealt out tile by tile, each to the unit that is free first, in place of a stretch of the line for each
// unit, with which all heads of all requests are under way at once. What is left, about a tile for each unit, is cut as any line, and evens
// out what dealing has not.
#include <algorithm>

#include "attention/planner.h"

namespace girih::attention {
namespace {

using abi::LineSpot;
using abi::LineStrip;
using abi::LineTile;

constexpr int kUnitBits = 12;                              // of a unit's number; with more units nothing is dealt
constexpr std::int64_t kMostHeld = std::int64_t{1} << 50;  // so that a cost and a number fit 63 bits

/// Units by what they hold: a tree of minima over what they hold and, in the low bits, their numbers.
class Units {
 public:
  Units(std::vector<std::int64_t>& tree, std::int32_t units) : tree_(tree), units_(static_cast<std::size_t>(units)) {
    tree_.resize(2 * units_);
    for (std::size_t i = 2 * units_ - 1; i > 0; --i)
      tree_[i] = i >= units_ ? static_cast<std::int64_t>(i - units_) : std::min(tree_[2 * i], tree_[2 * i + 1]);
  }
  /// The first of those that hold least.
  std::int32_t least() const { return static_cast<std::int32_t>(tree_[1] & ((1 << kUnitBits) - 1)); }
  std::int64_t least_held() const { return tree_[1] >> kUnitBits; }
  std::int64_t held(std::int32_t unit) const { return tree_[units_ + static_cast<std::size_t>(unit)] >> kUnitBits; }
  void add_to_least(std::int64_t cost) {
    std::int64_t low = tree_[1] + (cost << kUnitBits);
    std::size_t i = units_ + static_cast<std::size_t>(least());
    tree_[i] = low;
    for (; i > 1; i /= 2) {
      low = std::min(low, tree_[i ^ 1]);
      tree_[i / 2] = low;
    }
  }

 private:
  std::vector<std::int64_t>& tree_;
  std::size_t units_;
};

/// Walks the line's tiles with the unit of each, as dealt.
template <typename Visit>
void for_each_dealt(const Planner& p, const abi::Line& line, Visit&& visit) {
  auto unit = p.dealt_to.begin();
  for (std::int32_t s = 0; unit != p.dealt_to.end(); ++s) {
    const LineStrip& strip = line.strips[s];
    for (std::int32_t copy = 0; copy < strip.copies; ++copy) {
      for (std::int32_t t = strip.tile_begin; t < strip.tile_end; ++t) {
        if (unit == p.dealt_to.end()) return;
        visit(line.tiles[t], static_cast<std::uint16_t>(strip.head_begin + copy), *unit++);
      }
    }
  }
}

}  // namespace

bool deal_tiles(Planner& p, std::int64_t total_cost, std::int32_t units, abi::Line& line) {
  p.dealt_to.clear();
  const std::int64_t fair = total_cost / units;
  if (units >> kUnitBits != 0 || fair > kMostHeld) return false;
  Units free(p.dealt_units, units);
  LineSpot at = line.begin;
  const auto deal_strip = [&](const LineStrip& strip) {
    if (strip.shared != 0) return false;
    for (std::int32_t copy = 0; copy < strip.copies; ++copy) {
      for (std::int32_t t = strip.tile_begin; t < strip.tile_end; ++t) {
        const std::int64_t cost = line.tiles[t].cost;
        // Half a tile or more is left for each unit: less would be cut into many small parts.
        if (free.least_held() + cost + cost / 2 > fair) {
          at = {at.strip, copy, t, line.tiles[t].item_begin, 0};
          return false;
        }
        p.dealt_to.push_back(free.least());
        free.add_to_least(cost);
      }
    }
    return true;
  };
  while (at.strip < line.num_strips && deal_strip(line.strips[at.strip])) at = abi::strip_start(line, at.strip + 1);
  if (p.dealt_to.empty()) return false;
  line.begin = at;
  p.held.assign(p.unit_costs.size(), 0);  // units beyond have none
  for (std::int32_t u = 0; u < units; ++u) p.held[static_cast<std::size_t>(u)] = free.held(u);
  line.held = p.held.data();
  return true;
}

abi::WorkItem* write_dealt(Planner& p, const abi::Line& line, std::int32_t* unit_begin, abi::WorkItem* out) {
  const std::size_t units = p.rest_begin.size() - 1;
  p.dealt_next.assign(units, 0);
  for_each_dealt(p, line, [&](const LineTile& tile, std::uint16_t, std::int32_t unit) {
    p.dealt_next[static_cast<std::size_t>(unit)] += tile.item_end - tile.item_begin;
  });
  std::int32_t next = unit_begin[0];
  for (std::size_t u = 0; u < units; ++u) {
    const std::int32_t dealt = p.dealt_next[u];
    const std::int32_t rest = p.rest_begin[u + 1] - p.rest_begin[u];
    p.dealt_next[u] = next;
    std::copy_n(p.rest_items.begin() + p.rest_begin[u], rest, out + next + dealt);
    next += dealt + rest;
    unit_begin[u + 1] = next;
  }
  for_each_dealt(p, line, [&](const LineTile& tile, std::uint16_t head, std::int32_t unit) {
    std::int32_t& to = p.dealt_next[static_cast<std::size_t>(unit)];
    for (std::int32_t i = tile.item_begin; i < tile.item_end; ++i, ++to) {
      out[to] = line.items[i];
      out[to].kv_head = head;
    }
  });
  return out + next;
}

}  // namespace girih::attention
