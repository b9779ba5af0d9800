// Expressions and variants for Python: operators mean what they mean in Python (`/` divides numbers, `//` floors integers), and what can
// have no meaning for an expression (`if`, `and`, an index into a list) raises an error that says what to write. The tracing of functions
// is girih/_variant.py; pictures are girih/_show.py.
#include "girih/variant.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bind.h"
#include "expr.h"
#include "variant/node.h"
#include "variant/program.h"

namespace girih::python {
namespace {

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

[[noreturn]] void raise_type(const std::string& text) { throw nb::type_error(text.c_str()); }

ParamTime time_of(const std::string& text) {
  if (text == "run") return ParamTime::run;
  if (text == "plan") return ParamTime::plan;
  throw nb::value_error(("time: \"" + text +
                         "\" is unknown; use \"run\" (given with run(), may change between runs of a plan) or \"plan\" "
                         "(given with plan(), usable for proofs)")
                            .c_str());
}

const char* name_of(ParamTime time) { return time == ParamTime::plan ? "plan" : "run"; }

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

/// Texts of the library name C++'s operators; Python's negation is ~.
template <typename F>
auto in_python_words(F&& make) {
  try {
    return make();
  } catch (const Error& error) {
    std::string text = error.what();
    for (const auto& [from, to] : {std::pair<std::string, std::string>{"operator!", "operator~"}, {"& | !", "& | ~"}}) {
      for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    }
    throw Error(error.code(), text);
  }
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
      nb::arg("other"), doc == nullptr ? "" : doc);
  if (reflected != nullptr)
    cls.def(
        reflected, [op](const Expr& a, const ExprLike& b) { return in_python_words([&] { return op(expr(b), a); }); }, nb::is_operator(),
        nb::arg("other"), doc == nullptr ? "" : doc);
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
      "__init__", [](Expr* self, const ExprLike& value) { new (self) Expr(expr(value)); }, nb::arg("value"),
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
  bind_binary(cls, "__eq__", nullptr, [](const Expr& a, const Expr& b) { return a == b; });
  bind_binary(cls, "__ne__", nullptr, [](const Expr& a, const Expr& b) { return a != b; });
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
  cls.def_prop_ro(
      "type", [](const Expr& self) { return std::string(variant::name(self.type())); }, "\"boolean\", \"integer\" or \"number\"");
  cls.attr("__hash__") = nb::none();         // == makes an expression
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
      nb::arg("condition"), nb::arg("if_true"), nb::arg("if_false"), "`if_true` where the condition holds, else `if_false`.");
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
        name, [op](const ExprLike& a) { return in_python_words([&] { return op(expr(a)); }); }, nb::arg("a"), doc);
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
          nb::arg("index"), "The element at an integer expression, a number (f32) or an integer (i32, i64).")
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
          nb::arg("index"), "The bit at an integer expression, a boolean.")
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

