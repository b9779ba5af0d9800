// Properties of plans over random batches: what the mask lets through is computed exactly once, into outputs that are written exactly
// once, within the workspace that the limits promise. The mask is evaluated key by key here, with none of the planner's proofs.
// ctest: shards=2
#include "attention/plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "attention/cuda_state.h"
#include "girih/error.h"
#include "plan_batches.h"

namespace girih {
namespace {

using abi::WorkItem;
using attention::PlanState;
using attention::ScheduleState;
using plan_test::PlanBatch;
using plan_test::Random;
using plan_test::ScheduleForm;
using variant::Op;
using variant::Var;

struct Point {
  std::int64_t vars[variant::kNumVars] = {};
  std::int64_t& operator[](Var v) { return vars[static_cast<int>(v)]; }
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

/// The value of an integer mask program at one point.
bool visible(const variant::Code& code, const variant::ParamTable& params, const Point& point) {
  static thread_local std::vector<std::int64_t> v;
  v.clear();
  for (const variant::Instruction& in : code.instructions) {
    const auto arg = [&](int i) { return v[static_cast<std::size_t>(in.args[static_cast<std::size_t>(i)])]; };
    const auto element = [&](std::int64_t i, std::int64_t size) { return i >= 0 && i < size; };
    std::int64_t r = 0;
    switch (in.op) {
      case Op::const_boolean:
      case Op::const_integer: r = in.integer; break;
      case Op::var: r = point.vars[static_cast<int>(in.var)]; break;
      case Op::scalar_param: r = params[static_cast<std::size_t>(in.param)].integer; break;
      case Op::array_param: {
        const variant::ParamData& p = params[static_cast<std::size_t>(in.param)];
        if (element(arg(0), p.size)) {
          r = in.dtype == DType::i64 ? static_cast<const std::int64_t*>(p.data)[arg(0)] : static_cast<const std::int32_t*>(p.data)[arg(0)];
        }
        break;
      }
      case Op::bits_param: {
        const variant::ParamData& p = params[static_cast<std::size_t>(in.param)];
        if (element(arg(0), p.size)) r = static_cast<const std::uint8_t*>(p.data)[arg(0) / 8] >> (arg(0) % 8) & 1;
        break;
      }
      case Op::add: r = arg(0) + arg(1); break;
      case Op::sub: r = arg(0) - arg(1); break;
      case Op::mul: r = arg(0) * arg(1); break;
      case Op::div: r = floor_div(arg(0), arg(1)); break;
      case Op::mod: r = arg(1) == 0 ? 0 : arg(0) - arg(1) * floor_div(arg(0), arg(1)); break;
      case Op::neg: r = -arg(0); break;
      case Op::abs: r = std::abs(arg(0)); break;
      case Op::min: r = std::min(arg(0), arg(1)); break;
      case Op::max: r = std::max(arg(0), arg(1)); break;
      case Op::lt: r = arg(0) < arg(1); break;
      case Op::le: r = arg(0) <= arg(1); break;
      case Op::eq: r = arg(0) == arg(1); break;
      case Op::ne: r = arg(0) != arg(1); break;
      case Op::and_: r = arg(0) & arg(1); break;
      case Op::or_: r = arg(0) | arg(1); break;
      case Op::not_: r = arg(0) == 0; break;
      case Op::select: r = arg(0) != 0 ? arg(1) : arg(2); break;
      default: ADD_FAILURE() << "a mask of these tests uses op " << static_cast<int>(in.op);
    }
    v.push_back(r);
  }
  return v.back() != 0;
}

/// A batch beside its plan, with its mask evaluated point by point.
class PlanChecker {
 public:
  PlanChecker(const PlanState& plan, const PlanBatch& batch, const variant::ParamTable& params)
      : plan_(plan), state_(*plan.schedule_state), view_(plan.view), batch_(batch), params_(params) {
    rows_ = view_.header->num_tokens * state_.group;
  }

  void check(bool exact_mask) {
    count_seen();
    check_coverage();
    check_announcements();
    check_items(exact_mask);
    check_limits();
  }

 private:
  struct Span {  // keys [begin, end) of a kv row
    std::int32_t kv_row, begin, end;
  };

  std::int64_t position(std::int64_t segment, const abi::KvRow& row, std::int64_t key) const {
    const abi::SegmentInfo& info = view_.segments[static_cast<std::size_t>(segment)];
    if (info.has_page_pos == 0) return row.kv_pos + key;
    return batch_.segments[static_cast<std::size_t>(segment)].page_pos[row.table_begin + key / info.page_size] + key % info.page_size;
  }

  bool sees(std::int64_t head, std::int64_t packed, std::int64_t segment, const abi::KvRow& row, std::int64_t key) const {
    if (view_.segments[static_cast<std::size_t>(segment)].masked == 0 || state_.program.mask.empty()) return true;
    const std::int64_t token = packed / state_.group;
    std::size_t r = 0;
    while (view_.requests[r].q_begin + view_.requests[r].q_len <= token) ++r;
    const abi::RequestInfo& request = view_.requests[r];
    Point point;
    point[Var::q_idx] = token - request.q_begin;
    point[Var::q_pos] = request.q_pos + point[Var::q_idx];
    point[Var::q_len] = request.q_len;
    point[Var::kv_len] = request.kv_len;
    point[Var::request] = static_cast<std::int64_t>(r);
    point[Var::q_row] = token;
    point[Var::kv_head] = head;
    point[Var::q_head] = head * state_.group + packed % state_.group;
    point[Var::kv_pos] = position(segment, row, key);
    return visible(state_.program.mask, params_, point);
  }

