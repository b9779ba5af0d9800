// The generated row kernels that are built into the emulator's test: found by their source text, so that a test can only run what the
// library would compile for a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "abi/rows_params.h"
#include "emulator/kernels.h"

namespace girih::emulator {

struct RowKernel {
  std::uint64_t source_hash;
  const char* name;
  void (*entry)(abi::RowsParams);
};

/// In the generated rows_kernels.cc.
std::span<const RowKernel> row_kernels();

}  // namespace girih::emulator
