// rope_append for Python, by a batch of host arrays and by a plan; girih/rope.py documents both. What Python's KvStore knows and the
// library's does not (heads and dims of its arrays) is checked here.
#include <algorithm>
#include <string>

#include "call.h"
#include "girih/rope.h"
#include "indices.h"
#include "kv_store.h"
#include "plan.h"

namespace girih::python {
namespace {

constexpr Name kNames[] = {{"rope.k", "k"}};

/// What both forms take, and what comes of it.
struct Rotated {
  RopeAppendArgs args{};
  Call::Quantized q{}, q_nope{};

  /// Of q; with q_nope the pair.
  nb::object result() const { return args.q_nope.rank == 0 ? q.result() : nb::object(nb::make_tuple(q.result(), q_nope.result())); }
};

/// check_appended() with the names that rope_append() has: MLA's k is what rotates, k_nope what does not.
void check_planes(const Store& store, const RopeAppendArgs& args) {
  if (args.k_nope.rank == 0) return check_appended(store, args.rope.k, {}, args.v);
  try {
    check_appended(store, args.k_nope, args.rope.k, args.v);
  } catch (const nb::builtin_exception& error) {
    std::string text = error.what() == nullptr ? "" : error.what();
    if (text.starts_with("k:"))
      text.replace(0, 1, "k_nope");
    else if (text.starts_with("k_rope:"))
      text.replace(0, 6, "k");
    throw nb::value_error(text.c_str());
  }
}

/// An output for the first `rows` rows of `t`.
Call::Quantized output_of(Call& call, TensorView t, nb::handle object, nb::handle given, std::string_view name, std::int64_t rows,
                          const QuantizationLike* quantization, bool inplace) {
  if (t.rank == 0) {
    Call::Quantized none;
    if (!given.is_none()) none.codes = {call.in(given, name, Access::write), nb::borrow(given)};
    return none;
  }
  if (inplace && !given.is_none()) throw nb::value_error((std::string(name) + ": is given with inplace=True; use one").c_str());
  t.shape[0] = std::min(t.shape[0], rows);
  return call.quantized(quantization, nb::none(), inplace ? object : given, name, t);
}

struct Options {
  nb::handle q, v, cos_sin, positions, indptr, offsets;
  int rotary_begin;
  bool interleaved, inplace;
  nb::handle q_out, q_weight, k_weight;
  float eps, weight_offset;
  const QuantizationLike* q_quantization;
  nb::handle k_nope, q_nope, q_nope_out;
};

Rotated arguments(Call& call, const Options& o, std::int64_t rows) {
  Rotated r;
  r.args = {.rope = {.q = call.in(o.q, "q"),
                     .k = call.first(),
                     .cos_sin = call.in(o.cos_sin, "cos_sin"),
                     .positions = call.in(o.positions, "positions"),
                     .indptr = call.in(o.indptr, "indptr"),
                     .offsets = call.in(o.offsets, "offsets"),
                     .rotary_begin = o.rotary_begin,
                     .interleaved = o.interleaved,
                     .q_weight = call.in(o.q_weight, "q_weight"),
                     .k_weight = call.in(o.k_weight, "k_weight"),
                     .eps = o.eps,
                     .weight_offset = o.weight_offset},
            .v = call.in(o.v, "v"),
            .k_nope = call.in(o.k_nope, "k_nope"),
            .q_nope = call.in(o.q_nope, "q_nope")};
  r.q = output_of(call, r.args.rope.q, o.q, o.q_out, "q_out", rows, o.q_quantization, o.inplace);
  r.q_nope = output_of(call, r.args.q_nope, o.q_nope, o.q_nope_out, "q_nope_out", rows, o.q_quantization, o.inplace);
  r.args.rope.q_out = r.q.codes.view;
  r.args.rope.q_quantization = r.q.quantization;
  r.args.q_nope_out = r.q_nope.codes.view;
  return r;
}

nb::object by_batch(const Store& store, nb::object q, ArrayLike k, nb::object v, ArrayLike cos_sin, IndicesLike append_indptr,
                    IndicesLike kv_len, nb::object kv_indices, nb::object kv_indptr, std::int64_t table_stride, nb::object positions,
                    nb::object indptr, nb::object offsets, int rotary_begin, bool interleaved, bool inplace, nb::object q_out,
                    nb::object q_weight, nb::object k_weight, float eps, float weight_offset, const QuantizationLike* q_quantization,
                    nb::object k_nope, nb::object q_nope, nb::object q_nope_out, const Context* context, nb::object stream) {
  Call call(k, "k", context, stream);
  const IndexArray ends(append_indptr, "append_indptr");
  const IndexArray lengths(kv_len, "kv_len");
  const IndexArray table(kv_indptr, "kv_indptr");
  const DeviceIndices<std::int32_t> pages(kv_indices, "kv_indices", Device{});
  const AppendBatch batch{.append_indptr = ends.view(),
                          .kv_len = lengths.view(),
                          .kv_indices = pages.view(),
                          .kv_indptr = table.view(),
                          .table_stride = table_stride};
  const std::int64_t rows = ends.view().empty() ? 0 : std::max<std::int64_t>(ends.view()[ends.view().size() - 1], 0);
  const Rotated rotated = arguments(call,
                                    {q, v, cos_sin, positions, indptr, offsets, rotary_begin, interleaved, inplace, q_out, q_weight,
                                     k_weight, eps, weight_offset, q_quantization, k_nope, q_nope, q_nope_out},
                                    rows);
  check_planes(store, rotated.args);
  call.run(kNames, [&] { rope_append(call.context(), store.store, batch, rotated.args, call.stream()); });
  return rotated.result();
}

nb::object by_plan(nb::handle plan, const Store& store, nb::object q, ArrayLike k, nb::object v, ArrayLike cos_sin, nb::object kv_indices,
                   std::int64_t segment, nb::object positions, nb::object indptr, nb::object offsets, int rotary_begin, bool interleaved,
                   bool inplace, nb::object q_out, nb::object q_weight, nb::object k_weight, float eps, float weight_offset,
                   const QuantizationLike* q_quantization, nb::object k_nope, nb::object q_nope, nb::object q_nope_out,
                   const Context* context, nb::object stream) {
  const DevicePlan& device_plan = device_plan_of(plan, "rope_append_planned");
  Call call(k, "k", context, stream);
  const DeviceIndices<std::int32_t> pages(kv_indices, "kv_indices", call.first().device);
  const std::int64_t rows = call.first().rank > 0 ? call.first().shape[0] : 0;
  const Rotated rotated = arguments(call,
                                    {q, v, cos_sin, positions, indptr, offsets, rotary_begin, interleaved, inplace, q_out, q_weight,
                                     k_weight, eps, weight_offset, q_quantization, k_nope, q_nope, q_nope_out},
                                    rows);
  check_planes(store, rotated.args);
  call.run(kNames, [&] { rope_append(call.context(), device_plan, store.store, pages.view(), rotated.args, segment, call.stream()); });
  return rotated.result();
}

}  // namespace

void bind_rope_append(nb::module_& m) {
  using nb::arg;
  m.def("rope_append", &by_batch, arg("store"), arg("q").none(), arg("k"), arg("v").none(), arg("cos_sin"), arg("append_indptr"),
        arg("kv_len"), arg("kv_indices").none(), arg("kv_indptr").none(), arg("table_stride"), arg("positions").none(),
        arg("indptr").none(), arg("offsets").none(), arg("rotary_begin"), arg("interleaved"), arg("inplace"), arg("q_out").none(),
        arg("q_weight").none(), arg("k_weight").none(), arg("eps"), arg("weight_offset"), arg("q_quantization").none(),
        arg("k_nope").none(), arg("q_nope").none(), arg("q_nope_out").none(), arg("context").none(), arg("stream").none());
  m.def("rope_append_planned", &by_plan, arg("plan"), arg("store"), arg("q").none(), arg("k"), arg("v").none(), arg("cos_sin"),
        arg("kv_indices").none(), arg("segment"), arg("positions").none(), arg("indptr").none(), arg("offsets").none(), arg("rotary_begin"),
        arg("interleaved"), arg("inplace"), arg("q_out").none(), arg("q_weight").none(), arg("k_weight").none(), arg("eps"),
        arg("weight_offset"), arg("q_quantization").none(), arg("k_nope").none(), arg("q_nope").none(), arg("q_nope_out").none(),
        arg("context").none(), arg("stream").none());
}

}  // namespace girih::python