  /// For each output row the key spans that reach it, in the order in which they are folded.
  void count_seen() {
    seen_.assign(static_cast<std::size_t>(rows_ * state_.spec.num_kv_heads), {});
    writes_.assign(seen_.size(), 0);
    struct PartRow {
      std::int64_t output_row;
      std::vector<Span> spans;
    };
    std::map<std::int32_t, PartRow> parts;  // by row of the workspace
    std::vector<Span> tile;
    for (const WorkItem& item : view_.items) {
      if ((item.flags & WorkItem::kFirst) != 0) tile.clear();
      tile.push_back({item.kv_row, item.kv_begin, item.kv_end});
      if ((item.flags & WorkItem::kLast) == 0) continue;
      for (std::int32_t i = 0; i < item.row_count; ++i) {
        const std::int64_t at = item.kv_head * rows_ + item.row_begin + i;
        if (item.part_row >= 0) {
          EXPECT_TRUE(parts.emplace(item.part_row + i, PartRow{at, tile}).second) << "parts overlap at row " << item.part_row + i;
          continue;
        }
        seen_[static_cast<std::size_t>(at)] = tile;
        ++writes_[static_cast<std::size_t>(at)];
      }
    }
    for (const auto& part : parts) EXPECT_LT(part.first, view_.header->part_rows);
    for (const abi::MergeItem& merge : view_.merges) {
      for (std::int32_t i = 0; i < merge.row_count; ++i) {
        const std::size_t at = static_cast<std::size_t>(merge.kv_head * rows_ + merge.row_begin + i);
        ++writes_[at];
        for (std::int32_t part = merge.part_begin; part < merge.part_begin + merge.part_count; ++part) {
          const auto found = parts.find(view_.merge_parts[static_cast<std::size_t>(part)].part_row + i);
          ASSERT_NE(found, parts.end());
          ASSERT_EQ(found->second.output_row, static_cast<std::int64_t>(at)) << "a part of another row is merged";
          seen_[at].insert(seen_[at].end(), found->second.spans.begin(), found->second.spans.end());
        }
      }
    }
  }

  /// Each merge hears of exactly its parts, once each, and empty ones come first.
  void check_announcements() {
    std::vector<std::set<std::int32_t>> heard(view_.merges.size());
    for (const WorkItem& item : view_.items) {
      if ((item.flags & WorkItem::kLast) == 0 || item.part_row < 0) {
        EXPECT_EQ(item.merge_count, 0);
        continue;
      }
      ASSERT_GE(item.merge_count, 1);
      ASSERT_LE(item.merge_begin + item.merge_count, std::ssize(view_.merges));
      for (std::int32_t m = item.merge_begin; m < item.merge_begin + item.merge_count; ++m) {
        const abi::MergeItem& merge = view_.merges[static_cast<std::size_t>(m)];
        EXPECT_EQ(merge.kv_head, item.kv_head);
        const std::int32_t part = item.part_row + merge.row_begin - item.row_begin;
        EXPECT_TRUE(heard[static_cast<std::size_t>(m)].insert(part).second) << "merge " << m;
      }
    }
    for (std::size_t m = 0; m < view_.merges.size(); ++m) {
      const abi::MergeItem& merge = view_.merges[m];
      std::set<std::int32_t> parts;
      for (std::int32_t i = 0; i < merge.part_count; ++i)
        parts.insert(view_.merge_parts[static_cast<std::size_t>(merge.part_begin + i)].part_row);
      EXPECT_EQ(parts, heard[m]) << "merge " << m;
      EXPECT_EQ(merge.part_count == 0, static_cast<std::int32_t>(m) < view_.header->num_empty_merges) << "merge " << m;
    }
  }

  void check_coverage() {
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      ASSERT_EQ(writes_[i], 1) << "head and row " << i;
      // Ascending by segment (kv rows are in segment order) and key, so no key twice.
      std::int64_t last_row = -1;
      std::int64_t last_key = 0;
      for (const Span& span : seen_[i]) {
        ASSERT_TRUE(span.kv_row > last_row || (span.kv_row == last_row && span.begin >= last_key)) << "keys out of order in row " << i;
        last_row = span.kv_row;
        last_key = span.end;
      }
      check_row(static_cast<std::int64_t>(i) / rows_, static_cast<std::int64_t>(i) % rows_, seen_[i]);
    }
  }

  void check_row(std::int64_t head, std::int64_t packed, const std::vector<Span>& seen) {
    std::size_t used = 0;
    for (std::int64_t s = 0; s < std::ssize(view_.segments); ++s) {
      const abi::SegmentInfo& info = view_.segments[static_cast<std::size_t>(s)];
      for (std::int64_t g = 0; g < info.num_groups; ++g) {
        const std::int64_t index = info.kv_row_begin + (info.num_table_heads > 1 ? head * info.num_groups : 0) + g;
        const abi::KvRow& row = view_.kv_rows[static_cast<std::size_t>(index)];
        const std::int64_t token = packed / state_.group;
        if (token < row.q_begin || token >= row.q_end) continue;
        std::vector<bool> covered(static_cast<std::size_t>(row.kv_len), false);
        for (const Span& span : seen) {
          if (span.kv_row != index) continue;
          ++used;
          for (std::int32_t k = span.begin; k < span.end; ++k) covered[static_cast<std::size_t>(k)] = true;
        }
        for (std::int64_t key = 0; key < row.kv_len; ++key) {
          if (covered[static_cast<std::size_t>(key)]) continue;
          ASSERT_FALSE(sees(head, packed, s, row, key))
              << "head " << head << " row " << packed << " segment " << s << " key " << key << " is lost";
        }
      }
    }
    ASSERT_EQ(used, seen.size()) << "row " << packed << " gets keys of another group";
  }

