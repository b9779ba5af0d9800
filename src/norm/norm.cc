// rms_norm() and layer_norm(): arguments checked and described as one part of the row operators' core.
#include "girih/norm.h"

#include <cmath>

#include "base/error.h"
#include "norm/norm.h"
#include "rows/check.h"

namespace girih {

rows::Launch describe_norm(std::string_view op, Device device, abi::Norm norm, const NormArgs& args) {
  const rows::Checker check{.op = op, .device = device};
  const rows::RowShape shape = check.shape("x", args.x);
  rows::Launch launch;
  launch.params.rows = shape.rows;
  const auto part = launch.add();
  auto& [config, params] = part;
  config.norm = norm;
  config.dim = static_cast<int>(shape.dim);
  params.heads = static_cast<std::int32_t>(shape.heads);
  params.x = check.source("x", args.x, shape);
  config.x = rows::elem_of(args.x.dtype);
  params.out = check.output("out", args.out, shape);
  check.quantization(args.quantization, args.out, shape, part);
  config.weight = config.x;
  if (args.weight.rank != 0) {
    params.weight_head_stride = check.weight("weight", args.weight, shape, args.x.dtype);
    params.weight = static_cast<const unsigned char*>(args.weight.data);
    config.weight = rows::elem_of(args.weight.dtype);
    config.has_weight = true;
  }
  if (args.bias.rank != 0) {
    if (norm != abi::Norm::layer) fail(Code::invalid_argument, op, "bias is given; only layer_norm adds one");
    const std::int64_t stride = check.weight("bias", args.bias, shape, args.x.dtype);
    if (args.weight.rank != 0 && (args.bias.dtype != args.weight.dtype || stride != params.weight_head_stride))
      fail(Code::invalid_argument, op, "bias is {} of rank {}; must have weight's type and strides, {} of rank {}", name(args.bias.dtype),
           args.bias.rank, name(args.weight.dtype), args.weight.rank);
    params.weight_head_stride = stride;
    params.bias = static_cast<const unsigned char*>(args.bias.data);
    config.weight = rows::elem_of(args.bias.dtype);
    config.has_bias = true;
  }
  if (!std::isfinite(args.eps) || args.eps < 0) fail(Code::invalid_argument, op, "eps={}; must be finite and >= 0", args.eps);
  if (!std::isfinite(args.weight_offset)) fail(Code::invalid_argument, op, "weight_offset={}; must be finite", args.weight_offset);
  if (args.weight_offset != 0 && args.weight.rank == 0)
    fail(Code::invalid_argument, op, "weight_offset={} without weight; give weight, or use 0", args.weight_offset);
  params.eps = args.eps;
  params.weight_offset = args.weight_offset;
  if (args.residual.rank != 0) {
    config.residual = true;
    params.second = check.source("residual", args.residual, shape);
    if (args.residual.dtype != args.x.dtype)
      fail(Code::invalid_argument, op, "residual is {}; must be x's {}", name(args.residual.dtype), name(args.x.dtype));
  }
  check.overlap("out", params.out, config.out, "x", params.x, config.x, shape, shape.dim);
  check.overlap("out", params.out, config.out, "residual", params.second, config.x, shape, shape.dim);
  if (args.residual_out.rank != 0) {
    if (!config.residual) fail(Code::invalid_argument, op, "residual_out is given without residual; give both, or neither");
    params.residual_out = check.output("residual_out", args.residual_out, shape);
    if (args.residual_out.dtype != args.x.dtype)
      fail(Code::invalid_argument, op, "residual_out is {}; must be x's {}", name(args.residual_out.dtype), name(args.x.dtype));
    check.overlap("residual_out", params.residual_out, config.x, "x", params.x, config.x, shape, shape.dim);
    check.overlap("residual_out", params.residual_out, config.x, "residual", params.second, config.x, shape, shape.dim);
    if (params.residual_out.data == params.out.data && shape.rows > 0)
      fail(Code::invalid_argument, op, "residual_out and out are the same memory; each needs its own");
  }
  return launch;
}

void rms_norm(const Context& context, const NormArgs& args, void* stream) {
  rows::run(context, "rms_norm", describe_norm("rms_norm", context.device(), abi::Norm::rms, args), stream);
}

void layer_norm(const Context& context, const NormArgs& args, void* stream) {
  rows::run(context, "layer_norm", describe_norm("layer_norm", context.device(), abi::Norm::layer, args), stream);
}

}  // namespace girih
