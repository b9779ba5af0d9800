// sample() on the CPU against tests/ref/sampling.h, draw by draw; distributions by chi-square; rows of ties, NaN, infinities and nothing;
// equal bits on every target and number of threads; log-probabilities.
#include "girih/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "abi/sampling_math.h"
#include "base/numeric.h"
#include "girih/error.h"
#include "ref/sampling.h"
#include "sampling_samples.h"

namespace girih {
namespace {

using namespace testing;

struct ChainCase {
  std::int64_t top_k;
  float top_p, min_p;
  bool joint;
  float temperature;
};

TEST(Sample, EveryDrawIsTheReferences) {
  const ChainCase cases[] = {
      {0, 1, 0, false, 1},          {5, 1, 0, false, 1},       {0, 0.7F, 0, false, 0.8F}, {0, 1, 0.05F, false, 1.3F},
      {40, 0.9F, 0, false, 1},      {40, 0.9F, 0, true, 0.7F}, {3, 0.2F, 0, true, 1},     {50, 0.95F, 0.02F, false, 0.5F},
      {7, 0.8F, 0.3F, true, 2},     {1, 1, 0, false, 1},       {0, 0, 0, false, 1},       {0, 1, 1, false, 1},
      {1 << 30, 1, 0, false, 0.1F}, {0, 0.999F, 0, false, 10}, {1000, 0.5F, 0, false, 1}};
  std::int64_t checked = 0, unsure = 0;
  for (const std::int64_t vocab : {1, 2, 3, 16, 17, 33, 1000, 5003, 20000}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      for (const bool probs : {false, true}) {
        const std::int64_t rows = 6;
        Rows input = probs ? random_probs(type, rows, vocab, static_cast<unsigned>(vocab))
                           : random_rows(type, rows, vocab, static_cast<unsigned>(vocab), 3, vocab % 2 == 0 ? 1 : 3, 5);
        for (const ChainCase& c : cases) {
          SampleArgs args;
          args.kind = probs ? SampleInput::probs : SampleInput::logits;
          args.input = input.view();
          args.top_k = c.top_k;
          args.top_p = c.top_p;
          args.min_p = c.min_p;
          args.order = c.joint ? FilterOrder::joint : FilterOrder::top_k_first;
          args.temperature = probs ? 1.0F : c.temperature;
          for (std::int64_t step = 0; step < 4; ++step) {
            args.random = {.seed = 99, .offset = step};
            const std::vector<std::int32_t> tokens = draw_tokens(args, rows);
            for (std::int64_t r = 0; r < rows; ++r) {
              const ref::SamplingRow row =
                  ref::sampling_row(input.row(r), probs, static_cast<double>(args.temperature.value),
                                    {c.top_k, static_cast<double>(c.top_p), static_cast<double>(c.min_p), c.joint});
              const std::int64_t want =
                  ref::draw(row, ref::uniform(99, static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(r), 0));
              ++checked;
              if (want < 0) {
                ++unsure;
                continue;
              }
              ASSERT_EQ(want, tokens[static_cast<std::size_t>(r)])
                  << "vocab " << vocab << " " << name(type) << (probs ? " probs" : " logits") << " row " << r << " k " << c.top_k << " p "
                  << c.top_p << " min_p " << c.min_p << " joint " << c.joint;
            }
          }
        }
      }
    }
  }
  EXPECT_LT(unsure * 8, checked);
}

TEST(Sample, PenaltiesBiasAndMaskAreThoseOfTheFormula) {
  constexpr std::int64_t kVocab = 70, kRows = 40;
  Rows input = random_rows(DType::f32, kRows, kVocab, 8, 2);
  std::mt19937 random(4);
  std::vector<std::int32_t> indptr{0}, tokens, counts, bias_indptr{0}, bias_tokens;
  std::vector<float> bias, repetition, frequency, presence, temperature;
  std::vector<std::int32_t> allowed(kRows * 3);
  std::vector<std::vector<float>> processed;
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::vector<float> x = input.row(r);
    repetition.push_back(0.5F + static_cast<float>(random() % 100) / 50);
    frequency.push_back(static_cast<float>(random() % 100) / 100 - 0.3F);
    presence.push_back(static_cast<float>(random() % 100) / 100 - 0.3F);
    temperature.push_back(0.5F + static_cast<float>(random() % 100) / 100);
    std::vector<std::int32_t> all(kVocab);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    for (std::size_t i = 0; i < static_cast<std::size_t>(r % 9); ++i) {
      bias_tokens.push_back(all[i]);
      bias.push_back(i == 2 ? -kInf : static_cast<float>(random() % 100) / 30 - 1);
      x[static_cast<std::size_t>(all[i])] += bias.back();
    }
    std::shuffle(all.begin(), all.end(), random);
    for (std::size_t i = 0; i < static_cast<std::size_t>(r % 30); ++i) {
      tokens.push_back(all[i]);
      counts.push_back(static_cast<std::int32_t>(random() % 4));
      float& v = x[static_cast<std::size_t>(all[i])];
      v = v > 0 ? v / repetition.back() : v * repetition.back();
      if (counts.back() > 0) v = std::fma(-frequency.back(), static_cast<float>(counts.back()), v) - presence.back();
    }
    indptr.push_back(static_cast<std::int32_t>(tokens.size()));
    bias_indptr.push_back(static_cast<std::int32_t>(bias_tokens.size()));
    for (std::size_t w = 0; w < 3; ++w) {
      const auto word = static_cast<std::uint32_t>(random() | random());
      allowed[static_cast<std::size_t>(r) * 3 + w] = static_cast<std::int32_t>(word);
      for (std::size_t b = 0; b < 32 && 32 * w + b < kVocab; ++b) {
        if ((word >> b & 1U) == 0) x[32 * w + b] = -kInf;
      }
    }
    processed.push_back(x);
  }
  SampleArgs args;
  args.input = input.view();
  args.bias_tokens = {vector_view(bias_indptr), vector_view(bias_tokens)};
  args.bias = vector_view(bias);
  args.history = {vector_view(indptr), vector_view(tokens)};
  args.history_counts = vector_view(counts);
  args.repetition_penalty = vector_view(repetition);
  args.frequency_penalty = vector_view(frequency);
  args.presence_penalty = vector_view(presence);
  args.temperature = vector_view(temperature);
  args.allowed = matrix_view(allowed, 3);
  args.top_p = 0.9F;
  std::vector<float> logprobs(kRows);
  args.logprobs = vector_view(logprobs);
  for (std::int64_t step = 0; step < 20; ++step) {
    args.random = {.seed = 5, .offset = step};
    const std::vector<std::int32_t> got = draw_tokens(args, kRows);
    for (std::size_t r = 0; r < kRows; ++r) {
      const ref::SamplingRow row =
          ref::sampling_row(processed[r], false, static_cast<double>(temperature[r]), {0, static_cast<double>(0.9F), 0, false});
      const std::int64_t want = ref::draw(row, ref::uniform(5, static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(r), 0));
      if (want >= 0) {
        ASSERT_EQ(want, got[r]) << r;
      }
      ASSERT_NEAR(std::log(row.probability[static_cast<std::size_t>(got[r])]), static_cast<double>(logprobs[r]), 1e-5);
    }
  }
}

