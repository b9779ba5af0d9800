// girih: the command-line tool. This file only collects the subcommands and turns exceptions into exit codes; see cli.h.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "girih/error.h"
#include "girih/version.h"
#include "tools/allocations.h"
#include "tools/cli.h"
#include "tools/replay.h"
#include "tools/trace_step.h"

namespace girih::tools {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 a check failed, 2 usage, 3 bad input file, 4 runtime error, 130 interrupted.\n"
    "`girih COMMAND --help` describes a command.";

/// One line on stderr, whatever line breaks the text has.
int complain(int exit_code, std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  fmt::print(stderr, "girih: {}\n", text);
  return exit_code;
}

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case Code::invalid_argument:
    case Code::unsupported: return kUsage;
    case Code::io: return kBadInput;
    default: return kRuntimeError;
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Attention for LLM inference: schedule, plan and run over any KV layout."};
  app.name("girih");
  app.set_version_flag("--version", std::string("girih ") + kVersion);
  app.footer(kFooter);
  app.require_subcommand(1);
  int exit_code = kOk;
  add_info_command(app, exit_code);
  add_plan_command(app, exit_code, &batch_of_trace_step);
  add_bench_command(app, exit_code, &allocation_count);
  add_replay_command(app, exit_code);
  add_compile_command(app, exit_code);
  add_source_command(app, exit_code);
  add_cache_command(app, exit_code);
  add_pack_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::vector<std::string> words = app.remaining();
    const bool unknown = app.get_subcommands().empty() && !words.empty();
    const std::string fault = unknown ? fmt::format("there is no command '{}'", words.front()) : error.what();
    return complain(kUsage, fmt::format("{} (--help tells what there is)", fault));
  }
  return exit_code;
}

int run_or_complain(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return complain(exit_code_of(error), error.what());
  } catch (const std::bad_alloc&) {
    return complain(kRuntimeError, "out of memory");
  } catch (const std::exception& error) {
    return complain(kRuntimeError, error.what());
  }
}

}  // namespace
}  // namespace girih::tools

int main(int argc, char** argv) { return girih::tools::run_or_complain(argc, argv); }
