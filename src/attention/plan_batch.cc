// First step of make_plan(): a Batch, whose arrays come from outside, becomes the blob's tables. Every rule on a batch is checked here
// and nowhere later. Lengths and positions that the caller left out are sums over the segments that cover a group's or request's first
// row; groups and rows are both ascending, so each sum is one walk.
#include <algorithm>

#include "attention/planner.h"
#include "base/error.h"
#include "base/math.h"

namespace girih::attention {
namespace {

/// Names an argument, spelled out only when a message needs it.
struct Field {
  std::int64_t s;  // segment, or -1
  const char* name;
};

}  // namespace
}  // namespace girih::attention

template <>
struct fmt::formatter<girih::attention::Field> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <typename Context>
  auto format(const girih::attention::Field& field, Context& context) const {
    if (field.s < 0) return fmt::format_to(context.out(), "{}", field.name);
    return fmt::format_to(context.out(), "segments[{}].{}", field.s, field.name);
  }
};

namespace girih::attention {
namespace {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  fail(Code::invalid_argument, kPlanOp, text, std::forward<Args>(args)...);
}

void check_size(Field field, std::int64_t size, std::int64_t expected, const char* what) {
  if (size != expected) refuse("{} has {} entries; must have {} ({})", field, size, expected, what);
}

void check_position(Field field, std::int64_t i, std::int64_t pos) {
  if (pos < -kMaxPosition || pos > kMaxPosition) refuse("{}[{}]={} is out of range; positions lie within +-2^60", field, i, pos);
}

void read_requests(Planner& p, const ScheduleState& schedule, const Batch& batch) {
  const AttentionLimits& limits = schedule.limits;
  const std::int64_t n = std::max<std::int64_t>(batch.qo_indptr.size() - 1, 0);
  if (n > limits.max_requests) refuse("qo_indptr holds {} requests; the schedule's max_requests is {}", n, limits.max_requests);
  if (n > kMaxIndex) refuse("qo_indptr holds {} requests; must be below 2^31", n);
  if (!batch.qo_indptr.empty() && batch.qo_indptr[0] != 0) refuse("qo_indptr[0]={}; must be 0", batch.qo_indptr[0]);
  if (!batch.kv_len.empty()) check_size(Field{-1, "kv_len"}, batch.kv_len.size(), n, "one per request");
  if (!batch.q_pos.empty()) check_size(Field{-1, "q_pos"}, batch.q_pos.size(), n, "one per request");
  if (!batch.q_rope_pos.empty()) check_size(Field{-1, "q_rope_pos"}, batch.q_rope_pos.size(), n, "one per request");

  p.requests.resize(static_cast<std::size_t>(n));
  std::int64_t begin = 0;
  for (std::int64_t r = 0; r < n; ++r) {
    const std::int64_t end = batch.qo_indptr[r + 1];
    if (end < begin) refuse("qo_indptr[{}]={} < qo_indptr[{}]={}; must be non-decreasing", r + 1, end, r, begin);
    if (end - begin > limits.max_qo_len && end <= limits.max_tokens) {  // too many tokens in all: below
      refuse("qo_indptr[{}]={} gives request {} {} rows; the schedule's max_qo_len is {}", r + 1, end, r, end - begin, limits.max_qo_len);
    }
    p.requests[r].q_begin = begin;
    p.requests[r].q_len = end - begin;
    begin = end;
  }
  p.num_tokens = begin;
  if (begin > limits.max_tokens) refuse("qo_indptr[{}]={} rows; the schedule's max_tokens is {}", n, begin, limits.max_tokens);
  if (begin > kMaxIndex / schedule.group) {
    refuse("qo_indptr[{}]={} rows x {} query heads per KV head; must be below 2^31", n, begin, schedule.group);
  }
}

/// A segment with what reading its rows needs.
struct SegmentReader {
  const KvSegment& segment;
  std::int64_t s;  // its number
  std::int64_t num_groups;
  bool default_groups;
  bool ragged;
  std::int64_t max_kv_len;
  Divider page;
};

std::int64_t pages_of(const SegmentReader& in, std::int64_t kv_len) {
  return in.ragged ? kv_len : in.page.quotient(kv_len + in.page.divisor - 1);
}

void check_segment(const SegmentReader& in, const ScheduleState& schedule) {
  const KvSegment& segment = in.segment;
  const std::int64_t groups = in.num_groups;
  const int kv_heads = schedule.spec.num_kv_heads;
  if (segment.page_size < 0 || segment.page_size > kMaxIndex) {
    refuse("{}={}; must be >= 1, or kEndlessPage (0)", Field{in.s, "page_size"}, segment.page_size);
  }
  if (segment.num_table_heads != 1 && segment.num_table_heads != kv_heads) {
    refuse("{}={}; must be 1 or num_kv_heads={}", Field{in.s, "num_table_heads"}, segment.num_table_heads, kv_heads);
  }
  const std::int64_t rows = groups * segment.num_table_heads;
  if (rows > kMaxIndex) refuse("{}={} x {} groups; must be below 2^31", Field{in.s, "num_table_heads"}, segment.num_table_heads, groups);
  if (segment.table_stride < 0) refuse("{}={}; must be >= 0", Field{in.s, "table_stride"}, segment.table_stride);
  if (segment.table_stride > 0) {
    if (in.ragged) refuse("{}={} with an endless page; give kv_indptr (token offsets)", Field{in.s, "table_stride"}, segment.table_stride);
    if (!segment.kv_indptr.empty()) refuse("{} excludes table_stride={}; give one of them", Field{in.s, "kv_indptr"}, segment.table_stride);
    std::int64_t entries = 0;
    if (__builtin_mul_overflow(rows, segment.table_stride, &entries)) {
      refuse("{}={} x {} table rows overflows 64 bits", Field{in.s, "table_stride"}, segment.table_stride, rows);
    }
  } else if (rows > 0 || !segment.kv_indptr.empty()) {
    check_size(Field{in.s, "kv_indptr"}, segment.kv_indptr.size(), segment.num_table_heads * (groups + 1),
               "num_table_heads x (groups + 1), or give table_stride");
  }
  if (!in.ragged || !segment.kv_len.empty()) {
    check_size(Field{in.s, "kv_len"}, segment.kv_len.size(), rows, "num_table_heads x groups");
  }
  if (!segment.kv_pos.empty()) check_size(Field{in.s, "kv_pos"}, segment.kv_pos.size(), groups, "one per group");
  if (!segment.kv_rope_pos.empty()) check_size(Field{in.s, "kv_rope_pos"}, segment.kv_rope_pos.size(), groups, "one per group");
  if (!segment.page_pos.empty()) {
    if (in.ragged) refuse("{} with an endless page; positions of pages need page_size >= 1", Field{in.s, "page_pos"});
    if (!segment.kv_pos.empty()) refuse("{} excludes kv_pos; give one of them", Field{in.s, "page_pos"});
  }
}

void check_groups(const SegmentReader& in, std::int64_t num_tokens, std::int64_t max_qo_len) {
  if (in.default_groups) return;
  const Indices& indptr = in.segment.qo_indptr;
  if (indptr[0] < 0) refuse("{}[0]={}; must be >= 0", Field{in.s, "qo_indptr"}, indptr[0]);
  for (std::int64_t g = 0; g < in.num_groups; ++g) {
    if (indptr[g + 1] < indptr[g]) {
      refuse("{}[{}]={} < [{}]={}; must be non-decreasing", Field{in.s, "qo_indptr"}, g + 1, indptr[g + 1], g, indptr[g]);
    }
    if (indptr[g + 1] - indptr[g] > max_qo_len) {
      refuse("{}[{}]={} gives group {} {} rows; the schedule's max_qo_len is {}", Field{in.s, "qo_indptr"}, g + 1, indptr[g + 1], g,
             indptr[g + 1] - indptr[g], max_qo_len);
    }
  }
  if (indptr[in.num_groups] > num_tokens) {
    refuse("{}[{}]={} exceeds the {} query rows of the batch", Field{in.s, "qo_indptr"}, in.num_groups, indptr[in.num_groups], num_tokens);
  }
}

std::int64_t checked_len(const SegmentReader& in, std::int64_t row, std::int64_t extent) {
  const std::int64_t len = in.segment.kv_len.empty() ? extent : in.segment.kv_len[row];
  const bool named = !in.segment.kv_len.empty();
  if (len < 0) refuse("{}[{}]={}; must be >= 0", Field{in.s, "kv_len"}, row, len);
  if (len > in.max_kv_len || len > kMaxIndex) {
    refuse("{}[{}]{}={} keys; the schedule's max_kv_len is {} and keys are below 2^31", Field{in.s, named ? "kv_len" : "kv_indptr"}, row,
           named ? "" : " extent", len, in.max_kv_len);
  }
  return len;
}

/// One head's table rows from kv_indptr; returns the highest entry used + 1.
std::int64_t read_csr(const SegmentReader& in, int head, abi::KvRow* rows) {
  const Indices& indptr = in.segment.kv_indptr;
  const std::int64_t base = head * (in.num_groups + 1);
  std::int64_t used = 0;
  if (in.num_groups == 0) return 0;
  std::int64_t begin = indptr[base];
  if (begin < 0) refuse("{}[{}]={}; must be >= 0", Field{in.s, "kv_indptr"}, base, begin);
  for (std::int64_t g = 0; g < in.num_groups; ++g) {
    const std::int64_t end = indptr[base + g + 1];
    if (end < begin) {
      refuse("{}[{}]={} < [{}]={}; must be non-decreasing", Field{in.s, "kv_indptr"}, base + g + 1, end, base + g, begin);
    }
    const std::int64_t len = checked_len(in, head * in.num_groups + g, end - begin);
    const std::int64_t pages = pages_of(in, len);
    if (pages > end - begin) {
      refuse("{}[{}]={} keys need {} entries; kv_indptr gives {}", Field{in.s, "kv_len"}, head * in.num_groups + g, len, pages,
             end - begin);
    }
    rows[g].table_begin = begin;
    rows[g].kv_len = len;
    if (pages > 0) used = begin + pages;
    begin = end;
  }
  return in.ragged ? 0 : used;
}

std::int64_t read_strided(const SegmentReader& in, int head, abi::KvRow* rows) {
  const std::int64_t stride = in.segment.table_stride;
  std::int64_t used = 0;
  for (std::int64_t g = 0; g < in.num_groups; ++g) {
    const std::int64_t row = head * in.num_groups + g;
    const std::int64_t len = checked_len(in, row, 0);
    const std::int64_t pages = pages_of(in, len);
    if (pages > stride) {
      refuse("{}={} entries a row; kv_len[{}]={} keys need {}", Field{in.s, "table_stride"}, stride, row, len, pages);
    }
    rows[g].table_begin = row * stride;
    rows[g].kv_len = len;
    if (pages > 0) used = row * stride + pages;
  }
  return used;
}

/// Adds to sums[i] the keys (table head 0) of the group of segment `s` that covers row first[i]; `first` gives ascending rows.
template <typename First>
void add_covering(const Planner& p, const abi::SegmentInfo& segment, std::int64_t n, First first, std::int64_t* sums) {
  const abi::KvRow* rows = p.kv_rows.data() + segment.kv_row_begin;
  std::int64_t g = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = first(i);
    while (g < segment.num_groups && rows[g].q_end <= row) ++g;
    if (g < segment.num_groups && rows[g].q_begin <= row) sums[i] += rows[g].kv_len;
  }
}

