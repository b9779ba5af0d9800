// Sampling on the CPU: masses, cuts and random numbers by themselves; the chain against tests/ref/sampling.h, draw by draw; distributions
// by chi-square; rows of ties, NaN, infinities and nothing; equal bits on every target and number of threads; refusals.
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
#include "sampling/cut.h"

namespace girih {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

Context& context(CpuTarget target = CpuTarget::best, int workers = 2) {
  static std::map<std::pair<CpuTarget, int>, Context> all;
  const auto key = std::pair(target, workers);
  if (!all.contains(key)) all.emplace(key, Context({.device = {}, .num_workers = workers, .target = target, .log = {}}));
  return all.at(key);
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Rows of any type, with gaps if wanted.
struct Rows {
  DType type;
  std::int64_t rows, vocab, row_stride, stride;
  std::vector<unsigned char> memory;
  Rows(DType t, std::int64_t r, std::int64_t v, std::int64_t step = 1, std::int64_t gap = 0)
      : type(t), rows(r), vocab(v), row_stride(v * step + gap), stride(step) {
    memory.assign(static_cast<std::size_t>(bytes(t, rows * row_stride + 1)), 0xff);
  }
  void set(std::int64_t r, std::int64_t i, float x) { store_element(type, memory.data(), r * row_stride + i * stride, x); }
  float get(std::int64_t r, std::int64_t i) const { return load_element(type, memory.data(), r * row_stride + i * stride); }
  TensorView view() { return TensorView(memory.data(), type, {rows, vocab}, {row_stride, stride}); }
  std::vector<float> row(std::int64_t r) const {
    std::vector<float> out;
    for (std::int64_t i = 0; i < vocab; ++i) out.push_back(get(r, i));
    return out;
  }
};

template <typename T>
TensorView vector_view(std::vector<T>& v) {
  const DType type = std::is_same_v<T, float> ? DType::f32 : sizeof(T) == 8 ? DType::i64 : sizeof(T) == 4 ? DType::i32 : DType::u8;
  return TensorView(v.data(), type, {std::ssize(v)});
}
template <typename T>
TensorView matrix_view(std::vector<T>& v, std::int64_t columns) {
  TensorView t = vector_view(v);
  return TensorView(t.data, t.dtype, {std::ssize(v) / columns, columns});
}

Rows random_rows(DType type, std::int64_t rows, std::int64_t vocab, unsigned seed, float spread = 3, std::int64_t step = 1,
                 std::int64_t gap = 0) {
  Rows out(type, rows, vocab, step, gap);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < vocab; ++i) out.set(r, i, normal(random));
  }
  return out;
}
Rows random_probs(DType type, std::int64_t rows, std::int64_t vocab, unsigned seed, float spread = 2) {
  Rows out = random_rows(type, rows, vocab, seed, spread);
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(out.get(r, i)));
    for (std::int64_t i = 0; i < vocab; ++i) out.set(r, i, static_cast<float>(std::exp(static_cast<double>(out.get(r, i))) / sum));
  }
  return out;
}

std::vector<std::int32_t> draw_tokens(SampleArgs args, std::int64_t rows, Context& on = context()) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows), -7);
  args.tokens = vector_view(tokens);
  sample(on, args);
  return tokens;
}

/// One row as many rows: the way to draw often from one distribution.
SampleArgs repeated(Rows& one, std::int64_t times, std::vector<std::int32_t>& indices) {
  indices.assign(static_cast<std::size_t>(times), 0);
  SampleArgs args;
  args.input = one.view();
  args.indices = vector_view(indices);
  return args;
}

// ---------------------------------------------------------------------------------------------------------------- pieces

