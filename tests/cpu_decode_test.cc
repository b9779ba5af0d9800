// Small tiles of the CPU backend: serving neighbouring heads together, in whatever steps, gives each row the bits it has alone; and the
// widening of 8-bit codes to bf16 is exact for every code.
#include <cmath>

#include "attention/cpu_bf16.h"
#include "base/numeric.h"
#include "cases/attention.h"
#include "cases/check.h"
#include "cpu/features.h"

namespace girih::cases {
namespace {

struct Shape {
  int qo_heads, kv_heads, head_dim;
};
/// Rows per head 1, 2, 3, 4, 8; heads that make fours and that do not; the head_dim that has kernels of its own, and others.
constexpr std::array kShapes{Shape{8, 8, 128}, Shape{6, 6, 64},  Shape{8, 4, 128},  Shape{9, 3, 64},  Shape{16, 4, 128},
                             Shape{32, 8, 64}, Shape{20, 5, 96}, Shape{16, 2, 128}, Shape{2, 2, 128}, Shape{40, 40, 64}};

AttentionCase decode_case(const Shape& shape, DType dtype, Layout layout) {
  AttentionCase c =
      make_case(fmt::format("{}_{}_{}_{}", shape.qo_heads, shape.kv_heads, shape.head_dim, name(dtype)),
                make_spec(shape.qo_heads, shape.kv_heads, shape.head_dim), Lengths{"decode", {1, 1, 1, 1, 1}, {1, 3, 64, 67, 150}}, layout);
  const ScaleGranularity scale = bits(dtype) == 8 ? ScaleGranularity::head : ScaleGranularity::none;
  set_kv(c.spec, dtype, scale, dtype, scale);
  c.spec.q_dtype = c.spec.o_dtype = dtype == DType::f32 || dtype == DType::f16 ? dtype : DType::bf16;
  return c;
}

class CpuDecode : public testing::TestWithParam<DType> {};

TEST_P(CpuDecode, HeadsServedTogetherHaveTheBitsOfHeadsAlone) {
  for (const Shape& shape : kShapes) {
    const Problem adjoining(decode_case(shape, GetParam(), Layout::nhd));
    const Problem apart(decode_case(shape, GetParam(), Layout::hnd));
    for (CpuTarget target : available_cpu_targets()) {
      SCOPED_TRACE(fmt::format("{}, target {}", adjoining.c.name, girih::name(target)));
      const Outputs together = execute(adjoining, context_for(target, 1), {.units = 1});
      EXPECT_TRUE(matches(adjoining, reference(adjoining), together));
      EXPECT_EQ(together.all_bits(), execute(apart, context_for(target, 1), {.units = 1}).all_bits());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CpuDecode, testing::Values(DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8),
                         [](const testing::TestParamInfo<DType>& info) { return std::string(girih::name(info.param)); });

float decode_code(DType dtype, std::uint8_t code) {
  switch (dtype) {
    case DType::e4m3: return decode_e4m3(code);
    case DType::e5m2: return decode_e5m2(code);
    default: return static_cast<float>(static_cast<std::int8_t>(code));
  }
}

void expect_same(float want, float got, int code) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << "code " << code;
  } else {
    EXPECT_EQ(want, got) << "code " << code;
  }
}

/// Four keys of 64 dims hold every code once. Queries of a single 1 pick one score each; weights of a single 1 pick one row of V.
TEST(CpuDecodeCodes, EveryCodeWidensExactly) {
  const cpu::Features features = cpu::detect_features();
  if (!features.avx512_bf16 || !features.avx512_vbmi) GTEST_SKIP() << "this CPU has no AVX512-BF16 or no AVX512-VBMI";
  constexpr int kDim = 64;
  constexpr int kKeys = 4;
  constexpr std::uint16_t kOne = 0x3f80;
  for (DType dtype : {DType::e4m3, DType::e5m2, DType::i8}) {
    SCOPED_TRACE(girih::name(dtype));
    const auto code_at = [](int key, int d) { return static_cast<std::uint8_t>(4 * d + key); };
    std::array<std::array<std::byte, kDim>, kKeys> codes;
    std::array<const std::byte*, kKeys> at{};
    for (int key = 0; key < kKeys; ++key) {
      at[key] = codes[key].data();
      for (int d = 0; d < kDim; ++d) codes[key][d] = static_cast<std::byte>(code_at(key, d));
    }
    const attention::bf16::SmallHeads heads{.rows = 1, .dim = kDim, .num_keys = kKeys};
    for (int d = 0; d < kDim; ++d) {
      for (int key = 0; key < kKeys; ++key) {
        // Codes that are not finite would make NaN of the other dims' zeros.
        std::array<std::byte, kDim> alone{};
        alone[d] = codes[key][d];
        std::array<const std::byte*, kKeys> rows;
        rows.fill(alone.data());
        std::array<std::uint16_t, kDim> q{};
        q[d] = kOne;
        attention::bf16::permute_query(q.data(), kDim);
        std::array<float, 16> scores{};
        attention::bf16::small_scores(heads, dtype, q.data(), kDim, rows.data(), {}, scores.data(), 16);
        expect_same(decode_code(dtype, code_at(key, d)), scores[key], code_at(key, d));
      }
    }
    for (int key = 0; key < kKeys; ++key) {
      attention::bf16::SmallHeads one = heads;
      one.num_keys = 1;
      const std::array<std::uint16_t, 16> weights{kOne};
      std::array<float, kDim> o{};
      attention::bf16::small_outputs(one, dtype, weights.data(), 16, &at[key], {}, o.data(), kDim);
      attention::bf16::restore_output(o.data(), kDim);
      for (int d = 0; d < kDim; ++d) expect_same(decode_code(dtype, code_at(key, d)), o[d], code_at(key, d));
    }
  }
}

}  // namespace
}  // namespace girih::cases
