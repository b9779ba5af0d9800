// C ABI: the paged KV cache.
#include "girih/page.h"

#include <algorithm>

#include "c_api/convert.h"
#include "c_api/handles.h"

using girih::c_api::Call;
using girih::c_api::guarded;
using girih::c_api::tensor;

girih_status girih_append(const girih_context* context, const girih_kv_store* store, const girih_append_batch* batch, const girih_tensor* k,
                          const girih_tensor* k_rope, const girih_tensor* v, void* stream) {
  return guarded("girih_append", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::append(on, girih::c_api::kv_store(call, store, "store"), girih::c_api::append_batch(call, batch, "batch"), tensor(call, k, "k"),
                  tensor(call, k_rope, "k_rope"), tensor(call, v, "v"), stream);
  });
}

girih_status girih_append_planned(const girih_context* context, const girih_device_plan* device_plan, const girih_kv_store* store,
                                  const int32_t* kv_indices, int64_t num_kv_indices, const girih_tensor* k, const girih_tensor* k_rope,
                                  const girih_tensor* v, int64_t segment, void* stream) {
  return guarded("girih_append_planned", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    const girih::DevicePlan& plan = call.handle(device_plan, "device_plan").value;
    girih::append(on, plan, girih::c_api::kv_store(call, store, "store"), call.array(kv_indices, num_kv_indices, "kv_indices"),
                  tensor(call, k, "k"), tensor(call, k_rope, "k_rope"), tensor(call, v, "v"), segment, stream);
  });
}

girih_status girih_append_by_table(const girih_context* context, const girih_kv_store* store, const girih_tensor* slots,
                                   const girih_tensor* batch_indices, const girih_tensor* positions, const girih_tensor* kv_indptr,
                                   const girih_tensor* kv_indices, const girih_tensor* k, const girih_tensor* k_rope, const girih_tensor* v,
                                   void* stream) {
  return guarded("girih_append_by_table", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    const girih::AppendTable table{.slots = tensor(call, slots, "slots"),
                                   .batch_indices = tensor(call, batch_indices, "batch_indices"),
                                   .positions = tensor(call, positions, "positions"),
                                   .kv_indptr = tensor(call, kv_indptr, "kv_indptr"),
                                   .kv_indices = tensor(call, kv_indices, "kv_indices")};
    girih::append(on, girih::c_api::kv_store(call, store, "store"), table, tensor(call, k, "k"), tensor(call, k_rope, "k_rope"),
                  tensor(call, v, "v"), stream);
  });
}

girih_status girih_copy_pages(const girih_context* context, const girih_kv_store* store, int32_t num_kv_heads, int32_t dim_k,
                              int32_t dim_rope, int32_t dim_v, const girih_page_copy* copies, int64_t num_copies, void* stream) {
  return guarded("girih_copy_pages", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    const auto given = call.array(copies, num_copies, "copies");
    std::vector<girih::PageCopy> list;
    list.reserve(given.size());
    for (const girih_page_copy& copy : given) list.push_back({copy.source, copy.destination});
    girih::copy_pages(on, girih::c_api::kv_store(call, store, "store"), num_kv_heads, dim_k, dim_rope, dim_v, list, stream);
  });
}

girih_status girih_append_positions(const girih_indices* append_indptr, const girih_indices* kv_len, int32_t* batch_indices,
                                    int64_t* positions, int64_t capacity) {
  return guarded("girih_append_positions", [&](const Call& call) {
    const girih::AppendPositions found =
        girih::append_positions(girih::c_api::indices(call, append_indptr, "append_indptr"), girih::c_api::indices(call, kv_len, "kv_len"));
    call.check_capacity(batch_indices, capacity, std::ssize(found.batch_indices), "batch_indices");
    call.check_capacity(positions, capacity, std::ssize(found.positions), "positions");
    std::copy(found.batch_indices.begin(), found.batch_indices.end(), batch_indices);
    std::copy(found.positions.begin(), found.positions.end(), positions);
  });
}
