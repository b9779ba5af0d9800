// Infinities and NaN of f16 and e5m2 come through on every SIMD target of the CPU, where Highway's conversion of emulated vectors loses
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "girih/attention.h"
#include "girih/sampling.h"

namespace girih {
namespace {

/// One query row of zeros over 16 keys: O is the mean of V.
template <typename Code>
std::vector<float> mean_of_values(const Context& context, DType type, std::vector<Code> v, Code one) {
  AttentionSpec spec{.num_qo_heads = 1, .num_kv_heads = 1, .head_dim_qk = 64};
  spec.q_dtype = spec.o_dtype = DType::f32;
  spec.k_dtype = spec.v_dtype = type;
  if (bits(type) == 8) spec.k_scale = spec.v_scale = ScaleGranularity::tensor;
  spec.variant.mask = {};
  const Schedule schedule = girih::schedule(context, spec, {.max_tokens = 1, .max_requests = 1, .max_kv_len = 16});
  const std::vector<std::int32_t> qo_indptr{0, 1}, kv_len{16}, kv_indptr{0, 1}, pages{0};
  const KvSegment segment{.page_size = 16, .kv_indptr = kv_indptr, .kv_len = kv_len};
  Plan plan(schedule);
  plan.update({.qo_indptr = qo_indptr, .segments = {&segment, 1}});
  const std::vector<float> q(64, 0.0F);
  std::vector<float> o(64), scale{1.0F};
  std::vector<Code> k(v.size(), one);
  KvStore store = paged_kv_store({k.data(), type, {1, 16, 1, 64}}, {v.data(), type, {1, 16, 1, 64}});
  if (bits(type) == 8) store.k.scales = store.v.scales = {.granularity = ScaleGranularity::tensor, .data = scale.data()};
  const SegmentData data{.store = store, .kv_indices = pages};
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(static_cast<std::size_t>(schedule.workspace_bytes()) / sizeof(Line) + 1);
  run(context, schedule, plan,
      {.q = {const_cast<float*>(q.data()), DType::f32, {1, 1, 64}},
       .segments = {&data, 1},
       .o = {o.data(), DType::f32, {1, 1, 64}},
       .workspace = std::as_writable_bytes(std::span(workspace))});
  return o;
}

template <typename Code>
void expect_non_finite(DType type, Code one, Code infinity, Code minus_infinity, Code nan) {
  for (const CpuTarget target : available_cpu_targets()) {
    std::vector<Code> v(16 * 64, one);
    v[5] = infinity;
    v[3 * 64 + 6] = minus_infinity;
    v[15 * 64 + 7] = nan;
    const std::vector<float> o = mean_of_values(Context({.target = target}), type, v, one);
    EXPECT_FLOAT_EQ(o[0], 1.0F) << name(target);
    EXPECT_EQ(o[5], INFINITY) << name(target);
    EXPECT_EQ(o[6], -INFINITY) << name(target);
    EXPECT_TRUE(std::isnan(o[7])) << name(target) << ": " << o[7];
  }
}

TEST(CpuF16, AttentionKeepsWhatIsNotFinite) {
  expect_non_finite<std::uint16_t>(DType::f16, 0x3c00, 0x7c00, 0xfc00, 0x7e00);
  expect_non_finite<std::uint8_t>(DType::e5m2, 0x3c, 0x7c, 0xfc, 0x7f);
}

TEST(CpuF16, SoftmaxCountsNanAsNothing) {
  for (const CpuTarget target : available_cpu_targets()) {
    std::vector<std::uint16_t> logits(40, 0xfc00);  // -inf
    logits[3] = 0x7e00;                             // NaN
    logits[7] = logits[33] = 0x3c00;
    std::vector<float> probs(40, -1.0F);
    const Context context({.target = target});
    softmax(context, {logits.data(), DType::f16, {1, 40}}, 1.0F, {probs.data(), DType::f32, {1, 40}});
    for (std::size_t i = 0; i < 40; ++i) EXPECT_FLOAT_EQ(probs[i], i == 7 || i == 33 ? 0.5F : 0.0F) << name(target) << ", " << i;
  }
}

}  // namespace
}  // namespace girih
