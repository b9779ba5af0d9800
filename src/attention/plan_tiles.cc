// Second step of make_plan(): query rows become tiles, and what a tile sees becomes its items. One copy is made of the tiles that all KV
// heads share (a strip); only per-head tables and masks that differ by head need a strip a head.
// Runs are rounded to multiples of the class's kv_align: visible ones outward, always visible ones inward.
// ItemWriter is here although the file is long: with the class in a header, windows took a twentieth longer.
#include <algorithm>
#include <numeric>

#include "attention/planner.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

using abi::WorkItem;

constexpr std::int64_t kRowVector = 16;  // kernels round the rows of a tile up to it

/// Joins runs into the items of one tile, of which it writes the keys. An item holds one range that needs no mask; a second one starts
/// another item. With a chunk (batch_invariant) an item is a chunk, whatever holes it has: its keys are reduced in one order wherever the
/// batch puts them.
class ItemWriter {
 public:
  ItemWriter(std::vector<WorkItem>& items, Divider block, Divider align, std::int64_t kv_len, std::int64_t chunk)
      : items_(items), block_(block), align_(align), kv_len_(kv_len), chunk_(chunk) {}

  void add(const KeyRun& run) {
    const std::int64_t begin = align_.down(run.begin);
    const std::int64_t end = run.end >= kv_len_ ? kv_len_ : std::min(align_.up(run.end), kv_len_);
    std::int64_t full_begin = begin;
    std::int64_t full_end = begin;
    if (run.always) {
      full_begin = align_.up(run.begin);
      full_end = run.end >= kv_len_ ? kv_len_ : align_.down(run.end);
      if (full_begin >= full_end) full_begin = full_end = begin;
    }
    if (chunk_ == 0)
      join(begin, end, full_begin, full_end);
    else
      split_chunks(begin, end, full_begin, full_end);
  }

  /// Writes the last item; false if the tile sees nothing.
  bool finish() {
    if (open_) write(end_);
    open_ = false;
    return wrote_;
  }

 private:
  bool has_full() const { return full_begin_ < full_end_; }

  void start(std::int64_t begin, std::int64_t end, std::int64_t full_begin, std::int64_t full_end) {
    begin_ = begin;
    end_ = end;
    full_begin_ = full_begin;
    full_end_ = full_end;
    open_ = true;
  }

  void join(std::int64_t begin, std::int64_t end, std::int64_t full_begin, std::int64_t full_end) {
    if (!open_) return start(begin, end, full_begin, full_end);
    if (begin > end_) {
      write(end_);
      return start(begin, end, full_begin, full_end);
    }
    end_ = std::max(end_, end);
    if (full_begin == full_end) return;
    if (!has_full()) {
      full_begin_ = full_begin;
      full_end_ = full_end;
    } else if (full_end_ == full_begin) {
      full_end_ = full_end;
    } else {
      const std::int64_t rest = end_;
      write(full_begin);
      start(full_begin, rest, full_begin, full_end);
    }
  }

  void split_chunks(std::int64_t begin, std::int64_t end, std::int64_t full_begin, std::int64_t full_end) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t chunk_begin = at / chunk_ * chunk_;
      const std::int64_t stop = std::min(end, chunk_begin + chunk_);
      const std::int64_t fb = std::clamp(full_begin, at, stop);
      const std::int64_t fe = std::clamp(full_end, at, stop);
      const bool same = open_ && begin_ >= chunk_begin;
      if (open_ && !same) write(end_);
      if (!same) {
        start(at, stop, fb < fe ? fb : at, fb < fe ? fe : at);
      } else {
        end_ = std::max(end_, stop);
        if (has_full() && full_end_ == fb)
          full_end_ = std::max(fe, full_end_);
        else if (fe - fb > full_end_ - full_begin_)
          full_begin_ = fb, full_end_ = fe;
      }
      at = stop;
    }
  }

  /// Steps are counted from where the item begins: what needs no mask is whole ones.
  void round_full(std::int64_t end) {
    full_begin_ = begin_ + block_.up(full_begin_ - begin_);
    if (full_end_ < end) full_end_ = begin_ + block_.down(full_end_ - begin_);
  }

  void write(std::int64_t end) {
    if (align_.divisor != block_.divisor && has_full()) round_full(end);
    WorkItem& item = items_.emplace_back();  // in place: a copy would wait for its parts
    item.kv_begin = static_cast<std::int32_t>(begin_);
    item.kv_end = static_cast<std::int32_t>(end);
    item.full_begin = static_cast<std::int32_t>(has_full() ? full_begin_ : begin_);
    item.full_end = static_cast<std::int32_t>(has_full() ? full_end_ : begin_);
    wrote_ = true;
  }

  std::vector<WorkItem>& items_;
  const Divider block_;
  const Divider align_;
  const std::int64_t kv_len_;
  const std::int64_t chunk_;
  bool open_ = false;
  bool wrote_ = false;
  std::int64_t begin_ = 0, end_ = 0, full_begin_ = 0, full_end_ = 0;
};