void place_keys(Planner& p, const SegmentReader& in) {
  const abi::SegmentInfo& info = p.segments[in.s];
  abi::KvRow* rows = p.kv_rows.data() + info.kv_row_begin;
  const bool given = !in.segment.kv_pos.empty();
  if (!given && in.s > 0) {
    p.sums.assign(static_cast<std::size_t>(in.num_groups), 0);
    for (std::int64_t before = 0; before < in.s; ++before) {
      add_covering(
          p, p.segments[before], in.num_groups, [&](std::int64_t g) { return rows[g].q_begin; }, p.sums.data());
    }
  }
  const bool rope = !in.segment.kv_rope_pos.empty();
  for (std::int64_t g = 0; g < in.num_groups; ++g) {
    const std::int64_t pos = given ? in.segment.kv_pos[g] : in.s > 0 ? p.sums[g] : 0;
    if (given) check_position(Field{in.s, "kv_pos"}, g, pos);
    rows[g].kv_pos = pos;
    rows[g].kv_rope_pos = rope ? in.segment.kv_rope_pos[g] : pos;
    if (rope) check_position(Field{in.s, "kv_rope_pos"}, g, rows[g].kv_rope_pos);
  }
  for (int head = 1; head < info.num_table_heads; ++head) {
    for (std::int64_t g = 0; g < in.num_groups; ++g) {
      rows[head * in.num_groups + g].kv_pos = rows[g].kv_pos;
      rows[head * in.num_groups + g].kv_rope_pos = rows[g].kv_rope_pos;
    }
  }
}

