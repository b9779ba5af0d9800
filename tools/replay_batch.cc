// Batch arrays of a replay step (replay_batch.h).
#include "tools/replay_batch.h"

#include <algorithm>

namespace girih::tools {

StepBatch::Level& StepBatch::start_level() {
  if (num_levels_ == levels_.size()) levels_.emplace_back();
  Level& level = levels_[num_levels_++];
  for (auto* array : {&level.qo_indptr, &level.kv_indptr}) array->assign(1, 0);
  for (auto* array : {&level.kv_len, &level.kv_pos, &level.first_q_pos}) array->clear();
  level.kv_indices.clear();
  return level;
}

/// Keys [kv_begin, kv_end) of the range's first entry, for all its entries; kv_begin is a multiple of the page size.
void StepBatch::add_group(Level& level, std::span<const StepEntry> entries, Range range, std::int64_t kv_begin, std::int64_t kv_end) {
  const std::vector<std::int32_t>& pages = entries[range.begin].running->pages;
  const std::int64_t page_end = (kv_end + page_size_ - 1) / page_size_;
  if (kv_end > kv_begin) {
    level.kv_indices.insert(level.kv_indices.end(), pages.begin() + kv_begin / page_size_, pages.begin() + page_end);
  }
  std::int64_t first_q_pos = entries[range.begin].begin;
  for (std::int64_t i = range.begin; i < range.end; ++i) first_q_pos = std::min(first_q_pos, entries[i].begin);
  level.qo_indptr.push_back(qo_indptr_[range.end]);
  level.kv_indptr.push_back(static_cast<std::int64_t>(level.kv_indices.size()));
  level.kv_len.push_back(kv_end - kv_begin);
  level.kv_pos.push_back(kv_begin);
  level.first_q_pos.push_back(first_q_pos);
}

/// Splits every range at the next block into runs that share it. False, adding nothing, if no two entries share any.
bool StepBatch::add_shared_level(std::span<const StepEntry> entries) {
  next_ranges_.clear();
  bool any = false;
  for (const Range& range : ranges_) {
    for (std::int64_t begin = range.begin; begin < range.end;) {
      const auto& path = entries[begin].running->path;
      std::int64_t end = begin + 1;
      std::int64_t depth = range.depth;
      if (std::ssize(path) > depth) {
        const auto shares = [&](std::int64_t i) {
          const auto& other = entries[i].running->path;
          return std::ssize(other) > range.depth && other[range.depth] == path[range.depth];
        };
        while (end < range.end && shares(end)) ++end;
        if (end > begin + 1) {
          // Entries are ordered by path: what the first and the last share, all between them share.
          const auto& last = entries[end - 1].running->path;
          depth = std::mismatch(path.begin(), path.end(), last.begin(), last.end()).first - path.begin();
          any = true;
        }
      }
      next_ranges_.push_back({begin, end, depth});
      begin = end;
    }
  }
  if (!any) return false;
  Level& level = start_level();
  std::size_t parent = 0;
  for (const Range& range : next_ranges_) {
    while (ranges_[parent].end <= range.begin) ++parent;
    add_group(level, entries, range, ranges_[parent].depth * kPrefixBlock, range.depth * kPrefixBlock);
  }
  ranges_.swap(next_ranges_);
  return true;
}

void StepBatch::build(std::span<const StepEntry> entries, std::int64_t page_size, bool cascade) {
  page_size_ = page_size;
  num_levels_ = 0;
  for (auto* array : {&qo_indptr_, &append_kv_indptr_}) array->assign(1, 0);
  for (auto* array : {&kv_len_, &q_pos_}) array->clear();
  append_kv_indices_.clear();
  for (const StepEntry& entry : entries) {
    const auto& pages = entry.running->pages;
    append_kv_indices_.insert(append_kv_indices_.end(), pages.begin(), pages.begin() + (entry.kv_len() + page_size - 1) / page_size);
    append_kv_indptr_.push_back(static_cast<std::int64_t>(append_kv_indices_.size()));
    qo_indptr_.push_back(qo_indptr_.back() + entry.count);
    kv_len_.push_back(entry.kv_len());
    q_pos_.push_back(entry.begin);
  }
  const std::int64_t count = std::ssize(entries);
  ranges_.assign(1, {0, count, 0});
  for (std::int64_t i = 0; cascade && i < kMaxSharedLevels && add_shared_level(entries); ++i) {}
  Level& own = start_level();
  for (const Range& range : ranges_) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      add_group(own, entries, {i, i + 1, range.depth}, range.depth * kPrefixBlock, entries[i].kv_len());
    }
  }
  segments_.clear();
  for (std::size_t i = 0; i < num_levels_; ++i) {
    const Level& level = levels_[i];
    KvSegment segment{.page_size = page_size};
    segment.qo_indptr = level.qo_indptr;
    segment.kv_indptr = level.kv_indptr;
    segment.kv_len = level.kv_len;
    segment.kv_pos = level.kv_pos;
    segments_.push_back(segment);
  }
}

Batch StepBatch::batch() const {
  Batch batch;
  batch.qo_indptr = qo_indptr_;
  batch.segments = segments_;
  batch.kv_len = kv_len_;
  batch.q_pos = q_pos_;
  return batch;
}

AppendBatch StepBatch::append() const {
  AppendBatch append;
  append.append_indptr = qo_indptr_;
  append.kv_len = kv_len_;
  append.kv_indices = append_kv_indices_;
  append.kv_indptr = append_kv_indptr_;
  return append;
}

std::int64_t StepBatch::flat_keys(std::int64_t window) const {
  std::int64_t keys = 0;
  for (std::size_t i = 0; i < kv_len_.size(); ++i) {
    const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, q_pos_[i] - window + 1) : 0;
    keys += kv_len_[i] - first;
  }
  return keys;
}

std::int64_t StepBatch::grouped_keys(std::int64_t window) const {
  std::int64_t keys = 0;
  for (std::size_t i = 0; i < num_levels_; ++i) {
    const Level& level = levels_[i];
    for (std::size_t g = 0; g < level.kv_len.size(); ++g) {
      const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, level.first_q_pos[g] - window + 1 - level.kv_pos[g]) : 0;
      keys += std::max<std::int64_t>(0, level.kv_len[g] - first);
    }
  }
  return keys;
}

std::int64_t StepBatch::visible_pairs(std::int64_t window) const {
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < kv_len_.size(); ++i) {
    for (std::int64_t pos = q_pos_[i]; pos < kv_len_[i]; ++pos) pairs += window > 0 ? std::min(pos + 1, window) : pos + 1;
  }
  return pairs;
}

}  // namespace girih::tools
