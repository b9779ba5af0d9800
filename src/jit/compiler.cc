// See compiler.h. The assembler is asked for its report (-v); its lines are kept with the cubin, without those that say how long it took,
// so that equal recipes give equal bytes.
#include "jit/compiler.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/hash.h"
#include "jit/sources.h"

namespace girih::jit {
namespace {

/// Calls f for each line, without its line break.
template <typename F>
void for_each_line(std::string_view text, F&& f) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    f(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// The number that stands before `unit` in `line`: 24 in "Used 24 registers" for " registers". 0 where there is none.
std::int64_t number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  std::int64_t value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

std::string without_times(std::string_view log) {
  std::string kept;
  for_each_line(log, [&](std::string_view line) {
    if (line.empty() || line.find("Compile time = ") != std::string_view::npos) return;
    kept += line;
    kept += '\n';
  });
  return kept;
}

/// The first line of the log that names an error, else its first line.
std::string first_message(std::string_view log) {
  std::string_view first;
  std::string_view error;
  for_each_line(log, [&](std::string_view line) {
    if (first.empty()) first = line;
    if (error.empty() && line.find("error") != std::string_view::npos) error = line;
  });
  return std::string(error.empty() ? first : error);
}

struct Position {
  std::string_view file;
  std::int64_t line = 0;  // 0: not in a text of the caller's
};
/// Where in a text of the caller's the message "FILE(LINE): ..." is: such texts begin with a `#line 1 "FILE"` in the source.
Position callers_line(std::string_view message, std::string_view source) {
  const std::size_t open = message.find('(');
  if (open == std::string_view::npos) return {};
  const std::string_view file = message.substr(0, open);
  if (source.find(fmt::format("#line 1 \"{}\"\n", file)) == std::string_view::npos) return {};
  Position at{file};
  std::from_chars(message.data() + open + 1, message.data() + message.size(), at.line);
  return at;
}

/// 90 of "sm_90a" and "compute_90"; throws invalid_argument for what names no architecture.
int arch_of(std::string_view target) {
  std::string_view digits = target;
  for (const std::string_view prefix : {"sm_", "compute_"}) {
    if (digits.starts_with(prefix)) digits.remove_prefix(prefix.size());
  }
  if (!digits.empty() && (digits.back() == 'a' || digits.back() == 'f')) digits.remove_suffix(1);
  int arch = 0;
  const std::from_chars_result result = std::from_chars(digits.data(), digits.data() + digits.size(), arch);
  if (digits.size() == target.size() || result.ec != std::errc() || result.ptr != digits.data() + digits.size()) {
    fail(Code::invalid_argument, "jit", "target=\"{}\"; must be like sm_80, sm_90a or compute_80", target);
  }
  return arch;
}

void check_target(const Nvrtc& nvrtc, std::string_view target) {
  const int arch = arch_of(target);
  const std::vector<int>& known = nvrtc.archs();
  if (std::binary_search(known.begin(), known.end(), arch)) return;
  fail(Code::unsupported, "jit", "target={}: NVRTC {} ({}) compiles for compute capabilities {}; use one that knows {}", target,
       nvrtc.version(), nvrtc.path(), fmt::join(known, " "), arch);
}

}  // namespace

bool is_ptx(std::string_view target) { return target.starts_with("compute_"); }

Recipe make_recipe(KernelSource kernel, const std::vector<std::string>& extra) {
  arch_of(kernel.target);
  const auto is_word = [](char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (kernel.name.empty() || !std::all_of(kernel.name.begin(), kernel.name.end(), is_word)) {
    fail(Code::invalid_argument, "jit", "kernel name \"{}\"; must be an identifier: letters, digits, underscores", kernel.name);
  }
  for (const std::string& option : extra) {
    // Two options in one would read as one of another recipe.
    if (option.find('\n') == std::string::npos && option.starts_with('-')) continue;
    fail(Code::invalid_argument, "jit", "nvrtc_options: \"{}\"; must be one option, starting with '-'", option);
  }
  Recipe recipe;
  recipe.options = {"--gpu-architecture=" + kernel.target, "--std=c++20", "--device-as-default-execution-space", "--ptxas-options=-v"};
  recipe.options.insert(recipe.options.end(), extra.begin(), extra.end());
  std::sort(recipe.options.begin(), recipe.options.end());
  recipe.kernel = std::move(kernel);
  recipe.bundle = bundle_hash();
  return recipe;
}

std::string Recipe::text() const {
  std::string text = fmt::format("kernel {}\ntarget {}\nbundle {}\n", kernel.name, kernel.target, bundle);
  for (const std::string& option : options) text += fmt::format("option {}\n", option);
  text += fmt::format("source {}\n", kernel.source.size());
  text += kernel.source;
  return text;
}

std::string Recipe::hash() const { return hash_text(text()); }
std::string Recipe::key(std::string_view nvrtc_version) const { return recipe_key(text(), nvrtc_version); }
std::string recipe_key(std::string_view recipe_text, std::string_view nvrtc_version) {
  return hash_text(fmt::format("nvrtc {}\n{}", nvrtc_version, recipe_text));
}

Resources parse_resources(std::string_view log) {
  Resources resources;
  for_each_line(log, [&](std::string_view line) {
    if (line.find("spill stores") != std::string_view::npos) {
      resources.stack_bytes += number_before(line, " bytes stack frame");
      resources.spill_stores += number_before(line, " bytes spill stores");
      resources.spill_loads += number_before(line, " bytes spill loads");
    } else if (line.find("Used ") != std::string_view::npos) {
      resources.registers = std::max(resources.registers, static_cast<int>(number_before(line, " registers")));
      resources.barriers = std::max(resources.barriers, static_cast<int>(number_before(line, " barriers")));
      resources.static_shared += number_before(line, " bytes smem");
    }
  });
  return resources;
}

Cubin compile(const Nvrtc& nvrtc, const Recipe& recipe, const SaveSource& save) {
  const KernelSource& kernel = recipe.kernel;
  check_target(nvrtc, kernel.target);
  NvrtcResult result = nvrtc.compile(kernel.source, kernel.name + ".cu", recipe.options, is_ptx(kernel.target));
  Cubin cubin;
  cubin.key = recipe.key(nvrtc.version());
  if (!result.ok) {
    const std::string message = first_message(result.log);
    if (const auto [name, line] = callers_line(message, kernel.source); line > 0) {
      fail(Code::invalid_argument, "variant", "CUDA text \"{}\" does not compile, line {}: {} (kernel {}, NVRTC {})", name, line,
           message.substr(std::min(message.size(), message.find("): ") + 3)), kernel.name, nvrtc.version());
    }
    const std::string saved = save ? save(cubin.key, kernel.source) : std::string();
    fail(Code::internal, "jit", "kernel {} does not compile: {}; key {}; NVRTC {} with options {}; its source {}", kernel.name,
         message.empty() ? result.error : message, cubin.key, nvrtc.version(), fmt::join(recipe.options, " "),
         saved.empty() ? "could not be saved" : "is saved as " + saved);
  }
  cubin.name = kernel.name;
  cubin.target = kernel.target;
  cubin.nvrtc_version = nvrtc.version();
  cubin.image = std::move(result.image);
  cubin.log = without_times(result.log);
  cubin.resources = parse_resources(cubin.log);
  return cubin;
}

}  // namespace girih::jit
