// `girih cache`: what the disk cache of CUDA kernels holds, whether it is sound, and ways to make it smaller.
#include <fmt/format.h>

#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/error.h"
#include "jit/cache.h"
#include "jit/jit.h"
#include "tools/cli.h"

namespace girih::tools {
namespace {

using Json = nlohmann::ordered_json;

/// The cache of `--dir`, of the environment, or the default.
std::string cache_dir(const std::string& given) {
  std::string dir = given.empty() ? *jit::fill_from_environment({}, read_env()).cache_dir : given;
  if (dir.empty()) fail(Code::invalid_argument, "cache", "the cache is off (GIRIH_CACHE, or no home directory); name one with --dir");
  return dir;
}

std::string date_of(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm fields{};
  gmtime_r(&time, &fields);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}", fields.tm_year + 1900, fields.tm_mon + 1, fields.tm_mday, fields.tm_hour,
                     fields.tm_min);
}

void list(const std::string& dir, bool as_json) {
  const std::vector<jit::CacheItem> items = jit::list_cache(dir);
  Json rows = Json::array();
  std::int64_t bytes = 0;
  if (!as_json) fmt::print("{:>9}  {:<16}  {:<9} {:<6} {}\n", "bytes", "last used (UTC)", "target", "NVRTC", "kernel");
  for (const jit::CacheItem& item : items) {
    bytes += item.bytes;
    if (as_json) {
      Json row = {{"file", item.file}, {"bytes", item.bytes}, {"last_used", item.last_used}};
      if (item.entry) {
        const jit::Cubin& cubin = item.entry->cubin;
        row.update(
            {{"kernel", cubin.name}, {"target", cubin.target}, {"nvrtc", cubin.nvrtc_version}, {"registers", cubin.resources.registers}});
      } else {
        row["fault"] = item.fault;
      }
      rows.push_back(std::move(row));
    } else if (item.entry) {
      const jit::Cubin& cubin = item.entry->cubin;
      fmt::print("{:>9}  {:<16}  {:<9} {:<6} {}\n", item.bytes, date_of(item.last_used), cubin.target, cubin.nvrtc_version, cubin.name);
    } else {
      fmt::print("{:>9}  {:<16}  faulty: {}: {}\n", item.bytes, date_of(item.last_used), item.file, item.fault);
    }
  }
  if (as_json) {
    fmt::print("{}\n", Json{{"dir", dir}, {"bytes", bytes}, {"entries", rows}}.dump(1));
  } else {
    fmt::print("{} kernels, {} bytes in {}\n", items.size(), bytes, dir);
  }
}

/// True where every file is sound.
bool verify(const std::string& dir) {
  const std::vector<jit::CacheItem> items = jit::list_cache(dir);
  int faults = 0;
  for (const jit::CacheItem& item : items) {
    if (item.entry) continue;
    ++faults;
    fmt::print("{}: {}\n", item.file, item.fault);
  }
  fmt::print("{} kernels checked in {}, {} faulty\n", items.size(), dir, faults);
  return faults == 0;
}

void prune(const std::string& dir, std::int64_t max_bytes) {
  const jit::Pruned pruned = jit::prune_cache(dir, max_bytes);
  fmt::print("{} files removed, {} bytes freed in {}\n", pruned.files, pruned.bytes, dir);
}

}  // namespace

void add_cache_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("cache", "The disk cache of CUDA kernels: list, verify, prune, clear");
  command->require_subcommand(1);
  const auto dir = std::make_shared<std::string>();
  const auto add = [&](const char* name, const char* text) {
    CLI::App* sub = command->add_subcommand(name, text);
    sub->add_option("--dir", *dir, "The cache's directory; default: GIRIH_CACHE, or the user's");
    return sub;
  };
  const auto as_json = std::make_shared<bool>(false);
  CLI::App* list_command = add("list", "Kernels by name, with size, last use and faults");
  list_command->add_flag("--json", *as_json, "Print JSON");
  list_command->callback([=, &exit_code] {
    list(cache_dir(*dir), *as_json);
    exit_code = kOk;
  });
  add("verify", "Check every file; exit code 1 if one is faulty")->callback([=, &exit_code] {
    exit_code = verify(cache_dir(*dir)) ? kOk : kCheckFailed;
  });
  const auto max_bytes = std::make_shared<std::uint64_t>(0);
  CLI::App* prune_command = add("prune", "Remove faulty files, then what was not used for longest");
  prune_command->add_option("--max-size", *max_bytes, "What may remain: bytes, or with a unit (512MiB)")
      ->required()
      ->transform(CLI::AsSizeValue(false));
  prune_command->callback([=, &exit_code] {
    const std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    prune(cache_dir(*dir), static_cast<std::int64_t>(std::min(*max_bytes, most)));
    exit_code = kOk;
  });
  add("clear", "Remove every kernel")->callback([=, &exit_code] {
    prune(cache_dir(*dir), 0);
    exit_code = kOk;
  });
}

}  // namespace girih::tools
