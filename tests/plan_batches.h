// Schedules and random batches for tests of the planner. Tiles are a few rows and KV blocks a few keys, so that small batches meet
// every border; PlanBatch owns the arrays that its Batch points to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/plan.h"
#include "attention/planner.h"
#include "base/math.h"

namespace girih::plan_test {

using attention::ScheduleState;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// Uniform in [low, high].
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return in(1, n) == 1; }

 private:
  std::mt19937_64 engine_;
};

struct ScheduleForm {
  int num_kv_heads = 1;
  int group = 1;
  int num_units = 1;
  int num_small_units = -1;  // of them, where classes are separate
  bool batch_invariant = false;
  Variant variant{};
  AttentionLimits limits{.max_tokens = 4096, .max_requests = 64, .max_segments = 4, .max_groups = 4096, .max_kv_len = 1 << 20};
  attention::Tune tune{};
};

inline attention::Tune small_tune() {
  attention::Tune tune;
  tune.classes[attention::kSmall] = {.tile_rows = 3, .kv_block = 4, .cost_piece = 10, .cost_block = 4, .cost_block_row = 1};
  tune.classes[attention::kLarge] = {.tile_rows = 10, .kv_block = 8, .cost_piece = 30, .cost_block = 6, .cost_block_row = 2};
  tune.small_rows = 6;
  tune.invariant_chunk = 32;
  return tune;
}

inline std::shared_ptr<ScheduleState> make_schedule(const ScheduleForm& form) {
  auto state = std::make_shared<ScheduleState>();
  state->spec.num_kv_heads = form.num_kv_heads;
  state->spec.num_qo_heads = form.num_kv_heads * form.group;
  state->spec.head_dim_vo = state->spec.head_dim_qk;
  state->spec.batch_invariant = form.batch_invariant;
  state->spec.variant = form.variant;
  state->limits = form.limits;
  state->key = "plan_test";
  state->hash = 0x1234;
  state->num_units = form.num_units;
  state->group = form.group;
  state->part_stride = 128;
  state->tune = form.tune.small_rows > 0 ? form.tune : small_tune();
  state->program = variant::compile(form.variant);
  if (state->limits.max_qo_len == 0) state->limits.max_qo_len = state->limits.max_tokens;
  state->separate_classes = form.num_small_units >= 0;
  state->num_small_units = std::max(form.num_small_units, 0);
  attention::set_bounds(*state);
  return state;
}

struct SegmentArrays {
  std::vector<std::int64_t> qo_indptr, kv_indptr, kv_len, kv_pos, page_pos;
};

struct PlanBatch {
  std::vector<std::int64_t> qo_indptr, kv_len, q_pos;
  std::vector<SegmentArrays> arrays;
  std::vector<KvSegment> segments;
  std::vector<std::int32_t> prefix_len, document_id;
  std::vector<std::int64_t> bits_start;
  std::vector<std::uint8_t> bits;
  std::vector<ParamValue> params;  // plan-time
  Batch batch() const {
    Batch b;
    b.qo_indptr = qo_indptr;
    b.segments = segments;
    if (!kv_len.empty()) b.kv_len = kv_len;
    if (!q_pos.empty()) b.q_pos = q_pos;
    b.params = params;
    return b;
  }
  std::int64_t num_requests() const { return std::ssize(qo_indptr) - 1; }
};

/// One paged segment over the requests.
inline PlanBatch simple_batch(const std::vector<std::int64_t>& q_len, const std::vector<std::int64_t>& kv_len,
                              std::int64_t page_size = 16) {
  PlanBatch b;
  b.qo_indptr = {0};
  SegmentArrays a;
  a.kv_indptr = {0};
  for (std::size_t r = 0; r < q_len.size(); ++r) {
    b.qo_indptr.push_back(b.qo_indptr.back() + q_len[r]);
    a.kv_indptr.push_back(a.kv_indptr.back() + ceil_div(kv_len[r], page_size));
  }
  a.kv_len = kv_len;
  b.arrays.push_back(std::move(a));
  KvSegment segment;
  segment.page_size = page_size;
  segment.kv_indptr = b.arrays[0].kv_indptr;
  segment.kv_len = b.arrays[0].kv_len;
  b.segments.push_back(segment);
  return b;
}

/// A segment over random groups of rows, in a random layout. Its keys start at multiples of `align`.
inline void add_random_segment(Random& random, PlanBatch& b, int num_kv_heads, std::int64_t max_len, std::int64_t align) {
  SegmentArrays& a = b.arrays.emplace_back();
  KvSegment segment;
  const std::int64_t rows = b.qo_indptr.back();
  std::int64_t groups = b.num_requests();
  if (random.one_in(2)) {
    std::int64_t at = random.one_in(2) ? 0 : random.in(0, rows);
    a.qo_indptr = {at};
    while (at < rows && !random.one_in(6)) {
      at = std::min(rows, at + random.in(0, 20));
      a.qo_indptr.push_back(at);
    }
    groups = std::ssize(a.qo_indptr) - 1;
    segment.qo_indptr = a.qo_indptr;
  }
  segment.num_table_heads = random.one_in(4) ? num_kv_heads : 1;
  segment.masked = !random.one_in(5);
  const int layout = static_cast<int>(random.in(0, 3));  // ragged, CSR, strided, CSR with page_pos
  segment.page_size = layout == 0 ? kEndlessPage : random.in(1, 20);
  const std::int64_t rows_of_table = groups * segment.num_table_heads;
  for (std::int64_t i = 0; i < rows_of_table; ++i)
    a.kv_len.push_back(random.one_in(5) ? 0 : random.in(0, random.one_in(3) ? std::min<std::int64_t>(12, max_len) : max_len));
  std::int64_t entries = 0;
  if (layout == 2) {
    segment.table_stride = ceil_div(max_len, segment.page_size) + random.in(0, 2);
    entries = segment.table_stride * rows_of_table;
  } else {
    for (int h = 0; h < segment.num_table_heads; ++h) {
      a.kv_indptr.push_back(entries);
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t len = a.kv_len[static_cast<std::size_t>(h * groups + g)];
        entries += (layout == 0 ? len : ceil_div(len, segment.page_size)) + random.in(0, 1);
        a.kv_indptr.push_back(entries);
      }
    }
    segment.kv_indptr = a.kv_indptr;
  }
  segment.kv_len = a.kv_len;
  if (layout == 3) {
    std::int64_t pos = random.in(0, 10);
    for (std::int64_t e = 0; e < entries + 1; ++e) {
      a.page_pos.push_back(pos);
      pos += segment.page_size + (random.one_in(3) ? random.in(0, 50) : 0);
      if (random.one_in(12)) pos = random.in(0, 40);
    }
    segment.page_pos = a.page_pos;
  } else {
    for (std::int64_t g = 0; g < groups; ++g) a.kv_pos.push_back(random.in(0, 4) * align);
    segment.kv_pos = a.kv_pos;
  }
  b.segments.push_back(segment);
}

}  // namespace girih::plan_test