TEST(SamplingMath, PhiloxHasThePublishedValues) {
  const ref::Philox zero = ref::philox({0, 0, 0, 0}, {0, 0});
  EXPECT_EQ(0x6627e8d5U, zero.word[0]);
  EXPECT_EQ(0xe169c58dU, zero.word[1]);
  EXPECT_EQ(0xbc57ac4cU, zero.word[2]);
  EXPECT_EQ(0x9b00dbd8U, zero.word[3]);
  const ref::Philox pi = ref::philox({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U});
  EXPECT_EQ(0xd16cfe09U, pi.word[0]);
  EXPECT_EQ(0x94fdccebU, pi.word[1]);
  EXPECT_EQ(0x94fdccebd16cfe09U, abi::random_bits(0x299f31d0a4093822U, 0x85a308d3243f6a88U, 0x13198a2eU, 0x03707344U));
}

TEST(SamplingMath, IntegersAgreeWith128Bits) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t a = random() >> random() % 64, b = random() >> random() % 64;
    EXPECT_EQ(static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64), abi::multiply_high(a, b));
    const float p = std::ldexp(static_cast<float>(random() >> 40), -24 - static_cast<int>(random() % 50));
    if (p >= 1) continue;
    // p = mantissa / 2^shift exactly.
    int exponent = 0;
    const auto mantissa = static_cast<std::uint64_t>(std::ldexp(std::frexp(p, &exponent), 24));
    const int shift = 24 - exponent;
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * mantissa;
    const unsigned __int128 whole = shift >= 128 ? 0 : product >> shift;
    const bool rest = shift >= 128 ? product != 0 : whole << shift != product;
    EXPECT_EQ(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(whole) + (rest ? 1 : 0)), abi::mass_needed(a, bits_of(p)))
        << a << " " << p;
  }
}

TEST(SamplingMath, KeysOrderAsValues) {
  const float values[] = {-kInf, -3e38F, -1, -1e-40F, 0, 1e-45F, 1e-30F, 0.5F, 1, 3e38F, kInf};
  for (std::size_t i = 0; i + 1 < std::size(values); ++i)
    EXPECT_LT(abi::key_of_bits(bits_of(values[i])), abi::key_of_bits(bits_of(values[i + 1])));
  for (const float x : values) EXPECT_EQ(bits_of(x), abi::bits_of_key(abi::key_of_bits(bits_of(x))));
  EXPECT_EQ(abi::key_of_bits(bits_of(0.0F)), abi::key_of_bits(bits_of(-0.0F)));
  EXPECT_EQ(0U, abi::key_of_bits(bits_of(kNan)));
  EXPECT_EQ(abi::kKeyOfMinusInf, abi::key_of_bits(bits_of(-kInf)));
  EXPECT_EQ(abi::kKeyOfInf, abi::key_of_bits(bits_of(kInf)));
}

TEST(SamplingMath, MassesAreFixedPoint) {
  EXPECT_EQ(std::uint64_t{1} << 43, abi::mass_of_bits(bits_of(1.0F), abi::kOneExponent));
  EXPECT_EQ(std::uint64_t{1}, abi::mass_of_bits(bits_of(0x1p-43F), abi::kOneExponent));
  EXPECT_EQ(0U, abi::mass_of_bits(bits_of(0x1.fp-44F), abi::kOneExponent));
  EXPECT_EQ(0U, abi::mass_of_bits(0, abi::kOneExponent));
  EXPECT_EQ((std::uint64_t{1} << 43) + (std::uint64_t{1} << 20), abi::mass_of_bits(bits_of(1 + 0x1p-23F), abi::kOneExponent));
  // Weights that are not normalised: the largest keeps all its bits.
  for (const float x : {3e38F, 5.0F, 1e-9F, 1e-38F, 1e-45F}) {
    const int reference = abi::reference_of_largest(bits_of(x));
    const std::uint64_t mass = abi::mass_of_bits(bits_of(x), reference);
    EXPECT_GT(mass, 0U);
    EXPECT_LT(mass, std::uint64_t{1} << 44);
    EXPECT_EQ(x, abi::weight_of_mass(mass, reference));
  }
}

