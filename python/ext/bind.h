// What the files of the extension share: its parts, and how Python objects become the library's arguments.
// Each bind_X declares what include/girih/X.h has, with the same names; defaults and docstrings are for Python readers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string_view>

#include "girih/context.h"
#include "girih/tensor.h"

namespace girih::python {

namespace nb = nanobind;

/// Throws ValueError("name: what"): all that is wrong with an argument is said so.
[[noreturn]] void bad_value(std::string_view name, std::string_view what);

void bind_errors(nb::module_& m);
void bind_context(nb::module_& m);
void bind_variant(nb::module_& m);
void bind_show(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_merge(nb::module_& m);
void bind_page(nb::module_& m);
void bind_info(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_norm(nb::module_& m);
void bind_activation(nb::module_& m);
void bind_rotation(nb::module_& m);
void bind_rope_append(nb::module_& m);
void bind_sampling(nb::module_& m);

/// Anything that array() takes; how it is called in signatures.
class ArrayLike : public nb::object {
  static bool any(nb::handle) { return true; }
  NB_OBJECT_DEFAULT(ArrayLike, nb::object, "girih._typing.ArrayLike", any)
};
/// What dtype() takes.
class DTypeLike : public nb::object {
  static bool any(nb::handle) { return true; }
  NB_OBJECT_DEFAULT(DTypeLike, nb::object, "girih._typing.DTypeLike", any)
};
/// What stream() takes, or None.
class StreamLike : public nb::object {
  static bool any(nb::handle) { return true; }
  NB_OBJECT_DEFAULT(StreamLike, nb::object, "girih._typing.StreamLike", any)
};

/// Whose arrays they are, as far as making more of them needs to know.
enum class ArrayLibrary : std::uint8_t { other, numpy };

/// A caller's tensor. Whoever queues work that outlives the call keeps `owner` alive, as for any array of the caller's own library.
struct Array {
  TensorView view{};
  nb::object owner{};             ///< the object, or the capsule that its memory belongs to
  nb::handle type{};              ///< the object's class, as long as the object lives
  std::optional<void*> stream{};  ///< CUDA: the stream on which its library works now, where that is known
  bool read_only = false;
  ArrayLibrary library = ArrayLibrary::other;
};

enum class Access { read, write };

/// The memory behind `object`: a tensor class with a DLPack exchange table (PyTorch from 2.10), a NumPy array (also of ml_dtypes), an
/// object with `__cuda_array_interface__` or `__dlpack__`. Nothing is copied, nothing is waited for. bool becomes u8, packed fp4 and e8m0
/// become u8. Throws TypeError for what is none of these and ValueError (naming `name`) for a dtype, rank, byte order, extent, misplaced
/// element or read-only array that does not fit: what it returns can be read where its extents and strides say.
Array array(nb::handle object, std::string_view name, Access access = Access::read);
/// Row-major without gaps.
bool is_dense(const TensorView& t);
/// None gives an empty view, which is how the library's functions say "not given".
Array optional_array(nb::handle object, std::string_view name, Access access = Access::read);

/// "bf16", "bfloat16", torch.bfloat16, numpy.float32, ...
DType dtype(nb::handle object, std::string_view name);

/// "cpu", "cuda", "cuda:1", a torch.device, or None (the CPU).
Device device(nb::handle object);

/// `given`, or where it is None the calling thread's default context for `device`; the caller keeps the object.
nb::object context_object(nb::handle given, Device device);
const Context& context_of(nb::handle object);

/// The stream for a call on `array`'s device: the one given (an int, or an object with `cuda_stream` or `__cuda_stream__`), else the one
/// that the array's library works on, else the default stream.
void* stream(nb::handle given, const Array& array);

}  // namespace girih::python
