// The parts of make_plan(), in the order in which they run: read_batch (validate, tables) -> lay_tiles (tiles and their visible items,
// once for all KV heads that share them) -> find_regions (rows that several tiles cover), else part_gangs (lines of blocks side by side) ->
// emit (deal out what blocks read together, cut the rest of the line, write items, merges).
// Each fills arrays of the Planner, whose memory stays from batch to batch, so that planning allocates nothing once warm.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "abi/partition.h"
#include "attention/plan.h"

namespace girih::attention {

inline constexpr std::string_view kPlanOp = "attention.plan";
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 60;  // positions beyond it could overflow in masks
inline constexpr std::int64_t kMaxIndex = (std::int64_t{1} << 31) - 1;

/// Division of 31-bit numbers by a fixed one: a multiplication.
struct Divider {
  std::int64_t divisor = 1;
  std::uint64_t magic = (std::uint64_t{1} << 63) + 1;
  Divider() = default;
  explicit Divider(std::int64_t d) : divisor(d), magic((std::uint64_t{1} << 63) / static_cast<std::uint64_t>(d) + 1) {}
  std::int64_t quotient(std::int64_t n) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::int64_t>((static_cast<Wide>(static_cast<std::uint64_t>(n)) * magic) >> 63);
  }
  std::int64_t down(std::int64_t n) const { return quotient(n) * divisor; }
  std::int64_t up(std::int64_t n) const { return quotient(n + divisor - 1) * divisor; }
};

/// Keys of one table row that lie at consecutive positions (one for the whole row, or adjacent pages where each page has a position).
struct Stretch {
  std::int64_t key_begin, key_end;
  std::int64_t pos;  // of key_begin
};

/// Visible runs of a tile as ranges of keys.
struct KeyRun {
  std::int64_t begin, end;
  bool always;
};

/// Proves which keys a tile sees. Masks that depend on q_pos - kv_pos alone (causal, windows) are solved once per tile height, around
/// position 0, and shifted to each tile.
class TileMask {
 public:
  explicit TileMask(const variant::Program& program);
  void bind(const variant::ParamTable& params);
  bool differs_by_head() const { return differs_by_head_; }
  bool shifts() const { return shift_invariant_; }
  /// Whether rows at these positions are known to see all of `len` keys from position `pos` on: true only where a search has found it out
  /// for other rows at the same distances.
  bool sees_all(const variant::Range& q_pos, std::int64_t pos, std::int64_t len) const {
    const std::int64_t height = q_pos.hi - q_pos.lo;
    const std::int64_t begin = pos - q_pos.lo;
    const std::int64_t end = begin + len;
    const Relative& r = relative(height);
    return r.height == height && r.all_begin <= begin && r.all_end >= end;
  }
  /// Appends the runs of [begin, end) of the stretches to `runs`, ascending.
  void find(const variant::Box& box, std::span<const Stretch> stretches, std::int64_t kv_block, std::vector<KeyRun>& runs);
  /// The same of one stretch of `len` keys from `key` at `pos`, for masks that are shifted: rows matter by their positions alone.
  void find_shifted(const variant::Range& q_pos, std::int64_t key, std::int64_t pos, std::int64_t len, std::int64_t grain,
                    std::vector<KeyRun>& runs);

 private:
  struct Relative {  // runs around q_pos = [0, height]; of no height where masks are not shifted
    std::int64_t height = -1, begin = 0, end = 0;
    std::int64_t all_begin = 0, all_end = 0;  // the first run, where it is always seen
    std::vector<variant::MaskProver::Run> runs;
  };
  const Relative& relative(std::int64_t height) const { return relative_[static_cast<std::size_t>(height) % kHeights]; }
  void find_stretch(const variant::Box& box, std::int64_t key, std::int64_t pos, std::int64_t len, std::int64_t grain,
                    std::vector<KeyRun>& runs);