void bind_rope(nb::module_& m) {
  nb::class_<Rope> cls(m, "Rope",
                       "Rotary position encoding of Q and K as they are loaded (the cache holds unrotated keys). The angle of pair i at\n"
                       "position p is p * theta^(-2i / rotary_dim) / scale, adjusted by the Llama-3.1 rule if asked.");
  nb::class_<Rope::Llama31>(cls, "Llama31", "The frequency adjustment of Llama 3.1.")
      .def(
          "__init__",
          [](Rope::Llama31* self, double factor, double low, double high, double length) {
            new (self) Rope::Llama31{factor, low, high, length};
          },
          nb::kw_only(), nb::arg("factor") = 8.0, nb::arg("low_freq_factor") = 1.0, nb::arg("high_freq_factor") = 4.0,
          nb::arg("old_context_len") = 8192.0)
      .def_ro("factor", &Rope::Llama31::factor)
      .def_ro("low_freq_factor", &Rope::Llama31::low_freq_factor)
      .def_ro("high_freq_factor", &Rope::Llama31::high_freq_factor)
      .def_ro("old_context_len", &Rope::Llama31::old_context_len)
      .def("__repr__", [](const Rope::Llama31& r) {
        return fmt::format("Rope.Llama31(factor={}, low_freq_factor={}, high_freq_factor={}, old_context_len={})", r.factor,
                           r.low_freq_factor, r.high_freq_factor, r.old_context_len);
      });
  cls.def(
         "__init__",
         [](Rope* self, double theta, double scale, int rotary_dim, int rotary_begin, bool interleave,
            std::optional<Rope::Llama31> llama31) { new (self) Rope{theta, scale, rotary_dim, rotary_begin, interleave, llama31}; },
         nb::kw_only(), nb::arg("theta") = 10000.0, nb::arg("scale") = 1.0, nb::arg("rotary_dim") = 0, nb::arg("rotary_begin") = 0,
         nb::arg("interleave") = false, nb::arg("llama31") = nb::none(),
         "scale: positions are divided by it (linear scaling).\n"
         "rotary_dim: leading elements that rotate, even; 0 = all of head_dim_qk.\n"
         "rotary_begin: first element that rotates (MLA: 512).\n"
         "interleave: pairs (2i, 2i+1) if true, (i, i + rotary_dim/2) if false.\n"
         "llama31: a Rope.Llama31, or None.")
      .def_ro("theta", &Rope::theta)
      .def_ro("scale", &Rope::scale)
      .def_ro("rotary_dim", &Rope::rotary_dim)
      .def_ro("rotary_begin", &Rope::rotary_begin)
      .def_ro("interleave", &Rope::interleave)
      .def_ro("llama31", &Rope::llama31)
      .def("__repr__", [](nb::handle self) {
        const Rope& r = nb::cast<const Rope&>(self);
        return fmt::format("Rope(theta={}, scale={}, rotary_dim={}, rotary_begin={}, interleave={}, llama31={})", r.theta, r.scale,
                           r.rotary_dim, r.rotary_begin, r.interleave ? "True" : "False", nb::repr(self.attr("llama31")).c_str());
      });
}

struct Hook {
  const char* name;
  Expr Variant::*member;
  const char* doc;
};
constexpr Hook kHooks[] = {
    {"query", &Variant::query, "number of x, dim, mean_square, q_head, positions: maps Q, before RoPE"},
    {"key", &Variant::key, "number of x, dim, mean_square, kv_head, kv_pos: maps K, before RoPE"},
    {"value", &Variant::value, "number of x, dim, mean_square, kv_head, kv_pos: maps V"},
    {"logits", &Variant::logits, "number of score and all positions and heads: what softmax sees, natural units"},
    {"mask", &Variant::mask, "boolean of positions and heads: true = visible"},
    {"sink", &Variant::sink, "number of q_head: a logit that joins the denominator of that head"},
    {"output", &Variant::output, "number of x, dim, q_head, positions: maps O"},
};

/// Sets hooks and facts by name; checks the whole as schedule() would.
Variant checked(Variant v, const nb::kwargs& given) {
  for (const auto [key, value] : given) {
    const auto text = nb::cast<std::string>(key);
    const auto* hook = std::find_if(std::begin(kHooks), std::end(kHooks), [&](const Hook& h) { return text == h.name; });
    if (hook != std::end(kHooks)) {
      v.*hook->member = value.is_none() ? Expr() : expr(value);
    } else if (text == "softmax") {
      if (!nb::isinstance<nb::bool_>(value)) raise_type("softmax: must be True or False");
      v.softmax = nb::cast<bool>(value);
    } else if (text == "rope") {
      if (!value.is_none() && !nb::isinstance<Rope>(value)) raise_type("rope: must be a girih.Rope or None");
      v.rope = value.is_none() ? std::nullopt : std::optional<Rope>(nb::cast<Rope>(value));
    } else if (text == "name") {
      if (!nb::isinstance<nb::str>(value)) raise_type("name: must be a str");
      v.name = nb::cast<std::string>(value);
    } else {
      raise_type("\"" + text + "\" is no part of a Variant; it has query, key, value, logits, mask, sink, output, softmax, rope, name");
    }
  }
  in_python_words([&] { return variant::compile(v); });
  return v;
}

