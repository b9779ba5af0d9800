// The disk cache in trouble: racing and killed processes, torn and tampered files, wrong owners and modes, directories that are read-only,
// full or missing. Every file that is not exactly what was asked for is a miss; nothing here may throw, wait or be believed.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/file.h"
#include "jit/cache.h"
#include "jit/jit.h"
#include "jit_kernels.h"

extern char** environ;

namespace girih::jit {
namespace {

namespace fs = std::filesystem;
constexpr uid_t kNobody = 65534;

class JitCache : public testing::Test {
 protected:
  JitOptions options() const {
    JitOptions options;
    options.nvrtc = test_nvrtc();
    options.cache_dir = cache_dir_;
    return options;
  }
  LogFn log() {
    return [this](LogLevel level, std::string_view text) {
      if (level == LogLevel::warning) warnings_.emplace_back(text);
      messages_.emplace_back(text);
    };
  }
  /// Compiles add_kernel() with a Jit of its own; returns what was counted.
  JitStats compile_once() {
    Jit jit(options(), "sm_80", log());
    jit.compile(add_kernel());
    return jit.stats();
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    for (const fs::directory_entry& file : fs::directory_iterator(cache_dir_)) found.push_back(file.path());
    return found;
  }
  fs::path only_entry() const {
    const std::vector<fs::path> found = entries();
    EXPECT_EQ(found.size(), 1U);
    return found.front();
  }
  void expect_hit() {
    const JitStats stats = compile_once();
    EXPECT_EQ(stats.compiled, 0);
    EXPECT_EQ(stats.from_cache, 1);
  }
  /// The entry is not believed, is compiled anew and replaced.
  void expect_miss_then_hit(const std::string& what) {
    EXPECT_EQ(compile_once().compiled, 1) << what;
    EXPECT_EQ(compile_once().from_cache, 1) << what;
  }