/// Cascade levels of a batch-invariant plan meet at multiples of the chunk, so that chunks are the same wherever a level ends.
void check_invariant(const Planner& p, const SegmentReader& in, std::int64_t chunk) {
  const abi::SegmentInfo& info = p.segments[in.s];
  if (in.s == 0 || info.has_page_pos != 0) return;
  for (std::int64_t g = 0; g < in.num_groups; ++g) {
    const abi::KvRow& row = p.kv_rows[info.kv_row_begin + g];
    if (row.kv_len > 0 && row.q_end > row.q_begin && row.kv_pos % chunk != 0) {
      refuse("{}[{}]={} with batch_invariant; segments must meet at multiples of {} keys: end the segment before there",
             Field{in.s, "kv_pos"}, g, row.kv_pos, chunk);
    }
  }
}

void check_page_positions(const Planner& p, const SegmentReader& in) {
  const Indices& page_pos = in.segment.page_pos;
  const abi::SegmentInfo& info = p.segments[in.s];
  if (page_pos.size() < info.num_entries) {
    refuse("{} has {} entries; must have {} (one per table entry in use)", Field{in.s, "page_pos"}, page_pos.size(), info.num_entries);
  }
  for (std::int64_t i = 0; i < info.num_groups * info.num_table_heads; ++i) {
    const abi::KvRow& row = p.kv_rows[info.kv_row_begin + i];
    const std::int64_t end = row.table_begin + pages_of(in, row.kv_len);
    for (std::int64_t e = row.table_begin; e < end; ++e) check_position(Field{in.s, "page_pos"}, e, page_pos[e]);
  }
}

