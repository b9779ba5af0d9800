// Defaults of the C ABI's structs, taken from the C++ structs themselves so that the two cannot differ, and the functions that hand them
// out.
#include "c_api/structs.h"

#include "c_api/call.h"
#include "girih/activation.h"
#include "girih/attention.h"
#include "girih/context.h"
#include "girih/norm.h"
#include "girih/rope.h"
#include "girih/sampling.h"

namespace girih::c_api {
namespace {

/// Zeroed but for its size.
template <typename T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

girih_quantization unquantised() {
  girih_quantization q{};
  q.global_scale = Quantization{}.global_scale;
  return q;
}

girih_row_float number(const RowFloat& value) {
  girih_row_float row{};
  row.value = value.value;
  return row;
}

girih_row_int integer(const RowInt& value) {
  girih_row_int row{};
  row.value = value.value;
  return row;
}

}  // namespace

template <>
girih_jit_options defaults() {
  return sized<girih_jit_options>();
}

template <>
girih_context_options defaults() {
  return sized<girih_context_options>();
}

template <>
girih_context_info defaults() {
  return sized<girih_context_info>();
}

template <>
girih_schedule_info defaults() {
  return sized<girih_schedule_info>();
}

template <>
girih_plan_info defaults() {
  return sized<girih_plan_info>();
}

template <>
girih_attention_capability defaults() {
  return sized<girih_attention_capability>();
}

template <>
girih_rope defaults() {
  const Rope cpp;
  auto rope = sized<girih_rope>();
  rope.theta = cpp.theta;
  rope.scale = cpp.scale;
  return rope;
}

template <>
girih_variant_options defaults() {
  auto options = sized<girih_variant_options>();
  options.softmax = Variant{}.softmax ? 1 : 0;
  return options;
}

template <>
girih_attention_spec defaults() {
  const AttentionSpec cpp;
  auto spec = sized<girih_attention_spec>();
  spec.num_qo_heads = cpp.num_qo_heads;
  spec.num_kv_heads = cpp.num_kv_heads;
  spec.head_dim_qk = cpp.head_dim_qk;
  spec.q_dtype = static_cast<girih_dtype>(cpp.q_dtype);
  spec.k_dtype = static_cast<girih_dtype>(cpp.k_dtype);
  spec.v_dtype = static_cast<girih_dtype>(cpp.v_dtype);
  spec.o_dtype = static_cast<girih_dtype>(cpp.o_dtype);
  return spec;
}

template <>
girih_attention_limits defaults() {
  const AttentionLimits cpp;
  auto limits = sized<girih_attention_limits>();
  limits.max_segments = cpp.max_segments;
  limits.max_param_bytes = cpp.max_param_bytes;
  return limits;
}

template <>
girih_schedule_options defaults() {
  return sized<girih_schedule_options>();
}

template <>
girih_kv_segment defaults() {
  const KvSegment cpp;
  auto segment = sized<girih_kv_segment>();
  segment.page_size = cpp.page_size;
  segment.num_table_heads = cpp.num_table_heads;
  segment.masked = cpp.masked ? 1 : 0;
  return segment;
}

template <>
girih_batch defaults() {
  return sized<girih_batch>();
}

template <>
girih_segment_data defaults() {
  auto data = sized<girih_segment_data>();
  data.store.page_size = KvStore{}.page_size;
  return data;
}

template <>
girih_attention_args defaults() {
  return sized<girih_attention_args>();
}

template <>
girih_append_batch defaults() {
  return sized<girih_append_batch>();
}

template <>
girih_norm_args defaults() {
  const NormArgs cpp;
  auto args = sized<girih_norm_args>();
  args.quantization = unquantised();
  args.eps = cpp.eps;
  args.weight_offset = cpp.weight_offset;
  return args;
}

template <>
girih_activation_args defaults() {
  const ActivationArgs cpp;
  auto args = sized<girih_activation_args>();
  args.quantization = unquantised();
  args.alpha = cpp.alpha;
  args.limit = cpp.limit;
  return args;
}

template <>
girih_yarn defaults() {
  const RopeTable::Yarn cpp;
  auto yarn = sized<girih_yarn>();
  yarn.factor = cpp.factor;
  yarn.original_context_len = cpp.original_context_len;
  yarn.beta_fast = cpp.beta_fast;
  yarn.beta_slow = cpp.beta_slow;
  yarn.attention_factor = cpp.attention_factor;
  yarn.whole_pairs = cpp.whole_pairs ? 1 : 0;
  return yarn;
}

template <>
girih_rope_table defaults() {
  const RopeTable cpp;
  auto table = sized<girih_rope_table>();
  table.theta = cpp.theta;
  table.linear = cpp.linear;
  table.ntk = cpp.ntk;
  return table;
}

template <>
girih_rope_args defaults() {
  const RopeArgs cpp;
  auto args = sized<girih_rope_args>();
  args.q_quantization = unquantised();
  args.k_quantization = unquantised();
  args.eps = cpp.eps;
  args.weight_offset = cpp.weight_offset;
  return args;
}

template <>
girih_rope_append_args defaults() {
  return sized<girih_rope_append_args>();
}

template <>
girih_sample_args defaults() {
  const SampleArgs cpp;
  auto args = sized<girih_sample_args>();
  args.repetition_penalty = number(cpp.repetition_penalty);
  args.frequency_penalty = number(cpp.frequency_penalty);
  args.presence_penalty = number(cpp.presence_penalty);
  args.temperature = number(cpp.temperature);
  args.top_k = integer(cpp.top_k);
  args.top_p = number(cpp.top_p);
  args.min_p = number(cpp.min_p);
  return args;
}

template <>
girih_top_k_args defaults() {
  auto args = sized<girih_top_k_args>();
  args.page_size = PageTableTransform{}.page_size;
  return args;
}

template <>
girih_speculative_args defaults() {
  return sized<girih_speculative_args>();
}

}  // namespace girih::c_api