  void check_items(bool exact_mask) {
    for (const WorkItem& item : view_.items) {
      const abi::KvRow& row = view_.kv_rows[static_cast<std::size_t>(item.kv_row)];
      const std::int32_t block = state_.tune.classes[item.tile_class].kv_block;
      for (std::int32_t begin = item.kv_begin; begin < item.kv_end; begin += block) {
        bool any = false;
        bool all = true;
        for (std::int32_t i = 0; i < item.row_count; ++i) {
          for (std::int32_t key = begin; key < std::min(begin + block, item.kv_end); ++key) {
            const bool one = sees(item.kv_head, item.row_begin + i, item.segment, row, key);
            any = any || one;
            all = all && one;
          }
        }
        if (begin >= item.full_begin && begin < item.full_end) {
          ASSERT_TRUE(all) << "row " << item.row_begin << " key " << begin << " needs its mask";
        }
        if (exact_mask && !state_.spec.batch_invariant) {
          ASSERT_TRUE(any) << "row " << item.row_begin << " key " << begin << " is never visible";
        }
      }
    }
  }

  void check_limits() {
    EXPECT_LE(view_.header->part_rows, state_.max_part_rows);
    EXPECT_LE(plan_.info.workspace_bytes, attention::lay_out_workspace(state_, state_.max_part_rows).total);
    EXPECT_EQ(plan_.info.num_items, std::ssize(view_.items));
    EXPECT_EQ(plan_.info.num_merges, std::ssize(view_.merges));
    EXPECT_LE(std::ssize(view_.items), state_.max_items);
    EXPECT_LE(std::ssize(view_.merges), state_.max_merges);
    EXPECT_LE(plan_.info.blob_bytes, state_.max_blob_bytes);
    std::int64_t total = 0;
    std::int64_t largest = 0;
    for (int c = 0; c < attention::kNumClasses; ++c) {
      const int begin = view_.header->class_unit_begin[c];
      const int end = view_.header->class_unit_begin[c + 1];
      std::int64_t class_total = 0;
      std::int64_t class_largest = 0;
      for (int u = begin; u < end; ++u) {
        std::int64_t cost = 0;
        for (std::int32_t i = view_.unit_begin[u]; i < view_.unit_begin[u + 1]; ++i) {
          cost += view_.items[i].cost;
          if (state_.separate_classes) {
            EXPECT_EQ(view_.items[i].tile_class, c);
          }
        }
        class_total += cost;
        class_largest = std::max(class_largest, cost);
      }
      total += class_total;
      largest = std::max(largest, class_largest);
      // What contiguous stretches can promise at any size: a unit stops less than a piece short, and a cut repeats less than a piece.
      if (begin < end && uses_all_units()) {
        EXPECT_LE(class_largest, (class_total / (end - begin) + 3 * plan_.info.max_piece_cost) * 129 / 128 + 2);
      }
    }
    EXPECT_EQ(view_.header->class_unit_begin[attention::kNumClasses], state_.num_units);
    EXPECT_EQ(plan_.info.total_cost, total);
    EXPECT_EQ(plan_.info.max_unit_cost, largest);
  }

  /// No tuning asks for some of them to stay idle.
  bool uses_all_units() const {
    for (const attention::ClassTune& tune : state_.tune.classes) {
      if (tune.gang > 1 || tune.cost_part_row > 0) return false;
    }
    return state_.cuda == nullptr;
  }

  const PlanState& plan_;
  const ScheduleState& state_;
  const attention::PlanView& view_;
  const PlanBatch& batch_;
  const variant::ParamTable& params_;
  std::int64_t rows_ = 0;
  std::vector<std::vector<Span>> seen_;
  std::vector<int> writes_;
};

/// Copies of a blob at 64-byte alignment.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::span<const std::byte> from) : memory_(from.size() + 64), size_(from.size()) {
    std::memcpy(data(), from.data(), from.size());
  }
  std::byte* data() { return memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64; }
  std::span<const std::byte> bytes() { return {data(), size_}; }

 private:
  std::vector<std::byte> memory_;
  std::size_t size_;
};

std::span<const std::byte> blob_of(const PlanState& plan) {
  return {reinterpret_cast<const std::byte*>(plan.view.header), static_cast<std::size_t>(plan.view.header->blob_bytes)};
}

struct MaskCase {
  const char* name;
  Expr mask;
  bool exact;  // of hulls of one request: a tile's block that no row sees is dropped
};

std::vector<MaskCase> mask_cases() {
  const Expr p = q_pos();
  const Expr k = kv_pos();
  return {{"none", Expr(), true},
          {"causal", variants::causal(), true},
          {"window", variants::window(9, 0), true},
          {"window both ways", variants::window(5, 7), true},
          {"window and first tokens", (k <= p) & ((p - k < 12) | variants::first_tokens(5)), true},
          {"strided", (k <= p) & ((p - k) % Expr(16) < Expr(3)), false},
          {"chunked local", variants::chunked_local(16), false},
          {"prefix", variants::prefix_lm(ParamTime::plan), true},
          {"document", variants::document(ParamTime::plan), false},
          {"custom bits", variants::custom_mask(ParamTime::run), false},
          {"by head", k <= p - q_head() * 3, false},
          {"by kv head", k <= p - kv_head() * 5, false},
          {"by request", (k + request() * 4 <= p) | (q_idx() == 2) | (q_row() < 3), false},
          {"nothing", k < Expr(-1000), true},
          {"lengths", k < kv_len() - q_len(), true}};
}

