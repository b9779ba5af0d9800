// See check.h.
#include "rows/check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "base/numeric.h"

namespace girih::rows {
namespace {

struct Axis {
  std::int64_t extent, stride;
};

abi::RowTensor row_tensor(const TensorView& t, const RowShape& shape) {
  const std::int64_t element = bits(t.dtype) / 8;
  abi::RowTensor out{};
  out.data = static_cast<unsigned char*>(t.data);
  const auto last = static_cast<std::size_t>(t.rank - 1);
  if (bits(t.dtype) == 4) {
    // Strides of packed rows count elements; whole bytes were checked.
    out.row_stride = t.strides[0] / 2;
    out.head_stride = shape.has_heads ? t.strides[1] / 2 : 0;
    return out;
  }
  out.row_stride = t.strides[0] * element;
  out.head_stride = shape.has_heads ? t.strides[1] * element : 0;
  out.dim_stride = t.shape[last] == 1 ? element : t.strides[last] * element;
  return out;
}

/// First and last byte (past the end) of a tensor, relative to its data.
struct Range {
  std::int64_t begin = 0, end = 0;
};
Range range_of(const abi::RowTensor& t, abi::Elem type, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  Range r{0, bits_of(type) == 4 ? (dim + 1) / 2 : bits_of(type) / 8};
  const auto widen = [&r](std::int64_t extent, std::int64_t stride) {
    const std::int64_t reach = (extent - 1) * stride;
    (reach < 0 ? r.begin : r.end) += reach;
  };
  if (bits_of(type) != 4) widen(dim, t.dim_stride);
  widen(heads, t.head_stride);
  widen(rows, t.row_stride);
  return r;
}

bool distinct_places(std::array<Axis, 3> axes, std::int64_t unit) {
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return std::llabs(a.stride) < std::llabs(b.stride); });
  std::int64_t extent = unit;
  for (const Axis& axis : axes) {
    if (axis.extent <= 1) continue;
    if (std::llabs(axis.stride) < extent) return false;
    extent += (axis.extent - 1) * std::llabs(axis.stride);
  }
  return true;
}

void check_view(const Checker& c, std::string_view name, const TensorView& t, const RowShape& shape) {
  const int rank = shape.has_heads ? 3 : 2;
  if (t.rank != rank) fail(Code::invalid_argument, c.op, "{} has rank {}; must be {}, as x", name, t.rank, rank);
  if (t.shape[0] != shape.rows) fail(Code::invalid_argument, c.op, "{}.shape[0]={}; must be {} (rows of x)", name, t.shape[0], shape.rows);
  if (shape.has_heads && t.shape[1] != shape.heads)
    fail(Code::invalid_argument, c.op, "{}.shape[1]={}; must be {} (heads of x)", name, t.shape[1], shape.heads);
  const std::int64_t dim = t.shape[static_cast<std::size_t>(rank - 1)];
  if (dim != shape.dim) fail(Code::invalid_argument, c.op, "{}.shape[{}]={}; must be {}", name, rank - 1, dim, shape.dim);
  if (t.device != c.device)
    fail(Code::invalid_argument, c.op, "{}.device={}; the context is for {}", name, girih::name(t.device), girih::name(c.device));
  if (shape.rows > 0 && t.data == nullptr) fail(Code::invalid_argument, c.op, "{}.data is null; must hold {} rows", name, shape.rows);
  const std::int64_t element = std::max(bits(t.dtype) / 8, 1);
  if (c.device.kind == DeviceKind::cuda && reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(element) != 0)
    fail(Code::invalid_argument, c.op, "{}.data={} is not a multiple of its element's {} bytes; a GPU reads aligned elements only", name,
         t.data, element);
}

}  // namespace

RowShape Checker::shape(std::string_view name, const TensorView& t) const {
  if (t.rank != 2 && t.rank != 3)
    fail(Code::invalid_argument, op, "{} has rank {}; must be 2: [rows, dim], or 3: [rows, heads, dim]", name, t.rank);
  RowShape s{t.shape[0], t.rank == 3 ? t.shape[1] : 1, t.shape[static_cast<std::size_t>(t.rank - 1)], t.rank == 3};
  if (s.rows < 0) fail(Code::invalid_argument, op, "{}.shape[0]={}; must be >= 0", name, s.rows);
  if (s.heads < 1) fail(Code::invalid_argument, op, "{}.shape[1]={}; must have at least one head", name, s.heads);
  if (s.dim < 1 || s.dim > kMaxDim) fail(Code::invalid_argument, op, "{}.shape[{}]={}; must be in 1..{}", name, t.rank - 1, s.dim, kMaxDim);
  if (s.heads > kMaxRows || s.rows > kMaxRows / s.heads)
    fail(Code::invalid_argument, op, "{} has {} rows of {} heads; their product must be at most {}, use several calls", name, s.rows,
         s.heads, kMaxRows);
  return s;
}

