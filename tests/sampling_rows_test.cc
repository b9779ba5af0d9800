// Softmax, renormalisation, masks and top-k on the CPU: what writes a row for a row.
#include "girih/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "ref/sampling.h"
#include "sampling_samples.h"

namespace girih {
namespace {

using namespace testing;

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

}  // namespace
}  // namespace girih
