// The planner's arithmetic: a line of tiles in cost units is cut into one contiguous stretch per unit. Integers only and no host
// headers, so that NVRTC compiles it too and a device-side planner can write the same bytes.
// The line is stored once per *strip* (the tiles of one group of query rows) and repeated for the strip's KV heads, so a search skips
// whole strips and heads by one multiplication. A capacity is found by bisection; every unit then takes what fits, in order. A tile is
// cut between items or, where items may be cut, at multiples of its KV block; a cut repeats the fixed cost of a piece. Units may hold tiles
// of the line's beginning already (plan_deal.cc): they take that much less of the rest.
#pragma once

#include <cstdint>

#include "abi/attention_plan.h"

namespace girih::abi {

/// n / d for 0 <= n < 2^31, 0 < d < 2^31: a multiplication and a shift by 31 + the bits of d.
struct StepDivider {
  std::uint64_t magic;
  std::int32_t shift;

  constexpr std::int64_t quotient(std::int64_t n) const {
    return static_cast<std::int64_t>((static_cast<std::uint64_t>(n) * magic) >> shift);
  }
};
constexpr StepDivider step_divider(std::int64_t d) {
  std::int32_t shift = 31;
  for (std::int64_t rest = d; rest > 0; rest /= 2) ++shift;
  return {(std::uint64_t{1} << shift) / static_cast<std::uint64_t>(d) + 1, shift};
}

struct LineTile {
  std::int64_t cost;
  std::int64_t cost_before;  // of the strip's tiles before this one
  std::int64_t cost_piece;   // of starting an item, >= 1
  std::int64_t cost_step;    // of one KV block of all the tile's rows, > 0
  StepDivider by_step;
  std::int32_t item_begin;  // items of the tile, kv_head 0
  std::int32_t item_end;
  std::int32_t kv_block;
  std::int32_t shared;  // other tiles cover some of its rows: its result is always a part
};

struct LineStrip {
  std::int64_t cost;        // of one copy
  std::int32_t tile_begin;  // tiles of one copy, contiguous, as are their items
  std::int32_t tile_end;
  std::int32_t head_begin;  // copy c is KV head head_begin + c
  std::int32_t copies;
  std::int32_t segment;
  std::int32_t shared;          // some tile is shared
  std::int64_t instance_begin;  // number of the first tile of the first copy among all tiles of all copies
};

/// A place on the line. The start of a tile is its first item with nothing taken; the end of the line is strip = num_strips.
struct LineSpot {
  std::int32_t strip;
  std::int32_t copy;
  std::int32_t tile;
  std::int32_t item;
  std::int32_t steps_taken;  // KV blocks of the item
};

struct Line {
  const LineStrip* strips;
  const LineTile* tiles;
  const WorkItem* items;
  std::int32_t num_strips;
  bool cut_items;                      // false: items are whole (batch_invariant)
  LineSpot begin{};                    // a tile's start: the tiles before it units hold already
  const std::int64_t* held = nullptr;  // what each unit holds of those; null: nothing
};

/// n / d for n >= 0, d > 0: most are small, and divisions of 64 bits are the slowest thing here.
constexpr std::int64_t quotient(std::int64_t n, std::int64_t d) {
  return ((n | d) >> 32) == 0 ? static_cast<std::uint32_t>(n) / static_cast<std::uint32_t>(d) : n / d;
}

constexpr std::int64_t item_cost(const LineTile& tile, std::int64_t keys) {
  return tile.cost_piece + quotient(keys + tile.kv_block - 1, tile.kv_block) * tile.cost_step;
}
/// Of a whole item: what it says itself, unless that is the most it can say.
inline constexpr std::int32_t kMaxItemCost = 0x7fffffff;
constexpr std::int64_t item_cost(const LineTile& tile, const WorkItem& item) {
  return item.cost < kMaxItemCost ? item.cost : item_cost(tile, std::int64_t{item.kv_end} - item.kv_begin);
}

inline LineSpot strip_start(const Line& line, std::int32_t strip) {
  if (strip == line.num_strips) return LineSpot{strip, 0, 0, 0, 0};
  const std::int32_t tile = line.strips[strip].tile_begin;
  return LineSpot{strip, 0, tile, line.tiles[tile].item_begin, 0};
}

inline bool at_tile_start(const Line& line, const LineSpot& at) { return at.steps_taken == 0 && at.item == line.tiles[at.tile].item_begin; }

/// The spot after the last tile before `tile` of the copy that `at` is in.
inline void move_to_tile(const Line& line, LineSpot& at, std::int32_t tile) {
  const LineStrip& strip = line.strips[at.strip];
  if (tile < strip.tile_end) {
    at.tile = tile;
    at.item = line.tiles[tile].item_begin;
    at.steps_taken = 0;
  } else if (at.copy + 1 < strip.copies) {
    at = LineSpot{at.strip, at.copy + 1, strip.tile_begin, line.tiles[strip.tile_begin].item_begin, 0};
  } else {
    at = strip_start(line, at.strip + 1);
  }
}

/// Takes what fits into `left` of the tile at `at`; true if that was all of it.
inline bool take_in_tile(const Line& line, LineSpot& at, std::int64_t& left) {
  const LineTile& tile = line.tiles[at.tile];
  for (; at.item < tile.item_end; ++at.item, at.steps_taken = 0) {
    const std::int64_t cost = item_cost(tile, line.items[at.item]) - at.steps_taken * tile.cost_step;
    if (cost <= left) {
      left -= cost;
      continue;
    }
    if (!line.cut_items || left < tile.cost_piece + tile.cost_step) return false;
    const std::int64_t rest = left - tile.cost_piece;
    const std::int64_t steps = rest >> 31 == 0 ? tile.by_step.quotient(rest) : rest / tile.cost_step;
    at.steps_taken += static_cast<std::int32_t>(steps);
    left -= tile.cost_piece + steps * tile.cost_step;
    return false;
  }
  return true;
}

/// Moves `at` past what fits into `capacity` and returns its cost.
inline std::int64_t take(const Line& line, LineSpot& at, std::int64_t capacity) {
  std::int64_t left = capacity;
  while (at.strip < line.num_strips) {
    const LineStrip& strip = line.strips[at.strip];
    if (at.tile == strip.tile_begin && at_tile_start(line, at)) {
      const std::int64_t rest = (strip.copies - at.copy) * strip.cost;
      if (rest <= left) {
        left -= rest;
        at = strip_start(line, at.strip + 1);
        continue;
      }
      const std::int64_t whole = quotient(left, strip.cost);
      at.copy += static_cast<std::int32_t>(whole);
      left -= whole * strip.cost;
    }
    if (strip.tile_end - strip.tile_begin > 1 && at_tile_start(line, at)) {
      // The last tile that can be reached whole: cost_before is ascending.
      const std::int64_t reach = line.tiles[at.tile].cost_before + left;
      std::int32_t low = at.tile;
      std::int32_t high = strip.tile_end;
      if (strip.cost <= reach) {
        low = strip.tile_end;
      } else {
        while (high - low > 1) {
          const std::int32_t middle = low + (high - low) / 2;
          if (line.tiles[middle].cost_before <= reach)
            low = middle;
          else
            high = middle;
        }
      }
      const std::int64_t end_cost = low == strip.tile_end ? strip.cost : line.tiles[low].cost_before;
      left = reach - end_cost;
      const bool whole_copy = low == strip.tile_end;
      if (low != at.tile) move_to_tile(line, at, low);
      if (whole_copy) continue;
    }
    if (!take_in_tile(line, at, left)) break;
    move_to_tile(line, at, at.tile + 1);
  }
  return capacity - left;
}

/// How units share a line: the first `full` of them take a capacity each, the next `idle` nothing, the others `share` / 256 of one.
struct UnitShares {
  std::int32_t num_units;
  std::int32_t full;  // >= 1
  std::int32_t idle;
  std::int32_t share;

