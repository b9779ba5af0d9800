// The row operators' kernels through NVRTC: every case of cases/rows.h and rope.h for sm_90a, some of them for every architecture; no
// spills.
// ctest: shards=2 timeout=600
#include <gtest/gtest.h>

#include "cases/rope.h"
#include "cases/rows.h"
#include "cuda/driver.h"
#include "jit/compiler.h"
#include "jit/nvrtc.h"
#include "jit_kernels.h"

namespace girih {
namespace {

constexpr Device kDevice{DeviceKind::cuda, 0};

jit::Cubin compile(rows::Launch launch, const std::string& target) {
  const rows::Shape shape = rows::shape_launch(launch);
  std::string name;
  std::string source = rows::source_of(launch, shape, name);
  static const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  return jit::compile(*nvrtc, jit::make_recipe({.name = name, .source = std::move(source), .target = target}));
}

class RowsTargets : public testing::TestWithParam<cases::RowsCase> {};

TEST_P(RowsTargets, CompileWithoutSpills) {
  const jit::Cubin cubin = compile(cases::RowsProblem(GetParam()).describe(kDevice), "sm_90a");
  EXPECT_EQ(cubin.resources.spill_stores, 0) << cubin.name;
  EXPECT_EQ(cubin.resources.stack_bytes, 0) << cubin.name;
  EXPECT_LE(cubin.resources.registers, 128) << cubin.name;
}

INSTANTIATE_TEST_SUITE_P(Cases, RowsTargets, testing::ValuesIn(cases::rows_cases()), [](const auto& info) { return info.param.name; });

TEST(Rows, RopeCompilesWithoutSpills) {
  for (const cases::RopeCase& c : cases::rope_cases()) {
    const jit::Cubin cubin = compile(cases::RopeProblem(c).describe(kDevice), "sm_90a");
    // Rows that are done an element at a time keep many conditions, of which a few may be spilled.
    EXPECT_LE(cubin.resources.spill_stores, cubin.name.find("_elements") == std::string::npos ? 0 : 16) << cubin.name;
    EXPECT_LE(cubin.resources.registers, 128) << cubin.name;
  }
}

TEST(Rows, CompileForEveryArchitecture) {
  for (const cases::RowsCase& c : cases::rows_cases()) {
    if (c.name != "rms_nvfp4" && c.name != "rms_hidden_4096" && c.name != "swigluoai_mx") continue;
    for (const int arch : cuda::example_archs()) {
      const jit::Cubin cubin = compile(cases::RowsProblem(c).describe(kDevice), cuda::nvrtc_arch(arch));
      EXPECT_EQ(cubin.resources.spill_stores, 0) << c.name << " for " << arch;
    }
  }
}

}  // namespace
}  // namespace girih
