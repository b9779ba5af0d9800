// activate() for Python; girih/activation.py documents it.
#include "girih/activation.h"

#include <nanobind/stl/string_view.h>

#include "call.h"
#include "names.h"

namespace girih::python {
namespace {

constexpr EnumNames<5> kActivations = {"silu", "gelu", "gelu_tanh", "swigluoai", "multiply"};

nb::object activate_(ArrayLike x, std::string_view activation, nb::object up, bool interleaved, nb::object out, nb::object dtype,
                     const QuantizationLike* quantization, float alpha, float limit, const Context* context, nb::object stream) {
  const Activation kind = enum_of<Activation>(kActivations, activation, "activation");
  Call call(x, "x", context, stream);
  ActivationArgs args{.x = call.first(), .up = call.in(up, "up"), .interleaved = interleaved, .alpha = alpha, .limit = limit};
  TensorView result = args.x;
  if (args.up.rank == 0 && result.rank > 0) result.shape[static_cast<std::size_t>(result.rank - 1)] /= 2;
  const Call::Quantized codes = call.quantized(quantization, dtype, out, "out", result);
  args.out = codes.codes.view;
  args.quantization = codes.quantization;
  call.run({}, [&] { activate(call.context(), kind, args, call.stream()); });
  return codes.result();
}

}  // namespace

void bind_activation(nb::module_& m) {
  m.def("activate", &activate_, nb::arg("x"), nb::arg("activation"), nb::arg("up").none(), nb::arg("interleaved"), nb::arg("out").none(),
        nb::arg("dtype").none(), nb::arg("quantization").none(), nb::arg("alpha"), nb::arg("limit"), nb::arg("context").none(),
        nb::arg("stream").none());
}

}  // namespace girih::python
