// See pack.h. The manifest is lines of words:
//   girih-pack 1
//   nvrtc VERSION
//   bundle HASH
//   kernel RECIPE NAME TARGET FILE HASH BYTES
#include "jit/pack.h"

#include <charconv>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "jit/entry.h"

namespace girih::jit {
namespace {

namespace fs = std::filesystem;
constexpr const char* kManifest = "manifest";
constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 26;

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    words.emplace_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

}  // namespace

Pack::Pack(std::string dir) : dir_(std::move(dir)) {
  const std::string path = fmt::format("{}/{}", dir_, kManifest);
  const std::string text = read_file(path, kMaxManifestBytes);
  int line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    ++line_number;
    const auto refuse = [&](std::string_view rule) { fail(Code::io, fmt::format("{}:{}", path, line_number), "{}", rule); };
    if (end == std::string::npos) refuse("ends within a line");
    const std::vector<std::string> words = words_of(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (line_number == 1) {
      if (words != std::vector<std::string>{"girih-pack", "1"}) refuse("must be `girih-pack 1`");
    } else if (words.size() == 2 && words[0] == "nvrtc") {
      nvrtc_version_ = words[1];
    } else if (words.size() == 2 && words[0] == "bundle") {
      bundle_ = words[1];
    } else if (words.size() == 7 && words[0] == "kernel") {
      PackItem item = {words[1], words[2], words[3], words[4], words[5], 0};
      const std::string& bytes = words[6];
      const std::from_chars_result number = std::from_chars(bytes.data(), bytes.data() + bytes.size(), item.bytes);
      if (number.ec != std::errc() || number.ptr != bytes.data() + bytes.size()) refuse("the size is not a number");
      if (item.file.find('/') != std::string::npos || item.file.starts_with('.')) refuse("the file must lie in the pack's directory");
      if (!by_recipe_.emplace(item.recipe, items_.size()).second) refuse("this recipe was listed before");
      items_.push_back(std::move(item));
    } else {
      refuse("must be `nvrtc VERSION`, `bundle HASH` or `kernel RECIPE NAME TARGET FILE HASH BYTES`");
    }
  }
  if (line_number == 0) fail(Code::io, path, "is empty; must begin with `girih-pack 1`");
}

std::optional<Cubin> Pack::find(const Recipe& recipe) const {
  const auto found = by_recipe_.find(recipe.hash());
  if (found == by_recipe_.end()) return std::nullopt;
  const PackItem& item = items_[found->second];
  const std::string path = fmt::format("{}/{}", dir_, item.file);
  const std::string bytes = read_file(path);
  if (hash_text(bytes) != item.hash) fail(Code::io, path, "differs from what the pack's manifest says; build or copy the pack anew");
  std::string why;
  std::optional<Entry> entry = decode_entry(bytes, why);
  if (!entry) fail(Code::io, path, "{}; build the pack anew", why);
  if (entry->recipe_text != recipe.text()) fail(Code::io, path, "holds another kernel than the pack's manifest says; build the pack anew");
  entry->cubin.origin = Cubin::Origin::pack;
  return std::move(entry->cubin);
}

void build_pack(const std::string& dir, std::span<const PackEntry> entries) {
  make_dir(dir, Readers::everyone);
  std::error_code error;
  if (fs::exists(fs::path(dir) / kManifest, error)) fail(Code::io, dir, "holds a pack already; remove it or name another directory");
  if (entries.empty()) fail(Code::invalid_argument, "pack", "no kernels; a pack needs at least one");
  std::string manifest =
      fmt::format("girih-pack 1\nnvrtc {}\nbundle {}\n", entries.front().cubin.nvrtc_version, entries.front().recipe.bundle);
  std::set<std::string> seen;
  for (const PackEntry& entry : entries) {
    const std::string recipe = entry.recipe.hash();
    if (!seen.insert(recipe).second) continue;
    const std::string file = recipe + ".kernel";
    const std::string bytes = encode_entry(entry.cubin, entry.recipe);
    publish_file(dir, file, bytes, Readers::everyone);
    manifest +=
        fmt::format("kernel {} {} {} {} {} {}\n", recipe, entry.cubin.name, entry.cubin.target, file, hash_text(bytes), bytes.size());
  }
  publish_file(dir, kManifest, manifest, Readers::everyone);
}

}  // namespace girih::jit
