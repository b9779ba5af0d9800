// copy_pages(): whole pages within a store, e.g. before a shared page is appended to. Only elements and their scales are copied, never the
// bytes between them, which may belong to other layers or planes. The axes of a page are merged where they are adjacent in memory, so that
// a dense page of any layout is one memcpy.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "cpu/thread_pool.h"
#include "girih/page.h"
#include "page/page_cuda.h"
#include "page/plane.h"

namespace girih {
namespace {

constexpr std::string_view kOp = "copy_pages";

struct Axis {
  std::int64_t extent = 1;
  std::int64_t byte_stride = 0;
};

/// A page of one plane (or of its scales) as up to three loops over chunks of adjacent bytes.
struct Shape {
  char* data = nullptr;
  std::int64_t page_byte_stride = 0;
  std::int64_t chunk = 0;
  std::array<Axis, 3> axes{};  // outermost first
};

/// `axes` of units of `unit` bytes, merged: the axis whose stride is what is already adjacent extends the chunk.
Shape make_shape(const void* data, std::int64_t page_byte_stride, std::int64_t unit, std::array<Axis, 3> axes) {
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return std::llabs(a.byte_stride) != std::llabs(b.byte_stride) ? std::llabs(a.byte_stride) > std::llabs(b.byte_stride)
                                                                  : a.extent > b.extent;
  });
  Shape shape{static_cast<char*>(const_cast<void*>(data)), page_byte_stride, unit, axes};
  for (int i = 2; i >= 0; --i) {
    Axis& axis = shape.axes[static_cast<std::size_t>(i)];
    if (axis.extent == 1) continue;
    if (axis.byte_stride != shape.chunk) break;
    shape.chunk *= axis.extent;
    axis = Axis{};
  }
  return shape;
}

void copy_shape(const Shape& shape, std::int64_t source, std::int64_t destination) {
  const char* from = shape.data + source * shape.page_byte_stride;
  char* to = shape.data + destination * shape.page_byte_stride;
  for (std::int64_t a = 0; a < shape.axes[0].extent; ++a) {
    for (std::int64_t b = 0; b < shape.axes[1].extent; ++b) {
      for (std::int64_t c = 0; c < shape.axes[2].extent; ++c) {
        const std::int64_t at = a * shape.axes[0].byte_stride + b * shape.axes[1].byte_stride + c * shape.axes[2].byte_stride;
        std::memcpy(to + at, from + at, static_cast<std::size_t>(shape.chunk));
      }
    }
  }
}

/// Adds the plane's data and, where scales live per page, these.
void add_plane(std::string_view what, const KvStore& store, const KvPlane& plane, int heads, int dim, std::vector<Shape>& shapes) {
  if (dim == 0) {
    if (plane.data != nullptr) {
      fail(Code::invalid_argument, kOp, "{} has memory but 0 dims are to be copied; give its dims, or leave the plane empty", what);
    }
    return;
  }
  page::check_plane(kOp, what, store, plane, heads, dim);
  const bool four_bit = bits(plane.dtype) == 4;
  const Axis token{store.page_size, plane.token_byte_stride};
  const Axis head{heads, plane.head_byte_stride};
  shapes.push_back(four_bit ? make_shape(plane.data, plane.page_byte_stride, bytes(plane.dtype, dim), {token, head, Axis{}})
                            : make_shape(plane.data, plane.page_byte_stride, bits(plane.dtype) / 8,
                                         {token, head, Axis{dim, page::dim_byte_stride(plane)}}));
  const KvScales& scales = plane.scales;
  if (!page::is_computed(scales.granularity)) return;
  shapes.push_back(make_shape(scales.data, scales.page_byte_stride, page::token_scale_bytes(plane, dim),
                              {Axis{store.page_size, scales.token_byte_stride}, Axis{heads, scales.head_byte_stride}, Axis{}}));
}

abi::CopyParams device_shapes(const std::vector<Shape>& shapes) {
  abi::CopyParams p{};
  for (const Shape& shape : shapes) {
    abi::CopyShape& out = p.shapes[p.num_shapes++];
    out.data = reinterpret_cast<unsigned char*>(shape.data);
    out.page_stride = shape.page_byte_stride;
    out.chunk = shape.chunk;
    for (std::size_t i = 0; i < 3; ++i) {
      out.extent[i] = shape.axes[i].extent;
      out.stride[i] = shape.axes[i].byte_stride;
    }
  }
  return p;
}

/// Ids in range, and no destination that another copy reads or writes: then order and workers do not matter.
void check_copies(std::span<const PageCopy> copies, std::int64_t num_pages) {
  std::vector<std::int32_t> sources, destinations;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto [source, destination] = copies[i];
    if (source < 0 || source >= num_pages) {
      fail(Code::invalid_argument, kOp, "copies[{}].source={}; must be in [0, num_pages={})", i, source, num_pages);
    }
    if (destination < 0 || destination >= num_pages) {
      fail(Code::invalid_argument, kOp, "copies[{}].destination={}; must be in [0, num_pages={})", i, destination, num_pages);
    }
    if (source != destination) sources.push_back(source);
    destinations.push_back(destination);
  }
  std::sort(sources.begin(), sources.end());
  std::sort(destinations.begin(), destinations.end());
  const auto twice = std::adjacent_find(destinations.begin(), destinations.end());
  if (twice != destinations.end()) {
    fail(Code::invalid_argument, kOp, "page {} is the destination of two copies; a page can be written once a call", *twice);
  }
  for (const std::int32_t destination : destinations) {
    if (std::binary_search(sources.begin(), sources.end(), destination)) {
      fail(Code::invalid_argument, kOp, "page {} is the destination of one copy and the source of another; use two calls", destination);
    }
  }
}

}  // namespace

void copy_pages(const Context& context, const KvStore& store, int num_kv_heads, int dim_k, int dim_rope, int dim_v,
                std::span<const PageCopy> copies, void* stream) {
  if (stream != nullptr && context.device().kind == DeviceKind::cpu)
    fail(Code::invalid_argument, kOp, "stream is given; the context is for the CPU");
  page::check_pages(kOp, store);
  if (store.page_size == kEndlessPage)
    fail(Code::invalid_argument, kOp, "store.page_size=0 (ragged); only paged stores have pages to copy");
  if (num_kv_heads < 1) fail(Code::invalid_argument, kOp, "num_kv_heads={}; must be >= 1", num_kv_heads);
  if (dim_k < 1) fail(Code::invalid_argument, kOp, "dim_k={}; must be >= 1", dim_k);
  std::vector<Shape> shapes;
  add_plane("store.k", store, store.k, num_kv_heads, dim_k, shapes);
  add_plane("store.k_rope", store, store.k_rope, num_kv_heads, dim_rope, shapes);
  add_plane("store.v", store, store.v, num_kv_heads, dim_v, shapes);
  check_copies(copies, store.num_pages);
  if (copies.empty()) return;
  if (context.device().kind == DeviceKind::cuda) return page::copy_on_device(context, device_shapes(shapes), copies, stream);
  cpu::ThreadPool& pool = context.pool();
  const std::int64_t workers = pool.num_workers();
  const std::int64_t total = std::ssize(copies) * std::ssize(shapes);
  pool.parallel([&](int worker) {
    for (std::int64_t i = total * worker / workers; i < total * (worker + 1) / workers; ++i) {
      const PageCopy& copy = copies[static_cast<std::size_t>(i / std::ssize(shapes))];
      if (copy.source == copy.destination) continue;
      copy_shape(shapes[static_cast<std::size_t>(i % std::ssize(shapes))], copy.source, copy.destination);
    }
  });
}

}  // namespace girih
