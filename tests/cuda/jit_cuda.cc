// The driver's table and loaded kernels on a GPU: copies, launches, events, graphs, limits, errors.
#include <gtest/gtest.h>

#include <numeric>

#include "cuda/driver.h"
#include "jit/kernel.h"
#include "jit_kernels.h"

namespace girih::jit {
namespace {

class JitDevice : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = std::make_shared<cuda::DeviceContext>(cuda::Driver::load(), 0);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    JitOptions options;
    options.nvrtc = test_nvrtc();
    options.cache_dir = dir_ / "cache";
    jit_ = std::make_shared<Jit>(options, cuda::nvrtc_arch(device_->info().arch));
    loader_ = std::make_unique<KernelLoader>(jit_, device_);
  }

  struct Params {
    cuda::Pointer data;
    int n;
  };
  static constexpr int kCount = 1000;
  static constexpr std::int64_t kBytes = kCount * sizeof(float);

  void launch_add(const Kernel& kernel, cuda::Pointer data, cuda::Stream stream, bool dependent = false) {
    const Params params = {data, kCount};
    const cuda::Launch launch = {
        .function = kernel.function, .num_blocks = (kCount + 127) / 128, .num_threads = 128, .stream = stream, .dependent = dependent};
    device_->driver().launch(launch, &params);
  }
  std::vector<float> download(const cuda::DeviceBuffer& buffer, cuda::Stream stream) {
    std::vector<float> numbers(kCount);
    device_->driver().copy_to_host(numbers.data(), buffer.pointer(), kBytes, stream);
    device_->driver().synchronize(stream);
    return numbers;
  }

  TemporaryDir dir_;
  std::shared_ptr<const cuda::DeviceContext> device_;
  std::shared_ptr<Jit> jit_;
  std::unique_ptr<KernelLoader> loader_;
};

TEST_F(JitDevice, InfoIsThatOfAKnownArchitecture) {
  const cuda::DeviceInfo& info = device_->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.num_sms, 0);
  EXPECT_GT(info.l2_bytes, 0);
  EXPECT_GT(info.memory_bytes, std::int64_t{1} << 30);
  const cuda::DeviceInfo example = cuda::example_device(info.arch);
  EXPECT_EQ(info.shared_per_block, example.shared_per_block);
  EXPECT_EQ(info.shared_per_sm, example.shared_per_sm);
}

TEST_F(JitDevice, CopiesAndLaunches) {
  const cuda::CurrentDevice current(*device_);
  const cuda::Driver& driver = device_->driver();
  const cuda::Stream stream = driver.create_stream();
  const cuda::DeviceBuffer buffer(device_, kBytes);
  const cuda::DeviceBuffer copy(device_, kBytes);
  const cuda::PinnedBuffer pinned(device_, kBytes);
  auto* numbers = reinterpret_cast<float*>(pinned.data());
  std::iota(numbers, numbers + kCount, 0.0F);
  const Kernel& kernel = loader_->load(add_kernel(3), 0);
  EXPECT_EQ(&loader_->load(add_kernel(3), 0), &kernel);
  EXPECT_GT(kernel.info.registers, 0);
  EXPECT_EQ(kernel.info.registers, jit_->compile(add_kernel(3))->resources.registers);
  EXPECT_EQ(kernel.info.max_threads, 128);
  const cuda::Event begin = driver.create_event(true);
  const cuda::Event end = driver.create_event(true);
  driver.record(begin, stream);
  driver.copy_to_device(buffer.pointer(), numbers, kBytes, stream);
  launch_add(kernel, buffer.pointer(), stream);
  launch_add(kernel, buffer.pointer(), stream, device_->info().arch >= 90);
  driver.copy_on_device(copy.pointer(), buffer.pointer(), kBytes, stream);
  driver.record(end, stream);
  const std::vector<float> result = download(copy, stream);
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(result[static_cast<std::size_t>(i)], static_cast<float>(i + 6));
  EXPECT_TRUE(driver.is_done(end));
  EXPECT_GT(driver.elapsed_seconds(begin, end), 0);
  EXPECT_LT(driver.elapsed_seconds(begin, end), 10);
  EXPECT_EQ(driver.device_of(buffer.data()), 0);
  EXPECT_EQ(driver.device_of(numbers), -1);
  EXPECT_EQ(driver.device_of(&kernel), -1);
  driver.destroy_event(begin);
  driver.destroy_event(end);
  driver.destroy(stream);
}

