// Python objects as tensors: see bind.h. The order of the ways is that of their cost: PyTorch's tensors cross without a Python call.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "bind.h"
#include "dlpack_abi.h"

namespace girih::python {
namespace {

/// The Python error that is set, as an exception of the same class that names the argument.
[[noreturn]] void chain(std::string_view name) {
  nb::python_error error;
  std::string text = fmt::format("{}: {}", name, nb::str(error.value()).c_str());
  text.erase(std::min(text.find("\nException raised from"), text.size()));  // what PyTorch adds: a stack of its own
  nb::raise_from(error, error.type().ptr(), "%s", text.c_str());
  throw nb::python_error();
}

/// What a library says of a tensor that it cannot export (sparse, quantised, without memory): the caller's value, whatever it raised.
[[noreturn]] void chain_export(std::string_view name) {
  if (PyErr_ExceptionMatches(PyExc_RuntimeError) == 0 && PyErr_ExceptionMatches(PyExc_BufferError) == 0) chain(name);
  nb::python_error error;
  const std::string text = nb::str(error.value()).c_str();
  nb::raise_from(error, PyExc_ValueError, "%s: cannot be read in place (%s); give a dense tensor on the CPU or a CUDA device",
                 std::string(name).c_str(), text.substr(0, text.find('\n')).c_str());
  throw nb::python_error();
}

/// Invalid where there is none; what else goes wrong in looking is the caller's to hear of.
nb::object found_attribute(PyObject* found) {
  if (found == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) nb::raise_python_error();
    PyErr_Clear();
  }
  return nb::steal(found);
}

nb::object attribute(nb::handle object, const char* key) { return found_attribute(PyObject_GetAttrString(object.ptr(), key)); }

/// The same by an interned name, for what every call of a tensor asks.
nb::object attribute(nb::handle object, PyObject* key) { return found_attribute(PyObject_GetAttr(object.ptr(), key)); }

DType dtype_of(dlpack::DataType t, std::string_view name) {
  struct Row {
    std::uint8_t code, bits;
    DType dtype;
  };
  static constexpr Row kRows[] = {
      {dlpack::kFloat, 32, DType::f32},      {dlpack::kFloat, 16, DType::f16},    {dlpack::kBfloat, 16, DType::bf16},
      {dlpack::kInt, 8, DType::i8},          {dlpack::kInt, 32, DType::i32},      {dlpack::kInt, 64, DType::i64},
      {dlpack::kUint, 8, DType::u8},         {dlpack::kBool, 8, DType::u8},       {dlpack::kFloat8E4m3Fn, 8, DType::e4m3},
      {dlpack::kFloat8E5m2, 8, DType::e5m2}, {dlpack::kFloat8E8m0, 8, DType::u8},
  };
  if (t.code == dlpack::kFloat4E2m1 && t.bits * t.lanes == 8) return DType::u8;
  for (const Row& row : kRows)
    if (t.lanes == 1 && t.code == row.code && t.bits == row.bits) return row.dtype;
  bad_value(name, fmt::format("elements of DLPack type (code {}, {} bits, {} lanes) are not supported; use float32, float16, bfloat16, "
                              "float8_e4m3fn, float8_e5m2, int8, int32, int64, uint8 or bool",
                              t.code, t.bits, t.lanes));
}

Device device_of(std::int32_t type, std::int32_t id, std::string_view name) {
  switch (type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost: return {};
    case dlpack::kCuda:
    case dlpack::kCudaManaged: return {DeviceKind::cuda, id};
    default: bad_value(name, fmt::format("lies on a device of DLPack type {}; supported are the CPU (1) and CUDA (2)", type));
  }
}

void set_rank(TensorView& view, std::int64_t rank, std::string_view name) {
  if (rank < 0 || rank > TensorView::kMaxRank)
    bad_value(name, fmt::format("has {} dimensions; at most {} are supported", rank, TensorView::kMaxRank));
  view.rank = static_cast<int>(rank);
}

void set_dense_strides(TensorView& view) {
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.strides[i] = stride;
    // Too large a stride is refused by check_places().
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(view.shape[i], 1), &stride))
      stride = std::numeric_limits<std::int64_t>::max();
  }
}

