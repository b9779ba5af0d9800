// Merging attention states: outputs are made like the first input unless given.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "attention.h"
#include "girih/attention.h"
#include "outputs.h"

namespace girih::python {
namespace {

/// What all three functions share: where they work, and (v, s) of the given shape, `v` of the first input's type.
struct Merge {
  Merge(nb::handle first, std::string_view name, nb::handle context_, nb::handle stream_)
      : array(python::array(first, name)),
        context_object(python::context_object(context_, array.view.device)),
        context(context_of(context_object)),
        on(stream(stream_, array)) {}

  void outputs(nb::handle v_out, nb::handle s_out, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    v = output(v_out, array, array.view.dtype, {rows, heads, dim}, "v_out");
    s = output(s_out, array, DType::f32, {rows, heads}, "s_out");
  }
  nb::object result() { return nb::make_tuple(std::move(v.object), std::move(s.object)); }

  Array array;
  nb::object context_object;
  const Context& context;
  void* on;
  Output v{}, s{};
};

void check_rank(const TensorView& t, std::string_view name, int rank, std::string_view dims) {
  if (t.rank != rank) bad_value(name, fmt::format("has {} dimensions; must have {}: {}", t.rank, rank, dims));
}

nb::object merge_two(nb::handle v_a, nb::handle s_a, nb::handle v_b, nb::handle s_b, bool base2, nb::handle v_out, nb::handle s_out,
                     nb::handle context, nb::handle stream) {
  Merge m(v_a, "v_a", context, stream);
  const Array sa = array(s_a, "s_a");
  const Array vb = array(v_b, "v_b");
  const Array sb = array(s_b, "s_b");
  const TensorView& v = m.array.view;
  check_rank(v, "v_a", 3, "[rows, heads, dim]");
  m.outputs(v_out, s_out, v.shape[0], v.shape[1], v.shape[2]);
  {
    const nb::gil_scoped_release released;
    merge_state(m.context, v, sa.view, vb.view, sb.view, m.v.view, m.s.view, base2, m.on);
  }
  return m.result();
}

nb::object merge_many(nb::handle v_, nb::handle s_, bool base2, nb::handle v_out, nb::handle s_out, nb::handle context, nb::handle stream) {
  Merge m(v_, "v", context, stream);
  const Array s = array(s_, "s");
  const TensorView& v = m.array.view;
  check_rank(v, "v", 4, "[rows, num_states, heads, dim]");
  m.outputs(v_out, s_out, v.shape[0], v.shape[2], v.shape[3]);
  {
    const nb::gil_scoped_release released;
    merge_states(m.context, v, s.view, m.v.view, m.s.view, base2, m.on);
  }
  return m.result();
}

nb::object merge_varlen(nb::handle v_, nb::handle s_, nb::handle indptr_, bool base2, nb::handle v_out, nb::handle s_out,
                        nb::handle context, nb::handle stream) {
  Merge m(v_, "v", context, stream);
  const Array s = array(s_, "s");
  const IndexArray indptr(indptr_, "indptr");
  const TensorView& v = m.array.view;
  check_rank(v, "v", 3, "[num_states, heads, dim]");
  if (indptr.view().empty()) bad_value("indptr", "has no entries; must have one per row and one more");
  m.outputs(v_out, s_out, indptr.view().size() - 1, v.shape[1], v.shape[2]);
  {
    const nb::gil_scoped_release released;
    merge_states_varlen(m.context, v, s.view, indptr.view(), m.v.view, m.s.view, base2, m.on);
  }
  return m.result();
}

/// What follows a function's own arguments in its signature.
std::string signature(std::string_view head) {
  return fmt::format(
      "def {}, *, base2: bool = False, v_out: girih._typing.ArrayLike | None = None, s_out: girih._typing.ArrayLike | None = None, "
      "context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> tuple[typing.Any, typing.Any]",
      head);
}

}  // namespace

void bind_merge(nb::module_& m) {
  const std::string tail =
      "base2: s is a base-2 log-sum-exp instead of a natural one.\n"
      "v_out, s_out: outputs; None: made like v. They may be inputs (on CUDA: be them, or lie apart).\n"
      "context: None: the thread's default for the arrays' device. stream: CUDA: None = the arrays' library's current one.\n\n"
      "Returns (v, s): [rows, heads, dim] of v's type and f32 [rows, heads]. Empty states merge to (0, -inf).\n"
      "Raises ValueError naming the argument whose shape, type or device does not fit, before anything is written.";
  m.def("merge_state", merge_two, nb::arg("v_a"), nb::arg("s_a"), nb::arg("v_b"), nb::arg("s_b"), nb::kw_only(), nb::arg("base2") = false,
        nb::arg("v_out") = nb::none(), nb::arg("s_out") = nb::none(), nb::arg("context") = nb::none(), nb::arg("stream") = nb::none(),
        nb::sig(signature("merge_state(v_a: girih._typing.ArrayLike, s_a: girih._typing.ArrayLike, v_b: girih._typing.ArrayLike, "
                          "s_b: girih._typing.ArrayLike")
                    .c_str()),
        ("Merges two attention states (equations 2 and 3 of arXiv 2501.01005).\n\n"
         "v_a, v_b: [rows, heads, dim] f32, f16 or bf16; s_a, s_b: their log-sum-exps, f32 [rows, heads].\n" +
         tail)
            .c_str());
  m.def("merge_states", merge_many, nb::arg("v"), nb::arg("s"), nb::kw_only(), nb::arg("base2") = false, nb::arg("v_out") = nb::none(),
        nb::arg("s_out") = nb::none(), nb::arg("context") = nb::none(), nb::arg("stream") = nb::none(),
        nb::sig(signature("merge_states(v: girih._typing.ArrayLike, s: girih._typing.ArrayLike").c_str()),
        ("Merges each row's states; there may be none.\n\n"
         "v: [rows, num_states, heads, dim] f32, f16 or bf16; s: f32 [rows, num_states, heads].\n" +
         tail)
            .c_str());
  m.def("merge_states_varlen", merge_varlen, nb::arg("v"), nb::arg("s"), nb::arg("indptr"), nb::kw_only(), nb::arg("base2") = false,
        nb::arg("v_out") = nb::none(), nb::arg("s_out") = nb::none(), nb::arg("context") = nb::none(), nb::arg("stream") = nb::none(),
        nb::sig(signature("merge_states_varlen(v: girih._typing.ArrayLike, s: girih._typing.ArrayLike, indptr: girih._typing.IndicesLike")
                    .c_str()),
        ("Row i merges states [indptr[i], indptr[i+1]). Outputs may not overlap inputs here. Cannot be captured in a CUDA graph.\n\n"
         "v: [num_states, heads, dim] f32, f16 or bf16; s: f32 [num_states, heads]; indptr: [rows + 1] in host memory.\n" +
         tail)
            .c_str());
}

}  // namespace girih::python
