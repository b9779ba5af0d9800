// See gpu_ceilings.h.
#include "tools/gpu_ceilings.h"

#include <algorithm>

#include "cuda/runtime.h"

namespace girih::tools {
namespace {

constexpr std::int64_t kStreamBytes = std::int64_t{2} << 30;
constexpr int kMmaBlocksPerSm = 4;
constexpr int kMmaSteps = 4096;
constexpr int kMmaChains = 8;

struct StreamParams {
  const unsigned char* data;
  std::int64_t vectors;
  unsigned* sink;
};
constexpr const char* kStreamSource = R"(// bench read_stream
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"
struct StreamParams {
  const unsigned char* data;
  long long vectors;
  unsigned* sink;
};
extern "C" __global__ void __launch_bounds__(512) bench_read_stream(const __grid_constant__ StreamParams p) {
  using namespace girih;
  u32 sum = 0;
  const i64 step = static_cast<i64>(ptx::num_blocks()) * 512;
#pragma unroll 8
  for (i64 i = static_cast<i64>(ptx::block_idx()) * 512 + ptx::thread_idx(); i < p.vectors; i += step) {
    const Vec16 v = ptx::load_stream(p.data + 16 * i);
    sum += v.x[0] ^ v.x[1] ^ v.x[2] ^ v.x[3];
  }
  if (sum == 0x12345678U) *p.sink = sum;
}
)";

struct MmaParams {
  int steps;
  float* sink;
};
constexpr const char* kMmaSource = R"(// bench mma
#include "ptx/mma.cuh"
#include "ptx/thread.cuh"
struct MmaParams {
  int steps;
  float* sink;
};
extern "C" __global__ void __launch_bounds__(128) bench_mma(const __grid_constant__ MmaParams p) {
  using namespace girih;
  float c[8][4] = {};
  const u32 x = 0x3c003c00U + static_cast<u32>(ptx::lane_idx());
  const u32 a[4] = {x, x + 1, x + 2, x + 3};
  const u32 b[2] = {x, x + 5};
  for (int i = 0; i < p.steps; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) ptx::mma_16x8x16<f16>(c[k], a, b);
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += c[k][0] + c[k][1] + c[k][2] + c[k][3];
  if (sum == 1.2345F) *p.sink = sum;
}
)";

/// Seconds of the fastest of a few launches.
double best_launch(const cuda::Driver& driver, const cuda::Launch& launch, const void* params) {
  const cuda::Event begin = driver.create_event(true);
  const cuda::Event end = driver.create_event(true);
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    driver.record(begin, launch.stream);
    driver.launch(launch, params);
    driver.record(end, launch.stream);
    driver.synchronize(launch.stream);
    best = std::min(best, driver.elapsed_seconds(begin, end));
  }
  driver.destroy_event(begin);
  driver.destroy_event(end);
  return best;
}

}  // namespace

MachineCeilings measure_gpu_ceilings(const Context& context) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::CurrentDevice current(*runtime.device);
  const cuda::Driver& driver = runtime.device->driver();
  const int num_sms = runtime.device->info().num_sms;
  const cuda::DeviceBuffer data(runtime.device, kStreamBytes);
  const cuda::DeviceBuffer sink(runtime.device, 64);
  driver.fill(data.pointer(), 1, kStreamBytes, nullptr);
  const StreamParams stream{static_cast<const unsigned char*>(data.data()), kStreamBytes / 16, static_cast<unsigned*>(sink.data())};
  const MmaParams mma{kMmaSteps, static_cast<float*>(sink.data())};
  const int mma_blocks = num_sms * kMmaBlocksPerSm;
  const double read = best_launch(driver,
                                  {.function = runtime.kernel("bench", "bench_read_stream", kStreamSource, nullptr).function,
                                   .num_blocks = num_sms * 4,
                                   .num_threads = 512,
                                   .stream = nullptr},
                                  &stream);
  const double flops = best_launch(driver,
                                   {.function = runtime.kernel("bench", "bench_mma", kMmaSource, nullptr).function,
                                    .num_blocks = mma_blocks,
                                    .num_threads = 128,
                                    .stream = nullptr},
                                   &mma);
  MachineCeilings ceilings;
  ceilings.read_bytes_per_second = static_cast<double>(kStreamBytes) / read;
  ceilings.bf16_flops = 2.0 * 16 * 8 * 16 * kMmaChains * kMmaSteps * 4 * mma_blocks / flops;
  return ceilings;
}

}  // namespace girih::tools
