// rms_norm and layer_norm for Python; girih/norm.py documents them.
#include "girih/norm.h"

#include "call.h"

namespace girih::python {
namespace {

using Norm = void (*)(const Context&, const NormArgs&, void*);

nb::object norm(Norm function, nb::handle x, nb::handle weight, nb::handle bias, nb::handle residual, nb::handle residual_out,
                nb::handle out, nb::handle dtype, const QuantizationLike* quantization, float eps, float weight_offset,
                const Context* context, nb::handle stream) {
  Call call(x, "x", context, stream);
  NormArgs args{.x = call.first(),
                .weight = call.in(weight, "weight"),
                .bias = call.in(bias, "bias"),
                .residual = call.in(residual, "residual"),
                .residual_out = call.in(residual_out, "residual_out", Access::write),
                .eps = eps,
                .weight_offset = weight_offset};
  const Call::Quantized codes = call.quantized(quantization, dtype, out, "out", args.x);
  args.out = codes.codes.view;
  args.quantization = codes.quantization;
  call.run({}, [&] { function(call.context(), args, call.stream()); });
  return codes.result();
}

}  // namespace

void bind_norm(nb::module_& m) {
  const auto define = [&m](const char* name, Norm function) {
    m.def(
        name,
        [function](ArrayLike x, nb::object weight, nb::object bias, nb::object residual, nb::object residual_out, nb::object out,
                   nb::object dtype, const QuantizationLike* quantization, float eps, float weight_offset, const Context* context,
                   nb::object stream) {
          return norm(function, x, weight, bias, residual, residual_out, out, dtype, quantization, eps, weight_offset, context, stream);
        },
        nb::arg("x"), nb::arg("weight").none(), nb::arg("bias").none(), nb::arg("residual").none(), nb::arg("residual_out").none(),
        nb::arg("out").none(), nb::arg("dtype").none(), nb::arg("quantization").none(), nb::arg("eps"), nb::arg("weight_offset"),
        nb::arg("context").none(), nb::arg("stream").none());
  };
  define("rms_norm", rms_norm);
  define("layer_norm", layer_norm);
}

}  // namespace girih::python