/// Lays the tiles of one group after another; `request` follows the rows.
class TileLayer {
 public:
  TileLayer(Planner& planner, const ScheduleState& schedule) : p_(planner), schedule_(schedule), group_(schedule.group) {
    for (int c = 0; c < kNumClasses; ++c) {
      const ClassTune& tune = schedule.tune.classes[c];
      block_[c] = Divider(tune.kv_block);
      align_[c] = Divider(tune.align(schedule.spec.batch_invariant));
    }
    chunk_ = schedule.spec.batch_invariant ? schedule.tune.invariant_chunk : 0;
    drop_empty_ = p_.segments.size() > 1;
  }

  void lay_segment(std::int64_t s, const KvSegment& segment) {
    const abi::SegmentInfo& info = p_.segments[static_cast<std::size_t>(s)];
    s_ = s;
    info_ = &info;
    page_pos_ = segment.page_pos;
    stretches_of_ = -1;
    masked_ = segment.masked && p_.has_mask;
    const bool by_head = masked_ && p_.mask.differs_by_head();
    const int heads = schedule_.spec.num_kv_heads;
    if (info.num_table_heads > 1 || by_head) p_.heads_differ = p_.heads_differ || heads > 1;
    request_ = 0;
    for (std::int64_t g = 0; g < info.num_groups; ++g) {
      const abi::KvRow& first = p_.kv_rows[static_cast<std::size_t>(info.kv_row_begin + g)];
      if (first.q_begin == first.q_end) continue;
      choose_tiles(first);
      const std::size_t request = request_;
      if (info.num_table_heads == 1 && !by_head) {
        if (!lay_whole(info.kv_row_begin + g, heads)) lay_strip(info.kv_row_begin + g, 0, heads);
        continue;
      }
      for (int h = 0; h < heads; ++h) {
        const std::int64_t row = info.kv_row_begin + (info.num_table_heads > 1 ? h * info.num_groups : 0) + g;
        request_ = request;
        lay_strip(row, h, 1);
      }
    }
  }

 private:
  std::int64_t request_end(std::size_t r) const { return p_.requests[r].q_begin + p_.requests[r].q_len; }

  /// The class and tile height of a group's rows.
  void choose_tiles(const abi::KvRow& row) {
    while (request_end(request_) <= row.q_begin) ++request_;
    const bool one_request = request_end(request_) >= row.q_end;
    const std::int64_t rows = (row.q_end - row.q_begin) * schedule_.group;
    std::int64_t deciding = rows;
    // A neighbour that shares the group, or a cut of the request into groups, must not change the kernel that computes a row.
    if (schedule_.spec.batch_invariant) deciding = one_request ? p_.requests[request_].q_len * schedule_.group : kMaxIndex;
    class_ = deciding <= schedule_.tune.small_rows ? kSmall : kLarge;
    list_ = list_of(schedule_, class_);
    if (class_units(schedule_, list_) == 0) {
      fail(Code::invalid_argument, kPlanOp,
           "segments[{}] has a group of several requests; with batch_invariant it takes large tiles, which limits.max_qo_len={} rules out: "
           "raise it above {} rows",
           s_, schedule_.limits.max_qo_len, schedule_.tune.small_rows / schedule_.group);
    }
    const ClassTune& tune = schedule_.tune.classes[class_];
    tile_rows_ = tune.tile_rows;
    if (rows <= tile_rows_) {
      tile_rows_ = rows;
    } else {
      // Even heights in place of a thin last tile, where they fit in whole vectors of rows and whole tokens (tight hulls).
      const std::int64_t even = ceil_div(rows, ceil_div(rows, tune.tile_rows));
      const std::int64_t vectors = round_up(even, std::lcm<std::int64_t>(schedule_.group, kRowVector));
      const std::int64_t tokens = round_up(even, schedule_.group);
      tile_rows_ = vectors <= tune.tile_rows ? vectors : tokens <= tune.tile_rows ? tokens : even;
    }
  }

