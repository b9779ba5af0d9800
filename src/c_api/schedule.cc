// C ABI: schedules, warm-up and the capability table.
#include "c_api/convert.h"
#include "c_api/handles.h"

namespace girih::c_api {
namespace {

static_assert(static_cast<int>(KernelOrigin::compiled) == GIRIH_KERNEL_COMPILED &&
              static_cast<int>(KernelOrigin::pack) == GIRIH_KERNEL_PACK);

AttentionLimits limits(const girih_attention_limits& l) {
  return {.max_tokens = l.max_tokens,
          .max_requests = l.max_requests,
          .max_segments = l.max_segments,
          .max_groups = l.max_groups,
          .max_kv_len = l.max_kv_len,
          .max_param_bytes = l.max_param_bytes,
          .max_qo_len = l.max_qo_len,
          .max_items = l.max_items};
}

girih_attention_limits c_limits(const AttentionLimits& l) {
  return {.struct_size = sizeof(girih_attention_limits),
          .max_tokens = l.max_tokens,
          .max_requests = l.max_requests,
          .max_segments = l.max_segments,
          .max_groups = l.max_groups,
          .max_kv_len = l.max_kv_len,
          .max_param_bytes = l.max_param_bytes,
          .max_qo_len = l.max_qo_len,
          .max_items = l.max_items};
}

girih_attention_spec c_spec(const AttentionSpec& s, const girih_variant& variant) {
  return {.struct_size = sizeof(girih_attention_spec),
          .num_qo_heads = s.num_qo_heads,
          .num_kv_heads = s.num_kv_heads,
          .head_dim_qk = s.head_dim_qk,
          .head_dim_vo = s.head_dim_vo,
          .head_dim_rope = s.head_dim_rope,
          .q_dtype = static_cast<girih_dtype>(s.q_dtype),
          .k_dtype = static_cast<girih_dtype>(s.k_dtype),
          .v_dtype = static_cast<girih_dtype>(s.v_dtype),
          .o_dtype = static_cast<girih_dtype>(s.o_dtype),
          .k_scale = static_cast<girih_scale_granularity>(s.k_scale),
          .v_scale = static_cast<girih_scale_granularity>(s.v_scale),
          .v_is_k = s.v_is_k ? 1 : 0,
          .sm_scale = s.sm_scale,
          .lse = static_cast<girih_lse_kind>(s.lse),
          .partial_state = s.partial_state ? 1 : 0,
          .batch_invariant = s.batch_invariant ? 1 : 0,
          .k_rope_dtype_plus_one = s.k_rope_dtype ? static_cast<std::int32_t>(*s.k_rope_dtype) + 1 : 0,
          .variant = &variant};
}

/// The caller's function as the library's, which hears of "stop" by an exception.
WarmupFn warmup_fn(girih_warmup_fn progress, void* user) {
  if (progress == nullptr) return {};
  return [progress, user](const WarmupProgress& event) {
    const std::string name(event.name);
    const std::string target(event.target);
    const girih_warmup_progress told{.struct_size = sizeof(girih_warmup_progress),
                                     .done = event.done,
                                     .total = event.total,
                                     .name = name.c_str(),
                                     .target = target.c_str(),
                                     .seconds = event.seconds,
                                     .origin = static_cast<std::int32_t>(event.origin),
                                     .reserved = 0};
    if (progress(user, &told) != 0) throw Cancelled(fmt::format("progress asked to stop after {} of {} kernels", event.done, event.total));
  };
}

std::vector<girih_dtype> numbers(const std::vector<DType>& types) {
  std::vector<girih_dtype> list;
  list.reserve(types.size());
  for (const DType type : types) list.push_back(static_cast<girih_dtype>(type));
  return list;
}

girih_capabilities::Row capability_row(AttentionCapability capability) {
  girih_capabilities::Row row;
  row.value = std::move(capability);
  row.q_dtypes = numbers(row.value.q_dtypes);
  row.o_dtypes = numbers(row.value.o_dtypes);
  row.kv_dtypes = numbers(row.value.kv_dtypes);
  return row;
}

girih_attention_capability c_capability(const girih_capabilities::Row& row) {
  return {.struct_size = sizeof(girih_attention_capability),
          .family = row.value.family.c_str(),
          .q_dtypes = row.q_dtypes.data(),
          .o_dtypes = row.o_dtypes.data(),
          .kv_dtypes = row.kv_dtypes.data(),
          .features = row.features.data(),
          .num_q_dtypes = std::ssize(row.q_dtypes),
          .num_o_dtypes = std::ssize(row.o_dtypes),
          .num_kv_dtypes = std::ssize(row.kv_dtypes),
          .num_features = std::ssize(row.features),
          .device = static_cast<girih_device_kind>(row.value.device),
          .max_head_dim = row.value.max_head_dim};
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::c_capability;
using girih::c_api::c_limits;
using girih::c_api::c_spec;
using girih::c_api::Call;
using girih::c_api::Field;
using girih::c_api::guarded;

girih_status girih_schedule_create(const girih_context* context, const girih_attention_spec* spec, const girih_attention_limits* limits,
                                   const girih_schedule_options* options, girih_schedule** out) {
  return guarded("girih_schedule_create", [&](const Call& call) {
    girih_schedule*& handle = call.new_handle(out);
    const girih::Context& on = call.handle(context, "context").value;
    const girih::AttentionSpec asked = girih::c_api::spec(call, call.read(spec, "spec"), "spec");
    const girih::AttentionLimits most = girih::c_api::limits(call.read(limits, "limits"));
    const girih_schedule_options fixed = call.read_or_defaults(options, "options");
    girih::Schedule made = girih::schedule(
        on, asked, most, {.num_units = fixed.num_units, .num_sms = fixed.num_sms, .family = fixed.family == nullptr ? "" : fixed.family});
    girih_variant variant{.value = made.spec().variant};
    handle = new girih_schedule{.value = std::move(made), .variant = std::move(variant)};
  });
}

void girih_schedule_destroy(girih_schedule* schedule) { girih::c_api::destroy("girih_schedule_destroy", schedule); }

girih_status girih_schedule_get_info(const girih_schedule* schedule, girih_schedule_info* info) {
  return guarded("girih_schedule_get_info", [&](const Call& call) {
    const girih::Schedule& s = call.handle(schedule, "schedule").value;
    const girih_schedule_info filled{.struct_size = sizeof(girih_schedule_info),
                                     .key = s.key().c_str(),
                                     .workspace_bytes = s.workspace_bytes(),
                                     .num_regions = std::ssize(s.workspace_layout()),
                                     .num_units = s.num_units(),
                                     .reserved = 0};
    call.write(info, filled, "info");
  });
}

girih_status girih_schedule_get_spec(const girih_schedule* schedule, girih_attention_spec* spec) {
  return guarded("girih_schedule_get_spec", [&](const Call& call) {
    const girih_schedule& s = call.handle(schedule, "schedule");
    call.write(spec, c_spec(s.value.spec(), s.variant), "spec");
  });
}

girih_status girih_schedule_get_limits(const girih_schedule* schedule, girih_attention_limits* limits) {
  return guarded("girih_schedule_get_limits",
                 [&](const Call& call) { call.write(limits, c_limits(call.handle(schedule, "schedule").value.limits()), "limits"); });
}

girih_status girih_schedule_get_region(const girih_schedule* schedule, int64_t index, girih_workspace_region* region) {
  return guarded("girih_schedule_get_region", [&](const Call& call) {
    const auto layout = call.handle(schedule, "schedule").value.workspace_layout();
    if (index < 0 || index >= std::ssize(layout)) call.refuse("index={}; the workspace has {} regions", index, layout.size());
    const girih::WorkspaceRegion& found = layout[static_cast<std::size_t>(index)];
    call.out(region, "region") = {.name = found.name.c_str(), .offset = found.offset, .size = found.size};
  });
}

girih_status girih_warmup(const girih_context* context, const girih_attention_spec* specs, int64_t num_specs, girih_warmup_fn progress,
                          void* user) {
  return guarded("girih_warmup", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    const Field field("specs");
    call.check_array(specs, num_specs, field);
    std::vector<girih::AttentionSpec> list;
    list.reserve(static_cast<std::size_t>(num_specs));
    for (std::int64_t i = 0; i < num_specs; ++i) {
      list.push_back(girih::c_api::spec(call, call.read_element(specs, i, field), Field(field, i)));
    }
    girih::warmup(on, list, girih::c_api::warmup_fn(progress, user));
  });
}

girih_status girih_capabilities_create(girih_capabilities** out) {
  return guarded("girih_capabilities_create", [&](const Call& call) {
    girih_capabilities*& handle = call.new_handle(out);
    std::vector<girih::AttentionCapability> found = girih::attention_capabilities();
    std::vector<girih_capabilities::Row> rows;
    rows.reserve(found.size());
    for (girih::AttentionCapability& capability : found) {
      rows.push_back(girih::c_api::capability_row(std::move(capability)));
    }
    // Texts may move with their rows: pointed to only now.
    for (girih_capabilities::Row& row : rows) {
      row.features.reserve(row.value.features.size());
      for (const std::string& feature : row.value.features) row.features.push_back(feature.c_str());
    }
    handle = new girih_capabilities{.rows = std::move(rows)};
  });
}

void girih_capabilities_destroy(girih_capabilities* capabilities) { girih::c_api::destroy("girih_capabilities_destroy", capabilities); }

girih_status girih_capabilities_get_size(const girih_capabilities* capabilities, int64_t* out) {
  return guarded("girih_capabilities_get_size",
                 [&](const Call& call) { call.out(out, "out") = std::ssize(call.handle(capabilities, "capabilities").rows); });
}

girih_status girih_capabilities_get(const girih_capabilities* capabilities, int64_t index, girih_attention_capability* out) {
  return guarded("girih_capabilities_get", [&](const Call& call) {
    const auto& rows = call.handle(capabilities, "capabilities").rows;
    if (index < 0 || index >= std::ssize(rows)) call.refuse("index={}; the table has {} rows", index, rows.size());
    call.write(out, c_capability(rows[static_cast<std::size_t>(index)]), "out");
  });
}