constexpr const char* kVariantParts =
    "query: girih._typing.ExprLike | None = {0}, key: girih._typing.ExprLike | None = {0}, value: girih._typing.ExprLike | None = {0}, "
    "logits: girih._typing.ExprLike | None = {0}, mask: girih._typing.ExprLike | None = {0}, sink: girih._typing.ExprLike | None = {0}, "
    "output: girih._typing.ExprLike | None = {0}, softmax: bool = {1}, rope: Rope | None = {0}, name: str = {2}";

void bind_variant_class(nb::module_& m) {
  static const std::string init_sig =
      "def __init__(self, *, " + fmt::format(fmt::runtime(kVariantParts), "None", "True", "''") + ") -> None";
  static const std::string replace_sig =
      "def replace(self, *, " + fmt::format(fmt::runtime(kVariantParts), "...", "...", "...") + ") -> Variant";
  nb::class_<Variant> cls(
      m, "Variant",
      "What makes one attention differ from another: hooks as expressions (see Expr), each absent if None. Immutable; see replace().\n\n"
      "  query, output    transforms of Q and O: number of x, dim, (query: mean_square), q_head, q_pos, q_idx, q_len, kv_len, request, "
      "q_row\n"
      "  key, value       transforms of K and V: number of x, dim, mean_square, kv_head, kv_pos\n"
      "  logits           number of score and all positions and heads\n"
      "  mask             boolean of all positions and heads; true = visible\n"
      "  sink             number of q_head: a logit that joins the softmax denominator\n"
      "  softmax          False: the weight of a key is `logits` itself, the output a plain weighted sum, and there is no LSE\n"
      "  rope             position encoding of Q and K as they are loaded\n"
      "  name             for logs; does not select the kernel\n\n"
      "All hooks may use parameters (scalar(), array(), bits()) and constants. ValueError names the hook that uses what it may not.");
  cls.def(
      "__init__", [](Variant* self, const nb::kwargs& parts) { new (self) Variant(checked({}, parts)); }, nb::sig(init_sig.c_str()));
  cls.def(
      "replace", [](const Variant& self, const nb::kwargs& parts) { return checked(self, parts); }, nb::sig(replace_sig.c_str()),
      "A copy with other parts; None takes a hook out.");
  for (const Hook& hook : kHooks) {
    const auto member = hook.member;
    cls.def_prop_ro(
        hook.name,
        [member](const Variant& self) {
          const Expr& e = self.*member;
          return e.node() == nullptr ? std::optional<Expr>() : std::optional<Expr>(e);
        },
        hook.doc);
  }
  cls.def_ro("softmax", &Variant::softmax)
      .def_ro("rope", &Variant::rope)
      .def_ro("name", &Variant::name)
      .def_prop_ro(
          "key_text", [](const Variant& self) { return variant::compile(self).key_text; },
          "Canonical text of everything but the name: variants with equal texts share their kernels.")
      .def_prop_ro(
          "params",
          [](const Variant& self) {
            nb::dict result;
            for (const variant::ParamInfo& param : variant::compile(self).params) {
              const char* kind = param.kind == variant::ParamInfo::Kind::scalar  ? param.dtype == DType::f32 ? "number" : "integer"
                                 : param.kind == variant::ParamInfo::Kind::array ? "array"
                                                                                 : "bits";
              result[param.name.c_str()] = nb::make_tuple(kind, std::string(name(param.dtype)), name_of(param.time));
            }
            return result;
          },
          nb::sig("def params(self) -> dict[str, tuple[str, str, str]]"),
          "Its parameters: {name: (\"number\" | \"integer\" | \"array\" | \"bits\", dtype, \"plan\" | \"run\")}.")
      .def("__repr__", [](const Variant& self) {
        std::string text;
        const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
        if (!self.name.empty()) add("name=\"" + self.name + "\"");
        for (const Hook& hook : kHooks)
          if ((self.*hook.member).node() != nullptr) add(std::string(hook.name) + "=" + text_of(self.*hook.member));
        if (!self.softmax) add("softmax=False");
        if (self.rope) add("rope=" + std::string(nb::repr(nb::cast(*self.rope)).c_str()));
        return "Variant(" + text + ")";
      });
}