TEST(SamplingCut, AgreesWithSorting) {
  std::mt19937 random(5);
  sampling::CutScratch scratch;
  for (int round = 0; round < 400; ++round) {
    const std::size_t n = 1 + random() % 300;
    std::vector<std::uint32_t> keys(n);
    std::vector<std::uint64_t> masses(n);
    const std::uint32_t spread = std::vector<std::uint32_t>{1, 3, 40, 5000, 0xffffffffU}[random() % 5];
    for (std::size_t i = 0; i < n; ++i) {
      keys[i] =
          0x80000000U + (spread == 0xffffffffU ? static_cast<std::uint32_t>(random()) : static_cast<std::uint32_t>(random()) % spread);
      masses[i] = keys[i] % 1000003;
    }
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
    for (const bool by_mass : {false, true}) {
      std::uint64_t total = 0;
      for (const std::uint64_t m : masses) total += by_mass ? m : 1;
      if (total == 0) continue;
      const std::uint64_t need = 1 + static_cast<std::uint64_t>(random()) % total;
      std::uint64_t sum = 0;
      std::size_t count = 0;
      while (sum < need) sum += by_mass ? masses[order[count++]] : (++count, 1);
      const sampling::Cut cut =
          sampling::cut_row(keys.data(), by_mass ? masses.data() : nullptr, static_cast<std::int64_t>(n), need, scratch);
      std::vector<bool> want(n), got(n);
      for (std::size_t i = 0; i < count; ++i) want[order[i]] = true;
      std::int64_t ties = cut.ties;
      for (std::size_t i = 0; i < n; ++i) got[i] = keys[i] > cut.key || (keys[i] == cut.key && ties-- > 0);
      ASSERT_EQ(want, got) << "n " << n << " need " << need;
      ASSERT_EQ(sum, cut.amount);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- the chain

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

/// Chi-square of draws from one row against its probabilities; tokens outside must not come.
void expect_distribution(const std::vector<std::int64_t>& counts, const std::vector<double>& probability, const std::string& what) {
  std::int64_t total = 0;
  for (const std::int64_t c : counts) total += c;
  double chi = 0;
  int degrees = -1;
  double rare = 0, rare_expected = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probability[i] * static_cast<double>(total);
    if (probability[i] == 0) {
      ASSERT_EQ(0, counts[i]) << what << ": token " << i << " has no mass";
      continue;
    }
    if (expected < 8) {
      rare += static_cast<double>(counts[i]);
      rare_expected += expected;
      continue;
    }
    chi += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
    ++degrees;
  }
  if (rare_expected > 0) {
    chi += std::pow(rare - rare_expected, 2) / rare_expected;
    ++degrees;
  }
  // Wilson-Hilferty: z of the chi-square.
  if (degrees <= 0) return;
  const double z = (std::cbrt(chi / degrees) - (1 - 2.0 / (9 * degrees))) / std::sqrt(2.0 / (9 * degrees));
  EXPECT_LT(z, 4.5) << what << ": chi-square " << chi << " of " << degrees;
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

// ---------------------------------------------------------------------------------------------------------------- rows for rows

TEST(Softmax, IsTheFormula) {
  for (const std::int64_t vocab : {1, 7, 1000, 4099}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      Rows input = random_rows(type, 4, vocab, 5, 6, 2, 3);
      Rows out(DType::f32, 4, vocab, 3, 1);
      std::vector<float> temperature{1, 0.3F, 0, 5};
      softmax(context(), input.view(), vector_view(temperature), out.view());
      for (std::int64_t r = 0; r < 4; ++r) {
        const float t = temperature[static_cast<std::size_t>(r)];
        const ref::SamplingRow row = ref::sampling_row(input.row(r), false, t == 0 ? 1 : static_cast<double>(t), {});
        for (std::int64_t i = 0; i < vocab; ++i) {
          const double want = t == 0 ? (i == row.order[0] ? 1 : 0) : row.probability[static_cast<std::size_t>(i)];
          ASSERT_NEAR(want, static_cast<double>(out.get(r, i)), 4e-6 * want + 1e-37) << vocab << " " << name(type) << " " << r << " " << i;
        }
      }
    }
  }
  Rows odd(DType::f32, 4, 3);
  const float rows[4][3] = {{-kInf, -kInf, -kInf}, {kInf, 0, kInf}, {kNan, 0, 0}, {-3e38F, 3e38F, -kInf}};
  const float want[4][3] = {{0, 0, 0}, {0.5F, 0, 0.5F}, {0, 0.5F, 0.5F}, {0, 1, 0}};
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t i = 0; i < 3; ++i) odd.set(r, i, rows[r][i]);
  }
  softmax(context(), odd.view(), 1.0F, odd.view());  // in place
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(want[r][i], odd.get(r, i)) << r << " " << i;
  }
}

