// See indices.h.
#include "indices.h"

#include <fmt/format.h>

#include <limits>

namespace girih::python {
namespace {

/// Lists, tuples, ranges: what is a sequence and no array.
bool is_plain_sequence(nb::handle object) {
  return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || PyRange_Check(object.ptr());
}

std::int64_t load(const TensorView& t, std::int64_t at) {
  return t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[at] : static_cast<const std::int32_t*>(t.data)[at];
}

}  // namespace

template <typename T>
std::vector<T> integers(nb::handle object, std::string_view name) {
  std::vector<T> values;
  const nb::object items = nb::steal(PySequence_Tuple(object.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  const auto size = static_cast<std::size_t>(PyTuple_Size(items.ptr()));
  values.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    PyObject* item = PyTuple_GetItem(items.ptr(), static_cast<Py_ssize_t>(i));
    if (PyBool_Check(item)) throw nb::type_error(fmt::format("{}[{}] is a bool, no integer", name, i).c_str());
    const nb::object number = nb::steal(PyNumber_Index(item));
    if (!number.is_valid()) {
      if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
      PyErr_Clear();
      throw nb::type_error(fmt::format("{}[{}] is no integer", name, i).c_str());
    }
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow != 0 || value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max())
      bad_value(name, fmt::format("entry {} does not fit {} bits", i, sizeof(T) * 8));
    values.push_back(static_cast<T>(value));
  }
  return values;
}

template std::vector<std::int32_t> integers(nb::handle, std::string_view);
template std::vector<std::int64_t> integers(nb::handle, std::string_view);

IndexArray::IndexArray(nb::handle object, std::string_view name, int max_rank) {
  if (object.is_none()) return;
  given_ = true;
  if (is_plain_sequence(object)) {
    values_ = integers<std::int64_t>(object, name);
    view_ = values_;
    return;
  }
  Array found = array(object, name);
  const TensorView& t = found.view;
  if (t.device.kind != DeviceKind::cpu)
    bad_value(name, fmt::format("is on {}; planning reads it on the host, so give it in CPU memory: .cpu()", girih::name(t.device)));
  if (t.dtype != DType::i32 && t.dtype != DType::i64) bad_value(name, fmt::format("is {}; must be int32 or int64", girih::name(t.dtype)));
  if (t.rank < 1 || t.rank > max_rank)
    bad_value(name, fmt::format("has {} dimensions; must have {}", t.rank, max_rank == 1 ? "1" : "1 or 2"));
  if (!is_dense(t)) {
    copy_strided(t);
    return;
  }
  const auto size = static_cast<std::size_t>(t.numel());
  if (t.dtype == DType::i64) {
    view_ = std::span(static_cast<const std::int64_t*>(t.data), size);
  } else {
    view_ = std::span(static_cast<const std::int32_t*>(t.data), size);
  }
  owner_ = std::move(found.owner);
}

void IndexArray::copy_strided(const TensorView& t) {
  const std::int64_t rows = t.rank == 2 ? t.shape[0] : 1;
  const std::int64_t columns = t.shape[t.rank - 1];
  values_.reserve(static_cast<std::size_t>(rows * columns));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) values_.push_back(load(t, (t.rank == 2 ? r * t.strides[0] : 0) + c * t.strides[t.rank - 1]));
  }
  view_ = values_;
}

template <typename T>
DeviceIndices<T>::DeviceIndices(nb::handle object, std::string_view name, Device device) {
  constexpr DType kWanted = sizeof(T) == 4 ? DType::i32 : DType::i64;
  if (object.is_none()) return;
  if (device.kind == DeviceKind::cpu && is_plain_sequence(object)) {
    values_ = integers<T>(object, name);
    view_ = values_;
    return;
  }
  Array found = array(object, name);
  const TensorView& t = found.view;
  if (t.device != device)
    bad_value(name, fmt::format("is on {}; must be on {}, where it is read{}", girih::name(t.device), girih::name(device),
                                device.kind == DeviceKind::cpu ? ": give .cpu()" : ""));
  if (t.dtype != kWanted)
    bad_value(name, fmt::format("is {}; must be {}, since it is read in place", girih::name(t.dtype), sizeof(T) == 4 ? "int32" : "int64"));
  if (t.rank < 1 || t.rank > 2) bad_value(name, fmt::format("has {} dimensions; must have 1, or 2 (a dense table)", t.rank));
  if (!is_dense(t)) bad_value(name, "is not dense; run() reads it in place: give a contiguous array");
  view_ = {static_cast<const T*>(t.data), static_cast<std::size_t>(t.numel())};
  owner_ = std::move(found.owner);
}

template class DeviceIndices<std::int32_t>;
template class DeviceIndices<std::int64_t>;

}  // namespace girih::python
