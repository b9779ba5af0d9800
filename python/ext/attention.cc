// AttentionSpec, AttentionLimits, Segment, capabilities: what attention is asked to do. The rules are the library's; here names become
// enums and arrays become views.
#include "attention.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "names.h"

namespace girih::python {
namespace {

std::string spec_text(const AttentionSpec& s) {
  std::string text =
      fmt::format("AttentionSpec(num_qo_heads={}, num_kv_heads={}, head_dim_qk={}", s.num_qo_heads, s.num_kv_heads, s.head_dim_qk);
  if (s.head_dim_vo != 0) text += fmt::format(", head_dim_vo={}", s.head_dim_vo);
  if (s.head_dim_rope != 0) text += fmt::format(", head_dim_rope={}", s.head_dim_rope);
  text += fmt::format(", q_dtype=\"{}\", k_dtype=\"{}\", v_dtype=\"{}\", o_dtype=\"{}\"", name(s.q_dtype), name(s.k_dtype), name(s.v_dtype),
                      name(s.o_dtype));
  if (s.k_rope_dtype) text += fmt::format(", k_rope_dtype=\"{}\"", name(*s.k_rope_dtype));
  if (s.k_scale != ScaleGranularity::none) text += fmt::format(", k_scale=\"{}\"", name_in(kGranularities, s.k_scale));
  if (s.v_scale != ScaleGranularity::none) text += fmt::format(", v_scale=\"{}\"", name_in(kGranularities, s.v_scale));
  if (s.v_is_k) text += ", v_is_k=True";
  if (s.sm_scale != 0) text += fmt::format(", sm_scale={}", s.sm_scale);
  if (s.lse != LseKind::none) text += fmt::format(", lse=\"{}\"", name_in(kLseKinds, s.lse));
  if (s.partial_state) text += ", partial_state=True";
  if (s.batch_invariant) text += ", batch_invariant=True";
  if (!s.variant.name.empty()) text += fmt::format(", variant={}", s.variant.name);
  return text + ")";
}

void bind_spec(nb::module_& m) {
  nb::class_<AttentionSpec>(m, "AttentionSpec",
                            "What is asked: everything that selects and shapes a kernel. Immutable; may be shared by threads.")
      .def(
          "__init__",
          [](AttentionSpec* self, int num_qo_heads, int num_kv_heads, int head_dim_qk, int head_dim_vo, int head_dim_rope,
             const DTypeLike& q_dtype, const nb::object& k_dtype, const nb::object& v_dtype, const nb::object& o_dtype,
             std::string_view k_scale, std::string_view v_scale, bool v_is_k, double sm_scale, std::string_view lse, bool partial_state,
             bool batch_invariant, const std::optional<Variant>& variant, const nb::object& k_rope_dtype) {
            AttentionSpec spec;
            spec.num_qo_heads = num_qo_heads;
            spec.num_kv_heads = num_kv_heads;
            spec.head_dim_qk = head_dim_qk;
            spec.head_dim_vo = head_dim_vo;
            spec.head_dim_rope = head_dim_rope;
            spec.q_dtype = dtype(q_dtype, "q_dtype");
            spec.k_dtype = k_dtype.is_none() ? spec.q_dtype : dtype(k_dtype, "k_dtype");
            spec.v_dtype = v_dtype.is_none() ? spec.k_dtype : dtype(v_dtype, "v_dtype");
            spec.o_dtype = o_dtype.is_none() ? spec.q_dtype : dtype(o_dtype, "o_dtype");
            if (!k_rope_dtype.is_none()) spec.k_rope_dtype = dtype(k_rope_dtype, "k_rope_dtype");
            spec.k_scale = enum_of<ScaleGranularity>(kGranularities, k_scale, "k_scale");
            spec.v_scale = enum_of<ScaleGranularity>(kGranularities, v_scale, "v_scale");
            spec.v_is_k = v_is_k;
            spec.sm_scale = sm_scale;
            spec.lse = enum_of<LseKind>(kLseKinds, lse, "lse");
            spec.partial_state = partial_state;
            spec.batch_invariant = batch_invariant;
            if (variant) spec.variant = *variant;
            new (self) AttentionSpec(std::move(spec));
          },
          nb::kw_only(), nb::arg("num_qo_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim_qk"), nb::arg("head_dim_vo") = 0,
          nb::arg("head_dim_rope") = 0, nb::arg("q_dtype") = "bf16", nb::arg("k_dtype") = nb::none(), nb::arg("v_dtype") = nb::none(),
          nb::arg("o_dtype") = nb::none(), nb::arg("k_scale") = "none", nb::arg("v_scale") = "none", nb::arg("v_is_k") = false,
          nb::arg("sm_scale") = 0.0, nb::arg("lse") = "none", nb::arg("partial_state") = false, nb::arg("batch_invariant") = false,
          nb::arg("variant") = nb::none(), nb::arg("k_rope_dtype") = nb::none(),
          nb::sig(
              "def __init__(self, *, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, head_dim_vo: int = 0, head_dim_rope: int = 0, "
              "q_dtype: girih._typing.DTypeLike = 'bf16', k_dtype: girih._typing.DTypeLike | None = None, "
              "v_dtype: girih._typing.DTypeLike | None = None, o_dtype: girih._typing.DTypeLike | None = None, k_scale: str = 'none', "
              "v_scale: str = 'none', v_is_k: bool = False, sm_scale: float = 0.0, lse: str = 'none', partial_state: bool = False, "
              "batch_invariant: bool = False, variant: Variant | None = None, k_rope_dtype: girih._typing.DTypeLike | None = None) -> "
              "None"),
          "num_qo_heads: any multiple of num_kv_heads.\n"
          "head_dim_qk, head_dim_vo: 1 to 1024; head_dim_vo=0: head_dim_qk.\n"
          "head_dim_rope: > 0: Q and K come in two arrays, the second holds the last head_dim_rope dims (MLA).\n"
          "q_dtype, o_dtype: f32, f16 or bf16, o_dtype also e4m3 or e5m2. o_dtype=None: q_dtype.\n"
          "k_dtype, v_dtype: f32, f16, bf16, e4m3, e5m2, i8, nvfp4 or mxfp4. None: q_dtype, k_dtype.\n"
          "k_scale, v_scale: where quantised data has its scales: \"tensor\", \"head\", \"token_head\", \"token_group\" (one for each 128 "
          "dims of\n"
          "  a token and head), or \"block\" (4-bit types).\n"
          "v_is_k: V is a view of K's first head_dim_vo dims (MLA): the store is read once.\n"
          "sm_scale: 0 = 1 / sqrt(head_dim_qk).\n"
          "lse: \"natural\" or \"base2\": run() also returns the log-sum-exp of each row, f32 [num_tokens, num_qo_heads].\n"
          "partial_state: the result is to be merged elsewhere: leaves out the sink and the output transform; needs lse.\n"
          "batch_invariant: a row's bits depend on its own request only.\n"
          "variant: mask, bias, cap, sink, transforms; None: every key is visible.\n"
          "k_rope_dtype: of K's second array. None: k_dtype; or f32, f16 or bf16, without scales, beside any K.\n\n"
          "Raises ValueError for unknown names here; the other rules are checked where the spec is scheduled.")
      .def_ro("num_qo_heads", &AttentionSpec::num_qo_heads)
      .def_ro("num_kv_heads", &AttentionSpec::num_kv_heads)
      .def_ro("head_dim_qk", &AttentionSpec::head_dim_qk)
      .def_ro("head_dim_vo", &AttentionSpec::head_dim_vo)
      .def_ro("head_dim_rope", &AttentionSpec::head_dim_rope)
      .def_prop_ro("q_dtype", [](const AttentionSpec& s) { return std::string(name(s.q_dtype)); })
      .def_prop_ro("k_dtype", [](const AttentionSpec& s) { return std::string(name(s.k_dtype)); })
      .def_prop_ro("v_dtype", [](const AttentionSpec& s) { return std::string(name(s.v_dtype)); })
      .def_prop_ro("o_dtype", [](const AttentionSpec& s) { return std::string(name(s.o_dtype)); })
      .def_prop_ro(
          "k_rope_dtype",
          [](const AttentionSpec& s) {
            return s.k_rope_dtype ? std::optional<std::string>(name(*s.k_rope_dtype)) : std::optional<std::string>();
          },
          "None: k_dtype")
      .def_prop_ro("k_scale", [](const AttentionSpec& s) { return name_in(kGranularities, s.k_scale); })
      .def_prop_ro("v_scale", [](const AttentionSpec& s) { return name_in(kGranularities, s.v_scale); })
      .def_ro("v_is_k", &AttentionSpec::v_is_k)
      .def_ro("sm_scale", &AttentionSpec::sm_scale)
      .def_prop_ro("lse", [](const AttentionSpec& s) { return name_in(kLseKinds, s.lse); })
      .def_ro("partial_state", &AttentionSpec::partial_state)
      .def_ro("batch_invariant", &AttentionSpec::batch_invariant)
      .def_ro("variant", &AttentionSpec::variant, nb::sig("def variant(self) -> Variant"))
      .def("__repr__", spec_text);
}

void bind_limits(nb::module_& m) {
  using L = AttentionLimits;
  nb::class_<L>(m, "AttentionLimits",
                "The largest batch that a schedule serves; plan() refuses what exceeds it. Sizes the workspace. Immutable.")
      .def(
          "__init__",
          [](L* self, std::int64_t max_tokens, std::int64_t max_requests, std::int64_t max_kv_len, std::int64_t max_segments,
             std::int64_t max_groups, std::int64_t max_param_bytes, std::int64_t max_qo_len, std::int64_t max_items) {
            new (self) L{.max_tokens = max_tokens,
                         .max_requests = max_requests,
                         .max_segments = max_segments,
                         .max_groups = max_groups,
                         .max_kv_len = max_kv_len,
                         .max_param_bytes = max_param_bytes,
                         .max_qo_len = max_qo_len,
                         .max_items = max_items};
          },
          nb::kw_only(), nb::arg("max_tokens"), nb::arg("max_requests"), nb::arg("max_kv_len"), nb::arg("max_segments") = 1,
          nb::arg("max_groups") = 0, nb::arg("max_param_bytes") = 1 << 20, nb::arg("max_qo_len") = 0, nb::arg("max_items") = 0,
          "max_tokens: rows of the query array.\n"
          "max_requests: requests of a batch.\n"
          "max_kv_len: keys of one group in one segment.\n"
          "max_segments: segments of a batch.\n"
          "max_groups: query groups over all segments; 0 = max_requests * max_segments.\n"
          "max_param_bytes: bytes of plan-time parameters.\n"
          "max_qo_len: query rows of one request; 0 = max_tokens. Where all are short one kernel is enough.\n"
          "max_items: work items of a plan, which size a GPU's copy of it; 0 = what any batch under common masks needs.")
      .def_ro("max_tokens", &L::max_tokens)
      .def_ro("max_requests", &L::max_requests)
      .def_ro("max_kv_len", &L::max_kv_len)
      .def_ro("max_segments", &L::max_segments)
      .def_ro("max_groups", &L::max_groups)
      .def_ro("max_param_bytes", &L::max_param_bytes)
      .def_ro("max_qo_len", &L::max_qo_len)
      .def_ro("max_items", &L::max_items)
      .def("__repr__", [](const L& l) {
        return fmt::format("AttentionLimits(max_tokens={}, max_requests={}, max_kv_len={}, max_segments={}, max_groups={}, max_qo_len={})",
                           l.max_tokens, l.max_requests, l.max_kv_len, l.max_segments, l.max_groups, l.max_qo_len);
      });
}

/// A page table in FlashInfer's form, copied.
PySegment segment_of_last_pages(nb::handle kv_indptr, nb::handle last_page_len, std::int64_t page_size) {
  const IndexArray indptr(kv_indptr, "kv_indptr");
  const IndexArray last(last_page_len, "last_page_len");
  PySegment out;
  out.kv_len = IndexArray(kv_len_from_last_page(indptr.view(), last.view(), page_size));
  std::vector<std::int64_t> copied(static_cast<std::size_t>(indptr.view().size()));
  for (std::size_t i = 0; i < copied.size(); ++i) copied[i] = indptr.view()[static_cast<std::int64_t>(i)];
  out.kv_indptr = IndexArray(std::move(copied));
  out.segment = {.page_size = page_size, .kv_indptr = out.kv_indptr.view(), .kv_len = out.kv_len.view()};
  return out;
}

std::int64_t longest(const PySegment& s) {
  const Indices& lengths = s.segment.kv_len;
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < lengths.size(); ++i) most = std::max(most, lengths[i]);
  return most;
}

/// Table rows of a rank-2 kv_indptr are heads, of a rank-1 one the heads follow each other.
void bind_segment(nb::module_& m) {
  nb::class_<PySegment>(
      m, "Segment",
      "Groups of query rows, each with its run of pages: one level of a batch. Keeps its arrays alive and reads them during\n"
      "plan() only. Arrays: int32 or int64 in host memory (NumPy, torch on the CPU), or sequences of ints, which are copied.")
      .def(
          "__init__",
          [](PySegment* self, const nb::object& kv_indptr, const nb::object& kv_len, std::int64_t page_size, std::int64_t table_stride,
             int num_table_heads, const nb::object& qo_indptr, const nb::object& kv_pos, const nb::object& page_pos,
             const nb::object& kv_rope_pos, bool masked) {
            PySegment out;
            out.qo_indptr = IndexArray(qo_indptr, "qo_indptr");
            out.kv_indptr = IndexArray(kv_indptr, "kv_indptr", 2);
            out.kv_len = IndexArray(kv_len, "kv_len", 2);
            out.kv_pos = IndexArray(kv_pos, "kv_pos");
            out.page_pos = IndexArray(page_pos, "page_pos", 2);
            out.kv_rope_pos = IndexArray(kv_rope_pos, "kv_rope_pos");
            out.segment = {.qo_indptr = out.qo_indptr.view(),
                           .page_size = page_size,
                           .num_table_heads = num_table_heads,
                           .kv_indptr = out.kv_indptr.view(),
                           .table_stride = table_stride,
                           .kv_len = out.kv_len.view(),
                           .kv_pos = out.kv_pos.view(),
                           .page_pos = out.page_pos.view(),
                           .kv_rope_pos = out.kv_rope_pos.view(),
                           .masked = masked};
            new (self) PySegment(std::move(out));
          },
          nb::kw_only(), nb::arg("kv_indptr") = nb::none(), nb::arg("kv_len") = nb::none(), nb::arg("page_size") = 16,
          nb::arg("table_stride") = 0, nb::arg("num_table_heads") = 1, nb::arg("qo_indptr") = nb::none(), nb::arg("kv_pos") = nb::none(),
          nb::arg("page_pos") = nb::none(), nb::arg("kv_rope_pos") = nb::none(), nb::arg("masked") = true,
          nb::sig(
              "def __init__(self, *, kv_indptr: girih._typing.IndicesLike | None = None, kv_len: girih._typing.IndicesLike | None = None, "
              "page_size: int = 16, table_stride: int = 0, num_table_heads: int = 1, "
              "qo_indptr: girih._typing.IndicesLike | None = None, kv_pos: girih._typing.IndicesLike | None = None, "
              "page_pos: girih._typing.IndicesLike | None = None, kv_rope_pos: girih._typing.IndicesLike | None = None, "
              "masked: bool = True) -> None"),
          "kv_indptr: offsets into kv_indices, [num_groups + 1], or [num_kv_heads, num_groups + 1] where each KV head has pages of its "
          "own\n"
          "  (num_table_heads). Ragged: token offsets.\n"
          "kv_len: keys of each group, [num_groups] or [num_kv_heads, num_groups]. Ragged: optional, else the extents of kv_indptr. Table\n"
          "  entries past ceil(len / page_size) are never read.\n"
          "page_size: tokens a page, as the store's; 0 = ragged.\n"
          "table_stride: in place of kv_indptr: row r of the page table starts at entry r * table_stride (a block table's columns).\n"
          "num_table_heads: 1, or num_kv_heads where each head has its own table rows, ordered [head, group].\n"
          "qo_indptr: group g holds query rows [qo_indptr[g], qo_indptr[g+1]); None: the groups are the requests of the batch.\n"
          "kv_pos: [num_groups] position of the group's first key; None: after the keys of the preceding segments.\n"
          "page_pos: per table entry, position of the page's first key, where pages are not adjacent; also given to run().\n"
          "kv_rope_pos: [num_groups] RoPE position of the first key; None: its position.\n"
          "masked: False: every key of the segment is visible to every row of its group.\n\n"
          "Raises ValueError for an array on a GPU, of another type or rank. Other rules are checked by plan().")
      .def_static("from_last_page", segment_of_last_pages, nb::arg("kv_indptr"), nb::arg("last_page_len"), nb::arg("page_size"),
                  nb::sig("def from_last_page(kv_indptr: girih._typing.IndicesLike, last_page_len: girih._typing.IndicesLike, "
                          "page_size: int) -> Segment"),
                  "The segment of a page table in FlashInfer's form: kv_indptr [num_groups + 1], last_page_len [num_groups] keys of each "
                  "last\n"
                  "page (1 to page_size; 0 allowed without pages). Both are copied. Raises ValueError naming the entry that breaks a rule.")
      .def_prop_ro("longest", longest, "the largest of kv_len; 0 where it was not given")
      .def_prop_ro("page_size", [](const PySegment& s) { return s.segment.page_size; })
      .def_prop_ro("table_stride", [](const PySegment& s) { return s.segment.table_stride; })
      .def_prop_ro("num_table_heads", [](const PySegment& s) { return s.segment.num_table_heads; })
      .def_prop_ro("masked", [](const PySegment& s) { return s.segment.masked; });
}

void bind_capabilities(nb::module_& m) {
  using C = AttentionCapability;
  const auto names = [](const std::vector<DType>& types) {
    std::vector<std::string> out;
    for (const DType t : types) out.emplace_back(name(t));
    return out;
  };
  nb::class_<C>(m, "AttentionCapability", "What one family of kernels does. Validation and dispatch read the same table.")
      .def_prop_ro("device", [](const C& c) { return std::string(c.device == DeviceKind::cpu ? "cpu" : "cuda"); })
      .def_ro("family", &C::family)
      .def_prop_ro("q_dtypes", [names](const C& c) { return names(c.q_dtypes); })
      .def_prop_ro("o_dtypes", [names](const C& c) { return names(c.o_dtypes); })
      .def_prop_ro("kv_dtypes", [names](const C& c) { return names(c.kv_dtypes); })
      .def_ro("max_head_dim", &C::max_head_dim)
      .def_ro("features", &C::features)
      .def("__repr__", [](const C& c) { return fmt::format("AttentionCapability({}, head_dim up to {})", c.family, c.max_head_dim); });
  m.def("attention_capabilities", &attention_capabilities, "The families of attention kernels and what each does.");
}

}  // namespace

void bind_attention_spec(nb::module_& m) {
  m.def(
      "array_info",
      [](nb::handle object, std::string_view argument) {
        const TensorView t = array(object, argument).view;
        nb::list shape;
        for (int i = 0; i < t.rank; ++i) shape.append(t.shape[i]);
        return nb::make_tuple(nb::tuple(shape), std::string(name(t.dtype)), name(t.device));
      },
      nb::arg("array"), nb::arg("name") = "array",
      nb::sig("def array_info(array: girih._typing.ArrayLike, name: str = 'array') -> tuple[tuple[int, ...], str, str]"),
      "(shape, dtype, device) as girih sees an array; `name` is what errors call it.");
  bind_spec(m);
  bind_limits(m);
  bind_segment(m);
  bind_capabilities(m);
}

void bind_attention(nb::module_& m) {
  bind_attention_spec(m);
  bind_kv_store(m);
  bind_block_sparse(m);
  bind_plan(m);
  bind_attention_run(m);
}

}  // namespace girih::python
