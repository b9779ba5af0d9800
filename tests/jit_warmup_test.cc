// Warm-up, several threads on one Jit, policies and packs.
// ctest: threads
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "base/file.h"
#include "girih/attention.h"
#include "jit/cache.h"
#include "jit/jit.h"
#include "jit/pack.h"
#include "jit/sources.h"
#include "jit_kernels.h"

namespace girih::jit {
namespace {

class JitWarmup : public testing::Test {
 protected:
  JitOptions options() const {
    JitOptions options;
    options.nvrtc = test_nvrtc();
    options.cache_dir = dir_ / "cache";
    return options;
  }
  static std::vector<KernelSource> kernels(int count) {
    std::vector<KernelSource> list;
    for (int i = 0; i < count; ++i) list.push_back(add_kernel(i));
    return list;
  }
  /// A pack of `count` kernels for sm_80 and one for sm_90a.
  std::string make_pack(int count) {
    Jit jit(options(), "sm_80");
    std::vector<PackEntry> entries;
    for (const KernelSource& kernel : kernels(count)) entries.push_back({jit.recipe(kernel), *jit.compile(kernel)});
    entries.push_back({jit.recipe(add_kernel(0, "sm_90a")), *jit.compile(add_kernel(0, "sm_90a"))});
    std::string pack = dir_ / "packs/one";
    build_pack(pack, entries);
    return pack;
  }
  TemporaryDir dir_;
};

TEST_F(JitWarmup, J13_ReportsEveryKernelOnceAndItsBeginning) {
  Jit jit(options(), "sm_80");
  std::vector<KernelSource> list = kernels(6);
  list.push_back(add_kernel(0));  // again
  std::vector<std::string> names;
  std::int64_t done = -1;
  jit.warmup(list, [&](const WarmupProgress& progress) {
    EXPECT_EQ(progress.total, 6);
    EXPECT_EQ(progress.done, ++done);
    EXPECT_EQ(progress.name.empty(), progress.done == 0) << "the first call comes before any kernel is ready";
    if (!progress.name.empty()) names.emplace_back(progress.name);
  });
  EXPECT_EQ(done, 6);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 6U);
  EXPECT_EQ(jit.stats().compiled, 6);
  for (const KernelSource& kernel : list) jit.compile(kernel);
  EXPECT_EQ(jit.stats().compiled, 6);

