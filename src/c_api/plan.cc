// C ABI: plans, on the host and on the device, and block-sparse patterns as segments.
#include "c_api/convert.h"
#include "c_api/handles.h"

namespace girih::c_api {
namespace {

constexpr std::size_t kFewSegments = 8;

KvSegment kv_segment(const Call& call, const girih_kv_segment& s, const Field& field) {
  return {.qo_indptr = indices(call, s.qo_indptr, Field(field, "qo_indptr")),
          .page_size = s.page_size,
          .num_table_heads = s.num_table_heads,
          .kv_indptr = indices(call, s.kv_indptr, Field(field, "kv_indptr")),
          .table_stride = s.table_stride,
          .kv_len = indices(call, s.kv_len, Field(field, "kv_len")),
          .kv_pos = indices(call, s.kv_pos, Field(field, "kv_pos")),
          .page_pos = indices(call, s.page_pos, Field(field, "page_pos")),
          .kv_rope_pos = indices(call, s.kv_rope_pos, Field(field, "kv_rope_pos")),
          .masked = call.flag(s.masked, Field(field, "masked"))};
}

void update(const Call& call, Plan& plan, const girih_batch& batch) {
  const Field field("batch");
  const Field segments_field(field, "segments");
  call.check_array(batch.segments, batch.num_segments, segments_field);
  List<KvSegment, kFewSegments> segments(batch.num_segments);
  for (std::int64_t i = 0; i < batch.num_segments; ++i) {
    segments[i] = kv_segment(call, call.read_element(batch.segments, i, segments_field), Field(segments_field, i));
  }
  const ParamList values = params(call, batch.params, batch.num_params, Field(field, "params"));
  plan.update({.qo_indptr = indices(call, batch.qo_indptr, Field(field, "qo_indptr")),
               .segments = segments.span(),
               .kv_len = indices(call, batch.kv_len, Field(field, "kv_len")),
               .q_pos = indices(call, batch.q_pos, Field(field, "q_pos")),
               .q_rope_pos = indices(call, batch.q_rope_pos, Field(field, "q_rope_pos")),
               .params = values.span()});
}

girih_plan_info info_of_plan(const PlanInfo& info) {
  return {.struct_size = sizeof(girih_plan_info),
          .num_items = info.num_items,
          .num_merges = info.num_merges,
          .workspace_bytes = info.workspace_bytes,
          .blob_bytes = info.blob_bytes,
          .max_unit_cost = info.max_unit_cost,
          .total_cost = info.total_cost,
          .max_piece_cost = info.max_piece_cost,
          .visible_pairs = info.visible_pairs};
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::Call;
using girih::c_api::guarded;
using girih::c_api::info_of_plan;

girih_status girih_plan_create(const girih_schedule* schedule, girih_plan** out) {
  return guarded("girih_plan_create", [&](const Call& call) {
    girih_plan*& handle = call.new_handle(out);
    handle = new girih_plan{.value = girih::Plan(call.handle(schedule, "schedule").value)};
  });
}

void girih_plan_destroy(girih_plan* plan) { girih::c_api::destroy("girih_plan_destroy", plan); }

// `info` is tried first: a plan whose information cannot be given is not changed.
girih_status girih_plan_update(girih_plan* plan, const girih_batch* batch, girih_plan_info* info) {
  return guarded("girih_plan_update", [&](const Call& call) {
    girih::Plan& p = call.handle(plan, "plan").value;
    if (info != nullptr) call.write(info, info_of_plan(p.info()), "info");
    girih::c_api::update(call, p, call.read(batch, "batch"));
    if (info != nullptr) call.write(info, info_of_plan(p.info()), "info");
  });
}

girih_status girih_plan_load(girih_plan* plan, const void* blob, int64_t bytes, girih_plan_info* info) {
  return guarded("girih_plan_load", [&](const Call& call) {
    girih::Plan& p = call.handle(plan, "plan").value;
    if (info != nullptr) call.write(info, info_of_plan(p.info()), "info");
    p.load(call.array(static_cast<const std::byte*>(blob), bytes, "blob"));
    if (info != nullptr) call.write(info, info_of_plan(p.info()), "info");
  });
}

girih_status girih_plan_get_info(const girih_plan* plan, girih_plan_info* info) {
  return guarded("girih_plan_get_info",
                 [&](const Call& call) { call.write(info, info_of_plan(call.handle(plan, "plan").value.info()), "info"); });
}

girih_status girih_plan_get_blob(const girih_plan* plan, const void** blob, int64_t* bytes) {
  return guarded("girih_plan_get_blob", [&](const Call& call) {
    const std::span<const std::byte> found = call.handle(plan, "plan").value.blob();
    const void*& to = call.out(blob, "blob");
    call.out(bytes, "bytes") = std::ssize(found);
    to = found.data();
  });
}

girih_status girih_device_plan_create(const girih_context* context, const girih_schedule* schedule, girih_device_plan** out) {
  return guarded("girih_device_plan_create", [&](const Call& call) {
    girih_device_plan*& handle = call.new_handle(out);
    handle =
        new girih_device_plan{.value = girih::DevicePlan(call.handle(context, "context").value, call.handle(schedule, "schedule").value)};
  });
}

void girih_device_plan_destroy(girih_device_plan* device_plan) { girih::c_api::destroy("girih_device_plan_destroy", device_plan); }

girih_status girih_device_plan_upload(girih_device_plan* device_plan, const girih_plan* plan, void* stream) {
  return guarded("girih_device_plan_upload",
                 [&](const Call& call) { call.handle(device_plan, "device_plan").value.upload(call.handle(plan, "plan").value, stream); });
}

girih_status girih_device_plan_stage(girih_device_plan* device_plan, const girih_plan* plan) {
  return guarded("girih_device_plan_stage",
                 [&](const Call& call) { call.handle(device_plan, "device_plan").value.stage(call.handle(plan, "plan").value); });
}

girih_status girih_device_plan_get_capacity_bytes(const girih_device_plan* device_plan, int64_t* out) {
  return guarded("girih_device_plan_get_capacity_bytes",
                 [&](const Call& call) { call.out(out, "out") = call.handle(device_plan, "device_plan").value.capacity_bytes(); });
}

// ---------------------------------------------------------------------------------------------------------------- block sparse

girih_status girih_block_sparse_create(int64_t num_rows, int64_t num_cols, int64_t block_rows, int64_t block_cols,
                                       const girih_indices* indptr, const girih_indices* indices, int32_t num_heads,
                                       girih_block_sparse** out) {
  return guarded("girih_block_sparse_create", [&](const Call& call) {
    girih_block_sparse*& handle = call.new_handle(out);
    handle = new girih_block_sparse{.value = girih::block_sparse(num_rows, num_cols, block_rows, block_cols,
                                                                 girih::c_api::indices(call, indptr, "indptr"),
                                                                 girih::c_api::indices(call, indices, "indices"), num_heads)};
  });
}

girih_status girih_block_sparse_create_variable(const girih_indices* row_sizes, const girih_indices* col_sizes, const uint8_t* block_mask,
                                                int64_t mask_bytes, int32_t num_heads, girih_block_sparse** out) {
  return guarded("girih_block_sparse_create_variable", [&](const Call& call) {
    girih_block_sparse*& handle = call.new_handle(out);
    handle = new girih_block_sparse{.value = girih::variable_block_sparse(girih::c_api::indices(call, row_sizes, "row_sizes"),
                                                                          girih::c_api::indices(call, col_sizes, "col_sizes"),
                                                                          call.array(block_mask, mask_bytes, "block_mask"), num_heads)};
  });
}

void girih_block_sparse_destroy(girih_block_sparse* block_sparse) { girih::c_api::destroy("girih_block_sparse_destroy", block_sparse); }

girih_status girih_block_sparse_get_segment(const girih_block_sparse* block_sparse, girih_kv_segment* segment) {
  return guarded("girih_block_sparse_get_segment", [&](const Call& call) {
    const girih::BlockSparse& b = call.handle(block_sparse, "block_sparse").value;
    auto filled = girih::c_api::defaults<girih_kv_segment>();
    filled.qo_indptr = girih::c_api::view_of(b.qo_indptr);
    filled.page_size = b.page_size;
    filled.kv_indptr = girih::c_api::view_of(b.kv_indptr);
    filled.kv_len = girih::c_api::view_of(b.kv_len);
    filled.page_pos = girih::c_api::view_of(b.page_pos);
    filled.num_table_heads = b.num_table_heads;
    call.write(segment, filled, "segment");
  });
}

girih_status girih_block_sparse_get_data(const girih_block_sparse* block_sparse, girih_segment_data* data) {
  return guarded("girih_block_sparse_get_data", [&](const Call& call) {
    const girih::BlockSparse& b = call.handle(block_sparse, "block_sparse").value;
    girih_segment_data filled = call.read(data, "data");
    filled.kv_indices = b.kv_indices.data();
    filled.num_kv_indices = std::ssize(b.kv_indices);
    filled.page_pos = b.page_pos.data();
    filled.num_page_pos = std::ssize(b.page_pos);
    call.write(data, filled, "data");
  });
}
