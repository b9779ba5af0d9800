// Quantization, quantize, dequantize and packed bits for Python; girih/quantization.py documents the functions.
#include "girih/quantize.h"

#include <fmt/format.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>

#include "base/math.h"
#include "call.h"
#include "indices.h"
#include "names.h"

namespace girih::python {
namespace {

constexpr Name kNames[] = {{"quantization.", ""}};

constexpr EnumNames<2> kOrders = {"little", "big"};

nb::object quantize_(ArrayLike x, const QuantizationLike& quantization, nb::object out, const Context* context, nb::object stream) {
  Call call(x, "x", context, stream);
  const Call::Quantized codes = call.quantized(&quantization, nb::none(), out, "out", call.first());
  call.run(kNames, [&] { quantize(call.context(), call.first(), codes.codes.view, codes.quantization, call.stream()); });
  return codes.result();
}

nb::object dequantize_(ArrayLike x, nb::object codes_dtype, std::string_view scale, nb::object scales, float global_scale, bool swizzled,
                       nb::object dim, nb::object dtype, nb::object out, const Context* context, nb::object stream) {
  Call call(x, "x", context, stream);
  TensorView codes = call.first();
  const DType type = codes_dtype.is_none() ? codes.dtype : python::dtype(codes_dtype, "codes");
  if (bits(type) == 4) {
    codes = as_codes(codes, type, "x", dim.is_none() ? -1 : nb::cast<std::int64_t>(dim));
    if (!dim.is_none() && codes.rank > 0 && codes.shape[static_cast<std::size_t>(codes.rank - 1)] != nb::cast<std::int64_t>(dim))
      bad_value("dim", fmt::format("is {}, but rows of x hold {} codes", nb::cast<std::int64_t>(dim),
                                   codes.shape[static_cast<std::size_t>(codes.rank - 1)]));
  } else {
    if (!dim.is_none()) bad_value("dim", "is for 4-bit codes, of which an array does not say how many it holds; leave it out");
    if (codes.dtype == DType::u8) codes.dtype = type;
    if (codes.dtype == DType::u8) bad_value("codes", "must say what x holds: e4m3, e5m2, i8, nvfp4 or mxfp4; its bytes do not");
    if (codes.dtype != type) bad_value("codes", fmt::format("is {}, but x is {}; leave it out", name(type), name(codes.dtype)));
  }
  const Output result = call.out_like(out, "out", dtype.is_none() ? DType::f32 : python::dtype(dtype, "dtype"), codes);
  check_type(result, out, "out", dtype, "dtype");
  const Quantization given{.scale = enum_of<QuantScale>(kQuantScales, scale, "scale"),
                           .scales = call.in(scales, "scales"),
                           .global_scale = global_scale,
                           .swizzled = swizzled};
  call.run(kNames, [&] { dequantize(call.context(), codes, result.view, given, call.stream()); });
  return result.object;
}

nb::object packbits_(ArrayLike x, std::string_view order, nb::object out, const Context* context, nb::object stream) {
  const BitOrder bit_order = enum_of<BitOrder>(kOrders, order, "order");
  Call call(x, "x", context, stream);
  const Output result = call.out(out, "out", DType::u8, {call.first().rank == 1 ? ceil_div(call.first().shape[0], 8) : 0});
  call.run({}, [&] { packbits(call.context(), call.first(), result.view, bit_order, call.stream()); });
  return result.object;
}

nb::typed<nb::tuple, nb::object, nb::typed<nb::list, int>> segment_packbits_(ArrayLike x, IndicesLike indptr, std::string_view order,
                                                                             nb::object out, const Context* context, nb::object stream) {
  const BitOrder bit_order = enum_of<BitOrder>(kOrders, order, "order");
  Call call(x, "x", context, stream);
  const IndexArray host(indptr, "indptr");
  const Indices& ends = host.view();
  // Ends that go backwards or leave x are refused below; until then no more is made than x could need.
  const std::int64_t most = call.first().rank == 1 ? call.first().shape[0] : 0;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i + 1 < ends.size() && total < most; ++i) {
    const std::int64_t begin = std::clamp<std::int64_t>(ends[i], 0, most);
    total += ceil_div(std::max<std::int64_t>(std::clamp<std::int64_t>(ends[i + 1], 0, most) - begin, 0), 8);
  }
  total = std::min(total, most);
  const Output result = call.out(out, "out", DType::u8, {total});
  std::vector<std::int64_t> out_indptr;
  call.run({}, [&] { out_indptr = segment_packbits(call.context(), call.first(), ends, result.view, bit_order, call.stream()); });
  nb::list places;
  for (const std::int64_t place : out_indptr) places.append(place);
  return nb::make_tuple(result.object, places);
}

}  // namespace

