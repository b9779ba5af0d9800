// C ABI: variants out of expressions.
#include "girih/variant.h"

#include <algorithm>

#include "c_api/convert.h"
#include "c_api/handles.h"

namespace girih::c_api {
namespace {

Rope rope(const Call& call, const girih_rope& given, const Field& field) {
  call.reserved(given.reserved, field);
  Rope rope;
  rope.theta = given.theta;
  rope.scale = given.scale;
  rope.rotary_dim = given.rotary_dim;
  rope.rotary_begin = given.rotary_begin;
  rope.interleave = call.flag(given.interleave, Field(field, "interleave"));
  if (given.llama31 != nullptr) rope.llama31 = llama31(*given.llama31);
  return rope;
}

Variant variant(const Call& call, const girih_variant_options& given) {
  const Field field("options");
  call.reserved(given.reserved, field);
  const auto hook = [&](const girih_expr* expr, const char* name) {
    return expr == nullptr ? Expr() : call.handle(expr, Field(field, name)).value;
  };
  Variant v;
  if (given.name != nullptr) v.name = given.name;
  v.query = hook(given.query, "query");
  v.key = hook(given.key, "key");
  v.value = hook(given.value, "value");
  v.logits = hook(given.logits, "logits");
  v.mask = hook(given.mask, "mask");
  v.sink = hook(given.sink, "sink");
  v.output = hook(given.output, "output");
  v.softmax = call.flag(given.softmax, Field(field, "softmax"));
  const Field rope_field(field, "rope");
  if (given.rope != nullptr) v.rope = rope(call, call.read(given.rope, rope_field), rope_field);
  return v;
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::Call;
using girih::c_api::guarded;

girih_status girih_variant_create(const girih_expr_builder* builder, const girih_variant_options* options, girih_variant** out) {
  girih_status failed = GIRIH_OK;
  const girih_status status = guarded("girih_variant_create", [&](const Call& call) {
    girih_variant*& handle = call.new_handle(out);
    failed = call.handle(builder, "builder").status;
    if (failed != GIRIH_OK) {
      girih::c_api::set_last_error(builder->error);
      return;
    }
    handle = new girih_variant{.value = girih::c_api::variant(call, call.read(options, "options"))};
  });
  return status != GIRIH_OK ? status : failed;
}

void girih_variant_destroy(girih_variant* variant) { girih::c_api::destroy("girih_variant_destroy", variant); }

girih_status girih_alibi_slopes(int32_t num_heads, float* out, int64_t capacity) {
  return guarded("girih_alibi_slopes", [&](const Call& call) {
    call.check_capacity(out, capacity, num_heads, "out");
    const std::vector<float> slopes = girih::variants::alibi_slopes(num_heads);
    std::copy(slopes.begin(), slopes.end(), out);
  });
}
