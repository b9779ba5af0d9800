// girih::Error as Python exceptions of the class that says the same, and errors that name an argument.
#include <fmt/format.h>

#include <new>

#include "bind.h"
#include "girih/error.h"

namespace girih::python {
namespace {

PyObject* class_of(Code code) {
  switch (code) {
    case Code::invalid_argument: return PyExc_ValueError;
    case Code::unsupported: return PyExc_NotImplementedError;
    case Code::out_of_memory: return PyExc_MemoryError;
    case Code::io: return PyExc_OSError;
    default: return PyExc_RuntimeError;
  }
}

}  // namespace

void bad_value(std::string_view name, std::string_view what) { throw nb::value_error(fmt::format("{}: {}", name, what).c_str()); }

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(class_of(error.code()), error.what());
    }
  });
}

}  // namespace girih::python
