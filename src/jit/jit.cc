// See jit.h. A kernel is looked for under its recipe's hash first, in memory and packs, which needs no NVRTC; then, with NVRTC's version,
// in the disk cache; then it is compiled. Threads that want the same kernel at once wait for the first of them.
#include "jit/jit.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "jit/cache.h"
#include "jit/pack.h"
#include "jit/sources.h"

namespace girih {

std::string_view name(JitPolicy policy) {
  switch (policy) {
    case JitPolicy::allow: return "allow";
    case JitPolicy::deny: return "deny";
    case JitPolicy::pack_only: return "pack_only";
  }
  return "invalid policy";
}

std::string_view name(KernelOrigin origin) {
  switch (origin) {
    case KernelOrigin::compiled: return "compiled";
    case KernelOrigin::cache: return "cache";
    case KernelOrigin::pack: return "pack";
  }
  return "invalid origin";
}

}  // namespace girih

namespace girih::jit {
namespace {

using Clock = std::chrono::steady_clock;
using SharedCubin = std::shared_ptr<const Cubin>;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

JitOptions fill_from_environment(JitOptions options, const Env& env) {
  if (!options.policy) options.policy = env.jit_policy.value_or(JitPolicy::allow);
  if (!options.nvrtc) options.nvrtc = env.nvrtc.value_or("");
  if (!options.cache_dir) options.cache_dir = env.cache_dir.value_or(env.default_cache_dir);
  if (!options.packs) options.packs = env.packs.value_or(std::vector<std::string>());
  return options;
}

struct Jit::State {
  State(JitOptions o, std::string t, LogFn l)
      : options(std::move(o)), policy(options.policy.value_or(JitPolicy::allow)), target(std::move(t)), user_log(std::move(l)) {
    const auto serialised = [this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(log_mutex);
      if (user_log) user_log(level, text);
    };
    log = serialised;
    if (const std::string dir = options.cache_dir.value_or(""); !dir.empty()) cache.emplace(dir, log);
  }

  SharedCubin make(const Recipe& recipe);
  const std::vector<Pack>& opened_packs();
  std::string save_failed(const std::string& key, std::string_view source);
  const Nvrtc& nvrtc();

  const JitOptions options;
  const JitPolicy policy;
  const std::string target;
  const LogFn user_log;
  LogFn log;
  std::mutex log_mutex;

  std::optional<DiskCache> cache;
  std::mutex packs_mutex;  // also held while they are opened
  std::optional<std::vector<Pack>> packs;
  std::mutex nvrtc_mutex;
  std::shared_ptr<const Nvrtc> loaded_nvrtc;

  std::mutex mutex;                                                // of what follows
  std::map<std::string, std::shared_future<SharedCubin>> kernels;  // by hash of the recipe
  JitStats stats;
};

const Nvrtc& Jit::State::nvrtc() {
  const std::lock_guard lock(nvrtc_mutex);
  if (!loaded_nvrtc) loaded_nvrtc = Nvrtc::load({options.nvrtc.value_or(""), virtual_environment()});
  return *loaded_nvrtc;
}

const std::vector<Pack>& Jit::State::opened_packs() {
  const std::lock_guard lock(packs_mutex);
  if (packs) return *packs;
  std::vector<Pack> opened;
  for (const std::string& dir : options.packs.value_or(std::vector<std::string>())) {
    const Pack& pack = opened.emplace_back(dir);
    if (pack.bundle() == bundle_hash()) continue;
    log(LogLevel::warning, fmt::format("pack {}: built from other kernel texts than this library's; nothing in it can be used", dir));
  }
  packs = std::move(opened);
  return *packs;
}

/// The cache, or else a directory of this user below the system's temporary one.
std::string Jit::State::save_failed(const std::string& key, std::string_view source) {
  std::string path = cache ? cache->save_failed(key, source) : std::string();
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (path.empty() && !error) path = DiskCache((temporary / fmt::format("girih-{}", geteuid())).string(), {}).save_failed(key, source);
  return path;
}

SharedCubin Jit::State::make(const Recipe& recipe) {
  const KernelSource& kernel = recipe.kernel;
  std::optional<Cubin> cubin;
  for (const Pack& pack : opened_packs()) {
    if (!cubin) cubin = pack.find(recipe);
  }
  if (!cubin && policy == JitPolicy::pack_only) {
    fail(Code::unsupported, "jit", "kernel {} for {} is in none of the {} packs, and the policy is pack_only; add it to a pack (recipe {})",
         kernel.name, kernel.target, options.packs ? options.packs->size() : 0, recipe.hash());
  }
  if (!cubin && cache) cubin = cache->find(recipe, nvrtc().version());
  if (!cubin && policy == JitPolicy::deny) {
    fail(Code::unsupported, "jit", "kernel {} for {} is in no pack and not in the cache ({}), and the policy is deny; warm it up before",
         kernel.name, kernel.target, cache ? cache->dir() : "off");
  }
  double seconds = 0;
  if (!cubin) {
    log(LogLevel::info, fmt::format("compiling {} for {}", kernel.name, kernel.target));
    const SaveSource save = [this](const std::string& key, std::string_view text) { return save_failed(key, text); };
    const Clock::time_point begin = Clock::now();
    cubin = jit::compile(nvrtc(), recipe, save);
    seconds = seconds_since(begin);
    if (cache) cache->store(*cubin, recipe);
  }
  const std::lock_guard lock(mutex);
  stats.compiled += cubin->origin == Cubin::Origin::compiled ? 1 : 0;
  stats.from_cache += cubin->origin == Cubin::Origin::cache ? 1 : 0;
  stats.from_packs += cubin->origin == Cubin::Origin::pack ? 1 : 0;
  stats.compile_seconds += seconds;
  return std::make_shared<const Cubin>(*std::move(cubin));
}

Jit::Jit(JitOptions options, std::string target, LogFn log)
    : state_(std::make_unique<State>(std::move(options), std::move(target), std::move(log))) {}
Jit::~Jit() = default;

const JitOptions& Jit::options() const { return state_->options; }
const std::string& Jit::target() const { return state_->target; }
const Nvrtc& Jit::nvrtc() { return state_->nvrtc(); }

JitStats Jit::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

Recipe Jit::recipe(const KernelSource& kernel) const {
  KernelSource filled = kernel;
  if (filled.target.empty()) filled.target = state_->target;
  return make_recipe(std::move(filled), state_->options.nvrtc_options);
}

std::shared_ptr<const Cubin> Jit::compile(const KernelSource& kernel) { return compile_recipe(recipe(kernel)); }

std::shared_ptr<const Cubin> Jit::compile_recipe(const Recipe& recipe) {
  const std::string hash = recipe.hash();
  std::promise<SharedCubin> promise;
  std::shared_future<SharedCubin> other;
  {
    const std::lock_guard lock(state_->mutex);
    const auto [entry, is_new] = state_->kernels.try_emplace(hash);
    if (is_new) {
      entry->second = promise.get_future().share();
    } else {
      other = entry->second;
      ++state_->stats.from_memory;
    }
  }
  if (other.valid()) return other.get();
  try {
    SharedCubin cubin = state_->make(recipe);
    promise.set_value(cubin);
    return cubin;
  } catch (...) {
    // Those who wait get the failure; who asks later tries again, since NVRTC or a pack may have come meanwhile.
    promise.set_exception(std::current_exception());
    const std::lock_guard lock(state_->mutex);
    state_->kernels.erase(hash);
    throw;
  }
}

}  // namespace girih::jit
