// activate(): arguments checked and described as one part of the row operators' core.
#include "girih/activation.h"

#include <cmath>

#include "activation/activation.h"
#include "base/error.h"
#include "rows/check.h"

namespace girih {
namespace {

constexpr std::string_view kOp = "activate";

}  // namespace

rows::Launch describe_activation(Device device, Activation activation, const ActivationArgs& args) {
  static_assert(static_cast<int>(Activation::multiply) + 1 == static_cast<int>(abi::Act::multiply));
  if (static_cast<int>(activation) > static_cast<int>(Activation::multiply))
    fail(Code::invalid_argument, kOp, "activation={} is unknown", static_cast<int>(activation));
  const rows::Checker check{.op = kOp, .device = device};
  const rows::RowShape whole = check.shape("x", args.x);
  if (whole.has_heads) fail(Code::invalid_argument, kOp, "x has rank 3; must be 2: [rows, dim]");
  const bool two = args.up.rank != 0;
  if (two && args.interleaved) fail(Code::invalid_argument, kOp, "up is given and interleaved is set; interleaved operands lie in x alone");
  if (!two && whole.dim % 2 != 0) fail(Code::invalid_argument, kOp, "x.shape[1]={}; must be even: [rows, 2 * dim], or give up", whole.dim);
  rows::RowShape shape = whole;
  if (!two) shape.dim /= 2;
  rows::Launch launch;
  launch.params.rows = shape.rows;
  const auto part = launch.add();
  auto& [config, params] = part;
  config.act = static_cast<abi::Act>(static_cast<int>(activation) + 1);
  config.dim = static_cast<int>(shape.dim);
  config.interleaved = args.interleaved;
  params.x = check.source("x", args.x, whole);
  config.x = rows::elem_of(args.x.dtype);
  config.weight = config.x;
  if (two) {
    params.second = check.source("up", args.up, shape);
    if (args.up.dtype != args.x.dtype)
      fail(Code::invalid_argument, kOp, "up is {}; must be x's {}", name(args.up.dtype), name(args.x.dtype));
  } else if (!args.interleaved) {
    params.second = params.x;
    if (shape.rows > 0) params.second.data += shape.dim * params.x.dim_stride;
  }
  params.out = check.output("out", args.out, shape);
  check.quantization(args.quantization, args.out, shape, part);
  if (activation == Activation::swigluoai) {
    if (!std::isfinite(args.alpha)) fail(Code::invalid_argument, kOp, "alpha={}; must be finite", args.alpha);
    if (!(args.limit > 0)) fail(Code::invalid_argument, kOp, "limit={}; must be > 0", args.limit);
  }
  params.alpha = args.alpha;
  params.limit = args.limit;
  check.overlap("out", params.out, config.out, "x", params.x, config.x, shape, args.interleaved ? whole.dim : shape.dim);
  if (!args.interleaved)
    check.overlap("out", params.out, config.out, two ? "up" : "the second half of x", params.second, config.x, shape, shape.dim);
  return launch;
}

void activate(const Context& context, Activation activation, const ActivationArgs& args, void* stream) {
  rows::run(context, kOp, describe_activation(context.device(), activation, args), stream);
}

}  // namespace girih
