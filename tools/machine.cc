// Ceilings of machine.h. The peak loops hold a dozen independent accumulators in registers, enough to cover the latency of a fused
// multiply-add (4 cycles x 2 a cycle) with some to spare, and touch no memory. Each is compiled for its own instruction set by a target
// attribute and chosen by CPUID, so this file needs no special flags.
#include "tools/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>

#include "base/math.h"
#include "girih/context.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace girih::tools {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr int kAccumulators = 12;

/// Runs `steps` rounds of a loop (at least one) and returns the flops done.
using PeakLoop = double (*)(std::int64_t steps);

double f32_portable(std::int64_t steps) {
  constexpr int kLanes = 4;
  float acc[kAccumulators * kLanes] = {};
  for (std::int64_t s = 0; s < steps; ++s) {
    for (float& a : acc) a = a * 0.5F + 1.0F;
  }
  for (float& a : acc) __asm__ volatile("" : : "m"(a));
  return 2.0 * kAccumulators * kLanes * static_cast<double>(steps);
}

#if defined(__x86_64__)

// Written as assembly, because compilers keep such arrays of accumulators in memory at will. All values are 0: speed does not depend on
// them, only power does, and a kernel's data is no extreme either.
__attribute__((target("avx2,fma"))) double f32_avx2(std::int64_t steps) {
  const double flops = 2.0 * 8 * kAccumulators * static_cast<double>(steps);
  __asm__ volatile(
      "vxorps %%ymm0, %%ymm0, %%ymm0\n\t"
      "vxorps %%ymm1, %%ymm1, %%ymm1\n\t"
      "vxorps %%ymm4, %%ymm4, %%ymm4\n\t"
      "vxorps %%ymm5, %%ymm5, %%ymm5\n\t"
      "vxorps %%ymm6, %%ymm6, %%ymm6\n\t"
      "vxorps %%ymm7, %%ymm7, %%ymm7\n\t"
      "vxorps %%ymm8, %%ymm8, %%ymm8\n\t"
      "vxorps %%ymm9, %%ymm9, %%ymm9\n\t"
      "vxorps %%ymm10, %%ymm10, %%ymm10\n\t"
      "vxorps %%ymm11, %%ymm11, %%ymm11\n\t"
      "vxorps %%ymm12, %%ymm12, %%ymm12\n\t"
      "vxorps %%ymm13, %%ymm13, %%ymm13\n\t"
      "vxorps %%ymm14, %%ymm14, %%ymm14\n\t"
      "vxorps %%ymm15, %%ymm15, %%ymm15\n\t"
      ".p2align 5\n\t"
      "1:\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm4\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm5\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm6\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm7\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm8\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm9\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm10\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm11\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm12\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm13\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm14\n\t"
      "vfmadd231ps %%ymm0, %%ymm1, %%ymm15\n\t"
      "dec %[steps]\n\t"
      "jnz 1b\n\t"
      : [steps] "+r"(steps)
      :
      : "cc", "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return flops;
}

__attribute__((target("avx512f"))) double f32_avx512(std::int64_t steps) {
  const double flops = 2.0 * 16 * kAccumulators * static_cast<double>(steps);
  __asm__ volatile(
      "vpxorq %%zmm0, %%zmm0, %%zmm0\n\t"
      "vpxorq %%zmm1, %%zmm1, %%zmm1\n\t"
      "vpxorq %%zmm4, %%zmm4, %%zmm4\n\t"
      "vpxorq %%zmm5, %%zmm5, %%zmm5\n\t"
      "vpxorq %%zmm6, %%zmm6, %%zmm6\n\t"
      "vpxorq %%zmm7, %%zmm7, %%zmm7\n\t"
      "vpxorq %%zmm8, %%zmm8, %%zmm8\n\t"
      "vpxorq %%zmm9, %%zmm9, %%zmm9\n\t"
      "vpxorq %%zmm10, %%zmm10, %%zmm10\n\t"
      "vpxorq %%zmm11, %%zmm11, %%zmm11\n\t"
      "vpxorq %%zmm12, %%zmm12, %%zmm12\n\t"
      "vpxorq %%zmm13, %%zmm13, %%zmm13\n\t"
      "vpxorq %%zmm14, %%zmm14, %%zmm14\n\t"
      "vpxorq %%zmm15, %%zmm15, %%zmm15\n\t"
      ".p2align 5\n\t"
      "1:\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm4\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm5\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm6\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm7\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm8\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm9\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm10\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm11\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm12\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm13\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm14\n\t"
      "vfmadd231ps %%zmm0, %%zmm1, %%zmm15\n\t"
      "dec %[steps]\n\t"
      "jnz 1b\n\t"
      : [steps] "+r"(steps)
      :
      : "cc", "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return flops;
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_avx512(std::int64_t steps) {
  const double flops = 4.0 * 16 * kAccumulators * static_cast<double>(steps);
  __asm__ volatile(
      "vpxorq %%zmm0, %%zmm0, %%zmm0\n\t"
      "vpxorq %%zmm1, %%zmm1, %%zmm1\n\t"
      "vpxorq %%zmm4, %%zmm4, %%zmm4\n\t"
      "vpxorq %%zmm5, %%zmm5, %%zmm5\n\t"
      "vpxorq %%zmm6, %%zmm6, %%zmm6\n\t"
      "vpxorq %%zmm7, %%zmm7, %%zmm7\n\t"
      "vpxorq %%zmm8, %%zmm8, %%zmm8\n\t"
      "vpxorq %%zmm9, %%zmm9, %%zmm9\n\t"
      "vpxorq %%zmm10, %%zmm10, %%zmm10\n\t"
      "vpxorq %%zmm11, %%zmm11, %%zmm11\n\t"
      "vpxorq %%zmm12, %%zmm12, %%zmm12\n\t"
      "vpxorq %%zmm13, %%zmm13, %%zmm13\n\t"
      "vpxorq %%zmm14, %%zmm14, %%zmm14\n\t"
      "vpxorq %%zmm15, %%zmm15, %%zmm15\n\t"
      ".p2align 5\n\t"
      "1:\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm4\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm5\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm6\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm7\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm8\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm9\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm10\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm11\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm12\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm13\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm14\n\t"
      "vdpbf16ps %%zmm0, %%zmm1, %%zmm15\n\t"
      "dec %[steps]\n\t"
      "jnz 1b\n\t"
      : [steps] "+r"(steps)
      :
      : "cc", "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return flops;
}

#endif

PeakLoop f32_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return f32_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return f32_avx2;
#endif
  return f32_portable;
}

PeakLoop bf16_loop() {
#if defined(__x86_64__)
  const std::vector<std::string> features = cpu_info().features;  // checks the operating system's side, too
  if (std::find(features.begin(), features.end(), "avx512_bf16") != features.end()) return bf16_avx512;
#endif
  return nullptr;
}

double measure_peak(cpu::ThreadPool& pool, PeakLoop loop, int runs) {
  if (loop == nullptr) return 0;
  constexpr std::int64_t kSteps = 2'000'000;  // 24 M instructions a worker: about 5 ms
  struct alignas(64) Slot {
    double flops = 0;
  };
  std::vector<Slot> slots(static_cast<std::size_t>(pool.num_workers()));
  double best = 0;
  for (int run = 0; run < runs; ++run) {
    const Clock::time_point start = Clock::now();
    pool.parallel([&](int worker) { slots[static_cast<std::size_t>(worker)].flops = loop(kSteps); });
    const double seconds = seconds_since(start);
    double flops = 0;
    for (const Slot& slot : slots) flops += slot.flops;
    best = std::max(best, flops / seconds);
  }
  return best;
}

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

/// Size of the last-level cache as the system reports it: "32768K" or "32M".
std::int64_t last_cache_bytes() {
  std::int64_t best = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string text = first_line("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    if (text.empty()) break;
    std::int64_t size = std::strtoll(text.c_str(), nullptr, 10);
    if (text.back() == 'K') size <<= 10;
    if (text.back() == 'M') size <<= 20;
    best = std::max(best, size);
  }
  return best;
}

double clock_mhz() {
  const std::string khz = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq");
  if (!khz.empty()) return std::strtod(khz.c_str(), nullptr) / 1000;
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("cpu MHz", 0) == 0) return std::strtod(line.c_str() + line.find(':') + 1, nullptr);
  }
  return 0;
}

/// Eight independent sums of 8 bytes per 64-byte line; compilers turn it into vector loads.
std::uint64_t sum_lines(const std::byte* begin, std::int64_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::int64_t at = 0; at + 64 <= bytes; at += 64) {
    std::uint64_t line[8];
    std::memcpy(line, begin + at, sizeof(line));
    for (int i = 0; i < 8; ++i) sums[i] += line[i];
  }
  std::uint64_t sum = 0;
  for (std::uint64_t s : sums) sum += s;
  return sum;
}

