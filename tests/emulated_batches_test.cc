// The CUDA attention kernels over batches that nobody chose: for each kernel that the emulator has, a schedule for a GPU of any size and
// several batches one after the other by one plan, in memory as the last one left it. Lengths lie around the borders of tiles, steps and
// pages; layouts, page sizes, tables by head, positions, levels that some share, masked or not, and orders of blocks and warps are drawn.
// A draw that fails names its number, which makes it again: --gtest_filter=*/NUMBER.
// ctest: emulated-kernels emulated-arch=75 shards=4 timeout=1200
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/spec.h"
#include "base/math.h"
#include "cases/attention.h"
#include "cases/check.h"
#include "emulator/cases.h"
#include "emulator/cuda_run.h"
#include "emulator/emulator.h"
#include "girih/error.h"

namespace girih::emulator {
namespace {

using cases::AttentionCase;
using cases::Layout;
using cases::SegmentCase;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t number() { return engine_(); }
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return in(1, n) == 1; }
  template <typename T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(in(0, std::ssize(values) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

/// A spec that the emulator has kernels for, by one family.
struct Target {
  AttentionCase c;
  std::string family;
};

const std::vector<Target>& targets() {
  static const std::vector<Target> kTargets = [] {
    std::map<std::string, AttentionCase> by_name;
    for (AttentionCase& c : all_cases(kSm)) by_name.emplace(c.name, std::move(c));
    std::vector<Target> all;
    for (const EmulatedSpec& wanted : emulated_specs(kSm)) {
      if (wanted.case_name.starts_with("non_finite")) continue;
      const AttentionCase& c = by_name.at(std::string(wanted.case_name));
      const variant::Program program = variant::compile(c.spec.variant);
      for (const std::string_view family : families_of(attention::normalise(c.spec, program, DeviceKind::cuda), program, kSm)) {
        if (family != "floor" || wanted.floor_too) all.push_back({c, std::string(family)});
      }
    }
    return all;
  }();
  return kTargets;
}

/// What the batches of a draw have at most.
struct Extent {
  std::int64_t q_len, kv_len, requests, levels;
  std::int64_t pairs;  // of rows and keys, over all heads
};

Extent draw_extent(Random& random, const Target& target) {
  const AttentionSpec& spec = target.c.spec;
  Extent most{.q_len = random.of<std::int64_t>({1, 2, 4, 9, 40, 130, 300}),
              .kv_len = random.of<std::int64_t>({40, 200, 700, 2500}),
              .requests = random.of<std::int64_t>({1, 1, 3, 8, 30}),
              .levels = random.one_in(3) ? random.in(2, 4) : 1,
              .pairs = (spec.head_dim_qk > 256 ? 30000 : 100000) / (target.family == "floor" ? 4 : 1)};
  if (spec.batch_invariant) {
    most.kv_len = random.of<std::int64_t>({200, 2100, 6000});
    most.levels = std::min<std::int64_t>(most.levels, 2);
  }
  const std::int64_t cascade_rows = attention::kCascadeRows / (spec.num_qo_heads / spec.num_kv_heads);
  if (most.levels > 1 && random.one_in(3)) most.q_len = std::clamp<std::int64_t>(most.q_len, 1, cascade_rows);
  return most;
}

std::int64_t draw_length(Random& random, std::int64_t most, std::int64_t page_size) {
  const std::int64_t unit = random.of<std::int64_t>({page_size, 16, 32, 64, 80, 96, 128, 176});
  const std::int64_t form = random.in(0, 5);
  std::int64_t len = random.in(0, most);
  if (form == 0) len = random.in(0, 3);
  if (form == 1 || form == 2) len = unit * random.in(0, std::max<std::int64_t>(most / unit, 1)) + random.in(-1, 1);
  if (form == 3) len = most;
  return std::clamp<std::int64_t>(len, 0, most);
}

SegmentCase draw_layout(Random& random, const AttentionSpec& spec) {
  SegmentCase s;
  if (!random.one_in(3)) s.layout = cases::kLayouts[static_cast<std::size_t>(random.in(0, std::ssize(cases::kLayouts) - 1))];
  if (s.layout == Layout::token_contiguous_v && bits(spec.v_dtype) == 4) s.layout = Layout::hnd;
  s.page_size = random.of<std::int64_t>({1, 2, 3, 5, 7, 8, 12, 16, 16, 16, 17, 24, 32, 48, 64, 64, 100, 128, 256, 544});
  s.strided_table = random.one_in(2) && !cases::is_ragged(s.layout);
  return s;
}

/// Queries of each request and keys of its own, within the pairs allowed.
void draw_requests(Random& random, const Extent& most, int heads, AttentionCase& c, SegmentCase& own) {
  const std::int64_t n = random.in(1, random.one_in(3) ? std::min<std::int64_t>(most.requests, 2) : most.requests);
  const std::int64_t form = random.in(0, 3);
  std::int64_t pairs = 0;
  for (std::int64_t r = 0; r < n; ++r) {
    std::int64_t q = 1;
    if (form == 1 && random.one_in(3)) q = random.in(0, most.q_len);
    if (form == 2) q = draw_length(random, most.q_len, 16);
    if (form == 3) q = random.in(0, most.q_len);
    std::int64_t kv = draw_length(random, most.kv_len, own.page_size);
    if (random.one_in(4)) kv = std::max(kv, q);
    while (pairs + q * kv * heads > most.pairs && (q > 1 || kv > 64)) {
      if (q > 1 && random.one_in(2))
        q /= 2;
      else
        kv = kv * 2 / 3;
    }
    pairs += q * kv * heads;
    c.q_len.push_back(q);
    own.kv_len.push_back(kv);
  }
}

/// A level's groups: neighbouring requests, or rows from anywhere to anywhere; it may leave the first ones out.
std::vector<std::int64_t> draw_groups(Random& random, const std::vector<std::int64_t>& starts, std::int64_t most_rows) {
  const std::int64_t n = std::ssize(starts) - 1;
  std::vector<std::int64_t> groups{random.one_in(3) ? starts[static_cast<std::size_t>(random.in(0, n))] : 0};
  const std::int64_t sharing = random.in(1, n);
  const bool anywhere = random.one_in(4);
  for (std::int64_t r = 1; r <= n; ++r) {
    if (r % sharing != 0 && r != n) continue;
    const std::int64_t end = anywhere ? random.in(0, starts.back()) : starts[static_cast<std::size_t>(r)];
    while (end - groups.back() > most_rows) groups.push_back(groups.back() + most_rows);
    if (end >= groups.back()) groups.push_back(end);
  }
  if (groups.size() == 1) groups.push_back(groups.back());
  return groups;
}

AttentionCase draw_case(Random& random, const AttentionCase& base, const Extent& most, std::vector<SegmentCase> layouts) {
  AttentionCase c = base;
  c.q_len.clear();
  c.segments.clear();
  c.kv_len.clear();
  c.q_pos.clear();
  c.q_rope_pos.clear();
  c.data_id.clear();
  if (!c.name.starts_with("cuda_text")) {  // twins know what the case's own parameters and lengths are, that of CUDA text any
    c.mask = {};
    c.logits = {};
  }
  const std::int64_t step = c.spec.batch_invariant ? attention::kInvariantChunk : 1;
  const std::int64_t levels = random.in(1, most.levels);
  layouts.erase(layouts.begin(), layouts.end() - levels);
  draw_requests(random, most, c.spec.num_qo_heads, c, layouts.back());
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t q : c.q_len) starts.push_back(starts.back() + q);
  const std::int64_t pairs_a_key = std::max<std::int64_t>(starts.back() * c.spec.num_qo_heads, 1);
  for (std::int64_t i = 0; i < levels; ++i) {
    SegmentCase& s = layouts[static_cast<std::size_t>(i)];
    if (i + 1 < levels) {
      s.qo_indptr = draw_groups(random, starts, most.q_len);
      const std::int64_t longest = std::max(step, std::min(most.kv_len, most.pairs / pairs_a_key));
      for (std::size_t g = 0; g + 1 < s.qo_indptr.size(); ++g) s.kv_len.push_back(draw_length(random, longest, s.page_size) / step * step);
      s.masked = random.one_in(2);
    } else if (levels == 1 && c.spec.num_kv_heads > 1 && random.one_in(5)) {
      const std::vector<std::int64_t> of_a_head = s.kv_len;
      s.num_table_heads = c.spec.num_kv_heads;
      for (int h = 1; h < c.spec.num_kv_heads; ++h) {
        for (const std::int64_t len : of_a_head) s.kv_len.push_back(random.one_in(2) ? len : draw_length(random, len, s.page_size));
      }
    }
    if (!cases::is_ragged(s.layout) && step == 1 && random.one_in(8)) {
      for (const std::int64_t len : s.kv_len) {
        for (std::int64_t page = 0; page < ceil_div(len, s.page_size); ++page)
          s.page_pos.push_back(random.one_in(2) ? page * s.page_size : random.in(0, 300));
      }
    } else if (i == 0 && random.one_in(8)) {
      for (std::int64_t g = std::ssize(s.kv_len) / s.num_table_heads; g > 0; --g) s.kv_pos.push_back(random.in(0, 20) * step);
    }
    c.segments.push_back(std::move(s));
  }
  if (random.one_in(6)) {
    for (std::size_t r = 0; r < c.q_len.size(); ++r) c.q_pos.push_back(random.in(-5, most.kv_len));
  }
  if (random.one_in(6)) {
    for (std::size_t r = 0; r < c.q_len.size(); ++r) c.kv_len.push_back(random.in(0, most.kv_len));
  }
  c.packed_q = random.one_in(3);
  return c;
}

AttentionLimits limits_of(const std::vector<std::unique_ptr<cases::Problem>>& problems, const Extent& most) {
  AttentionLimits limits{.max_segments = std::min<std::int64_t>(most.levels, 2), .max_qo_len = most.q_len, .max_items = 60000};
  for (const auto& p : problems) {
    limits.max_tokens = std::max(limits.max_tokens, p->limits.max_tokens);
    limits.max_requests = std::max(limits.max_requests, p->limits.max_requests);
    limits.max_segments = std::max(limits.max_segments, p->limits.max_segments);
    limits.max_groups = std::max(limits.max_groups, p->limits.max_groups);
    limits.max_kv_len = std::max(limits.max_kv_len, p->limits.max_kv_len);
  }
  return limits;
}

/// For the limits, or wider ones where kernels for few rows are not built in. Null: there are none.
std::shared_ptr<attention::ScheduleState> schedule_of(const Target& target, AttentionLimits limits, int num_sms, Entries& entries) {
  const std::int64_t group = target.c.spec.num_qo_heads / target.c.spec.num_kv_heads;
  const FamilyOfChip of = family_of_chip(target.family, kSm);
  for (const std::int64_t rows : {std::int64_t{0}, attention::kFewRows + 1, attention::kCascadeRows + 1}) {
    limits.max_qo_len = std::max(limits.max_qo_len, ceil_div(rows, group));
    auto state = attention::make_cuda_state(emulated_device(of.arch, num_sms), kEmulated.index, target.c.spec, limits,
                                            {.family = std::string(of.family)});
    bool complete = true;
    for (int c = 0; c < attention::kNumClasses; ++c) {
      if (attention::class_units(*state, c) == 0) continue;
      const EmulatedKernel* kernel = find_kernel(state->cuda->kernels.classes[static_cast<std::size_t>(c)]);
      complete = complete && kernel != nullptr;
      entries[static_cast<std::size_t>(c)] = kernel != nullptr ? kernel->entry : nullptr;
    }
    if (complete) return state;
  }
  return nullptr;
}

/// False: refused for what is documented to be: more items than the limits allow (masks with many holes), levels of a batch-invariant plan
/// that do not meet at chunks or need tiles that the limits rule out.
bool takes(Plan& plan, const Batch& batch) {
  try {
    plan.update(batch);
    return true;
  } catch (const girih::Error& error) {
    const std::string text = error.what();
    const auto names = [&text](std::string_view rule) { return text.find(rule) != std::string::npos; };
    if (names("limits.max_items") || names("batch_invariant")) return false;
    throw;
  }
}

std::string describe(const cases::Problem& p) {
  std::string text = fmt::format("q_len {}", fmt::join(p.c.q_len, " "));
  for (const SegmentCase& s : p.c.segments) {
    text += fmt::format("; {} pages of {}{}{}, groups {}, kv_len {}", cases::name(s.layout), s.page_size, s.masked ? "" : " unmasked",
                        s.page_pos.empty() ? "" : " with positions", fmt::join(s.qo_indptr, " "), fmt::join(s.kv_len, " "));
  }
  return text;
}

class EmulatedBatches : public testing::TestWithParam<int> {};

TEST_P(EmulatedBatches, MatchReference) {
  Random random(static_cast<std::uint64_t>(GetParam()));
  const Target& target = targets()[static_cast<std::size_t>(random.in(0, std::ssize(targets()) - 1))];
  const Extent most = draw_extent(random, target);
  const int num_sms = random.of<int>({1, 2, 3, 7, 78, 132, 144});
  std::vector<SegmentCase> layouts;
  for (std::int64_t i = 0; i < most.levels; ++i) layouts.push_back(draw_layout(random, target.c.spec));
  std::vector<std::unique_ptr<cases::Problem>> problems;
  for (std::int64_t i = random.in(1, 3); i > 0; --i) {
    problems.push_back(
        std::make_unique<cases::Problem>(draw_case(random, target.c, most, layouts), cases::BuildOptions{.placement = random.number()}));
  }
  Entries entries{};
  const auto state = schedule_of(target, limits_of(problems, most), num_sms, entries);
  ASSERT_NE(state, nullptr) << target.c.name << " has no kernels by \"" << target.family << "\"";

  Plan plan{Schedule(state)};
  DeviceMemory blob(state->max_blob_bytes);
  DeviceMemory workspace(state->workspace_bytes);
  std::vector<std::int32_t> counters(static_cast<std::size_t>(attention::kNumClasses + state->max_merges));
  const RunMemory memory{reinterpret_cast<const abi::PlanHeader*>(blob.bytes().data()), counters, workspace.bytes()};
  const bool rounds = cases::rounds_keys(state->cuda->kernels.classes[attention::kLarge].family, state->spec);
  for (const auto& p : problems) {
    if (!takes(plan, p->batch)) continue;
    std::memcpy(blob.bytes().data(), plan.blob().data(), plan.blob().size());
    const RunOrder order{.seed = random.one_in(3) ? random.number() | 1 : 0,
                         .large_first = random.one_in(2),
                         .output_gap = random.of<std::int64_t>({0, 5, 8, 16})};
    const cases::Outputs out = run_planned(*p, plan, entries, memory, order);
    ASSERT_TRUE(cases::matches(*p, cases::reference(*p, rounds), out))
        << target.c.name << " by " << state->cuda->kernels.classes[0].family << " and " << state->cuda->kernels.classes[1].name << ", "
        << num_sms << " multiprocessors, seed " << order.seed << ": " << describe(*p);
    if (!random.one_in(4)) continue;
    const cases::Outputs again = run_planned(*p, plan, entries, memory, {.seed = random.number() | 1, .large_first = !order.large_first});
    ASSERT_EQ(again.all_bits(), out.all_bits()) << target.c.name << ": another order gives other bits: " << describe(*p);
  }
}

#ifdef __SANITIZE_ADDRESS__
constexpr int kEvery = 2;  // draw: they take three times as long
#else
constexpr int kEvery = 1;
#endif
INSTANTIATE_TEST_SUITE_P(Draws, EmulatedBatches, testing::Range(0, 240, kEvery));

}  // namespace
}  // namespace girih::emulator