abi::RowTensor Checker::source(std::string_view name, const TensorView& t, const RowShape& shape) const {
  if (t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16)
    fail(Code::invalid_argument, op, "{} is {}; must be f32, f16 or bf16", name, girih::name(t.dtype));
  check_view(*this, name, t, shape);
  return row_tensor(t, shape);
}

namespace {

/// Rows of 4-bit codes are dense and begin at whole bytes.
void check_packed(const Checker& c, std::string_view name, const TensorView& t, std::int64_t dim) {
  const auto last = static_cast<std::size_t>(t.rank - 1);
  if (dim > 1 && t.strides[last] != 1)
    fail(Code::invalid_argument, c.op, "{}.strides[{}]={} with dtype {}; 4-bit rows are dense, use 1", name, last, t.strides[last],
         girih::name(t.dtype));
  for (std::size_t i = 0; i < last; ++i) {
    if (t.shape[i] > 1 && t.strides[i] % 2 != 0)
      fail(Code::invalid_argument, c.op, "{}.strides[{}]={} with dtype {}; 4-bit rows begin at whole bytes, use an even stride", name, i,
           t.strides[i], girih::name(t.dtype));
  }
}

}  // namespace

abi::RowTensor Checker::codes(std::string_view name, const TensorView& t, const RowShape& shape) const {
  if (!is_numeric(t.dtype))
    fail(Code::invalid_argument, op, "{} is {}; must be f32, f16, bf16, e4m3, e5m2, i8, nvfp4 or mxfp4", name, girih::name(t.dtype));
  check_view(*this, name, t, shape);
  if (bits(t.dtype) == 4) check_packed(*this, name, t, shape.dim);
  return row_tensor(t, shape);
}

abi::RowTensor Checker::output(std::string_view name, const TensorView& t, const RowShape& shape) const {
  const abi::RowTensor out = codes(name, t, shape);
  const bool packed = bits(t.dtype) == 4;
  const std::int64_t unit = packed ? (shape.dim + 1) / 2 : bits(t.dtype) / 8;
  if (!distinct_places({Axis{shape.rows, out.row_stride}, {shape.heads, out.head_stride}, {packed ? 1 : shape.dim, out.dim_stride}}, unit))
    fail(Code::invalid_argument, op, "{}.strides let elements share memory; what is written needs places of its own", name);
  return out;
}

std::int64_t Checker::weight(std::string_view name, const TensorView& t, const RowShape& shape, DType type) const {
  if (t.rank != 1 && !(t.rank == 2 && shape.has_heads))
    fail(Code::invalid_argument, op, "{} has rank {}; must be 1: [dim]{}", name, t.rank, shape.has_heads ? ", or 2: [heads, dim]" : "");
  const auto last = static_cast<std::size_t>(t.rank - 1);
  if (t.shape[last] != shape.dim)
    fail(Code::invalid_argument, op, "{}.shape[{}]={}; must be {} (x's last extent)", name, last, t.shape[last], shape.dim);
  if (t.rank == 2 && t.shape[0] != shape.heads)
    fail(Code::invalid_argument, op, "{}.shape[0]={}; must be {} (heads of x)", name, t.shape[0], shape.heads);
  if (t.dtype != DType::f32 && t.dtype != type)
    fail(Code::invalid_argument, op, "{} is {}; must be f32 or x's {}", name, girih::name(t.dtype), girih::name(type));
  if (t.device != device)
    fail(Code::invalid_argument, op, "{}.device={}; the context is for {}", name, girih::name(t.device), girih::name(device));
  if (t.data == nullptr) fail(Code::invalid_argument, op, "{}.data is null; must hold {} elements", name, t.numel());
  if (shape.dim > 1 && t.strides[last] != 1)
    fail(Code::invalid_argument, op, "{}.strides[{}]={}; must be 1 (dense)", name, last, t.strides[last]);
  const std::int64_t element = bits(t.dtype) / 8;
  if (device.kind == DeviceKind::cuda && reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(element) != 0)
    fail(Code::invalid_argument, op, "{}.data={} is not a multiple of its element's {} bytes; a GPU reads aligned elements only", name,
         t.data, element);
  return t.rank == 2 && shape.heads > 1 ? t.strides[0] * element : 0;
}