#if defined(__x86_64__)
// 256-bit loads with four accumulators: one 64-byte line takes two, far from any limit but memory's.
__attribute__((target("avx2"))) std::uint64_t sum_lines_avx2(const std::byte* begin, std::int64_t bytes) {
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::int64_t at = 0; at + 128 <= bytes; at += 128) {
    const auto* line = reinterpret_cast<const __m256i*>(begin + at);
    for (int i = 0; i < 4; ++i) sums[i] = _mm256_add_epi64(sums[i], _mm256_loadu_si256(line + i));
  }
  const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 0) + _mm256_extract_epi64(sum, 1) + _mm256_extract_epi64(sum, 2) +
                                    _mm256_extract_epi64(sum, 3));
}
#endif

std::uint64_t sum_stream(const std::byte* begin, std::int64_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return sum_lines_avx2(begin, bytes);
#endif
  return sum_lines(begin, bytes);
}

}  // namespace

void ReadStream::Free::operator()(std::byte* memory) const { std::free(memory); }

ReadStream::ReadStream(cpu::ThreadPool& pool) : pool_(pool), sums_(static_cast<std::size_t>(pool.num_workers()) * 8) {
  constexpr std::int64_t kLeast = std::int64_t{256} << 20;
  constexpr std::int64_t kMost = std::int64_t{2} << 30;
  bytes_ = round_up(std::clamp(8 * last_cache_bytes(), kLeast, kMost), 2 << 20);
  buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(2 << 20, static_cast<std::size_t>(bytes_))));
  if (buffer_ == nullptr) throw std::bad_alloc();
  // Written by the workers that will read it: on machines with several memory nodes pages lie where they are first written.
  const std::int64_t share = round_up(ceil_div(bytes_, pool.num_workers()), 4096);
  pool_.parallel([&](int worker) {
    const std::int64_t begin = std::min(bytes_, worker * share);
    std::memset(buffer_.get() + begin, worker + 1, static_cast<std::size_t>(std::min(bytes_, begin + share) - begin));
  });
}

