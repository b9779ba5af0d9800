// A Context made before fork() works on in the child, where none of its worker threads exist, and in the parent. Not labelled `threads`:
// ThreadSanitizer does not support threads that are started after a fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "cpu/thread_pool.h"
#include "girih/attention.h"

namespace girih {
namespace {

/// Runs `child` in a forked process and returns its exit code, or -1 where it ended by a signal (hanging ones by SIGALRM).
template <typename F>
int exit_code_of_fork(const F& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    _exit(child());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<float> attend(const Context& context) {
  constexpr std::int64_t kTokens = 70;
  constexpr std::int64_t kHeads = 4;
  constexpr std::int64_t kDim = 16;
  std::vector<float> x(kTokens * kHeads * kDim);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 50.0F;
  std::vector<float> o(x.size());
  const TensorView input(x.data(), DType::f32, {kTokens, kHeads, kDim});
  AttentionSpec spec;
  spec.variant.mask = variants::causal();
  single_attention(context, spec, input, input, input, TensorView(o.data(), DType::f32, {kTokens, kHeads, kDim}));
  return o;
}

TEST(ForkTest, ChildAndParentGoOnWithTheSameContext) {
  const Context context({.num_workers = 3});
  const std::vector<float> before = attend(context);
  const int code = exit_code_of_fork([&] {
    for (int i = 0; i < 3; ++i) {
      const std::vector<float> in_child = attend(context);
      if (std::memcmp(in_child.data(), before.data(), before.size() * sizeof(float)) != 0) return 1;
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(attend(context), before);
}

TEST(ForkTest, ChildOfAChild) {
  const Context context({.num_workers = 2});
  const std::vector<float> before = attend(context);
  const int code = exit_code_of_fork([&] {
    if (attend(context) != before) return 1;
    return exit_code_of_fork([&] { return attend(context) == before ? 0 : 2; });
  });
  EXPECT_EQ(code, 0);
}

TEST(ForkTest, ChildMayDestroyWhatItNeverUsed) {
  auto pool = std::make_unique<cpu::ThreadPool>(3);
  const int code = exit_code_of_fork([&] {
    pool.reset();
    return 0;
  });
  EXPECT_EQ(code, 0);
  int calls = 0;
  pool->parallel([&](int worker) { calls += worker == 0 ? 1 : 0; });
  EXPECT_EQ(calls, 1);
}

TEST(ForkTest, ForkInsideARegionLeavesTheChildFree) {
  cpu::ThreadPool pool(2);
  int code = -1;
  pool.parallel([&](int worker) {
    if (worker != 0) return;
    code = exit_code_of_fork([&] {
      std::vector<int> calls(2);
      pool.parallel([&](int w) { ++calls[static_cast<std::size_t>(w)]; });
      return calls == std::vector<int>{1, 1} ? 0 : 1;
    });
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace girih
