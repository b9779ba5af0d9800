// The row operators' common core. An operator describes its tensors as parts (abi/rows_params.h: what each goes through, and where it
// lies), and run() does them on the context's device. Nothing is checked here: operators check their arguments with check.h first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "abi/rows_params.h"
#include "girih/context.h"

namespace girih::rows {

/// Elements of a row and head at most: what a block of a GPU can hold.
inline constexpr std::int64_t kMaxDim = 1 << 17;
/// Rows times heads at most.
inline constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

/// pipeline: what PartConfig describes. The others have one part: quantize_tiles (Scaling::tile); dequantize, where x are codes and
/// `scaling` says which scales belong to them.
enum class Work { pipeline, quantize_tiles, dequantize };

struct Launch {
  Work work = Work::pipeline;
  abi::RowsParams params{};
  std::array<abi::PartConfig, abi::kMaxParts> configs{};
  int num_parts = 0;

  /// A new part, to be described.
  struct Part {
    abi::PartConfig& config;
    abi::RowPart& args;
  };
  Part add() {
    const auto i = static_cast<std::size_t>(num_parts++);
    params.parts[i].global_scale = 1.0F;
    params.parts[i].heads = 1;
    return {configs[i], params.parts[i]};
  }
};

/// `op` names the operator in messages. On a CUDA device queued on `stream`.
void run(const Context& context, std::string_view op, const Launch& launch, void* stream);

void run_on_cpu(const Context& context, const Launch& launch);
struct Kernels;
void quantize_tiles_on_cpu(const Context& context, const Kernels& k, const Launch& launch);
void dequantize_on_cpu(const Context& context, const Kernels& k, const Launch& launch);
void run_on_device(const Context& context, std::string_view op, const Launch& launch, void* stream);

/// The launch as a GPU does it: `threads`, `vectors`, `heads`, `aligned` and `num_blocks` of every part chosen.
struct Shape {
  int num_threads = 0;
  std::int64_t shared_bytes = 0;
  std::int64_t num_blocks = 0;
};
Shape shape_launch(Launch& launch);
/// Generated source of the kernel that does launches with these (shaped) configurations; `name` receives its entry.
std::string source_of(const Launch& launch, const Shape& shape, std::string& name);

abi::Elem elem_of(DType t);
constexpr int bits_of(abi::Elem e) {
  using abi::Elem;
  return e == Elem::f32 ? 32 : e == Elem::f16 || e == Elem::bf16 ? 16 : e == Elem::nvfp4 || e == Elem::mxfp4 ? 4 : 8;
}
/// Elements of a row that share a scale of such codes; 0 = none.
constexpr int block_of(abi::Scaling scaling, abi::Elem codes) {
  using abi::Scaling;
  if (scaling == Scaling::tile) return 128;
  if (scaling != Scaling::block && scaling != Scaling::mx) return 0;
  if (codes == abi::Elem::nvfp4) return 16;
  return codes == abi::Elem::mxfp4 || scaling == Scaling::mx ? 32 : 128;
}

}  // namespace girih::rows