TEST(Sample, DistributionsPassChiSquare) {
  const ChainCase cases[] = {{0, 1, 0, false, 1},    {4, 1, 0, false, 1},    {0, 0.8F, 0, false, 1},
                             {0, 1, 0.1F, false, 1}, {6, 0.7F, 0, false, 1}, {6, 0.7F, 0, true, 1}};
  for (const std::int64_t vocab : {2, 5, 13, 300}) {
    Rows one = random_rows(DType::f32, 1, vocab, static_cast<unsigned>(7 * vocab), 1.5F);
    for (const ChainCase& c : cases) {
      std::vector<std::int32_t> indices;
      SampleArgs args = repeated(one, 40000, indices);
      args.top_k = c.top_k;
      args.top_p = c.top_p;
      args.min_p = c.min_p;
      args.order = c.joint ? FilterOrder::joint : FilterOrder::top_k_first;
      args.random = {.seed = 1234, .offset = 5};
      ref::SamplingRow row =
          ref::sampling_row(one.row(0), false, 1, {c.top_k, static_cast<double>(c.top_p), static_cast<double>(c.min_p), c.joint});
      ASSERT_TRUE(row.sure);
      std::vector<double> kept(static_cast<std::size_t>(vocab));
      double sum = 0;
      for (std::int64_t i = 0; i < row.num_kept; ++i) {
        const auto token = static_cast<std::size_t>(row.order[static_cast<std::size_t>(i)]);
        sum += kept[token] = row.probability[token];
      }
      for (double& p : kept) p /= sum;
      std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab));
      for (const std::int32_t token : draw_tokens(args, 40000)) ++counts.at(static_cast<std::size_t>(token));
      expect_distribution(counts, kept, fmt::format("vocab {} k {} p {} min_p {} joint {}", vocab, c.top_k, c.top_p, c.min_p, c.joint));
    }
  }
}

