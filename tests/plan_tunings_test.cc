// Plans for the kernels that there are: every family's tiles and costs on chips of every generation, batches of serving's shapes (many
// short requests, one giant, prompts beside decode, prefixes shared by some). Rows and keys are far more than plan_test.cc evaluates one by
// one: what a token sees is two ranges of keys here, and items are compared with those.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "attention/cuda_state.h"
#include "plan_batches.h"

namespace girih {
namespace {

using abi::WorkItem;
using attention::PlanState;
using attention::ScheduleState;
using plan_test::PlanBatch;
using plan_test::Random;

/// A causal mask, of a window and the first tokens where they are given.
struct MaskForm {
  bool causal = false;
  std::int64_t window = 0, first = 0;  // 0: none

  Expr expression() const {
    if (!causal) return {};
    if (window == 0) return variants::causal();
    const Expr near = q_pos() - kv_pos() < window;
    return (kv_pos() <= q_pos()) & (first > 0 ? near | variants::first_tokens(first) : near);
  }
};

struct KeyRange {
  std::int64_t begin, end;
};

/// A tile of one segment and head: the keys of all its items, in the order of items.
struct PlannedTile {
  std::int32_t rows = 0;
  std::vector<KeyRange> seen, full;
};

class TuningChecker {
 public:
  TuningChecker(const PlanState& plan, const MaskForm& mask)
      : view_(plan.view), state_(*plan.schedule_state), mask_(mask), rows_(plan.view.header->num_tokens * state_.group) {}

  /// What is wrong, if anything.
  std::string check() {
    read_tiles();
    for (std::int64_t s = 0; s < std::ssize(view_.segments) && error_.empty(); ++s) {
      const abi::SegmentInfo& info = view_.segments[static_cast<std::size_t>(s)];
      for (int head = 0; head < state_.spec.num_kv_heads && error_.empty(); ++head) {
        for (std::int64_t g = 0; g < info.num_groups && error_.empty(); ++g)
          check_group(info, head, info.kv_row_begin + (info.num_table_heads > 1 ? head * info.num_groups : 0) + g);
      }
    }
    check_merged_rows();
    return error_;
  }

 private:
  template <typename... T>
  void fault(fmt::format_string<T...> text, T&&... values) {
    if (error_.empty()) error_ = fmt::format(text, std::forward<T>(values)...);
  }

  void read_tiles() {
    for (const WorkItem& item : view_.items) {
      PlannedTile& tile = tiles_[{item.kv_row, item.kv_head, item.row_begin}];
      if (tile.rows != 0 && tile.rows != item.row_count)
        fault("tile at row {} has {} rows, and {}", item.row_begin, tile.rows, item.row_count);
      tile.rows = item.row_count;
      if (item.kv_begin < item.kv_end) tile.seen.push_back({item.kv_begin, item.kv_end});
      if (item.full_begin < item.full_end) tile.full.push_back({item.full_begin, item.full_end});
    }
    for (auto& [at, tile] : tiles_) {
      const auto ascends = [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; };
      std::sort(tile.seen.begin(), tile.seen.end(), ascends);
      std::sort(tile.full.begin(), tile.full.end(), ascends);
      for (std::size_t i = 1; i < tile.seen.size(); ++i) {
        if (tile.seen[i].begin < tile.seen[i - 1].end)
          fault("keys from {} on are taken twice at row {}", tile.seen[i].begin, std::get<2>(at));
      }
    }
  }

  void check_group(const abi::SegmentInfo& info, int head, std::int64_t kv_row) {
    const abi::KvRow& row = view_.kv_rows[static_cast<std::size_t>(kv_row)];
    for (std::int64_t at = row.q_begin * state_.group; at < row.q_end * state_.group;) {
      const auto found = tiles_.find({static_cast<std::int32_t>(kv_row), head, static_cast<std::int32_t>(at)});
      if (found == tiles_.end()) {  // a group that sees nothing may be left out
        check_row(info, row, PlannedTile{}, at, kv_row);
        ++at;
        continue;
      }
      for (std::int64_t r = at; r < at + found->second.rows; ++r) check_row(info, row, found->second, r, kv_row);
      at += found->second.rows;
      ++tiles_met_;
    }
  }

  /// Keys of `row` that the token sees: ascending, not empty.
  std::vector<KeyRange> visible(const abi::SegmentInfo& info, const abi::KvRow& row, std::int64_t token) {
    std::vector<KeyRange> ranges;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      begin = std::max<std::int64_t>(begin - row.kv_pos, 0);
      end = std::min(end - row.kv_pos, row.kv_len);
      if (begin >= end) return;
      if (!ranges.empty() && ranges.back().end == begin)
        ranges.back().end = end;
      else
        ranges.push_back({begin, end});
    };
    if (info.masked == 0 || !mask_.causal) {
      add(row.kv_pos, row.kv_pos + row.kv_len);
      return ranges;
    }
    while (request_ > 0 && view_.requests[request_].q_begin > token) --request_;
    while (view_.requests[request_].q_begin + view_.requests[request_].q_len <= token) ++request_;
    const abi::RequestInfo& request = view_.requests[request_];
    const std::int64_t q_pos = request.q_pos + token - request.q_begin;
    const std::int64_t near = mask_.window > 0 ? q_pos - mask_.window + 1 : INT64_MIN / 4;
    if (mask_.first > 0) add(INT64_MIN / 4, std::min(mask_.first, std::min(near, q_pos + 1)));
    add(near, q_pos + 1);
    return ranges;
  }

