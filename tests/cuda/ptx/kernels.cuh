// What the wrappers of kernels/ptx do, word by word: run by a GPU and by the emulator on the same input, whose outputs must agree. As a
// text it is compiled by NVRTC, as a file by the host's compiler.
#include "core/convert.cuh"
#include "core/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/thread.cuh"

namespace girih::ptx_check {

struct Params {
  const u32* in;
  u32* out;  // [threads, words]
  int n;     // threads
};
constexpr int kFragmentWords = 19;
constexpr int kConversionWords = 13;
constexpr int kFunctionWords = 13;

/// One warp. in: 128 words for ldmatrix, then per lane a[4], b[2] and c[4] of bf16 numbers, then the same of f16 (c in f32).
__device__ __forceinline__ void check_fragments(const Params& p) {
  auto* s = reinterpret_cast<u32*>(ptx::shared_memory());
  const int lane = ptx::lane_idx();
  u32* out = p.out + lane * kFragmentWords;
  for (int i = 0; i < 4; ++i) s[lane * 4 + i] = p.in[lane * 4 + i];
  ptx::sync_warp();
  u32 rows[4];
  u32 columns[4];
  ptx::ldmatrix_x4(rows, s + lane * 4);
  ptx::ldmatrix_x4_trans(columns, s + (lane ^ 5) * 4);
  for (int i = 0; i < 4; ++i) {
    out[i] = rows[i];
    out[4 + i] = columns[i];
  }
  const auto multiply = [&]<typename T>(T, const u32* in, u32* sums) {
    const u32 a[4] = {in[0], in[1], in[2], in[3]};
    const u32 b[2] = {in[4], in[5]};
    float c[4] = {float_of(in[6]), float_of(in[7]), float_of(in[8]), float_of(in[9])};
    ptx::mma_16x8x16<T>(c, a, b);
    for (int i = 0; i < 4; ++i) sums[i] = bits_of(c[i]);
  };
  multiply(bf16{}, p.in + 128 + lane * 10, out + 8);
  multiply(f16{}, p.in + 448 + lane * 10, out + 12);
  const float votes = ptx::shuffle(static_cast<float>(lane), lane * 7) + ptx::shuffle_xor(static_cast<float>(lane), 9);
  out[16] = bits_of(votes);
  out[17] = ptx::ballot(lane % 3 == 1);
  out[18] = ptx::transpose_8x8(rows[1]);
}

/// One word a thread: conversions of its bits as codes or as an f32.
__device__ __forceinline__ void check_conversions(const Params& p) {
  const int i = ptx::block_idx() * ptx::num_threads() + ptx::thread_idx();
  if (i >= p.n) return;
  const u32 w = p.in[i];
  const u32 other = w << 16 | w >> 16;
  const float x = float_of(w);
  const float negative = float_of(w ^ 0x80000000U);  // a negation would lose the sign of a NaN
  u32* out = p.out + i * kConversionWords;
  out[0] = bits_of(ptx::f16_to_f32(w));
  out[1] = ptx::f32_pair_to_f16(x, negative);
  out[2] = ptx::f32_pair_to_bf16(x, negative);
  out[3] = ptx::mul_f16x2(w, other);
  out[4] = ptx::mul_bf16x2(w, other);
  out[5] = ptx::add_f16x2(w, other);
  out[6] = ptx::permute_bytes(w, ~w, w & 0x7777U);
  u32 pairs[2];
  widen<f16, e4m3>(pairs, w);
  out[7] = pairs[0];
  widen<bf16, e4m3>(pairs, w);
  out[8] = pairs[1];
  widen<bf16, e5m2>(pairs, w);
  out[9] = pairs[0];
  out[10] = pack_codes<e4m3>(x, negative, 0.0F, -0.0F);
  out[11] = pack_codes<e5m2>(x, negative, 0.0F, -0.0F);
  out[12] = bits_of(to_f32(e4m3{static_cast<u8>(w)}));
}

/// One f32 a thread: functions and approximations of it.
__device__ __forceinline__ void check_functions(const Params& p) {
  const int i = ptx::block_idx() * ptx::num_threads() + ptx::thread_idx();
  if (i >= p.n) return;
  const float x = float_of(p.in[i]);
  u32* out = p.out + i * kFunctionWords;
  out[0] = bits_of(girih::exp(x));
  out[1] = bits_of(girih::exp2(x));
  out[2] = bits_of(girih::log(x));
  out[3] = bits_of(girih::tanh(x));
  out[4] = bits_of(sigmoid(x));
  out[5] = bits_of(girih::sqrt(x));
  out[6] = bits_of(exp2_approx(x));
  out[7] = bits_of(log2_approx(x));
  out[8] = bits_of(rcp_approx(x));
  out[9] = bits_of(rsqrt_approx(x));
  out[10] = bits_of(tanh_approx(x));
  out[11] = bits_of(tanh_fast(x));
  float logistic[4];
  logistic_approx({x, -x, 3.0F, -40.0F}, logistic);
  out[12] = bits_of(logistic[0]);
}

}  // namespace girih::ptx_check

extern "C" __global__ void ptx_check_fragments(const __grid_constant__ girih::ptx_check::Params p) { girih::ptx_check::check_fragments(p); }
extern "C" __global__ void ptx_check_conversions(const __grid_constant__ girih::ptx_check::Params p) {
  girih::ptx_check::check_conversions(p);
}
extern "C" __global__ void ptx_check_functions(const __grid_constant__ girih::ptx_check::Params p) { girih::ptx_check::check_functions(p); }
