// See overlap.h. Nearly always the hulls of two regions are apart, which two comparisons tell; the rest is for views of one array.
#include "attention/overlap.h"

#include <array>
#include <cstdint>

#include "attention/spec.h"
#include "base/error.h"
#include "page/plane.h"

namespace girih::attention {
namespace {

constexpr const char* kOp = "attention.run";
using Wide = Region::Wide;

Wide magnitude(Wide n) { return n < 0 ? -n : n; }

/// Widens a row by an axis of `extent` places.
void extend(Region& region, std::int64_t extent, Wide byte_stride) {
  const Wide reach = (extent - 1) * byte_stride;
  (reach < 0 ? region.begin : region.end) += reach;
}

/// All rows as one.
Region whole(Region region) {
  extend(region, region.rows, region.row_stride);
  region.rows = 1;
  return region;
}

/// Whether rows of the one lie between those of the other.
bool between(const Region& a, const Region& b, Wide distance) {
  const Wide stride = magnitude(a.rows > 1 ? a.row_stride : b.row_stride);
  const bool same_stride = (a.rows == 1 || magnitude(a.row_stride) == stride) && (b.rows == 1 || magnitude(b.row_stride) == stride);
  if (!same_stride || stride == 0) return false;
  Wide shift = (distance + b.begin - a.begin) % stride;
  if (shift < 0) shift += stride;
  return shift >= a.end - a.begin && shift + (b.end - b.begin) <= stride;
}

/// Whether two elements are the same memory, as in an expanded tensor: axes from the nearest steps to the farthest, each of which must pass
/// all that the nearer ones reach.
bool is_folded(const TensorView& t) {
  Wide reach = 1;
  unsigned seen = 0;
  for (int n = 0; n < t.rank; ++n) {
    int next = -1;
    for (int i = 0; i < t.rank; ++i) {
      const bool nearer = next < 0 || magnitude(t.strides[i]) < magnitude(t.strides[next]);
      if (((seen >> i) & 1U) == 0 && nearer) next = i;
    }
    seen |= 1U << next;
    if (t.shape[next] == 1) continue;
    if (magnitude(t.strides[next]) < reach) return true;
    reach += (t.shape[next] - 1) * magnitude(t.strides[next]);
  }
  return false;
}

/// An output against what it must not touch; names are put together only for a message.
class Output {
 public:
  Output(const char* name, const TensorView& t) : name_(name), written_(region_of(t)) {
    if (written_.rows > 0 && is_folded(t)) {
      fail(Code::invalid_argument, kOp,
           "{} has elements that share memory (shape [{}, {}], strides [{}, {}]); give each a place of its own", name, t.shape[0],
           t.shape[1], t.strides[0], t.strides[1]);
    }
  }
  void check(const Region& other, const char* what) const {
    if (!apart(written_, other)) refuse(what);
  }
  void check(const Region& other, std::size_t segment, const char* what) const {
    if (!apart(written_, other)) refuse(fmt::format("segments[{}].{}", segment, what));
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(Code::invalid_argument, kOp, "{} shares memory with {}; outputs need memory of their own", name_, what);
  }
  const char* name_;
  Region written_;
};

}  // namespace

Region region_of(const TensorView& t) {
  if (t.rank == 0 || t.data == nullptr || t.numel() == 0) return {};
  const std::int64_t size = bytes(t.dtype, 1);
  Region region{.data = static_cast<const std::byte*>(t.data), .rows = t.shape[0], .row_stride = Wide{t.strides[0]} * size, .end = size};
  for (int i = 1; i < t.rank; ++i) extend(region, t.shape[i], Wide{t.strides[i]} * size);
  return region;
}

Region region_of(const void* data, std::int64_t bytes) {
  if (bytes == 0) return {};
  return {.data = static_cast<const std::byte*>(data), .rows = 1, .end = bytes};
}

namespace {

/// Rows of `row_bytes` for every head of a store's tokens; `strides` are a plane's, or its scales'. Without a last page whose memory may
/// end before its tokens do.
template <typename Strides>
Region region_of_tokens(const KvStore& store, const Strides& strides, std::int64_t heads, std::int64_t row_bytes) {
  const bool ragged = store.page_size == kEndlessPage;
  Region region{.data = static_cast<const std::byte*>(strides.data),
                .rows = store.num_pages - (store.has_partial_page ? 1 : 0),
                .row_stride = ragged ? strides.token_byte_stride : strides.page_byte_stride,
                .end = row_bytes};
  extend(region, heads, strides.head_byte_stride);
  if (!ragged) extend(region, store.page_size, strides.token_byte_stride);
  return region;
}

}  // namespace

Region region_of(const KvStore& store, const KvPlane& plane, std::int64_t heads, std::int64_t dim) {
  if (plane.data == nullptr || store.num_pages <= 0) return {};
  Region region = region_of_tokens(store, plane, heads, bytes(plane.dtype, plane.dim_byte_stride == 0 ? dim : 1));
  if (plane.dim_byte_stride != 0) extend(region, dim, plane.dim_byte_stride);
  return region;
}

Region region_of_scales(const KvStore& store, const KvPlane& plane, std::int64_t heads, std::int64_t dim) {
  const KvScales& scales = plane.scales;
  if (scales.data == nullptr || store.num_pages <= 0) return {};
  constexpr std::int64_t kScale = 4;  // bytes of an f32
  switch (scales.granularity) {
    case ScaleGranularity::none: return {};
    case ScaleGranularity::tensor: return region_of(scales.data, kScale);
    case ScaleGranularity::head:
      return {.data = static_cast<const std::byte*>(scales.data), .rows = heads, .row_stride = scales.head_byte_stride, .end = kScale};
    case ScaleGranularity::token_head:
    case ScaleGranularity::block:
    case ScaleGranularity::token_group: return region_of_tokens(store, scales, heads, page::token_scale_bytes(plane, dim));
  }
  return {};
}

bool apart(const Region& a, const Region& b) {
  if (a.rows == 0 || b.rows == 0) return true;
  const Region whole_a = whole(a);
  const Region whole_b = whole(b);
  const Wide distance = Wide{reinterpret_cast<std::intptr_t>(b.data)} - reinterpret_cast<std::intptr_t>(a.data);
  if (distance + whole_b.end <= whole_a.begin || distance + whole_b.begin >= whole_a.end) return true;
  return between(a, b, distance) || between(whole_a, b, distance) || between(a, whole_b, distance);
}

namespace {

void check_segment(const std::array<Output, 2>& outputs, const AttentionSpec& spec, const SegmentData& data, std::size_t segment) {
  const auto check = [&](const Region& region, const char* what) {
    for (const Output& out : outputs) out.check(region, segment, what);
  };
  const auto check_plane = [&](const KvPlane& plane, std::int64_t dim, const char* what, const char* scales) {
    check(region_of(data.store, plane, spec.num_kv_heads, dim), what);
    if (plane.scales.data != nullptr) check(region_of_scales(data.store, plane, spec.num_kv_heads, dim), scales);
  };
  check_plane(data.store.k, first_part_dim(spec), "store.k", "store.k.scales");
  if (spec.head_dim_rope > 0) check_plane(data.store.k_rope, spec.head_dim_rope, "store.k_rope", "store.k_rope.scales");
  if (!spec.v_is_k) check_plane(data.store.v, spec.head_dim_vo, "store.v", "store.v.scales");
  check(region_of(data.kv_indices.data(), static_cast<std::int64_t>(data.kv_indices.size_bytes())), "kv_indices");
  check(region_of(data.page_pos.data(), static_cast<std::int64_t>(data.page_pos.size_bytes())), "page_pos");
}

}  // namespace

void check_outputs_apart(const AttentionSpec& spec, const AttentionArgs& args) {
  const std::array<Output, 2> outputs{Output("o", args.o), Output("lse", args.lse)};
  outputs[1].check(region_of(args.o), "o");
  const auto check = [&](const Region& region, const char* what) {
    for (const Output& out : outputs) out.check(region, what);
  };
  check(region_of(args.q), "q");
  check(region_of(args.q_rope), "q_rope");
  check(region_of(args.o_scale), "o_scale");
  check(region_of(args.workspace.data(), std::ssize(args.workspace)), "workspace");
  for (const ParamValue& param : args.params) check(region_of(param.array), "params");
  for (std::size_t i = 0; i < args.segments.size(); ++i) check_segment(outputs, spec, args.segments[i], i);
}

}  // namespace girih::attention