double ReadStream::bytes_per_second() {
  const std::int64_t share = round_up(ceil_div(bytes_, pool_.num_workers()), 4096);
  const Clock::time_point start = Clock::now();
  pool_.parallel([&](int worker) {
    const std::int64_t begin = std::min(bytes_, worker * share);
    sums_[static_cast<std::size_t>(worker) * 8] += sum_stream(buffer_.get() + begin, std::min(bytes_, begin + share) - begin);
  });
  return static_cast<double>(bytes_) / seconds_since(start);
}

double measure_f32_flops(cpu::ThreadPool& pool, int runs) { return measure_peak(pool, f32_loop(), runs); }
double measure_bf16_flops(cpu::ThreadPool& pool, int runs) { return measure_peak(pool, bf16_loop(), runs); }

MachineCeilings measure_ceilings(int workers) {
  cpu::ThreadPool pool(workers);
  MachineCeilings ceilings;
  ReadStream stream(pool);
  for (int run = 0; run < 5; ++run) ceilings.read_bytes_per_second = std::max(ceilings.read_bytes_per_second, stream.bytes_per_second());
  ceilings.f32_flops = measure_f32_flops(pool);
  ceilings.bf16_flops = measure_bf16_flops(pool);
  return ceilings;
}

MachineFacts machine_facts(std::string target, int workers) {
  const CpuInfo cpu = cpu_info();
  MachineFacts facts{.cpu = cpu.model, .cpus = cpu.num_cpus, .target = std::move(target), .workers = workers, .governor = {}, .date = {}};
  facts.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  facts.clock_mhz = clock_mhz();
  facts.cache_bytes = last_cache_bytes();
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32];
  if (gmtime_r(&now, &utc) != nullptr && std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc) > 0) facts.date = text;
  return facts;
}

}  // namespace girih::tools