/// All rows of up to 4 entries over a set of values, with every k and several p: nothing outside, and every kept token can come.
TEST(Sample, SmallVocabulariesExhaustively) {
  const float values[] = {-kInf, 0, -0.0F, 1, kInf, kNan};
  for (std::int64_t vocab = 1; vocab <= 4; ++vocab) {
    std::int64_t combinations = 1;
    for (std::int64_t i = 0; i < vocab; ++i) combinations *= 6;
    Rows input(DType::f32, combinations, vocab);
    for (std::int64_t c = 0; c < combinations; ++c) {
      std::int64_t rest = c;
      for (std::int64_t i = 0; i < vocab; ++i, rest /= 6) input.set(c, i, values[rest % 6]);
    }
    for (std::int64_t k = 0; k <= vocab; ++k) {
      for (const float p : {1.0F, 0.0F, 0.4F, 0.75F}) {
        SampleArgs args;
        args.input = input.view();
        args.top_k = k;
        args.top_p = p;
        std::vector<std::uint8_t> valid(static_cast<std::size_t>(combinations), 9);
        args.valid = vector_view(valid);
        for (std::int64_t step = 0; step < 8; ++step) {
          args.random = {.seed = 3, .offset = step};
          const std::vector<std::int32_t> got = draw_tokens(args, combinations);
          for (std::int64_t c = 0; c < combinations; ++c) {
            std::vector<float> x = input.row(c);
            bool nan = false;
            for (float& v : x) {
              nan = nan || std::isnan(v);
              if (std::isnan(v)) v = -kInf;
            }
            const ref::SamplingRow row = ref::sampling_row(x, false, 1, {k, static_cast<double>(p), 0, false});
            const auto at = static_cast<std::size_t>(c);
            ASSERT_EQ(nan || row.order.empty() ? 0 : 1, valid[at]);
            if (row.order.empty()) {
              ASSERT_EQ(0, got[at]);
              continue;
            }
            const auto begin = row.order.begin();
            ASSERT_NE(begin + row.num_kept, std::find(begin, begin + row.num_kept, got[at]))
                << "combination " << c << " k " << k << " p " << p;
            ASSERT_GT(row.probability[static_cast<std::size_t>(got[at])], 0);
            const std::int64_t want = ref::draw(row, ref::uniform(3, static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(c), 0));
            if (want >= 0) {
              ASSERT_EQ(want, got[at]) << "combination " << c << " k " << k << " p " << p;
            }
          }
        }
      }
    }
  }
}

TEST(Sample, TiesAreCutByIndex) {
  Rows one(DType::f32, 1, 20000);
  for (std::int64_t i = 0; i < 20000; ++i) one.set(0, i, 0.25F);
  std::vector<std::int32_t> indices;
  SampleArgs args = repeated(one, 3000, indices);
  args.top_k = 7;
  std::vector<std::int64_t> counts(7);
  for (const std::int32_t token : draw_tokens(args, 3000)) ++counts.at(static_cast<std::size_t>(token));
  expect_distribution(counts, std::vector<double>(7, 1.0 / 7), "7 of 20000 equal");
  args.top_k = 0;
  args.top_p = 0.001F;
  for (const std::int32_t token : draw_tokens(args, 3000)) ASSERT_LT(token, 21);
  args.top_p = 1;
  args.top_k = 1;
  for (const std::int32_t token : draw_tokens(args, 3000)) ASSERT_EQ(0, token);
}

