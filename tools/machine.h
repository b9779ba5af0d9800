// The machine's ceilings, measured: what rooflines are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/thread_pool.h"

namespace girih::tools {

struct MachineCeilings {
  double read_bytes_per_second = 0;  ///< all workers reading memory in long streams
  double f32_flops = 0;              ///< fused multiply-adds of the widest vectors, 2 per lane, all workers
  double bf16_flops = 0;             ///< AVX512-BF16 dot products (vdpbf16ps), 4 per 32-bit lane; 0 = the CPU has none
};

/// A buffer far beyond the caches that a pool's workers sum. Kept between measurements, since bandwidth on shared machines drifts and
/// is measured beside every benchmark case.
class ReadStream {
 public:
  explicit ReadStream(cpu::ThreadPool& pool);
  std::int64_t bytes() const { return bytes_; }
  /// One pass over the buffer; also leaves the caches without the caller's data.
  double bytes_per_second();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  cpu::ThreadPool& pool_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<std::byte[], Free> buffer_;
  std::vector<std::uint64_t> sums_;  // one cache line per worker
};

/// Best of `runs` runs of some milliseconds each.
double measure_f32_flops(cpu::ThreadPool& pool, int runs = 7);
double measure_bf16_flops(cpu::ThreadPool& pool, int runs = 7);
MachineCeilings measure_ceilings(int workers);

/// What a result file says about where it was measured. Empty or 0 = cannot be read here.
struct MachineFacts {
  std::string cpu;
  int cpus = 0;
  std::string target;
  int workers = 0;
  std::string governor;
  double clock_mhz = 0;
  std::int64_t cache_bytes = 0;  ///< last level
  std::string date;              ///< UTC, ISO 8601
};
MachineFacts machine_facts(std::string target, int workers);

}  // namespace girih::tools
