// Python values as expressions and parameters of a variant, and expressions as text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bind.h"
#include "girih/error.h"
#include "girih/variant.h"
#include "variant/program.h"

namespace girih::python {

/// What expr() takes.
class ExprLike : public nb::object {
  static bool any(nb::handle) { return true; }
  NB_OBJECT_DEFAULT(ExprLike, nb::object, "girih._typing.ExprLike", any)
};

/// An Expr as it is; bool, int, float and scalars of NumPy and PyTorch as constants. Throws TypeError for anything else, with what to write
/// instead, and ValueError for an int beyond 64 bits and a float beyond f32.
Expr expr(nb::handle value);

/// An integer as a number.
Expr number_of(const Expr& e);

/// As Python would spell it: "(kv_pos <= q_pos) & (q_pos - kv_pos < 1024)". Long texts end in "...".
std::string text_of(const Expr& e);

/// A text of the library with C++'s operators as Python's.
std::string python_words(std::string text);

/// "run" or "plan".
ParamTime time_of(const std::string& text);
const char* name_of(ParamTime time);

/// Runs `make`; texts of its errors name C++'s operators, Python's negation is ~.
template <typename F>
auto in_python_words(F&& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw Error(error.code(), python_words(error.what()));
  }
}

void bind_expressions(nb::module_& m);

/// {name: number | array} as the values that the library takes, for a variant whose parameters are known. Numbers go where the variant
/// declares them; a list becomes an array of the declared type. Names that the variant does not have are passed on, so that the library
/// refuses them in its own words. Keeps the arrays alive.
class ParamValues {
 public:
  /// `given`: a dict or None. `argument`: its name in messages.
  ParamValues(nb::handle given, std::span<const variant::ParamInfo> declared, std::string_view argument = "params");
  std::span<const ParamValue> values() const { return values_; }
  const std::vector<Array>& arrays() const { return arrays_; }

 private:
  std::vector<ParamValue> values_;
  std::vector<nb::object> keys_;  // own the names' text
  std::vector<Array> arrays_;
};

}  // namespace girih::python
