// What the compiler is given and gives back: embedded texts, recipes and keys, targets, resources, errors, NVRTC that is not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <sstream>

#include "base/file.h"
#include "jit/jit.h"
#include "jit/sources.h"
#include "jit_kernels.h"

namespace girih::jit {
namespace {

TEST(JitSources, AreTheFilesOfTheTree) {
  const std::filesystem::path root = GIRIH_SOURCE_DIR;
  std::set<std::string> names;
  std::string last;
  for (const EmbeddedSource& source : embedded_sources()) {
    const std::string name(source.name);
    EXPECT_LT(last, name);
    last = name;
    names.insert(name);
    const std::filesystem::path file = name == "cstdint"          ? root / "kernels/core/cstdint"
                                       : name.starts_with("abi/") ? root / "src" / name
                                                                  : root / "kernels" / name;
    EXPECT_EQ(read_file(file.string()), source.text) << name;
    EXPECT_EQ(source.text.data()[source.text.size()], '\0') << name;
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "kernels")) {
    if (entry.path().extension() != ".cuh") continue;
    EXPECT_TRUE(names.contains(std::filesystem::relative(entry.path(), root / "kernels").string())) << entry.path();
  }
  EXPECT_EQ(bundle_hash().size(), 32U);
}

/// No header of a toolkit or of the system: a compiler that finds none compiles them all.
TEST(JitSources, IncludeOneAnotherAndNothingElse) {
  const auto embedded = [](std::string_view name) {
    return std::any_of(embedded_sources().begin(), embedded_sources().end(), [&](const EmbeddedSource& s) { return s.name == name; });
  };
  std::size_t includes = 0;
  for (const EmbeddedSource& source : embedded_sources()) {
    std::istringstream text{std::string(source.text)};
    for (std::string line; std::getline(text, line);) {
      if (line.rfind("#include", 0) != 0) continue;
      const std::size_t begin = line.find_first_of("<\"") + 1;
      const std::string name = line.substr(begin, line.find_first_of(">\"", begin) - begin);
      EXPECT_TRUE(embedded(name)) << source.name << ": " << line;
      ++includes;
    }
  }
  EXPECT_GT(includes, embedded_sources().size());
}

TEST(JitSources, NameNoPathOfTheMachine) {
  for (const EmbeddedSource& source : embedded_sources()) {
    EXPECT_EQ(source.text.find(GIRIH_SOURCE_DIR), std::string_view::npos) << source.name;
  }
}

TEST(JitRecipe, J05_J07_EveryInputThatMattersChangesTheKey) {
  const Recipe recipe = make_recipe(add_kernel(1, "sm_80"));
  std::set<std::string> keys = {recipe.key("13.0")};
  const auto expect_new = [&keys](const Recipe& other, std::string_view version) {
    EXPECT_TRUE(keys.insert(other.key(version)).second) << other.text();
  };
  expect_new(recipe, "12.9");
  expect_new(recipe, "13.1");
  expect_new(make_recipe(add_kernel(1, "sm_90a")), "13.0");
  expect_new(make_recipe(add_kernel(1, "compute_80")), "13.0");
  expect_new(make_recipe(add_kernel(1, "sm_80"), {"--generate-line-info"}), "13.0");
  Recipe changed = recipe;
  changed.kernel.source += "\n";
  expect_new(changed, "13.0");
  changed = recipe;
  changed.kernel.name = "add_2";
  expect_new(changed, "13.0");
  changed = recipe;
  changed.bundle.back() = changed.bundle.back() == '0' ? '1' : '0';
  expect_new(changed, "13.0");
  // Bytes cannot move from one input to its neighbour.
  changed = recipe;
  changed.options.pop_back();
  changed.kernel.source = "option --x\n" + changed.kernel.source;
  expect_new(changed, "13.0");
}

TEST(JitRecipe, NothingElseChangesTheKey) {
  const std::string key = make_recipe(add_kernel(1, "sm_80"), {"--a", "--b"}).key("13.0");
  EXPECT_EQ(make_recipe(add_kernel(1, "sm_80"), {"--b", "--a"}).key("13.0"), key) << "order of options";
  ASSERT_EQ(setenv("PATH", "/nowhere", 1), 0);
  ASSERT_EQ(setenv("CUDA_HOME", "/nowhere", 1), 0);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path("/");
  EXPECT_EQ(make_recipe(add_kernel(1, "sm_80"), {"--a", "--b"}).key("13.0"), key) << "environment, working directory";
  std::filesystem::current_path(before);
  EXPECT_EQ(key.size(), 32U);
  EXPECT_TRUE(std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isxdigit(c) != 0; }));
}

TEST(JitRecipe, RefusesTargetsThatNameNoArchitecture) {
  for (const char* target : {"", "90", "sm_", "sm_x", "sm_90b", "compute_90x", "sm_90a -I/"}) {
    const std::string text = message_of(Code::invalid_argument, [&] { make_recipe(add_kernel(1, target)); });
    EXPECT_NE(text.find("must be like sm_80"), std::string::npos) << text;
  }
}