TEST(Sample, TemperatureNearZeroIsArgmax) {
  Rows input = random_rows(DType::f32, 8, 500, 21, 0.01F);
  for (std::int64_t i = 100; i < 500; i += 7) input.set(3, i, 1);  // tied maxima, the first at 100
  std::vector<float> temperature{0, 1e-5F, 1e-6F, 0, 1e-5F, 1e-4F, 1e-4F, 1.5F};
  SampleArgs args;
  args.input = input.view();
  args.temperature = vector_view(temperature);
  for (std::int64_t step = 0; step < 50; ++step) {
    args.random = {.seed = 17, .offset = step};
    const std::vector<std::int32_t> got = draw_tokens(args, 8);
    for (std::size_t r = 0; r < 5; ++r) {
      const std::vector<float> x = input.row(static_cast<std::int64_t>(r));
      ASSERT_EQ(std::max_element(x.begin(), x.end()) - x.begin(), got[r]);
    }
    EXPECT_EQ(100, got[3]);
    for (std::size_t r = 5; r < 8; ++r) {
      const ref::SamplingRow row =
          ref::sampling_row(input.row(static_cast<std::int64_t>(r)), false, static_cast<double>(temperature[r]), {});
      const std::int64_t want = ref::draw(row, ref::uniform(17, static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(r), 0));
      if (want >= 0) {
        EXPECT_EQ(want, got[r]);
      }
    }
  }
}

TEST(Sample, OneHotAndHugeKGiveTheOneToken) {
  Rows one(DType::f32, 1, 32000);
  for (std::int64_t i = 0; i < 32000; ++i) one.set(0, i, i == 1 ? 1.0F : 0.0F);
  std::vector<std::int32_t> indices;
  SampleArgs args = repeated(one, 200, indices);
  args.kind = SampleInput::probs;
  args.top_k = 1073741824;
  for (const std::int32_t token : draw_tokens(args, 200)) ASSERT_EQ(1, token);
}

TEST(Sample, NanRowsAreFlaggedAndDisturbNoOther) {
  Rows clean = random_rows(DType::bf16, 5, 300, 2);
  Rows dirty = clean;
  for (std::int64_t i = 0; i < 300; ++i) dirty.set(1, i, kNan);
  dirty.set(3, 17, kNan);
  std::vector<std::uint8_t> valid(5);
  SampleArgs args;
  args.random = {.seed = 4};
  args.input = clean.view();
  const std::vector<std::int32_t> want = draw_tokens(args, 5);
  args.input = dirty.view();
  args.valid = vector_view(valid);
  std::vector<float> logprobs(5);
  args.logprobs = vector_view(logprobs);
  const std::vector<std::int32_t> got = draw_tokens(args, 5);
  EXPECT_EQ((std::vector<std::uint8_t>{1, 0, 1, 0, 1}), valid);
  EXPECT_EQ(0, got[1]);
  EXPECT_NE(17, got[3]);
  EXPECT_TRUE(std::isnan(logprobs[1]));
  for (const std::size_t r : {0, 2, 4}) EXPECT_EQ(want[r], got[r]);
}

