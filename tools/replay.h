// `girih replay`: options, progress, interrupt, output. The work is in replay_engine.h.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace girih::tools {

void add_replay_command(CLI::App& app, int& exit_code);

/// A size of --kv-pool: "64k" or "100000" tokens, "512MiB", "2GB" or "4096B" bytes.
struct PoolSize {
  std::int64_t value = 0;
  bool in_bytes = false;
};
/// Throws invalid_argument.
PoolSize parse_pool_size(const std::string& text);

}  // namespace girih::tools