  /// Fills p_.stretches for a table row, unless they are its own already.
  void find_stretches(std::int64_t kv_row) {
    if (stretches_of_ == kv_row) return;
    stretches_of_ = kv_row;
    const abi::KvRow& row = p_.kv_rows[static_cast<std::size_t>(kv_row)];
    const abi::SegmentInfo& info = *info_;
    p_.stretches.clear();
    if (row.kv_len == 0) return;
    if (info.has_page_pos == 0) {
      p_.stretches.push_back({0, row.kv_len, row.kv_pos});
      return;
    }
    std::int64_t entry = row.table_begin;
    for (std::int64_t key = 0; key < row.kv_len; key += info.page_size, ++entry) {
      const std::int64_t pos = page_pos_[entry];
      const std::int64_t end = std::min(key + info.page_size, row.kv_len);
      if (!p_.stretches.empty()) {
        Stretch& last = p_.stretches.back();
        if (last.pos + (key - last.key_begin) == pos) {
          last.key_end = end;
          continue;
        }
      }
      p_.stretches.push_back({key, end, pos});
    }
  }

  /// Hulls over the requests that rows of tokens [first, last] belong to.
  variant::Box box_of(std::int64_t first, std::int64_t last, int head, int heads) {
    while (request_end(request_) <= first) ++request_;
    const abi::RequestInfo& r = p_.requests[request_];
    variant::Box box;
    const std::int64_t idx = first - r.q_begin;
    const std::int64_t end_idx = std::min(last - r.q_begin, r.q_len - 1);
    box.q_idx = {idx, end_idx};
    box.q_pos = {r.q_pos + idx, r.q_pos + end_idx};
    box.q_len = {r.q_len, r.q_len};
    box.kv_len = {r.kv_len, r.kv_len};
    box.request = {static_cast<std::int64_t>(request_), static_cast<std::int64_t>(request_)};
    const auto widen = [](variant::Range& range, std::int64_t lo, std::int64_t hi) {
      range.lo = std::min(range.lo, lo);
      range.hi = std::max(range.hi, hi);
    };
    for (std::size_t i = request_ + 1; i < p_.requests.size() && p_.requests[i].q_begin <= last; ++i) {
      const abi::RequestInfo& next = p_.requests[i];
      if (next.q_len == 0) continue;
      const std::int64_t final_idx = std::min(last - next.q_begin, next.q_len - 1);
      widen(box.q_idx, 0, final_idx);
      widen(box.q_pos, next.q_pos, next.q_pos + final_idx);
      widen(box.q_len, next.q_len, next.q_len);
      widen(box.kv_len, next.kv_len, next.kv_len);
      box.request.hi = static_cast<std::int64_t>(i);
    }
    box.q_row = {first, last};
    box.kv_head = {head, head + heads - 1};
    box.q_head = {std::int64_t{head} * schedule_.group, std::int64_t{head + heads} * schedule_.group - 1};
    return box;
  }

  void lay_strip(std::int64_t kv_row, int head, int heads) {
    const abi::KvRow& row = p_.kv_rows[static_cast<std::size_t>(kv_row)];
    abi::LineStrip& strip = start_strip(head, heads);
    const std::size_t item_begin = p_.items.size();
    const std::int64_t row_end = row.q_end * schedule_.group;
    for (std::int64_t r = row.q_begin * schedule_.group; r < row_end; r += tile_rows_) {
      lay_tile(strip, row, kv_row, r, std::min(r + tile_rows_, row_end));
    }
    finish_strip(strip, p_.items.size() - item_begin);
  }

  /// lay_strip() of one tile, where it is known without a search that every row sees every key: so it is for nearly all of a decoding
  /// batch. False: it is not.
  bool lay_whole(std::int64_t kv_row, int heads) {
    const abi::KvRow& row = p_.kv_rows[static_cast<std::size_t>(kv_row)];
    const std::int64_t rows = (row.q_end - row.q_begin) * schedule_.group;
    if (chunk_ > 0 || row.kv_len == 0 || rows > tile_rows_) return false;
    if (masked_) {
      const abi::RequestInfo& r = p_.requests[request_];
      if (!can_shift(r, row.q_end - 1)) return false;
      const std::int64_t before = row.q_begin - r.q_begin;
      const std::int64_t last = row.q_end - 1 - r.q_begin;
      if (!p_.mask.sees_all({r.q_pos + before, r.q_pos + last}, row.kv_pos, row.kv_len)) return false;
    }
    abi::LineStrip& strip = start_strip(0, heads);
    const std::size_t first = p_.items.size();
    WorkItem& item = p_.items.emplace_back();
    item.kv_end = item.full_end = static_cast<std::int32_t>(row.kv_len);
    TileCost cost = cost_of(rows);
    add_item(item, strip, kv_row, row.q_begin * schedule_.group, rows, cost);
    item.flags = WorkItem::kFirst | WorkItem::kLast;
    add_tile(strip, first, cost);
    finish_strip(strip, 1);
    return true;
  }

