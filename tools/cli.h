// The command-line tool: one function per subcommand, each adding itself to the CLI11 app and running in its callback.
// A callback reports through `exit_code` or throws; main() turns girih::Error into one line on stderr.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "tools/batch_json.h"

namespace girih::tools {

/// What the process returns. The same numbers are in `girih --help`.
enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,  // a verification that was asked for found a difference
  kUsage = 2,        // the command line, or a value on it, is wrong or not supported
  kBadInput = 3,     // an input file cannot be read or parsed
  kRuntimeError = 4,
  kInterrupted = 130,
};

/// Makes the batch of one step of a trace.
using TraceStep = std::function<OwnedBatch(const std::string& file, std::int64_t step)>;
/// Calls of operator new so far in this process. Counted by the executable (allocations.cc), so that tests keep the normal one.
using AllocationCount = std::int64_t (*)();

void add_info_command(CLI::App& app, int& exit_code);
void add_compile_command(CLI::App& app, int& exit_code);
void add_source_command(CLI::App& app, int& exit_code);
void add_cache_command(CLI::App& app, int& exit_code);
void add_pack_command(CLI::App& app, int& exit_code);
/// `trace_step` empty: there are no --trace and --step options.
void add_plan_command(CLI::App& app, int& exit_code, const TraceStep& trace_step = {});
void add_bench_command(CLI::App& app, int& exit_code, AllocationCount allocation_count);

}  // namespace girih::tools
