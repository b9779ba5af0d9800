// The fake driver as a test program loads it: by the name that the library looks for, from the path that ctest sets.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

#include "fake_cuda/fake_driver.h"

namespace girih::fake_cuda {

/// A function of the driver's or of the fake's own. The library stays loaded.
template <typename Function>
Function fake(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  auto function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error("libcuda.so.1 is not the fake driver");
  return function;
}

/// fake_cuda_num_waits() and the like.
inline std::int64_t count(const char* name) { return fake<std::int64_t (*)()>(name)(); }

inline void set_hooks(const Hooks& hooks) { fake<void (*)(const Hooks*)>("fake_cuda_set_hooks")(&hooks); }

}  // namespace girih::fake_cuda
