// The only getenv of the library. A malformed value is an error, not a warning: whoever set a variable wants it to count.
#include "base/env.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace girih {
namespace {

constexpr const char* kNumThreads = "GIRIH_NUM_THREADS";
constexpr const char* kCpuTarget = "GIRIH_CPU_TARGET";
constexpr const char* kJit = "GIRIH_JIT";
constexpr const char* kNvrtc = "GIRIH_NVRTC";
constexpr const char* kCache = "GIRIH_CACHE";
constexpr const char* kSampling = "GIRIH_SAMPLING";

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): the library never sets the environment
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

int parse_num_threads(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || value < 1 || value > kMaxWorkers) {
    fail(Code::invalid_argument, "environment", "{}=\"{}\"; must be an integer in [1, {}], or unset", kNumThreads, text, kMaxWorkers);
  }
  return value;
}

CpuTarget parse_cpu_target(const std::string& text) {
  for (const CpuTarget target : kCpuTargets) {
    if (name(target) == text) return target;
  }
  fail(Code::invalid_argument, "environment", "{}=\"{}\"; must be one of best, scalar, avx2, avx3, avx3_bf16, neon, or unset", kCpuTarget,
       text);
}

JitPolicy parse_jit_policy(const std::string& text) {
  for (const JitPolicy policy : {JitPolicy::allow, JitPolicy::deny, JitPolicy::pack_only}) {
    if (name(policy) == text) return policy;
  }
  fail(Code::invalid_argument, "environment", "{}=\"{}\"; must be one of allow, deny, pack_only, or unset", kJit, text);
}

SamplingChoice parse_sampling(const std::string& text) {
  if (text == "passes") return SamplingChoice::passes;
  if (text == "few") return SamplingChoice::few;
  fail(Code::invalid_argument, "environment", "{}=\"{}\"; must be one of passes, few, or unset", kSampling, text);
}

/// The cache's directory or "off", then packs.
void parse_cache(const std::string& text, Env& env) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const std::string& part : parts) {
    if (part.starts_with('/') || (&part == &parts.front() && part == "off")) continue;
    fail(Code::invalid_argument, "environment",
         "{}=\"{}\"; \"{}\" is not an absolute path; must be the cache's directory or off, then directories of packs, separated by ':'",
         kCache, text, part);
  }
  env.cache_dir = parts.front() == "off" ? std::string() : parts.front();
  env.packs.emplace(parts.begin() + 1, parts.end());
}

std::string default_cache_dir() {
  // Relative values are to be ignored, says the XDG base directory specification.
  const std::optional<std::string> xdg = get("XDG_CACHE_HOME");
  if (xdg && xdg->starts_with('/')) return *xdg + "/girih";
  const std::optional<std::string> home = get("HOME");
  if (home && home->starts_with('/')) return *home + "/.cache/girih";
  return {};
}

}  // namespace

Env read_env() {
  Env env;
  if (const std::optional<std::string> text = get(kNumThreads)) env.num_threads = parse_num_threads(*text);
  if (const std::optional<std::string> text = get(kCpuTarget)) env.cpu_target = parse_cpu_target(*text);
  if (const std::optional<std::string> text = get(kJit)) env.jit_policy = parse_jit_policy(*text);
  if (const std::optional<std::string> text = get(kCache)) parse_cache(*text, env);
  if (const std::optional<std::string> text = get(kSampling)) env.sampling = parse_sampling(*text);
  env.nvrtc = get(kNvrtc);
  env.default_cache_dir = default_cache_dir();
  return env;
}

std::string virtual_environment() { return get("VIRTUAL_ENV").value_or(""); }

std::vector<EnvVariable> env_variables() {
  return {
      {kNumThreads, "CPU worker threads where the program does not say", get(kNumThreads)},
      {kCpuTarget, "SIMD target where the program does not say: best, scalar, avx2, avx3, avx3_bf16, neon", get(kCpuTarget)},
      {kJit, "where CUDA kernels may come from: allow (compile what is missing), deny (cache and packs), pack_only", get(kJit)},
      {kNvrtc, "NVRTC, the CUDA compiler: its library file or directory, in place of the search", get(kNvrtc)},
      {kCache, "CUDA kernels: the cache's directory or off, then directories of packs, separated by ':'", get(kCache)},
      {kSampling, "CUDA kernels of sampling: passes or few, in place of what has been measured to be faster", get(kSampling)},
  };
}

}  // namespace girih
