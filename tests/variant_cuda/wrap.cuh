// Kernel text: wraps a printed Variant's hooks as the plain functions of functions.h.
#pragma once

#include "attention/fragment_softmax.cuh"
#include "attention/rope.cuh"
#include "attention/variant.cuh"
#include "emulator/emulator.h"
#include "variant_cuda/functions.h"

namespace girih::attention {

inline RowVars row_vars(const test::CudaRow& r) {
  return {.q_pos = r.q_pos,
          .q_idx = r.q_idx,
          .q_len = r.q_len,
          .kv_len = r.kv_len,
          .q_row = r.q_row,
          .q_rope_pos = 0,
          .request = r.request,
          .q_head = r.q_head,
          .kv_head = r.kv_head};
}

/// V: printed for kernels with exact functions, A: for those with fragments.
template <class V, class A>
struct Wrapped {
  static auto params(const void* args) { return V::load_params(*static_cast<const Args*>(args)); }

  static void logits(const void* args, const test::CudaRow& row, const std::int64_t* kv_pos, int n, float* score) {
    const auto p = params(args);
    const typename V::LogitsRow u = V::logits_row(p, row_vars(row));
    for (int i = 0; i < n; ++i) score[i] = V::logits(p, u, score[i], kv_pos[i]);
  }
  static void mask(const void* args, const test::CudaRow& row, const std::int64_t* kv_pos, int n, std::uint8_t* visible) {
    const auto p = params(args);
    const typename V::MaskRow u = V::mask_row(p, row_vars(row));
    for (int i = 0; i < n; ++i) visible[i] = V::mask(p, u, kv_pos[i]) ? 1 : 0;
  }
  static void query(const void* args, const test::CudaRow& row, float mean_square, int n, float* x) {
    const auto p = params(args);
    const typename V::QueryRow u = V::query_row(p, row_vars(row), mean_square);
    for (int i = 0; i < n; ++i) x[i] = V::query(p, u, x[i], i);
  }
  static void key(const void* args, std::int64_t kv_head, std::int64_t kv_pos, float mean_square, int n, float* x) {
    const auto p = params(args);
    const typename V::KeyRow u = V::key_row(p, kv_head, kv_pos, mean_square);
    for (int i = 0; i < n; ++i) x[i] = V::key(p, u, x[i], i);
  }
  static void value(const void* args, std::int64_t kv_head, std::int64_t kv_pos, float mean_square, int n, float* x) {
    const auto p = params(args);
    const typename V::ValueRow u = V::value_row(p, kv_head, kv_pos, mean_square);
    for (int i = 0; i < n; ++i) x[i] = V::value(p, u, x[i], i);
  }
  static void output(const void* args, const test::CudaRow& row, int n, float* x) {
    const auto p = params(args);
    const typename V::OutputRow u = V::output_row(p, row_vars(row));
    for (int i = 0; i < n; ++i) x[i] = V::output(p, u, x[i], i);
  }
  static float sink(const void* args, std::int64_t q_head) { return V::sink(params(args), q_head); }

  static void near_logits(const void* args, const test::CudaRow& row, std::int64_t first, float factor, int n, float* raw) {
    const auto p = A::load_params(*static_cast<const Args*>(args));
    const auto step = A::logits_step(p, A::logits_row(p, row_vars(row)), factor, first);
    for (int i = 0; i < n; ++i) raw[i] = logit_of<A>(p, step, raw[i], i) / (A::kSoftmax ? kLog2E : 1.0F);
  }
  static void mask_words(const void* args, const test::CudaRow* rows, std::int64_t first, std::uint32_t* words) {
    const auto lane = [&] {
      const auto p = A::load_params(*static_cast<const Args*>(args));
      const int i = ptx::lane_idx();
      words[i] = A::mask_word(p, A::mask_row(p, row_vars(rows[i])), first);
    };
    emulator::launch(lane, {.num_blocks = 1, .num_threads = 32});
  }

  static constexpr test::CudaVariant table() {
    test::CudaVariant t{};
    if constexpr (V::kHasLogits) t.logits = logits;
    if constexpr (V::kHasLogits) t.near_logits = near_logits;
    if constexpr (V::kHasMask) t.mask = mask;
    if constexpr (V::kHasMask) t.mask_words = mask_words;
    if constexpr (V::kHasQuery) t.query = query;
    if constexpr (V::kHasKey) t.key = key;
    if constexpr (V::kHasValue) t.value = value;
    if constexpr (V::kHasOutput) t.output = output;
    if constexpr (V::kHasSink) t.sink = sink;
    return t;
  }
};

}  // namespace girih::attention
