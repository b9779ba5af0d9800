// C ABI: rotary position embedding.
#include "girih/rope.h"

#include <algorithm>

#include "c_api/convert.h"
#include "c_api/handles.h"

namespace girih::c_api {
namespace {

RopeTable rope_table(const Call& call, const girih_rope_table& t) {
  const Field field("table");
  call.reserved(t.reserved, field);
  RopeTable table;
  table.rotary_dim = t.rotary_dim;
  table.theta = t.theta;
  table.linear = t.linear;
  table.ntk = t.ntk;
  if (t.llama31 != nullptr) table.llama31 = llama31(*t.llama31);
  if (t.yarn != nullptr) {
    const Field yarn_field(field, "yarn");
    const girih_yarn yarn = call.read(t.yarn, yarn_field);
    call.reserved(yarn.reserved, yarn_field);
    table.yarn = RopeTable::Yarn{.factor = yarn.factor,
                                 .original_context_len = yarn.original_context_len,
                                 .beta_fast = yarn.beta_fast,
                                 .beta_slow = yarn.beta_slow,
                                 .whole_pairs = call.flag(yarn.whole_pairs, Field(yarn_field, "whole_pairs")),
                                 .attention_factor = yarn.attention_factor};
  }
  return table;
}

RopeArgs rope_args(const Call& call, const girih_rope_args& a, const Field& field) {
  return {.q = tensor(call, a.q, Field(field, "q")),
          .k = tensor(call, a.k, Field(field, "k")),
          .q_out = tensor(call, a.q_out, Field(field, "q_out")),
          .k_out = tensor(call, a.k_out, Field(field, "k_out")),
          .cos_sin = tensor(call, a.cos_sin, Field(field, "cos_sin")),
          .positions = tensor(call, a.positions, Field(field, "positions")),
          .indptr = tensor(call, a.indptr, Field(field, "indptr")),
          .offsets = tensor(call, a.offsets, Field(field, "offsets")),
          .rotary_begin = a.rotary_begin,
          .interleaved = call.flag(a.interleaved, Field(field, "interleaved")),
          .q_weight = tensor(call, a.q_weight, Field(field, "q_weight")),
          .k_weight = tensor(call, a.k_weight, Field(field, "k_weight")),
          .eps = a.eps,
          .weight_offset = a.weight_offset,
          .q_quantization = quantization(call, a.q_quantization, Field(field, "q_quantization")),
          .k_quantization = quantization(call, a.k_quantization, Field(field, "k_quantization"))};
}

RopeAppendArgs rope_append_args(const Call& call, const girih_rope_append_args& a) {
  const Field field("args");
  const Field rope_field(field, "rope");
  return {.rope = rope_args(call, call.read(a.rope, rope_field), rope_field),
          .v = tensor(call, a.v, Field(field, "v")),
          .k_nope = tensor(call, a.k_nope, Field(field, "k_nope")),
          .q_nope = tensor(call, a.q_nope, Field(field, "q_nope")),
          .q_nope_out = tensor(call, a.q_nope_out, Field(field, "q_nope_out"))};
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::Call;
using girih::c_api::guarded;

girih_status girih_rope_frequencies(const girih_rope_table* table, double* out, int64_t capacity) {
  return guarded("girih_rope_frequencies", [&](const Call& call) {
    const auto frequencies = girih::rope_frequencies(girih::c_api::rope_table(call, call.read(table, "table")));
    call.check_capacity(out, capacity, std::ssize(frequencies), "out");
    std::copy(frequencies.begin(), frequencies.end(), out);
  });
}

girih_status girih_rope_cos_sin(const girih_rope_table* table, int64_t num_positions, float* out, int64_t capacity) {
  return guarded("girih_rope_cos_sin", [&](const Call& call) {
    const girih::RopeTable angles = girih::c_api::rope_table(call, call.read(table, "table"));
    std::int64_t needed = 0;
    if (angles.rotary_dim > 0 && num_positions > 0 && !__builtin_mul_overflow(num_positions, std::int64_t{angles.rotary_dim}, &needed)) {
      call.check_capacity(out, capacity, needed, "out");
    }
    const auto entries = girih::rope_cos_sin(angles, num_positions);
    std::copy(entries.begin(), entries.end(), out);
  });
}

girih_status girih_apply_rope(const girih_context* context, const girih_rope_args* args, void* stream) {
  return guarded("girih_apply_rope", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::rope(on, girih::c_api::rope_args(call, call.read(args, "args"), "args"), stream);
  });
}

girih_status girih_rope_append(const girih_context* context, const girih_kv_store* store, const girih_append_batch* batch,
                               const girih_rope_append_args* args, void* stream) {
  return guarded("girih_rope_append", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::rope_append(on, girih::c_api::kv_store(call, store, "store"), girih::c_api::append_batch(call, batch, "batch"),
                       girih::c_api::rope_append_args(call, call.read(args, "args")), stream);
  });
}

girih_status girih_rope_append_planned(const girih_context* context, const girih_device_plan* device_plan, const girih_kv_store* store,
                                       const int32_t* kv_indices, int64_t num_kv_indices, const girih_rope_append_args* args,
                                       int64_t segment, void* stream) {
  return guarded("girih_rope_append_planned", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    const girih::DevicePlan& plan = call.handle(device_plan, "device_plan").value;
    girih::rope_append(on, plan, girih::c_api::kv_store(call, store, "store"), call.array(kv_indices, num_kv_indices, "kv_indices"),
                       girih::c_api::rope_append_args(call, call.read(args, "args")), segment, stream);
  });
}