  Jit second(options(), "sm_80");
  second.warmup(list);
  EXPECT_EQ(second.stats().compiled, 0);
  EXPECT_EQ(second.stats().from_cache, 6);
}

TEST_F(JitWarmup, OneFailureDoesNotStopTheOthers) {
  Jit jit(options(), "sm_80");
  std::vector<KernelSource> list = kernels(4);
  list.insert(list.begin(), {"wrong", "#error so\n", ""});
  EXPECT_NE(message_of(Code::internal, [&] { jit.warmup(list); }).find("kernel wrong"), std::string::npos);
  EXPECT_EQ(jit.stats().compiled, 4);
}

TEST_F(JitWarmup, ProgressMayStopIt) {
  JitOptions o = options();
  o.max_threads = 1;
  Jit jit(o, "sm_80");
  const auto stop = [](const WarmupProgress& progress) {
    if (progress.done == 2) throw std::runtime_error("enough");
  };
  EXPECT_THROW(jit.warmup(kernels(5), stop), std::runtime_error);
  EXPECT_EQ(jit.stats().compiled, 2);
}

TEST_F(JitWarmup, TheHeaviestComesFirst) {
  JitOptions o = options();
  o.max_threads = 1;
  Jit jit(o, "sm_80");
  std::vector<KernelSource> list = kernels(4);
  list[1].weight = 128;
  list[2].weight = 16;
  std::vector<std::string> names;
  jit.warmup(list, [&](const WarmupProgress& progress) {
    if (!progress.name.empty()) names.emplace_back(progress.name);
  });
  EXPECT_EQ(names, (std::vector<std::string>{"add_1", "add_2", "add_0", "add_3"})) << "equal weights in the order given";
}

TEST_F(JitWarmup, NothingToDo) {
  Jit jit(options(), "sm_80");
  int calls = 0;
  jit.warmup({}, [&](const WarmupProgress& progress) {
    ++calls;
    EXPECT_EQ(progress.total, 0);
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(JitWarmup, OnTheCpuThereIsNothingToCompile) {
  const std::vector<AttentionSpec> specs(2);
  int calls = 0;
  girih::warmup(Context(), specs, [&](const WarmupProgress& progress) {
    ++calls;
    EXPECT_EQ(progress.total, 0);
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(JitWarmup, J11_ThreadsAreBoundedByMemory) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  EXPECT_EQ(warmup_threads(0, 64, 128, 4 * kGiB), 8);
  EXPECT_EQ(warmup_threads(0, 64, 2, 4 * kGiB), 2);
  EXPECT_EQ(warmup_threads(0, 3, 128, 64 * kGiB), 3);
  EXPECT_EQ(warmup_threads(16, 64, 2, 64 * kGiB), 16);
  EXPECT_EQ(warmup_threads(16, 64, 2, kGiB / 8), 1);
  EXPECT_EQ(warmup_threads(0, 0, 4, -1), 1);
}

TEST_F(JitWarmup, ThreadsThatWantOneKernelCompileItOnce) {
  Jit jit(options(), "sm_80");
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&jit, &failures] {
      for (int i = 0; i < 3; ++i) failures += jit.compile(add_kernel(i))->image.empty() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(jit.stats().compiled, 3);
  EXPECT_EQ(jit.stats().from_memory, 21);
}

TEST_F(JitWarmup, CompilingIsAnnouncedBeforeItStarts) {
  std::vector<std::string> messages;
  Jit jit(options(), "sm_80", [&](LogLevel, std::string_view text) { messages.emplace_back(text); });
  jit.compile(add_kernel());
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(messages[0], "compiling add_1 for sm_80");
}

TEST_F(JitWarmup, DenyCompilesNothing) {
  Jit(options(), "sm_80").compile(add_kernel(1));
  JitOptions o = options();
  o.policy = JitPolicy::deny;
  Jit jit(o, "sm_80");
  EXPECT_EQ(jit.compile(add_kernel(1))->origin, Cubin::Origin::cache);
  const std::string text = message_of(Code::unsupported, [&] { jit.compile(add_kernel(2)); });
  EXPECT_NE(text.find("kernel add_2 for sm_80"), std::string::npos) << text;
  EXPECT_NE(text.find("deny"), std::string::npos) << text;
  EXPECT_NE(text.find(*o.cache_dir), std::string::npos) << text;
}

TEST_F(JitWarmup, PackOnlyNeedsNeitherNvrtcNorCache) {
  JitOptions o;
  o.packs = {make_pack(3)};
  o.policy = JitPolicy::pack_only;
  o.nvrtc = dir_ / "no/libnvrtc.so";
  o.cache_dir = dir_ / "untouched";
  Jit jit(o, "sm_80");
  EXPECT_EQ(jit.compile(add_kernel(2))->origin, Cubin::Origin::pack);
  EXPECT_EQ(jit.compile(add_kernel(0, "sm_90a"))->target, "sm_90a");
  const std::string text = message_of(Code::unsupported, [&] { jit.compile(add_kernel(1, "sm_90a")); });
  EXPECT_NE(text.find("kernel add_1 for sm_90a"), std::string::npos) << text;
  EXPECT_NE(text.find("pack_only"), std::string::npos) << text;
  EXPECT_EQ(jit.stats().from_packs, 2);
  EXPECT_FALSE(std::filesystem::exists(*o.cache_dir));
}

TEST_F(JitWarmup, PacksComeBeforeTheCacheAndCompilingAfterBoth) {
  JitOptions o = options();
  o.packs = {make_pack(1)};
  Jit jit(o, "sm_80");
  EXPECT_EQ(jit.compile(add_kernel(0))->origin, Cubin::Origin::pack);
  EXPECT_EQ(jit.compile(add_kernel(5))->origin, Cubin::Origin::compiled);
  Jit second(o, "sm_80");
  EXPECT_EQ(second.compile(add_kernel(5))->origin, Cubin::Origin::cache);
}

TEST_F(JitWarmup, PackIsReadableByEveryone) {
  const std::string pack = make_pack(1);
  struct stat facts {};
  ASSERT_EQ(stat((pack + "/manifest").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0644U);
  const Pack read(pack);
  EXPECT_EQ(read.items().size(), 2U);
  EXPECT_EQ(read.bundle(), bundle_hash());
  EXPECT_EQ(read.items()[0].name, "add_0");
}

TEST_F(JitWarmup, DamagedPackIsAnError) {
  const std::string pack = make_pack(1);
  const auto fault = [&] {
    JitOptions o = options();
    o.packs = {pack};
    return message_of(Code::io, [&] { Jit(o, "sm_80").compile(add_kernel(0)); });
  };
  const PackItem item = Pack(pack).items()[0];
  const std::string file = pack + "/" + item.file;
  const std::string whole = read_file(file);
  const auto write = [](const std::string& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; };
  write(file, whole.substr(0, whole.size() - 1));
  EXPECT_NE(fault().find("differs from what the pack's manifest says"), std::string::npos);
  std::string changed = whole;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  write(file, changed);
  EXPECT_NE(fault().find(item.file), std::string::npos);
  std::filesystem::remove(file);
  EXPECT_NE(fault().find("cannot be read"), std::string::npos);
  write(file, whole);
  const std::string manifest = read_file(pack + "/manifest");
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{"", "is empty"},
                                                        {"girih-pack 2\n", "manifest:1: must be `girih-pack 1`"},
                                                        {manifest + "kernel a b c ../d e 1\n", "must lie in the pack's directory"},
                                                        {manifest + "kernel a b c d e 1x\n", "not a number"},
                                                        {manifest + "kernel a b c d\n", "must be `nvrtc"},
                                                        {manifest.substr(0, manifest.size() - 1), "ends within a line"},
                                                        {manifest + manifest.substr(manifest.find("kernel ")), "was listed before"}}) {
    write(pack + "/manifest", text);
    const std::string message = fault();
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  std::filesystem::remove(pack + "/manifest");
  EXPECT_NE(fault().find("manifest"), std::string::npos);
}

TEST_F(JitWarmup, PackOfOtherKernelTextsIsOneWarning) {
  Jit jit(options(), "sm_80");
  PackEntry entry = {jit.recipe(add_kernel()), *jit.compile(add_kernel())};
  entry.recipe.bundle = std::string(32, '0');
  entry.cubin.key = entry.recipe.key(entry.cubin.nvrtc_version);
  build_pack(dir_ / "old", std::vector<PackEntry>{entry});
  JitOptions o = options();
  o.packs = {dir_ / "old"};
  std::vector<std::string> warnings;
  Jit with_pack(o, "sm_80", [&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning) warnings.emplace_back(text);
  });
  EXPECT_NE(with_pack.compile(add_kernel())->origin, Cubin::Origin::pack);
  with_pack.compile(add_kernel(2));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find(dir_ / "old"), std::string::npos);
}

TEST_F(JitWarmup, PackIsNotBuiltOverAnother) {
  const std::string pack = make_pack(1);
  Jit jit(options(), "sm_80");
  const PackEntry entry = {jit.recipe(add_kernel(7)), *jit.compile(add_kernel(7))};
  EXPECT_NE(message_of(Code::io, [&] { build_pack(pack, std::vector<PackEntry>{entry}); }).find("holds a pack already"), std::string::npos);
  EXPECT_EQ(Pack(pack).items().size(), 2U);
  message_of(Code::invalid_argument, [&] { build_pack(dir_ / "empty", {}); });
}

TEST(JitOptions, FillWhatIsOpenFromTheEnvironment) {
  Env env;
  env.default_cache_dir = "/home/cache";
  JitOptions filled = fill_from_environment({}, env);
  EXPECT_EQ(filled.policy, JitPolicy::allow);
  EXPECT_EQ(filled.nvrtc, "");
  EXPECT_EQ(filled.cache_dir, "/home/cache");
  EXPECT_TRUE(filled.packs->empty());
  env.jit_policy = JitPolicy::deny;
  env.nvrtc = "/nvrtc";
  env.cache_dir = "/env/cache";
  env.packs = {"/a", "/b"};
  filled = fill_from_environment({}, env);
  EXPECT_EQ(filled.policy, JitPolicy::deny);
  EXPECT_EQ(filled.nvrtc, "/nvrtc");
  EXPECT_EQ(filled.cache_dir, "/env/cache");
  EXPECT_EQ(filled.packs->size(), 2U);
  JitOptions given;
  given.policy = JitPolicy::allow;
  given.cache_dir = "";
  given.nvrtc = "/mine";
  given.packs = std::vector<std::string>{};
  filled = fill_from_environment(given, env);
  EXPECT_EQ(filled.policy, JitPolicy::allow);
  EXPECT_EQ(filled.cache_dir, "");
  EXPECT_EQ(filled.nvrtc, "/mine");
  EXPECT_TRUE(filled.packs->empty());
}

}  // namespace
}  // namespace girih::jit