void fill_params(Random& random, const variant::Program& program, PlanBatch& b, variant::ParamTable& all) {
  for (int i = 0; i < 64; ++i) b.prefix_len.push_back(static_cast<std::int32_t>(random.in(0, 30)));
  std::int32_t id = 0;
  for (int i = 0; i < 400; ++i) b.document_id.push_back(id += random.one_in(15) ? 1 : 0);
  for (int i = 0; i < 64; ++i) b.bits_start.push_back(random.in(0, 100));
  for (int i = 0; i < 2000; ++i) b.bits.push_back(static_cast<std::uint8_t>(random.in(0, 255)));
  const std::vector<ParamValue> values = {
      {.name = "prefix_len", .array = TensorView(b.prefix_len.data(), DType::i32, {std::ssize(b.prefix_len)})},
      {.name = "document_id", .array = TensorView(b.document_id.data(), DType::i32, {std::ssize(b.document_id)})},
      {.name = "custom_mask_start", .array = TensorView(b.bits_start.data(), DType::i64, {std::ssize(b.bits_start)})},
      {.name = "custom_mask", .array = TensorView(b.bits.data(), DType::u8, {std::ssize(b.bits)})}};
  std::vector<ParamValue> run_time;
  for (const ParamValue& value : values) {
    for (const variant::ParamInfo& info : program.params) {
      if (info.name == value.name) (info.time == ParamTime::plan ? b.params : run_time).push_back(value);
    }
  }
  variant::bind_params(program, ParamTime::plan, b.params, "test", all);
  variant::bind_params(program, ParamTime::run, run_time, "test", all);
}

/// One request a group, positions in one run: the hulls are then the rows themselves.
bool hulls_are_exact(const PlanState& plan) {
  for (const abi::SegmentInfo& segment : plan.view.segments) {
    if (segment.has_page_pos != 0) return false;
    for (std::int64_t g = 0; g < segment.num_groups; ++g) {
      const abi::KvRow& row = plan.view.kv_rows[static_cast<std::size_t>(segment.kv_row_begin + g)];
      for (const abi::RequestInfo& request : plan.view.requests) {
        const bool outside = request.q_begin >= row.q_end || request.q_begin + request.q_len <= row.q_begin;
        if (!outside && (request.q_begin > row.q_begin || request.q_begin + request.q_len < row.q_end)) return false;
      }
    }
  }
  return true;
}

PlanBatch random_batch(Random& random, int num_kv_heads, bool invariant, std::int64_t chunk, std::int64_t max_len = 150) {
  PlanBatch b;
  b.qo_indptr = {0};
  const std::int64_t requests = random.in(0, 6);
  for (std::int64_t r = 0; r < requests; ++r) {
    b.qo_indptr.push_back(b.qo_indptr.back() + (random.one_in(2) ? 1 : random.in(0, random.one_in(4) ? 40 : 9)));
  }
  const std::int64_t segments = random.one_in(2) ? 1 : random.in(0, 3);
  b.arrays.reserve(static_cast<std::size_t>(segments));
  for (std::int64_t s = 0; s < segments; ++s) {
    plan_test::add_random_segment(random, b, num_kv_heads, random.one_in(4) ? max_len : std::min<std::int64_t>(max_len, 40),
                                  invariant ? chunk : 1);
  }
  if (random.one_in(3)) {
    for (std::int64_t r = 0; r < requests; ++r) b.q_pos.push_back(random.in(-5, 60));
  }
  return b;
}

/// Small tiles with what some kernels ask for: items that begin within steps, gangs, merges that cost.
attention::Tune random_tune(Random& random) {
  attention::Tune tune = plan_test::small_tune();
  for (attention::ClassTune& c : tune.classes) {
    c.kv_align = c.kv_block >> random.in(0, 2);
    c.gang = static_cast<int>(random.in(1, 3));
    c.cost_part_row = random.one_in(2) ? random.in(0, 10) : 0;
  }
  return tune;
}

/// What kernels tell about their grids: units for whoever is free, blocks that make room for small tiles'.
std::shared_ptr<const attention::CudaState> random_kernels(Random& random, const ScheduleState& state) {
  auto cuda = std::make_shared<attention::CudaState>();
  for (int c = 0; c < attention::kNumClasses; ++c) {
    if (attention::class_units(state, c) % 2 != 0 || state.tune.classes[static_cast<std::size_t>(c)].gang > 1) continue;
    if (random.one_in(2)) cuda->kernels.classes[static_cast<std::size_t>(c)].unit_turns = 2;
    if (c == attention::kLarge) cuda->kernels.classes[static_cast<std::size_t>(c)].shares_sms = random.one_in(2);
  }
  return cuda;
}

class PlanProperties : public testing::TestWithParam<int> {};

