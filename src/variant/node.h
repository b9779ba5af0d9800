// The expression graph behind Expr. Nodes are immutable and shared; everything that interprets them (key, interval, CPU evaluation, CUDA
// printing) works on the flat Program that program.h makes of a graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "girih/variant.h"

namespace girih::variant {

enum class Op : std::uint8_t {
  // leaves
  const_boolean,
  const_integer,
  const_number,
  var,
  scalar_param,
  // parameter arrays (one argument: the index)
  array_param,
  bits_param,
  // conversions
  to_number,
  // arithmetic on integers or numbers
  add,
  sub,
  mul,
  div,
  mod,
  neg,
  abs,
  min,
  max,
  // comparisons (integers or numbers) and booleans
  lt,
  le,
  eq,
  ne,
  and_,
  or_,
  not_,
  select,
  // numbers
  exp,
  log,
  tanh,
  sqrt,
  rsqrt,
  sigmoid,
  // the escape hatch
  param_handle,  // an array or bit array as such, for a text
  cuda_code,     // up to kMaxArgs arguments
};

enum class Var : std::uint8_t { score, q_pos, kv_pos, q_idx, q_len, kv_len, request, q_head, kv_head, q_row, x, dim, mean_square };
inline constexpr int kNumVars = 13;
inline constexpr int kMaxArgs = 8;
/// Deeper graphs are refused as they are built, so that walking and freeing one by recursion never exhausts the stack.
inline constexpr int kMaxDepth = 1024;

/// What cuda_code() was given.
struct CudaText {
  std::string name;
  std::string body;
  std::string result;      // its type as CUDA spells it: "float"
  std::string parameters;  // "float score, Elements<i32> ids"
};

struct Node {
  Op op{};
  ExprType type{};
  Var var{};                 // Op::var
  std::int64_t integer = 0;  // const_boolean, const_integer
  float number = 0;          // const_number
  std::string param;         // *_param
  DType param_dtype{};       // array_param; scalar_param: f32 or i64
  ParamTime param_time{};
  std::shared_ptr<const CudaText> cuda;           // Op::cuda_code
  std::vector<std::shared_ptr<const Node>> args;  // 0..3, cuda_code: 0..kMaxArgs
  int depth = 1;                                  // 1 + the deepest argument's
};

// As messages and key texts spell them: "add", "q_pos", "integer".
std::string_view name(Op op);
std::string_view name(Var var);
std::string_view name(ExprType type);

}  // namespace girih::variant