TEST(Renorm, KeepsThePrefixAndItsRatios) {
  for (const std::int64_t vocab : {1, 2, 500, 20001}) {
    for (const float p : {0.1F, 0.5F, 0.9F, 0.999F}) {
      Rows input = random_probs(DType::f32, 3, vocab, static_cast<unsigned>(vocab));
      Rows out(DType::f32, 3, vocab);
      top_p_renorm_probs(context(), input.view(), p, out.view());
      for (std::int64_t r = 0; r < 3; ++r) {
        const ref::SamplingRow row = ref::sampling_row(input.row(r), true, 1, {0, static_cast<double>(p), 0, false});
        std::int64_t kept = 0;
        double mass = 0;
        for (std::int64_t i = 0; i < vocab; ++i) {
          kept += out.get(r, i) > 0 ? 1 : 0;
          if (out.get(r, i) > 0) mass += row.probability[static_cast<std::size_t>(i)];
        }
        if (row.sure) {
          ASSERT_EQ(row.num_kept, kept);
        }
        ASSERT_GE(mass, static_cast<double>(p) * (1 - 1e-9));
        for (std::int64_t i = 0; i < vocab; ++i) {
          if (out.get(r, i) > 0) {
            ASSERT_NEAR(row.probability[static_cast<std::size_t>(i)] / mass, static_cast<double>(out.get(r, i)),
                        1e-6 * static_cast<double>(out.get(r, i)));
          }
        }
      }
      const std::int64_t k = std::max<std::int64_t>(1, vocab / 3);
      top_k_renorm_probs(context(), input.view(), k, out.view());
      for (std::int64_t r = 0; r < 3; ++r) {
        std::int64_t kept = 0;
        for (std::int64_t i = 0; i < vocab; ++i) kept += out.get(r, i) > 0 ? 1 : 0;
        ASSERT_EQ(k, kept);
      }
    }
  }
}

TEST(Renorm, TopPOfOneIsACopy) {
  Rows input(DType::f32, 1, 21);
  input.set(0, 0, static_cast<float>(1 - 20e-9));
  for (std::int64_t i = 1; i < 21; ++i) input.set(0, i, 1e-9F);
  Rows out(DType::f32, 1, 21);
  top_p_renorm_probs(context(), input.view(), 1.0F, out.view());
  for (std::int64_t i = 0; i < 21; ++i) EXPECT_EQ(bits_of(input.get(0, i)), bits_of(out.get(0, i)));
  top_k_renorm_probs(context(), input.view(), 0, out.view());
  for (std::int64_t i = 0; i < 21; ++i) EXPECT_EQ(bits_of(input.get(0, i)), bits_of(out.get(0, i)));
}

TEST(Renorm, ExactlyKEvenUnderAHeavyToken) {
  Rows input = random_probs(DType::f32, 1, 5000, 1);
  for (std::int64_t i = 0; i < 5000; ++i) input.set(0, i, i == 77 ? 0.45F : input.get(0, i) * 0.55F);
  Rows out(DType::f32, 1, 5000);
  top_k_renorm_probs(context(), input.view(), 50, out.view());
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < 5000; ++i) kept += out.get(0, i) > 0 ? 1 : 0;
  EXPECT_EQ(50, kept);
}

