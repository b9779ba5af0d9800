// The driver that is not there says so; GPUs that are not at hand are known by their limits. What a GPU runs is tested in tests/cuda.
#include "cuda/driver.h"

#include <gtest/gtest.h>

#include "girih/error.h"

namespace girih::cuda {
namespace {

TEST(CudaDriver, SaysWhatIsMissing) {
  try {
    EXPECT_GT(Driver::load()->num_devices(), 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_TRUE(std::string(error.what()).starts_with("cuda: ")) << error.what();
    EXPECT_NE(std::string(error.what()).find("driver"), std::string::npos) << error.what();
  }
}

TEST(CudaDriver, ExamplesOfEveryArchitecture) {
  for (const int arch : example_archs()) {
    const DeviceInfo info = example_device(arch);
    EXPECT_EQ(info.arch, arch);
    EXPECT_GE(info.shared_per_sm, info.shared_per_block);
    EXPECT_GE(info.shared_per_block, 64 << 10);
    EXPECT_EQ(nvrtc_arch(arch), "sm_" + std::to_string(arch) + (arch >= 90 ? "a" : ""));
  }
  try {
    example_device(74);
    FAIL() << "74 is no architecture";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("75, 80"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace girih::cuda
