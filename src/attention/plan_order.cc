// Third step of make_plan() for kernels whose tiles of one group want the same keys at the same time (MLA: one KV head, so many rows that a
// group is several tiles): the order of the line, where it is not that of the rows.
#include <algorithm>

#include "attention/planner.h"

namespace girih::attention {

/// A unit takes a stretch of the line, so tiles that follow each other are read one after the other, long after the cache has lost the keys
/// that both want. Half the line apart, they are in the same place of two units.
void spread_rows(Planner& p, const ScheduleState& schedule) {
  constexpr std::int32_t kMostTiles = 16;  // of a group: more are those of a prompt, which fill several units by themselves
  const auto num_tiles = [&](const abi::LineStrip& strip) {
    const abi::LineTile& tile = p.tiles[static_cast<std::size_t>(strip.tile_begin)];
    const std::int32_t tiles = strip.tile_end - strip.tile_begin;
    const bool apart = schedule.tune.classes[p.items[static_cast<std::size_t>(tile.item_begin)].tile_class].rows_apart;
    return apart && tiles <= kMostTiles ? tiles : 1;
  };
  if (!schedule.tune.classes[kSmall].rows_apart && !schedule.tune.classes[kLarge].rows_apart) return;
  std::int32_t most = 1;
  for (const abi::LineStrip& strip : p.strips) most = std::max(most, num_tiles(strip));
  if (most == 1) return;
  p.spread_strips.clear();
  std::int64_t instances = 0;
  for (std::int32_t i = 0; i < most; ++i) {
    for (const abi::LineStrip& strip : p.strips) {
      const std::int32_t tiles = num_tiles(strip);
      if (i >= tiles) continue;
      abi::LineStrip& to = p.spread_strips.emplace_back(strip);
      if (tiles > 1) {
        to.tile_begin += i;
        to.tile_end = to.tile_begin + 1;
        abi::LineTile& tile = p.tiles[static_cast<std::size_t>(to.tile_begin)];
        to.cost = tile.cost;
        tile.cost_before = 0;
      }
      to.instance_begin = instances;
      instances += std::int64_t{to.copies} * (to.tile_end - to.tile_begin);
    }
  }
  p.strips.swap(p.spread_strips);
}

}  // namespace girih::attention
