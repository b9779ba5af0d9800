// Result files of `girih bench`: JSON in one form for every operator (bench/README.md) and a page with a table.
#pragma once

#include <string>

#include "tools/bench.h"

namespace girih::tools {
nlohmann::ordered_json bench_json(const BenchResult& result);
/// A self-contained page: the machine and one table.
std::string bench_html(const BenchResult& result);
}  // namespace girih::tools
