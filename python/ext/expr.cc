// See expr.h. The text follows Python's precedence, in which comparisons bind less than & and |.
#include "expr.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "variant/node.h"

namespace girih::python {
namespace {

using variant::Node;
using variant::Op;

constexpr std::size_t kMaxText = 2000;

enum Level { kCompare, kOr, kAnd, kSum, kProduct, kUnary, kAtom };

struct Spelling {
  Op op;
  Level level;
  const char* text;
};
constexpr Spelling kInfix[] = {
    {Op::add, kSum, " + "},    {Op::sub, kSum, " - "},     {Op::mul, kProduct, " * "}, {Op::mod, kProduct, " % "},
    {Op::lt, kCompare, " < "}, {Op::le, kCompare, " <= "}, {Op::eq, kCompare, " == "}, {Op::ne, kCompare, " != "},
    {Op::and_, kAnd, " & "},   {Op::or_, kOr, " | "},      {Op::div, kProduct, " / "},
};

class Writer {
 public:
  std::string take() {
    if (text_.size() > kMaxText) text_ = text_.substr(0, kMaxText) + " ...";
    return std::move(text_);
  }

  void write(const Node& node, Level around) {
    if (text_.size() > kMaxText) return;
    switch (node.op) {
      case Op::const_boolean: text_ += node.integer != 0 ? "True" : "False"; return;
      case Op::const_integer: return constant(fmt::format("{}", node.integer), around);
      case Op::const_number: {
        const std::string text = fmt::format("{}", node.number);
        return constant(text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text, around);
      }
      case Op::var: text_ += variant::name(node.var); return;
      case Op::scalar_param:
      case Op::param_handle: text_ += node.param; return;
      case Op::array_param:
      case Op::bits_param:
        text_ += node.param + "[";
        write(*node.args[0], kCompare);
        text_ += "]";
        return;
      case Op::to_number: return write(*node.args[0], around);
      case Op::neg: return prefix("-", node, around);
      case Op::not_: return prefix("~", node, around);
      default: break;
    }
    for (const Spelling& s : kInfix) {
      if (s.op == node.op) return infix(node, s, around);
    }
    call(node);
  }

 private:
  void constant(const std::string& text, Level around) { text_ += text[0] == '-' && around > kSum ? "(" + text + ")" : text; }

  void prefix(const char* sign, const Node& node, Level around) {
    open(around > kUnary);
    text_ += sign;
    write(*node.args[0], kUnary);
    close(around > kUnary);
  }

  /// Operators group to the left; comparisons not at all.
  void infix(const Node& node, const Spelling& s, Level around) {
    const bool enclosed = around > s.level;
    open(enclosed);
    write(*node.args[0], s.level == kCompare ? kOr : s.level);
    text_ += node.op == Op::div && node.type == ExprType::integer ? " // " : s.text;
    write(*node.args[1], static_cast<Level>(s.level + 1));
    close(enclosed);
  }

  void call(const Node& node) {
    text_ += node.op == Op::cuda_code ? "cuda_code[" + node.cuda->name + "]" : std::string(variant::name(node.op));
    text_ += "(";
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      if (i > 0) text_ += ", ";
      write(*node.args[i], kCompare);
    }
    text_ += ")";
  }

  void open(bool wanted) { text_ += wanted ? "(" : ""; }
  void close(bool wanted) { text_ += wanted ? ")" : ""; }

  std::string text_;
};

std::string class_name(nb::handle value) {
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
  const auto module = nb::cast<std::string>(nb::str(nb::getattr(type, "__module__", nb::str("builtins"))));
  const auto name = nb::cast<std::string>(nb::str(nb::getattr(type, "__qualname__", nb::str("?"))));
  return module == "builtins" ? name : module + "." + name;
}

/// The Python number inside a scalar or 0-dimensional array of another library; invalid where there is none.
nb::object item_of(nb::handle value) {
  const nb::object shape = nb::getattr(value, "shape", nb::object());
  if (!shape.is_valid() || !nb::hasattr(value, "item") || PySequence_Check(shape.ptr()) == 0 || nb::len(shape) != 0) return {};
  return value.attr("item")();
}

Expr constant(nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) return Expr::boolean(nb::cast<bool>(value));
  if (nb::isinstance<nb::int_>(value)) {
    std::int64_t integer = 0;
    if (!nb::try_cast<std::int64_t>(value, integer))
      throw nb::value_error(fmt::format("{} is beyond the 64-bit integers of expressions", nb::str(value).c_str()).c_str());
    return Expr(integer);
  }
  if (!nb::isinstance<nb::float_>(value)) return {};
  const double number = PyFloat_AsDouble(value.ptr());
  if (std::isfinite(number) && !std::isfinite(static_cast<float>(number)))
    throw nb::value_error(fmt::format("{} is beyond the range of f32, which expressions compute in", number).c_str());
  return Expr(number);
}

ParamValue array_value(nb::handle value, const variant::ParamInfo* info, const std::string& what, std::vector<Array>& arrays) {
  const bool bits = info != nullptr && info->kind == variant::ParamInfo::Kind::bits;
  nb::object object = nb::borrow(value);
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    const char* dtype = bits                        ? "uint8"
                        : info == nullptr           ? "float32"
                        : info->dtype == DType::f32 ? "float32"
                        : info->dtype == DType::i32 ? "int32"
                                                    : "int64";
    object = nb::module_::import_("numpy").attr("asarray")(object, dtype);
  } else if (bits) {
    const nb::object dtype = nb::getattr(object, "dtype", nb::object());
    if (dtype.is_valid() && nb::cast<std::string>(nb::str(dtype)).find("bool") != std::string::npos)
      throw nb::value_error((what + " holds one bool a byte; the variant declares packed bits: give girih.packbits(mask) or "
                                    "numpy.packbits(mask, bitorder=\"little\")")
                                .c_str());
  }
  arrays.push_back(array(object, what));
  ParamValue result;
  result.array = arrays.back().view;
  return result;
}

