// See call.h. Allocation goes through the array library's own functions (tensor.new_empty, numpy.empty) rather than the faster DLPack
// allocator, whose tensors have foreign storage: PyTorch's record_stream() passes over such, and a result that is used on another stream
// could be reused too early.
#include "call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "base/math.h"

namespace girih::python {
namespace {

struct ElementNames {
  const char* numpy;
  const char* torch;
};
constexpr std::array<ElementNames, 11> kElements = {{{"float32", "float32"},
                                                     {"float16", "float16"},
                                                     {"bfloat16", "bfloat16"},
                                                     {"float8_e4m3fn", "float8_e4m3fn"},
                                                     {"float8_e5m2", "float8_e5m2"},
                                                     {"int8", "int8"},
                                                     {"int32", "int32"},
                                                     {"int64", "int64"},
                                                     {"uint8", "uint8"},
                                                     {"bool_", "bool"},
                                                     {"float8_e8m0fnu", "float8_e8m0fnu"}}};

Element element_of(DType t) {
  switch (t) {
    case DType::f32: return Element::f32;
    case DType::f16: return Element::f16;
    case DType::bf16: return Element::bf16;
    case DType::e4m3: return Element::e4m3;
    case DType::e5m2: return Element::e5m2;
    case DType::i8: return Element::i8;
    case DType::i32: return Element::i32;
    case DType::i64: return Element::i64;
    default: return Element::u8;
  }
}

/// A library's objects that calls need, looked up once; kept until the process ends, as modules are.
struct Library {
  std::array<PyObject*, kElements.size()> dtypes{};
  PyObject* empty = nullptr;
  PyObject* empty_like = nullptr;
};

nb::object find(const nb::object& module, const char* key) {
  PyObject* found = PyObject_GetAttrString(module.ptr(), key);
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

/// float8 and bfloat16 of NumPy arrays are ml_dtypes'; without it 8-bit codes are uint8.
const Library& numpy() {
  static Library* library = nullptr;
  if (library != nullptr) return *library;
  auto made = std::make_unique<Library>();
  const nb::object module = nb::module_::import_("numpy");
  nb::object extension;
  PyObject* imported = PyImport_ImportModule("ml_dtypes");
  if (imported == nullptr) PyErr_Clear();
  extension = nb::steal(imported);
  for (std::size_t i = 0; i < kElements.size(); ++i) {
    nb::object found = find(module, kElements[i].numpy);
    if (!found.is_valid() && extension.is_valid()) found = find(extension, kElements[i].numpy);
    const auto element = static_cast<Element>(i);
    if (!found.is_valid() && element != Element::bf16) found = module.attr("uint8");
    if (found.is_valid()) made->dtypes[i] = module.attr("dtype")(found).release().ptr();
  }
  made->empty = nb::object(module.attr("empty")).release().ptr();
  library = made.release();
  return *library;
}

const Library& torch() {
  static Library* library = nullptr;
  if (library != nullptr) return *library;
  auto made = std::make_unique<Library>();
  const nb::object module = nb::module_::import_("torch");
  for (std::size_t i = 0; i < kElements.size(); ++i) {
    nb::object found = find(module, kElements[i].torch);
    if (!found.is_valid()) found = module.attr("uint8");
    made->dtypes[i] = found.release().ptr();
  }
  made->empty_like = nb::object(module.attr("empty_like")).release().ptr();
  library = made.release();
  return *library;
}

nb::object tuple_of(std::span<const std::int64_t> shape) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(shape.size()));
  if (tuple == nullptr) nb::raise_python_error();
  for (std::size_t i = 0; i < shape.size(); ++i) PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  return nb::steal(tuple);
}

bool is_dense(const TensorView& t) {
  std::int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (t.shape[at] != 1 && t.strides[at] != stride) return false;
    stride *= t.shape[at];
  }
  return true;
}

