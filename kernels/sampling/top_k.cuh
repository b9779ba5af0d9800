// top_k(): the first k of each row as values and indices. A cluster takes a row.
#pragma once

#include "sampling/sample.cuh"

namespace girih::sampling {

/// Block 0: entries of -inf, then NaN, by index, for rows of too few others. Returns how many there are in the list then.
template <typename T>
__device__ __forceinline__ int add_last(const u8* row, i64 stride, int n, u32* s_keys, i32* s_positions, int listed, int k) {
  for (int kind = 0; kind < 2; ++kind) {
    for (int first = 0; first < n && listed < k; first += kThreads) {
      const int i = first + ptx::thread_idx();
      const float x = i < n ? to_f32(*reinterpret_cast<const T*>(row + i * stride)) : 0.0F;
      const bool wanted = kind == 0 ? x == -kInfinity : x != x;
      const Scan scan = block_scan(wanted ? 1 : 0);
      const int place = listed + static_cast<int>(scan.before);
      if (wanted && place < k) {
        s_keys[place] = kind == 0 ? abi::kKeyOfMinusInf : 0;
        s_positions[place] = i;
      }
      listed = min(listed + static_cast<int>(scan.total), k);
    }
  }
  return listed;
}

/// kFew: rows of f32 by shortlist.cuh, where they lend themselves.
template <Config kConfig, typename T, bool kFew>
__device__ __forceinline__ void run_top_k(const abi::TopKParams& p, int num_slots) {
  using Run = RowRun<kConfig, T, false, false, false>;
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  const int start = p.starts == nullptr ? 0 : min(max(p.starts[r * p.starts_stride], 0), p.vocab);
  const int length = p.lengths == nullptr ? p.vocab - start : min(max(p.lengths[r * p.lengths_stride], 0), p.vocab - start);
  Run run(p.input.data + r * p.input.row_stride + start * p.input.stride, p.input.stride, length, num_slots);
  bool listed = false;
  if constexpr (kFew && kSame<T, float>) {
    if (p.input.stride == 4) listed = run.template shortlist<true>(run.reader.address(0), 1.0F, static_cast<u64>(p.k), 0.0F, nullptr, 0);
  }
  if (!listed) run.begin(1.0F, true);
  const Cut cut = run.select.template find<CutBy::count>(false, static_cast<u64>(p.k), 0.0F, 0);
  int count = run.collect(cut);
  if (run.select.leads()) {
    auto& s = own<typename Run::S>();
    ptx::sync_block();
    if (count < min(p.k, length))
      count = add_last<T>(run.reader.address(0), p.input.stride, length, s.list_key, s.list_position, count, min(p.k, length));
    run.sort(count, p.sorted == 0);
    for (int i = ptx::thread_idx(); i < p.k; i += kThreads) {
      const bool there = i < count;
      const int index = there ? s.list_position[i] : -1;
      p.indices.set(r, i, there ? p.returned(r, index) : -1);
      if (p.values.data == nullptr) continue;
      u8* to = p.values.data + r * p.values.row_stride + i * p.values.stride;
      *reinterpret_cast<T*>(to) = there ? *reinterpret_cast<const T*>(run.reader.address(index)) : from_f32<T>(-kInfinity);
    }
  }
  ptx::sync_cluster();
}

}  // namespace girih::sampling
