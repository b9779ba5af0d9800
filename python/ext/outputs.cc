// Outputs that the caller did not give, made by the library that the inputs come from. PyTorch's on the CPU go through its exchange table,
// without a look-up in Python. On CUDA they do not: the table's tensors have foreign storage, which torch's record_stream() passes over,
// so that their memory could be reused under work on another stream.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "exchange.h"

namespace girih::python {
namespace {

dlpack::DataType dlpack_type(DType t) {
  const auto bits = static_cast<std::uint8_t>(girih::bits(t));
  switch (t) {
    case DType::bf16: return {dlpack::kBfloat, bits, 1};
    case DType::e4m3: return {dlpack::kFloat8E4m3Fn, bits, 1};
    case DType::e5m2: return {dlpack::kFloat8E5m2, bits, 1};
    case DType::i8:
    case DType::i32:
    case DType::i64: return {dlpack::kInt, bits, 1};
    case DType::f32:
    case DType::f16: return {dlpack::kFloat, bits, 1};
    default: return {dlpack::kUint, 8, 1};
  }
}

const char* numpy_name(DType t) {
  switch (t) {
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::e4m3: return "float8_e4m3fn";
    case DType::e5m2: return "float8_e5m2";
    case DType::i8: return "int8";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    default: return "uint8";
  }
}

void set_error(void* context, const char* kind, const char* text) {
  auto* into = static_cast<std::string*>(context);
  *into = fmt::format("{}: {}", kind, text);
}

Array from_table(const dlpack::Exchange& table, const Array& like, DType dtype, std::initializer_list<std::int64_t> shape,
                 std::string_view name) {
  std::array<std::int64_t, TensorView::kMaxRank> extents{};
  std::copy(shape.begin(), shape.end(), extents.begin());
  dlpack::Tensor prototype{};
  const Device where = like.view.device;
  prototype.device_type = where.kind == DeviceKind::cuda ? dlpack::kCuda : dlpack::kCpu;
  prototype.device_id = where.index;
  prototype.ndim = static_cast<std::int32_t>(shape.size());
  prototype.dtype = dlpack_type(dtype);
  prototype.shape = extents.data();
  std::string error;
  dlpack::ManagedVersioned* made = nullptr;
  if (table.allocate(&prototype, &made, &error, set_error) != 0) {
    PyErr_Clear();
    PyErr_SetString(PyExc_MemoryError, fmt::format("{} cannot be allocated: {}", name, error).c_str());
    throw nb::python_error();
  }
  Array out;
  out.view = TensorView(static_cast<std::byte*>(made->tensor.data) + (made->tensor.data == nullptr ? 0 : made->tensor.byte_offset), dtype,
                        shape, where);
  out.stream = like.stream;
  void* object = nullptr;
  if (table.object_from_managed(made, &object) != 0) throw nb::python_error();
  out.owner = nb::steal(static_cast<PyObject*>(object));
  return out;
}

/// tensor.new_empty(shape, dtype=...).
Array from_tensor(nb::handle like, DType dtype, std::initializer_list<std::int64_t> shape, std::string_view name) {
  static PyObject* method = PyUnicode_InternFromString("new_empty");
  static PyObject* keywords = nb::make_tuple("dtype").release().ptr();
  const nb::object type = nb::module_::import_("torch").attr(numpy_name(dtype));
  nb::list extents;
  for (const std::int64_t extent : shape) extents.append(extent);
  PyObject* arguments[] = {like.ptr(), extents.ptr(), type.ptr()};
  const nb::object made = nb::steal(PyObject_VectorcallMethod(method, arguments, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords));
  if (!made.is_valid()) throw nb::python_error();
  return array(made, name, Access::write);
}

Array from_numpy(nb::handle like, const Array& like_array, DType dtype, std::initializer_list<std::int64_t> shape, std::string_view name) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  nb::object type;
  if (dtype == like_array.view.dtype) {
    type = like.attr("dtype");
  } else if (dtype == DType::bf16 || dtype == DType::e4m3 || dtype == DType::e5m2) {
    type = nb::module_::import_("ml_dtypes").attr(numpy_name(dtype));
  } else {
    type = numpy.attr(numpy_name(dtype));
  }
  nb::list extents;
  for (const std::int64_t extent : shape) extents.append(extent);
  return array(numpy.attr("empty")(nb::tuple(extents), type), name, Access::write);
}

}  // namespace

Array empty_like(nb::handle like, const Array& like_array, DType dtype, std::initializer_list<std::int64_t> shape, std::string_view name) {
  const dlpack::Exchange* table = exchange_of(like);
  if (table != nullptr && like_array.view.device.kind == DeviceKind::cuda && nb::hasattr(like, "new_empty"))
    return from_tensor(like, dtype, shape, name);
  if (table != nullptr && table->allocate != nullptr && table->object_from_managed != nullptr)
    return from_table(*table, like_array, dtype, shape, name);
  if (nb::hasattr(like, "__array_interface__")) return from_numpy(like, like_array, dtype, shape, name);
  throw nb::value_error(fmt::format("{}: must be given, since {} arrays cannot be allocated here (torch.Tensor and numpy.ndarray can)",
                                    name, nb::str(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(like.ptr()))).attr("__name__")).c_str())
                            .c_str());
}

Made output(nb::handle out, nb::handle like, const Array& like_array, DType dtype, std::initializer_list<std::int64_t> shape,
            std::string_view name) {
  Made made;
  made.array = out.is_none() ? empty_like(like, like_array, dtype, shape, name) : array(out, name, Access::write);
  made.object = out.is_none() ? made.array.owner : nb::borrow(out);
  return made;
}

}  // namespace girih::python
