// What the tests of the JIT share: a small kernel, the NVRTC to use, a directory that goes away.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "base/env.h"
#include "girih/error.h"
#include "jit/compiler.h"

namespace girih::jit {

/// Adds `addend` to each of n numbers: a kernel that includes an embedded text, and differs where `addend` does.
inline KernelSource add_kernel(int addend = 1, std::string target = {}) {
  const std::string name = "add_" + std::to_string(addend);
  return {.name = name,
          .source = "// " + name +
                    "\n#include \"ptx/thread.cuh\"\n"
                    "struct Params { float* data; int n; };\n"
                    "extern \"C\" __global__ __launch_bounds__(128) void " +
                    name +
                    "(const __grid_constant__ Params p) {\n"
                    "  const int i = girih::ptx::block_idx() * girih::ptx::num_threads() + girih::ptx::thread_idx();\n"
                    "  if (i < p.n) p.data[i] += " +
                    std::to_string(addend) + ";\n}\n",
          .target = std::move(target)};
}

/// Where NVRTC is for the tests: as the environment says, which ctest sets where script/setup had to install it; empty = the library's own
/// search. Its absence fails the tests that ask for it.
inline std::string test_nvrtc() { return read_env().nvrtc.value_or(""); }

/// The text of the Error that f throws, which must have this code.
inline std::string message_of(Code code, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

/// A directory of one test, removed at its end.
class TemporaryDir {
 public:
  TemporaryDir() {
    std::string name = (std::filesystem::temp_directory_path() / "girih-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = name;
  }
  ~TemporaryDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace girih::jit
