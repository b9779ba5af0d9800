// The last step of make_plan() for lines whose tiles are one item each, none of them shared: nearly all batches. First the units' ends
// inside of tiles are numbered, then every tile is written whole, with room left for what its cuts add, last the parts: no step depends on
// where a unit ends, which is not to be predicted. The bytes are those that the Emitter (plan_emit.cc) would write.
#include "attention/planner.h"
#include "base/error.h"

namespace girih::attention {
namespace {

using abi::LineSpot;
using abi::LineStrip;
using abi::LineTile;
using abi::WorkItem;

std::int64_t instance_of(const abi::Line& line, const LineSpot& at) {
  const LineStrip& strip = line.strips[at.strip];
  return strip.instance_begin + std::int64_t{at.copy} * (strip.tile_end - strip.tile_begin) + (at.tile - strip.tile_begin);
}

/// Fills planner.cuts, tile_cuts and where the items of units [begin, end) begin; returns the number of cuts.
std::int32_t number_cuts(Planner& p, const abi::Line& line, int begin, int end) {
  p.tile_cuts.assign(static_cast<std::size_t>(p.num_instances) + 1, 0);
  p.cuts.resize(static_cast<std::size_t>(end - begin));
  const LineSpot* const ends = p.unit_ends.data();
  const std::int64_t* const costs = p.unit_costs.data();
  std::int32_t* const unit_begin = p.unit_begin.data();
  std::int32_t* const tile_cuts = p.tile_cuts.data();
  TileCut* next = p.cuts.data();
  for (int u = begin; u < end; ++u) {
    const LineSpot at = ends[u];
    const std::int64_t instance = at.strip == line.num_strips ? p.num_instances : instance_of(line, at);
    const bool is_cut = at.steps_taken > 0 && costs[u] > 0;  // a unit that takes nothing stops where the one before did
    *next = {instance, at.tile, at.strip, at.copy, at.steps_taken};
    next += is_cut ? 1 : 0;
    tile_cuts[instance] += is_cut ? 1 : 0;
    unit_begin[u + 1] = static_cast<std::int32_t>(instance + (next - p.cuts.data()));
  }
  return static_cast<std::int32_t>(next - p.cuts.data());
}

/// Writes all tiles whole, each followed by a gap for every cut of it; returns the end.
WorkItem* write_whole(const Planner& p, const abi::Line& line, WorkItem* next) {
  const std::int32_t* cuts = p.tile_cuts.data();
  for (std::int32_t s = 0; s < line.num_strips; ++s) {
    const LineStrip strip = line.strips[s];
    const WorkItem* const items = line.items + line.tiles[strip.tile_begin].item_begin;
    const std::int32_t tiles = strip.tile_end - strip.tile_begin;
    for (std::int32_t c = 0; c < strip.copies; ++c) {
      for (std::int32_t t = 0; t < tiles; ++t) {
        *next = items[t];
        next->kv_head = static_cast<std::uint16_t>(strip.head_begin + c);
        next += 1 + *cuts++;
      }
    }
  }
  return next;
}

/// The parts of tiles that are cut, over what write_whole() left there, and their merges. Each cut writes what is before it and all that
/// is behind it; a further cut of the tile, its merge too, is then written over the latter.
void write_parts(Planner& p, const abi::Line& line, std::span<const TileCut> cuts, WorkItem* out) {
  p.merges.resize(cuts.size());
  p.merge_parts.resize(2 * cuts.size());
  abi::MergeItem* const merges = p.merges.data();
  abi::MergePart* const parts = p.merge_parts.data();
  std::int32_t num_merges = 0;
  std::int32_t num_parts = 0;
  std::int32_t part_begin = 0;  // of the tile at work
  std::int32_t taken = 0;       // of the tile at work
  std::int64_t row = 0;
  for (std::size_t j = 0; j < cuts.size(); ++j) {
    const TileCut& cut = cuts[j];
    const LineTile& tile = line.tiles[cut.tile];
    const WorkItem& item = line.items[tile.item_begin];
    const std::int32_t rows = item.row_count;
    const auto head = static_cast<std::uint16_t>(line.strips[cut.strip].head_begin + cut.copy);
    WorkItem* const to = out + cut.instance + j;
    const auto part_row = static_cast<std::int32_t>(row);
    const std::int32_t border = item.kv_begin + cut.steps * tile.kv_block;
    take_keys(item, item.kv_begin + taken * tile.kv_block, border, to[0]);
    to[0].cost = held_cost(tile.cost_piece + (cut.steps - taken) * tile.cost_step);
    to[0].part_row = part_row;
    to[0].merge_begin = num_merges;
    to[0].merge_count = 1;
    to[1] = item;
    take_keys(item, border, item.kv_end, to[1]);
    to[1].cost = held_cost(tile.cost - cut.steps * tile.cost_step);
    to[1].kv_head = head;
    to[1].part_row = part_row + rows;
    to[1].merge_begin = num_merges;
    to[1].merge_count = 1;
    parts[num_parts] = {part_row};
    parts[num_parts + 1] = {part_row + rows};
    merges[num_merges] = {.row_begin = item.row_begin,
                          .row_count = rows,
                          .part_begin = part_begin,
                          .part_count = num_parts + 2 - part_begin,
                          .kv_head = head,
                          .reserved = 0};
    const bool is_last = j + 1 == cuts.size() || cuts[j + 1].instance != cut.instance;
    num_merges += is_last ? 1 : 0;
    num_parts += is_last ? 2 : 1;
    row += is_last ? 2 * rows : rows;
    part_begin = is_last ? num_parts : part_begin;
    taken = is_last ? 0 : cut.steps;
  }
  check_part_rows(row);
  p.part_rows = row;
  p.merges.resize(static_cast<std::size_t>(num_merges));
  p.merge_parts.resize(static_cast<std::size_t>(num_parts));
}

}  // namespace

void check_part_rows(std::int64_t part_rows) {
  if (part_rows > kMaxIndex)
    fail(Code::invalid_argument, kPlanOp, "the batch needs more than 2^31 rows of partial results; plan fewer rows at a time");
}

std::int64_t write_single_items(Planner& p, const abi::Line& line, int begin, int end, WorkItem* out) {
  const std::int32_t num_cuts = number_cuts(p, line, begin, end);
  const WorkItem* const stop = write_whole(p, line, out);
  write_parts(p, line, {p.cuts.data(), static_cast<std::size_t>(num_cuts)}, out);
  return stop - out;
}

}  // namespace girih::attention
