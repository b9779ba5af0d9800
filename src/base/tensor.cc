// Element type names and the two constructors of TensorView. Extents are checked here once, so that every operator may multiply the
// extents of a view without asking whether the product fits 64 bits.
#include "girih/tensor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace girih {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 11> kNames{{
    {DType::f32, "f32"},
    {DType::f16, "f16"},
    {DType::bf16, "bf16"},
    {DType::e4m3, "e4m3"},
    {DType::e5m2, "e5m2"},
    {DType::i8, "i8"},
    {DType::nvfp4, "nvfp4"},
    {DType::mxfp4, "mxfp4"},
    {DType::i32, "i32"},
    {DType::i64, "i64"},
    {DType::u8, "u8"},
}};

// Copies the extents and returns the dense row-major strides. Empty dimensions count as 1 for the size limit and the strides, so that
// the strides of an empty view are those it would have with one element there.
std::array<std::int64_t, TensorView::kMaxRank> take_shape(TensorView& view, std::initializer_list<std::int64_t> shape) {
  if (shape.size() > TensorView::kMaxRank) {
    fail(Code::invalid_argument, "tensor", "rank={}; must be at most {}", shape.size(), TensorView::kMaxRank);
  }
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::array<std::int64_t, TensorView::kMaxRank> dense{};
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    const std::int64_t extent = view.shape[i];
    if (extent < 0) {
      fail(Code::invalid_argument, "tensor", "shape[{}]={}; must be >= 0", i, extent);
    }
    dense[i] = stride;
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(extent, 1), &stride)) {
      fail(Code::invalid_argument, "tensor", "shape[{}]={}: the number of elements exceeds 64 bits; use smaller extents", i, extent);
    }
  }
  return dense;
}

}  // namespace

std::string_view name(DType t) {
  for (const auto& [dtype, text] : kNames) {
    if (dtype == t) return text;
  }
  return "invalid dtype";
}

DType dtype_from_name(std::string_view text) {
  std::string known;
  for (const auto& [dtype, candidate] : kNames) {
    if (candidate == text) return dtype;
    known += known.empty() ? "" : ", ";
    known += candidate;
  }
  fail(Code::invalid_argument, "dtype_from_name", "text=\"{}\"; must be one of {}", text, known);
}

std::string name(Device device) { return device.kind == DeviceKind::cpu ? std::string("cpu") : fmt::format("cuda:{}", device.index); }

TensorView::TensorView(void* data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in, Device device_in)
    : data(data_in), dtype(dtype_in), device(device_in) {
  strides = take_shape(*this, shape_in);
}

TensorView::TensorView(void* data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in,
                       std::initializer_list<std::int64_t> strides_in, Device device_in)
    : data(data_in), dtype(dtype_in), device(device_in) {
  take_shape(*this, shape_in);
  if (strides_in.size() != shape_in.size()) {
    fail(Code::invalid_argument, "tensor", "{} strides for a shape of rank {}; give one per dimension", strides_in.size(), shape_in.size());
  }
  std::copy(strides_in.begin(), strides_in.end(), strides.begin());
}

std::int64_t TensorView::numel() const {
  if (rank == 0 && data == nullptr) return 0;
  std::int64_t count = 1;
  bool overflow = false;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] == 0) return 0;
    overflow |= __builtin_mul_overflow(count, shape[i], &count);
  }
  if (overflow) fail(Code::invalid_argument, "tensor", "the number of elements exceeds 64 bits; use smaller extents");
  return count;
}

}  // namespace girih
