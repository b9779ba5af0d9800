// rope and its tables for Python; girih/rope.py documents them.
#include "girih/rope.h"

#include <fmt/format.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "call.h"

namespace girih::python {
namespace {

RopeTable table_of(int rotary_dim, double theta, double linear, double ntk, const std::optional<std::array<double, 4>>& llama31,
                   const std::optional<std::array<double, 5>>& yarn, bool whole_pairs) {
  RopeTable table{.rotary_dim = rotary_dim, .theta = theta, .linear = linear, .ntk = ntk};
  if (llama31) {
    const auto& [factor, low, high, context_len] = *llama31;
    table.llama31 = Rope::Llama31{.factor = factor, .low_freq_factor = low, .high_freq_factor = high, .old_context_len = context_len};
  }
  if (yarn) {
    const auto& [factor, context_len, fast, slow, attention] = *yarn;
    table.yarn = RopeTable::Yarn{.factor = factor,
                                 .original_context_len = context_len,
                                 .beta_fast = fast,
                                 .beta_slow = slow,
                                 .whole_pairs = whole_pairs,
                                 .attention_factor = attention};
  }
  return table;
}

/// Where a rotated tensor goes: nowhere (it is not given), over itself, or as quantised() says.
Call::Quantized rotated(Call& call, const TensorView& t, nb::handle object, nb::handle given, std::string_view name,
                        const QuantizationLike* quantization, bool inplace) {
  if (t.rank == 0) {
    Call::Quantized none;
    if (!given.is_none()) none.codes = {call.in(given, name, Access::write), nb::borrow(given)};
    return none;
  }
  if (!inplace) return call.quantized(quantization, nb::none(), given, name, t);
  if (!given.is_none()) bad_value(name, "is given with inplace=True; use one");
  return call.quantized(quantization, nb::none(), object, name, t);
}

Two rope_(nb::object q, nb::object k, ArrayLike cos_sin, nb::object positions, nb::object indptr, nb::object offsets, int rotary_begin,
          bool interleaved, bool inplace, nb::object q_out, nb::object k_out, nb::object q_weight, nb::object k_weight, float eps,
          float weight_offset, const QuantizationLike* q_quantization, const QuantizationLike* k_quantization, const Context* context,
          nb::object stream) {
  if (q.is_none() && k.is_none()) bad_value("q", "neither q nor k is given; there is nothing to rotate");
  Call call(q.is_none() ? k : q, q.is_none() ? "k" : "q", context, stream);
  RopeArgs args{.q = q.is_none() ? TensorView{} : call.first(),
                .k = q.is_none() ? call.first() : call.in(k, "k"),
                .cos_sin = call.in(cos_sin, "cos_sin"),
                .positions = call.in(positions, "positions"),
                .indptr = call.in(indptr, "indptr"),
                .offsets = call.in(offsets, "offsets"),
                .rotary_begin = rotary_begin,
                .interleaved = interleaved,
                .q_weight = call.in(q_weight, "q_weight"),
                .k_weight = call.in(k_weight, "k_weight"),
                .eps = eps,
                .weight_offset = weight_offset};
  const Call::Quantized new_q = rotated(call, args.q, q, q_out, "q_out", q_quantization, inplace);
  const Call::Quantized new_k = rotated(call, args.k, k, k_out, "k_out", k_quantization, inplace);
  args.q_out = new_q.codes.view;
  args.k_out = new_k.codes.view;
  args.q_quantization = new_q.quantization;
  args.k_quantization = new_k.quantization;
  call.run({}, [&] { rope(call.context(), args, call.stream()); });
  return nb::make_tuple(new_q.result(), new_k.result());
}

}  // namespace

void bind_rotation(nb::module_& m) {
  m.def("rope", &rope_, nb::arg("q").none(), nb::arg("k").none(), nb::arg("cos_sin"), nb::arg("positions").none(), nb::arg("indptr").none(),
        nb::arg("offsets").none(), nb::arg("rotary_begin"), nb::arg("interleaved"), nb::arg("inplace"), nb::arg("q_out").none(),
        nb::arg("k_out").none(), nb::arg("q_weight").none(), nb::arg("k_weight").none(), nb::arg("eps"), nb::arg("weight_offset"),
        nb::arg("q_quantization").none(), nb::arg("k_quantization").none(), nb::arg("context").none(), nb::arg("stream").none());
  m.def(
      "rope_frequencies",
      [](int rotary_dim, double theta, double linear, double ntk, const std::optional<std::array<double, 4>>& llama31,
         const std::optional<std::array<double, 5>>& yarn,
         bool whole_pairs) { return rope_frequencies(table_of(rotary_dim, theta, linear, ntk, llama31, yarn, whole_pairs)); },
      nb::arg("rotary_dim"), nb::arg("theta"), nb::arg("linear"), nb::arg("ntk"), nb::arg("llama31").none(), nb::arg("yarn").none(),
      nb::arg("whole_pairs"));
  // Bytes: the caller makes an array of the library that it wants over them.
  m.def(
      "rope_cos_sin",
      [](int rotary_dim, std::int64_t num_positions, double theta, double linear, double ntk,
         const std::optional<std::array<double, 4>>& llama31, const std::optional<std::array<double, 5>>& yarn, bool whole_pairs) {
        std::vector<float> table;
        {
          const nb::gil_scoped_release released;
          table = rope_cos_sin(table_of(rotary_dim, theta, linear, ntk, llama31, yarn, whole_pairs), num_positions);
        }
        return nb::bytearray(table.data(), table.size() * sizeof(float));
      },
      nb::arg("rotary_dim"), nb::arg("num_positions"), nb::arg("theta"), nb::arg("linear"), nb::arg("ntk"), nb::arg("llama31").none(),
      nb::arg("yarn").none(), nb::arg("whole_pairs"));
}

}  // namespace girih::python
