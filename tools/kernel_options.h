// Which kernels a command is about: options shared by `girih compile`, `source` and `pack build`. A kernel comes from a spec (options, a
// batch file, a model) or is a CUDA source of the caller's; each is taken for every architecture asked for. No GPU is needed.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "jit/compiler.h"

namespace girih::tools {

struct KernelOptions {
  std::string file, source, entry, arch, family;
  std::string dtype = "bf16", kv_dtype, mask = "causal", logits = "none", lse = "none", mask_text, logits_text;
  std::vector<std::string> models;
  int num_qo_heads = 32, num_kv_heads = 8, head_dim = 128, head_dim_vo = 0;
  bool sinks = false, batch_invariant = false;
};
void add_kernel_options(CLI::App& command, KernelOptions& options);

/// One kernel for one architecture, and how it is launched (zeros where the caller's own source does not say).
struct WantedKernel {
  jit::KernelSource source;
  std::string family;
  int num_threads = 0;
  int blocks_per_sm = 0;
  std::int64_t shared_bytes = 0;
};
/// Throws invalid_argument or unsupported naming the option, io naming the file.
std::vector<WantedKernel> wanted_kernels(const KernelOptions& options);

}  // namespace girih::tools