TEST(Sample, ProbabilitiesOfAnyScale) {
  // Not normalised, huge, tiny, subnormal: only ratios count.
  Rows base = random_probs(DType::f32, 1, 50, 6);
  for (const float scale : {0x1p-20F, 0x1p-60F, 0x1p-100F, 0x1p60F, 0x1p110F, 8.0F}) {
    Rows scaled(DType::f32, 1, 50);
    for (std::int64_t i = 0; i < 50; ++i) scaled.set(0, i, base.get(0, i) * scale);
    std::vector<std::int32_t> a, b;
    SampleArgs x = repeated(base, 500, a), y = repeated(scaled, 500, b);
    x.kind = y.kind = SampleInput::probs;
    x.top_p = y.top_p = 0.9F;
    EXPECT_EQ(draw_tokens(x, 500), draw_tokens(y, 500)) << scale;
  }
  // The kept ones underflow to nothing but the largest.
  Rows tiny(DType::f32, 1, 3);
  tiny.set(0, 0, 1e-45F);
  tiny.set(0, 1, 0);
  tiny.set(0, 2, 1e-45F);
  std::vector<std::int32_t> indices;
  SampleArgs args = repeated(tiny, 100, indices);
  args.kind = SampleInput::probs;
  args.top_k = 1;
  for (const std::int32_t token : draw_tokens(args, 100)) EXPECT_EQ(0, token);
}

TEST(Sample, ASeedOfItsOwnDrawsTheSameAnywhere) {
  Rows input = random_rows(DType::f32, 6, 900, 12);
  std::vector<std::int64_t> seeds{11, 12, 13, 14, 15, 16}, offset{3};
  SampleArgs args;
  args.input = input.view();
  args.random = {.seed = vector_view(seeds), .offset = vector_view(offset)};
  const std::vector<std::int32_t> all = draw_tokens(args, 6);
  for (std::size_t r = 0; r < 6; ++r) {
    std::vector<std::int32_t> index{static_cast<std::int32_t>(r)};
    std::vector<std::int64_t> seed{seeds[r]};
    SampleArgs alone = args;
    alone.indices = vector_view(index);
    alone.random.seed = vector_view(seed);
    EXPECT_EQ(all[r], draw_tokens(alone, 1)[0]);
  }
}

TEST(Sample, TargetsAndThreadsChangeNoBit) {
  Rows input = random_rows(DType::f32, 9, 30011, 31, 4);
  for (std::int64_t i = 0; i < 30011; ++i) input.set(4, i, static_cast<float>(i % 3));
  struct Result {
    std::vector<std::int32_t> tokens, top;
    std::vector<float> logprobs, top_logprobs, softmax;
    bool operator==(const Result& o) const {
      const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
      };
      return tokens == o.tokens && top == o.top && same(logprobs, o.logprobs) && same(top_logprobs, o.top_logprobs) &&
             same(softmax, o.softmax);
    }
  };
  const auto all = [&](CpuTarget target, int workers) {
    Result result;
    for (const ChainCase& c : {ChainCase{0, 1, 0, false, 1}, {50, 0.9F, 0, false, 0.7F}, {0, 0.9F, 0.01F, false, 1.1F}}) {
      Result part;
      part.tokens.resize(9);
      part.top.resize(9 * 5);
      part.logprobs.resize(9);
      part.top_logprobs.resize(9 * 5);
      SampleArgs args;
      args.input = input.view();
      args.top_k = c.top_k;
      args.top_p = c.top_p;
      args.min_p = c.min_p;
      args.temperature = c.temperature;
      args.tokens = vector_view(part.tokens);
      args.logprobs = vector_view(part.logprobs);
      args.top_tokens = matrix_view(part.top, 5);
      args.top_logprobs = matrix_view(part.top_logprobs, 5);
      sample(context(target, workers), args);
      result.tokens.insert(result.tokens.end(), part.tokens.begin(), part.tokens.end());
      result.top.insert(result.top.end(), part.top.begin(), part.top.end());
      result.logprobs.insert(result.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
      result.top_logprobs.insert(result.top_logprobs.end(), part.top_logprobs.begin(), part.top_logprobs.end());
    }
    result.softmax.resize(9 * 30011);
    softmax(context(target, workers), input.view(), 0.9F, matrix_view(result.softmax, 30011));
    return result;
  };
  const Result want = all(CpuTarget::scalar, 1);
  for (const CpuTarget target : available_cpu_targets()) {
    for (const int workers : {1, 2, 3}) EXPECT_TRUE(want == all(target, workers)) << name(target) << " " << workers;
  }
}