namespace {

constexpr std::string_view kScaleNames[] = {"none", "tensor", "token", "block", "mx", "tile"};

/// Which of QuantScale a type takes, for messages.
std::string_view scales_of(DType t) {
  switch (t) {
    case DType::e4m3:
    case DType::e5m2: return "tensor, token, block, mx or (quantize) tile";
    case DType::i8: return "tensor, token, block or (quantize) tile";
    case DType::nvfp4:
    case DType::mxfp4: return "block";
    default: return "none";
  }
}

bool takes(DType t, QuantScale s) {
  if (bits(t) > 8) return s == QuantScale::none;
  if (bits(t) == 4) return s == QuantScale::block;
  return s == QuantScale::tensor || s == QuantScale::token || s == QuantScale::block || s == QuantScale::tile ||
         (s == QuantScale::mx && t != DType::i8);
}

void check_scale_type(const Checker& c, const TensorView& scales, DType out, QuantScale scale) {
  const bool codes = bits(out) == 4 || scale == QuantScale::mx;
  const bool fits = codes ? scales.dtype == DType::u8 || (out == DType::nvfp4 && scales.dtype == DType::e4m3) : scales.dtype == DType::f32;
  if (!fits)
    fail(Code::invalid_argument, c.op, "quantization.scales is {}; {} scales of {} are {}", girih::name(scales.dtype),
         kScaleNames[static_cast<int>(scale)], girih::name(out), !codes ? "f32" : (out == DType::nvfp4 ? "e4m3 or u8" : "u8 (e8m0)"));
  if (scales.device != c.device)
    fail(Code::invalid_argument, c.op, "quantization.scales.device={}; the context is for {}", girih::name(scales.device),
         girih::name(c.device));
}

/// Scales [rows (, heads) (, blocks)], or in swizzled tiles; `given`: they are read.
void check_computed(const Checker& c, const Quantization& q, const RowShape& shape, std::int64_t block, bool given, Launch::Part part) {
  const TensorView& s = q.scales;
  const std::int64_t blocks = block > 0 ? ceil_div(shape.dim, block) : 1;
  const std::int64_t element = bits(s.dtype) / 8;
  if (shape.rows > 0 && s.data == nullptr)
    fail(Code::invalid_argument, c.op, "quantization.scales.data is null; {}",
         given ? "codes need scales" : "scales are computed and stored");
  if (q.swizzled) {
    if (element != 1 || shape.has_heads)
      fail(Code::invalid_argument, c.op, "quantization.swizzled; only block scales of one byte, of rows without heads, have that order");
    const std::int64_t columns = round_up(blocks, 4);
    const std::int64_t needed = round_up(shape.rows, 128) * columns;
    if (s.numel() < needed)
      fail(Code::invalid_argument, c.op, "quantization.scales has {} elements; tiles of {} rows x {} blocks need {}", s.numel(), shape.rows,
           blocks, needed);
    std::int64_t dense = 1;
    for (int i = s.rank - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      if (s.shape[at] > 1 && s.strides[at] != dense)
        fail(Code::invalid_argument, c.op, "quantization.scales.strides[{}]={}; swizzled scales are dense, use {}", i, s.strides[at],
             dense);
      dense *= s.shape[at];
    }
    part.args.scales = static_cast<unsigned char*>(s.data);
    part.args.swizzled_columns = columns;
    return;
  }
  const int rank = 1 + (shape.has_heads ? 1 : 0) + (block > 0 ? 1 : 0);
  if (s.rank != rank)
    fail(Code::invalid_argument, c.op, "quantization.scales has rank {}; must be {}: [rows{}{}]", s.rank, rank,
         shape.has_heads ? ", heads" : "", block > 0 ? ", blocks" : "");
  const auto expect = [&](int axis, std::int64_t extent, std::string_view what) {
    if (s.shape[static_cast<std::size_t>(axis)] != extent)
      fail(Code::invalid_argument, c.op, "quantization.scales.shape[{}]={}; must be {} ({})", axis, s.shape[static_cast<std::size_t>(axis)],
           extent, what);
  };
  expect(0, shape.rows, "rows of x");
  if (shape.has_heads) expect(1, shape.heads, "heads of x");
  if (block > 0) expect(rank - 1, blocks, "blocks of a row");
  part.args.scales = static_cast<unsigned char*>(s.data);
  part.args.scale_row_stride = s.strides[0] * element;
  part.args.scale_head_stride = shape.has_heads ? s.strides[1] * element : 0;
  part.args.scale_block_stride = block > 0 ? s.strides[static_cast<std::size_t>(rank - 1)] * element : 0;
  if (!given && !distinct_places({Axis{shape.rows, part.args.scale_row_stride},
                                  {shape.heads, part.args.scale_head_stride},
                                  {blocks, part.args.scale_block_stride}},
                                 element))
    fail(Code::invalid_argument, c.op, "quantization.scales.strides let scales share memory; what is written needs places of its own");
}

}  // namespace