  void check_row(const abi::SegmentInfo& info, const abi::KvRow& row, const PlannedTile& tile, std::int64_t at, std::int64_t kv_row) {
    const std::vector<KeyRange> ranges = visible(info, row, at / state_.group);
    for (const KeyRange& range : ranges) {
      std::int64_t key = range.begin;
      for (const KeyRange& seen : tile.seen) {
        if (seen.begin <= key && key < seen.end) key = seen.end;
      }
      if (key < range.end) fault("kv row {}: key {} of row {} is lost", kv_row, key, at);
    }
    for (const KeyRange& full : tile.full) {
      const bool inside =
          std::any_of(ranges.begin(), ranges.end(), [&](const KeyRange& r) { return r.begin <= full.begin && full.end <= r.end; });
      if (!inside) fault("kv row {}: row {} does not see all of [{}, {})", kv_row, at, full.begin, full.end);
    }
  }

  /// read_blob() has checked that rows are written once and that merges take what is announced to them.
  void check_merged_rows() {
    std::int64_t written = 0;
    std::int64_t merged = 0;
    for (const WorkItem& item : view_.items) written += (item.flags & WorkItem::kLast) != 0 && item.part_row >= 0 ? item.row_count : 0;
    for (const abi::MergeItem& merge : view_.merges) merged += std::int64_t{merge.row_count} * merge.part_count;
    if (written != merged) fault("{} rows of parts are written and {} merged", written, merged);
    if (tiles_met_ != std::ssize(tiles_)) fault("{} tiles are of no group", std::ssize(tiles_) - tiles_met_);
  }

  const attention::PlanView& view_;
  const ScheduleState& state_;
  const MaskForm mask_;
  const std::int64_t rows_;
  std::map<std::tuple<std::int32_t, int, std::int32_t>, PlannedTile> tiles_;  // by kv row, head and first row
  std::int64_t tiles_met_ = 0;
  std::size_t request_ = 0;
  std::string error_;
};

/// Specs whose tiles differ, on chips that have a kernel for them.
AttentionSpec random_spec(Random& random) {
  AttentionSpec spec;
  const auto pick = [&random](const auto& values) { return values[static_cast<std::size_t>(random.in(0, std::ssize(values) - 1))]; };
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
  if (random.one_in(4)) {
    spec.num_kv_heads = 1;
    spec.num_qo_heads = pick(std::vector{1, 8, 16, 64, 128});
    spec.head_dim_qk = 576;
    spec.head_dim_vo = 512;
    spec.v_is_k = true;
  } else {
    spec.num_kv_heads = pick(std::vector{1, 2, 3, 8});
    spec.num_qo_heads = spec.num_kv_heads * pick(std::vector{1, 2, 4, 5, 7, 8, 16});
    spec.head_dim_qk = pick(std::vector{64, 80, 96, 128, 192, 256});
    spec.head_dim_vo = spec.head_dim_qk == 192 ? 128 : spec.head_dim_qk;
    if (random.one_in(4)) {
      spec.k_dtype = spec.v_dtype = DType::e4m3;
      spec.k_scale = spec.v_scale = ScaleGranularity::tensor;
      if (random.one_in(2)) spec.q_dtype = DType::e4m3;
    }
  }
  spec.batch_invariant = random.one_in(5);
  return spec;
}

std::vector<std::int64_t> random_lengths(Random& random, std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> lengths;
  const std::int64_t form = random.in(0, 4);
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t len = random.in(0, most);
    if (form == 0) len = most / random.in(1, n);                           // Zipf's law
    if (form == 1) len = i == n / 2 ? most : random.in(0, 3);              // one giant
    if (form == 2) len = 64 * random.in(0, most / 64) + random.in(-1, 1);  // around the borders of tiles and pages
    if (form == 3) len = most;
    lengths.push_back(std::clamp<std::int64_t>(len, 0, most));
  }
  return lengths;
}

