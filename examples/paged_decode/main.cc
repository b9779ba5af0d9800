// Decodes one token for each of two requests over a paged KV cache, with a variant of our own: a sliding window and a soft cap.
#include <girih/attention.h>

#include <cstdio>
#include <vector>

int main() {
  using namespace girih;
  AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim_qk = 128};
  spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.o_dtype = DType::f32;
  spec.variant.mask = (kv_pos() <= q_pos()) & (q_pos() - kv_pos() < 32);
  spec.variant.logits = 30.0F * tanh(score() / 30.0F);

  const Context context;  // once
  const Schedule schedule = girih::schedule(context, spec, {.max_tokens = 64, .max_requests = 64, .max_kv_len = 4096});
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(schedule.workspace_bytes() / sizeof(Line) + 1);
  Plan plan(schedule);

  const std::vector<std::int32_t> qo_indptr{0, 1, 2}, kv_len{40, 17};             // each step
  const std::vector<std::int32_t> kv_indptr{0, 3, 5}, kv_indices{4, 0, 2, 1, 3};  // pages of 16 tokens
  const KvSegment segment{.page_size = 16, .kv_indptr = kv_indptr, .kv_len = kv_len};
  plan.update({.qo_indptr = qo_indptr, .segments = {&segment, 1}});

  std::vector<float> q(2 * 32 * 128, 0.1F), k(5 * 16 * 8 * 128, 0.1F), v(k.size()), o(q.size());  // each layer
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / (16 * 8 * 128));       // a value is its page's id
  const KvStore store = paged_kv_store({k.data(), DType::f32, {5, 16, 8, 128}}, {v.data(), DType::f32, {5, 16, 8, 128}});
  const SegmentData data{.store = store, .kv_indices = kv_indices};
  run(context, schedule, plan,
      {.q = {q.data(), DType::f32, {2, 32, 128}},
       .segments = {&data, 1},
       .o = {o.data(), DType::f32, {2, 32, 128}},
       .workspace = std::as_writable_bytes(std::span(workspace))});
  std::printf("%.3f %.3f\n", o[0], o[32 * 128]);
}
