// Expr as Python has it: operators mean what they mean in Python (`/` divides numbers, `//` floors integers), and what can have no meaning
// for an expression (`if`, `and`, an index into a list) raises an error that says what to write. Variables, parameters and functions.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bind.h"
#include "expr.h"
#include "girih/variant.h"
#include "variant/node.h"

namespace girih::python {
namespace {

[[noreturn]] void raise_type(const std::string& text) { throw nb::type_error(text.c_str()); }

constexpr const char* kNoTruth =
    "an expression has no truth value: it stands for every query and key at once. Write (a) & (b), (a) | (b), ~(a) in place of and, or, "
    "not; girih.select(condition, a, b) in place of if and else; (a <= b) & (b <= c) in place of a <= b <= c; girih.min and girih.max in "
    "place of min and max";
constexpr const char* kNoNumber =
    "an expression is no Python number: use girih.exp, log, tanh, sqrt, rsqrt, sigmoid, abs, min, max in place of functions of math and "
    "numpy";
constexpr const char* kNoIndex =
    "an expression cannot index a list, range or tensor: declare the table as a parameter, say table = girih.Array(\"i32\") "
    "(girih.array(\"table\", \"i32\") outside a traced function), and give its values with params={\"table\": ...}";

/// "number", "integer", "boolean" or Python's float, int, bool.
ExprType type_of(nb::handle type) {
  const auto is = [&](PyTypeObject& known) { return type.ptr() == reinterpret_cast<PyObject*>(&known); };
  const std::string text = nb::isinstance<nb::str>(type) ? nb::cast<std::string>(type) : std::string();
  if (text == "number" || is(PyFloat_Type)) return ExprType::number;
  if (text == "integer" || is(PyLong_Type)) return ExprType::integer;
  if (text == "boolean" || is(PyBool_Type)) return ExprType::boolean;
  throw nb::value_error(("type: " + std::string(nb::repr(type).c_str()) +
                         " is unknown; use \"number\" (float) or \"integer\" (int), of "
                         "cuda_code also \"boolean\" (bool)")
                            .c_str());
}

Expr true_divide(const Expr& a, const Expr& b) { return number_of(a) / number_of(b); }

Expr floor_divide(const Expr& a, const Expr& b) {
  if (a.type() != ExprType::integer || b.type() != ExprType::integer)
    raise_type("operator// takes integers; there is no floor of numbers: divide them by /");
  return a / b;
}

template <typename F>
void bind_binary(nb::class_<Expr>& cls, const char* name, const char* reflected, F op, const char* doc = nullptr) {
  cls.def(
      name, [op](const Expr& a, const ExprLike& b) { return in_python_words([&] { return op(a, expr(b)); }); }, nb::is_operator(),
      nb::arg("other").none(), doc == nullptr ? "" : doc);
  if (reflected != nullptr)
    cls.def(
        reflected, [op](const Expr& a, const ExprLike& b) { return in_python_words([&] { return op(expr(b), a); }); }, nb::is_operator(),
        nb::arg("other").none(), doc == nullptr ? "" : doc);
}

/// For type checkers the result is Any: a subclass of object may return nothing else in place of bool.
template <typename F>
void bind_equality(nb::class_<Expr>& cls, const char* name, F op, const nb::sig& signature) {
  cls.def(
      name, [op](const Expr& a, const ExprLike& b) { return in_python_words([&] { return op(a, expr(b)); }); }, nb::is_operator(),
      nb::arg("other").none(), signature);
}

void bind_expr(nb::module_& m) {
  nb::class_<Expr> cls(
      m, "Expr",
      "A value that attention computes for a query and a key (or an element), as an expression: made from variables (q_pos(), kv_pos(),\n"
      "score(), ...), parameters (scalar(), array(), bits()) and Python numbers by operators and functions. Immutable; building one\n"
      "computes nothing.\n\n"
      "Types: \"integer\" (64-bit), \"number\" (f32), \"boolean\". Integers and numbers mix to numbers; comparisons of integers are "
      "exact.\n"
      "`/` divides numbers, `//` and `%` are those of Python on integers (by 0: 0). Conditions combine by & | ~, with parentheses round\n"
      "comparisons: (kv_pos <= q_pos) & (q_pos - kv_pos < 1024).");
  cls.def(
      "__init__", [](Expr* self, const ExprLike& value) { new (self) Expr(expr(value)); }, nb::arg("value").none(),
      "A constant: a bool, int or float, or a scalar of NumPy or PyTorch.");
  bind_binary(cls, "__add__", "__radd__", [](const Expr& a, const Expr& b) { return a + b; });
  bind_binary(cls, "__sub__", "__rsub__", [](const Expr& a, const Expr& b) { return a - b; });
  bind_binary(cls, "__mul__", "__rmul__", [](const Expr& a, const Expr& b) { return a * b; });
  bind_binary(cls, "__truediv__", "__rtruediv__", true_divide, "Division of numbers; integers become numbers.");
  bind_binary(cls, "__floordiv__", "__rfloordiv__", floor_divide, "Floor division of integers; x // 0 is 0.");
  bind_binary(
      cls, "__mod__", "__rmod__", [](const Expr& a, const Expr& b) { return a % b; }, "a - b * (a // b) of integers; x % 0 is 0.");
  bind_binary(cls, "__lt__", nullptr, [](const Expr& a, const Expr& b) { return a < b; });
  bind_binary(cls, "__le__", nullptr, [](const Expr& a, const Expr& b) { return a <= b; });
  bind_binary(cls, "__gt__", nullptr, [](const Expr& a, const Expr& b) { return a > b; });
  bind_binary(cls, "__ge__", nullptr, [](const Expr& a, const Expr& b) { return a >= b; });
  bind_equality(
      cls, "__eq__", [](const Expr& a, const Expr& b) { return a == b; },
      nb::sig("def __eq__(self, other: girih._typing.ExprLike) -> typing.Any"));
  bind_equality(
      cls, "__ne__", [](const Expr& a, const Expr& b) { return a != b; },
      nb::sig("def __ne__(self, other: girih._typing.ExprLike) -> typing.Any"));
  bind_binary(cls, "__and__", "__rand__", [](const Expr& a, const Expr& b) { return a & b; });
  bind_binary(cls, "__or__", "__ror__", [](const Expr& a, const Expr& b) { return a | b; });
  const auto unary = [&](const char* name, Expr (*op)(Expr)) {
    cls.def(name, [op](const Expr& a) { return in_python_words([&] { return op(a); }); });
  };
  unary("__neg__", [](Expr a) { return -std::move(a); });
  unary("__pos__", [](Expr a) { return a; });
  unary("__abs__", [](Expr a) { return abs(std::move(a)); });
  unary("__invert__", [](Expr a) { return !std::move(a); });
  cls.def(
      "__bool__", [](const Expr&) -> bool { raise_type(kNoTruth); }, nb::sig("def __bool__(self) -> typing.NoReturn"));
  cls.def(
      "__float__", [](const Expr&) -> double { raise_type(kNoNumber); }, nb::sig("def __float__(self) -> typing.NoReturn"));
  cls.def(
      "__int__", [](const Expr&) -> int { raise_type(kNoNumber); }, nb::sig("def __int__(self) -> typing.NoReturn"));
  cls.def(
      "__index__", [](const Expr&) -> int { raise_type(kNoIndex); }, nb::sig("def __index__(self) -> typing.NoReturn"));
  cls.def("__repr__", [](const Expr& self) { return text_of(self); });
  cls.def("__copy__", [](const Expr& self) { return self; });
  cls.def(
      "__deepcopy__", [](const Expr& self, nb::handle) { return self; }, nb::arg("memo"));
  cls.def_prop_ro(
      "type", [](const Expr& self) { return std::string(variant::name(self.type())); }, "\"boolean\", \"integer\" or \"number\"");
  // == makes an expression, so no dict could find one.
  cls.def(
      "__hash__", [](const Expr&) -> Py_hash_t { raise_type("unhashable type: 'Expr' (== of expressions makes an expression)"); },
      nb::sig("def __hash__(self) -> typing.NoReturn"));
  cls.attr("__array_ufunc__") = nb::none();  // numpy.float32(2) * e is for Expr to compute
}

void bind_variables(nb::module_& m) {
  const auto variable = [&](const char* name, Expr (*make)(), const char* doc) { m.def(name, make, doc); };
  variable("score", score, "number: q . k * sm_scale (natural units, before any hook)");
  variable("q_pos", q_pos, "integer: logical position of the query row's token");
  variable("kv_pos", kv_pos, "integer: logical position of the key");
  variable("q_idx", q_idx, "integer: index of the token within its request's query rows, from 0");
  variable("q_len", q_len, "integer: query rows of the request");
  variable("kv_len", kv_len, "integer: logical KV length of the request");
  variable("request", request, "integer: index of the request in the batch");
  variable("q_head", q_head, "integer: query head");
  variable("kv_head", kv_head, "integer: KV head");
  variable("q_row", q_row, "integer: row of the token in the query tensor (all requests)");
  variable("x", x, "number: the element that a transform (query, key, value, output) maps");
  variable("dim", dim, "integer: the element's index within the head");
  variable("mean_square", mean_square, "number: mean of x*x over the head (for QK-norm)");
}

void bind_functions(nb::module_& m) {
  m.def(
      "select",
      [](const ExprLike& condition, const ExprLike& if_true, const ExprLike& if_false) {
        return in_python_words([&] { return select(expr(condition), expr(if_true), expr(if_false)); });
      },
      nb::arg("condition").none(), nb::arg("if_true").none(), nb::arg("if_false").none(),
      "`if_true` where the condition holds, else `if_false`.");
  const auto binary = [&](const char* name, Expr (*op)(Expr, Expr), const char* doc) {
    m.def(
        name, [op](const ExprLike& a, const ExprLike& b) { return in_python_words([&] { return op(expr(a), expr(b)); }); }, nb::arg("a"),
        nb::arg("b"), doc);
  };
  binary(
      "min", [](Expr a, Expr b) { return min(std::move(a), std::move(b)); }, "The smaller of two expressions.");
  binary(
      "max", [](Expr a, Expr b) { return max(std::move(a), std::move(b)); }, "The larger of two expressions.");
  const auto unary = [&](const char* name, Expr (*op)(Expr), const char* doc) {
    m.def(
        name, [op](const ExprLike& a) { return in_python_words([&] { return op(expr(a)); }); }, nb::arg("a").none(), doc);
  };
  unary(
      "abs", [](Expr a) { return abs(std::move(a)); }, "The magnitude; keeps the type.");
  unary(
      "exp", [](Expr a) { return exp(std::move(a)); }, "e to the power of a number.");
  unary(
      "log", [](Expr a) { return log(std::move(a)); }, "The natural logarithm.");
  unary(
      "tanh", [](Expr a) { return tanh(std::move(a)); }, "The hyperbolic tangent.");
  unary(
      "sqrt", [](Expr a) { return sqrt(std::move(a)); }, "The square root.");
  unary(
      "rsqrt", [](Expr a) { return rsqrt(std::move(a)); }, "1 / sqrt(a).");
  unary(
      "sigmoid", [](Expr a) { return sigmoid(std::move(a)); }, "1 / (1 + exp(-a)).");
}

/// What an array or bit parameter was declared as.
const variant::Node& node_of(const CudaArg& arg) { return *arg.value().node(); }

CudaArg cuda_arg(nb::handle arg) {
  if (nb::isinstance<Expr>(arg)) return CudaArg(nb::cast<Expr>(arg));
  if (nb::isinstance<ArrayParam>(arg)) return CudaArg(nb::cast<const ArrayParam&>(arg));
  if (nb::isinstance<BitsParam>(arg)) return CudaArg(nb::cast<const BitsParam&>(arg));
  if (nb::isinstance<nb::tuple>(arg) && nb::len(arg) == 2 && nb::isinstance<nb::str>(arg[0]))
    return CudaArg(nb::cast<std::string>(arg[0]), expr(nb::object(arg[1])));
  raise_type("args: each must be a variable, a parameter, an array, a bit array, or a pair (\"name\", expression)");
}

void bind_parameters(nb::module_& m) {
  m.def(
      "scalar",
      [](std::string name, const nb::object& type, const std::string& time) {
        return in_python_words([&] { return scalar(std::move(name), type_of(type), time_of(time)); });
      },
      nb::arg("name"), nb::arg("type") = "number", nb::arg("time") = "run",
      nb::sig("def scalar(name: str, type: str | type = 'number', time: str = 'run') -> Expr"),
      "A named scalar parameter: \"number\" (float) or \"integer\" (int). time=\"run\": its value comes with run() and may change between\n"
      "runs of a plan; \"plan\": it comes with plan() and serves proofs about the mask.");
  nb::class_<ArrayParam>(m, "ArrayParam", "A named one-dimensional array of f32, i32 or i64; an index outside it reads 0. See array().")
      .def(
          "__init__",
          [](ArrayParam* self, std::string name, const DTypeLike& type, const std::string& time) {
            new (self) ArrayParam(std::move(name), dtype(type, "dtype"), time_of(time));
          },
          nb::arg("name"), nb::arg("dtype") = "f32", nb::arg("time") = "run")
      .def(
          "__getitem__", [](const ArrayParam& self, const ExprLike& index) { return in_python_words([&] { return self[expr(index)]; }); },
          nb::arg("index").none(), "The element at an integer expression, a number (f32) or an integer (i32, i64).")
      .def_prop_ro("name", [](const ArrayParam& self) { return CudaArg(self).name(); })
      .def_prop_ro("dtype", [](const ArrayParam& self) { return std::string(name(node_of(CudaArg(self)).param_dtype)); })
      .def_prop_ro("time", [](const ArrayParam& self) { return name_of(node_of(CudaArg(self)).param_time); })
      .def("__repr__", [](const ArrayParam& self) {
        const CudaArg arg(self);
        return fmt::format("array(\"{}\", \"{}\", \"{}\")", arg.name(), name(node_of(arg).param_dtype), name_of(node_of(arg).param_time));
      });
  nb::class_<BitsParam>(m, "BitsParam", "A named array of bits, packed little-endian into uint8; a bit outside it reads false. See bits().")
      .def(
          "__init__",
          [](BitsParam* self, std::string name, const std::string& time) { new (self) BitsParam(std::move(name), time_of(time)); },
          nb::arg("name"), nb::arg("time") = "run")
      .def(
          "__getitem__", [](const BitsParam& self, const ExprLike& index) { return in_python_words([&] { return self[expr(index)]; }); },
          nb::arg("index").none(), "The bit at an integer expression, a boolean.")
      .def_prop_ro("name", [](const BitsParam& self) { return CudaArg(self).name(); })
      .def_prop_ro("time", [](const BitsParam& self) { return name_of(node_of(CudaArg(self)).param_time); })
      .def("__repr__", [](const BitsParam& self) {
        const CudaArg arg(self);
        return fmt::format("bits(\"{}\", \"{}\")", arg.name(), name_of(node_of(arg).param_time));
      });
  // Iterating would ask for elements 0, 1, ... without end.
  m.attr("ArrayParam").attr("__iter__") = nb::none();
  m.attr("BitsParam").attr("__iter__") = nb::none();
  m.def(
      "array",
      [](std::string name, const DTypeLike& type, const std::string& time) {
        return ArrayParam(std::move(name), dtype(type, "dtype"), time_of(time));
      },
      nb::arg("name"), nb::arg("dtype") = "f32", nb::arg("time") = "run",
      "A named one-dimensional array parameter of f32, i32 or i64: array(\"slopes\")[q_head()]. An index outside it reads 0.");
  m.def(
      "bits", [](std::string name, const std::string& time) { return BitsParam(std::move(name), time_of(time)); }, nb::arg("name"),
      nb::arg("time") = "run",
      "A named array of bits, packed little-endian into uint8 (numpy.packbits(mask, bitorder=\"little\")): bits(\"allowed\")[kv_pos()].\n"
      "A bit outside it reads false.");
  m.def(
      "cuda_code",
      [](const nb::object& type, std::string body, const nb::sequence& args, std::string name) {
        std::vector<CudaArg> list;
        for (nb::handle arg : args) list.push_back(cuda_arg(arg));
        return cuda_code(type_of(type), std::move(body), std::move(list), std::move(name));
      },
      nb::arg("type"), nb::arg("body"), nb::arg("args") = nb::tuple(), nb::kw_only(), nb::arg("name") = "cuda_code",
      nb::sig("def cuda_code(type: str | type, body: str, args: collections.abc.Sequence[Expr | ArrayParam | BitsParam | tuple[str, "
              "girih._typing.ExprLike]] = (), *, name: str = 'cuda_code') -> Expr"),
      "CUDA text in place of an expression, for what expressions cannot say; the CPU refuses it. `body` is the body of a function that\n"
      "gets `args` under their names (number: float, integer: i64, boolean: bool) and returns a `type` (\"number\", \"integer\",\n"
      "\"boolean\"). An argument is a variable or scalar parameter, an array or bit array (which the text indexes), or a pair\n"
      "(\"name\", expression). No barriers, shuffles or writes. Nothing is proven of a text; put known bounds round it:\n"
      "never_outside & (always_inside | cuda_code(...)).");
}

}  // namespace

void bind_expressions(nb::module_& m) {
  bind_expr(m);
  bind_variables(m);
  bind_parameters(m);
  bind_functions(m);
}

}  // namespace girih::python