TEST(JitRecipe, RefusesNamesAndOptionsThatCouldBeReadAsSomethingElse) {
  for (const char* name : {"", "a b", "../a", "a\nb", "a-b"}) {
    KernelSource kernel = add_kernel(1, "sm_80");
    kernel.name = name;
    EXPECT_NE(message_of(Code::invalid_argument, [&] { make_recipe(kernel); }).find("identifier"), std::string::npos) << name;
  }
  for (const char* option : {"", "--a\noption --b", "file.cu"}) {
    const std::string text = message_of(Code::invalid_argument, [&] { make_recipe(add_kernel(1, "sm_80"), {option}); });
    EXPECT_NE(text.find("must be one option"), std::string::npos) << text;
  }
}

class JitCompile : public testing::Test {
 protected:
  JitOptions options() const {
    JitOptions options;
    options.nvrtc = test_nvrtc();
    return options;
  }
  TemporaryDir dir_;
};

TEST_F(JitCompile, EveryArchitecture) {
  Jit jit(options(), "sm_80");
  for (const char* target :
       {"sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"}) {
    const std::shared_ptr<const Cubin> cubin = jit.compile(add_kernel(1, target));
    EXPECT_EQ(cubin->image.substr(1, 3), "ELF") << target;
    EXPECT_EQ(cubin->target, target);
    EXPECT_GT(cubin->resources.registers, 3) << target << cubin->log;
    EXPECT_LT(cubin->resources.registers, 33) << target << cubin->log;
    EXPECT_EQ(cubin->resources.spill_stores + cubin->resources.spill_loads + cubin->resources.stack_bytes, 0) << cubin->log;
  }
}

TEST_F(JitCompile, EveryHeaderOfTheKernelsCompilesAlone) {
  Jit jit(options(), "sm_90a");
  for (const EmbeddedSource& source : embedded_sources()) {
    const std::string name(source.name);
    for (const char* target : {"sm_75", "sm_90a", "sm_120a"}) {
      if (name == "ptx/mma.cuh" && std::string_view(target) == "sm_75") continue;  // bf16 products from sm_80 on
      const KernelSource kernel = {"nothing", "#include \"" + name + "\"\nextern \"C\" __global__ void nothing() {}\n", target};
      EXPECT_NO_THROW(jit.compile(kernel)) << name << " for " << target;
    }
  }
}

TEST_F(JitCompile, PtxForTheDriverToAssemble) {
  Jit jit(options(), "compute_75");
  const std::shared_ptr<const Cubin> ptx = jit.compile(add_kernel());
  EXPECT_NE(ptx->image.find(".target sm_75"), std::string::npos);
  EXPECT_EQ(ptx->image.back(), '\0');
  EXPECT_EQ(ptx->resources.registers, 0);
}

TEST_F(JitCompile, EqualRecipesGiveEqualBytes) {
  Jit one(options(), "sm_90a");
  Jit two(options(), "sm_90a");
  const std::shared_ptr<const Cubin> a = one.compile(add_kernel());
  const std::shared_ptr<const Cubin> b = two.compile(add_kernel());
  EXPECT_EQ(a->image, b->image);
  EXPECT_EQ(a->log, b->log);
  EXPECT_EQ(a->key, b->key);
}

TEST_F(JitCompile, MemoryAnswersTheSecondTime) {
  Jit jit(options(), "sm_80");
  const std::shared_ptr<const Cubin> first = jit.compile(add_kernel());
  EXPECT_EQ(jit.compile(add_kernel()), first);
  EXPECT_NE(jit.compile(add_kernel(1, "sm_90a")), first) << "another architecture in one process";
  EXPECT_EQ(jit.stats().compiled, 2);
  EXPECT_EQ(jit.stats().from_memory, 1);
}

TEST_F(JitCompile, J10_FailureSaysWhatWhereAndWithWhat) {
  JitOptions o = options();
  o.cache_dir = dir_ / "cache";
  Jit jit(o, "sm_80");
  const KernelSource kernel = {"wrong", "#include \"core/types.cuh\"\nextern \"C\" __global__ void wrong() { no_such_thing(); }\n", ""};
  const std::string text = message_of(Code::internal, [&] { jit.compile(kernel); });
  EXPECT_NE(text.find("kernel wrong does not compile"), std::string::npos) << text;
  EXPECT_NE(text.find("wrong.cu(2)"), std::string::npos) << text;
  EXPECT_NE(text.find("no_such_thing"), std::string::npos) << text;
  EXPECT_NE(text.find("--gpu-architecture=sm_80"), std::string::npos) << text;
  EXPECT_NE(text.find(jit.recipe(kernel).key(jit.nvrtc().version())), std::string::npos) << text;
  const std::size_t saved = text.find(dir_ / "cache/failed/");
  ASSERT_NE(saved, std::string::npos) << text;
  EXPECT_EQ(read_file(text.substr(saved)), kernel.source);
}

