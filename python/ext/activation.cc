// activate() for Python; girih/activation.py documents it.
#include "girih/activation.h"

#include <fmt/format.h>
#include <nanobind/stl/string_view.h>

#include <array>

#include "call.h"

namespace girih::python {
namespace {

Activation activation_from_name(std::string_view text) {
  static constexpr std::array<std::string_view, 5> kActivations = {"silu", "gelu", "gelu_tanh", "swigluoai", "multiply"};
  for (std::size_t i = 0; i < kActivations.size(); ++i)
    if (kActivations[i] == text) return static_cast<Activation>(i);
  throw nb::value_error(fmt::format("activation: \"{}\" is unknown; known are silu, gelu, gelu_tanh, swigluoai, multiply", text).c_str());
}

nb::object activate_(ArrayLike x, std::string_view activation, nb::object up, bool interleaved, nb::object out, nb::object dtype,
                     const QuantizationLike* quantization, float alpha, float limit, const Context* context, nb::object stream) {
  const Activation kind = activation_from_name(activation);
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
