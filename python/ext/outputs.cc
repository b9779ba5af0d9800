// See outputs.h. Allocation goes through the array library's own functions (tensor.new_empty, numpy.empty) rather than the faster DLPack
// allocator, whose tensors have foreign storage: PyTorch's record_stream() passes over such, and a result that is used on another stream
// could be reused too early; nor can they be resized.
#include "outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

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
  PyObject* imported = PyImport_ImportModule("ml_dtypes");
  if (imported == nullptr) PyErr_Clear();
  const nb::object extension = nb::steal(imported);
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

nb::object call(PyObject* function, std::initializer_list<PyObject*> arguments) {
  PyObject* made = PyObject_Vectorcall(function, arguments.begin(), arguments.size(), nullptr);
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

bool has_new_empty(PyObject* object) {
  static PyObject* key = PyUnicode_InternFromString("new_empty");
  return object != nullptr && PyObject_HasAttr(object, key) != 0;
}

bool alike(const TensorView& like, Element element, std::span<const std::int64_t> shape) {
  return element != Element::boolean && element == element_of(like.dtype) && like.dtype != DType::u8 && is_dense(like) &&
         std::ranges::equal(shape, std::span(like.shape).first(static_cast<std::size_t>(like.rank)));
}

nb::object new_tensor(const Array& like, Element element, std::span<const std::int64_t> shape) {
  const Library& library = torch();
  PyObject* owner = like.owner.ptr();
  if (alike(like.view, element, shape)) return call(library.empty_like, {owner});
  static PyObject* method = PyUnicode_InternFromString("new_empty");
  static PyObject* keywords = nb::make_tuple("dtype").release().ptr();
  const nb::object size = tuple_of(shape);
  PyObject* arguments[] = {owner, size.ptr(), library.dtypes[static_cast<std::size_t>(element)]};
  PyObject* result = PyObject_VectorcallMethod(method, arguments, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

}  // namespace

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

Output new_array(const Array& like, Element element, std::span<const std::int64_t> shape, std::string_view name) {
  Output made;
  if (like.library == ArrayLibrary::numpy) {
    const Library& library = numpy();
    PyObject* type = library.dtypes[static_cast<std::size_t>(element)];
    if (type == nullptr) bad_value(name, fmt::format("NumPy has no bfloat16; install ml_dtypes, or give {}", name));
    made.object = call(library.empty, {tuple_of(shape).ptr(), type});
  } else if (has_new_empty(like.owner.ptr())) {
    made.object = new_tensor(like, element, shape);
  } else {
    bad_value(name, fmt::format("must be given, since {} arrays cannot be made here (torch.Tensor and numpy.ndarray can)",
                                nb::str(like.type.attr("__name__")).c_str()));
  }
  made.view = array(made.object, name, Access::write).view;
  return made;
}

Output output(nb::handle given, const Array& like, DType dtype, Shape shape, std::string_view name) {
  if (given.is_none()) return new_array(like, dtype, shape, name);
  Array found = array(given, name, Access::write);
  return {found.view, nb::borrow(given), std::move(found.owner)};
}

}  // namespace girih::python
