// The planner's arithmetic on lines made by hand: everything is taken once and in order, and the capacity is near the least possible.
#include "abi/partition.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace girih::abi {
namespace {

/// Strips of tiles of one item each, `blocks` KV blocks of 4 keys.
struct HandLine {
  std::vector<LineStrip> strips;
  std::vector<LineTile> tiles;
  std::vector<WorkItem> items;
  bool cut_items = true;
  std::int64_t total = 0;
  std::int64_t max_piece = 0;
  std::int64_t num_tiles = 0;
  std::int64_t max_tile = 0;

  void add_strip(std::int32_t copies, const std::vector<std::int32_t>& blocks) {
    LineStrip strip{};
    strip.tile_begin = static_cast<std::int32_t>(tiles.size());
    strip.copies = copies;
    for (const std::int32_t n : blocks) {
      WorkItem item{};
      item.kv_end = n * 4;
      LineTile tile{.cost = 0,
                    .cost_before = strip.cost,
                    .cost_piece = 5,
                    .cost_step = 3,
                    .by_step = step_divider(3),
                    .item_begin = static_cast<std::int32_t>(items.size()),
                    .item_end = static_cast<std::int32_t>(items.size()) + 1,
                    .kv_block = 4,
                    .shared = 0};
      tile.cost = item_cost(tile, item.kv_end);
      item.cost = static_cast<std::int32_t>(tile.cost);
      max_piece = std::max<std::int64_t>(max_piece, cut_items ? 8 : tile.cost);
      max_tile = std::max(max_tile, tile.cost);
      strip.cost += tile.cost;
      items.push_back(item);
      tiles.push_back(tile);
    }
    strip.tile_end = static_cast<std::int32_t>(tiles.size());
    strips.push_back(strip);
    total += strip.cost * copies;
    num_tiles += copies * std::ssize(blocks);
  }
  Line line() const {
    return {strips.data(), tiles.data(), items.data(), static_cast<std::int32_t>(strips.size()), cut_items, {}, nullptr};
  }
};

TEST(Partition, TakesWholeCopiesTilesAndBlocks) {
  HandLine h;
  h.add_strip(3, {2, 4});  // costs 11 and 17: 28 a copy
  const Line line = h.line();
  LineSpot at = strip_start(line, 0);
  EXPECT_EQ(take(line, at, 28 + 11 + 8), 28 + 11 + 8);
  EXPECT_EQ(at.copy, 1);
  EXPECT_EQ(at.tile, 1);
  EXPECT_EQ(at.steps_taken, 1);  // a piece and one block
  EXPECT_EQ(take(line, at, 13), 0 + 5 + 2 * 3);
  EXPECT_EQ(at.steps_taken, 3);
  EXPECT_EQ(take(line, at, 7), 0);  // a piece and a block are 8
  EXPECT_EQ(take(line, at, 100), 8 + 28);
  EXPECT_EQ(at.strip, 1);
  EXPECT_EQ(take(line, at, 100), 0);
}

TEST(Partition, WholeItemsAreNotCut) {
  HandLine h;
  h.cut_items = false;
  h.add_strip(1, {2, 4});
  const Line line = h.line();
  LineSpot at = strip_start(line, 0);
  EXPECT_EQ(take(line, at, 27), 11);
  EXPECT_EQ(at.tile, 1);
  EXPECT_EQ(at.steps_taken, 0);
}

TEST(Partition, TilesOfOneCostAreCutInEqualParts) {
  for (const std::int32_t units : {132, 130, 128}) {
    HandLine h;
    h.add_strip(64, {80});
    std::vector<LineSpot> ends(static_cast<std::size_t>(units));
    std::vector<std::int64_t> costs(ends.size());
    partition(h.line(), equal_shares(units), {h.total, h.max_piece, 3, h.num_tiles, h.max_tile}, ends.data(), costs.data());
    for (std::int32_t u = 0; u < units; ++u) EXPECT_EQ(costs[static_cast<std::size_t>(u)], u < 128 ? 5 + 40 * 3 : 0) << units;
  }
}

TEST(Partition, EmptyLine) {
  HandLine h;
  LineSpot ends[3];
  std::int64_t costs[3];
  partition(h.line(), equal_shares(3), {0, 0, 0, 0, 0}, ends, costs);
  for (int u = 0; u < 3; ++u) {
    EXPECT_EQ(ends[u].strip, 0);
    EXPECT_EQ(costs[u], 0);
  }
}

TEST(Partition, RandomLinesAreTakenOnceAndBalanced) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    HandLine h;
    h.cut_items = round % 2 == 0;
    const int strips = 1 + static_cast<int>(random() % 20);
    for (int s = 0; s < strips; ++s) {
      std::vector<std::int32_t> blocks;
      for (unsigned t = 0; t <= random() % 5; ++t)
        blocks.push_back(static_cast<std::int32_t>(random() % 40 * (random() % 8 == 0 ? 20 : 1)));
      h.add_strip(1 + static_cast<std::int32_t>(random() % 8), blocks);
    }
    const int units = 1 + static_cast<int>(random() % 40);
    std::vector<LineSpot> ends(static_cast<std::size_t>(units));
    std::vector<std::int64_t> costs(static_cast<std::size_t>(units));
    partition(h.line(), equal_shares(units), {h.total, h.max_piece, 3, h.num_tiles, h.max_tile}, ends.data(), costs.data());
    ASSERT_EQ(ends.back().strip, strips);
    std::int64_t sum = 0;
    std::int64_t most = 0;
    for (const std::int64_t cost : costs) sum += cost, most = std::max(most, cost);
    // Each cut repeats the fixed cost of a piece and nothing else.
    EXPECT_GE(sum, h.total);
    EXPECT_LE(sum, h.total + (h.cut_items ? 5 * (units - 1) : 0));
    EXPECT_LE(most, h.total / units + 2 * h.max_piece + 2);
    // The least capacity is within a hundredth: a capacity so much smaller does not take the line.
    const std::int64_t smaller = most - most / 64 - 4;
    if (smaller > std::max((h.total + units - 1) / units, h.max_piece)) {
      EXPECT_FALSE(fill_units(h.line(), equal_shares(units), smaller, ends.data(), costs.data())) << "round " << round;
    }
  }
}

