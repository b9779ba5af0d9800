// Last step of make_plan(): the line is cut for the units and every stretch is written out as items. Whole strips are copies of their
// first head's items; only the tiles at a unit's ends, and tiles that share rows with others, take the slow path that gives them parts.
// A tile's parts follow each other both in the list of items and in the workspace, which is what makes merges two integers a tile.
// Where classes are separate there is a line for each, cut for its own units, so that the cost of one never moves a border of the other;
// only whether there is any may (shares_of).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cuda_state.h"
#include "attention/planner.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

using abi::LineSpot;
using abi::LineStrip;
using abi::LineTile;
using abi::UnitShares;
using abi::WorkItem;

class Emitter {
 public:
  Emitter(Planner& planner, const abi::Line& line, WorkItem* out) : p_(planner), line_(line), out_(out), next_(out), at_(line.begin) {}

  std::int64_t written() const { return next_ - out_; }

  /// Writes what lies between the last unit's end and `end`.
  void write_unit(const LineSpot& end) {
    while (at_.strip < end.strip || (at_.strip == end.strip && at_.strip < line_.num_strips && before_in_strip(end))) {
      const LineStrip& strip = line_.strips[at_.strip];
      const bool ends_here = end.strip == at_.strip;
      if (strip.shared == 0 && at_.tile == strip.tile_begin && at_tile_start(line_, at_)) {
        const std::int32_t stop = ends_here ? end.copy : strip.copies;
        if (stop > at_.copy) {
          copy_heads(strip, at_.copy, stop);
          at_ = stop == strip.copies ? strip_start(line_, at_.strip + 1)
                                     : LineSpot{at_.strip, stop, strip.tile_begin, line_.tiles[strip.tile_begin].item_begin, 0};
          continue;
        }
      }
      write_in_copy(strip, ends_here && end.copy == at_.copy ? &end : nullptr);
    }
  }

 private:
  bool before_in_strip(const LineSpot& end) const {
    if (at_.copy != end.copy) return at_.copy < end.copy;
    if (at_.tile != end.tile) return at_.tile < end.tile;
    return at_.item != end.item ? at_.item < end.item : at_.steps_taken < end.steps_taken;
  }

  void copy_items(std::int32_t begin, std::int32_t end, std::uint16_t head) {
    const WorkItem* from = line_.items + begin;
    const std::int32_t n = end - begin;
    for (std::int32_t i = 0; i < n; ++i) {
      next_[i] = from[i];
      next_[i].kv_head = head;
    }
    next_ += n;
  }

  void copy_heads(const LineStrip& strip, std::int32_t from, std::int32_t to) {
    const std::int32_t begin = line_.tiles[strip.tile_begin].item_begin;
    const std::int32_t end = line_.tiles[strip.tile_end - 1].item_end;
    for (std::int32_t c = from; c < to; ++c) copy_items(begin, end, static_cast<std::uint16_t>(strip.head_begin + c));
  }

  /// Up to the end of the copy that at_ is in, or `end` within it.
  void write_in_copy(const LineStrip& strip, const LineSpot* end) {
    const std::int32_t whole_end = end != nullptr ? end->tile : strip.tile_end;
    while (at_.tile < whole_end) {
      const LineTile& tile = line_.tiles[at_.tile];
      const bool whole = at_tile_start(line_, at_);
      std::int32_t next = at_.tile + 1;
      if (whole && strip.shared == 0) {
        next = whole_end;
        copy_items(tile.item_begin, line_.tiles[next - 1].item_end, head());
      } else if (whole && tile.shared == 0) {
        copy_items(tile.item_begin, tile.item_end, head());
      } else {
        write_part(strip, tile, whole, LineSpot{0, 0, 0, tile.item_end, 0}, true);
      }
      const bool copy_done = next == strip.tile_end;
      move_to_tile(line_, at_, next);
      if (copy_done) return;
    }
    if (end != nullptr && (at_.item != end->item || at_.steps_taken != end->steps_taken)) {
      write_part(strip, line_.tiles[at_.tile], at_tile_start(line_, at_), *end, false);
      at_.item = end->item;
      at_.steps_taken = end->steps_taken;
    }
  }

  std::uint16_t head() const { return static_cast<std::uint16_t>(line_.strips[at_.strip].head_begin + at_.copy); }