  variant::MaskProver prover_;
  bool differs_by_head_ = false;
  bool shift_invariant_ = false;
  static constexpr std::size_t kHeights = 8;
  std::array<Relative, kHeights> relative_;
  std::vector<variant::MaskProver::Run> found_;
};

/// Whether moving q_pos and kv_pos by the same distance never changes the mask.
bool is_shift_invariant(const variant::Code& mask);

/// Rows [row_begin, row_end) of a KV head and the tiles that cover them, in segment order.
struct Region {
  std::int64_t row_begin, row_end;
  std::int64_t cover_begin, cover_end;  // into Planner::covers
};
struct Cover {
  std::int32_t strip, tile;
};
/// A walk over one segment's tiles of one head, in row order; at the end strip = end_strip.
struct RegionCursor {
  std::int32_t strip, end_strip, tile;
};
/// Where a shared tile's parts went (consecutive, row_count rows each) and the merges that wait for them.
struct PartRange {
  std::int32_t part_row, count;
  std::int32_t merge_begin, merge_count;
};

/// A unit's end inside of a tile, in a line of single items.
struct TileCut {
  std::int64_t instance;  // of the tile
  std::int32_t tile, strip, copy;
  std::int32_t steps;  // before the cut
};

struct Planner {
  explicit Planner(const ScheduleState& schedule);

  // read_batch
  std::int64_t num_tokens = 0;
  std::vector<abi::RequestInfo> requests;
  std::vector<abi::SegmentInfo> segments;
  std::vector<abi::KvRow> kv_rows;
  std::vector<std::int64_t> sums;
  variant::ParamTable params{};

  // lay_tiles
  bool has_mask = false;
  TileMask mask;
  std::vector<Stretch> stretches;
  std::vector<KeyRun> runs;
  std::vector<abi::LineStrip> strips;
  std::vector<abi::LineTile> tiles;
  std::vector<abi::WorkItem> items;           // of one copy of each strip
  std::int64_t num_instances = 0;             // tiles of all copies
  std::int64_t num_items = 0;                 // items of all copies
  std::int64_t total_cost[kNumClasses] = {};  // of each list; all in the first where classes are not separate
  std::int64_t max_piece_cost[kNumClasses] = {};
  std::int64_t min_step_cost[kNumClasses] = {};
  std::int64_t num_tiles[kNumClasses] = {};  // of all copies
  std::int64_t max_tile_cost[kNumClasses] = {};
  std::int64_t pairs = 0;     // packed rows x keys over all copies
  bool heads_differ = false;  // some strip is for one head only

  // find_regions: one list per head, or one for all
  std::vector<Region> regions;
  std::vector<std::int64_t> region_begin;
  std::vector<Cover> covers;
  std::vector<RegionCursor> cursors;

  // lay_merges, emit
  int gang = 1;  // the line is so many equal ones
  std::vector<abi::LineStrip> gang_strips;
  std::vector<abi::LineStrip> list_strips[kNumClasses];  // where classes are separate and both occur
  std::int64_t num_empty_merges = 0;
  std::vector<abi::LineSpot> unit_ends;
  std::vector<std::int64_t> unit_costs;
  std::vector<PartRange> part_ranges;
  std::vector<std::int64_t> dealt_units;  // what they hold
  std::vector<std::int32_t> dealt_to;     // the unit of each tile dealt, in the order of the line
  std::vector<std::int32_t> dealt_next;   // of each unit
  std::vector<std::int64_t> held;         // by each unit, before the rest of the line is cut
  std::vector<abi::WorkItem> rest_items;
  std::vector<std::int32_t> rest_begin;
  std::vector<TileCut> cuts;
  std::vector<std::int32_t> tile_cuts;  // how many in each tile
  std::vector<std::int32_t> unit_begin;
  std::vector<abi::MergeItem> merges;
  std::vector<abi::MergePart> merge_parts;
  std::int64_t part_rows = 0;

  std::vector<std::byte> next_blob;  // swapped with the plan's
};

