// The integer arithmetic of sampling by itself: random numbers, order of keys, masses, and cuts of a row.
#include "abi/sampling_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "ref/sampling.h"
#include "sampling/cut.h"
#include "sampling_samples.h"

namespace girih {
namespace {

using namespace testing;

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

}  // namespace
}  // namespace girih
