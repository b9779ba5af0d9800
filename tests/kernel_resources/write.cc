// girih_kernel_resources [--all | --only TEXT] RECORD CACHE: measures the listed kernels and renews the record, reasons kept. Prints what
// changed. --all measures those as well that the record leaves out, for their limits and local memory; of these only lines with local
// memory are recorded. --only keeps the lines of kernels without TEXT in their name as they are. Exit code 1 where a kernel does not
// compile, exceeds a limit, or uses local memory without a reason.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "kernel_resources/list.h"
#include "kernel_resources/measure.h"
#include "kernel_resources/record.h"

namespace girih::kernel_resources {
namespace {

struct Result {
  Measured measured;
  std::string fault;
};

std::vector<Result> measure_all(const Meter& meter, const std::vector<ListedKernel>& kernels) {
  std::vector<Result> results(kernels.size());
  std::atomic<std::size_t> next = 0;
  std::mutex output;
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < kernels.size(); i = next++) {
        try {
          results[i].measured = meter.measure(kernels[i]);
          results[i].fault = limit_fault(kernels[i], results[i].measured);
        } catch (const std::exception& e) {
          results[i].fault = e.what();
        }
        const std::lock_guard lock(output);
        if ((i + 1) % 100 == 0) fmt::print(stderr, "{} of {}\n", i + 1, kernels.size());
      }
    });
  }
  threads.clear();
  return results;
}

int write(bool every, const std::optional<std::string>& only, const std::string& path, const std::string& cache) {
  const Meter meter(cache);
  Record old;
  if (std::filesystem::exists(path)) old = parse_record(read_file(path));
  std::vector<ListedKernel> kernels = listed_kernels();
  const std::vector<ListedKernel> listed = kernels;
  if (!every) std::erase_if(kernels, [](const ListedKernel& k) { return !k.recorded; });
  const auto is_kept = [&](const ListedKernel& k) {
    return only && k.source.name.find(*only) == std::string::npos && old.find(k) != nullptr;
  };
  std::erase_if(kernels, is_kept);
  const std::vector<Result> results = measure_all(meter, kernels);
  if (meter.version() != old.nvrtc && !old.nvrtc.empty())
    fmt::print("recorded with NVRTC {}, measured with {}\n", old.nvrtc, meter.version());

  Record record{.nvrtc = meter.version(), .reasons = old.reasons, .kernels = {}};
  if (!every) {
    for (const ListedKernel& kernel : listed) {
      const Recorded* known = old.find(kernel);
      if ((!kernel.recorded || is_kept(kernel)) && known != nullptr) record.kernels[kernel.source.name][kernel.source.target] = *known;
    }
  }
  int faults = 0;
  int changes = 0;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const ListedKernel& kernel = kernels[i];
    const std::string what = kernel.source.name + " " + kernel.source.target;
    if (!results[i].fault.empty()) {
      fmt::print("{}: {}\n", what, results[i].fault);
      ++faults;
      continue;
    }
    const Measured& measured = results[i].measured;
    if (!kernel.recorded && !measured.uses_local()) continue;
    const Recorded* known = old.find(kernel);
    Recorded row{measured, ""};
    if (measured.uses_local()) row.reason = known != nullptr && !known->reason.empty() ? known->reason : std::string(kNoReason);
    if (row.reason == kNoReason) {
      fmt::print("{}: {}; give a reason in the record\n", what, describe(measured));
      ++faults;
    }
    if (known == nullptr || !(known->measured == measured)) {
      fmt::print("{}: {}{}\n", what, known == nullptr ? "new" : describe(known->measured) + " ->", " " + describe(measured));
      ++changes;
    }
    record.kernels[kernel.source.name][kernel.source.target] = row;
  }
  std::set<std::string> used;
  for (const auto& [name, rows] : record.kernels) {
    for (const auto& [arch, row] : rows) used.insert(row.reason);
  }
  std::erase_if(record.reasons, [&](const auto& reason) { return !used.contains(reason.first); });
  const std::filesystem::path file = std::filesystem::absolute(path);
  publish_file(file.parent_path(), file.filename(), print_record(record), Readers::everyone);
  fmt::print("{} kernels of {} measured, {} changed, {} faults\n", kernels.size(), listed.size(), changes, faults);
  return faults == 0 ? 0 : 1;
}

}  // namespace
}  // namespace girih::kernel_resources

int main(int argc, char** argv) {
  const std::string option = argc > 3 ? argv[1] : "";
  const bool every = argc == 4 && option == "--all";
  const std::optional<std::string> only = argc == 5 && option == "--only" ? std::optional<std::string>(argv[2]) : std::nullopt;
  if (argc != 3 && !every && !only) {
    std::fputs("usage: girih_kernel_resources [--all | --only TEXT] RECORD CACHE\n", stderr);
    return 2;
  }
  try {
    return girih::kernel_resources::write(every, only, argv[argc - 2], argv[argc - 1]);
  } catch (const std::exception& e) {
    fmt::print(stderr, "girih_kernel_resources: {}\n", e.what());
    return 1;
  }
}
