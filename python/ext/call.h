// One call of an operator from Python: arguments become views, what is not given is allocated in the library of the first array, the
// context and the stream are found, and the call runs without the GIL. Errors come out with the names that the Python caller wrote.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bind.h"
#include "girih/error.h"
#include "girih/quantize.h"
#include "girih/sampling.h"
#include "outputs.h"

namespace girih::python {

/// Several results, as type checkers see them.
using Two = nb::typed<nb::tuple, nb::object, nb::object>;
using Five = nb::typed<nb::tuple, nb::object, nb::object, nb::object, nb::object, nb::object>;

/// A name in the library's texts, and what Python callers know it as.
using Name = std::pair<std::string_view, std::string_view>;
using Names = std::span<const Name>;

/// How an output is quantised, as Python gives it: Quantization and the type of codes, which an array of bytes does not say.
struct QuantizationLike {
  DType dtype = DType::e4m3;
  QuantScale scale = QuantScale::none;
  nb::object scales = nb::none();
  float global_scale = 1.0F;
  bool swizzled = false;
};

class Call {
 public:
  /// `first` says on which device, in which library and on which stream the call works; all but the device can be overridden.
  Call(nb::handle first, std::string_view name, const Context* context, nb::handle stream);

  const TensorView& first() const { return first_.view; }
  const Context& context() const { return *context_; }
  void* stream() const { return stream_; }

  /// None gives an empty view.
  TensorView in(nb::handle object, std::string_view name, Access access = Access::read);
  /// `given`, or where it is None an array of `dtype` and `shape`. An array of bytes given for 8-bit codes is taken as them.
  Output out(nb::handle given, std::string_view name, DType dtype, std::span<const std::int64_t> shape);
  Output out(nb::handle given, std::string_view name, DType dtype, Shape shape) {
    return out(given, name, dtype, std::span<const std::int64_t>(shape.begin(), shape.size()));
  }
  /// The same of an array as `like`: its shape, dense.
  Output out_like(nb::handle given, std::string_view name, DType dtype, const TensorView& like) {
    return out(given, name, dtype, std::span<const std::int64_t>(like.shape.data(), static_cast<std::size_t>(like.rank)));
  }
  /// False: not wanted. True: made. Else the caller's.
  Output wanted(nb::handle given, std::string_view name, DType dtype, Shape shape);
  /// Flags of rows: bool arrays.
  Output flags(nb::handle given, std::string_view name, std::int64_t rows);

  /// A number, or an array [rows] or of one entry, which then is every row's.
  RowFloat row_float(nb::handle object, std::string_view name, std::int64_t rows);
  RowInt row_int(nb::handle object, std::string_view name, std::int64_t rows);
  /// Seeds may be any 64 bits.
  Random random(nb::handle seed, nb::handle offset);

  /// Codes of `dtype` for x (or x itself where dtype is of 4 bits: two to a byte) and the scales that go with them, allocated where they
  /// are computed and not given. `computed` says whether scales are an output.
  struct Quantized {
    Output codes{};
    Output scales{};
    bool computed = false;
    Quantization quantization{};
    /// The codes, or the pair (codes, scales) where the scales were computed.
    nb::object result() const;
  };
  /// Without `q`: an output of `dtype` (None: x's).
  Quantized quantized(const QuantizationLike* q, nb::handle dtype, nb::handle out, std::string_view name, const TensorView& x);

  template <typename F>
  void run(Names names, F&& operation) {
    try {
      const nb::gil_scoped_release released;
      std::forward<F>(operation)();
    } catch (const Error& error) {
      rethrow(error, names);
    }
  }

 private:
  [[noreturn]] static void rethrow(const Error& error, Names names);

  Array first_;
  nb::object context_object_;
  const Context* context_;
  void* stream_;
  std::vector<nb::object> kept_{};
};

/// Fails where a caller gave an array and, by `dtype_name`, another type than it has.
void check_type(const Output& output, nb::handle given, std::string_view name, nb::handle dtype, std::string_view dtype_name);

/// A view of 4-bit codes: the last extent counts codes, of which an array of bytes holds two each. `dim`: how many, where that is known.
TensorView as_codes(TensorView bytes, DType dtype, std::string_view name, std::int64_t dim = -1);

}  // namespace girih::python
