// Every kernel whose cost on the device is watched: those of the emulator's cases (tests/emulator/cases.h), of what a Llama, an MLA and a
// sink model need, and of the cache operators and merges; each for every architecture. The library chooses and prints them as for a GPU of
// that architecture (cuda::example_device), so lists differ between architectures where families or tiles do.
#pragma once

#include <cstdint>
#include <vector>

#include "jit/compiler.h"

namespace girih::kernel_resources {

struct ListedKernel {
  jit::KernelSource source;  // names differ within an architecture
  int arch = 0;
  int num_threads = 0;  // a block
  int blocks_per_sm = 1;
  std::int64_t shared_bytes = 0;  // dynamic, a block
  /// In the record, so that a renewal shows each change of its cost: on sm_75, sm_80 and sm_90a all, elsewhere the models' and one of each
  /// family, tile class, type of Q, type of K, and of MLA. Of the others, which only `script/kernel-resources --all` compiles, the record
  /// has those that use local memory.
  bool recorded = false;
  /// Compiled by every run of the tests, in two minutes instead of eight; `script/kernel-resources` compiles all that are recorded. On
  /// sm_75, sm_80 and sm_90a, between which the code differs, one of each of those classes; elsewhere one of each family and tile class and
  /// of each type of K, which chips convert by instructions of their own.
  bool tested = false;
};

/// By architecture, in the same order within each.
std::vector<ListedKernel> listed_kernels();

}  // namespace girih::kernel_resources
