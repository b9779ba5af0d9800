// chain_speculative_sample(): a cluster walks a request's chain of drafts until one is not accepted, then draws from one row.
#pragma once

#include "sampling/sample.cuh"

namespace girih::sampling {

template <Config kConfig, typename T>
__device__ __forceinline__ void run_speculative(const abi::SpeculativeParams& p, int num_slots) {
  using Run = RowRun<kConfig, T, true, false, false, true>;
  const i64 b = ptx::block_idx() / ptx::cluster_size();
  const int length = static_cast<int>(min(max(p.lengths.at(b), i64{0}), static_cast<i64>(p.n)));
  const auto target = [&](int i) { return p.target.data + b * p.target.row_stride + i * p.target_place_stride; };
  const auto draft = [&](int i) { return p.draft.data + b * p.draft.row_stride + i * p.draft_place_stride; };
  const auto token = [&](int i) { return p.draft_tokens[b * p.draft_tokens_row_stride + i * p.draft_tokens_stride]; };
  const auto bits_at = [](const u8* row, i64 stride, i32 at) { return bits_of(to_f32(*reinterpret_cast<const T*>(row + at * stride))); };

  int i = 0;
  int next = 0;
  if (p.greedy != 0) {
    for (;; ++i) {
      Run run(target(i), p.target.stride, p.vocab, num_slots);
      run.begin(1.0F, false);
      run.find_largest();
      next = run.select.any() ? run.argmax : 0;
      ptx::sync_cluster();  // block 0's memory is written again by the next place
      if (i >= length || token(i) != next) break;
    }
  } else {
    for (; i < length; ++i) {
      const i32 x = token(i);
      if (x < 0 || x >= p.vocab) break;
      const u32 q = p.draft.data == nullptr ? bits_of(1.0F) : bits_at(draft(i), p.draft.stride, x);
      if (!abi::accepts(bits_at(target(i), p.target.stride, x), q,
                        p.random.bits(b, static_cast<u32>(abi::Purpose::accept) + static_cast<u32>(i))))
        break;
    }
    const bool residual = i < length;
    Run run(target(i), p.target.stride, p.vocab, num_slots);
    if (residual)
      run.reader.subtract(p.draft.data == nullptr ? nullptr : draft(i), p.draft.stride, p.draft.data == nullptr ? token(i) : -1);
    run.begin(1.0F, false);
    run.find_largest();
    if (!run.select.any() && residual) {
      run.reader.subtract(nullptr, 0, -1);
      run.begin(1.0F, false);
      run.find_largest();
    }
    if (run.select.any()) {
      const u64 mass = run.kept_by_tile(true);
      if (run.select.leads()) {
        const abi::Purpose purpose = residual ? abi::Purpose::residual : abi::Purpose::token;
        run.draw(abi::multiply_high(p.random.bits(b, static_cast<u32>(purpose)), mass));
        next = own<typename Run::S>().position;
      }
    }
    ptx::sync_cluster();
  }
  if (ptx::cluster_rank() != 0) return;
  for (int j = ptx::thread_idx(); j <= p.n; j += kThreads) p.tokens.set(b, j, j < i ? token(j) : j == i ? next : -1);
  if (ptx::thread_idx() == 0 && p.accepted.data != nullptr) p.accepted.set(b, 0, i);
}

}  // namespace girih::sampling