/// Extents, reach and place of elements are such that no operator has to fear an overflow, a null pointer or a split element.
void check_places(const TensorView& view, std::string_view name) {
  std::int64_t count = 1;
  std::int64_t reach = 0;
  bool overflow = false;
  const std::int64_t size = bytes(view.dtype, 1);
  for (int i = 0; i < view.rank; ++i) {
    const std::int64_t extent = view.shape[i];
    if (extent < 0) bad_value(name, fmt::format("has an extent of {} in dimension {}; must be >= 0", extent, i));
    const std::int64_t last = std::max<std::int64_t>(extent - 1, 0);
    std::int64_t far = 0;
    overflow |= __builtin_mul_overflow(count, last + 1, &count) || view.strides[i] == std::numeric_limits<std::int64_t>::min() ||
                __builtin_mul_overflow(last, std::abs(view.strides[i]), &far) || __builtin_add_overflow(reach, far, &reach);
  }
  std::int64_t most = 0;
  if (overflow || __builtin_mul_overflow(std::max(count, reach), 8 * size, &most))
    bad_value(name, "has extents and strides that go beyond 64 bits; use smaller ones");
  if (view.numel() == 0) return;
  if (view.data == nullptr) bad_value(name, "has elements but no memory (a null pointer)");
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(size) != 0)
    bad_value(name, fmt::format("is not aligned to its elements of {} bytes; give a copy", size));
}

TensorView view_of(const dlpack::Tensor& t, std::string_view name) {
  TensorView view;
  set_rank(view, t.ndim, name);
  view.dtype = dtype_of(t.dtype, name);
  view.device = device_of(t.device_type, t.device_id, name);
  view.data = static_cast<std::byte*>(t.data) + (t.data == nullptr ? 0 : t.byte_offset);
  std::copy_n(t.shape, t.ndim, view.shape.begin());
  if (t.strides != nullptr) {
    std::copy_n(t.strides, t.ndim, view.strides.begin());
  } else {
    set_dense_strides(view);
  }
  return view;
}

/// A tensor whose gradient is being recorded would silently lose it here. Parameters under no_grad() or inference_mode() are fine.
void refuse_gradient(nb::handle object, std::string_view name) {
  static PyObject* key = PyUnicode_InternFromString("requires_grad");
  const nb::object wanted = attribute(object, key);
  if (!wanted.is_valid() || wanted.ptr() != Py_True) return;
  const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (!torch.is_valid() || !nb::cast<bool>(torch.attr("is_grad_enabled")())) return;
  bad_value(name, "requires a gradient, which girih does not compute; call it under torch.no_grad(), or give tensor.detach()");
}

/// PyTorch's views that negate as they are read, x.conj().imag, whose memory DLPack hands over as it is. They step over the real parts, so
/// that others need not be asked.
void refuse_negation(const TensorView& view, nb::handle object, std::string_view name) {
  for (int i = 0; i < view.rank; ++i)
    if (view.shape[i] > 1 && view.strides[i] % 2 != 0) return;
  static PyObject* key = PyUnicode_InternFromString("is_neg");
  const nb::object method = attribute(object, key);
  if (!method.is_valid()) return;
  const nb::object negated = nb::steal(PyObject_CallNoArgs(method.ptr()));
  if (!negated.is_valid()) chain(name);
  if (negated.ptr() == Py_True) bad_value(name, "is a view that negates its memory (Tensor.is_neg()); give tensor.resolve_neg()");
}

/// The DLPack exchange table of `object`'s class; null where it has none of version 1.
const dlpack::Exchange* exchange_of(nb::handle object) {
  static PyObject* key = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  const nb::object capsule = attribute(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))), key);
  if (!capsule.is_valid() || !PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  auto* table = static_cast<const dlpack::Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) PyErr_Clear();
  while (table != nullptr && table->version.major != 1) table = table->previous;
  return table;
}

bool from_exchange(Array& out, nb::handle object, std::string_view name) {
  const dlpack::Exchange* table = exchange_of(object);
  if (table == nullptr || table->tensor_from_object == nullptr) return false;
  refuse_gradient(object, name);
  dlpack::Tensor t{};
  if (table->tensor_from_object(object.ptr(), &t) != 0) chain_export(name);
  out.view = view_of(t, name);
  refuse_negation(out.view, object, name);
  out.owner = nb::borrow(object);
  if (out.view.device.kind == DeviceKind::cuda && table->current_stream != nullptr) {
    void* current = nullptr;
    if (table->current_stream(dlpack::kCuda, out.view.device.index, &current) != 0) chain(name);
    out.stream = current;
  }
  return true;
}

