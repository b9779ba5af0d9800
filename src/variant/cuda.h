// Prints a Program as the `struct Variant` that CUDA kernels are compiled with: each hook as two device functions, one for what is fixed
// for a query row (or key), computed once, and one for the rest. kernels/attention/variant.cuh holds the absent hooks and the operations.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "variant/program.h"

namespace girih::variant {

/// `exact`: functions as accurate as on the CPU. `approximate`: tanh and sigmoid by exp2_approx, for kernels that round weights to 16 bits;
/// their absolute error is 2^-21. What conditions depend on is exact in any case.
enum class CudaMath : std::uint8_t { exact, approximate };

/// RoPE as kernels take it: turns a position of pair i, in units of 2^-64.
struct CudaRope {
  int begin = 0;
  bool interleave = false;
  std::span<const std::uint64_t> turns{};  // [pairs]; empty = no RoPE
};

/// "struct Variant : PlainVariant { ... };\n". Equal programs give equal text.
std::string print_cuda(const Program& program, const CudaRope& rope, CudaMath math);

}  // namespace girih::variant
