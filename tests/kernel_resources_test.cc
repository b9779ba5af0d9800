// Kernels compile for every architecture within its limits, and cost what tests/kernel_resources.txt says: a kernel that needs more (or
// less) than recorded fails until the record is renewed by script/kernel-resources, so that each change shows what it costs. Local memory
// (spills, stack) needs a reason there. A part of the recorded kernels is compiled here (list.h), all by that script.
// ctest: kernel-list shards=4 timeout=900
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "kernel_resources/list.h"
#include "kernel_resources/measure.h"
#include "kernel_resources/record.h"

namespace girih::kernel_resources {

void PrintTo(const ListedKernel& kernel, std::ostream* out) { *out << kernel.source.name << ' ' << kernel.source.target; }

namespace {

constexpr const char* kRenew = "renew the record with script/kernel-resources, and look at its diff";

const Record& record() {
  static const Record kRecord = parse_record(read_file(GIRIH_KERNEL_RECORD));
  return kRecord;
}

const Meter& meter() {
  static const Meter kMeter(GIRIH_KERNEL_CACHE);
  return kMeter;
}

std::vector<ListedKernel> tested_kernels() {
  std::vector<ListedKernel> kernels = listed_kernels();
  std::erase_if(kernels, [](const ListedKernel& k) { return !k.tested; });
  return kernels;
}

class KernelResources : public testing::TestWithParam<ListedKernel> {};

TEST_P(KernelResources, AreAsRecorded) {
  const ListedKernel& kernel = GetParam();
  const Measured measured = meter().measure(kernel);
  EXPECT_EQ(limit_fault(kernel, measured), "");
  const Recorded* recorded = record().find(kernel);
  ASSERT_NE(recorded, nullptr) << "not recorded; " << kRenew;
  // Another compiler allocates registers as it likes.
  if (meter().version() != record().nvrtc) return;
  EXPECT_EQ(describe(measured), describe(recorded->measured)) << kRenew;
}

INSTANTIATE_TEST_SUITE_P(Listed, KernelResources, testing::ValuesIn(tested_kernels()),
                         [](const auto& info) { return info.param.source.name + "_" + info.param.source.target; });

TEST(KernelRecord, NamesListedKernelsOnly) {
  std::set<std::string> listed;
  for (const ListedKernel& kernel : listed_kernels()) listed.insert(kernel.source.name + " " + kernel.source.target);
  for (const auto& [name, rows] : record().kernels) {
    for (const auto& [arch, row] : rows) EXPECT_TRUE(listed.contains(name + " " + arch)) << name << ' ' << arch << "; " << kRenew;
  }
}

TEST(KernelRecord, HasEveryKernelThatItShould) {
  for (const ListedKernel& kernel : listed_kernels()) {
    if (!kernel.recorded) continue;
    EXPECT_NE(record().find(kernel), nullptr) << kernel.source.name << ' ' << kernel.source.target << "; " << kRenew;
  }
}

TEST(KernelRecord, EveryUseOfLocalMemoryHasAReason) {
  for (const auto& [name, rows] : record().kernels) {
    for (const auto& [arch, row] : rows) {
      if (!row.measured.uses_local()) continue;
      EXPECT_TRUE(record().reasons.contains(row.reason)) << name << ' ' << arch << ": " << describe(row.measured) << ": \"" << row.reason
                                                         << "\" is not explained at the top of the record";
    }
  }
}

TEST(KernelRecord, IsAsPrinted) { EXPECT_TRUE(print_record(record()) == read_file(GIRIH_KERNEL_RECORD)) << kRenew; }

TEST(KernelRecord, GroupsEqualArchitectures) {
  Record r{.nvrtc = "13.0.1", .reasons = {{"long", "too many words"}}, .kernels = {}};
  r.kernels["a"]["sm_100a"] = r.kernels["a"]["sm_80"] = {.measured = {.registers = 40, .shared = 16}, .reason = ""};
  r.kernels["a"]["sm_90a"] = {.measured = {.registers = 255, .shared = 0, .stack = 8, .spill_stores = 4, .spill_loads = 12},
                              .reason = "long"};
  const std::string text = print_record(r);
  EXPECT_NE(text.find("a\n  sm_80 sm_100a: 40 registers, 16 shared\n"
                      "  sm_90a: 255 registers, 0 shared, 8 stack, 4 + 12 spilled (long)\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(print_record(parse_record(text)), text);
}

TEST(KernelRecord, FaultsAreNamedByLine) {
  const auto fault = [](std::string_view text) -> std::string {
    try {
      parse_record(text);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(fault("a\n  sm_80: 40 registers, 16 shared\n"), "none");
  EXPECT_EQ(fault("  sm_80: 40 registers, 16 shared\n"), "line 1: belongs to no kernel");
  EXPECT_NE(fault("a\n  sm_80: 40 registers\n").find("line 2: must be like"), std::string::npos);
  EXPECT_NE(fault("a\n  sm_80: 40 registers, 16 shared, 8 stack\n").find("line 2: a reason"), std::string::npos);
  EXPECT_EQ(fault("a\n  sm_80 sm_80: 40 registers, 16 shared\n"), "line 2: sm_80 has two lines");
}

TEST(KernelList, CoversEveryArchitectureAndFamily) {
  std::map<std::string, int> tested;
  for (const ListedKernel& kernel : tested_kernels()) ++tested[kernel.source.target];
  EXPECT_EQ(tested.size(), 11U);
  for (const auto& [target, n] : tested) EXPECT_GE(n, 16) << target;
  for (const char* target : {"sm_75", "sm_80", "sm_90a"}) EXPECT_GE(tested[target], 60) << target;
}

TEST(KernelLimits, AreNamed) {
  const ListedKernel kernel{.source = {}, .arch = 75, .num_threads = 256, .blocks_per_sm = 2, .shared_bytes = 0};
  EXPECT_EQ(limit_fault(kernel, {.registers = 128, .shared = 31 << 10}), "");
  EXPECT_NE(limit_fault(kernel, {.registers = 129}).find("registers"), std::string::npos);
  EXPECT_NE(limit_fault(kernel, {.registers = 128, .shared = 32 << 10}).find("do not fit"), std::string::npos);
  EXPECT_NE(limit_fault(kernel, {.registers = 128, .shared = 65 << 10}).find("a block; at most"), std::string::npos);
  EXPECT_NE(limit_fault(kernel, {.registers = 128, .static_shared = 4}).find("static"), std::string::npos);
}

}  // namespace
}  // namespace girih::kernel_resources
