// KvStore and SegmentData as Python sees them, and what a spec asks of a store.
#include "kv_store.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>

#include "names.h"

namespace girih::python {
namespace {

bool fits_dim(const PlaneDims& dims, const KvPlane& plane, std::int64_t dim) {
  return bits(plane.dtype) == 4 ? dims.dim == dim + dim % 2 : dims.dim == dim;
}

}  // namespace

void check_store(const Store& store, const AttentionSpec& spec, Device device, std::string_view what) {
  if (store.device != device) bad_value(what, fmt::format("the store is on {}; the attention is for {}", name(store.device), name(device)));
  const auto check = [&](std::string_view plane_name, const PlaneDims& dims, const KvPlane& plane, std::int64_t dim,
                         std::string_view rule) {
    if (!dims.given) bad_value(what, fmt::format("the store has no {}; the spec needs it ({})", plane_name, rule));
    if (dims.heads != spec.num_kv_heads)
      bad_value(what, fmt::format("{} has {} heads; spec.num_kv_heads={}", plane_name, dims.heads, spec.num_kv_heads));
    if (!fits_dim(dims, plane, dim)) bad_value(what, fmt::format("{} has {} dims; must be {} ({})", plane_name, dims.dim, dim, rule));
  };
  check("k", store.k, store.store.k, spec.head_dim_qk - spec.head_dim_rope,
        spec.head_dim_rope > 0 ? "spec.head_dim_qk - spec.head_dim_rope" : "spec.head_dim_qk");
  if (spec.head_dim_rope > 0) {
    check("k_rope", store.k_rope, store.store.k_rope, spec.head_dim_rope, "spec.head_dim_rope");
  } else if (store.k_rope.given) {
    bad_value(what, "the store has k_rope, but spec.head_dim_rope=0");
  }
  if (!spec.v_is_k) check("v", store.v, store.store.v, spec.head_dim_vo, "spec.head_dim_vo");
}

void bind_kv_store(nb::module_& m) {
  const char* scales_text =
      "k_scale, v_scale: scales of quantised data, value = code * scale * global scale. A number or f32 [1]: one for all; f32 [heads];\n"
      "  one per token and head: f32 of the data's extents without the last, or one for each 128 dims there: with dim / 128 in place of "
      "the\n"
      "  last (dense); 4-bit data: one per block, e4m3 (nvfp4, blocks of 16) or\n"
      "  uint8 (mxfp4, e8m0, blocks of 32), of the data's extents with the blocks in place of the last. They follow the data's layout.\n"
      "k_global_scale, v_global_scale: multiply all scales (nvfp4's tensor scale).\n"
      "k_rope_scale: of a quantised k_rope; None: a k_scale of one or of one per head serves both. A k_rope of f32, f16 or bf16 has none,\n"
      "  whatever k is (spec.k_rope_dtype).\n";
  const std::string types_text =
      "k_dtype, v_dtype: what uint8 data holds: \"nvfp4\" or \"mxfp4\" (two elements a byte, the even one in the low nibble), or an 8-bit\n"
      "  type. v_dtype=None: as k_dtype.\n";
  nb::class_<Store> store(
      m, "KvStore",
      "Keys and values of one layer: views of arrays, never copies, which are kept alive. An argument of run(): one plan\n"
      "serves all layers. Made by paged(), paged_combined(), ragged() or blocks(). Immutable; may be shared by threads.");
  store
      .def_static(
          "paged",
          [](const ArrayLike& k, const nb::object& v, std::string_view layout, const nb::object& k_rope, const nb::object& k_dtype,
             const nb::object& v_dtype, const nb::object& k_scale, const nb::object& v_scale, double k_global, double v_global,
             const nb::object& k_rope_scale) {
            return make_store(Arrangement::paged, k, v, layout, 0, k_rope, k_dtype, v_dtype,
                              {k_scale, v_scale, k_global, v_global, k_rope_scale});
          },
          nb::arg("k"), nb::arg("v").none() = nb::none(), nb::kw_only(), nb::arg("layout") = "NHD", nb::arg("k_rope") = nb::none(),
          nb::arg("k_dtype") = nb::none(), nb::arg("v_dtype") = nb::none(), nb::arg("k_scale") = nb::none(),
          nb::arg("v_scale") = nb::none(), nb::arg("k_global_scale") = 1.0, nb::arg("v_global_scale") = 1.0,
          nb::arg("k_rope_scale") = nb::none(),
          nb::sig("def paged(k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, layout: str = 'NHD', "
                  "k_rope: girih._typing.ArrayLike | None = None, k_dtype: girih._typing.DTypeLike | None = None, "
                  "v_dtype: girih._typing.DTypeLike | None = None, k_scale: float | girih._typing.ArrayLike | None = None, "
                  "v_scale: float | girih._typing.ArrayLike | None = None, k_global_scale: float = 1.0, v_global_scale: float = 1.0, "
                  "k_rope_scale: float | girih._typing.ArrayLike | None = None) -> KvStore"),
          (std::string(
               "A paged cache: k and v [num_pages, page_size, heads, dim] (NHD) or [num_pages, heads, page_size, dim] (HND), any strides;\n"
               "[num_pages, page_size, dim] counts as one head. The page size is that of the arrays.\n\n"
               "v: None for MLA, where V is a view of K (spec.v_is_k).\n"
               "k_rope: K's last dims in an array of their own (spec.head_dim_rope).\n") +
           types_text + scales_text + "\nRaises ValueError naming the argument for shapes, types or devices that do not fit.")
              .c_str())
      .def_static(
          "paged_combined",
          [](const ArrayLike& kv, std::string_view layout, const nb::object& type, const nb::object& k_scale, const nb::object& v_scale,
             double k_global, double v_global) {
            return make_combined_store(kv, layout, type, {k_scale, v_scale, k_global, v_global});
          },
          nb::arg("kv"), nb::kw_only(), nb::arg("layout") = "NHD", nb::arg("dtype") = nb::none(), nb::arg("k_scale") = nb::none(),
          nb::arg("v_scale") = nb::none(), nb::arg("k_global_scale") = 1.0, nb::arg("v_global_scale") = 1.0,
          nb::sig("def paged_combined(kv: girih._typing.ArrayLike, *, layout: str = 'NHD', dtype: girih._typing.DTypeLike | None = None, "
                  "k_scale: float | girih._typing.ArrayLike | None = None, v_scale: float | girih._typing.ArrayLike | None = None, "
                  "k_global_scale: float = 1.0, v_global_scale: float = 1.0) -> KvStore"),
          (std::string(
               "A paged cache in one array [num_pages, 2, page_size, heads, dim] (NHD) or [num_pages, 2, heads, page_size, dim] (HND).\n\n"
               "dtype: what uint8 data holds, as in paged().\n") +
           scales_text + "\nRaises ValueError naming the argument for shapes, types or devices that do not fit.")
              .c_str())
      .def_static(
          "ragged",
          [](const ArrayLike& k, const nb::object& v, std::string_view layout, const nb::object& k_rope, const nb::object& k_dtype,
             const nb::object& v_dtype, const nb::object& k_scale, const nb::object& v_scale, double k_global, double v_global,
             const nb::object& k_rope_scale) {
            return make_store(Arrangement::ragged, k, v, layout, 0, k_rope, k_dtype, v_dtype,
                              {k_scale, v_scale, k_global, v_global, k_rope_scale});
          },
          nb::arg("k"), nb::arg("v").none() = nb::none(), nb::kw_only(), nb::arg("layout") = "NHD", nb::arg("k_rope") = nb::none(),
          nb::arg("k_dtype") = nb::none(), nb::arg("v_dtype") = nb::none(), nb::arg("k_scale") = nb::none(),
          nb::arg("v_scale") = nb::none(), nb::arg("k_global_scale") = 1.0, nb::arg("v_global_scale") = 1.0,
          nb::arg("k_rope_scale") = nb::none(),
          nb::sig("def ragged(k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, layout: str = 'NHD', "
                  "k_rope: girih._typing.ArrayLike | None = None, k_dtype: girih._typing.DTypeLike | None = None, "
                  "v_dtype: girih._typing.DTypeLike | None = None, k_scale: float | girih._typing.ArrayLike | None = None, "
                  "v_scale: float | girih._typing.ArrayLike | None = None, k_global_scale: float = 1.0, v_global_scale: float = 1.0, "
                  "k_rope_scale: float | girih._typing.ArrayLike | None = None) -> KvStore"),
          (std::string(
               "Keys and values of all requests one after the other: k and v [num_tokens, heads, dim] (NHD) or\n"
               "[heads, num_tokens, dim] (HND), any strides; [num_tokens, dim] counts as one head. Segments over it have page_size=0\n"
               "and token offsets in kv_indptr.\n\n") +
           types_text + scales_text + "\nRaises ValueError naming the argument for shapes, types or devices that do not fit.")
              .c_str())
      .def_static(
          "blocks",
          [](const ArrayLike& k, const ArrayLike& v, std::int64_t page_size, std::string_view layout, const nb::object& k_dtype,
             const nb::object& v_dtype, const nb::object& k_scale, const nb::object& v_scale, double k_global, double v_global) {
            return make_store(Arrangement::blocks, k, v, layout, page_size, nb::none(), k_dtype, v_dtype,
                              {k_scale, v_scale, k_global, v_global});
          },
          nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("page_size"), nb::arg("layout") = "NHD", nb::arg("k_dtype") = nb::none(),
          nb::arg("v_dtype") = nb::none(), nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(),
          nb::arg("k_global_scale") = 1.0, nb::arg("v_global_scale") = 1.0,
          nb::sig("def blocks(k: girih._typing.ArrayLike, v: girih._typing.ArrayLike, *, page_size: int, layout: str = 'NHD', "
                  "k_dtype: girih._typing.DTypeLike | None = None, v_dtype: girih._typing.DTypeLike | None = None, "
                  "k_scale: float | girih._typing.ArrayLike | None = None, v_scale: float | girih._typing.ArrayLike | None = None, "
                  "k_global_scale: float = 1.0, v_global_scale: float = 1.0) -> KvStore"),
          "Ragged k and v [num_tokens, heads, dim] (NHD) or [heads, num_tokens, dim] (HND) seen as pages of `page_size` tokens: page i is "
          "tokens\n"
          "[i * page_size, ...). What the patterns of block_sparse() and variable_block_sparse() run over. The other arguments: as "
          "ragged().")
      .def_static(
          "mla_tokens", make_mla_token_store, nb::arg("tokens"), nb::kw_only(), nb::arg("latent_dim") = 512, nb::arg("rope_dim") = 64,
          nb::sig("def mla_tokens(tokens: girih._typing.ArrayLike, *, latent_dim: int = 512, rope_dim: int = 64) -> KvStore"),
          "MLA's fp8 tokens as DeepSeek-V3.2 caches them: 8-bit tokens [num_pages, page_size, B] or [num_pages, page_size, 1, B], B =\n"
          "latent_dim + latent_dim / 128 * 4 + rope_dim * 2 (656): e4m3 codes of the latent, a float32 scale for each 128 of them, then\n"
          "the RoPE part as bfloat16. For specs of k_dtype=\"e4m3\", k_scale=\"token_group\", k_rope_dtype=\"bf16\", v_is_k=True.\n\n"
          "Raises ValueError naming the argument for shapes, types or strides that do not fit.")
      .def(
          "single_token_pages",
          [](const Store& s) {
            Store out = s;
            out.store = single_token_pages(s.store);
            return out;
          },
          nb::sig("def single_token_pages(self) -> KvStore"),
          "The same memory as pages of one token, which lists of tokens need: page id = page * page_size + slot.\n\n"
          "Raises ValueError where pages do not adjoin, and for ragged stores.")
      .def_prop_ro(
          "page_size", [](const Store& s) { return s.store.page_size; }, "tokens a page; 0: ragged")
      .def_prop_ro(
          "num_pages", [](const Store& s) { return s.store.num_pages; }, "pages; ragged: tokens")
      .def_prop_ro("num_kv_heads", [](const Store& s) { return s.k.heads; })
      .def_prop_ro(
          "head_dim_k", [](const Store& s) { return s.k.dim; }, "without k_rope's; 4-bit data: two a byte")
      .def_prop_ro(
          "head_dim_rope", [](const Store& s) { return s.k_rope.dim; }, "of k_rope; 0 without one")
      .def_prop_ro(
          "head_dim_v", [](const Store& s) { return s.v.dim; }, "0 without v")
      .def_prop_ro("k_dtype", [](const Store& s) { return std::string(name(s.store.k.dtype)); })
      .def_prop_ro(
          "k_rope_dtype",
          [](const Store& s) {
            return s.k_rope.given ? std::optional<std::string>(name(s.store.k_rope.dtype)) : std::optional<std::string>();
          },
          "None without k_rope")
      .def_prop_ro("v_dtype", [](const Store& s) { return std::string(name(s.v.given ? s.store.v.dtype : s.store.k.dtype)); })
      .def_prop_ro(
          "k_scale", [](const Store& s) { return name_in(kGranularities, s.store.k.scales.granularity); },
          "none, tensor, head, token_head, token_group or block: what AttentionSpec(k_scale=...) says")
      .def_prop_ro(
          "v_scale",
          [](const Store& s) { return name_in(kGranularities, s.v.given ? s.store.v.scales.granularity : s.store.k.scales.granularity); })
      .def_prop_ro("device", [](const Store& s) { return name(s.device); })
      .def("__repr__", [](const Store& s) {
        return fmt::format("KvStore({}, {} {}, {} heads, k {} x {}, v {} x {}, {})",
                           s.store.page_size == kEndlessPage ? "ragged" : fmt::format("page_size={}", s.store.page_size), s.store.num_pages,
                           s.store.page_size == kEndlessPage ? "tokens" : "pages", s.k.heads, s.k.dim, name(s.store.k.dtype), s.v.dim,
                           s.v.given ? name(s.store.v.dtype) : "of k", name(s.device));
      });

  nb::class_<StoreSegment>(
      m, "SegmentData",
      "A store with the page table of one segment, for run(): what a Segment of the plan is computed from. Keeps both alive.")
      .def(
          "__init__",
          [](StoreSegment* self, const nb::object& object, const nb::object& kv_indices, const nb::object& page_pos) {
            const Store* s = nullptr;
            if (!nb::try_cast<const Store*>(object, s) || s == nullptr) throw nb::type_error("store: must be a KvStore");
            new (self) StoreSegment{object, s, DeviceIndices<std::int32_t>(kv_indices, "kv_indices", s->device),
                                    DeviceIndices<std::int64_t>(page_pos, "page_pos", s->device)};
          },
          nb::arg("store"), nb::arg("kv_indices") = nb::none(), nb::arg("page_pos") = nb::none(),
          nb::sig("def __init__(self, store: KvStore, kv_indices: girih._typing.IndicesLike | None = None, "
                  "page_pos: girih._typing.IndicesLike | None = None) -> None"),
          "kv_indices: int32 page ids, [entries] or a dense table [rows, table_stride], on the store's device; None for a ragged store.\n"
          "page_pos: int64 position of each entry's first key, where the segment was planned with page_pos.\n"
          "On the CPU also sequences of ints. Arrays are read in place at each run().")
      .def_prop_ro(
          "store", [](const StoreSegment& s) { return s.owner; }, nb::sig("def store(self) -> KvStore"));
}

}  // namespace girih::python