TEST_F(JitCompile, FailureWithoutACacheSavesTheSourceElsewhere) {
  ASSERT_EQ(setenv("TMPDIR", dir_.path().c_str(), 1), 0);
  Jit jit(options(), "sm_80");
  const std::string text = message_of(Code::internal, [&] { jit.compile({"wrong", "#error told so\n", ""}); });
  unsetenv("TMPDIR");
  EXPECT_NE(text.find("told so"), std::string::npos) << text;
  const std::size_t saved = text.find(dir_ / "girih-");
  ASSERT_NE(saved, std::string::npos) << text;
  EXPECT_EQ(read_file(text.substr(saved)), "#error told so\n");
}

TEST_F(JitCompile, TargetThatThisCompilerDoesNotKnow) {
  Jit jit(options(), "sm_199a");
  const std::string text = message_of(Code::unsupported, [&] { jit.compile(add_kernel()); });
  EXPECT_NE(text.find("sm_199a"), std::string::npos) << text;
  EXPECT_NE(text.find(jit.nvrtc().path()), std::string::npos) << text;
}

TEST_F(JitCompile, NvrtcThatIsNotThere) {
  JitOptions o;
  o.nvrtc = dir_ / "libnvrtc.so.13";
  Jit jit(o, "sm_80");
  const std::string text = message_of(Code::unsupported, [&] { jit.compile(add_kernel()); });
  EXPECT_NE(text.find(*o.nvrtc), std::string::npos) << text;
  EXPECT_NE(text.find("nvidia-cuda-nvrtc"), std::string::npos) << text;
  o.nvrtc = dir_.path();
  Jit in_dir(o, "sm_80");
  EXPECT_NE(message_of(Code::unsupported, [&] { in_dir.compile(add_kernel()); }).find(dir_ / "libnvrtc.so"), std::string::npos);
}

TEST_F(JitCompile, NvrtcByDirectory) {
  const std::shared_ptr<const Nvrtc> found = Nvrtc::load({test_nvrtc(), {}});
  const std::filesystem::path dir = std::filesystem::path(found->path()).parent_path();
  EXPECT_EQ(Nvrtc::load({dir.string(), {}})->version(), found->version());
}

TEST_F(JitCompile, NvrtcIsSearchedInTheLoadersPathThenInToolkitsThenInWheels) {
  const std::string lib = dir_ / "lib/python3.99/site-packages/nvidia/cu13/lib";
  const std::string older = dir_ / "lib/python3.99/site-packages/nvidia/cuda_nvrtc/lib";
  std::filesystem::create_directories(lib);
  std::filesystem::create_directories(older);
  std::ofstream(lib + "/libnvrtc.so.13") << "not one";
  std::ofstream(older + "/libnvrtc.so.12") << "not one";
  const std::vector<std::string> found = nvrtc_candidates({{}, dir_.path()});
  ASSERT_GE(found.size(), 4U);
  EXPECT_EQ(found[0], "libnvrtc.so.13");
  EXPECT_EQ(found[1], "libnvrtc.so.12");
  const auto wheel = std::find(found.begin(), found.end(), lib + "/libnvrtc.so.13");
  ASSERT_NE(wheel, found.end());
  ASSERT_NE(wheel + 1, found.end());
  EXPECT_EQ(wheel[1], older + "/libnvrtc.so.12");
  EXPECT_TRUE(std::none_of(wheel, found.end(), [](const std::string& path) { return path.starts_with("/usr/local/cuda"); }));
  EXPECT_EQ(nvrtc_candidates({lib, dir_.path()}), std::vector<std::string>{lib + "/libnvrtc.so.13"}) << "a given path ends the search";
  // A file that is no library is passed over, and named where nothing else is found.
  const std::string text = message_of(Code::unsupported, [&] { Nvrtc::load({lib, {}}); });
  EXPECT_NE(text.find(lib + "/libnvrtc.so.13"), std::string::npos) << text;
}

TEST_F(JitCompile, ResourcesOfTheAssemblersReport) {
  const Resources r = parse_resources(
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\nptxas info    : Function properties for k\n"
      "ptxas         .     48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 3 barriers, 1024 bytes smem, 400 bytes cmem[0]\n");
  EXPECT_EQ(r.registers, 168);
  EXPECT_EQ(r.stack_bytes, 48);
  EXPECT_EQ(r.spill_stores, 40);
  EXPECT_EQ(r.spill_loads, 44);
  EXPECT_EQ(r.static_shared, 1024);
  EXPECT_EQ(r.barriers, 3);
  EXPECT_EQ(parse_resources("").registers, 0);
}

}  // namespace
}  // namespace girih::jit
