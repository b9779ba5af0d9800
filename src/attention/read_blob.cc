// Reads a plan's blob that came from elsewhere. Whatever run() will use as an index, an extent or a loop bound is checked against the
// schedule and the other arrays, and the plan's promises too: each output row of each head is written exactly once, parts do not
// overlap, merges read parts that were written by items that announce them there, and every merge is announced as often as it has
// parts, or a GPU's last block would never come. One pass over each array.
#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/planner.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

using abi::BlobArray;
using abi::KvRow;
using abi::PlanHeader;
using abi::WorkItem;

constexpr std::string_view kOp = "attention.plan.load";

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  fail(Code::invalid_argument, kOp, text, std::forward<Args>(args)...);
}

template <typename T>
std::span<const T> span_of(const std::byte* blob, const BlobArray& array) {
  return {reinterpret_cast<const T*>(blob + array.offset), static_cast<std::size_t>(array.count)};
}

template <typename T>
void check_array(const char* name, const BlobArray& array, std::int64_t blob_bytes, std::int64_t expected = -1) {
  if (array.count < 0 || array.count > blob_bytes / static_cast<std::int64_t>(sizeof(T)))
    refuse("header.{}.count={} does not fit the blob", name, array.count);
  if (expected >= 0 && array.count != expected) refuse("header.{}.count={}; must be {}", name, array.count, expected);
  if (array.offset < static_cast<std::int64_t>(sizeof(PlanHeader)) || array.offset % 64 != 0 ||
      array.offset > blob_bytes - array.count * static_cast<std::int64_t>(sizeof(T))) {
    refuse("header.{}.offset={}; must be a multiple of 64 inside the blob's {} bytes", name, array.offset, blob_bytes);
  }
}

void check_in(const char* what, std::int64_t i, const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) refuse("{}[{}].{}={}; must be in [{}, {}]", what, i, field, value, low, high);
}

void check_header(const ScheduleState& schedule, std::span<const std::byte> blob, const PlanHeader& h) {
  const std::int64_t size = std::ssize(blob);
  const AttentionLimits& limits = schedule.limits;
  if (h.magic != abi::kPlanMagic) refuse("header.magic={:#x}; this is not a plan", h.magic);
  if (h.version != abi::kPlanVersion) refuse("header.version={}; this library reads version {}", h.version, abi::kPlanVersion);
  if (h.blob_bytes != size) refuse("header.blob_bytes={}; the blob given has {} bytes", h.blob_bytes, size);
  if (h.schedule_hash != schedule.hash)
    refuse("header.schedule_hash={:#x}; this schedule's is {:#x}: load a plan of an equal schedule", h.schedule_hash, schedule.hash);
  check_in("header", 0, "num_tokens", h.num_tokens, 0, limits.max_tokens);
  check_in("header", 0, "num_requests", h.num_requests, 0, limits.max_requests);
  check_in("header", 0, "num_segments", h.num_segments, 0, limits.max_segments);
  check_in("header", 0, "num_units", h.num_units, schedule.num_units, schedule.num_units);
  check_in("header", 0, "batch_invariant", h.batch_invariant, schedule.spec.batch_invariant ? 1 : 0, schedule.spec.batch_invariant ? 1 : 0);
  check_in("header", 0, "part_rows", h.part_rows, 0, schedule.max_part_rows);
  for (int c = 0; c <= kNumClasses; ++c) {
    const int expected = class_unit_begin(schedule, c);
    if (h.class_unit_begin[c] != expected) refuse("header.class_unit_begin[{}]={}; must be {}", c, h.class_unit_begin[c], expected);
  }
  if (h.max_unit_cost < 0 || h.total_cost < 0 || h.max_piece_cost < 0 || h.visible_pairs < 0) refuse("header holds a negative cost");
  check_array<std::int32_t>("unit_begin", h.unit_begin, size, std::int64_t{h.num_units} + 1);
  check_array<WorkItem>("items", h.items, size);
  check_array<abi::MergeItem>("merges", h.merges, size);
  check_array<abi::MergePart>("merge_parts", h.merge_parts, size);
  check_array<abi::RequestInfo>("requests", h.requests, size, h.num_requests);
  check_array<abi::SegmentInfo>("segments", h.segments, size, h.num_segments);
  check_array<KvRow>("kv_rows", h.kv_rows, size);
  check_array<abi::PlanParam>("params", h.params, size, std::ssize(schedule.program.params));
  check_array<std::byte>("param_data", h.param_data, size);
  if (h.num_tokens > kMaxIndex / schedule.group) refuse("header.num_tokens={}; must be below 2^31 packed rows", h.num_tokens);
  if (h.items.count > kMaxIndex || h.merge_parts.count > kMaxIndex || h.kv_rows.count > kMaxIndex)
    refuse("header counts more than 2^31 entries");
  const BlobArray items_at = lay_out_blob(schedule, {}).items;
  if (h.unit_begin.offset != round_up(static_cast<std::int64_t>(sizeof(PlanHeader)), 64) || h.items.offset != items_at.offset) {
    refuse("header.unit_begin.offset={} and items.offset={}; must be {} and {}", h.unit_begin.offset, h.items.offset,
           round_up(static_cast<std::int64_t>(sizeof(PlanHeader)), 64), items_at.offset);
  }
  check_in("header", 0, "items.count", h.items.count, 0, schedule.max_items);
  check_in("header", 0, "merges.count", h.merges.count, 0, schedule.max_merges);
  check_in("header", 0, "num_empty_merges", h.num_empty_merges, 0, h.merges.count);
  check_in("header", 0, "blob_bytes", h.blob_bytes, 0, schedule.max_blob_bytes);
  if (h.param_data.count > limits.max_param_bytes)
    refuse("header.param_data.count={}; the schedule's max_param_bytes is {}", h.param_data.count, limits.max_param_bytes);
}

