// The paged cache beside attention: append, copy_pages, positions. What Python's KvStore knows and the library's does not (heads and
// dims of the arrays, whether they may be written) is checked here.
#include "girih/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention.h"
#include "outputs.h"
#include "plan.h"

namespace girih::python {
namespace {

/// An int64 or int32 array for the caller: of torch where `like` is a tensor, else of NumPy.
template <typename T>
nb::object index_result(nb::handle like, const std::vector<T>& values, std::string_view name) {
  constexpr DType kType = sizeof(T) == 4 ? DType::i32 : DType::i64;
  Array kind;
  kind.library = ArrayLibrary::numpy;
  if (nb::hasattr(like, "new_empty")) kind = array(like, name);
  Output out = new_array(kind, kType, {std::ssize(values)}, name);
  if (!values.empty()) std::memcpy(out.view.data, values.data(), values.size() * sizeof(T));
  return std::move(out.object);
}

nb::object lengths(nb::handle kv_indptr, nb::handle last_page_len, std::int64_t page_size) {
  const IndexArray indptr(kv_indptr, "kv_indptr");
  const IndexArray last(last_page_len, "last_page_len");
  return index_result(kv_indptr, kv_len_from_last_page(indptr.view(), last.view(), page_size), "kv_indptr");
}

nb::object positions(nb::handle append_indptr, nb::handle kv_len) {
  const IndexArray indptr(append_indptr, "append_indptr");
  const IndexArray len(kv_len, "kv_len");
  const AppendPositions found = append_positions(indptr.view(), len.view());
  return nb::make_tuple(index_result(append_indptr, found.batch_indices, "append_indptr"),
                        index_result(append_indptr, found.positions, "append_indptr"));
}

void copy(const Store& store, nb::handle copies, nb::handle context_, nb::handle stream_) {
  if (store.read_only) bad_value("store", "holds a read-only array; pages are written");
  std::vector<PageCopy> list;
  for (const nb::handle pair : nb::borrow<nb::iterable>(copies)) {
    const std::string entry = fmt::format("copies[{}]", list.size());
    const bool sequence = PySequence_Check(pair.ptr()) != 0 && PySequence_Size(pair.ptr()) == 2;
    PyErr_Clear();
    if (!sequence) throw nb::type_error(fmt::format("{}: must be (source, destination)", entry).c_str());
    const std::vector<std::int32_t> ids = integers<std::int32_t>(pair, entry);
    list.push_back({ids[0], ids[1]});
  }
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (std::max({store.k.heads, store.k.dim, store.k_rope.dim, store.v.dim}) > kMost)
    bad_value("store", fmt::format("has more than {} heads or dims", kMost));
  const nb::object object = context_object(context_, store.device);
  const Context& context = context_of(object);
  void* on = stream_for(stream_, store.device);
  const nb::gil_scoped_release released;
  copy_pages(context, store.store, static_cast<int>(store.k.heads), static_cast<int>(store.k.dim), static_cast<int>(store.k_rope.dim),
             static_cast<int>(store.v.dim), list, on);
}

}  // namespace

void check_appended(const Store& store, const TensorView& k, const TensorView& k_rope, const TensorView& v) {
  if (store.read_only) bad_value("store", "holds a read-only array; appending writes it");
  const auto check = [](std::string_view name, const TensorView& t, const PlaneDims& dims, const KvPlane& plane) {
    if (t.rank == 0) return;
    if (!dims.given) bad_value(name, "is given, but the store has no such plane");
    if (t.rank != 3) bad_value(name, fmt::format("has {} dimensions; must have 3: [tokens, heads, dim]", t.rank));
    const std::int64_t dim = bits(plane.dtype) == 4 ? t.shape[2] + t.shape[2] % 2 : t.shape[2];
    if (t.shape[1] != dims.heads || dim != dims.dim)
      bad_value(name, fmt::format("has {} heads of {} dims; the store has {} of {}", t.shape[1], t.shape[2], dims.heads, dims.dim));
  };
  check("k", k, store.k, store.store.k);
  check("k_rope", k_rope, store.k_rope, store.store.k_rope);
  check("v", v, store.v, store.store.v);
}

namespace {

void append_tokens(const Store& store, nb::handle k_, nb::handle v_, nb::handle k_rope_, nb::handle append_indptr, nb::handle kv_len,
                   nb::handle kv_indices, nb::handle kv_indptr, std::int64_t table_stride, nb::handle context_, nb::handle stream_) {
  const Array k = array(k_, "k");
  const Array v = optional_array(v_, "v");
  const Array k_rope = optional_array(k_rope_, "k_rope");
  check_appended(store, k.view, k_rope.view, v.view);
  const IndexArray rows(append_indptr, "append_indptr");
  const IndexArray len(kv_len, "kv_len");
  const IndexArray indptr(kv_indptr, "kv_indptr");
  const DeviceIndices<std::int32_t> ids(kv_indices, "kv_indices", Device{});
  const AppendBatch batch{.append_indptr = rows.view(),
                          .kv_len = len.view(),
                          .kv_indices = ids.view(),
                          .kv_indptr = indptr.view(),
                          .table_stride = table_stride};
  const nb::object object = context_object(context_, store.device);
  const Context& context = context_of(object);
  void* on = stream(stream_, k);
  const nb::gil_scoped_release released;
  append(context, store.store, batch, k.view, k_rope.view, v.view, on);
}

void append_listed(const Store& store, nb::handle k_, nb::handle v_, nb::handle k_rope_, nb::handle slots_, nb::handle batch_indices_,
                   nb::handle positions_, nb::handle kv_indices_, nb::handle kv_indptr_, nb::handle context_, nb::handle stream_) {
  const Array k = array(k_, "k");
  const Array v = optional_array(v_, "v");
  const Array k_rope = optional_array(k_rope_, "k_rope");
  check_appended(store, k.view, k_rope.view, v.view);
  if (slots_.is_none() && batch_indices_.is_none()) throw nb::type_error("slots or batch_indices must be given");
  const Array slots = optional_array(slots_, "slots");
  const Array batch_indices = optional_array(batch_indices_, "batch_indices");
  const Array positions = optional_array(positions_, "positions");
  const Array kv_indices = optional_array(kv_indices_, "kv_indices");
  const Array kv_indptr = optional_array(kv_indptr_, "kv_indptr");
  const AppendTable table{.slots = slots.view,
                          .batch_indices = batch_indices.view,
                          .positions = positions.view,
                          .kv_indptr = kv_indptr.view,
                          .kv_indices = kv_indices.view};
  const nb::object object = context_object(context_, store.device);
  const Context& context = context_of(object);
  void* on = stream(stream_, k);
  const nb::gil_scoped_release released;
  append(context, store.store, table, k.view, k_rope.view, v.view, on);
}

}  // namespace

void bind_page(nb::module_& m) {
  m.def(
      "append",
      [](const Store& store, nb::handle k, nb::handle v, nb::handle k_rope, nb::handle append_indptr, nb::handle kv_len,
         nb::handle kv_indices, nb::handle kv_indptr, std::int64_t table_stride, nb::handle context, nb::handle stream) {
        append_tokens(store, k, v, k_rope, append_indptr, kv_len, kv_indices, kv_indptr, table_stride, context, stream);
      },
      nb::arg("store"), nb::arg("k"), nb::arg("v") = nb::none(), nb::kw_only(), nb::arg("k_rope") = nb::none(), nb::arg("append_indptr"),
      nb::arg("kv_len"), nb::arg("kv_indices") = nb::none(), nb::arg("kv_indptr") = nb::none(), nb::arg("table_stride") = 0,
      nb::arg("context") = nb::none(), nb::arg("stream") = nb::none(),
      nb::sig("def append(store: KvStore, k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, "
              "k_rope: girih._typing.ArrayLike | None = None, append_indptr: girih._typing.IndicesLike, kv_len: girih._typing.IndicesLike, "
              "kv_indices: girih._typing.IndicesLike | None = None, kv_indptr: girih._typing.IndicesLike | None = None, "
              "table_stride: int = 0, context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> None"),
      "Writes new keys and values into the pages of a store, quantising as it goes (the scales per token and head, and of blocks, are\n"
      "computed and stored; those per tensor and head are inputs).\n\n"
      "k, k_rope, v: [tokens, heads, dim] f32, f16 or bf16, any strides; more rows than appended are padding.\n"
      "append_indptr: [num_requests + 1]; request r's new tokens are rows [append_indptr[r], append_indptr[r+1]).\n"
      "kv_len: [num_requests] lengths after the append; the new tokens take the last places.\n"
      "kv_indices: int32 page ids, host memory; None for a ragged store.\n"
      "kv_indptr: [num_requests + 1] offsets into kv_indices (ragged: token offsets), or table_stride: row r starts at r * table_stride.\n"
      "All index arrays are host memory or sequences of ints. Cannot be captured in a CUDA graph: see append_planned().\n\n"
      "Raises ValueError naming the entry that breaks a rule, before anything is written; for a read-only store too.");
  m.def(
      "append_at", append_listed, nb::arg("store"), nb::arg("k"), nb::arg("v") = nb::none(), nb::kw_only(), nb::arg("k_rope") = nb::none(),
      nb::arg("slots") = nb::none(), nb::arg("batch_indices") = nb::none(), nb::arg("positions") = nb::none(),
      nb::arg("kv_indices") = nb::none(), nb::arg("kv_indptr") = nb::none(), nb::arg("context") = nb::none(),
      nb::arg("stream") = nb::none(),
      nb::sig("def append_at(store: KvStore, k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, "
              "k_rope: girih._typing.ArrayLike | None = None, slots: girih._typing.ArrayLike | None = None, "
              "batch_indices: girih._typing.ArrayLike | None = None, positions: girih._typing.ArrayLike | None = None, "
              "kv_indices: girih._typing.ArrayLike | None = None, kv_indptr: girih._typing.ArrayLike | None = None, "
              "context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> None"),
      "append() for tokens whose places are arrays where the store is: on CUDA nothing is read on the host, so that nothing waits and a\n"
      "captured graph appends whatever the arrays hold (after one call outside of it). int32 or int64, dense, an entry per row:\n\n"
      "slots: [n] page id * page_size + place in the page (ragged: token of the store); or\n"
      "batch_indices, positions: [n] request, and the token's index in its list, with kv_indptr [num_requests + 1] and kv_indices "
      "(int32 page\n"
      "  ids; ragged: none, kv_indptr are token offsets).\n"
      "A slot or request below 0: the row goes nowhere. k, k_rope, v: as append(), n rows or more.\n\n"
      "What lies outside of a list or of the store raises ValueError on the CPU, as do two rows for one place; on CUDA the former is not\n"
      "written, and the latter must not be.");
  m.def(
      "copy_pages",
      [](const Store& store, nb::handle copies, nb::handle context, nb::handle stream) { copy(store, copies, context, stream); },
      nb::arg("store"), nb::arg("copies"), nb::kw_only(), nb::arg("context") = nb::none(), nb::arg("stream") = nb::none(),
      nb::sig("def copy_pages(store: KvStore, copies: collections.abc.Iterable[tuple[int, int]], *, context: Context | None = None, "
              "stream: girih._typing.StreamLike | None = None) -> None"),
      "Copies whole pages within a store, scales included.\n\n"
      "copies: (source, destination) page ids, or an array [n, 2]; a destination may not take part in another copy.\n\n"
      "Raises ValueError before anything is written.");
  m.def("append_positions", positions, nb::arg("append_indptr"), nb::arg("kv_len"),
        nb::sig("def append_positions(append_indptr: girih._typing.IndicesLike, kv_len: girih._typing.IndicesLike) "
                "-> tuple[typing.Any, typing.Any]"),
        "For every appended token its request (int32) and its position (int64): two arrays [append_indptr[-1]] in host memory, of torch "
        "where\n"
        "append_indptr is a tensor, else of NumPy. Arguments as append()'s.");
  m.def("kv_len_from_last_page", lengths, nb::arg("kv_indptr"), nb::arg("last_page_len"), nb::arg("page_size"),
        nb::sig("def kv_len_from_last_page(kv_indptr: girih._typing.IndicesLike, last_page_len: girih._typing.IndicesLike, page_size: int) "
                "-> typing.Any"),
        "KV lengths (int64 [num_requests], host memory) of a page table in FlashInfer's form: (pages - 1) * page_size + last_page_len, 0 "
        "for a\n"
        "request without pages. Of torch where kv_indptr is a tensor, else of NumPy.");
}

}  // namespace girih::python
