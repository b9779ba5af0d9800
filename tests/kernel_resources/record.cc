// See record.h.
#include "kernel_resources/record.h"

#include <fmt/format.h>

#include <regex>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace girih::kernel_resources {
namespace {

constexpr std::string_view kHeader =
    "# Registers a thread, shared memory a block and local memory a thread of the kernels that tests compile, in bytes, by architecture.\n"
    "# Compared by kernel_resources_test, written by script/kernel-resources, which keeps the reasons: who spills needs one.\n";

constexpr std::size_t kMaxColumns = 140;

Recorded parse_figures(const std::string& text) {
  static const std::regex kFigures(R"((\d+) registers, (\d+) shared(?:, (\d+) stack)?(?:, (\d+) \+ (\d+) spilled)?(?: \(([a-z_]+|\?)\))?)");
  std::smatch m;
  if (!std::regex_match(text, m, kFigures)) throw std::runtime_error("must be like \"sm_80: 234 registers, 115216 shared\"");
  const auto number = [&m](std::size_t i) { return m[i].matched ? std::stoll(m[i].str()) : 0; };
  Recorded r{.measured = {.registers = static_cast<int>(number(1)),
                          .shared = number(2),
                          .stack = number(3),
                          .spill_stores = number(4),
                          .spill_loads = number(5)},
             .reason = m[6].str()};
  if (r.measured.uses_local() == r.reason.empty()) throw std::runtime_error("a reason must stand with local memory, and only there");
  return r;
}

}  // namespace

const Recorded* Record::find(const ListedKernel& kernel) const {
  const auto rows = kernels.find(kernel.source.name);
  if (rows == kernels.end()) return nullptr;
  const auto row = rows->second.find(kernel.source.target);
  return row == rows->second.end() ? nullptr : &row->second;
}

std::string describe(const Measured& m) {
  std::string text = fmt::format("{} registers, {} shared", m.registers, m.shared);
  if (m.stack != 0) text += fmt::format(", {} stack", m.stack);
  if (m.spill_stores + m.spill_loads != 0) text += fmt::format(", {} + {} spilled", m.spill_stores, m.spill_loads);
  return text;
}

Record parse_record(std::string_view text) {
  Record record;
  std::istringstream lines{std::string(text)};
  std::string line;
  std::string* reason = nullptr;
  std::map<std::string, Recorded, Record::ByArch>* rows = nullptr;
  for (int number = 1; std::getline(lines, line); ++number) {
    try {
      if (line.empty() || line[0] == '#') continue;
      if (line.starts_with("nvrtc ")) {
        record.nvrtc = line.substr(6);
      } else if (line.starts_with("reason ")) {
        const std::size_t colon = line.find(": ");
        if (colon == std::string::npos) throw std::runtime_error("must be like \"reason WORD: text\"");
        reason = &(record.reasons[line.substr(7, colon - 7)] = line.substr(colon + 2));
      } else if (line[0] != ' ') {
        rows = &record.kernels[line];
        reason = nullptr;
      } else if (rows == nullptr) {
        if (reason == nullptr) throw std::runtime_error("belongs to no kernel");
        *reason += line.substr(1);  // continued
      } else {
        const std::size_t colon = line.find(": ");
        if (colon == std::string::npos) throw std::runtime_error("must be like \"sm_80: 234 registers, 115216 shared\"");
        const Recorded recorded = parse_figures(line.substr(colon + 2));
        std::istringstream archs(line.substr(0, colon));
        for (std::string arch; archs >> arch;) {
          if (!rows->emplace(arch, recorded).second) throw std::runtime_error(arch + " has two lines");
        }
      }
    } catch (const std::runtime_error& e) {
      throw std::runtime_error(fmt::format("line {}: {}", number, e.what()));
    }
  }
  return record;
}

std::string print_record(const Record& record) {
  std::string text = fmt::format("{}nvrtc {}\n\n", kHeader, record.nvrtc);
  for (const auto& [word, why] : record.reasons) {
    std::string line = fmt::format("reason {}:", word);
    std::istringstream words(why);
    for (std::string next; words >> next;) {
      if (line.size() + 1 + next.size() > kMaxColumns) {
        text += line + "\n";
        line = " ";
      }
      line += " " + next;
    }
    text += line + "\n";
  }
  if (!record.reasons.empty()) text += "\n";
  for (const auto& [name, rows] : record.kernels) {
    text += name + "\n";
    // Groups in the order of their first architecture.
    std::vector<std::pair<std::string, std::string>> groups;  // figures, architectures
    for (const auto& [arch, row] : rows) {
      const std::string figures = describe(row.measured) + (row.reason.empty() ? "" : fmt::format(" ({})", row.reason));
      auto group = groups.begin();
      while (group != groups.end() && group->first != figures) ++group;
      if (group == groups.end()) group = groups.insert(group, {figures, ""});
      group->second += (group->second.empty() ? "" : " ") + arch;
    }
    for (const auto& [figures, archs] : groups) text += fmt::format("  {}: {}\n", archs, figures);
  }
  return text;
}

}  // namespace girih::kernel_resources
