// Kernel text compiles for every architecture: each wrapper of kernels/ptx and each function of kernels/core is called once and built by
// NVRTC for sm_75 to sm_121a, without spills.
#include <gtest/gtest.h>

#include <string>

#include "jit/compiler.h"
#include "jit/nvrtc.h"
#include "jit_kernels.h"

namespace girih {
namespace {

constexpr const char* kTargets[] = {"sm_75",   "sm_80",   "sm_86",   "sm_87",   "sm_89",  "sm_90a",
                                    "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"};

/// Results are stored, so that nothing is left out as unused.
constexpr const char* kCoreText = R"(
#include "core/math.cuh"
using namespace girih;
template <typename T>
__device__ void unpack_to(float* out, u32 word) {
  float x[kPerWord<T>];
  unpack<T>(x, word);
  for (int i = 0; i < kPerWord<T>; ++i) out[i] = x[i];
}
template <typename T, typename Code>
__device__ void widen_to(u32* out, u32 codes) {
  u32 pairs[2];
  widen<T, Code>(pairs, codes);
  out[0] = pairs[0];
  out[1] = pairs[1];
}
template <typename T>
__device__ void widen_e2m1_to(u32* out, u32 codes) {
  u32 pairs[4];
  widen_e2m1<T>(pairs, codes);
  for (int i = 0; i < 4; ++i) out[i] = pairs[i];
}
struct Params {
  const u32* in;
  const float* x;
  u32* words;
  float* numbers;
};
extern "C" __global__ void core(const __grid_constant__ Params p) {
  unpack_to<float>(p.numbers, p.in[0]);
  unpack_to<f16>(p.numbers + 8, p.in[1]);
  unpack_to<bf16>(p.numbers + 16, p.in[2]);
  unpack_to<e4m3>(p.numbers + 24, p.in[3]);
  unpack_to<e5m2>(p.numbers + 32, p.in[4]);
  unpack_to<i8>(p.numbers + 40, p.in[5]);
  unpack_to<e2m1x2>(p.numbers + 48, p.in[6]);
  p.numbers[60] = to_f32(e4m3{static_cast<u8>(p.in[7])});
  p.numbers[61] = to_f32(e5m2{static_cast<u8>(p.in[7])});
  p.numbers[62] = e2m1_to_f32(p.in[7]) + e8m0_to_f32(p.in[8]) + to_f32(static_cast<i8>(p.in[9]));
  widen_to<f16, e4m3>(p.words, p.in[10]);
  widen_to<f16, e5m2>(p.words + 2, p.in[11]);
  widen_to<f16, i8>(p.words + 4, p.in[12]);
  widen_to<bf16, e4m3>(p.words + 6, p.in[13]);
  widen_to<bf16, e5m2>(p.words + 8, p.in[14]);
  widen_to<bf16, i8>(p.words + 10, p.in[15]);
  widen_e2m1_to<f16>(p.words + 12, p.in[16]);
  widen_e2m1_to<bf16>(p.words + 16, p.in[17]);
  p.words[20] = pack<f16>(p.x[0], p.x[1]);
  p.words[21] = pack<bf16>(p.x[2], p.x[3]);
  p.words[22] = pack_codes<e4m3>(p.x[0], p.x[1], p.x[2], p.x[3]);
  p.words[23] = pack_codes<e5m2>(p.x[0], p.x[1], p.x[2], p.x[3]);
  p.words[24] = pack_codes<i8>(p.x[0], p.x[1], p.x[2], p.x[3]);
  p.words[25] = from_f32<f16>(p.x[4]).bits | from_f32<bf16>(p.x[5]).bits << 16;
  p.words[26] = from_f32<e4m3>(p.x[6]).bits | from_f32<e5m2>(p.x[7]).bits << 8 | e2m1_from_f32(p.x[8]) << 16;
  p.words[27] = mul_pair<f16>(e4m3_to_pair<f16>(p.in[18]), p.in[19]);
  p.words[28] = mul_pair<bf16>(e8m0_to_bf16_pair(p.in[20]), p.in[21]);
  p.words[29] = static_cast<u32>(exponent_of(p.x[9])) + exponent_to_e8m0(static_cast<int>(p.in[22]));
  for (int i = 0; i < 16; ++i) p.numbers[64 + i] = p.x[16 + i];
  p.numbers[64] = girih::exp(p.x[10]);
  p.numbers[65] = girih::exp2(p.x[11]);
  p.numbers[66] = girih::log(p.x[12]);
  p.numbers[67] = girih::log2(p.x[13]);
  p.numbers[68] = girih::tanh(p.x[14]);
  p.numbers[69] = sigmoid(p.x[15]);
  p.numbers[70] = girih::sqrt(p.x[16]) + girih::rsqrt(p.x[17]);
  p.numbers[71] = exp2_approx(p.x[18]) + log2_approx(p.x[19]) + rcp_approx(p.x[20]) + rsqrt_approx(p.x[21]);
  p.numbers[72] = tanh_approx(p.x[22]) + tanh_fast(p.x[23]);
  float logistic[4];
  logistic_approx({p.x[24], p.x[25], p.x[26], p.x[27]}, logistic);
  p.numbers[73] = logistic[0] + logistic[3];
}
)";

constexpr const char* kPtxText = R"(
#include "ptx/launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/thread.cuh"
using namespace girih;
struct Params {
  const u8* in;
  float* out;
  int* counter;
};
extern "C" __global__ __launch_bounds__(64) void ptx_wrappers(const __grid_constant__ Params p) {
  ptx::wait_for_previous_grid();
  u8* s = ptx::shared_memory();
  const int t = ptx::thread_idx();
  u64* s_barrier = reinterpret_cast<u64*>(s + 2048);
  if (t == 0) ptx::mbarrier_init(s_barrier, 2 * 64);
  ptx::sync_block();
  ptx::cp_async_16(s + 16 * t, p.in + 16 * (ptx::block_idx() * ptx::num_threads() + t), t < 60);
  ptx::mbarrier_arrive_after_copies(s_barrier);
  ptx::mbarrier_arrive(s_barrier);
  ptx::mbarrier_wait(s_barrier, 0);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::sync_block();
  const Vec16 v = ptx::load_stream(p.in);
  u32 a[4];
  u32 b[4];
  ptx::ldmatrix_x4(a, s + 16 * ptx::lane_idx());
  ptx::ldmatrix_x4_trans(b, s + 16 * ptx::lane_idx() + 512);
  b[0] ^= ptx::transpose_8x8(b[1]);
  const u32 b_low[2] = {b[0], b[1] ^ v.x[0]};
  float c[4] = {};
  ptx::mma_16x8x16<MMA_TYPE>(c, a, b_low);
  ptx::sync_named(1 + ptx::warp_idx(), 32);
  float sum = ptx::shuffle(c[0], 3) + ptx::shuffle_xor(c[1], 1) + c[2] + c[3];
  if (ptx::any(sum > 0) && !ptx::all(sum > 1)) sum += static_cast<float>(ptx::ballot(sum > 2));
  ptx::sync_warp();
  p.out[ptx::num_blocks() * t] = sum;
  if (t == 0) p.out[0] = static_cast<float>(ptx::atomic_add(p.counter, 1) + ptx::atomic_add_ordered(p.counter, 1));
  u32* other = ptx::in_block(reinterpret_cast<u32*>(s), (ptx::cluster_rank() + 1) % ptx::cluster_size());
  p.out[1] = static_cast<float>(ptx::atomic_add_shared(other, 1U));
  ptx::sync_cluster();
  ptx::start_next_grid();
}
)";

void expect_compiles(const jit::Nvrtc& nvrtc, const std::string& name, const std::string& source, const std::string& target) {
  const jit::Cubin cubin = jit::compile(nvrtc, jit::make_recipe({.name = name, .source = source, .target = target}));
  EXPECT_GT(cubin.image.size(), 500U) << name << ' ' << target;
  EXPECT_GT(cubin.resources.registers, 0) << name << ' ' << target;
  EXPECT_EQ(cubin.resources.spill_loads + cubin.resources.spill_stores, 0) << name << ' ' << target;
}

TEST(JitTargets, CoreForEveryArchitecture) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  for (const char* target : kTargets) expect_compiles(*nvrtc, "core", kCoreText, target);
}

TEST(JitTargets, J10_WrappersForEveryArchitecture) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  for (const std::string target : kTargets) {
    for (const std::string type : {"f16", "bf16"}) {
      if (target == "sm_75" && type == "bf16") continue;  // has no such product
      expect_compiles(*nvrtc, "ptx_wrappers", "#define MMA_TYPE " + type + "\n" + kPtxText, target);
    }
  }
}

}  // namespace
}  // namespace girih