TEST(Partition, UnitsOfSmallerSharesTakeLess) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    HandLine h;
    for (unsigned s = 0; s <= random() % 8; ++s)
      h.add_strip(1 + static_cast<std::int32_t>(random() % 8), {static_cast<std::int32_t>(random() % 90), 7});
    UnitShares shares{.num_units = 1 + static_cast<std::int32_t>(random() % 40), .full = 1, .idle = 0, .share = 0};
    shares.full += static_cast<std::int32_t>(random() % static_cast<unsigned>(shares.num_units));
    shares.share = static_cast<std::int32_t>(random() % 257);
    std::vector<LineSpot> ends(static_cast<std::size_t>(shares.num_units));
    std::vector<std::int64_t> costs(ends.size());
    partition(h.line(), shares, {h.total, h.max_piece, 3, h.num_tiles, h.max_tile}, ends.data(), costs.data());
    ASSERT_EQ(ends.back().strip, std::ssize(h.strips)) << "round " << round;
    const std::int64_t capacity = units_taken(shares, costs.data()).capacity;
    for (std::int32_t u = shares.full; u < shares.num_units; ++u) {
      EXPECT_LE(costs[static_cast<std::size_t>(u)], capacity * shares.share / 256) << "round " << round << ", unit " << u;
    }
    // No unit's take changes below the next capacity.
    const std::int64_t next = next_capacity(shares, capacity, 3, costs.data());
    std::vector<std::int64_t> again(costs.size());
    fill_units(h.line(), shares, next - 1, ends.data(), again.data());
    EXPECT_EQ(costs, again) << "round " << round;
  }
}

TEST(Partition, UnitsThatHoldTilesTakeLessOfTheRest) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    HandLine h;
    h.cut_items = round % 3 != 0;
    for (unsigned s = 0; s < 2 + random() % 8; ++s)
      h.add_strip(1 + static_cast<std::int32_t>(random() % 8), {1 + static_cast<std::int32_t>(random() % 9), 7, 5});
    const std::int32_t units = 1 + static_cast<std::int32_t>(random() % 6);
    Line line = h.line();
    line.begin = strip_start(line, 0);
    // The first tiles go round while no unit holds more than its share.
    std::vector<std::int64_t> held(static_cast<std::size_t>(units));
    for (std::size_t u = 0; held[u] + 2 * h.max_tile < h.total / units; u = (u + 1) % held.size()) {
      const std::int64_t cost = line.tiles[line.begin.tile].cost;
      held[u] += cost;
      move_to_tile(line, line.begin, line.begin.tile + 1);
    }
    line.held = held.data();
    std::vector<LineSpot> ends(held.size());
    std::vector<std::int64_t> costs(held.size());
    partition(line, equal_shares(units), {h.total, h.max_piece, 3, h.num_tiles, h.max_tile}, ends.data(), costs.data());
    ASSERT_EQ(ends.back().strip, line.num_strips) << "round " << round;
    // Stretch by stretch, from where the dealt tiles end.
    LineSpot at = line.begin;
    std::int64_t most = 0;
    std::int64_t sum = 0;
    for (std::size_t u = 0; u < held.size(); ++u) {
      EXPECT_EQ(take(line, at, costs[u] - held[u]), costs[u] - held[u]) << "round " << round;
      EXPECT_TRUE(at.strip == ends[u].strip && at.copy == ends[u].copy && at.tile == ends[u].tile && at.steps_taken == ends[u].steps_taken);
      most = std::max(most, costs[u]);
      sum += costs[u];
    }
    EXPECT_GE(sum, h.total);
    EXPECT_LE(most, h.total / units + 2 * h.max_piece + 2) << "round " << round;
  }
}

}  // namespace
}  // namespace girih::abi