TEST(TopKMask, KeepsTheFirstKAndTheirBits) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t k : {0, 1, 5, 299, 300, 1000}) {
      Rows input = random_rows(type, 3, 300, 4);
      for (std::int64_t i = 0; i < 300; ++i) input.set(1, i, static_cast<float>(i % 4));
      Rows out(type, 3, 300);
      std::vector<std::int64_t> ks(3, k);
      top_k_mask_logits(context(), input.view(), vector_view(ks), out.view());
      for (std::int64_t r = 0; r < 3; ++r) {
        const ref::SamplingRow row = ref::sampling_row(input.row(r), false, 1, {k, 1, 0, false});
        std::vector<bool> kept(300);
        for (std::int64_t i = 0; i < row.num_kept; ++i) kept[static_cast<std::size_t>(row.order[static_cast<std::size_t>(i)])] = true;
        for (std::int64_t i = 0; i < 300; ++i)
          ASSERT_EQ(kept[static_cast<std::size_t>(i)] ? input.get(r, i) : -kInf, out.get(r, i)) << k << " " << i;
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- top_k

TEST(TopK, IsTheHeadOfTheSortedRow) {
  for (const std::int64_t vocab : {1, 3, 64, 3000, 9001}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const std::int64_t k : {1, 2, 50, 2048, 4096}) {
        for (const bool sorted : {false, true}) {
          Rows input = random_rows(type, 5, vocab, static_cast<unsigned>(vocab), 2, 1, 3);
          for (std::int64_t i = 0; i < vocab; ++i) {
            input.set(1, i, 0);
            if (i % 3 != 0) input.set(2, i, -kInf);
            if (i % 5 == 2) input.set(3, i, kNan);
          }
          std::vector<std::int64_t> indices(static_cast<std::size_t>(5 * k), -9);
          Rows values(type, 5, k);
          TopKArgs args;
          args.input = input.view();
          args.k = k;
          args.sorted = sorted;
          args.values = values.view();
          args.indices = matrix_view(indices, k);
          top_k(context(), args);
          for (std::int64_t r = 0; r < 5; ++r) {
            std::vector<std::int64_t> order(static_cast<std::size_t>(vocab));
            std::iota(order.begin(), order.end(), 0);
            const auto rank = [&](std::int64_t i) {
              return std::isnan(input.get(r, i)) ? std::pair(1, 0.0F) : std::pair(0, -input.get(r, i));
            };
            std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return rank(a) < rank(b); });
            order.resize(static_cast<std::size_t>(std::min(k, vocab)));
            if (!sorted) std::sort(order.begin(), order.end());
            for (std::int64_t i = 0; i < k; ++i) {
              const std::int64_t want = i < std::ssize(order) ? order[static_cast<std::size_t>(i)] : -1;
              ASSERT_EQ(want, indices[static_cast<std::size_t>(r * k + i)]) << vocab << " k " << k << " row " << r << " " << i;
              const float value = want < 0 ? -kInf : input.get(r, want);
              ASSERT_TRUE(std::isnan(value) ? std::isnan(values.get(r, i)) : value == values.get(r, i));
            }
          }
        }
      }
    }
  }
}