TEST_F(JitDevice, PtxOfAnOlderArchitectureRuns) {
  const cuda::CurrentDevice current(*device_);
  const cuda::DeviceBuffer buffer(device_, kBytes);
  device_->driver().fill(buffer.pointer(), 0, kBytes, nullptr);
  launch_add(loader_->load(add_kernel(5, "compute_75"), 0), buffer.pointer(), nullptr);
  EXPECT_EQ(download(buffer, nullptr), std::vector<float>(kCount, 5.0F));
}

TEST_F(JitDevice, GraphsReplayWhatWasCaptured) {
  const cuda::CurrentDevice current(*device_);
  const cuda::Driver& driver = device_->driver();
  const cuda::Stream stream = driver.create_stream();
  const cuda::DeviceBuffer buffer(device_, kBytes);
  driver.fill(buffer.pointer(), 0, kBytes, stream);
  const Kernel& kernel = loader_->load(add_kernel(2), 0);
  EXPECT_FALSE(driver.is_capturing(stream));
  driver.begin_capture(stream);
  EXPECT_TRUE(driver.is_capturing(stream));
  launch_add(kernel, buffer.pointer(), stream);
  launch_add(kernel, buffer.pointer(), stream);
  const cuda::Graph graph = driver.end_capture(stream);
  const cuda::GraphExec exec = driver.instantiate(graph);
  EXPECT_EQ(download(buffer, stream), std::vector<float>(kCount, 0.0F)) << "a capture runs nothing";
  for (int i = 0; i < 3; ++i) driver.launch_graph(exec, stream);
  EXPECT_EQ(download(buffer, stream), std::vector<float>(kCount, 12.0F));
  driver.destroy_graph_exec(exec);
  driver.destroy_graph(graph);
  driver.destroy(stream);
}

TEST_F(JitDevice, TheCurrentContextIsRestored) {
  const cuda::Driver& driver = device_->driver();
  const cuda::ContextHandle before = driver.current_context();
  {
    const cuda::CurrentDevice current(*device_);
    EXPECT_EQ(driver.current_context(), device_->handle());
    const cuda::CurrentDevice again(*device_);
    EXPECT_EQ(driver.current_context(), device_->handle());
  }
  EXPECT_EQ(driver.current_context(), before);
  loader_->load(add_kernel(), 0);
  EXPECT_EQ(driver.current_context(), before);
}

TEST_F(JitDevice, SharedMemoryUpToTheLimitAndNotBeyond) {
  const std::int64_t limit = device_->info().shared_per_block;
  EXPECT_EQ(loader_->load(add_kernel(), limit).shared_bytes, limit);
  EXPECT_EQ(loader_->load(add_kernel(), 100).shared_bytes, limit);
  const cuda::CurrentDevice current(*device_);
  const Kernel& kernel = loader_->load(add_kernel(), limit);
  EXPECT_EQ(device_->driver().max_blocks_per_sm(kernel.function, 128, limit), 1);
  const std::string text = message_of(Code::unsupported, [&] { loader_->load(add_kernel(), limit + 1); });
  EXPECT_NE(text.find(std::to_string(limit)), std::string::npos) << text;
}

TEST_F(JitDevice, ErrorsNameTheCallAndTheLaunch) {
  const cuda::CurrentDevice current(*device_);
  const Kernel& kernel = loader_->load(add_kernel(), 0);
  const Params params = {0, 0};
  const cuda::Launch launch = {.function = kernel.function, .num_blocks = 1, .num_threads = 2048};
  const std::string text = message_of(Code::internal, [&] { device_->driver().launch(launch, &params); });
  EXPECT_NE(text.find("1 blocks of 2048 threads"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA_ERROR_INVALID_VALUE"), std::string::npos) << text;
  message_of(Code::out_of_memory, [&] { cuda::DeviceBuffer(device_, std::int64_t{1} << 50); });
  message_of(Code::invalid_argument, [&] { device_->driver().device_info(1000); });
  const std::string image = message_of(Code::internal, [&] { device_->driver().load_module("no image", "kernel x"); });
  EXPECT_NE(image.find("kernel x"), std::string::npos) << image;
}

// The image of another architecture: the driver's refusal names the kernel and what it was compiled for.
TEST_F(JitDevice, ImageOfAnotherArchitecture) {
  const std::string other = device_->info().arch == 75 ? "sm_80" : "sm_75";
  const std::string text = message_of(Code::internal, [&] { loader_->load(add_kernel(1, other), 0); });
  EXPECT_NE(text.find("kernel add_1 for " + other), std::string::npos) << text;
}

}  // namespace
}  // namespace girih::jit
