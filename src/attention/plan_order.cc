// Third step of make_plan() for kernels whose blocks work side by side on the same keys (MLA: one KV head, so many rows that a group is
// several tiles): the line becomes one for each member of the gang, tile by tile alike, so that equal cuts keep them in step. Blocks of a
// gang are neighbours, whose requests for the same lines meet on the way to L2.
#include <algorithm>

#include "attention/planner.h"

namespace girih::attention {

void part_gangs(Planner& p, const ScheduleState& schedule) {
  constexpr std::int32_t kMostTiles = 16;  // of a group: more are those of a prompt
  if (p.strips.empty()) return;
  const auto first_item = [&](const abi::LineStrip& strip) -> const abi::WorkItem& {
    return p.items[static_cast<std::size_t>(p.tiles[static_cast<std::size_t>(strip.tile_begin)].item_begin)];
  };
  const int tile_class = first_item(p.strips[0]).tile_class;
  const int gang = schedule.tune.classes[tile_class].gang;
  if (gang == 1 || class_units(schedule, list_of(schedule, tile_class)) % gang != 0) return;
  std::int32_t most = 0;
  for (const abi::LineStrip& strip : p.strips) {
    const std::int32_t tiles = strip.tile_end - strip.tile_begin;
    if (first_item(strip).tile_class != tile_class || tiles % gang != 0 || tiles > kMostTiles) return;
    most = std::max(most, tiles);
  }
  p.gang_strips.clear();
  std::int64_t instances = 0;
  for (int member = 0; member < gang; ++member) {
    for (std::int32_t i = member; i < most; i += gang) {
      for (const abi::LineStrip& strip : p.strips) {
        if (i >= strip.tile_end - strip.tile_begin) continue;
        abi::LineStrip& to = p.gang_strips.emplace_back(strip);
        to.tile_begin += i;
        to.tile_end = to.tile_begin + 1;
        abi::LineTile& tile = p.tiles[static_cast<std::size_t>(to.tile_begin)];
        to.cost = tile.cost;
        tile.cost_before = 0;
        to.instance_begin = instances;
        instances += to.copies;
      }
    }
  }
  p.strips.swap(p.gang_strips);
  p.gang = gang;
}

}  // namespace girih::attention
