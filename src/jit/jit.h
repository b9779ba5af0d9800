// Jit: kernel source in, cubin out, from the first that has it: memory, packs, the disk cache, NVRTC. Needs no GPU and no driver: kernels
// can be prepared for any architecture. Thread-safe; one per Context. Loading onto a device is kernel.h's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "girih/context.h"
#include "jit/compiler.h"

namespace girih::jit {

enum class Policy : std::uint8_t {
  allow,      ///< compile what no pack and no cache has
  deny,       ///< packs and caches only: a miss is an error, NVRTC is asked for its version only
  pack_only,  ///< packs only; NVRTC and the cache are not touched
};

struct JitOptions {
  Policy policy = Policy::allow;
  std::string nvrtc;                         ///< library file or directory; empty = search (nvrtc.h)
  std::string cache_dir;                     ///< empty = no disk cache
  std::vector<std::string> packs;            ///< directories made by build_pack(), searched in order
  std::string target;                        ///< for kernels that name none: "sm_90a", "compute_80"
  std::vector<std::string> extra_options{};  ///< of NVRTC, for all kernels
  int max_threads = 0;                       ///< of warmup(); 0 = CPUs, as far as memory allows
};
/// The options that the environment asks for (base/env.h), for a device of compute capability `arch`.
JitOptions default_jit_options(int arch);

struct WarmupProgress {
  std::int64_t done = 0;  ///< of `total`; the first call, before anything is compiled, has 0
  std::int64_t total = 0;
  std::string_view name;  ///< the kernel that is ready; empty in the first call
  Cubin::Origin origin{};
  double seconds = 0;  ///< it took
};
/// Called from one thread at a time, not always the caller's. What it throws ends the warm-up and reaches the caller.
using WarmupFn = std::function<void(const WarmupProgress&)>;

/// Counts since construction, of distinct kernels.
struct JitStats {
  std::int64_t compiled = 0, from_cache = 0, from_packs = 0, from_memory = 0;
  double compile_seconds = 0;
};

class Jit {
 public:
  /// Touches neither NVRTC nor the disk. `log` may be empty; it is called from any thread that compiles, one at a time.
  explicit Jit(JitOptions options, LogFn log = {});
  ~Jit();
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  /// The same object for the same kernel as long as the Jit lives. Throws unsupported where NVRTC is needed and missing or the policy
  /// forbids compiling, internal where the kernel does not compile.
  std::shared_ptr<const Cubin> compile(const KernelSource& kernel);
  /// Compiles all, in parallel with bounded memory; equal kernels once. All are tried before the first failure is thrown.
  void warmup(std::span<const KernelSource> kernels, const WarmupFn& progress = {});

  const JitOptions& options() const;
  JitStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace girih::jit