void check_requests(const PlanView& view) {
  std::int64_t begin = 0;
  for (std::int64_t r = 0; r < std::ssize(view.requests); ++r) {
    const abi::RequestInfo& request = view.requests[r];
    if (request.q_begin != begin) refuse("requests[{}].q_begin={}; must be {}", r, request.q_begin, begin);
    check_in("requests", r, "q_len", request.q_len, 0, view.header->num_tokens - begin);
    check_in("requests", r, "kv_len", request.kv_len, 0, 2 * kMaxPosition);
    check_in("requests", r, "q_pos", request.q_pos, -2 * kMaxPosition, 2 * kMaxPosition);
    check_in("requests", r, "q_rope_pos", request.q_rope_pos, -2 * kMaxPosition, 2 * kMaxPosition);
    begin += request.q_len;
  }
  if (begin != view.header->num_tokens) refuse("requests hold {} rows; header.num_tokens is {}", begin, view.header->num_tokens);
}

void check_segments(const ScheduleState& schedule, const PlanView& view) {
  std::int64_t next = 0;
  for (std::int64_t s = 0; s < std::ssize(view.segments); ++s) {
    const abi::SegmentInfo& segment = view.segments[s];
    check_in("segments", s, "page_size", segment.page_size, 0, kMaxIndex);
    check_in("segments", s, "num_table_heads", segment.num_table_heads, 1, schedule.spec.num_kv_heads);
    if (segment.num_table_heads != 1 && segment.num_table_heads != schedule.spec.num_kv_heads)
      refuse("segments[{}].num_table_heads={}; must be 1 or num_kv_heads", s, segment.num_table_heads);
    if (segment.kv_row_begin != next) refuse("segments[{}].kv_row_begin={}; must be {}", s, segment.kv_row_begin, next);
    check_in("segments", s, "num_groups", segment.num_groups, 0, (view.header->kv_rows.count - next) / segment.num_table_heads);
    check_in("segments", s, "has_page_pos", segment.has_page_pos, 0, segment.page_size > 0 ? 1 : 0);
    check_in("segments", s, "masked", segment.masked, 0, 1);
    const std::int64_t rows = segment.num_groups * segment.num_table_heads;
    std::int64_t used = 0;
    std::int64_t q_end = 0;
    for (std::int64_t i = next; i < next + rows; ++i) {
      const KvRow& row = view.kv_rows[i];
      const std::int64_t g = (i - next) % segment.num_groups;
      check_in("kv_rows", i, "q_begin", row.q_begin, g == 0 ? 0 : q_end, view.header->num_tokens);
      check_in("kv_rows", i, "q_end", row.q_end, row.q_begin, view.header->num_tokens);
      q_end = row.q_end;
      const KvRow& first = view.kv_rows[next + g];
      if (row.q_begin != first.q_begin || row.q_end != first.q_end)
        refuse("kv_rows[{}].q_begin={} differs from table head 0's {}", i, row.q_begin, first.q_begin);
      check_in("kv_rows", i, "kv_len", row.kv_len, 0, std::min(schedule.limits.max_kv_len, kMaxIndex));
      check_in("kv_rows", i, "table_begin", row.table_begin, 0, INT64_MAX - kMaxIndex);
      check_in("kv_rows", i, "kv_pos", row.kv_pos, -2 * kMaxPosition, 2 * kMaxPosition);
      check_in("kv_rows", i, "kv_rope_pos", row.kv_rope_pos, -2 * kMaxPosition, 2 * kMaxPosition);
      if (segment.page_size > 0 && row.kv_len > 0) used = std::max(used, row.table_begin + ceil_div(row.kv_len, segment.page_size));
    }
    if (segment.num_entries != used) refuse("segments[{}].num_entries={}; its rows use {}", s, segment.num_entries, used);
    next += rows;
  }
  if (next != view.header->kv_rows.count) refuse("header.kv_rows.count={}; the segments hold {}", view.header->kv_rows.count, next);
}