TEST_P(PlanProperties, RandomBatches) {
  const MaskCase mask = mask_cases()[static_cast<std::size_t>(GetParam())];
  Random random(1000 + static_cast<std::uint64_t>(GetParam()));
  for (int round = 0; round < 60; ++round) {
    ScheduleForm form;
    form.num_kv_heads = static_cast<int>(random.in(1, 3));
    form.group = static_cast<int>(random.in(1, 4));
    form.num_units = random.one_in(4) ? 132 : static_cast<int>(random.in(1, 9));
    if (form.num_units > 1 && random.one_in(2)) form.num_small_units = static_cast<int>(random.in(1, form.num_units - 1));
    form.batch_invariant = random.one_in(3);
    form.variant.mask = mask.mask;
    // Tight limits: the bound on parts must hold for exactly these.
    const std::int64_t max_len = random.one_in(4) ? random.in(1, 10) : 150;
    form.limits = {.max_tokens = 300, .max_requests = 8, .max_segments = 3, .max_groups = 200, .max_kv_len = max_len};
    if (!mask.exact) form.limits.max_items = 20000;  // masks with many holes
    if (random.one_in(2)) form.tune = random_tune(random);
    const auto state = plan_test::make_schedule(form);
    if (state->separate_classes && random.one_in(2)) state->cuda = random_kernels(random, *state);
    PlanState plan(state);
    for (int i = 0; i < 10; ++i) {
      SCOPED_TRACE(testing::Message() << mask.name << ", round " << round << ", batch " << i);
      PlanBatch b = random_batch(random, form.num_kv_heads, form.batch_invariant, state->tune.invariant_chunk, max_len);
      variant::ParamTable params{};
      fill_params(random, state->program, b, params);
      make_plan(plan, b.batch());
      PlanChecker(plan, b, params).check(mask.exact && hulls_are_exact(plan));
      if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) return;

      AlignedBytes copy(blob_of(plan));
      const attention::PlanView again = attention::read_blob(*state, copy.bytes());
      EXPECT_EQ(again.items.size(), plan.view.items.size());
      EXPECT_EQ(0, std::memcmp(again.header, plan.view.header, copy.bytes().size()));
      PlanState fresh(state);
      make_plan(fresh, b.batch());
      EXPECT_EQ(blob_of(fresh).size(), copy.bytes().size());
      EXPECT_EQ(0, std::memcmp(blob_of(fresh).data(), copy.data(), copy.bytes().size()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Masks, PlanProperties, testing::Range(0, static_cast<int>(mask_cases().size())));

/// Items that begin within steps: keys that are one step at most may still be two items of a tile, which may be cut between them.
TEST(Plan, BoundsOfItemsWithinAStep) {
  Random random(13);
  for (int round = 0; round < 100; ++round) {
    ScheduleForm form;
    form.num_units = static_cast<int>(random.in(2, 12));
    form.num_small_units = 1;
    form.variant.mask = (kv_pos() <= q_pos()) & (variants::first_tokens(1) | (q_pos() - kv_pos() < 2));
    form.limits = {.max_tokens = 80, .max_requests = 4, .max_segments = 1, .max_groups = 4, .max_kv_len = random.in(1, 8)};
    form.tune = plan_test::small_tune();
    form.tune.classes[attention::kSmall].kv_block = 8;
    form.tune.classes[attention::kLarge].kv_align = 1;
    const auto state = plan_test::make_schedule(form);
    PlanState plan(state);
    std::vector<std::int64_t> kv_len;
    for (int r = 0; r < 4; ++r) kv_len.push_back(random.in(0, form.limits.max_kv_len));
    PlanBatch b = plan_test::simple_batch({20, 20, 20, 20}, kv_len);
    for (const std::int64_t len : kv_len) b.q_pos.push_back(len - random.in(0, 3));
    make_plan(plan, b.batch());
    PlanChecker(plan, b, variant::ParamTable{}).check(true);
    if (testing::Test::HasFailure()) FAIL() << "round " << round;
  }
}

TEST(Plan, SingleSegmentKeepsItsOwnBound) {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    ScheduleForm form;
    form.num_kv_heads = static_cast<int>(random.in(1, 3));
    form.group = static_cast<int>(random.in(1, 4));
    form.num_units = static_cast<int>(random.in(1, 40));
    form.batch_invariant = random.one_in(2);
    if (form.num_units > 1 && random.one_in(2)) form.num_small_units = static_cast<int>(random.in(1, form.num_units - 1));
    form.limits = {.max_tokens = 260, .max_requests = 6, .max_segments = 1, .max_groups = 1000, .max_kv_len = random.one_in(2) ? 150 : 40};
    form.tune = plan_test::small_tune();
    for (attention::ClassTune& tune : form.tune.classes) {
      tune.gang = static_cast<int>(random.in(1, 3));
      tune.cost_part_row = random.in(0, 10);
    }
    const auto state = plan_test::make_schedule(form);
    PlanState plan(state);
    PlanBatch b = random_batch(random, form.num_kv_heads, form.batch_invariant, 32);
    b.segments.clear();
    b.arrays.clear();
    plan_test::add_random_segment(random, b, form.num_kv_heads, form.limits.max_kv_len, 1);
    make_plan(plan, b.batch());
    PlanChecker(plan, b, variant::ParamTable{}).check(true);
    if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) FAIL() << "round " << round;
  }
}

/// Tiles of one group that read the same keys are at the same place of two lines of units, not one behind the other.
TEST(Plan, GangsHaveLinesOfTheirOwn) {
  ScheduleForm form;
  form.group = 4;
  form.num_units = 8;
  form.tune = plan_test::small_tune();
  form.tune.classes[attention::kLarge] = {.tile_rows = 8, .kv_block = 8, .cost_piece = 30, .cost_block = 6, .cost_block_row = 0, .gang = 2};
  const auto state = plan_test::make_schedule(form);
  PlanState plan(state);
  const PlanBatch b = plan_test::simple_batch(std::vector<std::int64_t>(8, 4), std::vector<std::int64_t>(8, 160));
  make_plan(plan, b.batch());
  const auto& view = plan.view;
  for (int u = 0; u < 4; ++u) {
    const std::span first = view.items.subspan(static_cast<std::size_t>(view.unit_begin[static_cast<std::size_t>(u)]), 2);
    const std::span second = view.items.subspan(static_cast<std::size_t>(view.unit_begin[static_cast<std::size_t>(u) + 4]), 2);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(first[i].kv_row, 2 * u + static_cast<int>(i));
      EXPECT_EQ(second[i].kv_row, first[i].kv_row);
      EXPECT_EQ(second[i].row_begin, first[i].row_begin + 8);
      EXPECT_EQ(first[i].part_row, -1);
    }
  }
}

