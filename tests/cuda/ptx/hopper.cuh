// Hopper's copy engine and warpgroup products, word by word: as kernels.cuh, for sm_90 alone.
#include "core/convert.cuh"
#include "core/types.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/thread.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_fp8.cuh"

namespace girih::ptx_check {

constexpr int kQueries = 64, kKeys = 96, kDims = 64;  // rows of 128 bytes: Q, then K, which is V as well
constexpr int kBoxRows = 32;
constexpr int kProductWords = kKeys / 2 + kDims / 2;  // of a thread

struct ProductParams {
  abi::TensorMap map;  // [1, kQueries + kKeys, 1, kDims], boxes of kBoxRows
  u32* out;            // [128, 3, kProductWords]: bf16, f16, e4m3; [128, 4]: stmatrix; [128, 4]: a warp's product of bytes
};

/// S = Q K^T and O = S V by one warpgroup, S rounded to T between them.
template <typename T>
__device__ __forceinline__ void multiply_tiles(const u8* s_rows, u32* out) {
  float s[kKeys / 8][4];
  ptx::wgmma_fence();
  for (int i = 0; i < kDims / 16; ++i) {
    ptx::wgmma_shared<T>(s, ptx::rows_along_mn(s_rows) + static_cast<u64>(2 * i),
                         ptx::rows_along_mn(s_rows + kQueries * 128) + static_cast<u64>(2 * i), i > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  u32 a[kKeys / 16][4];
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i][j] = pack<T>(s[2 * i + j / 2][j % 2 * 2], s[2 * i + j / 2][j % 2 * 2 + 1]);
  }
  float o[kDims / 8][4];
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i) o[i / 4][i % 4] = 1.0F;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    ptx::wgmma_registers<T>(o, a[i], ptx::rows_along_k(s_rows + kQueries * 128, kKeys * 128) + static_cast<u64>(128 * i), true);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) out[i] = bits_of(s[i / 4][i % 4]);
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i) out[kKeys / 2 + i] = bits_of(o[i / 4][i % 4]);
}

/// Of the rows as 128 codes of e4m3: S = Q K^T, and O = S V where V's dims are the rows of Q, its keys their first kKeys codes. `words`:
/// the first four of S, through shared memory by stmatrix.
__device__ __forceinline__ void multiply_bytes(u8* s_rows, u32* out, u32* words) {
  float s[kKeys / 8][4];
  ptx::wgmma_fence();
  for (int i = 0; i < 4; ++i) {
    ptx::wgmma_shared_e4m3(s, ptx::rows_along_mn(s_rows) + static_cast<u64>(2 * i),
                           ptx::rows_along_mn(s_rows + kQueries * 128) + static_cast<u64>(2 * i), i > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  u32 a[kKeys / 32][4];
#pragma unroll
  for (int i = 0; i < kKeys / 32; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int n = 4 * i + j / 2 * 2;
      a[i][j] = ptx::f32_pair_to_e4m3(s[n][j % 2 * 2], s[n][j % 2 * 2 + 1]) |
                ptx::f32_pair_to_e4m3(s[n + 1][j % 2 * 2], s[n + 1][j % 2 * 2 + 1]) << 16;
    }
  }
  float o[kDims / 8][4];
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i) o[i / 4][i % 4] = 1.0F;
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kKeys / 32; ++i) ptx::wgmma_registers_e4m3(o, a[i], ptx::rows_along_mn(s_rows) + static_cast<u64>(2 * i), true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) out[i] = bits_of(s[i / 4][i % 4]);
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i) out[kKeys / 2 + i] = bits_of(o[i / 4][i % 4]);
  ptx::sync_block();
  u8* s_own = s_rows + ptx::thread_idx() * 16;
  ptx::stmatrix_x4(s_own, a[0]);
  ptx::sync_warp();
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = reinterpret_cast<const u32*>(s_own)[i];
}

/// A warp's product of bytes: the first 32 codes of 16 rows of Q by those of eight of K.
__device__ __forceinline__ void multiply_warp_bytes(const u8* s_rows, u32* words) {
  const int group = ptx::lane_idx() / 4;
  const int pair = ptx::lane_idx() % 4;
  const auto word = [&](int row, int half) {  // rows lie in the swizzle of 128 bytes
    return reinterpret_cast<const u32*>(s_rows + row * 128)[(half ^ row % 8) * 4 + pair];
  };
  const int q = ptx::warp_idx() * 16 + group;
  const u32 a[4] = {word(q, 0), word(q + 8, 0), word(q, 1), word(q + 8, 1)};
  const u32 b[2] = {word(kQueries + group, 0), word(kQueries + group, 1)};
  float c[4] = {1.0F, -2.0F, 3.0F, 0.0F};
  ptx::mma_16x8x32_e4m3(c, a, b);
  for (int i = 0; i < 4; ++i) words[i] = bits_of(c[i]);
}

__device__ __forceinline__ void check_products(const ProductParams& p) {
  u8* s_rows = ptx::shared_memory();
  constexpr int kBytes = (kQueries + kKeys) * 128;
  u64* s_full = reinterpret_cast<u64*>(s_rows + kBytes);
  if (ptx::thread_idx() == 0) {
    ptx::mbarrier_init(s_full, 1);
    ptx::mbarrier_fence_init();
    ptx::tma_prefetch_map(&p.map);
    ptx::mbarrier_arrive_expect(s_full, kBytes);
    for (int row = 0; row < kQueries + kKeys; row += kBoxRows) ptx::tma_load(s_rows + row * 128, &p.map, 0, 0, row, 0, s_full);
  }
  ptx::sync_block();
  ptx::mbarrier_wait(s_full, 0);
  u32* out = p.out + ptx::thread_idx() * 3 * kProductWords;
  multiply_tiles<bf16>(s_rows, out);
  multiply_tiles<f16>(s_rows, out + kProductWords);
  u32* words = p.out + 128 * 3 * kProductWords + ptx::thread_idx() * 4;
  multiply_warp_bytes(s_rows, words + 128 * 4);
  ptx::sync_block();
  multiply_bytes(s_rows, out + 2 * kProductWords, words);
}

}  // namespace girih::ptx_check

extern "C" __global__ void ptx_check_products(const __grid_constant__ girih::ptx_check::ProductParams p) {
  girih::ptx_check::check_products(p);
}