void check_params(const ScheduleState& schedule, const PlanView& view) {
  for (std::int64_t i = 0; i < std::ssize(view.params); ++i) {
    const variant::ParamInfo& info = schedule.program.params[static_cast<std::size_t>(i)];
    const abi::PlanParam& param = view.params[i];
    const bool scalar = info.kind == variant::ParamInfo::Kind::scalar;
    const std::int64_t low = info.time == ParamTime::plan && scalar ? 1 : 0;
    check_in("params", i, "size", param.size, low, info.time == ParamTime::run ? 0 : scalar ? 1 : view.header->param_data.count * 8);
    check_in("params", i, "offset", param.offset, 0, view.header->param_data.count);
    if (param.offset % 8 != 0) refuse("params[{}].offset={}; must be a multiple of 8", i, param.offset);
    if (info.time == ParamTime::run) continue;
    if (param_bytes(info, param.size) > view.header->param_data.count - param.offset)
      refuse("params[{}].size={} goes beyond param_data", i, param.size);
  }
}

class Bitmap {
 public:
  explicit Bitmap(std::int64_t bits) : words_(static_cast<std::size_t>(ceil_div(bits, 64)), 0) {}
  /// Sets [begin, end); false if one was set.
  bool claim(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint64_t& word = words_[static_cast<std::size_t>(i / 64)];
      const std::uint64_t bit = std::uint64_t{1} << (i % 64);
      if ((word & bit) != 0) return false;
      word |= bit;
    }
    return true;
  }
  bool all(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) {
      if ((words_[static_cast<std::size_t>(i / 64)] >> (i % 64) & 1) == 0) return false;
    }
    return true;
  }

 private:
  std::vector<std::uint64_t> words_;
};

/// Checks items and merges and what they write.
class WorkChecker {
 public:
  WorkChecker(const ScheduleState& schedule, const PlanView& view)
      : schedule_(schedule),
        view_(view),
        rows_(view.header->num_tokens * schedule.group),
        output_(rows_ * schedule.spec.num_kv_heads),
        part_item_(static_cast<std::size_t>(view.header->part_rows), -1),
        announced_(view.merges.size(), 0),
        merged_in_(view.items.size(), -1) {}