  constexpr std::int64_t own(std::int32_t unit, std::int64_t capacity) const {
    if (unit < full) return capacity;
    return unit < full + idle ? 0 : capacity * share / 256;
  }
};
constexpr UnitShares equal_shares(std::int32_t num_units) { return {num_units, num_units, 0, 0}; }

/// Whether units of `capacity` take the whole line. ends[u] is where unit u stops, costs[u] what it took and holds.
inline bool fill_units(const Line& line, const UnitShares& shares, std::int64_t capacity, LineSpot* ends, std::int64_t* costs) {
  LineSpot at = line.begin;
  for (std::int32_t u = 0; u < shares.num_units; ++u) {
    const std::int64_t held = line.held != nullptr ? line.held[u] : 0;
    const std::int64_t own = shares.own(u, capacity) - held;
    costs[u] = held + (own > 0 ? take(line, at, own) : 0);
    ends[u] = at;
  }
  return at.strip == line.num_strips;
}

/// What is known of an uncut line, with what units hold of it: its cost, that of the largest piece that cannot be cut, the least cost of a
/// KV block (0: unknown), the number of its tiles and the cost of the largest (0: unknown).
struct LineCosts {
  std::int64_t total;
  std::int64_t max_piece;
  std::int64_t min_step;
  std::int64_t num_tiles;
  std::int64_t max_tile;
};

/// What units took when they were filled: all together, and the least capacity at which they would have taken just that.
struct UnitsTaken {
  std::int64_t total = 0;
  std::int64_t capacity = 0;
};
inline UnitsTaken units_taken(const UnitShares& shares, const std::int64_t* costs) {
  UnitsTaken taken;
  for (std::int32_t u = 0; u < shares.full; ++u) {
    taken.total += costs[u];
    taken.capacity = taken.capacity > costs[u] ? taken.capacity : costs[u];
  }
  std::int64_t most_of_share = 0;
  for (std::int32_t u = shares.full; u < shares.num_units; ++u) {
    taken.total += costs[u];
    most_of_share = most_of_share > costs[u] ? most_of_share : costs[u];
  }
  const std::int64_t of_share = most_of_share == 0 ? 0 : (most_of_share * 256 + shares.share - 1) / shares.share;
  taken.capacity = taken.capacity > of_share ? taken.capacity : of_share;
  return taken;
}

/// The least capacity above `capacity` at which one of them might have taken more.
inline std::int64_t next_capacity(const UnitShares& shares, std::int64_t capacity, std::int64_t min_step, const std::int64_t* costs) {
  std::int64_t least = min_step;
  for (std::int32_t u = 0; u < shares.num_units; ++u) {
    const std::int64_t own = shares.own(u, capacity);
    if (own > 0) least = least < min_step - (own - costs[u]) ? least : min_step - (own - costs[u]);
  }
  return capacity + (least > 1 ? least : 1);
}

/// Cuts the line for the units. Their capacity is at most 1/128 and two steps above the mean of what they take, cuts included, or near the
/// smallest at which they take everything: below max(mean, max_piece) none does, and with 2 max_piece more for each unit one always does,
/// since a unit stops less than a piece short of its capacity and each cut repeats less than a piece. The first try allows each unit one
/// cut and half a step left over, which is nearly always it, or, where that is less, as many of the largest tiles as make whole ones for
/// everybody; the next ones go away from there by longer and longer steps. Tiles of one cost are cut in equal parts where that takes hardly
/// more: a unit or two stay idle, but others do not end one tile and begin another.
inline void partition(const Line& line, const UnitShares& shares, const LineCosts& known, LineSpot* ends, std::int64_t* costs) {
  const std::int64_t units = shares.num_units - shares.idle;
  const bool equal = shares.full == units;
  const std::int64_t parts = equal ? units : 256 * std::int64_t{shares.full} + (units - shares.full) * shares.share;
  const std::int64_t scale = equal ? 1 : 256;
  const auto mean_of = [&](std::int64_t total) { return (scale * total + parts - 1) / parts; };
  const std::int64_t mean = mean_of(known.total);
  const std::int64_t least = mean > known.max_piece ? mean : known.max_piece;
  const std::int64_t slack = (least / 128 > known.min_step / 2 ? least / 128 : known.min_step / 2) + 1;
  std::int64_t bad = least - 1;
  std::int64_t good = mean_of(known.total + units * (2 * known.max_piece + 1));
  const std::int64_t cut =
      line.num_strips > 0 && line.cut_items ? line.tiles[line.strips[0].tile_begin].cost_piece + known.min_step / 2 : 0;
  const std::int64_t with_cuts = mean_of(known.total + units * cut) + slack / 2;
  std::int64_t probe = with_cuts > least ? with_cuts : least;
  const std::int64_t whole = (known.num_tiles + shares.full - 1) / shares.full * known.max_tile;
  if (whole > 0 && whole < probe) probe = whole;
  const std::int64_t ways = equal && known.num_tiles > 0 && known.total == known.num_tiles * known.max_tile ? units / known.num_tiles : 0;
  std::int64_t part = 0;  // of such a tile
  if (ways >= 2 && line.cut_items && known.min_step > 0) {
    const std::int64_t piece = line.tiles[line.strips[0].tile_begin].cost_piece;
    const std::int64_t steps = (known.max_tile - piece) / known.min_step;
    part = piece + (steps + ways - 1) / ways * known.min_step;
    if (part > probe + probe / 16) part = 0;
  }
  if (part > 0) probe = part;
  if (units == 1) probe = known.total;
  bool filled = false;  // ends and costs are those of capacity `good`
  std::int64_t stride = slack;
  if (probe > good) probe = good;
  while (true) {
    filled = fill_units(line, shares, probe, ends, costs);
    if (filled) {
      const UnitsTaken taken = units_taken(shares, costs);
      good = taken.capacity;
      if (probe == whole || probe == part || good - mean_of(taken.total) <= slack + 2 * known.min_step) break;
    } else {
      bad = line.cut_items ? next_capacity(shares, probe, known.min_step, costs) - 1 : probe;
    }
    if (good - bad <= slack + 1) break;
    const std::int64_t half = (good - bad) / 2;
    const std::int64_t step = stride < half ? stride : half;
    probe = filled ? good - step : bad + step;
    stride *= 2;
  }
  if (!filled) fill_units(line, shares, good, ends, costs);
}

}  // namespace girih::abi
