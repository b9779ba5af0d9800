// cuda_code(): a node whose meaning only a CUDA compiler knows. What it reads is stated by its arguments, so that everything else (which
// half of a hook computes it, what a mask's planner may prove around it) works as for any operation.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "variant/node.h"

namespace girih {
namespace {

bool is_identifier(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || name.size() > 64 || !is_letter(name[0])) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

Expr handle(const std::string& name, DType dtype, ParamTime time, ExprType type) {
  variant::Node node;
  node.op = variant::Op::param_handle;
  node.type = type;
  node.param = name;
  node.param_dtype = dtype;
  node.param_time = time;
  return Expr(std::make_shared<const variant::Node>(std::move(node)));
}

std::string_view type_of(const variant::Node& node) {
  if (node.op == variant::Op::param_handle) {
    switch (node.param_dtype) {
      case DType::f32: return "Elements<float>";
      case DType::i32: return "Elements<i32>";
      case DType::i64: return "Elements<i64>";
      default: return "Bits";
    }
  }
  return node.type == ExprType::number ? "float" : node.type == ExprType::integer ? "i64" : "bool";
}

/// Skips a comment, string or character constant that begins at `i`; else goes one character on.
std::size_t skip_token(std::string_view text, std::size_t i) {
  const auto after = [&](std::string_view end, std::size_t from) {
    const std::size_t at = text.find(end, from);
    return at == std::string_view::npos ? text.size() : at + end.size();
  };
  if (text.substr(i, 2) == "//") return after("\n", i);
  if (text.substr(i, 2) == "/*") return after("*/", i + 2);
  if (text[i] != '"' && text[i] != '\'') return i + 1;
  const char quote = text[i];
  // The ' of 1'000 is no quote.
  if (quote == '\'' && i > 0 && text[i - 1] >= '0' && text[i - 1] <= '9') return i + 1;
  for (++i; i < text.size() && text[i] != quote; ++i) i += text[i] == '\\' ? 1 : 0;
  return i + 1;
}

/// A brace too many would end the function, and the compiler would find fault with text that is not the caller's.
void check_braces(std::string_view body, std::string_view name) {
  int depth = 0;
  int line = 1;
  for (std::size_t i = 0; i < body.size() && depth >= 0;) {
    const std::size_t next = std::min(skip_token(body, i), body.size());
    if (next == i + 1) depth += body[i] == '{' ? 1 : body[i] == '}' ? -1 : 0;
    if (depth < 0) fail(Code::invalid_argument, "variant", "CUDA text \"{}\", line {}: a }} without its {{", name, line);
    line +=
        static_cast<int>(std::count(body.begin() + static_cast<std::ptrdiff_t>(i), body.begin() + static_cast<std::ptrdiff_t>(next), '\n'));
    i = next;
  }
  if (depth > 0) fail(Code::invalid_argument, "variant", "CUDA text \"{}\": {} {{ without }}", name, depth);
}

}  // namespace

CudaArg::CudaArg(Expr variable) : value_(std::move(variable)) {
  const variant::Node* node = value_.node().get();
  if (node == nullptr || (node->op != variant::Op::var && node->op != variant::Op::scalar_param)) {
    fail(Code::invalid_argument, "variant",
         "an argument of cuda_code is an expression without a name; only variables and scalar parameters have one: give {{\"name\", "
         "value}}");
  }
  name_ = node->op == variant::Op::var ? std::string(variant::name(node->var)) : node->param;
}

CudaArg::CudaArg(std::string name, Expr value) : name_(std::move(name)), value_(std::move(value)) {}
CudaArg::CudaArg(const ArrayParam& array)
    : name_(array.name_),
      value_(handle(array.name_, array.dtype_, array.time_, array.dtype_ == DType::f32 ? ExprType::number : ExprType::integer)) {}
CudaArg::CudaArg(const BitsParam& bits) : name_(bits.name_), value_(handle(bits.name_, DType::u8, bits.time_, ExprType::boolean)) {}

Expr cuda_code(ExprType type, std::string body, std::vector<CudaArg> args, std::string name) {
  constexpr std::size_t kMaxBody = 64 << 10;
  const auto is_plain = [](char c) { return c >= ' ' && c != '"' && c != '\\' && c != '('; };
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_plain) || name == "generated") {
    fail(Code::invalid_argument, "variant", "name of a CUDA text is \"{}\"; must be printable, without quotes, backslashes and (", name);
  }
  if (body.empty() || body.size() > kMaxBody) {
    fail(Code::invalid_argument, "variant", "CUDA text \"{}\" has {} bytes; must be in [1, {}]", name, body.size(), kMaxBody);
  }
  if (args.size() > variant::kMaxArgs) {
    fail(Code::invalid_argument, "variant", "CUDA text \"{}\" has {} arguments; at most {} are supported: combine some in an expression",
         name, args.size(), variant::kMaxArgs);
  }
  check_braces(body, name);
  variant::Node node;
  node.op = variant::Op::cuda_code;
  node.type = type;
  variant::CudaText text{std::move(name), std::move(body), std::string(type_of(node)), {}};
  std::vector<std::string> names;
  for (const CudaArg& arg : args) {
    if (!is_identifier(arg.name())) {
      fail(Code::invalid_argument, "variant", "CUDA text \"{}\": argument name '{}'; must be an identifier of at most 64 characters",
           text.name, arg.name());
    }
    if (std::find(names.begin(), names.end(), arg.name()) != names.end()) {
      fail(Code::invalid_argument, "variant", "CUDA text \"{}\" has two arguments '{}'; give them different names", text.name, arg.name());
    }
    if (arg.value().node() == nullptr)
      fail(Code::invalid_argument, "variant", "CUDA text \"{}\": argument '{}' is absent", text.name, arg.name());
    text.parameters += fmt::format("{}{} {}", names.empty() ? "" : ", ", type_of(*arg.value().node()), arg.name());
    names.push_back(arg.name());
    node.args.push_back(arg.value().node());
    node.depth = std::max(node.depth, arg.value().node()->depth + 1);
  }
  if (node.depth > variant::kMaxDepth) {
    fail(Code::invalid_argument, "variant", "CUDA text \"{}\" nests expressions {} deep; at most {} are supported", text.name, node.depth,
         variant::kMaxDepth);
  }
  node.cuda = std::make_shared<const variant::CudaText>(std::move(text));
  return Expr(std::make_shared<const variant::Node>(std::move(node)));
}

}  // namespace girih