TEST(Sample, LogprobsOfTheTokenAndOfTheFirst) {
  Rows input = random_rows(DType::f32, 4, 200, 77);
  for (std::int64_t i = 0; i < 200; ++i) input.set(3, i, i < 3 ? static_cast<float>(i) : -kInf);
  for (const LogprobKind kind : {LogprobKind::processed, LogprobKind::filtered}) {
    for (const float temperature : {0.0F, 0.8F}) {
      std::vector<std::int32_t> tokens(4);
      std::vector<std::int64_t> top(4 * 6);
      std::vector<std::int64_t> wide_tokens(4);
      std::vector<float> logprobs(4), top_logprobs(4 * 6);
      SampleArgs args;
      args.input = input.view();
      args.temperature = temperature;
      args.top_k = 4;
      args.tokens = vector_view(wide_tokens);
      args.logprobs = vector_view(logprobs);
      args.top_tokens = matrix_view(top, 6);
      args.top_logprobs = matrix_view(top_logprobs, 6);
      args.logprob_kind = kind;
      sample(context(), args);
      for (std::size_t r = 0; r < 4; ++r) {
        const ref::SamplingRow row =
            ref::sampling_row(input.row(static_cast<std::int64_t>(r)), false, temperature == 0 ? 1.0 : 0.8F, {4, 1, 0, false});
        const std::int64_t kept = temperature == 0 ? 1 : row.num_kept;
        double total = 1;
        if (kind == LogprobKind::filtered) {
          total = 0;
          for (std::int64_t i = 0; i < kept; ++i)
            total += row.probability[static_cast<std::size_t>(row.order[static_cast<std::size_t>(i)])];
        }
        EXPECT_NEAR(std::log(row.probability[static_cast<std::size_t>(wide_tokens[r])] / total), static_cast<double>(logprobs[r]), 1e-5);
        for (std::size_t i = 0; i < 6; ++i) {
          const std::size_t at = r * 6 + i;
          if (i >= row.order.size()) {
            EXPECT_EQ(-1, top[at]);
            EXPECT_TRUE(std::isnan(top_logprobs[at]));
            continue;
          }
          EXPECT_EQ(row.order[i], top[at]);
          if (kind == LogprobKind::filtered && static_cast<std::int64_t>(i) >= kept) {
            EXPECT_EQ(-kInf, top_logprobs[at]);
          } else {
            EXPECT_NEAR(std::log(row.probability[static_cast<std::size_t>(row.order[i])] / total), static_cast<double>(top_logprobs[at]),
                        1e-5);
          }
        }
      }
    }
  }
}

TEST(Sample, VocabularyOfAMillion) {
  for (const std::int64_t vocab : {std::int64_t{1000000}, abi::kMaxVocab}) {
    Rows input = random_rows(DType::bf16, 2, vocab, 5, 1);
    for (const ChainCase& c : {ChainCase{0, 1, 0, false, 1}, {0, 0.9F, 0, false, 1}, {500000, 0.5F, 0, false, 1}}) {
      SampleArgs args;
      args.input = input.view();
      args.top_k = c.top_k;
      args.top_p = c.top_p;
      const std::vector<std::int32_t> got = draw_tokens(args, 2);
      for (std::size_t r = 0; r < 2; ++r) {
        ref::SamplingRow row =
            ref::sampling_row(input.row(static_cast<std::int64_t>(r)), false, 1, {c.top_k, static_cast<double>(c.top_p), 0, false});
        // With a million tokens something is always near a boundary: the draw must lie within that of the reference.
        std::vector<std::int64_t> kept(row.order.begin(), row.order.begin() + row.num_kept);
        std::sort(kept.begin(), kept.end());
        double total = 0, below = 0;
        for (const std::int64_t i : kept) {
          total += row.probability[static_cast<std::size_t>(i)];
          if (i < got[r]) below += row.probability[static_cast<std::size_t>(i)];
        }
        const double u = ref::uniform(0, 0, static_cast<std::uint32_t>(r), 0) * total;
        EXPECT_NEAR(u, below, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace girih
