// Context: what operators run on and with (device, worker threads, log callback). Passed explicitly; there is no global state.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "girih/jit.h"
#include "girih/tensor.h"

namespace girih {

/// SIMD instruction set of the CPU kernels. `best` is the widest that this CPU has.
/// `scalar` is portable C++ on 128-bit emulated vectors; `avx3` is AVX-512 (F, BW, CD, DQ, VL); `avx3_bf16` adds the dot product of
/// AVX512-BF16 for bf16 and 8-bit data (docs/numerics.md).
enum class CpuTarget : std::uint8_t { best, scalar, avx2, avx3, avx3_bf16, neon };
inline constexpr std::array kCpuTargets = {CpuTarget::best, CpuTarget::scalar,    CpuTarget::avx2,
                                           CpuTarget::avx3, CpuTarget::avx3_bf16, CpuTarget::neon};
std::string_view name(CpuTarget t);
/// Targets compiled in that this CPU can run, widest first.
std::vector<CpuTarget> available_cpu_targets();

enum class LogLevel : std::uint8_t { debug, info, warning };
using LogFn = std::function<void(LogLevel, std::string_view)>;

struct ContextOptions {
  Device device{};
  int num_workers = 0;  ///< CPU worker threads including the caller; 0 = the CPUs this process may use
  /// CPUs that workers are bound to (Linux): worker w to cpus[w % size]; worker 0, the calling thread, is never bound. Empty = not bound.
  /// num_workers = 0 then means one per entry. A CPU that this process may not use is refused.
  std::vector<int> cpus{};
  CpuTarget target = CpuTarget::best;  ///< refused (unsupported) where this CPU lacks it
  LogFn log{};                         ///< called for what a user should know; empty = silent
  JitOptions jit{};                    ///< CUDA: how kernels are compiled and kept
};

/// Facts of the CPU, as `girih info` prints them.
struct CpuInfo {
  std::string model;
  int num_cpus = 0;                   ///< CPUs this process may use
  std::vector<std::string> features;  ///< "avx2", "fma", "avx512f", "avx512_bf16", ...
};
CpuInfo cpu_info();

namespace cpu {
class ThreadPool;
}
namespace cuda {
struct Runtime;
}

/// Not copyable; cheap to move. One Context serves one thread at a time (runs on it do not overlap); make one per thread.
/// Survives fork(): the child may go on using it and gets worker threads of its own.
class Context {
 public:
  explicit Context(ContextOptions options = {});
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  Device device() const;
  int num_workers() const;
  CpuTarget cpu_target() const;  ///< never `best`: the one chosen
  void log(LogLevel level, std::string_view text) const;
  cpu::ThreadPool& pool() const;  ///< internal to the library
  cuda::Runtime& cuda() const;    ///< internal to the library; on a CUDA device

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace girih
