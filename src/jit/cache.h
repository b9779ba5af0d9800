// The disk cache: one file a kernel, named by its key, published by rename. A file is believed only after its checksum, its recipe and
// its owner have been checked; anything else is a miss, so that neither crashes nor racing writers nor an older library can do harm, and
// no lock is needed. A directory that cannot be used is given up with one warning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "girih/context.h"
#include "jit/compiler.h"

namespace girih::jit {

/// A cubin with the recipe that made it, as one byte string: header {magic, version, length, checksum}, then length-prefixed fields.
std::string encode_entry(const Cubin& cubin, const Recipe& recipe);

struct Entry {
  Cubin cubin;
  std::string recipe_text;  // Recipe::text()
};
/// Empty where `bytes` is not a whole entry of this version; `why` then says what is wrong with it.
std::optional<Entry> decode_entry(std::string_view bytes, std::string* why = nullptr);

class DiskCache {
 public:
  /// Creates `dir` (0700) when first written. A directory that is not the caller's own, or that others may write, is not used.
  DiskCache(std::string dir, LogFn log);

  std::optional<Cubin> find(const Recipe& recipe, std::string_view nvrtc_version);
  void store(const Cubin& cubin, const Recipe& recipe);
  /// Saves the text of a kernel that does not compile; where: the cache, else the system's temporary directory. Empty if neither works.
  std::string save_failed_source(const std::string& key, std::string_view text);

  const std::string& dir() const { return dir_; }

 private:
  bool usable();
  void give_up(std::string_view reason);

  std::string dir_;
  LogFn log_;
  enum class State : std::uint8_t { unchecked, usable, read_only, off } state_ = State::unchecked;
};

/// What lies in a cache directory, for the command line.
struct CacheItem {
  std::string file;
  std::int64_t bytes = 0;
  std::int64_t used = 0;  // seconds since 1970 of the last use
  std::optional<Entry> entry;
  std::string fault;  // why there is no entry
};
/// Ordered by name of kernel, then target.
std::vector<CacheItem> list_cache(const std::string& dir);
/// Removes the oldest entries until at most `max_bytes` remain, and faulty and abandoned files. Returns bytes freed.
std::int64_t prune_cache(const std::string& dir, std::int64_t max_bytes);

}  // namespace girih::jit