nb::object call(PyObject* function, std::initializer_list<PyObject*> arguments) {
  PyObject* made = PyObject_Vectorcall(function, arguments.begin(), arguments.size(), nullptr);
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

/// The calling thread's default context for a device; girih/_context.py keeps it. Found anew each time: a reference kept here would keep
/// contexts alive past the interpreter's end.
nb::object default_context(Device device) {
  static PyObject* module_name = PyUnicode_InternFromString("girih._context");
  static PyObject* function_name = PyUnicode_InternFromString("default_context");
  static PyObject* cpu = PyUnicode_InternFromString("cpu");
  nb::object module = nb::steal(PyImport_GetModule(module_name));
  if (!module.is_valid()) module = nb::module_::import_("girih._context");
  const nb::object function = nb::steal(PyObject_GetAttr(module.ptr(), function_name));
  if (!function.is_valid()) nb::raise_python_error();
  if (device == Device{}) return call(function.ptr(), {cpu});
  const nb::str text(name(device).c_str());
  return call(function.ptr(), {text.ptr()});
}

bool is_number(nb::handle object) { return PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr()); }

double number(nb::handle object, std::string_view name) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw nb::value_error(fmt::format("{}: is no number that a float holds", name).c_str());
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
  throw nb::value_error(fmt::format("{}: does not fit 64 bits", name).c_str());
}

/// One entry that is every row's.
void spread(TensorView& t, std::int64_t rows) {
  if (t.rank > 1 || (t.rank == 1 && t.shape[0] != 1)) return;
  t.rank = 1;
  t.shape[0] = rows;
  t.strides[0] = 0;
}

bool has_new_empty(PyObject* object) {
  static PyObject* key = PyUnicode_InternFromString("new_empty");
  return PyObject_HasAttr(object, key) != 0;
}

void erase(const Output& made) {
  if (made.view.device.kind == DeviceKind::cpu) {
    std::memset(made.view.data, 0, static_cast<std::size_t>(bytes(made.view.dtype, made.view.numel())));
  } else {
    made.object.attr("zero_")();
  }
}

}  // namespace

QuantScale scale_from_name(std::string_view text) {
  static constexpr std::array<std::string_view, 6> kNames = {"none", "tensor", "token", "block", "mx", "tile"};
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<QuantScale>(i);
  throw nb::value_error(fmt::format("scale: \"{}\" is unknown; known are none, tensor, token, block, mx, tile", text).c_str());
}

Call::Call(nb::handle first, std::string_view name, const Context* context, nb::handle stream)
    : first_(array(first, name)), context_(context), stream_(python::stream(stream, first_)) {
  if (context_ == nullptr) {
    default_context_ = default_context(first_.view.device);
    context_ = nb::cast<const Context*>(default_context_);
  }
}

TensorView Call::in(nb::handle object, std::string_view name, Access access) {
  if (object.is_none()) return {};
  Array given = array(object, name, access);
  kept_.push_back(std::move(given.owner));
  return given.view;
}

Output Call::make(std::string_view name, Element element, std::span<const std::int64_t> shape) {
  const TensorView& like = first_.view;
  PyObject* owner = first_.owner.ptr();
  const nb::object size = tuple_of(shape);
  nb::object made;
  if (first_.library == ArrayLibrary::numpy) {
    const Library& library = numpy();
    PyObject* type = library.dtypes[static_cast<std::size_t>(element)];
    if (type == nullptr) throw nb::value_error(fmt::format("{}: NumPy has no bfloat16; install ml_dtypes, or give {}", name, name).c_str());
    made = call(library.empty, {size.ptr(), type});
  } else if (has_new_empty(owner)) {
    const Library& library = torch();
    if (element != Element::boolean && element == element_of(like.dtype) && like.dtype != DType::u8 && is_dense(like) &&
        std::ranges::equal(shape, std::span(like.shape).first(static_cast<std::size_t>(like.rank)))) {
      made = call(library.empty_like, {owner});
    } else {
      static PyObject* method = PyUnicode_InternFromString("new_empty");
      static PyObject* keywords = nb::make_tuple("dtype").release().ptr();
      PyObject* arguments[] = {owner, size.ptr(), library.dtypes[static_cast<std::size_t>(element)]};
      PyObject* result = PyObject_VectorcallMethod(method, arguments, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
      if (result == nullptr) nb::raise_python_error();
      made = nb::steal(result);
    }
  } else {
    throw nb::type_error(fmt::format("{}: must be given, since arrays of {} cannot be made here", name,
                                     nb::repr(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(owner)))).c_str())
                             .c_str());
  }
  Output out{array(made, name, Access::write).view, std::move(made)};
  return out;
}

