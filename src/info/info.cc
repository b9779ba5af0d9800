// See info.h.
#include "info/info.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "girih/error.h"
#include "girih/version.h"
#include "jit/cache.h"
#include "jit/jit.h"
#include "jit/nvrtc.h"
#include "jit/pack.h"
#include "jit/sources.h"

namespace girih {
namespace {

DriverFacts driver_facts() {
  DriverFacts facts;
  try {
    const std::shared_ptr<const cuda::Driver> driver = cuda::Driver::load();
    for (int device = 0; device < driver->num_devices(); ++device) facts.gpus.push_back(driver->device_info(device));
    facts.cuda = fmt::format("{}.{}", driver->version() / 1000, driver->version() % 1000 / 10);
  } catch (const Error& error) {
    return {.cuda = {}, .missing = error.what(), .gpus = {}};
  }
  return facts;
}

NvrtcFacts nvrtc_facts(const JitOptions& options) {
  try {
    const std::shared_ptr<const jit::Nvrtc> nvrtc = jit::Nvrtc::load({*options.nvrtc, virtual_environment()});
    return {.version = nvrtc->version(), .path = nvrtc->path(), .archs = nvrtc->archs(), .missing = {}};
  } catch (const Error& error) {
    return {.version = {}, .path = {}, .archs = {}, .missing = error.what()};
  }
}

CacheFacts cache_facts(const JitOptions& options) {
  CacheFacts facts;
  facts.dir = *options.cache_dir;
  if (facts.dir.empty()) return facts;
  try {
    for (const jit::CacheItem& item : jit::list_cache(facts.dir)) {
      facts.kernels += item.entry ? 1 : 0;
      facts.faulty += item.entry ? 0 : 1;
      facts.bytes += item.bytes;
    }
  } catch (const Error& error) {
    return {.dir = facts.dir, .fault = error.what()};
  }
  std::error_code error;
  if (!std::filesystem::exists(facts.dir, error)) return facts;  // it is made when there is something to keep
  if (const std::string fault = fault_of_own_dir(facts.dir); !fault.empty())
    facts.fault = fmt::format("{}: {}; not used", facts.dir, fault);
  return facts;
}

PackFacts pack_facts(const std::string& dir) {
  try {
    const jit::Pack pack(dir);
    return {.dir = dir,
            .kernels = std::ssize(pack.items()),
            .nvrtc = pack.nvrtc_version(),
            .usable = pack.bundle() == jit::bundle_hash(),
            .fault = {}};
  } catch (const Error& error) {
    return {.dir = dir, .fault = error.what()};
  }
}

}  // namespace

Facts collect_facts() {
  const JitOptions options = jit::fill_from_environment({}, read_env());
  const Context context;
  Facts facts;
  facts.version = kVersion;
  facts.cpu = cpu_info();
  facts.targets = available_cpu_targets();
  facts.target = context.cpu_target();
  facts.workers = context.num_workers();
  facts.attention = attention_capabilities();
  facts.driver = driver_facts();
  facts.nvrtc = nvrtc_facts(options);
  facts.policy = *options.policy;
  facts.bundle = jit::bundle_hash();
  facts.num_texts = std::ssize(jit::embedded_sources());
  facts.cache = cache_facts(options);
  for (const std::string& dir : *options.packs) facts.packs.push_back(pack_facts(dir));
  facts.environment = env_variables();
  return facts;
}

}  // namespace girih