TEST(Plan, EmptyBatches) {
  ScheduleForm form;
  form.num_kv_heads = 2;
  form.num_units = 3;
  PlanState plan(plan_test::make_schedule(form));
  make_plan(plan, Batch{});
  EXPECT_EQ(plan.info.num_items, 0);
  EXPECT_EQ(plan.info.num_merges, 0);
  // Rows but no segment at all: empty rows, written by merges of nothing.
  PlanBatch b;
  b.qo_indptr = {0, 3, 3};
  make_plan(plan, b.batch());
  ASSERT_EQ(plan.view.merges.size(), 2U);
  EXPECT_EQ(plan.view.merges[0].part_count, 0);
  EXPECT_EQ(plan.view.merges[0].row_count, 3);
  // No keys: one item that writes the empty state.
  b = plan_test::simple_batch({1, 0, 2}, {0, 5, 0});
  make_plan(plan, b.batch());
  EXPECT_EQ(plan.info.num_items, 4);
  for (const WorkItem& item : plan.view.items) EXPECT_EQ(item.kv_begin, item.kv_end);
}

TEST(Plan, PositionsAndLengthsNotGiven) {
  ScheduleForm form;
  PlanState plan(plan_test::make_schedule(form));
  // A prefix of 20 keys shared by requests 0 and 1, then their own keys.
  PlanBatch b = plan_test::simple_batch({2, 1, 3}, {7, 9, 4});
  const std::vector<std::int64_t> groups = {0, 3};
  const std::vector<std::int64_t> indptr = {0, 2};
  const std::vector<std::int64_t> len = {20};
  KvSegment prefix;
  prefix.qo_indptr = groups;
  prefix.kv_indptr = indptr;
  prefix.kv_len = len;
  b.segments.insert(b.segments.begin(), prefix);
  make_plan(plan, b.batch());
  const auto& requests = plan.view.requests;
  EXPECT_EQ(requests[0].kv_len, 27);
  EXPECT_EQ(requests[0].q_pos, 25);
  EXPECT_EQ(requests[1].kv_len, 29);
  EXPECT_EQ(requests[1].q_pos, 28);
  EXPECT_EQ(requests[2].kv_len, 4);
  EXPECT_EQ(requests[2].q_pos, 1);
  EXPECT_EQ(plan.view.kv_rows[0].kv_pos, 0);
  EXPECT_EQ(plan.view.kv_rows[1].kv_pos, 20);
  EXPECT_EQ(plan.view.kv_rows[2].kv_pos, 20);
  EXPECT_EQ(plan.view.kv_rows[3].kv_pos, 0);
  EXPECT_EQ(plan.view.kv_rows[3].kv_rope_pos, 0);
}

/// Decode lengths by Zipf's law: a few long requests and a long tail.
TEST(Plan, BalanceOfZipfBatches) {
  Random random(3);
  for (int round = 0; round < 60; ++round) {
    ScheduleForm form;
    form.num_kv_heads = 8;
    form.group = 4;
    form.num_units = static_cast<int>(random.in(2, 132));
    form.variant.mask = random.one_in(2) ? variants::causal() : Expr();
    form.limits = {.max_tokens = 1 << 16, .max_requests = 4096, .max_segments = 1, .max_groups = 4096, .max_kv_len = 1 << 20};
    form.tune.classes[attention::kSmall] = {.tile_rows = 8, .kv_block = 64, .cost_piece = 30, .cost_block = 16, .cost_block_row = 2};
    form.tune.classes[attention::kLarge] = {.tile_rows = 64, .kv_block = 64, .cost_piece = 60, .cost_block = 64, .cost_block_row = 8};
    form.tune.small_rows = 8;
    form.tune.invariant_chunk = 2048;
    PlanState plan(plan_test::make_schedule(form));
    std::vector<std::int64_t> q_len;
    std::vector<std::int64_t> kv_len;
    const std::int64_t requests = random.in(1, 300);
    for (std::int64_t r = 0; r < requests; ++r) {
      kv_len.push_back(200000 / random.in(1, requests));
      q_len.push_back(random.one_in(10) ? std::min<std::int64_t>(kv_len.back(), 100) : 1);
    }
    const PlanBatch b = plan_test::simple_batch(q_len, kv_len);
    make_plan(plan, b.batch());
    const std::int64_t mean = ceil_div(plan.info.total_cost, form.num_units);
    EXPECT_LE(static_cast<double>(plan.info.max_unit_cost), 1.05 * static_cast<double>(std::max(mean, plan.info.max_piece_cost)))
        << form.num_units << " units, " << requests << " requests, piece " << plan.info.max_piece_cost;
  }
}

