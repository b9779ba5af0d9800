// A KvStore out of arrays in the order of a layout. 4-bit data, which few array libraries have a type for, comes as uint8; scales are
// recognised by their rank and checked here, since the library sees only pointers and strides.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/math.h"
#include "base/numeric.h"
#include "kv_store.h"

namespace girih::python {
namespace {

/// Where the dims of a plane's array are; page is -1 for ragged ones.
struct Axes {
  int page, token, head, element;
};

Axes axes_of(Arrangement arrangement, KvLayout layout) {
  const bool nhd = layout == KvLayout::nhd;
  if (arrangement == Arrangement::paged) return nhd ? Axes{0, 1, 2, 3} : Axes{0, 2, 1, 3};
  return nhd ? Axes{-1, 0, 1, 2} : Axes{-1, 1, 0, 2};
}

std::string shape_text(const TensorView& t) {
  std::string text = "[";
  for (int i = 0; i < t.rank; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", t.shape[i]);
  return text + "]";
}

/// Data that has no type of its own: `wanted` says what the bytes are.
void reinterpret(TensorView& t, nb::handle wanted, std::string_view name, std::string_view argument) {
  if (wanted.is_none()) {
    if (t.dtype == DType::u8)
      bad_value(name,
                fmt::format("is uint8, which may hold several types; say which by {} (\"nvfp4\", \"mxfp4\", \"e4m3\", ...)", argument));
    return;
  }
  const DType type = dtype(wanted, argument);
  if (type == t.dtype) return;
  if (bits(t.dtype) != 8 || bits(type) > 8)
    bad_value(argument, fmt::format("is {} but {} holds {}; only 8-bit data can be read as another type", girih::name(type), name,
                                    girih::name(t.dtype)));
  t.dtype = type;
  if (bits(type) == 8) return;
  const int last = t.rank - 1;
  if (last < 0) bad_value(name, "has no dimensions");
  if (t.shape[last] > 1 && t.strides[last] != 1) bad_value(name, "must be dense in its last dimension, as 4-bit data is");
  for (int i = 0; i < last; ++i) t.strides[i] *= 2;
  t.shape[last] *= 2;
}

/// MLA's caches come without the dimension of their one head.
void add_head(TensorView& t, int rank, int head) {
  if (t.rank != rank - 1) return;
  for (int i = t.rank; i > head; --i) {
    t.shape[i] = t.shape[i - 1];
    t.strides[i] = t.strides[i - 1];
  }
  t.shape[head] = 1;
  t.strides[head] = 0;
  ++t.rank;
}

/// Extents that all planes of a store share.
struct Extents {
  std::int64_t pages = 0, tokens = 0;  // of the arrays
  Axes axes{};
};

/// What one call builds up.
class Builder {
 public:
  Builder(Store& store, Arrangement arrangement, std::string_view layout)
      : store_(store), arrangement_(arrangement), layout_(kv_layout(layout)), axes_(axes_of(arrangement, layout_)) {}

  KvLayout layout() const { return layout_; }

  /// The array of a plane, with a head dimension and its type.
  TensorView plane(nb::handle object, std::string_view name, nb::handle wanted, std::string_view argument, PlaneDims& dims) {
    Array found = array(object, name);
    TensorView t = found.view;
    reinterpret(t, wanted, name, argument);
    const int rank = axes_.element + 1;
    add_head(t, rank, axes_.head);
    if (t.rank != rank)
      bad_value(name, fmt::format("has {} dimensions {}; must have {}: {}", found.view.rank, shape_text(found.view), rank, dims_text()));
    admit(std::move(found), name);
    dims = {true, t.shape[axes_.head], t.shape[axes_.element]};
    return t;
  }

  /// Remembers an array; all must be on one device.
  void admit(Array found, std::string_view name) {
    if (store_.owners.empty()) {
      store_.device = found.view.device;
    } else if (found.view.device != store_.device) {
      bad_value(name,
                fmt::format("is on {}; the first array of the store is on {}", girih::name(found.view.device), girih::name(store_.device)));
    }
    store_.read_only = store_.read_only || found.read_only;
    store_.owners.push_back(std::move(found.owner));
  }

  /// Fails unless `t` has the pages, tokens and heads of `k`.
  void check_same(const TensorView& k, const TensorView& t, std::string_view name) const {
    for (int i = 0; i < axes_.element; ++i) {
      if (t.shape[i] != k.shape[i])
        bad_value(name, fmt::format("has shape {}; all but the last extent must be those of k: {}", shape_text(t), shape_text(k)));
    }
  }

  /// The scales of `plane`, from None, a number, or an array whose rank says how many there are.
  void scales(KvPlane& plane, const PlaneDims& dims, nb::handle given, double global, std::string_view name, nb::handle like) {
    KvScales& s = plane.scales;
    s.global_scale = static_cast<float>(global);
    const bool four_bit = bits(plane.dtype) == 4;
    const bool quantised = bits(plane.dtype) <= 8;
    if (given.is_none()) {
      if (quantised)
        bad_value(name, fmt::format("must be given: {} data needs its scales ({})", girih::name(plane.dtype),
                                    four_bit ? "one per block" : "a number, or f32 [1], [heads] or one per token and head"));
      if (global != 1.0) bad_value(name, fmt::format("the global scale is {} but {} data has no scales", global, girih::name(plane.dtype)));
      return;
    }
    if (!quantised) bad_value(name, fmt::format("is given but {} data has no scales", girih::name(plane.dtype)));
    Array found = PyFloat_Check(given.ptr()) || PyLong_Check(given.ptr()) ? number_on_device(given, like, name) : array(given, name);
    const TensorView t = found.view;
    admit(std::move(found), name);
    s.data = t.data;
    const int per_token = axes_.element;  // rank of one scale per token and head
    if (four_bit) return block_scales(s, plane, dims, t, name);
    if (t.dtype != DType::f32) bad_value(name, fmt::format("is {}; must be float32", girih::name(t.dtype)));
    if (t.rank == 0 || (t.rank == 1 && t.shape[0] == 1)) {
      s.granularity = ScaleGranularity::tensor;
    } else if (t.rank == 1 && t.shape[0] == dims.heads) {
      s.granularity = ScaleGranularity::head;
      s.head_byte_stride = t.strides[0] * 4;
    } else if (t.rank == per_token && fits_tokens(t, dims)) {
      s.granularity = ScaleGranularity::token_head;
      token_strides(s, t, 4);
    } else if (t.rank == per_token + 1 && fits_tokens(t, dims) && t.shape[per_token] * kScaleGroup == dims.dim) {
      if (t.shape[per_token] > 1 && t.strides[per_token] != 1) bad_value(name, "must be dense in its last dimension");
      s.granularity = ScaleGranularity::token_group;
      token_strides(s, t, 4);
    } else {
      bad_value(name,
                fmt::format("has shape {}; must be [1], [heads={}], the extents of the data without the last dimension, or those with "
                            "one for each {} dims in its place",
                            shape_text(t), dims.heads, kScaleGroup));
    }
  }

  void set_extents(const TensorView& k) {
    pages_ = axes_.page < 0 ? 0 : k.shape[axes_.page];
    tokens_ = k.shape[axes_.token];
  }
  void set_block_pages(std::int64_t page_size) { block_page_ = page_size; }

 private:
  std::string dims_text() const {
    const bool nhd = layout_ == KvLayout::nhd;
    if (arrangement_ == Arrangement::paged) return nhd ? "[num_pages, page_size, heads, dim]" : "[num_pages, heads, page_size, dim]";
    return nhd ? "[num_tokens, heads, dim]" : "[heads, num_tokens, dim]";
  }

  bool fits_tokens(const TensorView& t, const PlaneDims& dims) const {
    return (axes_.page < 0 || t.shape[axes_.page] == pages_) && t.shape[axes_.token] == tokens_ && t.shape[axes_.head] == dims.heads;
  }

  void token_strides(KvScales& s, const TensorView& t, std::int64_t size) const {
    s.token_byte_stride = t.strides[axes_.token] * size;
    s.head_byte_stride = t.strides[axes_.head] * size;
    s.page_byte_stride = axes_.page >= 0 ? t.strides[axes_.page] * size : s.token_byte_stride;
    if (block_page_ > 0) s.page_byte_stride = s.token_byte_stride * block_page_;
  }

  void block_scales(KvScales& s, const KvPlane& plane, const PlaneDims& dims, const TensorView& t, std::string_view name) const {
    if (t.dtype != DType::u8 && !(t.dtype == DType::e4m3 && plane.dtype == DType::nvfp4))
      bad_value(name, fmt::format(
                          "is {}; the block scales of {} are {}", girih::name(t.dtype), girih::name(plane.dtype),
                          plane.dtype == DType::nvfp4 ? "float8_e4m3fn (or its bytes as uint8)" : "float8_e8m0fnu or its bytes as uint8"));
    const std::int64_t blocks = ceil_div(dims.dim, scale_block(plane.dtype));
    const std::int64_t fewest = ceil_div(dims.dim - 1, scale_block(plane.dtype));
    const int last = axes_.element;
    if (t.rank != last + 1 || !fits_tokens(t, dims) || t.shape[last] < fewest || t.shape[last] > blocks)
      bad_value(name, fmt::format("has shape {}; must be the extents of the data with {} in place of the last (blocks of {} elements)",
                                  shape_text(t), blocks, scale_block(plane.dtype)));
    if (t.shape[last] > 1 && t.strides[last] != 1) bad_value(name, "must be dense in its last dimension");
    s.granularity = ScaleGranularity::block;
    token_strides(s, t, 1);
  }

  /// A number as an array of one, where the data is.
  Array number_on_device(nb::handle number, nb::handle like, std::string_view name) const {
    if (nb::hasattr(like, "new_full"))
      return array(like.attr("new_full")(nb::make_tuple(1), number, nb::arg("dtype") = nb::module_::import_("torch").attr("float32")),
                   name);
    if (store_.device.kind == DeviceKind::cpu) {
      const nb::module_ numpy = nb::module_::import_("numpy");
      return array(numpy.attr("full")(nb::make_tuple(1), number, nb::arg("dtype") = numpy.attr("float32")), name);
    }
    bad_value(name, "is a number; give a float32 array of one element on the store's device");
  }

  Store& store_;
  Arrangement arrangement_;
  KvLayout layout_;
  Axes axes_;
  std::int64_t pages_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t block_page_ = 0;
};

/// Stores without elements need no memory, but planes are told apart from absent ones by their pointer.
void fill_empty(KvPlane& plane) {
  alignas(64) static constexpr std::byte kNothing[64]{};
  if (plane.data == nullptr) plane.data = kNothing;
}

}  // namespace

KvLayout kv_layout(std::string_view text) {
  if (text == "NHD" || text == "nhd") return KvLayout::nhd;
  if (text == "HND" || text == "hnd") return KvLayout::hnd;
  bad_value("layout", fmt::format("\"{}\" is unknown; use \"NHD\" or \"HND\"", text));
}

Store make_store(Arrangement arrangement, nb::handle k, nb::handle v, std::string_view layout, std::int64_t block_page, nb::handle k_rope,
                 nb::handle k_dtype, nb::handle v_dtype, const ScaleArguments& scales) {
  Store out;
  Builder builder(out, arrangement, layout);
  const TensorView k_view = builder.plane(k, "k", k_dtype, "k_dtype", out.k);
  builder.set_extents(k_view);
  builder.set_block_pages(block_page);
  const auto make = [&](const TensorView& second) {
    switch (arrangement) {
      case Arrangement::paged: return paged_kv_store(k_view, second, builder.layout());
      case Arrangement::ragged: return ragged_kv_store(k_view, second, builder.layout());
      default: return block_sparse_kv_store(k_view, second, block_page, builder.layout());
    }
  };
  if (!v.is_none()) {
    const nb::handle v_type = v_dtype.is_none() ? k_dtype : v_dtype;
    const TensorView v_view = builder.plane(v, "v", v_type, "v_dtype", out.v);
    builder.check_same(k_view, v_view, "v");
    out.store = make(v_view);
    fill_empty(out.store.v);
    builder.scales(out.store.v, out.v, scales.v_scale, scales.v_global, "v_scale", v);
  } else {
    if (!scales.v_scale.is_none()) bad_value("v_scale", "is given without v");
    if (!v_dtype.is_none()) bad_value("v_dtype", "is given without v");
    out.store = make(k_view);
    out.store.v = {};
  }
  fill_empty(out.store.k);
  builder.scales(out.store.k, out.k, scales.k_scale, scales.k_global, "k_scale", k);
  if (!k_rope.is_none()) {
    const bool is_plain = bits(array(k_rope, "k_rope").view.dtype) > 8;  // then k_dtype, which says what bytes hold, is k's alone
    const TensorView rope = builder.plane(k_rope, "k_rope", is_plain ? nb::handle(nb::none()) : k_dtype, "k_dtype", out.k_rope);
    if (rope.dtype != k_view.dtype && !is_plain)
      bad_value("k_rope", fmt::format("is {}; k is {}: must be the same, or f32, f16 or bf16", name(rope.dtype), name(k_view.dtype)));
    builder.check_same(k_view, rope, "k_rope");
    out.store.k_rope = make(rope).v;
    fill_empty(out.store.k_rope);
    const ScaleGranularity shared = out.store.k.scales.granularity;
    if (!is_plain && scales.k_rope_scale.is_none() && (shared == ScaleGranularity::tensor || shared == ScaleGranularity::head)) {
      out.store.k_rope.scales = out.store.k.scales;
    } else {
      builder.scales(out.store.k_rope, out.k_rope, scales.k_rope_scale, is_plain ? 1.0 : scales.k_global, "k_rope_scale", k_rope);
    }
  } else if (!scales.k_rope_scale.is_none()) {
    bad_value("k_rope_scale", "is given without k_rope");
  }
  return out;
}

Store make_mla_token_store(nb::handle tokens, int latent_dim, int rope_dim) {
  Store out;
  Array found = array(tokens, "tokens");
  out.store = mla_token_kv_store(found.view, latent_dim, rope_dim);
  out.device = found.view.device;
  out.read_only = found.read_only;
  out.k = {true, 1, latent_dim};
  out.k_rope = {true, 1, rope_dim};
  out.owners.push_back(std::move(found.owner));
  fill_empty(out.store.k);
  fill_empty(out.store.k_rope);
  return out;
}

Store make_combined_store(nb::handle kv, std::string_view layout, nb::handle kv_dtype, const ScaleArguments& scales) {
  Store out;
  Builder builder(out, Arrangement::paged, layout);
  Array found = array(kv, "kv");
  TensorView t = found.view;
  reinterpret(t, kv_dtype, "kv", "dtype");
  if (t.rank != 5 || t.shape[1] != 2)
    bad_value("kv", fmt::format("has shape {}; must be {}", shape_text(found.view),
                                builder.layout() == KvLayout::nhd ? "[num_pages, 2, page_size, heads, dim]"
                                                                  : "[num_pages, 2, heads, page_size, dim]"));
  builder.admit(std::move(found), "kv");
  out.store = paged_kv_store(t, builder.layout());
  fill_empty(out.store.k);
  fill_empty(out.store.v);
  const bool nhd = builder.layout() == KvLayout::nhd;
  TensorView k = t;
  for (int i = 1; i < 4; ++i) {
    k.shape[i] = t.shape[i + 1];
    k.strides[i] = t.strides[i + 1];
  }
  k.rank = 4;
  builder.set_extents(k);
  out.k = out.v = {true, t.shape[nhd ? 3 : 2], t.shape[4]};
  builder.scales(out.store.k, out.k, scales.k_scale, scales.k_global, "k_scale", kv);
  builder.scales(out.store.v, out.v, scales.v_scale, scales.v_global, "v_scale", kv);
  return out;
}

}  // namespace girih::python