void read_segment(Planner& p, const ScheduleState& schedule, const Batch& batch, std::int64_t s, std::int64_t& total_groups) {
  const KvSegment& segment = batch.segments[s];
  const bool default_groups = segment.qo_indptr.empty();
  const bool ragged = segment.page_size == kEndlessPage;
  const std::int64_t num_groups = default_groups ? std::ssize(p.requests) : segment.qo_indptr.size() - 1;
  const SegmentReader in{segment,
                         s,
                         num_groups,
                         default_groups,
                         ragged,
                         schedule.limits.max_kv_len,
                         Divider(segment.page_size > 0 ? std::min(segment.page_size, kMaxIndex) : 1)};
  const AttentionLimits& limits = schedule.limits;
  total_groups += num_groups;
  const std::int64_t max_groups = limits.max_groups > 0 ? limits.max_groups : limits.max_requests * limits.max_segments;
  if (total_groups > max_groups) {
    refuse("{} brings the groups to {}; the schedule's max_groups is {}", Field{s, "qo_indptr"}, total_groups, max_groups);
  }
  check_segment(in, schedule);
  check_groups(in, p.num_tokens, limits.max_qo_len);

  const std::size_t row_begin = p.kv_rows.size();
  const std::int64_t rows = num_groups * segment.num_table_heads;
  if (static_cast<std::int64_t>(row_begin) + rows > kMaxIndex) refuse("segments[{}] brings the table rows beyond 2^31", s);
  p.kv_rows.resize(row_begin + static_cast<std::size_t>(rows));
  std::int64_t num_entries = 0;
  for (int head = 0; head < segment.num_table_heads; ++head) {
    abi::KvRow* out = p.kv_rows.data() + row_begin + head * num_groups;
    const std::int64_t used = segment.table_stride > 0 ? read_strided(in, head, out) : read_csr(in, head, out);
    num_entries = std::max(num_entries, used);
    for (std::int64_t g = 0; g < num_groups; ++g) {
      out[g].q_begin = default_groups ? p.requests[g].q_begin : segment.qo_indptr[g];
      out[g].q_end = default_groups ? p.requests[g].q_begin + p.requests[g].q_len : segment.qo_indptr[g + 1];
    }
  }
  p.segments.push_back({.page_size = segment.page_size,
                        .num_groups = num_groups,
                        .num_entries = num_entries,
                        .kv_row_begin = static_cast<std::int32_t>(row_begin),
                        .num_table_heads = segment.num_table_heads,
                        .has_page_pos = segment.page_pos.empty() ? 0 : 1,
                        .masked = segment.masked ? 1 : 0});
  place_keys(p, in);
  if (!segment.page_pos.empty()) check_page_positions(p, in);
  if (schedule.spec.batch_invariant) check_invariant(p, in, schedule.tune.invariant_chunk);
}

