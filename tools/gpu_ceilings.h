// A GPU's ceilings, measured by two kernels of our own: a read-only stream over memory, and mma.sync on registers.
#pragma once

#include "girih/context.h"
#include "tools/machine.h"

namespace girih::tools {

/// read_bytes_per_second, and bf16_flops by mma.sync m16n8k16 with f32 sums (f16 operands, which every chip with tensor cores has).
MachineCeilings measure_gpu_ceilings(const Context& context);

}  // namespace girih::tools
