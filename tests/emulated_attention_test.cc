// The CUDA attention kernels, as generated, under the emulator: planned for a made-up GPU of three multiprocessors, launched class by
// class, compared with the reference. All cases run whose kernels tests/emulator/cases.h asks for: in order, then interleaved at random.
// Built for sm_90 and, with fewer cases, for sm_75.
// ctest: emulated-kernels emulated-arch=75 shards=4 timeout=1200
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "attention/spec.h"
#include "cases/attention.h"
#include "cases/check.h"
#include "emulator/cases.h"
#include "emulator/cuda_run.h"
#include "emulator/emulator.h"
#include "emulator/kernels.h"

namespace girih::emulator {
namespace {

attention::CudaKernels kernels_of(const cases::AttentionCase& c, std::string_view family, bool as_cascade = false) {
  const variant::Program program = variant::compile(c.spec.variant);
  const FamilyOfChip of = family_of_chip(family, kSm);
  return attention::choose_cuda_kernels(attention::normalise(c.spec, program, DeviceKind::cuda), program, emulated_device(of.arch),
                                        of.family, as_cascade ? attention::kCascadeRows : max_rows(c), as_cascade || c.segments.size() > 1);
}

std::vector<std::string_view> families_of_case(const cases::AttentionCase& c) {
  const variant::Program program = variant::compile(c.spec.variant);
  return families_of(attention::normalise(c.spec, program, DeviceKind::cuda), program, kSm);
}

/// A case and how its kernels are chosen: "" = by the library, or a family's name; by its own limits, or by those of cascades.
struct CaseRun {
  cases::AttentionCase c;
  std::string family;
  bool as_cascade;