Output Call::out(nb::handle given, std::string_view name, DType dtype, std::span<const std::int64_t> shape) {
  const bool packed = bits(dtype) == 4 && !shape.empty();
  if (given.is_none()) {
    if (packed) {
      std::vector<std::int64_t> halved(shape.begin(), shape.end());
      halved.back() = ceil_div(halved.back(), 2);
      Output made = make(name, Element::u8, halved);
      made.view = as_codes(made.view, dtype, name, shape.back());
      return made;
    }
    Output made = make(name, element_of(dtype), shape);
    made.view.dtype = dtype;
    return made;
  }
  Array array = python::array(given, name, Access::write);
  if (packed) {
    array.view = as_codes(array.view, dtype, name, shape.back());
  } else if (bits(dtype) == 8 && array.view.dtype == DType::u8) {
    array.view.dtype = dtype;
  }
  kept_.push_back(std::move(array.owner));
  return {array.view, nb::borrow(given)};
}

Output Call::wanted(nb::handle given, std::string_view name, DType dtype, Shape shape) {
  if (given.is_none() || given.ptr() == Py_False) return {};
  return out(given.ptr() == Py_True ? nb::handle(Py_None) : given, name, dtype, shape);
}

Output Call::flags(nb::handle given, std::string_view name, std::int64_t rows) {
  if (given.is_none() || given.ptr() == Py_False) return {};
  if (given.ptr() != Py_True) return out(given, name, DType::u8, {rows});
  return make(name, Element::boolean, std::span(&rows, 1));
}

RowFloat Call::row_float(nb::handle object, std::string_view name, std::int64_t rows) {
  if (is_number(object)) return static_cast<float>(number(object, name));
  TensorView t = in(object, name);
  if (t.rank == 0 && t.device.kind == DeviceKind::cpu) return static_cast<float>(number(object, name));
  spread(t, rows);
  return t;
}

RowInt Call::row_int(nb::handle object, std::string_view name, std::int64_t rows) {
  if (is_number(object)) return integer(object, name, false);
  TensorView t = in(object, name);
  if (t.rank == 0 && t.device.kind == DeviceKind::cpu) return integer(object, name, false);
  spread(t, rows);
  return t;
}

Random Call::random(nb::handle seed, nb::handle offset) {
  const auto take = [this](nb::handle object, std::string_view name) -> RowInt {
    if (is_number(object)) return integer(object, name, true);
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
  if (!dtype.is_none()) throw nb::value_error("dtype: is given beside a quantisation, which has one of its own; leave it out");
  Quantization& args = result.quantization;
  args.scale = q->scale;
  args.global_scale = q->global_scale;
  args.swizzled = q->swizzled;
  result.computed = q->scale != QuantScale::none && q->scale != QuantScale::tensor;
  if (!result.computed || !q->scales.is_none() || x.rank < 2) {
    args.scales = in(q->scales, "scales");
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
  result.scales = make("scales", element, shape);
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
    throw nb::value_error(
        fmt::format("{}: is {}, but {} is {}; leave one out", dtype_name, girih::name(type), name, girih::name(output.view.dtype)).c_str());
}

TensorView as_codes(TensorView bytes, DType dtype, std::string_view name, std::int64_t dim) {
  if (bytes.dtype != DType::u8)
    throw nb::value_error(fmt::format("{}: is {}; 4-bit codes are uint8 arrays, two codes a byte", name, girih::name(bytes.dtype)).c_str());
  bytes.dtype = dtype;
  if (bytes.rank == 0) return bytes;
  const auto last = static_cast<std::size_t>(bytes.rank - 1);
  if (bytes.shape[last] > 1 && bytes.strides[last] != 1)
    throw nb::value_error(
        fmt::format("{}: has stride {} in its last dimension; rows of 4-bit codes are dense", name, bytes.strides[last]).c_str());
  const std::int64_t codes = bytes.shape[last] * 2;
  bytes.shape[last] = dim >= 0 && ceil_div(dim, 2) == bytes.shape[last] ? dim : codes;
  for (std::size_t i = 0; i < last; ++i) bytes.strides[i] *= 2;
  bytes.strides[last] = 1;
  return bytes;
}

}  // namespace girih::python