using girih::c_api::init_struct;

girih_status girih_jit_options_init(girih_jit_options* out, uint64_t struct_size) {
  return init_struct("girih_jit_options_init", out, struct_size);
}
girih_status girih_context_options_init(girih_context_options* out, uint64_t struct_size) {
  return init_struct("girih_context_options_init", out, struct_size);
}
girih_status girih_rope_init(girih_rope* out, uint64_t struct_size) { return init_struct("girih_rope_init", out, struct_size); }
girih_status girih_variant_options_init(girih_variant_options* out, uint64_t struct_size) {
  return init_struct("girih_variant_options_init", out, struct_size);
}
girih_status girih_attention_spec_init(girih_attention_spec* out, uint64_t struct_size) {
  return init_struct("girih_attention_spec_init", out, struct_size);
}
girih_status girih_attention_limits_init(girih_attention_limits* out, uint64_t struct_size) {
  return init_struct("girih_attention_limits_init", out, struct_size);
}
girih_status girih_schedule_options_init(girih_schedule_options* out, uint64_t struct_size) {
  return init_struct("girih_schedule_options_init", out, struct_size);
}
girih_status girih_kv_segment_init(girih_kv_segment* out, uint64_t struct_size) {
  return init_struct("girih_kv_segment_init", out, struct_size);
}
girih_status girih_batch_init(girih_batch* out, uint64_t struct_size) { return init_struct("girih_batch_init", out, struct_size); }
girih_status girih_segment_data_init(girih_segment_data* out, uint64_t struct_size) {
  return init_struct("girih_segment_data_init", out, struct_size);
}
girih_status girih_attention_args_init(girih_attention_args* out, uint64_t struct_size) {
  return init_struct("girih_attention_args_init", out, struct_size);
}
girih_status girih_append_batch_init(girih_append_batch* out, uint64_t struct_size) {
  return init_struct("girih_append_batch_init", out, struct_size);
}
girih_status girih_norm_args_init(girih_norm_args* out, uint64_t struct_size) {
  return init_struct("girih_norm_args_init", out, struct_size);
}
girih_status girih_activation_args_init(girih_activation_args* out, uint64_t struct_size) {
  return init_struct("girih_activation_args_init", out, struct_size);
}
girih_status girih_yarn_init(girih_yarn* out, uint64_t struct_size) { return init_struct("girih_yarn_init", out, struct_size); }
girih_status girih_rope_table_init(girih_rope_table* out, uint64_t struct_size) {
  return init_struct("girih_rope_table_init", out, struct_size);
}
girih_status girih_rope_args_init(girih_rope_args* out, uint64_t struct_size) {
  return init_struct("girih_rope_args_init", out, struct_size);
}
girih_status girih_rope_append_args_init(girih_rope_append_args* out, uint64_t struct_size) {
  return init_struct("girih_rope_append_args_init", out, struct_size);
}
girih_status girih_sample_args_init(girih_sample_args* out, uint64_t struct_size) {
  return init_struct("girih_sample_args_init", out, struct_size);
}
girih_status girih_top_k_args_init(girih_top_k_args* out, uint64_t struct_size) {
  return init_struct("girih_top_k_args_init", out, struct_size);
}
girih_status girih_speculative_args_init(girih_speculative_args* out, uint64_t struct_size) {
  return init_struct("girih_speculative_args_init", out, struct_size);
}
girih_status girih_context_info_init(girih_context_info* out, uint64_t struct_size) {
  return init_struct("girih_context_info_init", out, struct_size);
}
girih_status girih_schedule_info_init(girih_schedule_info* out, uint64_t struct_size) {
  return init_struct("girih_schedule_info_init", out, struct_size);
}
girih_status girih_plan_info_init(girih_plan_info* out, uint64_t struct_size) {
  return init_struct("girih_plan_info_init", out, struct_size);
}
girih_status girih_attention_capability_init(girih_attention_capability* out, uint64_t struct_size) {
  return init_struct("girih_attention_capability_init", out, struct_size);
}
