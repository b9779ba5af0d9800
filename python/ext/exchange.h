// How PyTorch's tensors cross without a Python call, and how outputs are made by the library that the inputs come from.
#pragma once

#include <initializer_list>

#include "bind.h"
#include "dlpack_abi.h"

namespace girih::python {

/// The DLPack exchange table of `object`'s class; null where it has none of version 1.
const dlpack::Exchange* exchange_of(nb::handle object);

/// A dense array like `like` (same library, same device), its elements not initialised: torch.empty or numpy.empty. For arrays of other
/// libraries throws ValueError that tells to give `name`.
Array empty_like(nb::handle like, const Array& like_array, DType dtype, std::initializer_list<std::int64_t> shape, std::string_view name);

/// An array that a call returns: as the caller gave it, or made.
struct Made {
  Array array{};
  nb::object object = nb::none();
};

/// `out` where it was given, else an array as empty_like() makes.
Made output(nb::handle out, nb::handle like, const Array& like_array, DType dtype, std::initializer_list<std::int64_t> shape,
            std::string_view name);

}  // namespace girih::python