/// Validates the batch and fills requests, segments, kv_rows and params.
void read_batch(Planner& planner, const ScheduleState& schedule, const Batch& batch);
/// Fills strips, tiles and items from the tables.
void lay_tiles(Planner& planner, const ScheduleState& schedule, const Batch& batch);
/// Where a class has a gang, and all tiles are of that class and divide into it evenly: makes the line one for each of its members.
/// Before emit_items(), of batches without regions.
void part_gangs(Planner& planner, const ScheduleState& schedule);
/// Finds the rows of each head that no tile or several tiles cover and marks tiles as shared.
void find_regions(Planner& planner, const ScheduleState& schedule);
/// Writes the rows of the regions' merges, empty ones first, and notes at each shared tile which of them it takes part in.
void lay_merges(Planner& planner, const ScheduleState& schedule);
/// Deals the first tiles of a list, unless they are shared, out to its first `units` units, each of which gets less than its share of
/// `total_cost`. If there are any: fills planner.dealt_to, makes `line` what is left, and returns true.
bool deal_tiles(Planner& planner, std::int64_t total_cost, std::int32_t units, abi::Line& line);
/// Writes each unit's dealt tiles and then its stretch of rest_items, which begin at rest_begin, from out[unit_begin[0]] on; fills in the
/// rest of unit_begin. Returns the end.
abi::WorkItem* write_dealt(Planner& planner, const abi::Line& line, std::int32_t* unit_begin, abi::WorkItem* out);
/// Cuts the lists for their units, writes the items to `out` (room for max_emitted_items) and returns their number.
std::int64_t emit_items(Planner& planner, const ScheduleState& schedule, abi::WorkItem* out);
std::int64_t max_emitted_items(const Planner& planner, const ScheduleState& schedule);
/// emit_items() of a list that is all of the batch, each tile one item that may be cut and alone on its rows, for units [begin, end).
std::int64_t write_single_items(Planner& planner, const abi::Line& line, int begin, int end, abi::WorkItem* out);
/// Makes `to` the stretch [begin, end) of `item`, in the fields that say which keys.
inline void take_keys(const abi::WorkItem& item, std::int32_t begin, std::int32_t end, abi::WorkItem& to) {
  const std::int32_t full_begin = std::max(begin, std::min(item.full_begin, end));
  const std::int32_t full_end = std::max(begin, std::min(item.full_end, end));
  const bool has_full = full_begin < full_end;
  to.kv_begin = begin;
  to.kv_end = end;
  to.full_begin = has_full ? full_begin : begin;
  to.full_end = has_full ? full_end : begin;
}
/// A cost as an item holds it.
inline std::int32_t held_cost(std::int64_t cost) { return static_cast<std::int32_t>(std::min<std::int64_t>(cost, abi::kMaxItemCost)); }
/// Refuses batches beyond what a part's row can say.
void check_part_rows(std::int64_t part_rows);
/// Fills in the parts of the regions' merges, which are known once all items are written.
void fill_region_merges(Planner& planner, const ScheduleState& schedule);

/// Sizes of a blob's arrays.
struct BlobCounts {
  std::int64_t items = 0, requests = 0, segments = 0, kv_rows = 0, param_bytes = 0, merges = 0, merge_parts = 0;
};
/// A header with the arrays' places and blob_bytes: the one place that lays out a blob, for a plan and for the worst one alike.
abi::PlanHeader lay_out_blob(const ScheduleState& schedule, const BlobCounts& counts);

/// Bytes of an array parameter's data (scalars: 8).
std::int64_t param_bytes(const variant::ParamInfo& info, std::int64_t size);
/// The parameter table of a checked blob's plan-time parameters.
variant::ParamTable blob_params(const ScheduleState& schedule, const PlanView& view);
/// The blob's typed views; the header's arrays must lie inside the blob.
PlanView view_blob(const std::byte* blob);

}  // namespace girih::attention
