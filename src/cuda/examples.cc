// GPUs to prepare kernels for where they are not at hand. Limits of each compute capability from the CUDA programming guide ("Technical
// specifications per compute capability"); counts and sizes of one common product, named here.
#include <array>

#include "base/error.h"
#include "cuda/driver.h"

namespace girih::cuda {
namespace {

struct Example {
  const char* name;
  int arch;
  int num_sms;
  int shared_per_block_kib;  // opt-in
  int shared_per_sm_kib;
  int l2_mib;
  int memory_gib;
};

constexpr std::array kExamples = {
    Example{"T4", 75, 40, 64, 64, 4, 16},
    Example{"A100", 80, 108, 163, 164, 40, 80},
    Example{"A40", 86, 84, 99, 100, 6, 48},
    Example{"Jetson AGX Orin", 87, 16, 163, 164, 4, 64},
    Example{"L40S", 89, 142, 99, 100, 96, 48},
    Example{"H200", 90, 132, 227, 228, 50, 141},
    Example{"B200", 100, 148, 227, 228, 126, 180},
    Example{"B300", 103, 148, 227, 228, 126, 288},
    Example{"Jetson Thor", 110, 20, 227, 228, 32, 128},
    Example{"RTX 5090", 120, 170, 99, 100, 96, 32},
    Example{"GB10", 121, 48, 99, 100, 24, 128},
};

}  // namespace

DeviceInfo example_device(int arch) {
  std::string known;
  for (const Example& e : kExamples) {
    if (e.arch == arch) {
      return {.name = e.name,
              .arch = e.arch,
              .num_sms = e.num_sms,
              .shared_per_block = std::int64_t{e.shared_per_block_kib} << 10,
              .shared_per_sm = std::int64_t{e.shared_per_sm_kib} << 10,
              .l2_bytes = std::int64_t{e.l2_mib} << 20,
              .memory_bytes = std::int64_t{e.memory_gib} << 30};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", e.arch);
  }
  fail(Code::invalid_argument, "cuda", "arch={}; must be one of {}", arch, known);
}

std::vector<int> example_archs() {
  std::vector<int> archs;
  archs.reserve(std::size(kExamples));
  for (const Example& e : kExamples) archs.push_back(e.arch);
  return archs;
}

}  // namespace girih::cuda