  abi::LineStrip& start_strip(int head, int heads) {
    abi::LineStrip& strip = p_.strips.emplace_back();  // in place: a copy would wait for its parts
    strip.tile_begin = static_cast<std::int32_t>(p_.tiles.size());
    strip.head_begin = head;
    strip.copies = heads;
    strip.segment = static_cast<std::int32_t>(s_);
    strip.instance_begin = p_.num_instances;
    return strip;
  }

  void finish_strip(abi::LineStrip& strip, std::size_t items) {
    strip.tile_end = static_cast<std::int32_t>(p_.tiles.size());
    const std::int64_t copies = strip.copies;
    const std::int64_t tiles = copies * (strip.tile_end - strip.tile_begin);
    if (tiles == 0) return p_.strips.pop_back();
    if (p_.items.size() > static_cast<std::size_t>(kMaxIndex)) {
      fail(Code::invalid_argument, kPlanOp, "segments[{}] brings the work items beyond 2^31; plan fewer rows at a time", s_);
    }
    p_.num_instances += tiles;
    p_.num_items += copies * static_cast<std::int64_t>(items);
    p_.num_tiles[list_] += tiles;
    p_.total_cost[list_] += copies * strip.cost;
  }

  /// What a tile of some rows costs, the sums over its items as they come.
  struct TileCost {
    std::int64_t piece, step, rows;
    std::int64_t total = 0, keys = 0, max_piece = 0;
  };
  TileCost cost_of(std::int64_t rows) const {
    const ClassTune& tune = schedule_.tune.classes[class_];
    return {std::max<std::int64_t>(tune.cost_piece, 1), std::max<std::int64_t>(tune.cost_block + rows * tune.cost_block_row, 1), rows};
  }

  void lay_tile(abi::LineStrip& strip, const abi::KvRow& row, std::int64_t kv_row, std::int64_t row_begin, std::int64_t row_end) {
    const std::int64_t rows = row_end - row_begin;
    const std::size_t first = p_.items.size();
    if (row.kv_len == 0 || !write_visible(row, kv_row, row_begin, row_end, strip)) {
      if (drop_empty_) return;
      p_.items.emplace_back();
    }
    TileCost cost = cost_of(rows);
    for (std::size_t i = first; i < p_.items.size(); ++i) add_item(p_.items[i], strip, kv_row, row_begin, rows, cost);
    p_.items[first].flags |= WorkItem::kFirst;
    p_.items.back().flags |= WorkItem::kLast;
    add_tile(strip, first, cost);
  }

  /// Fills in all of an item but its keys, which it has.
  void add_item(WorkItem& item, const abi::LineStrip& strip, std::int64_t kv_row, std::int64_t row_begin, std::int64_t rows,
                TileCost& sum) {
    const std::int64_t keys = item.kv_end - item.kv_begin;
    const std::int64_t steps = block_[class_].quotient(keys + block_[class_].divisor - 1);
    const std::int64_t cost = sum.piece + steps * sum.step;
    sum.total += cost;
    sum.keys += keys;
    sum.max_piece = std::max(sum.max_piece, chunk_ > 0 ? cost : sum.piece + (keys > 0 ? sum.step : 0));
    item.row_begin = static_cast<std::int32_t>(row_begin);
    item.row_count = static_cast<std::uint16_t>(rows);
    item.tile_class = static_cast<std::uint8_t>(class_);
    item.flags = chunk_ > 0 ? WorkItem::kChunk : 0;
    item.kv_row = static_cast<std::int32_t>(kv_row);
    item.part_row = -1;
    item.kv_head = static_cast<std::uint16_t>(strip.head_begin);
    item.segment = static_cast<std::uint16_t>(s_);
    item.cost = held_cost(cost);
  }

