// See call.h.
#include "call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/math.h"

namespace girih::python {
namespace {

/// Python's bools are ints, but one given for a number is a mistake: mostly an argument in another's place.
bool is_number(nb::handle object, std::string_view name) {
  if (PyBool_Check(object.ptr())) throw nb::type_error(fmt::format("{}: is a bool; must be a number or an array", name).c_str());
  return PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr());
}

double number(nb::handle object, std::string_view name) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    bad_value(name, "is no number that a float holds");
  }
  return value;
}

std::int64_t integer(nb::handle object, std::string_view name, bool any_64_bits) {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    throw nb::type_error(fmt::format("{}: must be an int or an array of int32 or int64", name).c_str());
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow == 0) return value;
  if (overflow > 0 && any_64_bits) {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr) return static_cast<std::int64_t>(wide);
    PyErr_Clear();
  }
  bad_value(name, "does not fit 64 bits");
}

/// One entry that is every row's.
void spread(TensorView& t, std::int64_t rows) {
  if (t.rank > 1 || (t.rank == 1 && t.shape[0] != 1)) return;
  t.rank = 1;
  t.shape[0] = rows;
  t.strides[0] = 0;
}

void erase(const Output& made) {
  if (made.view.numel() == 0) return;
  if (made.view.device.kind == DeviceKind::cpu) {
    std::memset(made.view.data, 0, static_cast<std::size_t>(bytes(made.view.dtype, made.view.numel())));
  } else {
    made.object.attr("zero_")();
  }
}

}  // namespace

Call::Call(nb::handle first, std::string_view name, const Context* context, nb::handle stream)
    : first_(array(first, name)),
      context_object_(context == nullptr ? context_object(nb::none(), first_.view.device) : nb::object()),
      context_(context == nullptr ? &context_of(context_object_) : context),
      stream_(python::stream(stream, first_)) {}

TensorView Call::in(nb::handle object, std::string_view name, Access access) {
  if (object.is_none()) return {};
  Array given = array(object, name, access);
  kept_.push_back(std::move(given.owner));
  return given.view;
}

Output Call::out(nb::handle given, std::string_view name, DType dtype, std::span<const std::int64_t> shape) {
  const bool packed = bits(dtype) == 4 && !shape.empty();
  if (given.is_none()) {
    if (packed) {
      std::vector<std::int64_t> halved(shape.begin(), shape.end());
      halved.back() = ceil_div(halved.back(), 2);
      Output made = new_array(first_, Element::u8, halved, name);
      made.view = as_codes(made.view, dtype, name, shape.back());
      return made;
    }
    Output made = new_array(first_, element_of(dtype), shape, name);
    made.view.dtype = dtype;
    return made;
  }
  Array array = python::array(given, name, Access::write);
  if (packed) {
    array.view = as_codes(array.view, dtype, name, shape.back());
  } else if (bits(dtype) == 8 && array.view.dtype == DType::u8) {
    array.view.dtype = dtype;
  }
  return {array.view, nb::borrow(given), std::move(array.owner)};
}

Output Call::wanted(nb::handle given, std::string_view name, DType dtype, Shape shape) {
  if (given.is_none() || given.ptr() == Py_False) return {};
  return out(given.ptr() == Py_True ? nb::handle(Py_None) : given, name, dtype, shape);
}

Output Call::flags(nb::handle given, std::string_view name, std::int64_t rows) {
  if (given.is_none() || given.ptr() == Py_False) return {};
  if (given.ptr() != Py_True) return out(given, name, DType::u8, {rows});
  return new_array(first_, Element::boolean, std::span(&rows, 1), name);
}

RowFloat Call::row_float(nb::handle object, std::string_view name, std::int64_t rows) {
  if (is_number(object, name)) return static_cast<float>(number(object, name));
  TensorView t = in(object, name);
  if (t.rank == 0 && t.device.kind == DeviceKind::cpu) return static_cast<float>(number(object, name));
  spread(t, rows);
  return t;
}

RowInt Call::row_int(nb::handle object, std::string_view name, std::int64_t rows) {
  if (is_number(object, name)) return integer(object, name, false);
  TensorView t = in(object, name);
  if (t.rank == 0 && t.device.kind == DeviceKind::cpu) return integer(object, name, false);
  spread(t, rows);
  return t;
}

Random Call::random(nb::handle seed, nb::handle offset) {
  const auto take = [this](nb::handle object, std::string_view name) -> RowInt {
    if (is_number(object, name)) return integer(object, name, true);
    TensorView t = in(object, name);
    if (t.rank == 0 && t.device.kind == DeviceKind::cpu) return integer(object, name, true);
    if (t.rank == 0) spread(t, 1);
    return t;
  };
  return {take(seed, "seed"), take(offset, "offset")};
}