  void check() {
    const std::int64_t n = std::ssize(view_.items);
    if (view_.unit_begin[0] != 0) refuse("unit_begin[0]={}; must be 0", view_.unit_begin[0]);
    for (std::int32_t u = 0; u < schedule_.num_units; ++u) {
      const std::int32_t begin = view_.unit_begin[u];
      const std::int32_t end = view_.unit_begin[u + 1];
      check_in("unit_begin", u + 1, "item", end, begin, n);
      for (std::int32_t i = begin; i < end; ++i) {
        check_item(i, i > begin ? &view_.items[i - 1] : nullptr, i + 1 == end);
        if (schedule_.separate_classes && (view_.items[i].tile_class == kLarge) != (u >= schedule_.num_small_units))
          refuse("items[{}].tile_class={}; unit {} takes the other class", i, view_.items[i].tile_class, u);
      }
    }
    if (view_.unit_begin[schedule_.num_units] != n)
      refuse("unit_begin[{}]={}; must be header.items.count={}", schedule_.num_units, view_.unit_begin[schedule_.num_units], n);
    for (std::int64_t m = 0; m < std::ssize(view_.merges); ++m) check_merge(m);
    if (!output_.all(0, rows_ * schedule_.spec.num_kv_heads)) refuse("items and merges leave an output row unwritten");
  }

 private:
  void check_place(std::int64_t i, const WorkItem& item) {
    check_in("items", i, "segment", item.segment, 0, std::ssize(view_.segments) - 1);
    check_in("items", i, "kv_head", item.kv_head, 0, schedule_.spec.num_kv_heads - 1);
    check_in("items", i, "tile_class", item.tile_class, 0, kNumClasses - 1);
    check_in("items", i, "row_count", item.row_count, 1, schedule_.tune.classes[item.tile_class].tile_rows);
    const abi::SegmentInfo& segment = view_.segments[item.segment];
    const std::int64_t first = segment.kv_row_begin + (segment.num_table_heads > 1 ? item.kv_head * segment.num_groups : 0);
    check_in("items", i, "kv_row", item.kv_row, first, first + segment.num_groups - 1);
    const KvRow& row = view_.kv_rows[item.kv_row];
    check_in("items", i, "row_begin", item.row_begin, row.q_begin * schedule_.group, row.q_end * schedule_.group - item.row_count);
  }

  void check_keys(std::int64_t i, const WorkItem& item) {
    const std::int64_t len = view_.kv_rows[item.kv_row].kv_len;
    const ClassTune& tune = schedule_.tune.classes[item.tile_class];
    check_in("items", i, "kv_begin", item.kv_begin, 0, len);
    check_in("items", i, "kv_end", item.kv_end, item.kv_begin, len);
    check_in("items", i, "full_begin", item.full_begin, item.kv_begin, item.kv_end);
    check_in("items", i, "full_end", item.full_end, item.full_begin, item.kv_end);
    const auto check_border = [&](const char* field, std::int64_t key, std::int64_t from, int step, std::int64_t also) {
      if ((key - from) % step != 0 && key != also)
        refuse("items[{}].{}={}; must be {} and a multiple of {} or the end {}", i, field, key, from, step, also);
    };
    const int align = tune.align(schedule_.spec.batch_invariant);
    check_border("kv_begin", item.kv_begin, 0, align, 0);
    check_border("kv_end", item.kv_end, 0, align, len);
    check_border("full_begin", item.full_begin, item.kv_begin, tune.kv_block, item.kv_end);
    check_border("full_end", item.full_end, item.kv_begin, tune.kv_block, item.kv_end);
    if (schedule_.spec.batch_invariant && item.kv_end > item.kv_begin &&
        item.kv_begin / schedule_.tune.invariant_chunk != (item.kv_end - 1) / schedule_.tune.invariant_chunk) {
      refuse("items[{}].kv_end={}; keys from {} on must stay within a chunk of {}", i, item.kv_end, item.kv_begin,
             schedule_.tune.invariant_chunk);
    }
  }

