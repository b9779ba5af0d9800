// The row operators' way to a GPU against a fake driver (fake_cuda/fake_driver.h): every third case through the public functions, compiled
// by NVRTC, launched as they would be, and run by the emulator; what is uploaded, found again and refused while a stream is captured.
// ctest: emulated-rows timeout=600
#include <gtest/gtest.h>

#include <memory>

#include "cases/rope.h"
#include "cases/rows.h"
#include "cuda/runtime.h"
#include "emulator/emulator.h"
#include "emulator/row_kernels.h"
#include "fake_cuda/emulated.h"
#include "girih/error.h"
#include "jit_kernels.h"

namespace girih {
namespace {

void* prepare(const fake_cuda::LaunchCall& call) {
  for (const emulator::RowKernel& kernel : emulator::row_kernels()) {
    if (std::string(kernel.name) == call.name) return fake_cuda::keep(fake_cuda::emulate(call, kernel.entry));
  }
  ADD_FAILURE() << call.name << " is not built";
  return fake_cuda::keep([] {});
}

class RowsHost : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fake_cuda::set_emulated_hooks(prepare);
    JitOptions jit;
    jit.cache_dir = "";
    jit.nvrtc = jit::test_nvrtc();
    context_ = std::make_unique<Context>(ContextOptions{.device = {DeviceKind::cuda, 0}, .jit = jit});
  }
  static void TearDownTestSuite() { context_.reset(); }
  static const cuda::Driver& driver() { return context_->cuda().device->driver(); }

  template <typename Problem>
  static void run(Problem& p, void* stream = nullptr) {
    for (cases::RowsTensor* t : p.tensors()) t->view.device = context_->device();
    p.run(*context_, stream);
    const cuda::CurrentDevice current(*context_->cuda().device);
    driver().synchronize(stream);
  }

  static std::unique_ptr<Context> context_;
};
std::unique_ptr<Context> RowsHost::context_;

TEST_F(RowsHost, CasesMatchTheReference) {
  const std::vector<cases::RowsCase> all = cases::rows_cases();
  for (std::size_t i = 0; i < all.size(); i += 3) {
    cases::RowsProblem p(all[i]);
    run(p);
    EXPECT_TRUE(p.matches());
  }
}

TEST_F(RowsHost, RopeCasesMatchTheReference) {
  const std::vector<cases::RopeCase> all = cases::rope_cases();
  for (std::size_t i = 0; i < all.size(); i += 3) {
    cases::RopeProblem p(all[i]);
    run(p);
    EXPECT_TRUE(p.matches());
  }
}

TEST_F(RowsHost, LoadedKernelsAreCapturedOthersRefused) {
  const cuda::CurrentDevice current(*context_->cuda().device);
  cases::RowsProblem loaded({.name = "rms_bf16", .rows = 9});
  run(loaded);
  const std::int64_t compiled = context_->cuda().jit->stats().compiled;
  const cuda::Stream stream = driver().create_stream();
  driver().begin_capture(stream);
  cases::RowsProblem captured({.name = "rms_bf16", .rows = 9});
  for (cases::RowsTensor* t : captured.tensors()) t->view.device = context_->device();
  captured.run(*context_, stream);
  cases::RowsProblem other({.name = "other", .dim = 264});
  for (cases::RowsTensor* t : other.tensors()) t->view.device = context_->device();
  try {
    other.run(*context_, stream);
    ADD_FAILURE() << "a kernel was loaded while its stream was captured";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rms_norm: stream is being captured"), std::string::npos) << error.what();
  }
  cases::RopeProblem appended({.name = "append_bf16", .append = true});
  for (cases::RowsTensor* t : appended.tensors()) t->view.device = context_->device();
  EXPECT_THROW(appended.run(*context_, stream), Error);
  const cuda::Graph graph = driver().end_capture(stream);
  const cuda::GraphExec exec = driver().instantiate(graph);
  driver().destroy_graph(graph);
  driver().launch_graph(exec, stream);
  driver().synchronize(stream);
  EXPECT_TRUE(captured.matches());
  EXPECT_EQ(context_->cuda().jit->stats().compiled, compiled);
  driver().destroy_graph_exec(exec);
  driver().destroy(stream);
}

}  // namespace
}  // namespace girih