  /// A stretch of one tile, from at_ to `end`, that is written as a part (batch_invariant: a part for each of its items).
  void write_part(const LineStrip& strip, const LineTile& tile, bool starts_tile, const LineSpot& end, bool ends_tile) {
    const std::int32_t rows = line_.items[tile.item_begin].row_count;
    const bool each = !line_.cut_items;
    const std::int64_t tiles = strip.tile_end - strip.tile_begin;
    const auto instance = static_cast<std::size_t>(strip.instance_begin + at_.copy * tiles + (at_.tile - strip.tile_begin));
    WorkItem* first = next_;
    if (starts_tile) {
      part_ = {};
      part_.part_row = static_cast<std::int32_t>(p_.part_rows);
      if (tile.shared != 0) {
        part_.merge_begin = p_.part_ranges[instance].merge_begin;
        part_.merge_count = p_.part_ranges[instance].merge_count;
      }
      tile_first_ = first;
    }
    std::int32_t taken = at_.steps_taken;
    for (std::int32_t i = at_.item; i < end.item || (i == end.item && end.steps_taken > 0); ++i) {
      const std::int32_t stop = i == end.item ? end.steps_taken : 0;
      *next_ = line_.items[i];
      next_->kv_head = head();
      cut_item(tile, line_.items[i], taken, stop, *next_);
      next_->part_row = take_rows(next_ == first || each, rows);
      next_->flags = static_cast<std::uint8_t>((next_->flags & WorkItem::kChunk) | (each ? WorkItem::kFirst | WorkItem::kLast : 0));
      ++next_;
      taken = 0;
    }
    first->flags |= WorkItem::kFirst;
    next_[-1].flags |= WorkItem::kLast;
    if (!ends_tile) return;
    if (tile.shared != 0) {
      p_.part_ranges[instance] = part_;
    } else {
      part_.merge_begin = static_cast<std::int32_t>(p_.merges.size());
      part_.merge_count = 1;
      add_merge(line_.items[tile.item_begin].row_begin, rows);
    }
    for (WorkItem* item = tile_first_; item != next_; ++item) {
      if ((item->flags & WorkItem::kLast) == 0) continue;
      item->merge_begin = part_.merge_begin;
      item->merge_count = part_.merge_count;
    }
  }

  /// The stretch of `item` from `taken` KV blocks to `stop` (0: its end).
  static void cut_item(const LineTile& tile, const WorkItem& item, std::int32_t taken, std::int32_t stop, WorkItem& to) {
    if (taken == 0 && stop == 0) return;
    take_keys(item, item.kv_begin + taken * tile.kv_block, stop > 0 ? item.kv_begin + stop * tile.kv_block : item.kv_end, to);
    const std::int64_t before_stop = stop > 0 ? tile.cost_piece + stop * tile.cost_step : item_cost(tile, item);
    to.cost = held_cost(before_stop - taken * tile.cost_step);
  }

  std::int32_t take_rows(bool new_part, std::int32_t rows) {
    if (new_part) {
      current_part_ = p_.part_rows;
      p_.part_rows += rows;
      check_part_rows(p_.part_rows);
      ++part_.count;
    }
    return static_cast<std::int32_t>(current_part_);
  }

  void add_merge(std::int32_t row_begin, std::int32_t rows) {
    p_.merges.push_back({.row_begin = row_begin,
                         .row_count = rows,
                         .part_begin = static_cast<std::int32_t>(p_.merge_parts.size()),
                         .part_count = part_.count,
                         .kv_head = head(),
                         .reserved = 0});
    for (std::int32_t i = 0; i < part_.count; ++i) p_.merge_parts.push_back({part_.part_row + i * rows});
  }

  Planner& p_;
  const abi::Line line_;
  WorkItem* const out_;
  WorkItem* next_;
  LineSpot at_;
  PartRange part_{};  // of the tile being written
  WorkItem* tile_first_ = nullptr;
  std::int64_t current_part_ = 0;
};

/// Where every tile of the batch is one item that may be cut, and alone on its rows, all in one list: so it is in nearly all batches.
bool has_single_items(const Planner& p, const ScheduleState& schedule) {
  const bool one_list = !schedule.separate_classes || p.total_cost[kSmall] == 0 || p.total_cost[kLarge] == 0;
  return one_list && !schedule.spec.batch_invariant && p.regions.empty() && !p.strips.empty() && p.tiles.size() == p.items.size();
}

