// Block-sparse patterns as segments over the pages of KvStore.blocks(), and lists of tokens as segments over those of one token.
#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <span>
#include <utility>
#include <vector>

#include "attention.h"
#include "girih/attention.h"

namespace girih::python {
namespace {

using Pattern = BlockSparse;

/// A read-only NumPy view of a pattern's array; the pattern lives as long as it.
template <typename T>
nb::object view_of(const std::vector<T>& values, nb::handle owner) {
  const std::size_t shape[] = {values.size()};
  return nb::cast(nb::ndarray<nb::numpy, const T>(values.data(), 1, shape, owner));
}

/// The block mask, dense and in host memory: bool or uint8.
std::vector<std::uint8_t> mask_bytes(nb::handle object) {
  const Array found = array(object, "block_mask");
  const TensorView& t = found.view;
  if (t.device.kind != DeviceKind::cpu) bad_value("block_mask", "is on a GPU; the pattern is made on the host: give .cpu()");
  if (t.dtype != DType::u8) bad_value("block_mask", fmt::format("is {}; must be bool or uint8", name(t.dtype)));
  if (t.rank < 1)
    bad_value("block_mask", "has no dimensions; must be [num_heads, row blocks, column blocks] or [row blocks, column blocks]");
  std::vector<std::uint8_t> out;
  out.reserve(static_cast<std::size_t>(t.numel()));
  std::array<std::int64_t, TensorView::kMaxRank> at{};
  for (std::int64_t n = t.numel(); n > 0; --n) {
    std::int64_t offset = 0;
    for (int i = 0; i < t.rank; ++i) offset += at[i] * t.strides[i];
    out.push_back(static_cast<const std::uint8_t*>(t.data)[offset]);
    for (int i = t.rank - 1; i >= 0 && ++at[i] == t.shape[i]; --i) at[i] = 0;
  }
  return out;
}

template <typename Made>
nb::object segment_of(nb::handle self) {
  PySegment out;
  out.segment = nb::cast<const Made&>(self).segment();
  out.owner = nb::borrow(self);
  return nb::cast(std::move(out));
}

const Store& store_of(nb::handle store) {
  const Store* s = nullptr;
  if (!nb::try_cast<const Store*>(store, s) || s == nullptr) throw nb::type_error("store: must be a KvStore");
  return *s;
}
/// Where the store is.
nb::object placed(const Store& s, nb::object values) {
  if (s.device.kind == DeviceKind::cpu) return values;
  return nb::module_::import_("torch").attr("tensor")(values, nb::arg("device") = name(s.device));
}
nb::object segment_data_type() { return nb::module_::import_("girih._girih").attr("SegmentData"); }

nb::object data_of(nb::handle self, nb::handle store) {
  const Store& s = store_of(store);
  const auto& pattern = nb::cast<const Pattern&>(self);
  if (s.store.page_size != pattern.page_size)
    bad_value("store", fmt::format("has page_size={}; the pattern's is {}: KvStore.blocks(k, v, page_size={})", s.store.page_size,
                                   pattern.page_size, pattern.page_size));
  return segment_data_type()(store, placed(s, view_of(pattern.kv_indices, self)), placed(s, view_of(pattern.page_pos, self)));
}

nb::object data_of_lists(nb::handle self, nb::handle store) {
  const Store& s = store_of(store);
  if (s.store.page_size != 1)
    bad_value("store", fmt::format("has page_size={}; lists are of single tokens: store.single_token_pages()", s.store.page_size));
  return segment_data_type()(store, placed(s, view_of(nb::cast<const KeyLists&>(self).kv_indices, self)));
}

/// int32 [rows, top_k] in host memory, dense.
KeyLists lists_of(nb::handle object) {
  const Array found = array(object, "indices");
  const TensorView& t = found.view;
  if (t.device.kind != DeviceKind::cpu) bad_value("indices", "is on a GPU; lists are made on the host: give .cpu()");
  if (t.dtype != DType::i32) bad_value("indices", fmt::format("is {}; must be int32", name(t.dtype)));
  if (t.rank != 2) bad_value("indices", fmt::format("has {} dimensions; must have 2: [rows, top_k]", t.rank));
  if (t.numel() > 0 && ((t.shape[1] > 1 && t.strides[1] != 1) || (t.shape[0] > 1 && t.strides[0] != t.shape[1])))
    bad_value("indices", "must be dense");
  return key_lists({static_cast<const std::int32_t*>(t.data), static_cast<std::size_t>(t.numel())}, t.shape[0]);
}

}  // namespace

void bind_block_sparse(nb::module_& m) {
  nb::class_<Pattern>(
      m, "BlockSparse",
      "A block-sparse pattern as a segment: segment() goes to plan(), data(store) to run(), with store = KvStore.blocks(k, v,\n"
      "page_size=pattern.page_size). Plan with kv_len=[num_cols] where the mask asks for positions. Immutable.")
      .def_ro("page_size", &Pattern::page_size, "tokens a page: what the store is cut into")
      .def_ro("num_table_heads", &Pattern::num_table_heads)
      .def_prop_ro("qo_indptr", [](nb::handle self) { return view_of(nb::cast<const Pattern&>(self).qo_indptr, self); })
      .def_prop_ro("kv_indptr", [](nb::handle self) { return view_of(nb::cast<const Pattern&>(self).kv_indptr, self); })
      .def_prop_ro("kv_len", [](nb::handle self) { return view_of(nb::cast<const Pattern&>(self).kv_len, self); })
      .def_prop_ro("kv_indices", [](nb::handle self) { return view_of(nb::cast<const Pattern&>(self).kv_indices, self); })
      .def_prop_ro("page_pos", [](nb::handle self) { return view_of(nb::cast<const Pattern&>(self).page_pos, self); })
      .def("segment", segment_of<Pattern>, nb::sig("def segment(self) -> Segment"), "The pattern for plan().")
      .def("data", data_of, nb::arg("store"), nb::sig("def data(self, store: KvStore) -> SegmentData"),
           "The pattern over a store, for run(); on CUDA its two arrays are copied there by torch. Keep it for all runs of a pattern.");
  m.def(
      "block_sparse",
      [](std::int64_t num_rows, std::int64_t num_cols, std::int64_t block_rows, std::int64_t block_cols, nb::handle indptr,
         nb::handle indices, int num_heads) {
        const IndexArray row_begin(indptr, "indptr", 2);
        const IndexArray columns(indices, "indices", 2);
        const nb::gil_scoped_release released;
        return block_sparse(num_rows, num_cols, block_rows, block_cols, row_begin.view(), columns.view(), num_heads);
      },
      nb::arg("num_rows"), nb::arg("num_cols"), nb::arg("block_rows"), nb::arg("block_cols"), nb::arg("indptr"), nb::arg("indices"),
      nb::kw_only(), nb::arg("num_heads") = 1,
      nb::sig("def block_sparse(num_rows: int, num_cols: int, block_rows: int, block_cols: int, indptr: girih._typing.IndicesLike, "
              "indices: girih._typing.IndicesLike, *, num_heads: int = 1) -> BlockSparse"),
      "A BSR pattern over a [num_rows, num_cols] score matrix with blocks of block_rows x block_cols (the last of each may be cut).\n\n"
      "indptr: [block rows + 1]; indices: attended block columns, ascending within a row. For patterns per KV head: num_heads, indptr\n"
      "[num_heads, block rows + 1] with absolute offsets. Host memory.\n\nRaises ValueError naming the entry that breaks a rule.");
  nb::class_<KeyLists>(m, "KeyLists", "A list of tokens for each query row: segment() goes to plan(), data(store) to run(). Immutable.")
      .def_prop_ro("qo_indptr", [](nb::handle self) { return view_of(nb::cast<const KeyLists&>(self).qo_indptr, self); })
      .def_prop_ro("kv_indptr", [](nb::handle self) { return view_of(nb::cast<const KeyLists&>(self).kv_indptr, self); })
      .def_prop_ro("kv_len", [](nb::handle self) { return view_of(nb::cast<const KeyLists&>(self).kv_len, self); })
      .def_prop_ro("kv_indices", [](nb::handle self) { return view_of(nb::cast<const KeyLists&>(self).kv_indices, self); })
      .def("segment", segment_of<KeyLists>, nb::sig("def segment(self) -> Segment"), "The lists for plan(); not masked.")
      .def("data", data_of_lists, nb::arg("store"), nb::sig("def data(self, store: KvStore) -> SegmentData"),
           "The lists over a store of pages of one token, for run(); on CUDA their array is copied there by torch.");
  m.def("key_lists", lists_of, nb::arg("indices"), nb::sig("def key_lists(indices: girih._typing.ArrayLike) -> KeyLists"),
        "Lists of tokens out of an indexer's table: row i attends to the entries >= 0 of indices[i], in their order; negative ones are\n"
        "unused. indices: int32 [rows, top_k], dense, host memory. Where used entries come first and their counts are known, the table\n"
        "itself serves: Segment(qo_indptr=range(rows + 1), page_size=1, table_stride=top_k, kv_len=counts, masked=False).\n\n"
        "Raises ValueError for another type, rank or device.");
  m.def(
      "variable_block_sparse",
      [](nb::handle row_sizes, nb::handle col_sizes, nb::handle block_mask, int num_heads) {
        const IndexArray rows(row_sizes, "row_sizes", 2);
        const IndexArray columns(col_sizes, "col_sizes", 2);
        const std::vector<std::uint8_t> mask = mask_bytes(block_mask);
        const nb::gil_scoped_release released;
        return variable_block_sparse(rows.view(), columns.view(), mask, num_heads);
      },
      nb::arg("row_sizes"), nb::arg("col_sizes"), nb::arg("block_mask"), nb::kw_only(), nb::arg("num_heads") = 1,
      nb::sig("def variable_block_sparse(row_sizes: girih._typing.IndicesLike, col_sizes: girih._typing.IndicesLike, "
              "block_mask: girih._typing.ArrayLike, *, num_heads: int = 1) -> BlockSparse"),
      "Blocks of any sizes.\n\n"
      "row_sizes, col_sizes: [n], or [num_heads, n] where KV heads differ. block_mask: bool or uint8 [num_heads, row blocks, column "
      "blocks],\n"
      "nonzero = attended. Host memory.\n\nRaises ValueError naming the entry that breaks a rule.");
}

}  // namespace girih::python
