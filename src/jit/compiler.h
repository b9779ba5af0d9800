// One kernel's way to a cubin: its source, the compiler's options, the key that names the result, and the resources read back from the
// compiler's report. Pure but for NVRTC itself: no files, no cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "girih/jit.h"
#include "jit/nvrtc.h"

namespace girih::jit {

/// What is compiled. Everything that makes two kernels differ is in the text.
struct KernelSource {
  std::string name;    // the extern "C" entry
  std::string source;  // about ten lines around an include of an embedded text
  std::string target;  // "sm_90a" (cubin) or "compute_75" (PTX, compiled by the driver); empty = what the Jit was made for
  int weight = 0;      // how long it compiles, in units of the caller's: a warm-up begins with the heaviest
};

/// A kernel's cost on the device, as the assembler reports it. All zero for PTX, which the driver assembles.
struct Resources {
  int registers = 0;              // a thread
  std::int64_t spill_stores = 0;  // bytes a thread
  std::int64_t spill_loads = 0;
  std::int64_t stack_bytes = 0;    // a thread
  std::int64_t static_shared = 0;  // a block
  int barriers = 0;                // named barriers of a block
};

/// Everything that decides the bytes of an image, but for the compiler: source, embedded texts, options, target. Its hash finds a kernel
/// in a pack; together with the NVRTC version it is the key of the cache. Paths, times and the environment are no part of it.
struct Recipe {
  KernelSource kernel;               // target filled in
  std::vector<std::string> options;  // sorted
  std::string bundle;                // bundle_hash()

  /// The canonical text that is hashed.
  std::string text() const;
  std::string hash() const;                               // 32 hexadecimal digits
  std::string key(std::string_view nvrtc_version) const;  // likewise
};

/// Recipe::key() of a recipe's text.
std::string recipe_key(std::string_view recipe_text, std::string_view nvrtc_version);

/// Adds the options every kernel is compiled with to `extra` (more of NVRTC's, e.g. "--generate-line-info"). Throws invalid_argument for a
/// name that is no identifier, a target that is no architecture, an option that is not one.
Recipe make_recipe(KernelSource kernel, const std::vector<std::string>& extra = {});

bool is_ptx(std::string_view target);

/// A compiled kernel.
struct Cubin {
  using Origin = KernelOrigin;
  std::string name;  // the entry
  std::string target;
  std::string key;            // hash of recipe and NVRTC version
  std::string nvrtc_version;  // that made it
  std::string image;          // ELF, or PTX with its NUL
  std::string log;            // the compiler's
  Resources resources;
  Origin origin = Origin::compiled;
};

/// Writes a kernel's text somewhere and says where; empty = nowhere.
using SaveSource = std::function<std::string(const std::string& key, std::string_view text)>;
/// Throws internal where the kernel does not compile, with its key, options, NVRTC's first message and where `save` put the source;
/// unsupported where this NVRTC does not know the target.
Cubin compile(const Nvrtc& nvrtc, const Recipe& recipe, const SaveSource& save = {});

/// Reads the assembler's lines of `log`; zeros where it has none.
Resources parse_resources(std::string_view log);

}  // namespace girih::jit