void bind_quantize(nb::module_& m) {
  nb::class_<QuantizationLike>(
      m, "Quantization",
      "How an operator quantises its output: the type of codes, what shares a scale, and where scales are.\n\n"
      "A value is code * scale * global_scale. M is the largest finite magnitude of what shares a scale.\n\n"
      "    scale     dtype           scales, and their shape for x [rows, dim] (with heads: [rows, heads, ...])\n"
      "    tensor    e4m3 e5m2 i8    an input: float32 [1]\n"
      "    token     e4m3 e5m2 i8    M / largest code: float32 [rows]\n"
      "    block     e4m3 e5m2 i8    M / largest code of 128 elements: float32 [rows, ceil(dim / 128)]\n"
      "    block     nvfp4           e4m3(M / 6 / global_scale) of 16: float8_e4m3fn [rows, ceil(dim / 16)]\n"
      "    block     mxfp4           2^(floor(log2(M / global_scale)) - 2) of 32: float8_e8m0fnu [rows, ceil(dim / 32)]\n"
      "    mx        e4m3 e5m2       2^(floor(log2(M / global_scale)) - 8, or - 15) of 32: float8_e8m0fnu [rows, ceil(dim / 32)]\n"
      "    tile      e4m3 e5m2 i8    M / largest code of 128 rows x 128: float32 [ceil(rows / 128), ceil(dim / 128)]; quantize() only\n\n"
      "Scales of 8 bits may be given as uint8. 4-bit codes lie two to a byte, the even element in the low nibble: uint8 arrays of\n"
      "ceil(dim / 2) a row.")
      .def(
          "__init__",
          [](QuantizationLike* self, DTypeLike dtype_, std::string_view scale, nb::object scales, float global_scale, bool swizzled) {
            new (self) QuantizationLike{dtype(dtype_, "dtype"), enum_of<QuantScale>(kQuantScales, scale, "scale"), std::move(scales),
                                        global_scale, swizzled};
          },
          nb::arg("dtype"), nb::arg("scale"), nb::kw_only(), nb::arg("scales") = nb::none(), nb::arg("global_scale") = 1.0F,
          nb::arg("swizzled") = false,
          "dtype: e4m3, e5m2, i8, nvfp4 or mxfp4.\n"
          "scale: tensor, token, block, mx or tile.\n"
          "scales: of scale=\"tensor\" the scale; otherwise where computed scales go, or None: the call makes an array and returns it.\n"
          "global_scale: finite and > 0; multiplies every scale.\n"
          "swizzled: block scales in tiles of 128 rows x 4 blocks, as block-scaled tensor-core instructions read them: byte\n"
          "(r // 128 * (C // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4, C = blocks rounded up to 4.")
      .def_prop_ro(
          "dtype", [](const QuantizationLike& self) { return std::string(name(self.dtype)); }, "\"e4m3\", ...")
      .def_prop_ro(
          "scale", [](const QuantizationLike& self) { return name_in(kQuantScales, self.scale); }, "\"token\", ...")
      .def_ro("scales", &QuantizationLike::scales, "the array given, or None")
      .def_ro("global_scale", &QuantizationLike::global_scale)
      .def_ro("swizzled", &QuantizationLike::swizzled)
      .def("__repr__", [](const QuantizationLike& self) {
        return fmt::format("Quantization(dtype=\"{}\", scale=\"{}\"{}, global_scale={}, swizzled={})", name(self.dtype),
                           name_in(kQuantScales, self.scale), self.scales.is_none() ? "" : ", scales=...", self.global_scale,
                           self.swizzled ? "True" : "False");
      });
  m.def("quantize", &quantize_, nb::arg("x"), nb::arg("quantization"), nb::arg("out").none(), nb::arg("context").none(),
        nb::arg("stream").none());
  m.def("dequantize", &dequantize_, nb::arg("x"), nb::arg("codes").none(), nb::arg("scale"), nb::arg("scales"), nb::arg("global_scale"),
        nb::arg("swizzled"), nb::arg("dim").none(), nb::arg("dtype").none(), nb::arg("out").none(), nb::arg("context").none(),
        nb::arg("stream").none());
  m.def("packbits", &packbits_, nb::arg("x"), nb::arg("order"), nb::arg("out").none(), nb::arg("context").none(), nb::arg("stream").none());
  m.def("segment_packbits", &segment_packbits_, nb::arg("x"), nb::arg("indptr"), nb::arg("order"), nb::arg("out").none(),
        nb::arg("context").none(), nb::arg("stream").none());
}

}  // namespace girih::python
