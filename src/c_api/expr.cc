// C ABI: expressions. A builder keeps all that is made from it and the first failure, after which every function of it returns NULL.
#include <utility>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "girih/variant.h"

namespace girih::c_api {
namespace {

static_assert(static_cast<int>(ExprType::boolean) == GIRIH_BOOLEAN && static_cast<int>(ExprType::number) == GIRIH_NUMBER);
static_assert(static_cast<int>(ParamTime::plan) == GIRIH_PLAN_TIME && static_cast<int>(ParamTime::run) == GIRIH_RUN_TIME);

/// An expression that `make(call)` returns, kept by the builder.
template <typename Make>
const girih_expr* build(const char* op, girih_expr_builder* builder, Make&& make) noexcept {
  girih_expr_builder* checked = nullptr;
  if (guarded(op, [&](const Call& call) { checked = &call.handle(builder, "builder"); }) != GIRIH_OK) return nullptr;
  if (checked->status != GIRIH_OK) {
    set_last_error(checked->error);
    return nullptr;
  }
  const girih_expr* made = nullptr;
  const girih_status status = guarded(op, [&](const Call& call) { made = &checked->exprs.emplace_back(girih_expr{.value = make(call)}); });
  if (status == GIRIH_OK) return made;
  checked->status = status;
  guarded(op, [&](const Call&) { checked->error = girih_last_error(); });
  return nullptr;
}

const Expr& operand(const Call& call, const girih_expr* expr, const Field& field) { return call.handle(expr, field).value; }

ExprType expr_type(const Call& call, girih_expr_type type) { return call.enumerator<ExprType>(type, GIRIH_NUMBER + 1, "type"); }
ParamTime param_time(const Call& call, girih_param_time time, const Field& field) {
  return call.enumerator<ParamTime>(time, GIRIH_RUN_TIME + 1, field);
}

Expr variable(const Call& call, girih_variable which) {
  switch (which) {
    case GIRIH_SCORE: return score();
    case GIRIH_Q_POS: return q_pos();
    case GIRIH_KV_POS: return kv_pos();
    case GIRIH_Q_IDX: return q_idx();
    case GIRIH_Q_LEN: return q_len();
    case GIRIH_KV_LEN: return kv_len();
    case GIRIH_REQUEST: return request();
    case GIRIH_Q_HEAD: return q_head();
    case GIRIH_KV_HEAD: return kv_head();
    case GIRIH_Q_ROW: return q_row();
    case GIRIH_X: return x();
    case GIRIH_DIM: return dim();
    case GIRIH_MEAN_SQUARE: return mean_square();
    default: call.refuse("variable={} is unknown; must be in 0..{}", which, static_cast<int>(GIRIH_MEAN_SQUARE));
  }
}

Expr unary(const Call& call, girih_unary_op op, const Expr& a) {
  switch (op) {
    case GIRIH_NEG: return -a;
    case GIRIH_ABS: return abs(a);
    case GIRIH_NOT: return !a;
    case GIRIH_EXP: return exp(a);
    case GIRIH_LOG: return log(a);
    case GIRIH_TANH: return tanh(a);
    case GIRIH_SQRT: return sqrt(a);
    case GIRIH_RSQRT: return rsqrt(a);
    case GIRIH_SIGMOID: return sigmoid(a);
    default: call.refuse("op={} is unknown; must be in 0..{}", op, static_cast<int>(GIRIH_SIGMOID));
  }
}

Expr binary(const Call& call, girih_binary_op op, const Expr& a, const Expr& b) {
  switch (op) {
    case GIRIH_ADD: return a + b;
    case GIRIH_SUB: return a - b;
    case GIRIH_MUL: return a * b;
    case GIRIH_DIV: return a / b;
    case GIRIH_MOD: return a % b;
    case GIRIH_MIN: return min(a, b);
    case GIRIH_MAX: return max(a, b);
    case GIRIH_LT: return a < b;
    case GIRIH_LE: return a <= b;
    case GIRIH_GT: return a > b;
    case GIRIH_GE: return a >= b;
    case GIRIH_EQ: return a == b;
    case GIRIH_NE: return a != b;
    case GIRIH_AND: return a & b;
    case GIRIH_OR: return a | b;
    default: call.refuse("op={} is unknown; must be in 0..{}", op, static_cast<int>(GIRIH_OR));
  }
}

CudaArg cuda_arg(const Call& call, const girih_cuda_arg& arg, const Field& field) {
  call.reserved(arg.reserved, field);
  const Field name(field, "name");
  const Field time(field, "time");
  switch (arg.kind) {
    case GIRIH_CUDA_ARG_VALUE: {
      const Expr& value = operand(call, arg.value, Field(field, "value"));
      return arg.name == nullptr ? CudaArg(value) : CudaArg(arg.name, value);
    }
    case GIRIH_CUDA_ARG_ARRAY:
      return ArrayParam(call.text(arg.name, name), dtype(call, arg.dtype, Field(field, "dtype")), param_time(call, arg.time, time));
    case GIRIH_CUDA_ARG_BITS: return BitsParam(call.text(arg.name, name), param_time(call, arg.time, time));
    default:
      call.refuse("{}={} is unknown; must be in 0..{}", Field(field, "kind").text(), arg.kind, static_cast<int>(GIRIH_CUDA_ARG_BITS));
  }
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::build;
using girih::c_api::Call;
using girih::c_api::Field;
using girih::c_api::guarded;
using girih::c_api::operand;
using girih::c_api::param_time;
namespace variants = girih::variants;

girih_status girih_expr_builder_create(girih_expr_builder** out) {
  return guarded("girih_expr_builder_create", [&](const Call& call) {
    girih_expr_builder*& handle = call.new_handle(out);
    handle = new girih_expr_builder;
  });
}

void girih_expr_builder_destroy(girih_expr_builder* builder) { girih::c_api::destroy("girih_expr_builder_destroy", builder); }

girih_status girih_expr_builder_status(const girih_expr_builder* builder) {
  girih_status failed = GIRIH_OK;
  const girih_status status = guarded("girih_expr_builder_status", [&](const Call& call) {
    failed = call.handle(builder, "builder").status;
    if (failed != GIRIH_OK) girih::c_api::set_last_error(builder->error);
  });
  return status != GIRIH_OK ? status : failed;
}

const girih_expr* girih_expr_integer(girih_expr_builder* builder, int64_t value) {
  return build("girih_expr_integer", builder, [&](const Call&) { return girih::Expr(std::int64_t{value}); });
}

const girih_expr* girih_expr_number(girih_expr_builder* builder, double value) {
  return build("girih_expr_number", builder, [&](const Call&) { return girih::Expr(value); });
}

const girih_expr* girih_expr_boolean(girih_expr_builder* builder, int32_t value) {
  return build("girih_expr_boolean", builder, [&](const Call& call) { return girih::Expr::boolean(call.flag(value, "value")); });
}

const girih_expr* girih_expr_variable(girih_expr_builder* builder, girih_variable variable) {
  return build("girih_expr_variable", builder, [&](const Call& call) { return girih::c_api::variable(call, variable); });
}

const girih_expr* girih_expr_scalar(girih_expr_builder* builder, const char* name, girih_expr_type type, girih_param_time time) {
  return build("girih_expr_scalar", builder, [&](const Call& call) {
    return girih::scalar(call.text(name, "name"), girih::c_api::expr_type(call, type), param_time(call, time, "time"));
  });
}

const girih_expr* girih_expr_array(girih_expr_builder* builder, const char* name, girih_dtype dtype, girih_param_time time,
                                   const girih_expr* index) {
  return build("girih_expr_array", builder, [&](const Call& call) {
    const girih::ArrayParam array(call.text(name, "name"), girih::c_api::dtype(call, dtype, "dtype"), param_time(call, time, "time"));
    return array[operand(call, index, "index")];
  });
}

const girih_expr* girih_expr_bits(girih_expr_builder* builder, const char* name, girih_param_time time, const girih_expr* index) {
  return build("girih_expr_bits", builder, [&](const Call& call) {
    return girih::BitsParam(call.text(name, "name"), param_time(call, time, "time"))[operand(call, index, "index")];
  });
}

const girih_expr* girih_expr_unary(girih_expr_builder* builder, girih_unary_op op, const girih_expr* a) {
  return build("girih_expr_unary", builder, [&](const Call& call) { return girih::c_api::unary(call, op, operand(call, a, "a")); });
}

const girih_expr* girih_expr_binary(girih_expr_builder* builder, girih_binary_op op, const girih_expr* a, const girih_expr* b) {
  return build("girih_expr_binary", builder,
               [&](const Call& call) { return girih::c_api::binary(call, op, operand(call, a, "a"), operand(call, b, "b")); });
}

const girih_expr* girih_expr_select(girih_expr_builder* builder, const girih_expr* condition, const girih_expr* if_true,
                                    const girih_expr* if_false) {
  return build("girih_expr_select", builder, [&](const Call& call) {
    return girih::select(operand(call, condition, "condition"), operand(call, if_true, "if_true"), operand(call, if_false, "if_false"));
  });
}

girih_status girih_expr_get_type(const girih_expr* expr, girih_expr_type* out) {
  return guarded("girih_expr_get_type",
                 [&](const Call& call) { call.out(out, "out") = static_cast<girih_expr_type>(operand(call, expr, "expr").type()); });
}

const girih_expr* girih_expr_cuda_code(girih_expr_builder* builder, girih_expr_type type, const char* body, const girih_cuda_arg* args,
                                       int64_t num_args, const char* name) {
  return build("girih_expr_cuda_code", builder, [&](const Call& call) {
    const auto given = call.array(args, num_args, "args");
    std::vector<girih::CudaArg> list;
    list.reserve(given.size());
    for (const girih_cuda_arg& arg : given) {
      list.push_back(girih::c_api::cuda_arg(call, arg, Field("args", std::ssize(list))));
    }
    const girih::ExprType checked = girih::c_api::expr_type(call, type);
    if (name == nullptr) return girih::cuda_code(checked, call.text(body, "body"), std::move(list));
    return girih::cuda_code(checked, call.text(body, "body"), std::move(list), name);
  });
}

// ---------------------------------------------------------------------------------------------------------------- built-in variants

const girih_expr* girih_expr_causal(girih_expr_builder* builder) {
  return build("girih_expr_causal", builder, [](const Call&) { return variants::causal(); });
}

const girih_expr* girih_expr_window(girih_expr_builder* builder, int64_t left, int64_t right) {
  return build("girih_expr_window", builder, [&](const Call&) { return variants::window(left, right); });
}

const girih_expr* girih_expr_sliding_window(girih_expr_builder* builder, int64_t size) {
  return build("girih_expr_sliding_window", builder, [&](const Call&) { return variants::sliding_window(size); });
}

const girih_expr* girih_expr_chunked_local(girih_expr_builder* builder, int64_t size) {
  return build("girih_expr_chunked_local", builder, [&](const Call&) { return variants::chunked_local(size); });
}

const girih_expr* girih_expr_prefix_lm(girih_expr_builder* builder, girih_param_time time) {
  return build("girih_expr_prefix_lm", builder, [&](const Call& call) { return variants::prefix_lm(param_time(call, time, "time")); });
}

const girih_expr* girih_expr_document(girih_expr_builder* builder, girih_param_time time) {
  return build("girih_expr_document", builder, [&](const Call& call) { return variants::document(param_time(call, time, "time")); });
}

const girih_expr* girih_expr_custom_mask(girih_expr_builder* builder, girih_param_time time) {
  return build("girih_expr_custom_mask", builder, [&](const Call& call) { return variants::custom_mask(param_time(call, time, "time")); });
}

const girih_expr* girih_expr_speculative_tree(girih_expr_builder* builder, girih_param_time time) {
  return build("girih_expr_speculative_tree", builder,
               [&](const Call& call) { return variants::speculative_tree(param_time(call, time, "time")); });
}

const girih_expr* girih_expr_first_tokens(girih_expr_builder* builder, int64_t size) {
  return build("girih_expr_first_tokens", builder, [&](const Call&) { return variants::first_tokens(size); });
}

const girih_expr* girih_expr_multi_item(girih_expr_builder* builder, girih_param_time time) {
  return build("girih_expr_multi_item", builder, [&](const Call& call) { return variants::multi_item(param_time(call, time, "time")); });
}

const girih_expr* girih_expr_causal_with_bidirectional_spans(girih_expr_builder* builder, girih_param_time time) {
  return build("girih_expr_causal_with_bidirectional_spans", builder,
               [&](const Call& call) { return variants::causal_with_bidirectional_spans(param_time(call, time, "time")); });
}

const girih_expr* girih_expr_soft_cap(girih_expr_builder* builder, float cap) {
  return build("girih_expr_soft_cap", builder, [&](const Call&) { return variants::soft_cap(cap); });
}

const girih_expr* girih_expr_alibi(girih_expr_builder* builder) {
  return build("girih_expr_alibi", builder, [](const Call&) { return variants::alibi(); });
}

const girih_expr* girih_expr_sigmoid_logits(girih_expr_builder* builder, float bias) {
  return build("girih_expr_sigmoid_logits", builder, [&](const Call&) { return variants::sigmoid_logits(bias); });
}

const girih_expr* girih_expr_sinks(girih_expr_builder* builder) {
  return build("girih_expr_sinks", builder, [](const Call&) { return variants::sinks(); });
}

const girih_expr* girih_expr_rms_norm(girih_expr_builder* builder, const char* weight_name, float eps) {
  return build("girih_expr_rms_norm", builder,
               [&](const Call& call) { return variants::rms_norm(call.text(weight_name, "weight_name"), eps); });
}
