// Arrays that a call returns: as the caller gave them, or made by the library that the inputs come from.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "bind.h"

namespace girih::python {

using Shape = std::initializer_list<std::int64_t>;

/// What arrays are made of: the library's types, and two that it takes as bytes.
enum class Element : std::uint8_t { f32, f16, bf16, e4m3, e5m2, i8, i32, i64, u8, boolean, e8m0 };

/// u8 for 4-bit types, whose codes lie in bytes.
Element element_of(DType t);

/// An array that a call returns.
struct Output {
  TensorView view{};
  nb::object object = nb::none();
  nb::object owner{};  ///< what its memory belongs to, where that is not `object`
};

/// A dense array in the library and on the device of `like`, its elements not initialised. For libraries other than PyTorch and NumPy
/// throws ValueError that tells to give `name`.
Output new_array(const Array& like, Element element, std::span<const std::int64_t> shape, std::string_view name);
inline Output new_array(const Array& like, DType dtype, Shape shape, std::string_view name) {
  return new_array(like, element_of(dtype), std::span(shape.begin(), shape.size()), name);
}

/// `given` for writing, else a new array.
Output output(nb::handle given, const Array& like, DType dtype, Shape shape, std::string_view name);

}  // namespace girih::python
