// Packs: directories of prebuilt cubins with a manifest, read-only, for machines without NVRTC or where nothing may be compiled.
// The manifest lists each kernel's recipe hash, name, target, file and the file's hash; it is read when the pack is opened, a kernel's
// file when it is asked for. A pack may hold kernels for many architectures.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/compiler.h"

namespace girih::jit {

struct PackItem {
  std::string recipe;  // Recipe::hash()
  std::string name;
  std::string target;
  std::string file;  // in the pack's directory
  std::string hash;  // of the file's bytes
  std::int64_t bytes = 0;
};

class Pack {
 public:
  /// Reads the manifest. Throws io, naming the line, where there is none or it is malformed.
  explicit Pack(std::string dir);

  const std::string& dir() const { return dir_; }
  const std::string& nvrtc_version() const { return nvrtc_version_; }
  const std::string& bundle() const { return bundle_; }
  const std::vector<PackItem>& items() const { return items_; }
  /// Throws io where the file does not match the manifest: a damaged pack is not silently compiled around.
  std::optional<Cubin> find(const Recipe& recipe) const;

 private:
  std::string dir_;
  std::string nvrtc_version_;
  std::string bundle_;
  std::vector<PackItem> items_;
  std::map<std::string, std::size_t> by_recipe_;
};

struct PackEntry {
  Recipe recipe;
  Cubin cubin;
};
/// Writes a new pack into `dir`, which must not hold one. The manifest is written last.
void build_pack(const std::string& dir, std::span<const PackEntry> entries);

}  // namespace girih::jit
