// The hooks of printed variants as plain functions: what the kernel text exports and the test calls. Neither side sees the other's headers.
#pragma once

#include <cstdint>

namespace girih::test {

struct CudaRow {
  std::int64_t q_pos, q_idx, q_len, kv_len, q_row;
  std::int32_t request, q_head, kv_head;
};

/// `args`: an abi::AttentionParams. Null where the variant has no such hook. Transforms map x in place, mean_square computed by the caller.
struct CudaVariant {
  void (*logits)(const void* args, const CudaRow& row, const std::int64_t* kv_pos, int n, float* score);
  void (*mask)(const void* args, const CudaRow& row, const std::int64_t* kv_pos, int n, std::uint8_t* visible);
  void (*query)(const void* args, const CudaRow& row, float mean_square, int n, float* x);
  void (*key)(const void* args, std::int64_t kv_head, std::int64_t kv_pos, float mean_square, int n, float* x);
  void (*value)(const void* args, std::int64_t kv_head, std::int64_t kv_pos, float mean_square, int n, float* x);
  void (*output)(const void* args, const CudaRow& row, int n, float* x);
  float (*sink)(const void* args, std::int64_t q_head);
  // As fragment kernels have them: logits of raw products at columns 0.. from position `first` on; visible keys of 32 rows, a lane each.
  void (*near_logits)(const void* args, const CudaRow& row, std::int64_t first, float factor, int n, float* raw);
  void (*mask_words)(const void* args, const CudaRow* rows, std::int64_t first, std::uint32_t* words);
};

/// rope.cuh's rotation(): cos and sin of an angle in 2^-64 turns.
void cuda_rotation(std::uint64_t turns, float* cos, float* sin);

extern const CudaVariant kCudaVariants[];  // one per case, in the order of variant_cuda_cases()

}  // namespace girih::test
