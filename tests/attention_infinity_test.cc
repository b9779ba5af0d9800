// Infinities in V are values like others: a row that sees one gets it, and no kernel's padding (odd numbers of keys, partial vectors) makes
// NaN of it by multiplying with a weight of 0.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/numeric.h"
#include "cases/check.h"
#include "girih/attention.h"

namespace girih {
namespace {

TEST(Infinity, TheLastOfAnOddNumberOfValuesArrives) {
  constexpr std::int64_t kDim = 32;
  for (CpuTarget target : available_cpu_targets()) {
    for (std::int64_t num_tokens : {1, 16}) {  // the small and the large kernel
      for (std::int64_t num_keys : {1, 3, 65}) {
        std::vector<std::uint16_t> q(static_cast<std::size_t>(num_tokens * kDim), encode_bf16(0.5F)), o(q.size(), 0xffff);
        std::vector<std::uint16_t> k(static_cast<std::size_t>(num_keys * kDim), encode_bf16(0.25F)), v(k.size(), encode_bf16(1.0F));
        v[static_cast<std::size_t>((num_keys - 1) * kDim + 5)] = encode_bf16(INFINITY);
        single_attention(cases::context_for(target, 1), {}, {q.data(), DType::bf16, {num_tokens, 1, kDim}},
                         {k.data(), DType::bf16, {num_keys, 1, kDim}}, {v.data(), DType::bf16, {num_keys, 1, kDim}},
                         {o.data(), DType::bf16, {num_tokens, 1, kDim}});
        for (std::size_t i = 0; i < o.size(); ++i) {
          const float want = i % kDim == 5 ? INFINITY : 1.0F;
          ASSERT_EQ(decode_bf16(o[i]), want) << name(target) << ", " << num_tokens << " rows, " << num_keys << " keys, element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace girih