/// Where classes are separate, what one list holds moves nothing in the other: a decode batch is cut alike beside any prefill.
TEST(Plan, ListsAreBalancedOnTheirOwn) {
  const auto small_items = [](const PlanState& plan) {
    std::vector<std::array<std::int32_t, 6>> items;
    for (int u = 0; u < plan.view.header->class_unit_begin[1]; ++u) {
      for (std::int32_t i = plan.view.unit_begin[u]; i < plan.view.unit_begin[u + 1]; ++i) {
        const WorkItem& item = plan.view.items[i];
        items.push_back({u, item.row_begin, item.kv_head, item.kv_begin, item.kv_end, item.part_row});
      }
    }
    return items;
  };
  Random random(11);
  for (int round = 0; round < 100; ++round) {
    ScheduleForm form;
    form.num_kv_heads = 2;
    form.group = 2;
    form.num_units = 12;
    form.num_small_units = 7;
    PlanState plan(plan_test::make_schedule(form));
    std::vector<std::int64_t> q_len;
    std::vector<std::int64_t> kv_len;
    for (std::int64_t r = random.in(1, 9); r > 0; --r) {
      q_len.push_back(random.in(1, 3));
      kv_len.push_back(random.in(0, 300));
    }
    make_plan(plan, plan_test::simple_batch(q_len, kv_len).batch());
    const auto alone = small_items(plan);
    EXPECT_EQ(plan.view.unit_begin[12], static_cast<std::int32_t>(alone.size()));
    q_len.push_back(random.in(4, 200));
    kv_len.push_back(random.in(0, 5000));
    make_plan(plan, plan_test::simple_batch(q_len, kv_len).batch());
    EXPECT_EQ(small_items(plan), alone) << "round " << round;
    EXPECT_GT(plan.view.unit_begin[12], plan.view.unit_begin[7]);
  }
}

/// Where a multiprocessor takes two blocks of large tiles or one beside one of small tiles, the list of large ones leaves half of its units
/// to small ones, if there are any.
TEST(Plan, LargeTilesMakeRoomForSmallOnes) {
  ScheduleForm form;
  form.num_kv_heads = 2;
  form.group = 2;
  form.num_units = 12;
  form.num_small_units = 4;
  const auto state = plan_test::make_schedule(form);
  auto cuda = std::make_shared<attention::CudaState>();
  cuda->kernels.classes[attention::kLarge].shares_sms = true;
  state->cuda = cuda;
  PlanState plan(state);
  const auto units_at_work = [&] {
    int units = 0;
    for (int u = 4; u < 12; ++u) units += plan.view.unit_begin[u] < plan.view.unit_begin[u + 1] ? 1 : 0;
    return units;
  };
  make_plan(plan, plan_test::simple_batch({200}, {2000}).batch());
  EXPECT_EQ(units_at_work(), 8);
  make_plan(plan, plan_test::simple_batch({200, 1}, {2000, 50}).batch());
  EXPECT_EQ(units_at_work(), 4);
  EXPECT_EQ(plan.view.unit_begin[8], plan.view.unit_begin[12]) << "the first half works";
}

/// Large tiles on a device: what units work on at a time lies side by side on the line, so that they find each other's keys in the cache.
TEST(Plan, UnitsWorkOnNeighbouringTilesAtATime) {
  for (const bool causal : {false, true}) {
    for (const bool batch_invariant : {false, true}) {
      constexpr int kUnits = 7;
      ScheduleForm form;
      form.num_kv_heads = 4;
      form.num_units = kUnits;
      form.num_small_units = 0;
      form.batch_invariant = batch_invariant;
      if (causal) form.variant.mask = variants::causal();
      PlanState plan(plan_test::make_schedule(form));
      make_plan(plan, plan_test::simple_batch({400, 400}, {400, 400}).batch());
      struct Event {
        std::int64_t begin, place;
      };
      std::vector<Event> events;  // begun at a sum of costs; 320 tiles of 10 rows
      for (int u = 0; u < kUnits; ++u) {
        std::int64_t spent = 0;
        for (std::int32_t i = plan.view.unit_begin[u]; i < plan.view.unit_begin[u + 1]; ++i) {
          const WorkItem& item = plan.view.items[i];
          events.push_back({spent, item.row_begin / 400 * 160 + item.kv_head * 40 + item.row_begin % 400 / 10});
          spent += item.cost;
        }
      }
      std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.begin < b.begin; });
      std::int64_t furthest = 0;
      for (const Event& event : events) {
        // While one is at a head's last rows, under a causal mask, others go through the short tiles of the next.
        EXPECT_GE(event.place, std::min<std::int64_t>(furthest - 5 * kUnits, 320 - 5 * kUnits))
            << "causal " << causal << " at " << event.begin;
        furthest = std::max(furthest, event.place);
      }
      EXPECT_EQ(furthest, 319);
      const std::int64_t mean = ceil_div(plan.info.total_cost, kUnits);
      EXPECT_LE(plan.info.max_unit_cost, mean + mean / 64 + plan.info.max_piece_cost);
    }
  }
}