/// Lengths and positions of the requests, for which all segments must be known.
void place_requests(Planner& p, const Batch& batch) {
  const std::int64_t n = std::ssize(p.requests);
  const bool given = !batch.kv_len.empty();
  if (!given) {
    p.sums.assign(static_cast<std::size_t>(n), 0);
    for (std::size_t s = 0; s < p.segments.size(); ++s) {
      if (batch.segments[s].qo_indptr.empty()) {
        // Also right for a request without rows, whose first row belongs to the next one.
        const abi::KvRow* rows = p.kv_rows.data() + p.segments[s].kv_row_begin;
        for (std::int64_t r = 0; r < n; ++r) p.sums[r] += rows[r].kv_len;
      } else {
        add_covering(
            p, p.segments[s], n, [&](std::int64_t r) { return p.requests[r].q_begin; }, p.sums.data());
      }
    }
  }
  for (std::int64_t r = 0; r < n; ++r) {
    abi::RequestInfo& request = p.requests[r];
    request.kv_len = given ? batch.kv_len[r] : p.sums[r];
    if (given && (request.kv_len < 0 || request.kv_len > kMaxPosition)) refuse("kv_len[{}]={}; must be in [0, 2^60]", r, request.kv_len);
    request.q_pos = batch.q_pos.empty() ? request.kv_len - request.q_len : batch.q_pos[r];
    request.q_rope_pos = batch.q_rope_pos.empty() ? request.q_pos : batch.q_rope_pos[r];
    if (!batch.q_pos.empty()) check_position(Field{-1, "q_pos"}, r, request.q_pos);
    if (!batch.q_rope_pos.empty()) check_position(Field{-1, "q_rope_pos"}, r, request.q_rope_pos);
  }
}

}  // namespace

void read_batch(Planner& p, const ScheduleState& schedule, const Batch& batch) {
  read_requests(p, schedule, batch);
  const std::int64_t num_segments = std::ssize(batch.segments);
  if (num_segments > schedule.limits.max_segments) {
    refuse("segments has {} entries; the schedule's max_segments is {}", num_segments, schedule.limits.max_segments);
  }
  if (num_segments > 65535) refuse("segments has {} entries; must be below 65536", num_segments);
  p.segments.clear();
  p.kv_rows.clear();
  std::int64_t total_groups = 0;
  for (std::int64_t s = 0; s < num_segments; ++s) read_segment(p, schedule, batch, s, total_groups);
  place_requests(p, batch);
  variant::bind_params(schedule.program, ParamTime::plan, batch.params, kPlanOp, p.params);
}

}  // namespace girih::attention
