// Rows that several tiles cover (cascade levels, selections beside windows) or that none does. A sweep over the borders of all segments'
// tiles, a head at a time, cuts the rows into regions of one set of tiles; a tile that is not alone everywhere writes parts, and each
// region that it touches becomes a merge of its tiles' parts in segment order, then key order. Rows that no tile covers are merges of
// nothing. Heads that see the same tiles share one list of regions.
#include <algorithm>

#include "attention/planner.h"
#include "base/error.h"

namespace girih::attention {
namespace {

/// Moves a cursor whose strip was passed to the next one of `head`.
void find_strip(const Planner& p, RegionCursor& cursor, int head) {
  for (; cursor.strip < cursor.end_strip; ++cursor.strip) {
    const abi::LineStrip& strip = p.strips[static_cast<std::size_t>(cursor.strip)];
    if (strip.head_begin <= head && head < strip.head_begin + strip.copies) {
      cursor.tile = strip.tile_begin;
      return;
    }
  }
}

/// The first item of a tile: its rows.
const abi::WorkItem& rows_of(const Planner& p, std::int32_t tile) {
  return p.items[static_cast<std::size_t>(p.tiles[static_cast<std::size_t>(tile)].item_begin)];
}

void start_cursors(Planner& p, int head) {
  p.cursors.clear();
  std::int32_t strip = 0;
  const std::int32_t num_strips = static_cast<std::int32_t>(p.strips.size());
  while (strip < num_strips) {
    const std::int32_t segment = p.strips[static_cast<std::size_t>(strip)].segment;
    RegionCursor cursor{strip, strip, 0};
    while (strip < num_strips && p.strips[static_cast<std::size_t>(strip)].segment == segment) ++strip;
    cursor.end_strip = strip;
    find_strip(p, cursor, head);
    p.cursors.push_back(cursor);
  }
}

void sweep_head(Planner& p, int head, std::int64_t rows) {
  start_cursors(p, head);
  const std::size_t first_region = p.regions.size();
  for (std::int64_t at = 0; at < rows;) {
    std::int64_t stop = rows;
    const std::int64_t cover_begin = std::ssize(p.covers);
    for (RegionCursor& cursor : p.cursors) {
      while (cursor.strip < cursor.end_strip) {
        const abi::WorkItem& item = rows_of(p, cursor.tile);
        const std::int64_t end = std::int64_t{item.row_begin} + item.row_count;
        if (end > at) {
          if (item.row_begin <= at) p.covers.push_back({cursor.strip, cursor.tile});
          stop = std::min<std::int64_t>(stop, item.row_begin <= at ? end : item.row_begin);
          break;
        }
        if (++cursor.tile == p.strips[static_cast<std::size_t>(cursor.strip)].tile_end) {
          ++cursor.strip;
          find_strip(p, cursor, head);
        }
      }
    }
    const std::int64_t cover_end = std::ssize(p.covers);
    const bool empty = cover_begin == cover_end;
    if (empty && p.regions.size() > first_region && p.regions.back().cover_begin == p.regions.back().cover_end)
      p.regions.back().row_end = stop;
    else
      p.regions.push_back({at, stop, cover_begin, cover_end});
    at = stop;
  }
}

}  // namespace

void find_regions(Planner& p, const ScheduleState& schedule) {
  p.regions.clear();
  p.covers.clear();
  p.region_begin.clear();
  const std::int64_t rows = p.num_tokens * schedule.group;
  const int lists = p.heads_differ ? schedule.spec.num_kv_heads : 1;
  for (int head = 0; head < lists; ++head) {
    p.region_begin.push_back(std::ssize(p.regions));
    sweep_head(p, head, rows);
  }
  p.region_begin.push_back(std::ssize(p.regions));
  for (const Region& region : p.regions) {
    if (region.cover_end - region.cover_begin < 2) continue;
    for (std::int64_t c = region.cover_begin; c < region.cover_end; ++c) {
      const Cover& cover = p.covers[static_cast<std::size_t>(c)];
      p.tiles[static_cast<std::size_t>(cover.tile)].shared = 1;
      p.strips[static_cast<std::size_t>(cover.strip)].shared = 1;
    }
  }
}

namespace {

bool is_empty(const Region& region) { return region.cover_begin == region.cover_end; }

/// A tile alone on all its rows writes the output itself.
bool is_direct(const Planner& p, const Region& region) {
  return !is_empty(region) && p.tiles[static_cast<std::size_t>(p.covers[static_cast<std::size_t>(region.cover_begin)].tile)].shared == 0;
}

/// Calls visit(head, region) for every region of every head.
template <typename Visit>
void for_each_region(const Planner& p, const ScheduleState& schedule, Visit visit) {
  for (int head = 0; head < schedule.spec.num_kv_heads; ++head) {
    const std::size_t list = p.heads_differ ? static_cast<std::size_t>(head) : 0;
    for (std::int64_t r = p.region_begin[list]; r < p.region_begin[list + 1]; ++r) visit(head, p.regions[static_cast<std::size_t>(r)]);
  }
}

std::size_t instance_of(const Planner& p, int head, const Cover& cover) {
  const abi::LineStrip& strip = p.strips[static_cast<std::size_t>(cover.strip)];
  const std::int64_t tiles = strip.tile_end - strip.tile_begin;
  return static_cast<std::size_t>(strip.instance_begin + (head - strip.head_begin) * tiles + (cover.tile - strip.tile_begin));
}

void add_merge(Planner& p, int head, const Region& region) {
  p.merges.push_back({.row_begin = static_cast<std::int32_t>(region.row_begin),
                      .row_count = static_cast<std::int32_t>(region.row_end - region.row_begin),
                      .part_begin = 0,
                      .part_count = 0,
                      .kv_head = head,
                      .reserved = 0});
}

[[noreturn]] void refuse_merges() {
  fail(Code::invalid_argument, kPlanOp, "the batch needs more than 2^31 merged ranges; plan fewer rows at a time");
}

}  // namespace

void lay_merges(Planner& p, const ScheduleState& schedule) {
  p.num_empty_merges = 0;
  if (p.regions.empty()) return;  // merges are of cuts alone: emit_items() empties or sizes what the last plan left
  p.merges.clear();
  p.merge_parts.clear();
  if (std::ssize(p.regions) * schedule.spec.num_kv_heads > kMaxIndex) refuse_merges();
  p.part_ranges.assign(static_cast<std::size_t>(p.num_instances), PartRange{});
  for_each_region(p, schedule, [&](int head, const Region& region) {
    if (is_empty(region)) add_merge(p, head, region);
  });
  p.num_empty_merges = std::ssize(p.merges);
  // A tile's regions follow each other, none of them empty or direct: its merges are one range.
  for_each_region(p, schedule, [&](int head, const Region& region) {
    if (is_empty(region) || is_direct(p, region)) return;
    for (std::int64_t c = region.cover_begin; c < region.cover_end; ++c) {
      PartRange& range = p.part_ranges[instance_of(p, head, p.covers[static_cast<std::size_t>(c)])];
      if (range.merge_count++ == 0) range.merge_begin = static_cast<std::int32_t>(p.merges.size());
    }
    add_merge(p, head, region);
  });
}

void fill_region_merges(Planner& p, const ScheduleState& schedule) {
  if (p.regions.empty()) return;
  std::size_t m = static_cast<std::size_t>(p.num_empty_merges);
  for_each_region(p, schedule, [&](int head, const Region& region) {
    if (is_empty(region) || is_direct(p, region)) return;
    abi::MergeItem& merge = p.merges[m++];
    merge.part_begin = static_cast<std::int32_t>(p.merge_parts.size());
    for (std::int64_t c = region.cover_begin; c < region.cover_end; ++c) {
      const Cover& cover = p.covers[static_cast<std::size_t>(c)];
      const PartRange& range = p.part_ranges[instance_of(p, head, cover)];
      const abi::WorkItem& rows = rows_of(p, cover.tile);
      const std::int32_t offset = static_cast<std::int32_t>(region.row_begin - rows.row_begin);
      const std::size_t at = p.merge_parts.size();
      if (static_cast<std::int64_t>(at) + range.count > kMaxIndex) refuse_merges();
      p.merge_parts.resize(at + static_cast<std::size_t>(range.count));
      abi::MergePart* part = p.merge_parts.data() + at;
      for (std::int32_t i = 0; i < range.count; ++i) part[i] = {range.part_row + i * rows.row_count + offset};
    }
    merge.part_count = static_cast<std::int32_t>(std::ssize(p.merge_parts)) - merge.part_begin;
  });
}

}  // namespace girih::attention