/// NumPy's names of element types; those of ml_dtypes among them.
bool dtype_of_name(std::string_view text, DType& out) {
  static constexpr std::pair<std::string_view, DType> kRows[] = {
      {"float32", DType::f32},       {"float16", DType::f16},
      {"bfloat16", DType::bf16},     {"float8_e4m3fn", DType::e4m3},
      {"float8_e5m2", DType::e5m2},  {"int8", DType::i8},
      {"int32", DType::i32},         {"int64", DType::i64},
      {"uint8", DType::u8},          {"bool", DType::u8},
      {"float8_e8m0fnu", DType::u8}, {"float", DType::f32},
      {"half", DType::f16},          {"float4_e2m1fn_x2", DType::u8},
  };
  for (const auto& [key, value] : kRows) {
    if (text == key) {
      out = value;
      return true;
    }
  }
  return false;
}

/// numpy.ndarray, once NumPy is imported.
PyTypeObject* ndarray_type() {
  static PyObject* type = nullptr;
  if (type == nullptr) {
    const nb::object modules = nb::borrow(PyImport_GetModuleDict());
    PyObject* module = PyDict_GetItemString(modules.ptr(), "numpy");
    if (module != nullptr) type = attribute(module, "ndarray").release().ptr();
  }
  return reinterpret_cast<PyTypeObject*>(type);
}

/// `__array_struct__` says what `__array_interface__` does, in C: the short way for NumPy arrays of types that have a letter.
bool from_struct(Array& out, nb::handle object, std::string_view name, Access access) {
  struct Interface {
    int two, rank;
    char kind;
    int item_bytes, flags;
    const std::intptr_t *shape, *strides;
    void* data;
    PyObject* description;
  };
  constexpr int kNotSwapped = 0x200, kWritable = 0x400;
  if (Py_TYPE(object.ptr()) != ndarray_type()) return false;
  static PyObject* key = PyUnicode_InternFromString("__array_struct__");
  const nb::object capsule = attribute(object, key);
  const auto* facts = capsule.is_valid() ? static_cast<const Interface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr)) : nullptr;
  if (facts == nullptr) PyErr_Clear();
  if (facts == nullptr || facts->two != 2 || (facts->flags & kNotSwapped) == 0) return false;
  struct Row {
    char kind;
    int item_bytes;
    DType dtype;
  };
  static constexpr Row kRows[] = {{'f', 4, DType::f32}, {'f', 2, DType::f16}, {'i', 4, DType::i32}, {'i', 8, DType::i64},
                                  {'i', 1, DType::i8},  {'u', 1, DType::u8},  {'b', 1, DType::u8}};
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.kind == facts->kind && r.item_bytes == facts->item_bytes; });
  if (row == std::end(kRows)) return false;
  out.read_only = (facts->flags & kWritable) == 0;
  if (out.read_only && access == Access::write) bad_value(name, "is a read-only array; an output must be writable");
  set_rank(out.view, facts->rank, name);
  for (int i = 0; i < facts->rank; ++i) {
    if (facts->strides[i] % facts->item_bytes != 0) return false;
    out.view.shape[i] = facts->shape[i];
    out.view.strides[i] = facts->strides[i] / facts->item_bytes;
  }
  out.view.dtype = row->dtype;
  out.view.data = facts->data;
  out.owner = nb::borrow(object);
  out.library = ArrayLibrary::numpy;
  return true;
}

/// numpy.ma.MaskedArray, which its protocol exports without the mask.
bool is_masked(nb::handle object) {
  const nb::object module = nb::steal(PyImport_GetModule(nb::str("numpy.ma").ptr()));
  return module.is_valid() && PyObject_IsInstance(object.ptr(), module.attr("MaskedArray").ptr()) == 1;
}