/// Reading a scalar of a GPU would wait for the GPU.
void check_on_host(nb::handle value, const std::string& what) {
  const nb::object device = nb::getattr(value, "device", nb::object());
  if (!device.is_valid()) return;
  const auto name = nb::cast<std::string>(nb::str(device));
  if (!name.starts_with("cpu"))
    throw nb::value_error(
        fmt::format("{} is a scalar on {}; reading it would wait for the device: give a Python number", what, name).c_str());
}

ParamValue scalar_value(nb::handle value, const variant::ParamInfo& info, const std::string& what) {
  nb::object number = nb::borrow(value);
  if (!nb::isinstance<nb::int_>(value) && !nb::isinstance<nb::float_>(value)) {
    check_on_host(value, what);
    number = item_of(value);
  }
  if (!number.is_valid() || nb::isinstance<nb::bool_>(number)) {
    throw nb::type_error(fmt::format("{} is a {}; the variant declares a scalar {}", what, class_name(value),
                                     info.dtype == DType::i64 ? "integer: give an int" : "number: give a float")
                             .c_str());
  }
  ParamValue result;
  if (info.dtype != DType::i64) {
    result.number = PyFloat_AsDouble(number.ptr());
    if (PyErr_Occurred() != nullptr) {
      if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) throw nb::python_error();
      PyErr_Clear();
      throw nb::value_error((what + " is an integer beyond the range of numbers").c_str());
    }
  } else if (!nb::isinstance<nb::int_>(number) || !nb::try_cast<std::int64_t>(number, result.integer)) {
    throw nb::type_error(
        fmt::format("{} is {}; the variant declares an integer: give an int of 64 bits", what, nb::str(number).c_str()).c_str());
  }
  return result;
}

}  // namespace

Expr expr(nb::handle value) {
  if (nb::isinstance<Expr>(value)) return nb::cast<Expr>(value);
  Expr found = constant(value);
  if (found.node() != nullptr) return found;
  if (nb::isinstance<ArrayParam>(value) || nb::isinstance<BitsParam>(value)) {
    const auto name = nb::cast<std::string>(value.attr("name"));
    throw nb::type_error(fmt::format("parameter {0} is an array: index it, as in {0}[q_head]", name).c_str());
  }
  const nb::object item = item_of(value);
  if (item.is_valid()) {
    found = constant(item);
    if (found.node() != nullptr) return found;
  }
  throw nb::type_error(fmt::format("a {} cannot be part of an expression; use expressions, bool, int and float. An array is a parameter: "
                                   "girih.array(\"name\", \"f32\")[index], with its values in params={{\"name\": ...}}",
                                   class_name(value))
                           .c_str());
}

Expr number_of(const Expr& e) {
  if (e.type() != ExprType::integer) return e;
  Node node;
  node.op = Op::to_number;
  node.type = ExprType::number;
  node.args = {e.node()};
  node.depth = e.node()->depth + 1;
  return Expr(std::make_shared<const Node>(std::move(node)));
}

std::string text_of(const Expr& e) {
  if (e.node() == nullptr) return "None";
  Writer writer;
  writer.write(*e.node(), kCompare);
  return writer.take();
}

std::string python_words(std::string text) {
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"operator!", "operator~"}, {"& | !", "& | ~"}}) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  }
  return text;
}

ParamTime time_of(const std::string& text) {
  if (text == "run") return ParamTime::run;
  if (text == "plan") return ParamTime::plan;
  throw nb::value_error(("time: \"" + text +
                         "\" is unknown; use \"run\" (given with run(), may change between runs of a plan) or \"plan\" "
                         "(given with plan(), usable for proofs)")
                            .c_str());
}

const char* name_of(ParamTime time) { return time == ParamTime::plan ? "plan" : "run"; }

ParamValues::ParamValues(nb::handle given, std::span<const variant::ParamInfo> declared, std::string_view argument) {
  if (given.is_none()) return;
  if (!nb::isinstance<nb::dict>(given))
    throw nb::type_error(fmt::format("{}: must be a dict {{name: number or array}} or None", argument).c_str());
  const auto dict = nb::borrow<nb::dict>(given);
  values_.reserve(dict.size());
  arrays_.reserve(dict.size());
  for (const auto [key, value] : dict) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(key.ptr()) != 0 ? PyUnicode_AsUTF8AndSize(key.ptr(), &size) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      throw nb::type_error(fmt::format("{}: its keys must be names (str)", argument).c_str());
    }
    keys_.push_back(nb::borrow(key));
    const std::string_view name(text, static_cast<std::size_t>(size));
    const variant::ParamInfo* info = nullptr;
    for (const variant::ParamInfo& param : declared)
      if (param.name == name) info = &param;
    const std::string what = fmt::format("{}['{}']", argument, name);
    const bool scalar = info != nullptr ? info->kind == variant::ParamInfo::Kind::scalar
                                        : PyLong_Check(value.ptr()) != 0 || PyFloat_Check(value.ptr()) != 0;
    static const variant::ParamInfo kNumber{.name = {}, .kind = variant::ParamInfo::Kind::scalar, .dtype = DType::f32, .time = {}};
    ParamValue v = scalar ? scalar_value(value, info != nullptr ? *info : kNumber, what) : array_value(value, info, what, arrays_);
    v.name = name;
    values_.push_back(v);
  }
}

}  // namespace girih::python
