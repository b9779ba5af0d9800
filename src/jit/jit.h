// Jit: kernel source in, cubin out, from the first that has it: memory, packs, the disk cache, NVRTC. Needs no GPU and no driver: kernels
// can be prepared for any architecture. Thread-safe; one per Context. Loading onto a device is kernel.h's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "girih/context.h"
#include "girih/jit.h"
#include "jit/compiler.h"

namespace girih::jit {

/// `options` with what it leaves open taken from the environment and the defaults; afterwards every optional has a value.
JitOptions fill_from_environment(JitOptions options, const Env& env);

/// Since construction. A kernel that was asked for again counts in from_memory.
struct JitStats {
  std::int64_t compiled = 0, from_cache = 0, from_packs = 0, from_memory = 0;
  double compile_seconds = 0;  // summed over threads
};

/// How many threads a warm-up uses: `max_threads` (0 = one per CPU), as far as kernels and free memory go.
int warmup_threads(int max_threads, std::int64_t num_kernels, int num_cpus, std::int64_t free_bytes);

class Jit {
 public:
  /// Touches neither NVRTC nor the disk. `target`: for kernels that name none, e.g. cuda::nvrtc_arch(90) or "compute_80". Options that
  /// are not given are not asked of the environment here: no disk cache, no packs, NVRTC searched, policy allow. `log` may be empty; it is
  /// called from any thread that compiles, one at a time.
  Jit(JitOptions options, std::string target, LogFn log = {});
  ~Jit();
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  /// The same object for the same kernel as long as the Jit lives. Throws unsupported where NVRTC is needed and missing or the policy
  /// forbids compiling, internal where the kernel does not compile.
  std::shared_ptr<const Cubin> compile(const KernelSource& kernel);
  /// Compiles all, in parallel with bounded memory; equal kernels once. All are tried before the first failure is thrown.
  void warmup(std::span<const KernelSource> kernels, const WarmupFn& progress = {});

  /// What compile() makes of a kernel before it looks anywhere.
  Recipe recipe(const KernelSource& kernel) const;
  std::shared_ptr<const Cubin> compile_recipe(const Recipe& recipe);

  const JitOptions& options() const;
  const std::string& target() const;
  /// Loads NVRTC if that has not happened yet; throws what Nvrtc::load() does.
  const Nvrtc& nvrtc();
  JitStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace girih::jit