/// `__array_interface__` and `__cuda_array_interface__` say the same things in the same words.
bool from_interface(Array& out, nb::handle object, const char* protocol, Device where, std::string_view name, Access access) {
  const nb::object found = attribute(object, protocol);
  if (!found.is_valid() || !nb::isinstance<nb::dict>(found)) return false;
  if (is_masked(object)) bad_value(name, "is a masked array, whose mask would be lost; give array.filled() or array.data");
  const auto facts = nb::borrow<nb::dict>(found);
  const auto data = nb::cast<std::pair<std::uintptr_t, bool>>(facts["data"]);
  const auto type = nb::cast<std::string>(facts["typestr"]);
  if (type.empty()) throw nb::cast_error();
  TensorView& view = out.view;
  out.read_only = data.second;
  if (out.read_only && access == Access::write) bad_value(name, "is a read-only array; an output must be writable");
  // Element types that the protocol has no letter for are in the array's dtype.
  const nb::object dtype_object = attribute(object, "dtype");
  const nb::object dtype_name = dtype_object.is_valid() ? attribute(dtype_object, "name") : nb::object();
  const std::string dtype_text = dtype_name.is_valid() ? nb::cast<std::string>(nb::str(dtype_name)) : type.substr(1);
  static constexpr std::pair<std::string_view, DType> kLetters[] = {{"f4", DType::f32}, {"f2", DType::f16}, {"i1", DType::i8},
                                                                    {"i4", DType::i32}, {"i8", DType::i64}, {"u1", DType::u8},
                                                                    {"b1", DType::u8}};
  const auto* letter = std::find_if(std::begin(kLetters), std::end(kLetters), [&](const auto& row) { return type.substr(1) == row.first; });
  if (type[0] == '>') bad_value(name, "has big-endian elements; use the machine's byte order");
  if (letter != std::end(kLetters)) {
    view.dtype = letter->second;
  } else if (!dtype_of_name(dtype_text, view.dtype)) {
    bad_value(name,
              fmt::format("has dtype {}; supported are float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int32, int64, uint8 "
                          "and bool",
                          dtype_text));
  }
  const auto shape = nb::cast<nb::tuple>(facts["shape"]);
  set_rank(view, static_cast<std::int64_t>(shape.size()), name);
  for (int i = 0; i < view.rank; ++i) view.shape[i] = nb::cast<std::int64_t>(shape[i]);
  const nb::object strides = facts.contains("strides") ? nb::object(facts["strides"]) : nb::none();
  if (strides.is_none()) {
    set_dense_strides(view);
  } else {
    const std::int64_t size = bytes(view.dtype, 1);
    if (nb::len(strides) != static_cast<std::size_t>(view.rank)) throw nb::cast_error();
    for (int i = 0; i < view.rank; ++i) {
      const auto byte_stride = nb::cast<std::int64_t>(strides[i]);
      if (byte_stride % size != 0)
        bad_value(name, fmt::format("has a stride of {} bytes in dimension {}; strides must be multiples of the element's {}", byte_stride,
                                    i, size));
      view.strides[i] = byte_stride / size;
    }
  }
  view.data = reinterpret_cast<void*>(data.first);
  view.device = where;
  out.owner = nb::borrow(object);
  if (where.kind == DeviceKind::cpu) out.library = ArrayLibrary::numpy;
  if (where.kind == DeviceKind::cuda && facts.contains("stream") && !nb::object(facts["stream"]).is_none())
    out.stream = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(facts["stream"]));
  return true;
}

/// The device that memory behind `__cuda_array_interface__` is on: what the object says, else the first.
Device cuda_device_of(nb::handle object) {
  const nb::object owner = attribute(object, "device");
  if (!owner.is_valid()) return {DeviceKind::cuda, 0};
  const nb::object id = attribute(owner, "id");
  int index = 0;
  if (id.is_valid() && nb::try_cast<int>(id, index)) return {DeviceKind::cuda, index};
  return {DeviceKind::cuda, 0};
}

bool from_capsule(Array& out, nb::handle object, std::string_view name, Access access) {
  const nb::object method = attribute(object, "__dlpack__");
  if (!method.is_valid()) return false;
  const auto where = nb::cast<std::pair<int, int>>(object.attr("__dlpack_device__")());
  nb::dict arguments;
  arguments["max_version"] = nb::make_tuple(1, 1);
  // -1: the exporter orders nothing; the caller's stream is the one to work on.
  if (where.first == dlpack::kCuda) arguments["stream"] = nb::int_(-1);
  nb::object capsule;
  try {
    capsule = method(**arguments);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    PyDict_DelItemString(arguments.ptr(), "max_version");
    capsule = method(**arguments);
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* managed = static_cast<const dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1) bad_value(name, fmt::format("exports DLPack {}; version 1 is supported", managed->version.major));
    out.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    if (out.read_only && access == Access::write) bad_value(name, "is a read-only array; an output must be writable");
    out.view = view_of(managed->tensor, name);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    out.view = view_of(static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor, name);
  } else {
    bad_value(name, "has a `__dlpack__` that does not return a DLPack capsule");
  }
  out.owner = std::move(capsule);  // not consumed: its own destructor frees it
  return true;
}

