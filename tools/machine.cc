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

/// Flops done by `steps` rounds of a loop; `keep` receives a value that depends on all of them.
using PeakLoop = double (*)(std::int64_t steps, float* keep);

double f32_portable(std::int64_t steps, float* keep) {
  constexpr int kLanes = 4;
  float acc[kAccumulators * kLanes] = {};
  for (std::int64_t s = 0; s < steps; ++s) {
    for (float& a : acc) a = a * 0.5F + 1.0F;
  }
  for (float a : acc) *keep += a;
  return 2.0 * kAccumulators * kLanes * static_cast<double>(steps);
}

#if defined(__x86_64__)

// The empty asm statements keep the compiler from merging rounds or moving accumulators to memory.
__attribute__((target("avx2,fma"))) double f32_avx2(std::int64_t steps, float* keep) {
  const __m256 a = _mm256_set1_ps(0.5F);
  const __m256 b = _mm256_set1_ps(1.0F);
  __m256 acc[kAccumulators];
  for (__m256& x : acc) x = b;
  for (std::int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) {
      acc[i] = _mm256_fmadd_ps(acc[i], a, b);
      __asm__ volatile("" : "+x"(acc[i]));
    }
  }
  for (const __m256& x : acc) *keep += _mm256_cvtss_f32(x);
  return 2.0 * 8 * kAccumulators * static_cast<double>(steps);
}

__attribute__((target("avx512f"))) double f32_avx512(std::int64_t steps, float* keep) {
  const __m512 a = _mm512_set1_ps(0.5F);
  const __m512 b = _mm512_set1_ps(1.0F);
  __m512 acc[kAccumulators];
  for (__m512& x : acc) x = b;
  for (std::int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) {
      acc[i] = _mm512_fmadd_ps(acc[i], a, b);
      __asm__ volatile("" : "+v"(acc[i]));
    }
  }
  for (const __m512& x : acc) *keep += _mm512_cvtss_f32(x);
  return 2.0 * 16 * kAccumulators * static_cast<double>(steps);
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_avx512(std::int64_t steps, float* keep) {
  const __m512 ones = _mm512_set1_ps(1.0F);
  const __m512bh a = _mm512_cvtne2ps_pbh(ones, ones);
  __m512 acc[kAccumulators];
  for (__m512& x : acc) x = ones;
  for (std::int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) {
      acc[i] = _mm512_dpbf16_ps(acc[i], a, a);
      __asm__ volatile("" : "+v"(acc[i]));
    }
  }
  for (const __m512& x : acc) *keep += _mm512_cvtss_f32(x);
  return 4.0 * 16 * kAccumulators * static_cast<double>(steps);
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
    float keep = 0;
    double flops = 0;
  };
  std::vector<Slot> slots(static_cast<std::size_t>(pool.num_workers()));
  double best = 0;
  for (int run = 0; run < runs; ++run) {
    const Clock::time_point start = Clock::now();
    pool.parallel([&](int worker) {
      Slot& slot = slots[static_cast<std::size_t>(worker)];
      slot.flops = loop(kSteps, &slot.keep);
    });
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