void bind_builtins(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("variants", "The built-in variants: ordinary expressions, for use as they are or combined.");
  m.def("causal", variants::causal, "kv_pos <= q_pos.");
  m.def("window", variants::window, nb::arg("left"), nb::arg("right") = 0,
        "q_pos - left <= kv_pos <= q_pos + right; a negative bound is open. `left` counts keys before self (FlashInfer's window_left).");
  m.def("sliding_window", variants::sliding_window, nb::arg("size"),
        "At most `size` keys including self, causal (Hugging Face's sliding_window).");
  m.def("chunked_local", variants::chunked_local, nb::arg("size"),
        "Keys of the same chunk of `size` positions, causal (Llama 4's chunked local attention).");
  m.def("first_tokens", variants::first_tokens, nb::arg("size"),
        "The first `size` keys stay visible (StreamingLLM); combine with window by | and with causal by &.");
  const auto timed = [&](const char* name, Expr (*make)(ParamTime), const char* time, const char* doc) {
    m.def(
        name, [make](const std::string& text) { return make(time_of(text)); }, nb::arg("time") = time, doc);
  };
  timed("prefix_lm", variants::prefix_lm, "plan", "Causal, and every key below position prefix_len[request] (array \"prefix_len\", i32).");
  timed(
      "document", variants::document, "plan",
      "Keys whose document id equals the query's (array \"document_id\", i32, indexed by position: one id per position of one sequence).");
  timed("custom_mask", variants::custom_mask, "run",
        "Bits \"custom_mask\": for each request, row-major [q_len, kv_len] starting at bit custom_mask_start[request] (i64 array).");
  timed("speculative_tree", variants::speculative_tree, "run",
        "Draft-tree verification: the committed prefix is visible, of the q_len draft tokens (the last q_len keys) those whose bit is set "
        "in\n"
        "\"tree_mask\": row-major [q_len, q_len] from bit tree_mask_start[request] (i64 array).");
  timed("multi_item", variants::multi_item, "plan",
        "Multi-item scoring: causal; a token of an item sees the prefix (positions below prefix_len[request], i32) and its own item\n"
        "(\"item_id\", i32 by position).");
  timed("causal_with_bidirectional_spans", variants::causal_with_bidirectional_spans, "plan",
        "Causal, plus both directions within a span: positions with equal \"span_id\" (i32 by position, 0 = none) see each other.");
  m.def("soft_cap", variants::soft_cap, nb::arg("cap"), "Logits: cap * tanh(score / cap) with a constant cap.");
  m.def("alibi", variants::alibi, "Logits: score + slope[q_head] * (kv_pos - q_pos), array \"alibi_slopes\" (f32).");
  m.def("alibi_slopes", variants::alibi_slopes, nb::arg("num_heads"),
        "The standard slopes of ALiBi (Press et al. 2022) for `num_heads` heads, also when it is not a power of two.");
  m.def("sigmoid_logits", variants::sigmoid_logits, nb::arg("bias"),
        "Logits of sigmoid attention (Ramapuram et al. 2024): sigmoid(score + bias); use with softmax=False.");
  m.def("sinks", variants::sinks, "Sink: learned logits per query head, array \"sinks\" (f32), as gpt-oss has.");
  m.def("rms_norm", variants::rms_norm, nb::arg("weight_name"), nb::arg("eps"),
        "Query or key: x * rsqrt(mean_square + eps) * weight[dim], array `weight_name` (f32): QK-norm.");
}

}  // namespace

void bind_variant(nb::module_& m) {
  bind_expr(m);
  bind_variables(m);
  bind_parameters(m);
  bind_functions(m);
  bind_rope(m);
  bind_variant_class(m);
  bind_builtins(m);
}

}  // namespace girih::python