  void add_tile(abi::LineStrip& strip, std::size_t first_item, const TileCost& cost) {
    abi::LineTile& tile = p_.tiles.emplace_back();
    tile.cost = cost.total;
    tile.cost_before = strip.cost;
    tile.cost_piece = cost.piece;
    tile.cost_step = cost.step;
    if (cost.step != step_) by_step_ = abi::step_divider(step_ = cost.step);
    tile.by_step = by_step_;
    tile.item_begin = static_cast<std::int32_t>(first_item);
    tile.item_end = static_cast<std::int32_t>(p_.items.size());
    tile.kv_block = static_cast<std::int32_t>(block_[class_].divisor);
    strip.cost += cost.total;
    p_.pairs += cost.rows * cost.keys * strip.copies;
    p_.min_step_cost[list_] = std::min(p_.min_step_cost[list_], cost.step);
    p_.max_piece_cost[list_] = std::max(p_.max_piece_cost[list_], cost.max_piece);
    p_.max_tile_cost[list_] = std::max(p_.max_tile_cost[list_], cost.total);
  }

  /// Whether a mask of distances alone decides for rows up to token `last`: they are one request's, and the keys one stretch.
  bool can_shift(const abi::RequestInfo& request, std::int64_t last) const {
    return p_.mask.shifts() && info_->has_page_pos == 0 && last < request.q_begin + request.q_len;
  }

  /// Writes the keys that the tile sees; false if there are none.
  bool write_visible(const abi::KvRow& row, std::int64_t kv_row, std::int64_t row_begin, std::int64_t row_end,
                     const abi::LineStrip& strip) {
    if (!masked_) return write_all(row);
    const std::int64_t first = group_.quotient(row_begin);
    const std::int64_t last = group_.quotient(row_end - 1);
    while (request_end(request_) <= first) ++request_;
    const abi::RequestInfo& r = p_.requests[request_];
    const std::int64_t grain = align_[class_].divisor;
    p_.runs.clear();
    if (can_shift(r, last)) {
      const variant::Range q_pos{r.q_pos + first - r.q_begin, r.q_pos + last - r.q_begin};
      if (p_.mask.sees_all(q_pos, row.kv_pos, row.kv_len)) return write_all(row);
      p_.mask.find_shifted(q_pos, 0, row.kv_pos, row.kv_len, grain, p_.runs);
    } else {
      find_stretches(kv_row);
      p_.mask.find(box_of(first, last, strip.head_begin, strip.copies), p_.stretches, grain, p_.runs);
    }
    ItemWriter writer(p_.items, block_[class_], align_[class_], row.kv_len, chunk_);
    for (const KeyRun& run : p_.runs) writer.add(run);
    return writer.finish();
  }

  /// All keys of the row: one item, or one of each chunk.
  bool write_all(const abi::KvRow& row) {
    if (chunk_ > 0) {
      ItemWriter writer(p_.items, block_[class_], align_[class_], row.kv_len, chunk_);
      writer.add({0, row.kv_len, true});
      return writer.finish();
    }
    WorkItem& item = p_.items.emplace_back();
    item.kv_end = item.full_end = static_cast<std::int32_t>(row.kv_len);
    return true;
  }

  Planner& p_;
  const ScheduleState& schedule_;
  const Divider group_;
  Divider block_[kNumClasses];
  Divider align_[kNumClasses];
  std::int64_t chunk_ = 0;
  std::int64_t s_ = 0;
  const abi::SegmentInfo* info_ = nullptr;  // of segment s_, as is the next
  Indices page_pos_;
  std::int64_t stretches_of_ = -1;  // the table row whose stretches p_.stretches holds
  std::size_t request_ = 0;
  std::int64_t tile_rows_ = 0;
  std::int64_t step_ = 0;  // the last tile's cost of a step, and the division by it
  abi::StepDivider by_step_{};
  int class_ = kSmall;
  int list_ = kSmall;
  bool masked_ = false;
  bool drop_empty_ = false;
};

}  // namespace

void lay_tiles(Planner& p, const ScheduleState& schedule, const Batch& batch) {
  p.strips.clear();
  p.tiles.clear();
  p.items.clear();
  p.num_instances = p.num_items = p.pairs = 0;
  std::fill_n(p.total_cost, kNumClasses, 0);
  std::fill_n(p.max_piece_cost, kNumClasses, 0);
  std::fill_n(p.min_step_cost, kNumClasses, kMaxIndex);
  std::fill_n(p.num_tiles, kNumClasses, 0);
  std::fill_n(p.max_tile_cost, kNumClasses, 0);
  p.heads_differ = false;
  bool needs_mask = false;
  for (const KvSegment& segment : batch.segments) needs_mask = needs_mask || segment.masked;
  p.has_mask = !schedule.program.mask.empty();
  if (p.has_mask && needs_mask) p.mask.bind(p.params);
  TileLayer layer(p, schedule);
  for (std::size_t s = 0; s < p.segments.size(); ++s) layer.lay_segment(static_cast<std::int64_t>(s), batch.segments[s]);
}

}  // namespace girih::attention
