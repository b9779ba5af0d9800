// See measure.h.
#include "kernel_resources/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/math.h"
#include "cuda/driver.h"
#include "jit/jit.h"
#include "jit/sources.h"

namespace girih::kernel_resources {
namespace {

/// Adds the embedded texts that `text` includes, and those that they include.
void add_includes(std::string_view text, std::set<std::string_view>& names) {
  constexpr std::string_view kInclude = "#include ";
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at + 1)) {
    const std::string_view rest = text.substr(at + kInclude.size());
    const std::string_view name = rest.substr(1, rest.find_first_of(">\"", 1) - 1);
    for (const jit::EmbeddedSource& embedded : jit::embedded_sources()) {
      if (embedded.name == name && names.insert(embedded.name).second) add_includes(embedded.text, names);
    }
  }
}

/// Hash of everything that decides the compiler's report.
std::string content_of(const jit::Recipe& recipe, const std::string& version) {
  std::set<std::string_view> names;
  add_includes(recipe.kernel.source, names);
  std::string content = fmt::format("nvrtc {}\n{}\n", version, fmt::join(recipe.options, "\n"));
  for (const jit::EmbeddedSource& embedded : jit::embedded_sources()) {
    if (names.contains(embedded.name)) content += fmt::format("{} {}\n{}", embedded.name, embedded.text.size(), embedded.text);
  }
  return hash_text(content + recipe.kernel.source);
}

/// As the compiler writes it into PTX: "Cuda compilation tools, release 13.0, V13.0.88".
std::string exact_version(const jit::Nvrtc& nvrtc) {
  const jit::Cubin ptx = jit::compile(nvrtc, jit::make_recipe({"nothing", "extern \"C\" __global__ void nothing() {}", "compute_75"}));
  const std::size_t at = ptx.image.find(", V");
  if (at == std::string::npos) return nvrtc.version();
  const std::string_view rest = std::string_view(ptx.image).substr(at + 3);
  return std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
}

}  // namespace

Meter::Meter(std::string cache_dir) : cache_dir_(std::move(cache_dir)) {
  make_dir(cache_dir_, Readers::everyone);
  nvrtc_ = jit::Nvrtc::load({read_env().nvrtc.value_or(""), virtual_environment()});
  version_ = exact_version(*nvrtc_);
}

Measured Meter::measure(const ListedKernel& kernel) const {
  const jit::Recipe recipe = jit::make_recipe(kernel.source);
  const std::string key = content_of(recipe, version_);
  Measured m;
  std::ifstream kept(std::filesystem::path(cache_dir_) / key);
  if (!(kept >> m.registers >> m.stack >> m.spill_stores >> m.spill_loads >> m.static_shared)) {
    const jit::Resources r = jit::compile(*nvrtc_, recipe).resources;
    m = {.registers = r.registers,
         .stack = r.stack_bytes,
         .spill_stores = r.spill_stores,
         .spill_loads = r.spill_loads,
         .static_shared = r.static_shared};
    publish_file(cache_dir_, key, fmt::format("{} {} {} {} {}\n", m.registers, m.stack, m.spill_stores, m.spill_loads, m.static_shared),
                 Readers::everyone);
  }
  m.shared = kernel.shared_bytes;
  return m;
}

std::string limit_fault(const ListedKernel& kernel, const Measured& measured) {
  constexpr std::int64_t kRegistersPerSm = 65536;
  constexpr std::int64_t kReservedPerBlock = 1024;
  const cuda::DeviceInfo device = cuda::example_device(kernel.arch);
  if (measured.registers == 0) return "the compiler's report names no registers";
  if (measured.static_shared != 0)
    return fmt::format("{} bytes of static shared memory; kernels have dynamic only", measured.static_shared);
  if (measured.shared > device.shared_per_block)
    return fmt::format("{} bytes of shared memory a block; at most {}", measured.shared, device.shared_per_block);
  if (kernel.blocks_per_sm * (measured.shared + kReservedPerBlock) > device.shared_per_sm)
    return fmt::format("{} blocks of {} bytes do not fit a multiprocessor's {}", kernel.blocks_per_sm, measured.shared,
                       device.shared_per_sm);
  const std::int64_t registers = round_up(measured.registers, 8) * kernel.num_threads * kernel.blocks_per_sm;
  if (registers > kRegistersPerSm)
    return fmt::format("{} blocks need {} registers; a multiprocessor has {}", kernel.blocks_per_sm, registers, kRegistersPerSm);
  return {};
}

}  // namespace girih::kernel_resources
