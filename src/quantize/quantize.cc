// quantize() and dequantize(): arguments checked and described as one part of the row operators' core.
#include "quantize/quantize.h"

#include "base/error.h"
#include "rows/check.h"

namespace girih {

rows::Launch describe_quantize(Device device, const TensorView& x, const TensorView& out, const Quantization& quantization) {
  const rows::Checker check{.op = "quantize", .device = device, .tiles = true};
  const rows::RowShape shape = check.shape("x", x);
  rows::Launch launch;
  launch.params.rows = shape.rows;
  const auto part = launch.add();
  auto& [config, params] = part;
  config.dim = static_cast<int>(shape.dim);
  params.heads = static_cast<std::int32_t>(shape.heads);
  params.x = check.source("x", x, shape);
  config.x = config.weight = rows::elem_of(x.dtype);
  params.out = check.output("out", out, shape);
  check.quantization(quantization, out, shape, part);
  check.overlap("out", params.out, config.out, "x", params.x, config.x, shape, shape.dim);
  if (config.scaling == abi::Scaling::tile) launch.work = rows::Work::quantize_tiles;
  return launch;
}

rows::Launch describe_dequantize(Device device, const TensorView& x, const TensorView& out, const Quantization& quantization) {
  const rows::Checker check{.op = "dequantize", .device = device, .tiles = true};
  const rows::RowShape shape = check.shape("x", x);
  rows::Launch launch;
  launch.work = rows::Work::dequantize;
  launch.params.rows = shape.rows;
  const auto part = launch.add();
  auto& [config, params] = part;
  config.dim = static_cast<int>(shape.dim);
  params.heads = static_cast<std::int32_t>(shape.heads);
  params.x = check.codes("x", x, shape);
  config.x = rows::elem_of(x.dtype);
  if (out.dtype != DType::f32 && out.dtype != DType::f16 && out.dtype != DType::bf16)
    fail(Code::invalid_argument, "dequantize", "out is {}; must be f32, f16 or bf16", name(out.dtype));
  params.out = check.output("out", out, shape);
  config.out = config.weight = rows::elem_of(out.dtype);
  check.quantization(quantization, x, shape, part, true);
  check.overlap("out", params.out, config.out, "x", params.x, config.x, shape, shape.dim);
  return launch;
}

void quantize(const Context& context, const TensorView& x, const TensorView& out, const Quantization& quantization, void* stream) {
  rows::run(context, "quantize", describe_quantize(context.device(), x, out, quantization), stream);
}

void dequantize(const Context& context, const TensorView& x, const TensorView& out, const Quantization& quantization, void* stream) {
  rows::run(context, "dequantize", describe_dequantize(context.device(), x, out, quantization), stream);
}

}  // namespace girih