  void check_item(std::int64_t i, const WorkItem* before, bool last_of_unit) {
    const WorkItem& item = view_.items[i];
    check_place(i, item);
    check_keys(i, item);
    const bool first = (item.flags & WorkItem::kFirst) != 0;
    const bool last = (item.flags & WorkItem::kLast) != 0;
    const bool chunk = (item.flags & WorkItem::kChunk) != 0;
    if ((item.flags & ~(WorkItem::kFirst | WorkItem::kLast | WorkItem::kChunk)) != 0)
      refuse("items[{}].flags={}; unknown bits", i, item.flags);
    if (chunk != schedule_.spec.batch_invariant) refuse("items[{}].flags={}; kChunk goes with batch_invariant", i, item.flags);
    const bool follows = before != nullptr && (before->flags & WorkItem::kLast) == 0;
    if (first == follows) refuse("items[{}].flags={}; a tile runs from one kFirst to one kLast", i, item.flags);
    if (last_of_unit && !last) refuse("items[{}].flags={}; a tile ends within its unit", i, item.flags);
    if (follows && (item.row_begin != before->row_begin || item.row_count != before->row_count || item.tile_class != before->tile_class ||
                    item.kv_row != before->kv_row || item.kv_head != before->kv_head || item.segment != before->segment ||
                    item.part_row != before->part_row || item.kv_begin < before->kv_end)) {
      refuse("items[{}] continues another tile than items[{}]", i, i - 1);
    }
    if (item.part_row >= 0 && chunk && !(first && last))
      refuse("items[{}].flags={}; a part of a batch-invariant tile is one chunk", i, item.flags);
    if (item.part_row < 0) {
      check_in("items", i, "part_row", item.part_row, -1, -1);
      const std::int64_t at = item.kv_head * rows_ + item.row_begin;
      if (last && !output_.claim(at, at + item.row_count)) refuse("items[{}].row_begin={}; its rows are written twice", i, item.row_begin);
    } else {
      check_in("items", i, "part_row", item.part_row, 0, view_.header->part_rows - item.row_count);
      if (last) claim_part(i, item);
    }
    if (!last || item.part_row < 0) {
      check_in("items", i, "merge_begin", item.merge_begin, 0, 0);
      check_in("items", i, "merge_count", item.merge_count, 0, 0);
    }
  }

  /// A part's rows are its own, and the merges that it is announced to count it.
  void claim_part(std::int64_t i, const WorkItem& item) {
    for (std::int32_t row = item.part_row; row < item.part_row + item.row_count; ++row) {
      std::int32_t& owner = part_item_[static_cast<std::size_t>(row)];
      if (owner >= 0) refuse("items[{}].part_row={}; its part overlaps another", i, item.part_row);
      owner = static_cast<std::int32_t>(i);
    }
    const std::int64_t merges = std::ssize(view_.merges);
    check_in("items", i, "merge_begin", item.merge_begin, view_.header->num_empty_merges, merges - 1);
    check_in("items", i, "merge_count", item.merge_count, 1, std::min<std::int64_t>(merges - item.merge_begin, item.row_count));
    for (std::int32_t m = item.merge_begin; m < item.merge_begin + item.merge_count; ++m) ++announced_[static_cast<std::size_t>(m)];
  }