  TemporaryDir dir_;
  const std::string cache_dir_ = dir_ / "below/cache";
  std::vector<std::string> warnings_;
  std::vector<std::string> messages_;
};

void overwrite(const fs::path& file, std::string_view bytes) {
  const int f = open(file.c_str(), O_WRONLY | O_TRUNC | O_CREAT, 0600);
  ASSERT_GE(f, 0);
  ASSERT_EQ(write(f, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  close(f);
}

TEST_F(JitCache, TheSecondProcessCompilesNothing) {
  Jit first(options(), "sm_80", log());
  const std::shared_ptr<const Cubin> compiled = first.compile(add_kernel());
  Jit second(options(), "sm_80", log());
  const std::shared_ptr<const Cubin> found = second.compile(add_kernel());
  EXPECT_EQ(second.stats().compiled, 0);
  EXPECT_EQ(found->origin, Cubin::Origin::cache);
  EXPECT_EQ(found->image, compiled->image);
  EXPECT_EQ(found->key, compiled->key);
  EXPECT_EQ(found->log, compiled->log);
  EXPECT_EQ(found->resources.registers, compiled->resources.registers);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(JitCache, DirectoryAndFilesAreTheUsersOwn) {
  compile_once();
  struct stat facts {};
  ASSERT_EQ(stat(cache_dir_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777U, 0700U);
  ASSERT_EQ(stat(only_entry().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777U, 0600U);
}

TEST_F(JitCache, J08_ArchitecturesShareADirectory) {
  compile_once();
  Jit jit(options(), "sm_90a");
  jit.compile(add_kernel());
  EXPECT_EQ(jit.stats().compiled, 1);
  EXPECT_EQ(entries().size(), 2U);
  expect_hit();
}

// A file made by another version of NVRTC, under every name that a reader might look for.
TEST_F(JitCache, J07_EntryOfAnotherCompilerIsAMiss) {
  const std::shared_ptr<const Nvrtc> nvrtc = Nvrtc::load({test_nvrtc(), {}});
  const Recipe recipe = make_recipe(add_kernel(1, "sm_80"));
  Cubin foreign = compile(*nvrtc, recipe);
  foreign.nvrtc_version = "12.9";
  foreign.key = recipe.key("12.9");
  foreign.image = "wrong";
  DiskCache cache(cache_dir_, {});
  cache.store(foreign, recipe);
  EXPECT_FALSE(cache.find(recipe, nvrtc->version()));
  ASSERT_TRUE(cache.find(recipe, "12.9"));
  fs::rename(only_entry(), fs::path(cache_dir_) / (recipe.key(nvrtc->version()) + ".kernel"));
  EXPECT_FALSE(cache.find(recipe, nvrtc->version()));
  expect_miss_then_hit("renamed");
}

TEST_F(JitCache, EveryTruncationIsAMiss) {
  compile_once();
  const fs::path file = only_entry();
  const std::string whole = read_file(file.string());
  std::string why;
  for (std::size_t length = 0; length < whole.size(); length += 1 + length / 64) {
    EXPECT_FALSE(decode_entry(std::string_view(whole).substr(0, length), why)) << length;
  }
  EXPECT_FALSE(decode_entry(whole + '\0', why));
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{40}, whole.size() - 1}) {
    overwrite(file, std::string_view(whole).substr(0, length));
    expect_miss_then_hit("cut to " + std::to_string(length));
  }
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(JitCache, EveryChangedByteIsAMiss) {
  compile_once();
  const fs::path file = only_entry();
  const std::string whole = read_file(file.string());
  std::string why;
  for (std::size_t at = 0; at < whole.size(); at += at < 512 ? 1 : 61) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    EXPECT_FALSE(decode_entry(bytes, why)) << at;
  }
  std::string bytes = whole;
  bytes[whole.size() / 2] = static_cast<char>(bytes[whole.size() / 2] ^ 1);
  overwrite(file, bytes);
  expect_miss_then_hit("changed byte");
}

// Well-formed, with a checksum of its own, but not the kernel that its name promises.
TEST_F(JitCache, AnotherKernelUnderThisNameIsAMiss) {
  compile_once();
  const fs::path file = only_entry();
  Jit jit(options(), "sm_80");
  const Recipe other = jit.recipe(add_kernel(2));
  overwrite(file, encode_entry(*jit.compile_recipe(other), other));
  expect_miss_then_hit("other recipe");
}

TEST_F(JitCache, OnlyOwnRegularFilesAreRead) {
  compile_once();
  const fs::path file = only_entry();
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);
  expect_miss_then_hit("writable by others");
  ASSERT_EQ(chmod(file.c_str(), 0620), 0);
  expect_miss_then_hit("writable by the group");
  const fs::path elsewhere = dir_ / "elsewhere";
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  expect_miss_then_hit("symbolic link");
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  expect_miss_then_hit("a pipe");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(JitCache, FileOfAnotherUserIsAMiss) {
  if (geteuid() != 0) GTEST_SKIP() << "giving a file away needs root";
  compile_once();
  ASSERT_EQ(chown(only_entry().c_str(), kNobody, kNobody), 0);
  expect_miss_then_hit("owner");
}

TEST_F(JitCache, J04_DirectoryOfAnotherUserOrOpenToOthersIsNotUsed) {
  compile_once();
  const auto expect_unused = [this](const std::string& what) {
    warnings_.clear();
    Jit jit(options(), "sm_80", log());
    jit.compile(add_kernel(1));
    jit.compile(add_kernel(2));
    EXPECT_EQ(jit.stats().compiled, 2) << what;
    ASSERT_EQ(warnings_.size(), 1U) << what;
    EXPECT_NE(warnings_.front().find(cache_dir_), std::string::npos) << warnings_.front();
    EXPECT_EQ(entries().size(), 1U) << what;
  };
  ASSERT_EQ(chmod(cache_dir_.c_str(), 0777), 0);
  expect_unused("mode");
  ASSERT_EQ(chmod(cache_dir_.c_str(), 0700), 0);
  if (geteuid() != 0) return;  // giving a directory away needs root
  ASSERT_EQ(chown(cache_dir_.c_str(), kNobody, kNobody), 0);
  expect_unused("owner");
}

TEST_F(JitCache, J04_DirectoryThatCannotBeMadeIsOneWarning) {
  overwrite(dir_ / "below", "");
  Jit jit(options(), "sm_80", log());
  jit.compile(add_kernel(1));
  jit.compile(add_kernel(2));
  EXPECT_EQ(jit.stats().compiled, 2);
  EXPECT_EQ(warnings_.size(), 1U);
}

// As another user where the tests run as root, whom modes do not stop.
TEST_F(JitCache, J04_ReadOnlyDirectoryIsReadAndNotWritten) {
  compile_once();
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod((dir_ / "below").c_str(), 0755), 0);
  ASSERT_EQ(chmod(cache_dir_.c_str(), 0555), 0);
  const bool is_root = geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(chown(only_entry().c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(chown(cache_dir_.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  Jit jit(options(), "sm_80", log());
  jit.compile(add_kernel(1));
  jit.compile(add_kernel(2));
  jit.compile(add_kernel(3));
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_EQ(jit.stats().from_cache, 1);
  EXPECT_EQ(jit.stats().compiled, 2);
  EXPECT_EQ(warnings_.size(), 1U);
  EXPECT_EQ(entries().size(), 1U);
  ASSERT_EQ(chmod(cache_dir_.c_str(), 0700), 0);
}

// A limit on the size of files fails writes as a full disk does, after the first bytes.
TEST_F(JitCache, J04_FullDiskLeavesNothingBehind) {
  compile_once();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Jit jit(options(), "sm_80", log());
  jit.compile(add_kernel(1));
  jit.compile(add_kernel(2));
  jit.compile(add_kernel(3));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(jit.stats().from_cache, 1);
  EXPECT_EQ(jit.stats().compiled, 2);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_EQ(entries().size(), 1U) << "the torn file was removed";
  expect_hit();
}

// ---------------------------------------------------------------------------------------------------------------- several processes

constexpr int kSharedKernels = 3;

// What the processes below run, with the cache that they share in the environment; by itself it has one of its own.
TEST(JitCacheChild, CompilesIntoTheCacheOfTheEnvironment) {
  const TemporaryDir own;
  JitOptions options;
  options.nvrtc = test_nvrtc();
  options.cache_dir = read_env().cache_dir.value_or(own / "cache");
  Jit jit(options, "sm_80");
  for (int i = 0; i < kSharedKernels; ++i) ASSERT_FALSE(jit.compile(add_kernel(i))->image.empty());
}

class JitCacheProcesses : public JitCache {
 protected:
  pid_t spawn_child() const {
    std::vector<std::string> words;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      if (!text.starts_with("GIRIH_CACHE=") && !text.starts_with("GTEST_")) words.push_back(text);
    }
    words.push_back("GIRIH_CACHE=" + cache_dir_);
    std::vector<char*> environment;
    for (std::string& word : words) environment.push_back(word.data());
    environment.push_back(nullptr);
    std::string self = "jit_cache_test";
    std::string filter = "--gtest_filter=JitCacheChild.*";
    std::string brief = "--gtest_brief=1";
    char* arguments[] = {self.data(), filter.data(), brief.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t child = -1;
    EXPECT_EQ(posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    return child;
  }
  int status_of(pid_t child) const {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }
};

TEST_F(JitCacheProcesses, J01_RacingOnAColdCacheAllSucceed) {
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) children.push_back(spawn_child());
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(entries().size(), static_cast<std::size_t>(kSharedKernels)) << "one valid file a kernel, no other files";
  for (const CacheItem& item : list_cache(cache_dir_)) EXPECT_TRUE(item.entry) << item.file << ": " << item.fault;
}

TEST_F(JitCacheProcesses, J02_KilledWritersLeaveNothingToWaitFor) {
  for (const int delay : {1, 10, 30, 100}) {
    const pid_t child = spawn_child();
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    kill(child, SIGKILL);
    status_of(child);
    Jit jit(options(), "sm_80", log());
    for (int i = 0; i < kSharedKernels; ++i) EXPECT_FALSE(jit.compile(add_kernel(i))->image.empty());
  }
  EXPECT_TRUE(warnings_.empty());
}

// ---------------------------------------------------------------------------------------------------------------- maintenance

TEST_F(JitCache, ListShowsFaultyFilesAndPruneRemovesThem) {
  Jit jit(options(), "sm_80");
  for (int i = 0; i < 3; ++i) jit.compile(add_kernel(i));
  overwrite(cache_dir_ + "/00000000000000000000000000000000.kernel", "x");
  overwrite(cache_dir_ + "/notes.txt", "x");
  overwrite(cache_dir_ + "/.writing-ABCDEF", "x");
  const timeval long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
  ASSERT_EQ(utimes((cache_dir_ + "/.writing-ABCDEF").c_str(), long_ago), 0);
  overwrite(cache_dir_ + "/.writing-UVWXYZ", "x");  // a writer at work
  std::vector<CacheItem> items = list_cache(cache_dir_);
  ASSERT_EQ(items.size(), 4U);
  EXPECT_FALSE(items[0].entry);
  EXPECT_EQ(items[0].fault, "shorter than a header");
  EXPECT_EQ(items[1].entry->cubin.name, "add_0");

  // The least recently used goes first.
  ASSERT_EQ(utimes((cache_dir_ + "/" + items[2].file).c_str(), long_ago), 0);
  const Pruned pruned = prune_cache(cache_dir_, items[1].bytes + items[3].bytes);
  EXPECT_EQ(pruned.files, 3) << "the old temporary file, the faulty file, the oldest entry";
  items = list_cache(cache_dir_);
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].entry->cubin.name, "add_0");
  EXPECT_EQ(items[1].entry->cubin.name, "add_2");
  EXPECT_TRUE(fs::exists(cache_dir_ + "/notes.txt")) << "not ours to remove";
  EXPECT_TRUE(fs::exists(cache_dir_ + "/.writing-UVWXYZ"));
  prune_cache(cache_dir_, 0);
  EXPECT_TRUE(list_cache(cache_dir_).empty());
  EXPECT_TRUE(list_cache(dir_ / "nothing").empty());
}

TEST_F(JitCache, UseKeepsAnEntryYoung) {
  compile_once();
  const timeval long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
  ASSERT_EQ(utimes(only_entry().c_str(), long_ago), 0);
  expect_hit();
  EXPECT_GT(list_cache(cache_dir_).front().last_used, 1000000000);
}

}  // namespace
}  // namespace girih::jit
