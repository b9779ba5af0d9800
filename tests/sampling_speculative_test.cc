// Chain speculative sampling on the CPU: emitted tokens are distributed as the target, whatever the draft.
#include "girih/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "ref/sampling.h"
#include "sampling_samples.h"

namespace girih {
namespace {

using namespace testing;

/// Whatever the draft, the first two emitted tokens are distributed as the target; so is the bonus token.
TEST(Speculative, EmitsTheTargetsDistribution) {
  constexpr std::int64_t kBatch = 60000, kVocab = 5;
  const std::vector<std::vector<double>> targets = {{0.1, 0.2, 0.3, 0.15, 0.25}, {0.5, 0.05, 0.05, 0.4, 0}, {0.3, 0.3, 0.1, 0.1, 0.2}};
  const std::vector<std::vector<double>> drafts = {{0.1, 0.2, 0.3, 0.15, 0.25}, {0, 0, 0.1, 0.8, 0.1}, {0.9, 0.025, 0.025, 0.025, 0.025}};
  for (std::size_t kind = 0; kind < 4; ++kind) {  // 3: certain drafts
    Chains c(kBatch, 2, kVocab);
    std::mt19937 random(static_cast<unsigned>(kind));
    for (std::size_t b = 0; b < kBatch; ++b) {
      for (std::size_t place = 0; place < 3; ++place) {
        for (std::size_t v = 0; v < kVocab; ++v) c.target[(b * 3 + place) * kVocab + v] = static_cast<float>(targets[place][v]);
      }
      for (std::size_t place = 0; place < 2; ++place) {
        const std::vector<double>& q = drafts[(kind + place) % 3];
        for (std::size_t v = 0; v < kVocab; ++v) c.draft[(b * 2 + place) * kVocab + v] = static_cast<float>(q[v]);
        c.tokens[b * 2 + place] =
            kind == 3 ? static_cast<std::int32_t>(place + 1) : std::discrete_distribution<std::int32_t>(q.begin(), q.end())(random);
      }
    }
    c.args.random = {.seed = 8, .offset = static_cast<std::int64_t>(kind)};
    c.run(kind != 3);
    std::vector<std::vector<std::int64_t>> counts(3, std::vector<std::int64_t>(kVocab));
    for (std::size_t b = 0; b < kBatch; ++b) {
      for (std::size_t place = 0; place < 3; ++place) {
        const std::int32_t token = c.out[b * 3 + place];
        ASSERT_EQ(static_cast<std::int32_t>(place) <= c.accepted[b], token >= 0);
        if (token >= 0) ++counts[place].at(static_cast<std::size_t>(token));
      }
    }
    for (std::size_t place = 0; place < 3; ++place)
      expect_distribution(counts[place], targets[place], fmt::format("kind {} place {}", kind, place));
  }
}

TEST(Speculative, ChainsThatAreCertain) {
  // The target is sure of every draft; disjoint supports; a residual of one token; per-request lengths.
  Chains c(4, 3, 6);
  const auto set = [&](std::vector<float>& all, std::int64_t b, std::int64_t place, std::int64_t places, std::initializer_list<float> p) {
    std::copy(p.begin(), p.end(), all.begin() + (b * places + place) * 6);
  };
  for (std::int64_t place = 0; place < 4; ++place) {
    set(c.target, 0, place, 4, {0, 1, 0, 0, 0, 0});
    set(c.target, 1, place, 4, {0.5F, 0.5F, 0, 0, 0, 0});
    set(c.target, 2, place, 4, {0, 0, 0.25F, 0.75F, 0, 0});
    set(c.target, 3, place, 4, {0, 0, 0, 0, 0, 1});
  }
  for (std::int64_t place = 0; place < 3; ++place) {
    set(c.draft, 0, place, 3, {0.5F, 0.5F, 0, 0, 0, 0});
    set(c.draft, 1, place, 3, {0, 0, 1, 0, 0, 0});
    set(c.draft, 2, place, 3, {0.5F, 0, 0.5F, 0, 0, 0});
    set(c.draft, 3, place, 3, {0, 0, 0, 0, 0, 1});
  }
  c.tokens = {1, 1, 1, 2, 2, 2, 0, 0, 0, 5, 5, 5};
  std::vector<std::int32_t> lengths{3, 3, 3, 1};
  c.args.draft_lengths = vector_view(lengths);
  for (std::int64_t step = 0; step < 30; ++step) {
    c.args.random = {.seed = 2, .offset = step};
    c.run();
    ASSERT_EQ((std::vector<std::int32_t>{3, 0, 0, 1}), c.accepted);
    ASSERT_EQ((std::vector<std::int32_t>{1, 1, 1, 1}), std::vector<std::int32_t>(c.out.begin(), c.out.begin() + 4));
    ASSERT_TRUE(c.out[4] == 0 || c.out[4] == 1);
    ASSERT_EQ(-1, c.out[5]);
    ASSERT_EQ(3, c.out[8]);
    ASSERT_EQ((std::vector<std::int32_t>{5, 5, -1, -1}), std::vector<std::int32_t>(c.out.begin() + 12, c.out.end()));
  }
}

TEST(Speculative, GreedyFollowsTheArgmax) {
  Chains c(3, 2, 4);
  for (std::size_t b = 0; b < 3; ++b) {
    for (std::size_t place = 0; place < 3; ++place) {
      const float row[3][4] = {{0.1F, 0.4F, 0.4F, 0.1F}, {0.7F, 0.1F, 0.1F, 0.1F}, {0, 0, 0, 1}};
      std::copy(row[place], row[place] + 4, c.target.begin() + static_cast<std::ptrdiff_t>((b * 3 + place) * 4));
    }
  }
  c.tokens = {1, 0, 2, 0, 1, 3};
  c.args.greedy = true;
  c.run(false);
  EXPECT_EQ((std::vector<std::int32_t>{2, 0, 1}), c.accepted);
  EXPECT_EQ((std::vector<std::int32_t>{1, 0, 3, 1, -1, -1, 1, 0, -1}), c.out);
}

}  // namespace
}  // namespace girih