  void check_merge(std::int64_t m) {
    const abi::MergeItem& merge = view_.merges[m];
    check_in("merges", m, "kv_head", merge.kv_head, 0, schedule_.spec.num_kv_heads - 1);
    check_in("merges", m, "row_begin", merge.row_begin, 0, rows_);
    check_in("merges", m, "row_count", merge.row_count, 1, rows_ - merge.row_begin);
    check_in("merges", m, "part_begin", merge.part_begin, 0, std::ssize(view_.merge_parts));
    check_in("merges", m, "part_count", merge.part_count, 0, std::ssize(view_.merge_parts) - merge.part_begin);
    if ((merge.part_count == 0) != (m < view_.header->num_empty_merges))
      refuse("merges[{}].part_count={}; the first {} merges and no others are empty", m, merge.part_count, view_.header->num_empty_merges);
    if (announced_[static_cast<std::size_t>(m)] != merge.part_count)
      refuse("merges[{}].part_count={}; {} items announce a part", m, merge.part_count, announced_[static_cast<std::size_t>(m)]);
    const std::int64_t at = merge.kv_head * rows_ + merge.row_begin;
    if (!output_.claim(at, at + merge.row_count)) refuse("merges[{}].row_begin={}; its rows are written twice", m, merge.row_begin);
    for (std::int32_t i = merge.part_begin; i < merge.part_begin + merge.part_count; ++i) {
      const std::int64_t row = view_.merge_parts[i].part_row;
      check_in("merge_parts", i, "part_row", row, 0, view_.header->part_rows - merge.row_count);
      const std::int32_t owner = part_item_[static_cast<std::size_t>(row)];
      if (owner < 0) refuse("merge_parts[{}].part_row={}; no item writes it", i, row);
      const WorkItem& item = view_.items[owner];
      const std::int64_t offset = std::int64_t{merge.row_begin} - item.row_begin;
      if (item.kv_head != merge.kv_head || row - item.part_row != offset || offset + merge.row_count > item.row_count)
        refuse("merge_parts[{}].part_row={}; item {} writes other rows there than merge {} takes", i, row, owner, m);
      if (m < item.merge_begin || m >= std::int64_t{item.merge_begin} + item.merge_count)
        refuse("merge_parts[{}].part_row={}; item {} does not announce it to merge {}", i, row, owner, m);
      if (std::exchange(merged_in_[static_cast<std::size_t>(owner)], static_cast<std::int32_t>(m)) == m)
        refuse("merge_parts[{}].part_row={}; merge {} takes it twice", i, row, m);
    }
  }

  const ScheduleState& schedule_;
  const PlanView& view_;
  const std::int64_t rows_;  // packed, of one head
  Bitmap output_;
  std::vector<std::int32_t> part_item_;  // which item writes a row of the workspace
  std::vector<std::int32_t> announced_;  // parts that items bring to a merge
  std::vector<std::int32_t> merged_in_;  // the last merge that took an item's part
};

}  // namespace

PlanView view_blob(const std::byte* blob) {
  PlanView view;
  view.header = reinterpret_cast<const PlanHeader*>(blob);
  view.unit_begin = span_of<std::int32_t>(blob, view.header->unit_begin);
  view.items = span_of<WorkItem>(blob, view.header->items);
  view.merges = span_of<abi::MergeItem>(blob, view.header->merges);
  view.merge_parts = span_of<abi::MergePart>(blob, view.header->merge_parts);
  view.requests = span_of<abi::RequestInfo>(blob, view.header->requests);
  view.segments = span_of<abi::SegmentInfo>(blob, view.header->segments);
  view.kv_rows = span_of<KvRow>(blob, view.header->kv_rows);
  view.params = span_of<abi::PlanParam>(blob, view.header->params);
  view.param_data = span_of<std::byte>(blob, view.header->param_data);
  return view;
}

variant::ParamTable blob_params(const ScheduleState& schedule, const PlanView& view) {
  variant::ParamTable table{};
  for (std::size_t i = 0; i < view.params.size(); ++i) {
    const variant::ParamInfo& info = schedule.program.params[i];
    if (info.time != ParamTime::plan) continue;
    const std::byte* data = view.param_data.data() + view.params[i].offset;
    if (info.kind != variant::ParamInfo::Kind::scalar) {
      table[i].data = data;
      table[i].size = view.params[i].size;
    } else if (info.dtype == DType::i64) {
      std::memcpy(&table[i].integer, data, 8);
    } else {
      double number = 0;
      std::memcpy(&number, data, 8);
      table[i].number = static_cast<float>(number);
    }
  }
  return table;
}

PlanView read_blob(const ScheduleState& schedule, std::span<const std::byte> blob) {
  if (blob.size() < sizeof(PlanHeader)) refuse("blob has {} bytes; a plan has at least {}", blob.size(), sizeof(PlanHeader));
  if (reinterpret_cast<std::uintptr_t>(blob.data()) % 64 != 0) refuse("blob is not aligned to 64 bytes");
  check_header(schedule, blob, *reinterpret_cast<const PlanHeader*>(blob.data()));
  const PlanView view = view_blob(blob.data());
  check_requests(view);
  check_segments(schedule, view);
  check_params(schedule, view);
  WorkChecker(schedule, view).check();
  return view;
}

}  // namespace girih::attention
