// See cache.h. What decides is checked on the open descriptor (base/file.h); what cannot be read is a miss and is written anew.
#include "jit/cache.h"

#include <sys/stat.h>
#include <utime.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace girih::jit {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kHour = 3600;

std::string file_name(std::string_view key) { return fmt::format("{}{}", key, kEntrySuffix); }

/// Notes that `path` was used, for prune_cache(): at most once an hour, and no matter if that fails.
void touch(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0 && facts.st_mtime + kHour < std::time(nullptr)) ::utime(path.c_str(), nullptr);
}

}  // namespace

DiskCache::DiskCache(std::string dir, LogFn log) : dir_(std::move(dir)), log_(std::move(log)) {}

void DiskCache::give_up(State state, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::unusable || state_ == state) return;  // one warning
  state_ = state;
  if (!log_) return;
  log_(LogLevel::warning, fmt::format("kernel cache {}: {}; kernels compiled by this process are kept in memory only", dir_, reason));
}

DiskCache::State DiskCache::state(bool create) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::unchecked) return state_;
  }
  std::error_code error;
  if (!create && !fs::exists(dir_, error) && !error) return State::unchecked;
  try {
    if (create) make_dir(dir_);
  } catch (const Error& fault) {
    give_up(State::unusable, fault.what());
    return State::unusable;
  }
  if (const std::string fault = fault_of_own_dir(dir_); !fault.empty()) {
    give_up(State::unusable, fault);
    return State::unusable;
  }
  const std::lock_guard lock(mutex_);
  if (state_ == State::unchecked) state_ = State::usable;
  return state_;
}

std::optional<Cubin> DiskCache::find(const Recipe& recipe, std::string_view nvrtc_version) {
  const State now = state(false);
  if (now == State::unchecked || now == State::unusable) return std::nullopt;
  const std::string path = fmt::format("{}/{}", dir_, file_name(recipe.key(nvrtc_version)));
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return std::nullopt;
  std::string why;
  try {
    std::optional<Entry> entry = decode_entry(read_own_file(path, kMaxEntryBytes), why);
    if (entry && (entry->recipe_text != recipe.text() || entry->cubin.nvrtc_version != nvrtc_version)) {
      why = "holds another kernel";
      entry.reset();
    }
    if (entry) {
      touch(path);
      entry->cubin.origin = Cubin::Origin::cache;
      return std::move(entry->cubin);
    }
    why = fmt::format("{}: {}", path, why);
  } catch (const Error& fault) {
    why = fault.what();
  }
  if (log_) log_(LogLevel::info, fmt::format("kernel cache: {}; not used", why));
  return std::nullopt;
}

void DiskCache::store(const Cubin& cubin, const Recipe& recipe) {
  if (state(true) != State::usable) return;
  try {
    publish_file(dir_, file_name(cubin.key), encode_entry(cubin, recipe));
  } catch (const Error& fault) {
    give_up(State::read_only, fault.what());
  }
}

std::string DiskCache::save_failed(const std::string& key, std::string_view source) {
  if (state(true) != State::usable) return {};
  const std::string dir = fmt::format("{}/{}", dir_, kFailedDir);
  try {
    make_dir(dir);
    publish_file(dir, key + ".cu", source);
    return fmt::format("{}/{}.cu", dir, key);
  } catch (const Error&) {
    return {};
  }
}

std::vector<CacheItem> list_cache(const std::string& dir) {
  std::vector<CacheItem> items;
  std::error_code error;
  if (!fs::exists(dir, error)) return items;
  for (fs::directory_iterator file(dir, error); !error && file != fs::directory_iterator(); file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (!name.ends_with(kEntrySuffix)) continue;
    CacheItem item;
    item.file = name;
    struct stat facts {};
    if (::lstat(file->path().c_str(), &facts) != 0) continue;  // just removed
    item.bytes = facts.st_size;
    item.last_used = facts.st_mtime;
    try {
      item.entry = decode_entry(read_own_file(file->path().string(), kMaxEntryBytes), item.fault);
      if (item.entry && file_name(item.entry->cubin.key) != name) {
        item.entry.reset();
        item.fault = "is named unlike its key";
      }
    } catch (const Error& fault) {
      item.fault = fault.what();
    }
    items.push_back(std::move(item));
  }
  if (error) fail(Code::io, dir, "cannot be read: {}", error.message());
  const auto order = [](const CacheItem& item) {
    return std::tuple<std::string_view, std::string_view, std::string_view>(
        item.entry ? std::string_view(item.entry->cubin.name) : std::string_view(),
        item.entry ? std::string_view(item.entry->cubin.target) : std::string_view(), item.file);
  };
  std::sort(items.begin(), items.end(), [&](const CacheItem& a, const CacheItem& b) { return order(a) < order(b); });
  return items;
}

Pruned prune_cache(const std::string& dir, std::int64_t max_bytes) {
  Pruned pruned;
  std::error_code error;
  const auto remove = [&](const fs::path& path, std::int64_t bytes) {
    if (!fs::remove(path, error)) return;
    ++pruned.files;
    pruned.bytes += bytes;
  };
  const auto remove_all = [&](const fs::path& folder, auto&& wanted) {
    std::vector<fs::path> found;
    for (fs::directory_iterator file(folder, error); !error && file != fs::directory_iterator(); file.increment(error)) {
      if (wanted(file->path())) found.push_back(file->path());
    }
    for (const fs::path& path : found) {
      struct stat facts {};
      if (::lstat(path.c_str(), &facts) == 0) remove(path, facts.st_size);
    }
  };
  // A writer that lives needs seconds, not an hour.
  remove_all(dir, [](const fs::path& path) {
    struct stat facts {};
    return path.filename().string().starts_with(kTemporaryPrefix) && ::lstat(path.c_str(), &facts) == 0 &&
           facts.st_mtime + kHour < std::time(nullptr);
  });
  const fs::path failed = fs::path(dir) / kFailedDir;
  if (fs::is_directory(fs::symlink_status(failed, error))) {
    remove_all(failed, [](const fs::path& path) { return path.extension() == ".cu"; });
    fs::remove(failed, error);  // only where empty
  }
  std::vector<CacheItem> items = list_cache(dir);
  std::sort(items.begin(), items.end(), [](const CacheItem& a, const CacheItem& b) {
    return std::tuple(a.entry.has_value(), a.last_used, a.file) < std::tuple(b.entry.has_value(), b.last_used, b.file);
  });
  std::int64_t total = 0;
  for (const CacheItem& item : items) total += item.bytes;
  for (const CacheItem& item : items) {
    if (item.entry && total <= max_bytes) break;
    remove(fs::path(dir) / item.file, item.bytes);
    total -= item.bytes;
  }
  return pruned;
}

}  // namespace girih::jit