/// The bounds are what a captured graph's buffers are sized by: right for decode, and not wasteful.
TEST(Plan, BoundsOfADecodeSchedule) {
  ScheduleForm form;
  form.num_kv_heads = 8;
  form.group = 4;
  form.num_units = 396;
  form.num_small_units = 396;
  form.variant.mask = variants::causal();
  form.limits = {.max_tokens = 256,
                 .max_requests = 256,
                 .max_segments = 1,
                 .max_groups = 256,
                 .max_kv_len = 1 << 17,
                 .max_qo_len = 1,
                 .max_items = 4096};
  form.tune = plan_test::small_tune();
  form.tune.classes[attention::kSmall].tile_rows = 16;
  form.tune.small_rows = 16;
  const auto state = plan_test::make_schedule(form);
  EXPECT_LT(state->max_blob_bytes, 512 << 10);
  PlanState plan(state);
  make_plan(plan, plan_test::simple_batch(std::vector<std::int64_t>(256, 1), std::vector<std::int64_t>(256, 8192)).batch());
  EXPECT_LE(plan.info.blob_bytes, state->max_blob_bytes);
  EXPECT_GT(plan.info.blob_bytes, state->max_blob_bytes / 5);
}

/// A causal prefill keeps about half the pairs; what is kept is what a unit pays for.
TEST(Plan, CausalPrefillKeepsTheLowerTriangle) {
  ScheduleForm form;
  form.num_units = 16;
  form.variant.mask = variants::causal();
  form.limits = {.max_tokens = 4096, .max_requests = 1, .max_segments = 1, .max_groups = 1, .max_kv_len = 4096};
  PlanState plan(plan_test::make_schedule(form));
  const PlanBatch b = plan_test::simple_batch({4000}, {4000});
  make_plan(plan, b.batch());
  EXPECT_GE(plan.info.visible_pairs, 4000 * 4001 / 2);
  EXPECT_LE(plan.info.visible_pairs, 4000 * (4001 / 2 + 20));
  std::int64_t unmasked = 0;
  for (const WorkItem& item : plan.view.items) unmasked += std::int64_t{item.row_count} * (item.full_end - item.full_begin);
  EXPECT_GE(unmasked, 4000 * (4001 / 2 - 20));
}

/// In a batch-invariant plan the chunks of a row are the same whatever else is in the batch and however many units there are.
TEST(Plan, InvariantChunksDependOnTheirRequestOnly) {
  Random random(5);
  const auto chunks_of = [](const PlanState& plan, std::int64_t row) {
    std::vector<std::array<std::int32_t, 3>> chunks;
    for (const WorkItem& item : plan.view.items) {
      if (row < item.row_begin || row >= item.row_begin + item.row_count || item.kv_head != 0) continue;
      chunks.push_back({item.tile_class, item.kv_begin, item.kv_end});
    }
    return chunks;
  };
  for (int round = 0; round < 100; ++round) {
    ScheduleForm form;
    form.num_kv_heads = 2;
    form.group = 2;
    form.batch_invariant = true;
    form.num_units = 1;
    form.variant.mask = random.one_in(2) ? variants::causal() : variants::window(40, 0);
    PlanState alone(plan_test::make_schedule(form));
    const std::int64_t q_len = random.in(1, 20);
    const std::int64_t kv_len = random.in(q_len, 300);
    make_plan(alone, plan_test::simple_batch({q_len}, {kv_len}).batch());
    form.num_units = static_cast<int>(random.in(2, 30));
    PlanState among(plan_test::make_schedule(form));
    const std::int64_t before = random.in(0, 30);
    make_plan(among, plan_test::simple_batch({before, q_len, random.in(0, 9)}, {random.in(0, 300), kv_len, random.in(0, 300)}).batch());
    for (std::int64_t row = 0; row < q_len * 2; ++row)
      EXPECT_EQ(chunks_of(alone, row), chunks_of(among, before * 2 + row)) << "round " << round;
  }
}

TEST(Plan, PublicClassUpdatesLoadsAndReports) {
  ScheduleForm form;
  form.num_kv_heads = 2;
  form.num_units = 4;
  form.variant.mask = variants::prefix_lm(ParamTime::plan);
  const Schedule schedule(plan_test::make_schedule(form));
  Plan plan(schedule);
  EXPECT_TRUE(plan.blob().empty());
  PlanBatch b = plan_test::simple_batch({30, 1}, {50, 70});
  std::vector<std::int32_t> prefix = {12, 3};
  b.params = {{.name = "prefix_len", .array = TensorView(prefix.data(), DType::i32, {2})}};
  const PlanInfo info = plan.update(b.batch());
  EXPECT_EQ(info.blob_bytes, std::ssize(plan.blob()));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plan.blob().data()) % 64, 0U);
  prefix = {0, 0};  // the plan holds its own copy
  const variant::ParamData& copied = plan.state().params[0];
  ASSERT_EQ(copied.size, 2);
  EXPECT_EQ(static_cast<const std::int32_t*>(copied.data)[0], 12);

  Plan other(schedule);
  const std::vector<std::byte> bytes(plan.blob().begin(), plan.blob().end());
  EXPECT_EQ(other.load(bytes).num_items, info.num_items);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), other.blob().begin(), other.blob().end()));
  EXPECT_EQ(static_cast<const std::int32_t*>(other.state().params[0].data)[0], 12);
  Plan moved = std::move(other);
  EXPECT_EQ(moved.info().num_items, info.num_items);
}

}  // namespace
}  // namespace girih
