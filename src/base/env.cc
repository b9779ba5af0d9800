// The only getenv of the library. A malformed value is an error, not a warning: whoever set a variable wants it to count.
#include "base/env.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace girih {
namespace {

constexpr const char* kNumThreads = "GIRIH_NUM_THREADS";
constexpr const char* kCpuTarget = "GIRIH_CPU_TARGET";

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

}  // namespace

Env read_env() {
  Env env;
  if (const std::optional<std::string> text = get(kNumThreads)) env.num_threads = parse_num_threads(*text);
  if (const std::optional<std::string> text = get(kCpuTarget)) env.cpu_target = parse_cpu_target(*text);
  return env;
}

std::vector<EnvVariable> env_variables() {
  return {
      {kNumThreads, "CPU worker threads where the program does not say", get(kNumThreads)},
      {kCpuTarget, "SIMD target where the program does not say: best, scalar, avx2, avx3, avx3_bf16, neon", get(kCpuTarget)},
  };
}

}  // namespace girih