/// Requests with keys of their own, and before those perhaps levels that neighbours share.
PlanBatch random_batch(Random& random, const ScheduleState& state) {
  const AttentionLimits& limits = state.limits;
  PlanBatch b;
  b.qo_indptr = {0};
  const std::int64_t n = random.in(0, random.one_in(3) ? std::min<std::int64_t>(3, limits.max_requests) : limits.max_requests);
  std::int64_t left = limits.max_tokens;
  const std::int64_t common = random.in(1, std::min<std::int64_t>(limits.max_qo_len, 8));
  const bool mixed = random.one_in(2);
  for (std::int64_t r = 0; r < n; ++r) {
    std::int64_t len = common;
    if (mixed && random.one_in(4)) len = random.in(0, limits.max_qo_len);
    len = std::min(len, left);
    left -= len;
    b.qo_indptr.push_back(b.qo_indptr.back() + len);
  }
  // batch_invariant takes groups of several requests as large tiles, which the limits may rule out.
  const bool shares = !state.spec.batch_invariant || attention::class_units(state, attention::kLarge) > 0;
  const std::int64_t levels = shares ? random.in(1, limits.max_segments) : 1;
  const std::int64_t step = state.spec.batch_invariant ? state.tune.invariant_chunk : 1;
  b.arrays.reserve(static_cast<std::size_t>(levels));
  for (std::int64_t s = 0; s < levels; ++s) {
    plan_test::SegmentArrays& a = b.arrays.emplace_back();
    KvSegment segment;
    segment.page_size = std::vector<std::int64_t>{1, 16, 64, 7}[static_cast<std::size_t>(random.in(0, 3))];
    std::int64_t groups = n;
    if (s + 1 < levels) {  // neighbours, as many as the limit on a group's rows lets share
      a.qo_indptr = {0};
      std::int64_t begin = 0;
      const std::int64_t sharing = random.in(1, std::max<std::int64_t>(n, 1));
      for (std::int64_t r = 1; r <= n; ++r) {
        const std::int64_t end = b.qo_indptr[static_cast<std::size_t>(r)];
        const bool full = r < n && b.qo_indptr[static_cast<std::size_t>(r) + 1] - begin > limits.max_qo_len;
        if (r < n && r % sharing != 0 && !full) continue;
        a.qo_indptr.push_back(end);
        begin = end;
      }
      groups = std::ssize(a.qo_indptr) - 1;
      segment.qo_indptr = a.qo_indptr;
      segment.masked = random.one_in(2);
    }
    a.kv_len = random_lengths(random, groups, limits.max_kv_len);
    if (s + 1 < levels) {
      for (std::int64_t& len : a.kv_len) len = len / step * step;
    }
    segment.kv_len = a.kv_len;
    segment.table_stride = ceil_div(limits.max_kv_len, segment.page_size) + 1;
    b.segments.push_back(segment);
  }
  return b;
}

struct ChipForm {
  int arch;
  int num_sms;
};

TEST(PlanTunings, RandomBatches) {
  constexpr std::array kArchs{75, 80, 86, 89, 90, 90, 90, 100, 120};
  constexpr std::array kSms{1, 2, 7, 78, 132, 144};
  Random random(2026);
  for (int round = 0; round < 150; ++round) {
    const int arch = kArchs[static_cast<std::size_t>(random.in(0, std::ssize(kArchs) - 1))];
    cuda::DeviceInfo device = cuda::example_device(arch);
    device.num_sms = kSms[static_cast<std::size_t>(random.in(0, std::ssize(kSms) - 1))];
    AttentionSpec spec = random_spec(random);
    MaskForm mask{.causal = !random.one_in(4)};
    if (mask.causal && random.one_in(2)) mask.window = random.in(1, random.one_in(2) ? 40 : 2000);
    if (mask.window > 0 && random.one_in(2)) mask.first = random.in(1, 70);
    spec.variant.mask = mask.expression();
    AttentionLimits limits{.max_tokens = random.one_in(2) ? random.in(1, 64) : random.in(64, 3000),
                           .max_requests = random.in(1, random.one_in(3) ? 300 : 20),
                           .max_segments = random.one_in(3) ? random.in(2, 3) : 1};
    limits.max_kv_len = random.one_in(3) ? random.in(1, 200) : random.in(200, 20000);
    limits.max_qo_len = random.one_in(2) ? std::min<std::int64_t>(limits.max_tokens, random.in(1, 40)) : limits.max_tokens;
    const auto state = attention::make_cuda_state(device, 0, spec, limits);
    PlanState plan(state);
    for (int i = 0; i < 8; ++i) {
      PlanBatch b = random_batch(random, *state);
      if (random.one_in(6)) {
        for (std::int64_t r = 0; r < b.num_requests(); ++r) b.q_pos.push_back(random.in(-20, limits.max_kv_len));
      }
      const auto where = [&] {
        return fmt::format("round {}, batch {}: {} on sm_{} of {} multiprocessors, window {} and {}", round, i,
                           state->cuda->kernels.classes[attention::kLarge].name, arch, device.num_sms, mask.window, mask.first);
      };
      try {
        make_plan(plan, b.batch());
        attention::read_blob(
            *state, {reinterpret_cast<const std::byte*>(plan.view.header), static_cast<std::size_t>(plan.view.header->blob_bytes)});
      } catch (const std::exception& e) {
        FAIL() << where() << ": " << e.what();
      }
      const std::string error = TuningChecker(plan, mask).check();
      ASSERT_EQ(error, "") << where();
    }
  }
}

}  // namespace
}  // namespace girih
