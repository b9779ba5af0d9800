// What the library found and chose on this machine: for `girih info` and girih.info() of the Python package. What is missing is reported
// with its reason, and is no failure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "cuda/driver.h"
#include "girih/attention.h"
#include "girih/context.h"

namespace girih {

struct DriverFacts {
  std::string cuda;       // "13.0": what the driver supports
  std::string missing{};  // why there is none
  std::vector<cuda::DeviceInfo> gpus;
};

struct NvrtcFacts {
  std::string version, path;
  std::vector<int> archs;  // compute capabilities that it compiles for
  std::string missing{};
};

struct CacheFacts {
  std::string dir;  // empty = off
  std::int64_t kernels = 0, faulty = 0, bytes = 0;
  std::string fault{};
};

struct PackFacts {
  std::string dir;
  std::int64_t kernels = 0;
  std::string nvrtc{};
  bool usable = false;  // made from this library's kernel texts
  std::string fault{};
};

struct Facts {
  std::string version;
  CpuInfo cpu;
  std::vector<CpuTarget> targets;
  CpuTarget target{};  // of a default Context
  int workers = 0;
  std::vector<AttentionCapability> attention;
  DriverFacts driver;
  NvrtcFacts nvrtc;
  JitPolicy policy{};
  std::string bundle;  // hash of all kernel texts
  std::int64_t num_texts = 0;
  CacheFacts cache;
  std::vector<PackFacts> packs;
  std::vector<EnvVariable> environment;
};

/// Throws invalid_argument where an environment variable is malformed.
Facts collect_facts();

}  // namespace girih