/// A scalar of NumPy: the memory that its `__array_interface__` tells of is gone before it can be read, so that it is copied.
bool from_scalar(Array& out, nb::handle object, std::string_view name, Access access) {
  if (ndarray_type() == nullptr) return false;
  static PyObject* generic = nb::object(nb::module_::import_("numpy").attr("generic")).release().ptr();
  if (PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(generic)) == 0) return false;
  if (access == Access::write) bad_value(name, "is a scalar; an output must be an array");
  const nb::object copied = nb::module_::import_("numpy").attr("asarray")(object);
  return from_struct(out, copied, name, access) || from_interface(out, copied, "__array_interface__", {}, name, access);
}

bool from_any(Array& out, nb::handle object, std::string_view name, Access access) {
  if (from_struct(out, object, name, access) || from_exchange(out, object, name) || from_scalar(out, object, name, access)) return true;
  try {
    return from_interface(out, object, "__array_interface__", {}, name, access) ||
           from_interface(out, object, "__cuda_array_interface__", cuda_device_of(object), name, access) ||
           from_capsule(out, object, name, access);
  } catch (const nb::cast_error&) {
    throw nb::type_error(fmt::format("{}: its array protocol (`__array_interface__`, `__cuda_array_interface__` or `__dlpack__`) says what "
                                     "that protocol does not allow",
                                     name)
                             .c_str());
  }
}

}  // namespace

Array array(nb::handle object, std::string_view name, Access access) {
  Array out;
  if (from_any(out, object, name, access)) {
    out.type = nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
    check_places(out.view, name);
    // NumPy gives arrays without elements strides of 0, which would read as elements that share memory.
    if (out.view.numel() == 0) set_dense_strides(out.view);
    return out;
  }
  throw nb::type_error(fmt::format("{}: {} is no array; give a torch.Tensor, a numpy.ndarray, or an object with `__dlpack__` or "
                                   "`__cuda_array_interface__`",
                                   name, nb::repr(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())))).c_str())
                           .c_str());
}

bool is_dense(const TensorView& t) {
  std::int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    if (t.shape[i] > 1 && t.strides[i] != stride) return false;
    stride *= t.shape[i];
  }
  return true;
}

Array optional_array(nb::handle object, std::string_view name, Access access) {
  return object.is_none() ? Array{} : array(object, name, access);
}

DType dtype(nb::handle object, std::string_view name) {
  std::string text;
  if (nb::isinstance<nb::str>(object)) {
    text = nb::cast<std::string>(object);
  } else {
    // numpy.dtype has a name, numpy.float32 a __name__; str(torch.float32) is "torch.float32".
    nb::object found = attribute(object, "name");
    if (!found.is_valid() || !nb::isinstance<nb::str>(found)) found = attribute(object, "__name__");
    text = nb::cast<std::string>(found.is_valid() && nb::isinstance<nb::str>(found) ? found : nb::object(nb::str(object)));
  }
  if (text.starts_with("torch.")) text.erase(0, 6);
  DType out{};
  if (dtype_of_name(text, out)) return out;
  try {
    return dtype_from_name(text);
  } catch (const Error& error) {
    const std::string_view what = error.what();
    bad_value(name, what.substr(std::min(what.find(' ') + 1, what.size())));  // without the function's own name
  }
}

Device device(nb::handle object) {
  if (object.is_none()) return {};
  const auto text = nb::cast<std::string>(nb::str(object));
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceKind::cuda, 0};
  if (text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
      std::all_of(text.begin() + 5, text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return {DeviceKind::cuda, std::stoi(text.substr(5))};
  bad_value("device", fmt::format("\"{}\" is unknown; use \"cpu\", \"cuda\" or \"cuda:N\"", text));
}

void* stream(nb::handle given, const Array& array) {
  if (given.is_none()) return array.stream.value_or(nullptr);
  std::uintptr_t handle = 0;
  nb::object found = PyLong_CheckExact(given.ptr()) != 0 ? nb::borrow(given) : attribute(given, "cuda_stream");
  if (!found.is_valid()) {
    // (version, handle)
    const nb::object protocol = attribute(given, "__cuda_stream__");
    if (protocol.is_valid()) found = nb::borrow(nb::object(PyCallable_Check(protocol.ptr()) != 0 ? protocol() : protocol)[1]);
  }
  if (!found.is_valid() || !nb::try_cast<std::uintptr_t>(found, handle))
    throw nb::type_error("stream: give a CUstream as an int (not negative, 64 bits), or an object with `cuda_stream` or `__cuda_stream__`");
  return reinterpret_cast<void*>(handle);
}

}  // namespace girih::python
