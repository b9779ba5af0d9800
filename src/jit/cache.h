// The disk cache: one file a kernel, named by its key, published by rename. A file is believed only after its checksum, its recipe and
// its owner have been checked; anything else is a miss, so that neither crashes nor racing writers nor an older library can do harm, and
// no lock is needed. A directory that cannot be used is given up with one warning.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "girih/context.h"
#include "jit/entry.h"

namespace girih::jit {

inline constexpr std::string_view kEntrySuffix = ".kernel";
inline constexpr std::string_view kFailedDir = "failed";  // sources that did not compile
inline constexpr std::int64_t kMaxEntryBytes = std::int64_t{1} << 28;

/// Thread-safe.
class DiskCache {
 public:
  /// `dir` is created (0700) by the first store(). One that is not this user's own, or that others may write, is not used.
  DiskCache(std::string dir, LogFn log);

  std::optional<Cubin> find(const Recipe& recipe, std::string_view nvrtc_version);
  void store(const Cubin& cubin, const Recipe& recipe);
  /// Saves the text of a kernel that does not compile. Returns its path, or nothing where that does not work.
  std::string save_failed(const std::string& key, std::string_view source);

  const std::string& dir() const { return dir_; }

 private:
  enum class State : std::uint8_t { unchecked, usable, read_only, unusable };

  /// Creates the directory where `create`; unchecked where there is none.
  State state(bool create);
  void give_up(State state, std::string_view reason);

  const std::string dir_;
  const LogFn log_;
  std::mutex mutex_;
  State state_ = State::unchecked;
};

// ---- maintenance, for the command line

struct CacheItem {
  std::string file;  // its name in the directory
  std::int64_t bytes = 0;
  std::int64_t last_used = 0;  // seconds since 1970, to about an hour
  std::optional<Entry> entry;
  std::string fault;  // why there is no entry
};
/// Reads and checks every entry. By name of the kernel, target, file. Throws io where the directory exists and cannot be read.
std::vector<CacheItem> list_cache(const std::string& dir);

struct Pruned {
  std::int64_t files = 0;
  std::int64_t bytes = 0;
};
/// Removes faulty entries, saved sources, files of writers that died, and then the entries that have not been used for longest until at
/// most `max_bytes` are left. Touches only names that a cache gives to files.
Pruned prune_cache(const std::string& dir, std::int64_t max_bytes);

}  // namespace girih::jit
