// How CUDA kernels are compiled and kept: options of a Context on a CUDA device. docs/jit.md explains cache and packs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace girih {

/// Where kernels may come from.
enum class JitPolicy : std::uint8_t {
  allow,      ///< packs, cache, and else NVRTC compiles
  deny,       ///< packs and cache; a kernel that neither has is an error
  pack_only,  ///< packs; neither NVRTC nor the cache is touched
};
std::string_view name(JitPolicy policy);

/// What is not given comes from the environment (GIRIH_JIT, GIRIH_NVRTC, GIRIH_CACHE), or else is the default.
struct JitOptions {
  std::optional<JitPolicy> policy{};                ///< default: allow
  std::optional<std::string> nvrtc{};               ///< NVRTC: the library's file or a directory that holds it; default: search
  std::optional<std::string> cache_dir{};           ///< "" = no disk cache; default: $XDG_CACHE_HOME/girih or ~/.cache/girih
  std::optional<std::vector<std::string>> packs{};  ///< directories of prebuilt kernels, searched in order; default: none
  std::vector<std::string> nvrtc_options{};         ///< more of NVRTC's, for all kernels, e.g. "--generate-line-info"
  int max_threads = 0;                              ///< of a warm-up; 0 = one per CPU, as far as memory allows
};

/// Where a kernel was found.
enum class KernelOrigin : std::uint8_t { compiled, cache, pack };
std::string_view name(KernelOrigin origin);

struct WarmupProgress {
  std::int64_t done = 0;  ///< of `total`; the first call, before anything is compiled, has 0
  std::int64_t total = 0;
  std::string_view name;    ///< the kernel that is ready; empty in the first call
  std::string_view target;  ///< what it was compiled for, e.g. sm_90a
  KernelOrigin origin{};
  double seconds = 0;  ///< it took
};
/// Called from one thread at a time, not always the caller's. What it throws ends the warm-up and reaches the caller.
using WarmupFn = std::function<void(const WarmupProgress&)>;

}  // namespace girih