  std::string name() const { return c.name + (family.empty() ? "" : "_" + family) + (as_cascade ? "_as_cascade" : ""); }
};
void PrintTo(const CaseRun& run, std::ostream* out) { *out << run.name(); }

const std::vector<CaseRun>& runs() {
  static const std::vector<CaseRun> kRuns = [] {
    std::vector<CaseRun> all;
    for (const cases::AttentionCase& c : all_cases(kSm)) {
      if (c.name.starts_with("non_finite")) continue;
      std::set<std::string> seen;
      for (const std::string_view family : families_of_case(c)) {
        for (const bool as_cascade : {false, true}) {
          if (as_cascade && max_rows(c) > attention::kCascadeRows) continue;
          const attention::CudaKernels kernels = kernels_of(c, family, as_cascade);
          if (as_cascade && !kernels.classes[1].shares_sms) continue;
          if (!seen.insert(kernels.classes[0].source + kernels.classes[1].source).second) continue;
          if (find_kernel(kernels.classes[0]) != nullptr && find_kernel(kernels.classes[1]) != nullptr)
            all.push_back({c, std::string(family), as_cascade});
        }
      }
    }
    return all;
  }();
  return kRuns;
}

/// What the emulator's order of threads and blocks is drawn from; 0: as they are numbered. Sanitizers look at one order: memory is the same
/// in all of them, and bits are compared in other builds.
#ifdef __SANITIZE_ADDRESS__
constexpr std::array<std::uint64_t, 1> kSeeds = {1};
#else
constexpr std::array<std::uint64_t, 2> kSeeds = {0, 1};
#endif

class EmulatedAttention : public testing::TestWithParam<CaseRun> {};

TEST_P(EmulatedAttention, MatchesReference) {
  cases::Problem p(GetParam().c);
  if (GetParam().as_cascade) allow_cascades(p.limits, p.spec.num_qo_heads / p.spec.num_kv_heads);
  const auto state = make_schedule(p, GetParam().family);
  const Entries entries = entries_of(*state);
  const bool rounds = cases::rounds_keys(state->cuda->kernels.classes[attention::kLarge].family, p.spec);
  const std::vector<ref::RowResult> expected = cases::reference(p, rounds);
  std::vector<std::vector<std::byte>> in_order;
  for (const std::uint64_t seed : kSeeds) {
    const cases::Outputs out = run_emulated(p, state, entries, seed);
    ASSERT_TRUE(cases::matches(p, expected, out))
        << state->cuda->kernels.classes[0].name << " and " << state->cuda->kernels.classes[1].family << ", seed " << seed;
    // Which blocks and warps come first changes no bit.
    if (seed == kSeeds[0]) {
      in_order = out.all_bits();
    } else {
      ASSERT_EQ(out.all_bits(), in_order) << "seed " << seed;
    }
  }
  if (p.c.q_len.size() > 1) return;
  // A large GPU gives each of many blocks few of the keys.
  const auto many = make_schedule(p, GetParam().family, 132);
  ASSERT_TRUE(cases::matches(p, expected, run_emulated(p, many, entries, 0))) << "132 multiprocessors";
}

INSTANTIATE_TEST_SUITE_P(Cases, EmulatedAttention, testing::ValuesIn(runs()), [](const auto& info) { return info.param.name(); });

/// bf16 and 8-bit types meet in tensor cores from sm_80 on.
std::vector<cases::AttentionCase> non_finite_cases_on(int arch) {
  return arch >= 80 ? non_finite_cases() : std::vector<cases::AttentionCase>{};
}

/// Infinities and NaN come out where the floor kernel has them, whatever type the products are in; and what is finite agrees.
TEST(EmulatedNonFinite, IsWhereF32HasIt) {
  for (const cases::AttentionCase& c : non_finite_cases_on(kSm)) {
    cases::Problem p(c);
    if (c.spec.k_dtype == DType::e5m2) {  // encoding saturates; what it makes of an infinity is drawn for nothing else
      for (std::byte& code : p.memory[0].data) {
        if ((code & std::byte{0x7f}) == std::byte{0x7b}) code = (code & std::byte{0x80}) | std::byte{0x7c};
      }
    }
    const cases::Outputs want = run_family(p, "floor");
    const double allowed = bits(c.spec.q_dtype) == 8 ? 0x1p-4 : 0x1p-7;
    for (const std::string_view family : families_of_case(c)) {
      if (family == "floor") continue;
      const cases::Outputs got = run_family(p, std::string(family));
      int counts[2] = {};  // finite or not
      const auto expect_same = [&](double x, double y, const std::string& what) {
        ++counts[std::isfinite(y) ? 0 : 1];
        ASSERT_TRUE(std::isnan(y)   ? std::isnan(x)
                    : std::isinf(y) ? x == y
                                    : std::fabs(x - y) <= allowed * (1 + std::fabs(y)))
            << c.name << " by \"" << family << "\""
            << ", " << what << ": " << x << ", floor has " << y;
      };
      for (std::int64_t t = 0; t < p.num_tokens(); ++t) {
        for (std::int64_t h = 0; h < p.spec.num_qo_heads; ++h) {
          expect_same(got.lse_at(t, h), want.lse_at(t, h), fmt::format("lse[{}, {}]", t, h));
          for (std::int64_t d = 0; d < p.spec.head_dim_vo; ++d) {
            expect_same(got.o_at(t, h, d), want.o_at(t, h, d), fmt::format("o[{}, {}, {}]", t, h, d));
          }
        }
      }
      EXPECT_GT(counts[0], 1000);
      EXPECT_GT(counts[1], bits(c.spec.q_dtype) == 8 ? 50 : 100);
    }
  }
}

/// A request's rows have the same bits in every batch.
void expect_invariant(const std::string& family, const std::vector<cases::AttentionCase>& all = invariant_cases()) {
  std::map<std::int64_t, std::vector<std::vector<std::byte>>> rows;  // of each request
  for (std::size_t i = 0; i < 3; ++i) {
    const cases::Problem p(on_arch(all[i], kSm));
    const auto state = make_schedule(p, family);
    const cases::Outputs out = run_emulated(p, state, entries_of(*state), i);
    std::int64_t token = 0;
    for (std::size_t r = 0; r < all[i].data_id.size(); ++r) {
      std::vector<std::vector<std::byte>> bits;
      for (std::int64_t t = 0; t < all[i].q_len[r]; ++t) bits.push_back(out.row_bits(token++));
      const auto [known, first] = rows.emplace(all[i].data_id[r], bits);
      EXPECT_TRUE(first || bits == known->second) << all[i].name << ", request " << all[i].data_id[r];
    }
  }
}
TEST(EmulatedInvariance, ChosenKernels) { expect_invariant(""); }
TEST(EmulatedInvariance, MmaKernels) { expect_invariant("mma"); }
TEST(EmulatedInvariance, Floor) { expect_invariant("floor"); }
/// Which of a block's two groups scores a step depends on what it did before.
TEST(EmulatedInvariance, MlaOfTwoGroups) {
  if (kSm != 90) GTEST_SKIP() << "needs sm_90's kernels";
  expect_invariant("wgmma", {invariant_mla_case("13", {1, 3}), invariant_mla_case("331", {3, 3, 1}), invariant_mla_case("1", {1})});
}

TEST(EmulatedInvariance, MlaOfWidenedKeys) {
  if (kSm != 90) GTEST_SKIP() << "needs sm_90's kernels";
  expect_invariant("wgmma",
                   {invariant_tokens_case("13", {1, 3}), invariant_tokens_case("331", {3, 3, 1}), invariant_tokens_case("1", {1})});
}

TEST(EmulatedPlan, FreeBlocksTakeUnits) {
  const cases::Problem p(on_arch(long_decode_case(), kSm));
  const auto state = make_schedule(p, "");
  Plan plan{Schedule(state)};
  plan.update(p.batch);
  const auto& view = plan.state().view;
  const int blocks = attention::class_blocks(*state, attention::kSmall);
  const int units = attention::class_units(*state, attention::kSmall);
  ASSERT_LT(blocks, units);
  EXPECT_LT(view.unit_begin[static_cast<std::size_t>(blocks)], view.unit_begin[static_cast<std::size_t>(units)]);
}

/// A token of 128 heads is two tiles: blocks side by side take them, one of each of two lines of units.
TEST(EmulatedPlan, BlocksSideBySideTakeATokensTiles) {
  if (kSm != 90) GTEST_SKIP() << "needs sm_90's kernels";
  int runs = 0;
  for (cases::AttentionCase c : all_cases(kSm)) {
    if (!c.name.starts_with("mla_heads128")) continue;
    c.q_len = {1, 2, 1};
    c.segments[0].kv_len = {200, 90, 64};
    const cases::Problem p(c);
    const auto state = make_schedule(p, "", 4);
    Plan plan{Schedule(state)};
    plan.update(p.batch);
    const auto& view = plan.state().view;
    const int large = view.header->class_unit_begin[attention::kLarge];
    const auto first_of = [&](int unit) {
      return view.items[static_cast<std::size_t>(view.unit_begin[static_cast<std::size_t>(large + unit)])];
    };
    EXPECT_EQ(first_of(0).row_begin, 0) << c.name;
    EXPECT_EQ(first_of(2).row_begin, 64) << c.name;
    EXPECT_EQ(first_of(2).kv_row, first_of(0).kv_row) << c.name;
    EXPECT_TRUE(cases::matches(p, cases::reference(p), run_emulated(p, state, entries_of(*state), 0))) << c.name;
    ++runs;
  }
  EXPECT_GT(runs, 1);
}

/// Lanes know of 64 parts of a row at a time, and look at 64 more in each turn for the maximum beforehand.
TEST(EmulatedMerge, RowsOfManyParts) {
  const cases::Problem p(on_arch(cases::make_case("many_parts", cases::make_spec(6, 2, 64), {"batch", {1}, {36000}}), kSm));
  cuda::DeviceInfo device = emulated_device(kSm);
  device.num_sms = 160;
  for (const std::string family : {"", "floor"}) {
    const ScheduleOptions options{.num_units = 0, .num_sms = 0, .family = family};
    const auto state = attention::make_cuda_state(device, kEmulated.index, p.c.spec, p.limits, options);
    Plan plan{Schedule(state)};
    plan.update(p.batch);
    int parts = 0;
    for (const abi::MergeItem& merge : plan.state().view.merges) parts = std::max(parts, static_cast<int>(merge.part_count));
    EXPECT_GT(parts, 128) << family;
    EXPECT_TRUE(cases::matches(p, cases::reference(p), run_emulated(p, state, entries_of(*state), 0))) << family;
  }
}

/// The tolerance of e4m3 weights is too wide for it: sums of bytes must not be those of all keys.
TEST(EmulatedBytes, ManyEqualKeysAddUp) {
  if (kSm != 90) return;
  const std::vector<cases::AttentionCase> all = cases::fp8_query_cases();
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& c) { return c.name == "fp8_many_keys"; });
  ASSERT_NE(found, all.end());
  const cases::Problem p(*found);
  const std::vector<ref::RowResult> expected = cases::reference(p);
  const cases::Outputs out = run_family(p, "wgmma");
  for (std::int64_t t = 0; t < p.num_tokens(); ++t) {
    for (std::int64_t h = 0; h < p.spec.num_qo_heads; ++h) {
      const double want = expected[static_cast<std::size_t>(t * p.spec.num_qo_heads + h)].o[0];
      ASSERT_NEAR(out.o_at(t, h, 0), want, 0x1p-7 * std::fabs(want)) << t << ' ' << h;
    }
  }
}

TEST(EmulatedKernels, AreAllUsed) {
  std::set<std::uint64_t> used;
  for (const CaseRun& run : runs()) {
    for (const attention::CudaKernel& kernel : kernels_of(run.c, run.family, run.as_cascade).classes)
      used.insert(source_hash(kernel.source));
  }
  for (const cases::AttentionCase& c : non_finite_cases_on(kSm)) {
    for (const std::string_view family : families_of_case(c)) {
      for (const attention::CudaKernel& kernel : kernels_of(c, family).classes) used.insert(source_hash(kernel.source));
    }
  }
  for (const EmulatedKernel& kernel : emulated_kernels()) EXPECT_TRUE(used.contains(kernel.source_hash)) << kernel.name;
  EXPECT_GE(used.size(), kSm == 75 ? 30U : 100U);
}

}  // namespace
}  // namespace girih::emulator
