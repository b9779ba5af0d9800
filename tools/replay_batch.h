// A step's entries as arrays: the append batch, and the attention batch as one paged segment or as a cascade of shared prefixes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "girih/attention.h"
#include "girih/page.h"
#include "tools/replay_scheduler.h"

namespace girih::tools {

/// Levels of shared prefixes above the requests' own pages; deeper sharing stays in the lowest level.
inline constexpr std::int64_t kMaxSharedLevels = 3;

/// Holds the arrays that `batch` and `append` point to; reused from step to step. Not movable while those are in use.
class StepBatch {
 public:
  /// With `cascade`, prefixes that adjacent entries share become upper levels, each shared page being listed once per group.
  void build(std::span<const StepEntry> entries, std::int64_t page_size, bool cascade);

  Batch batch() const;
  AppendBatch append() const;
  std::int64_t num_tokens() const { return qo_indptr_.back(); }
  std::int64_t num_segments() const { return static_cast<std::int64_t>(segments_.size()); }
  std::span<const std::int32_t> segment_indices(std::int64_t segment) const { return levels_[segment].kv_indices; }
  /// First query row of entry `i`.
  std::int64_t row(std::int64_t i) const { return qo_indptr_[i]; }

  /// Keys that requests see, each request reading its own (window 0 = no window), and keys read when a group reads shared ones once.
  std::int64_t flat_keys(std::int64_t window) const;
  std::int64_t grouped_keys(std::int64_t window) const;
  /// (row, key) pairs that a causal mask with this window lets through.
  std::int64_t visible_pairs(std::int64_t window) const;

 private:
  struct Level {
    std::vector<std::int64_t> qo_indptr, kv_indptr, kv_len, kv_pos;
    std::vector<std::int64_t> first_q_pos;  // of the group: the lowest position of its query rows
    std::vector<std::int32_t> kv_indices;
  };
  struct Range {
    std::int64_t begin, end;  // entries
    std::int64_t depth;       // prefix blocks that upper levels cover
  };

  Level& start_level();
  void add_group(Level& level, std::span<const StepEntry> entries, Range range, std::int64_t kv_begin, std::int64_t kv_end);
  bool add_shared_level(std::span<const StepEntry> entries);

  std::int64_t page_size_ = 1;
  std::vector<std::int64_t> qo_indptr_, kv_len_, q_pos_, append_kv_indptr_;
  std::vector<std::int32_t> append_kv_indices_;
  std::vector<Level> levels_;
  std::size_t num_levels_ = 0;
  std::vector<Range> ranges_, next_ranges_;
  std::vector<KvSegment> segments_;
};

}  // namespace girih::tools