nb::object Call::Quantized::result() const { return computed ? nb::make_tuple(codes.object, scales.object) : codes.object; }

Call::Quantized Call::quantized(const QuantizationLike* q, nb::handle dtype, nb::handle out, std::string_view name, const TensorView& x) {
  Quantized result;
  const auto whole = std::span(x.shape).first(static_cast<std::size_t>(x.rank));
  if (q == nullptr) {
    // The array given says its type itself.
    const DType type = dtype.is_none() ? x.dtype : python::dtype(dtype, "dtype");
    result.codes = this->out(out, name, type, whole);
    check_type(result.codes, out, name, dtype, "dtype");
    return result;
  }
  result.codes = this->out(out, name, q->dtype, whole);
  if (!dtype.is_none()) bad_value("dtype", "is given beside a quantisation, which has one of its own; leave it out");
  Quantization& args = result.quantization;
  args.scale = q->scale;
  args.global_scale = q->global_scale;
  args.swizzled = q->swizzled;
  result.computed = q->scale != QuantScale::none && q->scale != QuantScale::tensor;
  if (!result.computed || !q->scales.is_none() || x.rank < 2) {
    args.scales = in(q->scales, "scales", result.computed ? Access::write : Access::read);
    result.scales = {args.scales, q->scales};
    return result;
  }
  const bool fp4 = bits(q->dtype) == 4;
  const std::int64_t block = q->dtype == DType::nvfp4 ? 16 : fp4 || q->scale == QuantScale::mx ? 32 : 128;
  const std::int64_t blocks = ceil_div(whole.back(), block);
  const bool e8m0 = q->dtype == DType::mxfp4 || q->scale == QuantScale::mx;
  const Element element = e8m0 ? Element::e8m0 : fp4 ? Element::e4m3 : Element::f32;
  std::vector<std::int64_t> shape(whole.begin(), whole.end() - 1);
  if (q->scale == QuantScale::tile) shape[0] = ceil_div(shape[0], 128);
  if (q->swizzled) shape[0] = round_up(shape[0], 128);
  if (q->scale != QuantScale::token) shape.push_back(q->swizzled ? round_up(blocks, 4) : blocks);
  result.scales = new_array(first_, element, shape, "scales");
  // The padding of tiles is read by those that multiply with them.
  if (q->swizzled && (shape[0] != x.shape[0] || shape.back() != blocks)) erase(result.scales);
  args.scales = result.scales.view;
  if (fp4 && !e8m0) args.scales.dtype = DType::e4m3;
  return result;
}

void Call::rethrow(const Error& error, Names names) {
  std::string text = error.what();
  for (const auto& [ours, theirs] : names) {
    for (std::size_t at = text.find(ours); at != std::string::npos; at = text.find(ours, at + theirs.size()))
      text.replace(at, ours.size(), theirs);
  }
  throw Error(error.code(), text);
}

void check_type(const Output& output, nb::handle given, std::string_view name, nb::handle dtype, std::string_view dtype_name) {
  if (given.is_none() || dtype.is_none()) return;
  const DType type = python::dtype(dtype, dtype_name);
  if (output.view.dtype != type)
    bad_value(dtype_name, fmt::format("is {}, but {} is {}; leave one out", girih::name(type), name, girih::name(output.view.dtype)));
}

TensorView as_codes(TensorView bytes, DType dtype, std::string_view name, std::int64_t dim) {
  if (bytes.dtype != DType::u8)
    bad_value(name, fmt::format("is {}; 4-bit codes are uint8 arrays, two codes a byte", girih::name(bytes.dtype)));
  bytes.dtype = dtype;
  if (bytes.rank == 0) return bytes;
  const auto last = static_cast<std::size_t>(bytes.rank - 1);
  if (bytes.shape[last] > 1 && bytes.strides[last] != 1)
    bad_value(name, fmt::format("has stride {} in its last dimension; rows of 4-bit codes are dense", bytes.strides[last]));
  const std::int64_t codes = bytes.shape[last] * 2;
  bytes.shape[last] = dim >= 0 && ceil_div(dim, 2) == bytes.shape[last] ? dim : codes;
  for (std::size_t i = 0; i < last; ++i) bytes.strides[i] *= 2;
  bytes.strides[last] = 1;
  return bytes;
}

}  // namespace girih::python