TEST(TopK, RaggedRowsPagesAndOffsets) {
  Rows input = random_rows(DType::f32, 4, 100, 6);
  std::vector<std::int32_t> starts{0, 10, 90, 50}, lengths{100, 7, 0, 50}, offsets{1000, 2000, 3000, 4000};
  std::vector<std::int32_t> table(2 * 25), requests{0, 1, 1, 0};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>((i * 37) % 101);
  std::vector<std::int32_t> plain(4 * 10), shifted(4 * 10), paged(4 * 10);
  TopKArgs args;
  args.input = input.view();
  args.k = 10;
  args.sorted = true;
  args.row_starts = vector_view(starts);
  args.row_lengths = vector_view(lengths);
  args.indices = matrix_view(plain, 10);
  top_k(context(), args);
  args.index_offsets = vector_view(offsets);
  args.indices = matrix_view(shifted, 10);
  top_k(context(), args);
  args.index_offsets = {};
  args.pages = {.table = matrix_view(table, 25), .row_requests = vector_view(requests), .page_size = 4};
  args.indices = matrix_view(paged, 10);
  top_k(context(), args);
  for (std::size_t r = 0; r < 4; ++r) {
    std::vector<std::int32_t> order;
    for (std::int32_t i = 0; i < lengths[r]; ++i) order.push_back(i);
    const auto at = [&](std::int32_t i) { return input.get(static_cast<std::int64_t>(r), starts[r] + i); };
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return at(a) > at(b); });
    for (std::size_t i = 0; i < 10; ++i) {
      const bool there = i < order.size();
      ASSERT_EQ(there ? order[i] : -1, plain[r * 10 + i]);
      ASSERT_EQ(there ? order[i] + offsets[r] : -1, shifted[r * 10 + i]);
      const std::int32_t page = there ? table[static_cast<std::size_t>(requests[r] * 25 + order[i] / 4)] : 0;
      ASSERT_EQ(there ? page * 4 + order[i] % 4 : -1, paged[r * 10 + i]);
    }
  }
}

TEST(TopK, LongRowsWithOneFullBucket) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Rows input(type, 1, 60000);
    for (std::int64_t i = 0; i < 60000; ++i) input.set(0, i, i % 3 == 0 ? 1.0F : 1.0F + static_cast<float>(i % 2) * 0.0078125F);
    std::vector<std::int32_t> indices(4096);
    TopKArgs args;
    args.input = input.view();
    args.k = 4096;
    args.indices = matrix_view(indices, 4096);
    top_k(context(), args);
    std::size_t next = 0;
    for (std::int64_t i = 0; i < 60000 && next < 4096; ++i) {
      if (input.get(0, i) > 1) {
        ASSERT_EQ(i, indices[next++]);
      }
    }
    ASSERT_EQ(4096U, next);
  }
}

// ---------------------------------------------------------------------------------------------------------------- speculative

struct Chains {
  std::int64_t batch, n, vocab;
  std::vector<float> draft, target;
  std::vector<std::int32_t> tokens;
  SpeculativeArgs args;
  std::vector<std::int32_t> out, accepted;
  Chains(std::int64_t b, std::int64_t drafts, std::int64_t v) : batch(b), n(drafts), vocab(v) {
    draft.resize(static_cast<std::size_t>(b * n * v));
    target.resize(static_cast<std::size_t>(b * (n + 1) * v));
    tokens.resize(static_cast<std::size_t>(b * n));
    out.assign(static_cast<std::size_t>(b * (n + 1)), -7);
    accepted.assign(static_cast<std::size_t>(b), -7);
  }
  void run(bool with_draft = true) {
    if (with_draft) args.draft_probs = TensorView(draft.data(), DType::f32, {batch, n, vocab});
    args.target_probs = TensorView(target.data(), DType::f32, {batch, n + 1, vocab});
    args.draft_tokens = TensorView(tokens.data(), DType::i32, {batch, n});
    args.tokens = TensorView(out.data(), DType::i32, {batch, n + 1});
    args.accepted = vector_view(accepted);
    chain_speculative_sample(context(), args);
  }
};

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

// ---------------------------------------------------------------------------------------------------------------- refusals

/// The call throws with this text in its message, and leaves the outputs as they were.
void expect_refused(const std::function<void()>& call, const std::string& text, Code code = Code::invalid_argument) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string::npos, std::string(error.what()).find(text)) << error.what();
    EXPECT_EQ(code, error.code()) << error.what();
  }
}