/// The strips of one list. Where only one class occurs, or classes are not separate, that is all of them.
std::span<const LineStrip> strips_of(Planner& p, const ScheduleState& schedule, int list) {
  if (!schedule.separate_classes) return p.strips;
  const bool others = p.total_cost[1 - list] > 0;
  if (p.total_cost[list] == 0) return {};
  if (!others) return p.strips;
  std::vector<LineStrip>& out = p.list_strips[list];
  out.clear();
  for (const LineStrip& strip : p.strips) {
    if (p.items[static_cast<std::size_t>(p.tiles[static_cast<std::size_t>(strip.tile_begin)].item_begin)].tile_class == list)
      out.push_back(strip);
  }
  return out;
}

/// The units that a list's work is for, of those that it has: a tile cut for all of them would be so many parts that merging them, which is
/// one unit's, takes longer than they do. With n parts the two are tile / n and n times a part's cost, least where they are equal.
std::int32_t useful_units(const Planner& p, const abi::Line& line, const ScheduleState& schedule, int list, std::int32_t units) {
  const WorkItem& item = line.items[line.tiles[line.strips[0].tile_begin].item_begin];
  const std::int64_t part = schedule.tune.classes[item.tile_class].cost_part_row * item.row_count;
  if (part == 0 || !line.cut_items) return units;
  const auto least = static_cast<std::int64_t>(std::sqrt(static_cast<double>(p.max_tile_cost[list] * part)));
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(ceil_div(p.total_cost[list], std::max<std::int64_t>(least, 1)), 1, units));
}

/// Blocks of equal work do not end together: multiprocessors that share their way to memory with more others are slower, by a tenth on an
/// H200. So where work takes long enough to make up for more cuts, the last of it goes in short units to those that are free.
UnitShares shares_of(const Planner& p, const abi::Line& line, const ScheduleState& schedule, int list) {
  const std::int32_t units = class_units(schedule, list);
  const bool both = p.total_cost[kSmall] > 0 && p.total_cost[kLarge] > 0;
  // Where a multiprocessor has room for two blocks of large tiles or one beside a block of small ones, and both lists have work, half of
  // the large one's blocks have none, and make room.
  if (list == kLarge && both && schedule.cuda != nullptr && schedule.cuda->kernels.classes[list].shares_sms) {
    return {units, units / 2, units - units / 2, 0};
  }
  if (schedule.cuda == nullptr || schedule.cuda->kernels.classes[list].unit_turns == 1) {
    const std::int32_t used = std::max(useful_units(p, line, schedule, list, units) / p.gang, 1);
    return {units / p.gang, used, units / p.gang - used, 0};
  }
  constexpr std::int32_t kShare = 20;       // of 256
  constexpr std::int64_t kFewestSteps = 4;  // of such a unit, beside what its cut costs
  const std::int32_t blocks = class_blocks(schedule, list);
  const ClassTune& tune = schedule.tune.classes[list];
  const bool enough = p.total_cost[list] / blocks * kShare / 256 >= tune.cost_piece + kFewestSteps * tune.cost_block;
  return {units, blocks, 0, enough ? kShare : 0};
}

std::int64_t cost_of(const abi::Line& line) {
  std::int64_t cost = 0;
  for (std::int32_t s = 0; s < line.num_strips; ++s) cost += line.strips[s].cost * line.strips[s].copies;
  return cost;
}

/// Whether tiles of a list may read keys that others of it read, too: large ones may, as a KV head can have several. Gangs have lines of
/// their own for that, and short units at the end leave no equal shares to deal.
bool shares_keys(const Planner& p, const ScheduleState& schedule, int list, const UnitShares& shares) {
  return schedule.separate_classes && list == kLarge && p.gang == 1 && shares.share == 0;
}

/// Writes the items of a line for the units from `first_unit` on; begins[0] is where they begin, the rest is filled in. Returns their
/// number.
std::int64_t write_line(Planner& p, const abi::Line& line, int first_unit, std::span<std::int32_t> begins, WorkItem* out) {
  Emitter emitter(p, line, out);
  for (std::size_t u = 0; u + 1 < begins.size(); ++u) {
    emitter.write_unit(p.unit_ends[static_cast<std::size_t>(first_unit) + u]);
    begins[u + 1] = static_cast<std::int32_t>(begins[0] + emitter.written());
  }
  return emitter.written();
}

