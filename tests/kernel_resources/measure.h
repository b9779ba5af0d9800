// What a listed kernel costs on the device, by NVRTC's report; and what no kernel may exceed. Results are kept in a directory by content:
// the kernel's text, the embedded texts that it includes, options and compiler. So only what changed is compiled again.
#pragma once

#include <memory>
#include <string>

#include "jit/nvrtc.h"
#include "kernel_resources/list.h"

namespace girih::kernel_resources {

struct Measured {
  int registers = 0;              // a thread
  std::int64_t shared = 0;        // a block, dynamic
  std::int64_t stack = 0;         // bytes of local memory, a thread
  std::int64_t spill_stores = 0;  // bytes, a thread
  std::int64_t spill_loads = 0;
  std::int64_t static_shared = 0;  // a block; kernels have none
  friend bool operator==(const Measured&, const Measured&) = default;
  bool uses_local() const { return stack + spill_stores + spill_loads > 0; }
};

class Meter {
 public:
  /// Throws where there is no NVRTC, or the directory cannot be made.
  explicit Meter(std::string cache_dir);

  /// Of the NVRTC that compiles, to the last digit: "13.0.88".
  const std::string& version() const { return version_; }
  /// From any thread. Throws where the kernel does not compile.
  Measured measure(const ListedKernel& kernel) const;

 private:
  std::string cache_dir_;
  std::shared_ptr<const jit::Nvrtc> nvrtc_;
  std::string version_;
};

/// Empty, or what of an architecture's limits the kernel exceeds.
std::string limit_fault(const ListedKernel& kernel, const Measured& measured);

}  // namespace girih::kernel_resources