TEST(SamplingErrors, NameTheArgument) {
  Rows input = random_rows(DType::f32, 3, 40, 1);
  std::vector<std::int32_t> tokens(3, 77);
  const auto refused = [&](const std::function<void(SampleArgs&)>& change, const std::string& text, Code code = Code::invalid_argument) {
    SampleArgs args;
    args.input = input.view();
    args.tokens = vector_view(tokens);
    change(args);
    expect_refused([&] { sample(context(), args); }, text, code);
    EXPECT_EQ((std::vector<std::int32_t>{77, 77, 77}), tokens) << text;
  };
  std::vector<float> three{1, 0.5F, 2}, two{1, 1}, bad{1, -1, 1}, nan{1, 1, kNan};
  std::vector<std::int32_t> indptr{0, 1, 1, 2}, wild{0, 40}, twice{5, 5}, fine{5, 6}, backwards{0, 2, 1, 2}, index{0, 1, 3};
  std::vector<std::int32_t> counts{1, -1}, twice_indptr{0, 2, 2, 2};
  std::vector<float> bias{1, kNan};
  refused([](SampleArgs& a) { a.input = {}; }, "input has shape []; must be [n, vocab]");
  refused([](SampleArgs& a) { a.input.dtype = DType::i8; }, "input is i8; must be f32 or f16 or bf16");
  refused([](SampleArgs& a) { a.input.device = {DeviceKind::cuda, 0}; }, "input.device=cuda:0; the context is for cpu");
  refused([](SampleArgs& a) { a.input.data = nullptr; }, "input.data is null");
  refused([](SampleArgs& a) { a.input.shape[1] = (1 << 20) + 1; }, "must be 1 to 1048576");
  refused([](SampleArgs& a) { a.temperature = -1.0F; }, "temperature=-1; must be finite and >= 0");
  refused([&](SampleArgs& a) { a.temperature = vector_view(nan); }, "temperature[2]=nan");
  refused([&](SampleArgs& a) { a.temperature = vector_view(two); }, "temperature has shape [2]; must be [rows]");
  refused([](SampleArgs& a) { a.top_p = -0.1F; }, "top_p=-0.1; must be >= 0");
  refused([](SampleArgs& a) { a.min_p = 1.5F; }, "min_p=1.5; must be at most 1");
  refused([](SampleArgs& a) { a.repetition_penalty = 0.0F; }, "repetition_penalty=0; must be finite and > 0");
  refused([](SampleArgs& a) { a.presence_penalty = kInf; }, "presence_penalty=inf; must be finite");
  refused([&](SampleArgs& a) { a.indices = vector_view(index); }, "indices[2]=3; must be in [0, input.shape[0]=3)");
  refused([&](SampleArgs& a) { a.history = {vector_view(indptr), vector_view(wild)}; }, "history.tokens[1]=40; must be in [0, vocab=40)");
  refused([&](SampleArgs& a) { a.history = {vector_view(twice_indptr), vector_view(twice)}; }, "history.tokens[1]=5 is in row 0 twice");
  refused(
      [&](SampleArgs& a) {
        a.history = {vector_view(backwards), vector_view(fine)};
      },
      "history.indptr[1..2]=2, 1; must be non-decreasing");
  refused([&](SampleArgs& a) { a.history = {{}, vector_view(fine)}; }, "history.indptr is not given");
  refused(
      [&](SampleArgs& a) {
        a.history = {vector_view(indptr), vector_view(fine)};
        a.history_counts = vector_view(counts);
      },
      "history_counts[1]=-1; must be >= 0");
  refused([&](SampleArgs& a) { a.bias_tokens = {vector_view(indptr), vector_view(fine)}; }, "bias is not given");
  refused(
      [&](SampleArgs& a) {
        a.bias_tokens = {vector_view(indptr), vector_view(fine)};
        a.bias = vector_view(bias);
      },
      "bias[1]=nan; must be finite, or -inf");
  refused(
      [&](SampleArgs& a) {
        a.kind = SampleInput::probs;
        a.history = {vector_view(indptr), vector_view(fine)};
      },
      "history is given for probabilities", Code::unsupported);
  refused(
      [](SampleArgs& a) {
        a.kind = SampleInput::probs;
        a.temperature = 0.7F;
      },
      "temperature=0.7; probabilities take 1", Code::unsupported);
  refused([&](SampleArgs& a) { a.allowed = matrix_view(indptr, 2); }, "allowed has shape [2, 2]; must be [rows, ceil(vocab / 32)]");
  refused([](SampleArgs& a) { a.tokens = {}; }, "tokens has shape []; must be [rows]");
  refused([](SampleArgs& a) { a.tokens.dtype = DType::f32; }, "tokens is f32; must be i32 or i64");
  refused([](SampleArgs& a) { a.tokens.strides[0] = 0; }, "tokens.strides[0]=0");
  refused([&](SampleArgs& a) { a.top_tokens = matrix_view(index, 1); }, "top_tokens is given without top_logprobs");
  refused([&](SampleArgs& a) { a.logprobs = TensorView(input.memory.data(), DType::f32, {3}); }, "logprobs overlaps input");
  refused([&](SampleArgs& a) { a.logprobs = TensorView(tokens.data(), DType::f32, {3}); }, "logprobs overlaps tokens");
  refused([&](SampleArgs& a) { a.stream = &a; }, "stream is given; the context is for the CPU");
  refused([&](SampleArgs& a) { a.random.seed = vector_view(index); }, "random.seed is i32; must be i64");

  Rows out(DType::f32, 3, 40);
  expect_refused([&] { softmax(context(), input.view(), kNan, out.view()); }, "softmax: temperature=nan");
  expect_refused(
      [&] {
        softmax(context(), input.view(), 1.0F, TensorView(out.memory.data(), DType::f32, {3, 41}));
      },
      "out has shape [3, 41]");
  expect_refused(
      [&] {
        TensorView shifted = input.view();
        shifted.shape[0] = 2;
        TensorView other = shifted;
        other.data = input.memory.data() + 160;
        softmax(context(), shifted, 1.0F, other);
      },
      "out overlaps logits without being it");
  expect_refused([&] { top_p_renorm_probs(context(), input.view(), -1.0F, out.view()); }, "top_p_renorm_probs: top_p=-1");
  Rows half(DType::f16, 3, 40);
  expect_refused([&] { top_k_mask_logits(context(), input.view(), 3, half.view()); }, "top_k_mask_logits: out is f16; must be f32");

  std::vector<std::int32_t> indices(3 * 4);
  const auto top_k_refused = [&](const std::function<void(TopKArgs&)>& change, const std::string& text,
                                 Code code = Code::invalid_argument) {
    TopKArgs args;
    args.input = input.view();
    args.k = 4;
    args.indices = matrix_view(indices, 4);
    change(args);
    expect_refused([&] { top_k(context(), args); }, text, code);
  };
  std::vector<std::int32_t> lengths{1, 41, 2};
  top_k_refused([](TopKArgs& a) { a.k = 0; }, "k=0; must be 1 to 4096");
  top_k_refused([](TopKArgs& a) { a.k = 5; }, "indices has shape [3, 4]; must be [rows, k]");
  top_k_refused([&](TopKArgs& a) { a.row_lengths = vector_view(lengths); }, "row_lengths[1]=41; must be in [0, 40]");
  top_k_refused([&](TopKArgs& a) { a.pages.row_requests = vector_view(lengths); }, "pages.row_requests is given without pages.table");
  top_k_refused([&](TopKArgs& a) { a.pages.table = matrix_view(indices, 4); }, "pages.table.shape[1]=4 pages of 1 hold fewer");

  Chains c(1, 2, 4);
  c.tokens = {1, 9};
  expect_refused([&] { c.run(); }, "draft_tokens[0, 1]=9; must be in [0, vocab=4)");
  c.tokens = {1, 2};
  std::vector<std::int32_t> three_drafts{3};
  c.args.draft_lengths = vector_view(three_drafts);
  expect_refused([&] { c.run(); }, "draft_lengths[0]=3; must be in [0, n=2]");
  c.args.draft_lengths = {};
  c.args.greedy = true;
  expect_refused([&] { c.run(); }, "draft_probs is given with greedy=true", Code::unsupported);
}

}  // namespace
}  // namespace girih