/// Fills unit_ends and unit_costs of a list's units. A gang's lines are alike where all rows cost the same, else only nearly.
void cut_line(Planner& p, const abi::Line& line, const UnitShares& shares, const ScheduleState& schedule, int list) {
  const int begin = class_unit_begin(schedule, list);
  const std::int32_t strips = line.num_strips / p.gang;
  for (int member = 0; member < p.gang; ++member) {
    const int first = begin + member * shares.num_units;
    LineSpot* const ends = p.unit_ends.data() + first;
    abi::Line own = line;
    own.strips += member * strips;
    own.num_strips = strips;
    if (member > 0) own.begin = strip_start(own, 0);
    partition(own, shares,
              {.total = p.gang == 1 ? p.total_cost[list] : cost_of(own),
               .max_piece = p.max_piece_cost[list],
               .min_step = p.min_step_cost[list],
               .num_tiles = p.num_tiles[list] / p.gang,
               .max_tile = p.max_tile_cost[list]},
              ends, p.unit_costs.data() + first);
    if (member == 0) continue;
    for (std::int32_t u = 0; u < shares.num_units; ++u) ends[u].strip += member * strips;
  }
  // A line's end is where the next one begins.
  for (int member = 1; member < p.gang; ++member) {
    for (std::int32_t u = 0; u < shares.num_units; ++u) {
      LineSpot& end = p.unit_ends[static_cast<std::size_t>(begin + (member - 1) * shares.num_units + u)];
      if (end.strip == member * strips) end = strip_start(line, member * strips);
    }
  }
}

}  // namespace

std::int64_t max_emitted_items(const Planner& planner, const ScheduleState& schedule) { return planner.num_items + schedule.num_units; }

std::int64_t emit_items(Planner& p, const ScheduleState& schedule, WorkItem* out) {
  const std::size_t units = static_cast<std::size_t>(schedule.num_units);
  p.unit_ends.resize(units);
  p.unit_costs.resize(units);
  p.unit_begin.resize(units + 1);
  p.unit_begin[0] = 0;
  p.part_rows = 0;
  const bool single_items = has_single_items(p, schedule);
  const auto clear_merges = [&p] {
    p.merges.clear();
    p.merge_parts.clear();
  };
  if (p.regions.empty() && !single_items) clear_merges();  // single items write over them, which is a thirtieth of a decode plan
  std::int64_t written = 0;
  for (int list = 0; list < kNumClasses; ++list) {
    const int begin = class_unit_begin(schedule, list);
    const int end = class_unit_begin(schedule, list + 1);
    if (begin == end) continue;
    const std::span<const LineStrip> strips = strips_of(p, schedule, list);
    if (strips.empty()) {
      std::fill(p.unit_costs.begin() + begin, p.unit_costs.begin() + end, 0);
      std::fill(p.unit_begin.begin() + begin + 1, p.unit_begin.begin() + end + 1, static_cast<std::int32_t>(written));
      continue;
    }
    abi::Line line{strips.data(), p.tiles.data(), p.items.data(), static_cast<std::int32_t>(strips.size()), !schedule.spec.batch_invariant};
    line.begin = strip_start(line, 0);
    const UnitShares shares = shares_of(p, line, schedule, list);
    const bool dealt = shares_keys(p, schedule, list, shares) && deal_tiles(p, p.total_cost[list], shares.full, line);
    cut_line(p, line, shares, schedule, list);
    if (p.unit_ends[static_cast<std::size_t>(end) - 1].strip != line.num_strips) bug("the units do not take the whole line");
    std::int32_t* const unit_begin = p.unit_begin.data() + begin;
    if (!dealt && single_items) {
      written = write_single_items(p, line, begin, end, out);
    } else if (!dealt) {
      written += write_line(p, line, begin, {unit_begin, unit_begin + (end - begin) + 1}, out + written);
    } else {
      if (single_items) clear_merges();
      p.rest_items.resize(static_cast<std::size_t>(max_emitted_items(p, schedule)) - p.dealt_to.size());
      p.rest_begin.assign(static_cast<std::size_t>(end - begin) + 1, 0);
      write_line(p, line, begin, p.rest_begin, p.rest_items.data());
      written = write_dealt(p, line, unit_begin, out) - out;
    }
  }
  return written;
}

}  // namespace girih::attention
