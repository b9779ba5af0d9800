// Context's choices from options, environment and machine; the meaning of CPUID words, also of CPUs that are not at hand.
// ctest: threads
#include "girih/context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/env.h"
#include "cpu/features.h"
#include "girih/error.h"

namespace girih {
namespace {

// Sets (or, with nullptr, unsets) a variable for the length of a test.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~ScopedEnv() { set(before_ ? before_->c_str() : nullptr); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  void set(const char* value) {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, 1);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

class ContextTest : public testing::Test {
 protected:
  ScopedEnv no_threads_{"GIRIH_NUM_THREADS", nullptr};
  ScopedEnv no_target_{"GIRIH_CPU_TARGET", nullptr};
  ScopedEnv no_sampling_{"GIRIH_SAMPLING", nullptr};
};

template <typename F>
std::string message_of(Code code, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST_F(ContextTest, DefaultsComeFromTheMachine) {
  const Context context;
  EXPECT_EQ(context.num_workers(), cpu_info().num_cpus);
  EXPECT_EQ(context.cpu_target(), available_cpu_targets().front());
  EXPECT_EQ(context.device(), Device{});
}

TEST_F(ContextTest, EveryAvailableTargetCanBeChosen) {
  const std::vector<CpuTarget> targets = available_cpu_targets();
  EXPECT_EQ(targets.back(), CpuTarget::scalar);
  for (const CpuTarget target : targets) {
    ContextOptions options;
    options.num_workers = 1;
    options.target = target;
    EXPECT_EQ(Context(options).cpu_target(), target) << name(target);
  }
}

TEST_F(ContextTest, MissingTargetIsRefusedWithTheAvailableOnes) {
  const std::vector<CpuTarget> targets = available_cpu_targets();
  for (const CpuTarget target : {CpuTarget::avx2, CpuTarget::avx3, CpuTarget::neon}) {
    if (std::find(targets.begin(), targets.end(), target) != targets.end()) continue;
    ContextOptions options;
    options.target = target;
    const std::string text = message_of(Code::unsupported, [&] { Context context(options); });
    EXPECT_NE(text.find("target=" + std::string(name(target))), std::string::npos) << text;
    EXPECT_NE(text.find("scalar"), std::string::npos) << text;
  }
}

TEST_F(ContextTest, BadOptionsAreRefused) {
  for (const int num_workers : {-1, kMaxWorkers + 1}) {
    ContextOptions options;
    options.num_workers = num_workers;
    const std::string text = message_of(Code::invalid_argument, [&] { Context context(options); });
    EXPECT_NE(text.find("num_workers=" + std::to_string(num_workers)), std::string::npos) << text;
  }
  ContextOptions options;
  options.device = {DeviceKind::cuda, 0};
  options.num_workers = 2;
  EXPECT_NE(message_of(Code::invalid_argument, [&] { Context context(options); }).find("device=cuda:0"), std::string::npos);
  options.num_workers = 0;
  options.device = {DeviceKind::cpu, 1};
  EXPECT_NE(message_of(Code::invalid_argument, [&] { Context context(options); }).find("device.index=1"), std::string::npos);
}

TEST_F(ContextTest, EnvironmentFillsWhatOptionsLeaveOpen) {
  const ScopedEnv threads("GIRIH_NUM_THREADS", "3");
  const ScopedEnv target("GIRIH_CPU_TARGET", "scalar");
  const Context context;
  EXPECT_EQ(context.num_workers(), 3);
  EXPECT_EQ(context.cpu_target(), CpuTarget::scalar);

  ContextOptions options;
  options.num_workers = 2;
  EXPECT_EQ(Context(options).num_workers(), 2);
}

TEST_F(ContextTest, MalformedVariablesAreNamed) {
  for (const char* value : {"0", "-1", "two", "2x", " 2", "99999999999", "4097"}) {
    const ScopedEnv threads("GIRIH_NUM_THREADS", value);
    const std::string text = message_of(Code::invalid_argument, [] { Context context; });
    EXPECT_NE(text.find("GIRIH_NUM_THREADS=\"" + std::string(value) + "\""), std::string::npos) << text;
  }
  const ScopedEnv target("GIRIH_CPU_TARGET", "AVX2");
  const std::string text = message_of(Code::invalid_argument, [] { Context context; });
  EXPECT_NE(text.find("GIRIH_CPU_TARGET=\"AVX2\""), std::string::npos) << text;
}

TEST_F(ContextTest, SamplingIsOneOfTwoOrUnset) {
  EXPECT_EQ(read_env().sampling, SamplingChoice::measured);
  for (const auto& [text, choice] : {std::pair("few", SamplingChoice::few), std::pair("passes", SamplingChoice::passes)}) {
    const ScopedEnv sampling("GIRIH_SAMPLING", text);
    EXPECT_EQ(read_env().sampling, choice);
  }
  const ScopedEnv sampling("GIRIH_SAMPLING", "fewer");
  EXPECT_NE(message_of(Code::invalid_argument, [] { Context context; }).find("GIRIH_SAMPLING=\"fewer\""), std::string::npos);
}

TEST_F(ContextTest, EmptyVariableCountsAsUnset) {
  const ScopedEnv threads("GIRIH_NUM_THREADS", "");
  EXPECT_EQ(Context().num_workers(), cpu_info().num_cpus);
}

TEST_F(ContextTest, VariablesAreListedWithTheirValues) {
  const ScopedEnv threads("GIRIH_NUM_THREADS", "many");
  for (const EnvVariable& variable : env_variables()) {
    if (variable.name == "GIRIH_NUM_THREADS") {
      EXPECT_EQ(variable.value, "many");
    } else {
      EXPECT_EQ(variable.value, std::nullopt) << variable.name;
    }
  }
  EXPECT_LE(env_variables().size(), 6U);
}

TEST_F(ContextTest, LogReachesTheCallback) {
  std::string seen;
  ContextOptions options;
  options.num_workers = 1;
  options.log = [&seen](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::warning);
    seen = text;
  };
  Context(options).log(LogLevel::warning, "hello");
  EXPECT_EQ(seen, "hello");
  Context(ContextOptions{.num_workers = 1}).log(LogLevel::warning, "nobody listens");
}

TEST_F(ContextTest, MovesKeepWorking) {
  ContextOptions options;
  options.num_workers = 2;
  Context first(options);
  Context second = std::move(first);
  EXPECT_EQ(second.num_workers(), 2);
  second = Context(ContextOptions{.num_workers = 1});
  EXPECT_EQ(second.num_workers(), 1);
}

// Words of an Intel Xeon (Cooper Lake) under Linux: every bit that the library reads for AVX-512 with BF16.
cpu::CpuidWords cooper_lake() {
  cpu::CpuidWords words;
  words.leaf1_ecx = (1U << 1) | (1U << 9) | (1U << 12) | (1U << 19) | (1U << 20) | (1U << 25) | (1U << 28) | (1U << 29);
  words.leaf7_ebx = (1U << 3) | (1U << 5) | (1U << 8) | (1U << 16) | (1U << 17) | (1U << 28) | (1U << 30) | (1U << 31);
  words.leaf7_ecx = 1U << 11;
  words.leaf7_1_eax = 1U << 5;
  words.extended1_ecx = 1U << 5;
  words.xcr0 = 0xE7;
  return words;
}

TEST(CpuFeaturesTest, FullAvx512) {
  const cpu::Features features = cpu::decode(cooper_lake());
  EXPECT_TRUE(features.avx2);
  EXPECT_TRUE(features.avx3);
  EXPECT_TRUE(features.avx512_bf16);
  EXPECT_TRUE(features.avx512_vnni);
  EXPECT_FALSE(features.avx512_vbmi);
  cpu::CpuidWords later = cooper_lake();
  later.leaf7_ecx |= 1U << 1;
  EXPECT_TRUE(cpu::decode(later).avx512_vbmi);
}

TEST(CpuFeaturesTest, RegistersThatTheSystemDoesNotSaveDoNotCount) {
  cpu::CpuidWords words = cooper_lake();
  words.xcr0 = 0x7;  // AVX state only
  cpu::Features features = cpu::decode(words);
  EXPECT_TRUE(features.avx2);
  EXPECT_FALSE(features.avx3);
  EXPECT_FALSE(features.avx512_bf16);
  words.xcr0 = 0x3;  // SSE state only
  features = cpu::decode(words);
  EXPECT_FALSE(features.avx2);
  EXPECT_FALSE(features.avx3);
}

TEST(CpuFeaturesTest, EachNeededBitIsNeeded) {
  const auto without = [](std::uint32_t cpu::CpuidWords::*word, int bit) {
    cpu::CpuidWords words = cooper_lake();
    words.*word &= ~(1U << bit);
    return cpu::decode(words);
  };
  for (const int bit : {1, 9, 12, 19, 20, 25, 28, 29}) EXPECT_FALSE(without(&cpu::CpuidWords::leaf1_ecx, bit).avx2) << bit;
  for (const int bit : {3, 5, 8}) EXPECT_FALSE(without(&cpu::CpuidWords::leaf7_ebx, bit).avx2) << bit;
  for (const int bit : {16, 17, 28, 30, 31}) {
    const cpu::Features features = without(&cpu::CpuidWords::leaf7_ebx, bit);
    EXPECT_TRUE(features.avx2) << bit;
    EXPECT_FALSE(features.avx3) << bit;
    EXPECT_FALSE(features.avx512_bf16) << bit;
  }
  EXPECT_FALSE(without(&cpu::CpuidWords::leaf7_1_eax, 5).avx512_bf16);
  EXPECT_FALSE(without(&cpu::CpuidWords::leaf7_ecx, 11).avx512_vnni);
}

TEST(CpuFeaturesTest, NothingFoundMeansScalar) {
  const std::vector<CpuTarget> targets = cpu::targets_of(cpu::Features{});
  ASSERT_EQ(targets.size(), 1U);
  EXPECT_EQ(targets.front(), CpuTarget::scalar);
}

TEST(CpuFeaturesTest, ThisMachineHasAModelAndACpu) {
  EXPECT_FALSE(cpu_info().model.empty());
  EXPECT_GE(cpu_info().num_cpus, 1);
}

}  // namespace
}  // namespace girih
