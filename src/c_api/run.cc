// C ABI: running attention, merging states, and KV stores out of tensors.
#include <algorithm>

#include "c_api/convert.h"
#include "c_api/handles.h"

namespace girih::c_api {
namespace {

constexpr std::size_t kFewSegments = 8;

SegmentData segment_data(const Call& call, const girih_segment_data& d, const Field& field) {
  return {.store = kv_store(call, d.store, Field(field, "store")),
          .kv_indices = call.array(d.kv_indices, d.num_kv_indices, Field(field, "kv_indices")),
          .page_pos = call.array(d.page_pos, d.num_page_pos, Field(field, "page_pos"))};
}

void run(const Call& call, const Context& context, const Schedule& schedule, const Plan& plan, const girih_attention_args& a) {
  const Field field("args");
  const Field segments_field(field, "segments");
  call.check_array(a.segments, a.num_segments, segments_field);
  List<SegmentData, kFewSegments> segments(a.num_segments);
  for (std::int64_t i = 0; i < a.num_segments; ++i) {
    segments[i] = segment_data(call, call.read_element(a.segments, i, segments_field), Field(segments_field, i));
  }
  const ParamList values = params(call, a.params, a.num_params, Field(field, "params"));
  call.check_array(a.workspace, a.workspace_bytes, Field(field, "workspace"));
  const girih_device_plan* uploaded = a.device_plan;
  girih::run(context, schedule, plan,
             {.q = tensor(call, a.q, Field(field, "q")),
              .q_rope = tensor(call, a.q_rope, Field(field, "q_rope")),
              .segments = segments.span(),
              .params = values.span(),
              .o = tensor(call, a.o, Field(field, "o")),
              .lse = tensor(call, a.lse, Field(field, "lse")),
              .o_scale = tensor(call, a.o_scale, Field(field, "o_scale")),
              .workspace = {static_cast<std::byte*>(a.workspace), static_cast<std::size_t>(a.workspace_bytes)},
              .stream = a.stream,
              .device_plan = uploaded == nullptr ? nullptr : &call.handle(uploaded, Field(field, "device_plan")).value});
}

KvLayout layout_of(const Call& call, girih_kv_layout layout) {
  static_assert(static_cast<int>(KvLayout::hnd) == GIRIH_HND);
  return call.enumerator<KvLayout>(layout, GIRIH_HND + 1, "layout");
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::Call;
using girih::c_api::guarded;
using girih::c_api::layout_of;
using girih::c_api::tensor;
using girih::c_api::to_c;

girih_status girih_run(const girih_context* context, const girih_schedule* schedule, const girih_plan* plan,
                       const girih_attention_args* args) {
  return guarded("girih_run", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    const girih::Schedule& s = call.handle(schedule, "schedule").value;
    girih::c_api::run(call, on, s, call.handle(plan, "plan").value, call.read(args, "args"));
  });
}

girih_status girih_single_attention(const girih_context* context, const girih_attention_spec* spec, const girih_tensor* q,
                                    const girih_tensor* k, const girih_tensor* v, const girih_tensor* o, const girih_tensor* lse,
                                    const girih_param_value* params, int64_t num_params) {
  return guarded("girih_single_attention", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::single_attention(on, girih::c_api::spec(call, call.read(spec, "spec"), "spec"), tensor(call, q, "q"), tensor(call, k, "k"),
                            tensor(call, v, "v"), tensor(call, o, "o"), tensor(call, lse, "lse"),
                            girih::c_api::params(call, params, num_params, "params").span());
  });
}

girih_status girih_kv_len_from_last_page(const girih_indices* kv_indptr, const girih_indices* last_page_len, int64_t page_size,
                                         int64_t* kv_len, int64_t capacity) {
  return guarded("girih_kv_len_from_last_page", [&](const Call& call) {
    const girih::Indices last = girih::c_api::indices(call, last_page_len, "last_page_len");
    call.check_capacity(kv_len, capacity, last.size(), "kv_len");
    const auto lengths = girih::kv_len_from_last_page(girih::c_api::indices(call, kv_indptr, "kv_indptr"), last, page_size);
    std::copy(lengths.begin(), lengths.end(), kv_len);
  });
}

// ---------------------------------------------------------------------------------------------------------------- KV stores

girih_status girih_paged_kv_store(const girih_tensor* k, const girih_tensor* v, girih_kv_layout layout, girih_kv_store* out) {
  return guarded("girih_paged_kv_store", [&](const Call& call) {
    call.out(out, "out") = to_c(girih::paged_kv_store(tensor(call, k, "k"), tensor(call, v, "v"), layout_of(call, layout)));
  });
}

girih_status girih_paged_kv_store_from_one(const girih_tensor* kv, girih_kv_layout layout, girih_kv_store* out) {
  return guarded("girih_paged_kv_store_from_one", [&](const Call& call) {
    call.out(out, "out") = to_c(girih::paged_kv_store(tensor(call, kv, "kv"), layout_of(call, layout)));
  });
}

girih_status girih_ragged_kv_store(const girih_tensor* k, const girih_tensor* v, girih_kv_layout layout, girih_kv_store* out) {
  return guarded("girih_ragged_kv_store", [&](const Call& call) {
    call.out(out, "out") = to_c(girih::ragged_kv_store(tensor(call, k, "k"), tensor(call, v, "v"), layout_of(call, layout)));
  });
}

girih_status girih_mla_token_kv_store(const girih_tensor* tokens, int32_t latent_dim, int32_t rope_dim, girih_kv_store* out) {
  return guarded("girih_mla_token_kv_store", [&](const Call& call) {
    call.out(out, "out") = to_c(girih::mla_token_kv_store(tensor(call, tokens, "tokens"), latent_dim, rope_dim));
  });
}

girih_status girih_single_token_pages(const girih_kv_store* store, girih_kv_store* out) {
  return guarded("girih_single_token_pages", [&](const Call& call) {
    call.out(out, "out") = to_c(girih::single_token_pages(girih::c_api::kv_store(call, store, "store")));
  });
}

girih_status girih_block_sparse_kv_store(const girih_tensor* k, const girih_tensor* v, int64_t page_size, girih_kv_layout layout,
                                         girih_kv_store* out) {
  return guarded("girih_block_sparse_kv_store", [&](const Call& call) {
    call.out(out, "out") =
        to_c(girih::block_sparse_kv_store(tensor(call, k, "k"), tensor(call, v, "v"), page_size, layout_of(call, layout)));
  });
}

// ---------------------------------------------------------------------------------------------------------------- merge

girih_status girih_merge_state(const girih_context* context, const girih_tensor* v_a, const girih_tensor* s_a, const girih_tensor* v_b,
                               const girih_tensor* s_b, const girih_tensor* v_out, const girih_tensor* s_out, int32_t base2, void* stream) {
  return guarded("girih_merge_state", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::merge_state(on, tensor(call, v_a, "v_a"), tensor(call, s_a, "s_a"), tensor(call, v_b, "v_b"), tensor(call, s_b, "s_b"),
                       tensor(call, v_out, "v_out"), tensor(call, s_out, "s_out"), call.flag(base2, "base2"), stream);
  });
}

girih_status girih_merge_states(const girih_context* context, const girih_tensor* v, const girih_tensor* s, const girih_tensor* v_out,
                                const girih_tensor* s_out, int32_t base2, void* stream) {
  return guarded("girih_merge_states", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::merge_states(on, tensor(call, v, "v"), tensor(call, s, "s"), tensor(call, v_out, "v_out"), tensor(call, s_out, "s_out"),
                        call.flag(base2, "base2"), stream);
  });
}

girih_status girih_merge_states_varlen(const girih_context* context, const girih_tensor* v, const girih_tensor* s,
                                       const girih_indices* indptr, const girih_tensor* v_out, const girih_tensor* s_out, int32_t base2,
                                       void* stream) {
  return guarded("girih_merge_states_varlen", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::merge_states_varlen(on, tensor(call, v, "v"), tensor(call, s, "s"), girih::c_api::indices(call, indptr, "indptr"),
                               tensor(call, v_out, "v_out"), tensor(call, s_out, "s_out"), call.flag(base2, "base2"), stream);
  });
}
