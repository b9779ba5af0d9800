// Environment variables: all of them, and the only place that reads any. They fill in what ContextOptions leaves open; read when a
// Context is made, never by plan() or run().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "girih/context.h"
#include "girih/jit.h"

namespace girih {

inline constexpr int kMaxWorkers = 4096;

/// How CUDA kernels of sampling do rows: by what has been measured, or always in passes, or in few passes wherever they can.
enum class SamplingChoice : std::uint8_t { measured, passes, few };

struct Env {
  std::optional<int> num_threads;                      // GIRIH_NUM_THREADS: workers where ContextOptions::num_workers is 0
  std::optional<CpuTarget> cpu_target;                 // GIRIH_CPU_TARGET: the target where ContextOptions::target is best
  std::optional<JitPolicy> jit_policy;                 // GIRIH_JIT
  SamplingChoice sampling = SamplingChoice::measured;  // GIRIH_SAMPLING
  std::optional<std::string> nvrtc;                    // GIRIH_NVRTC
  // GIRIH_CACHE: the cache's directory (or "off"), then packs, separated by ':'.
  std::optional<std::string> cache_dir;
  std::optional<std::vector<std::string>> packs;
  std::string default_cache_dir;  // where cache_dir is not given: $XDG_CACHE_HOME/girih or $HOME/.cache/girih; empty where neither is set
};

/// Throws invalid_argument naming the variable where a value is malformed. An empty value counts as not set.
Env read_env();

/// $VIRTUAL_ENV: the active Python environment, where NVRTC may be installed. Empty where there is none.
std::string virtual_environment();

struct EnvVariable {
  std::string_view name;
  std::string_view meaning;
  std::optional<std::string> value;  // as it is, not checked
};
/// For `girih info`.
std::vector<EnvVariable> env_variables();

}  // namespace girih