void Checker::quantization(const Quantization& q, const TensorView& out, const RowShape& shape, Launch::Part part, bool given) const {
  using abi::Scaling;
  const auto kind = static_cast<std::size_t>(q.scale);
  if (kind >= std::size(kScaleNames)) fail(Code::invalid_argument, op, "quantization.scale={} is unknown", kind);
  if (!takes(out.dtype, q.scale))
    fail(Code::invalid_argument, op, "quantization.scale={} with {} of {}; must be {}", kScaleNames[kind], given ? "x" : "out",
         girih::name(out.dtype), scales_of(out.dtype));
  if (q.scale == QuantScale::tile && !tiles)
    fail(Code::unsupported, op, "quantization.scale=tile; only quantize() and dequantize() do tiles of 128 x 128");
  if (!given) part.config.out = elem_of(out.dtype);
  if (!std::isfinite(q.global_scale) || !(q.global_scale > 0))
    fail(Code::invalid_argument, op, "quantization.global_scale={}; must be finite and > 0", q.global_scale);
  if (q.scale == QuantScale::none) {
    if (q.scales.data != nullptr || q.swizzled || q.global_scale != 1.0F)
      fail(Code::invalid_argument, op, "quantization has scales but scale=none; leave it empty for {}", girih::name(out.dtype));
    return;
  }
  part.args.global_scale = q.global_scale;
  check_scale_type(*this, q.scales, out.dtype, q.scale);
  if (q.swizzled && q.scale != QuantScale::block && q.scale != QuantScale::mx)
    fail(Code::invalid_argument, op, "quantization.swizzled with scale={}; only block scales have that order", kScaleNames[kind]);
  if (q.scale == QuantScale::tensor) {
    part.config.scaling = Scaling::tensor;
    if (q.scales.data == nullptr || q.scales.numel() != 1)
      fail(Code::invalid_argument, op, "quantization.scales has {} elements; a tensor's scale is one f32", q.scales.numel());
    part.args.scales = static_cast<unsigned char*>(q.scales.data);
    if (device.kind == DeviceKind::cuda || given) return;
    const float scale = load_element<DType::f32>(q.scales.data, 0) * q.global_scale;
    if (!std::isfinite(scale) || !(scale > 0))
      fail(Code::invalid_argument, op, "quantization.scales[0] times global_scale={}; must be finite and > 0", scale);
    return;
  }
  if (q.scale == QuantScale::tile) {
    part.config.scaling = Scaling::tile;
    if (shape.has_heads) fail(Code::invalid_argument, op, "quantization.scale=tile with heads; tiles are of rows without heads");
    const RowShape tiles{ceil_div(shape.rows, 128), 1, shape.dim, false};
    return check_computed(*this, q, tiles, 128, given, part);
  }
  part.config.scaling = q.scale == QuantScale::token ? Scaling::row : (q.scale == QuantScale::mx ? Scaling::mx : Scaling::block);
  check_computed(*this, q, shape, block_of(part.config.scaling, elem_of(out.dtype)), given, part);
}

void Checker::overlap(std::string_view written_name, const abi::RowTensor& w, abi::Elem written_type, std::string_view read_name,
                      const abi::RowTensor& r, abi::Elem read_type, const RowShape& shape, std::int64_t read_dim) const {
  if (shape.rows == 0 || w.data == nullptr || r.data == nullptr) return;
  const Range a = range_of(w, written_type, shape.rows, shape.heads, shape.dim);
  const Range b = range_of(r, read_type, shape.rows, shape.heads, read_dim);
  const std::int64_t distance = reinterpret_cast<std::intptr_t>(r.data) - reinterpret_cast<std::intptr_t>(w.data);
  if (distance + b.end <= a.begin || distance + b.begin >= a.end) return;
  const bool same_rows = shape.rows == 1 || w.row_stride == r.row_stride;
  const bool same_heads = shape.heads == 1 || w.head_stride == r.head_stride;
  if (distance == 0 && same_rows && same_heads && written_type == read_type && w.dim_stride == r.dim_stride && read_dim == shape.dim)
    return;
  // Columns of one wider tensor: rows of both lie between each other.
  const Range row_a = range_of(w, written_type, 1, shape.heads, shape.dim);
  const Range row_b = range_of(r, read_type, 1, shape.heads, read_dim);
  const std::int64_t stride = std::llabs(w.row_stride);
  if (same_rows && shape.rows > 1 && stride > 0) {
    std::int64_t shift = (distance + row_b.begin - row_a.begin) % stride;
    if (shift < 0) shift += stride;
    if (shift >= row_a.end - row_a.begin && shift + (row_b.end - row_b.begin) <= stride) return;
  }
  fail(Code::invalid_argument, op, "{} shares memory with {}; must be apart from it, or have its data, type and strides", written_name,
       read_name);
}

}  // namespace girih::rows
