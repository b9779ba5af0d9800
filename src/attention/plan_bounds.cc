// The most that a batch within a schedule's limits can need: partial states, items, merges and bytes of its plan. Buffers that a
// captured graph keeps are sized by these, so each bound follows from how plans are made (the comments say why) and plans are checked
// against it. Sums are 128-bit and saturate at 2^31, beyond which plans are refused.
#include <algorithm>

#include "attention/planner.h"
#include "base/math.h"

namespace girih::attention {
namespace {

__extension__ using Wide = __int128;

constexpr std::int64_t kDefaultRuns = 4;  // runs of keys a tile sees under a mask, where limits.max_items says nothing

std::int64_t saturate(Wide value) { return static_cast<std::int64_t>(std::min<Wide>(value, kMaxIndex)); }

/// Extents that all bounds are made of.
struct Extents {
  Wide packed;  // rows of one KV head
  Wide heads;
  Wide segments;
  Wide groups;               // over all segments
  Wide chunks;               // batch_invariant: pieces of one row's keys
  Wide cuts[kNumClasses];    // units of a list that may end inside a tile: all but the last
  Wide height[kNumClasses];  // rows of a tile of the list at most
  Wide cut_rows;             // rows of all tiles that may be cut
  Wide tiles;                // of one head, all segments
};

Extents extents_of(const ScheduleState& s) {
  const AttentionLimits& limits = s.limits;
  Extents e{};
  e.packed = Wide{limits.max_tokens} * s.group;
  e.heads = s.spec.num_kv_heads;
  e.segments = limits.max_segments;
  e.groups = limits.max_groups > 0 ? limits.max_groups : Wide{limits.max_requests} * limits.max_segments;
  e.chunks = s.spec.batch_invariant ? std::max<std::int64_t>(ceil_div(limits.max_kv_len, s.tune.invariant_chunk), 1) : 1;
  for (int list = 0; list < kNumClasses; ++list) {
    const int units = class_units(s, list);
    e.cuts[list] = std::max(units - 1, 0);
    const int tallest = std::max(s.tune.classes[kSmall].tile_rows, s.tune.classes[kLarge].tile_rows);
    e.height[list] = std::min<Wide>(e.packed, s.separate_classes ? s.tune.classes[list].tile_rows : tallest);
    e.cut_rows += e.cuts[list] * e.height[list];
  }
  // A small group has small_rows rows at most; a large one a thin tile at most beside its full ones.
  const bool large_occurs = !s.separate_classes || class_units(s, kLarge) > 0;
  const Wide a_group = ceil_div(std::max(s.tune.small_rows, 1), s.tune.classes[kSmall].tile_rows);
  const Wide full = large_occurs ? e.segments * e.packed / s.tune.classes[kLarge].tile_rows : 0;
  e.tiles = std::min(e.segments * e.packed, e.groups * a_group + full);
  return e;
}

/// The most keys of which no tile is ever cut: a step, or what a mask with holes makes an item of, which may begin within a step.
int uncut_keys(const ScheduleState& s) {
  const auto of = [&s](const ClassTune& tune) { return s.program.mask.empty() ? tune.kv_block : tune.align(s.spec.batch_invariant); };
  return std::min(of(s.tune.classes[kSmall]), of(s.tune.classes[kLarge]));
}

std::int64_t worst_part_rows(const ScheduleState& s, const Extents& e) {
  const Wide rows = e.packed * e.heads;
  // Each cut makes one part more than the tile had.
  if (s.spec.batch_invariant) {
    if (e.segments > 1) return saturate(rows * e.segments * e.chunks);
    return e.chunks == 1 ? 0 : saturate(std::min(e.cut_rows, rows) * e.chunks);
  }
  const Wide extra = s.limits.max_kv_len > uncut_keys(s) ? e.cut_rows : 0;
  if (e.segments > 1) return saturate(rows * e.segments + extra);
  return saturate(extra == 0 ? 0 : std::min(2 * extra, rows + extra));
}

std::int64_t worst_items(const ScheduleState& s, const Extents& e) {
  if (s.limits.max_items > 0) return s.limits.max_items;
  if (!s.separate_classes) return kMaxIndex;
  Wide runs = e.chunks;
  if (!s.spec.batch_invariant && !s.program.mask.empty()) {
    runs = std::min<Wide>(kDefaultRuns, std::max<std::int64_t>(ceil_div(s.limits.max_kv_len, uncut_keys(s)), 1));
  }
  return saturate(e.tiles * e.heads * runs + s.num_units);  // a unit's end may make two items of one
}

/// Plan-time parameters: an array has no bound of its own.
std::int64_t worst_param_bytes(const ScheduleState& s) {
  std::int64_t scalars = 0;
  for (const variant::ParamInfo& info : s.program.params) {
    if (info.time != ParamTime::plan) continue;
    if (info.kind != variant::ParamInfo::Kind::scalar) return s.limits.max_param_bytes;
    scalars += 64;
  }
  return std::min(scalars, s.limits.max_param_bytes);
}

}  // namespace

void set_bounds(ScheduleState& s) {
  const Extents e = extents_of(s);
  s.max_part_rows = worst_part_rows(s, e);
  s.max_items = worst_items(s, e);
  // A region of a head lies between neighbouring borders of tiles; with one segment only the gaps between its groups are merges.
  const Wide regions = std::min(e.packed, e.segments > 1 ? 2 * e.tiles + 1 : e.groups + 1) * e.heads;
  const Wide cuts = e.cuts[kSmall] + e.cuts[kLarge];
  s.max_merges = saturate(regions + cuts);
  // A region merges a part of each segment; a cut adds one part (batch_invariant: makes one of every chunk) to each region of its tile.
  const Wide shared = e.segments > 1 ? regions * e.segments * e.chunks + e.cut_rows : 0;
  const Wide parts = shared + 2 * cuts * e.chunks;
  const BlobCounts counts{.items = s.max_items,
                          .requests = saturate(s.limits.max_requests),
                          .segments = saturate(s.limits.max_segments),
                          .kv_rows = saturate(e.groups * e.heads),
                          .param_bytes = worst_param_bytes(s),
                          .merges = s.max_merges,
                          .merge_parts = saturate(parts)};
  s.max_blob_bytes = lay_out_blob(s, counts).blob_bytes;
}

}  // namespace girih::attention
