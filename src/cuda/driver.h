// The NVIDIA driver as found at run time: a typed table of the functions used, loaded once per Context by dlopen("libcuda.so.1"). No CUDA
// headers: handles are opaque pointers, enumerations are the driver's documented numbers. A machine without a driver gets a typed error
// that says what was looked for; nothing else of the library needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace girih::cuda {

using Stream = void*;    // CUstream; null = the default stream of the context
using Event = void*;     // CUevent
using Module = void*;    // CUmodule
using Function = void*;  // CUfunction
using Pointer = std::uint64_t;  // CUdeviceptr

/// What kernels and plans are chosen by. Also made by hand, so that schedules and kernels can be prepared for a GPU that is not here.
struct DeviceInfo {
  std::string name;
  int arch = 0;  // compute capability: 75, 80, 86, 89, 90, 100, 120
  int num_sms = 0;
  std::int64_t shared_per_block = 0;  // opt-in limit, bytes
  std::int64_t shared_per_sm = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
};

/// NVRTC's name of the target: 90 -> "sm_90a", 80 -> "sm_80". The architecture-specific one where kernels use its instructions.
std::string nvrtc_arch(int arch);

}  // namespace girih::cuda
