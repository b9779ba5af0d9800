// The C ABI's structs that have a size: the name and the size that each had in its first version (never to be changed: callers compiled
// then are still taken), and its defaults, which are those of the C++ struct that it mirrors.
#pragma once

#include <cstdint>

#include "girih/girih_c.h"

namespace girih::c_api {

struct StructInfo {
  const char* name;
  std::uint64_t first_size;  ///< bytes, where pointers have 64 bits
};

template <typename T>
inline constexpr StructInfo kStruct{};
template <>
inline constexpr StructInfo kStruct<girih_jit_options>{"girih_jit_options", 64};
template <>
inline constexpr StructInfo kStruct<girih_context_options>{"girih_context_options", 64};
template <>
inline constexpr StructInfo kStruct<girih_context_info>{"girih_context_info", 24};
template <>
inline constexpr StructInfo kStruct<girih_rope>{"girih_rope", 48};
template <>
inline constexpr StructInfo kStruct<girih_variant_options>{"girih_variant_options", 88};
template <>
inline constexpr StructInfo kStruct<girih_attention_spec>{"girih_attention_spec", 88};
template <>
inline constexpr StructInfo kStruct<girih_attention_limits>{"girih_attention_limits", 72};
template <>
inline constexpr StructInfo kStruct<girih_schedule_options>{"girih_schedule_options", 24};
template <>
inline constexpr StructInfo kStruct<girih_schedule_info>{"girih_schedule_info", 40};
template <>
inline constexpr StructInfo kStruct<girih_kv_segment>{"girih_kv_segment", 176};
template <>
inline constexpr StructInfo kStruct<girih_batch>{"girih_batch", 136};
template <>
inline constexpr StructInfo kStruct<girih_plan_info>{"girih_plan_info", 72};
template <>
inline constexpr StructInfo kStruct<girih_segment_data>{"girih_segment_data", 320};
template <>
inline constexpr StructInfo kStruct<girih_attention_args>{"girih_attention_args", 552};
template <>
inline constexpr StructInfo kStruct<girih_attention_capability>{"girih_attention_capability", 88};
template <>
inline constexpr StructInfo kStruct<girih_append_batch>{"girih_append_batch", 104};
template <>
inline constexpr StructInfo kStruct<girih_norm_args>{"girih_norm_args", 872};
template <>
inline constexpr StructInfo kStruct<girih_activation_args>{"girih_activation_args", 520};
template <>
inline constexpr StructInfo kStruct<girih_yarn>{"girih_yarn", 56};
template <>
inline constexpr StructInfo kStruct<girih_rope_table>{"girih_rope_table", 56};
template <>
inline constexpr StructInfo kStruct<girih_rope_args>{"girih_rope_args", 1496};
template <>
inline constexpr StructInfo kStruct<girih_rope_append_args>{"girih_rope_append_args", 496};
template <>
inline constexpr StructInfo kStruct<girih_sample_args>{"girih_sample_args", 2864};
template <>
inline constexpr StructInfo kStruct<girih_top_k_args>{"girih_top_k_args", 1000};
template <>
inline constexpr StructInfo kStruct<girih_speculative_args>{"girih_speculative_args", 1000};

/// Of the current version, struct_size included.
template <typename T>
T defaults();
template <>
girih_jit_options defaults();
template <>
girih_context_options defaults();
template <>
girih_context_info defaults();
template <>
girih_schedule_info defaults();
template <>
girih_plan_info defaults();
template <>
girih_attention_capability defaults();
template <>
girih_rope defaults();
template <>
girih_variant_options defaults();
template <>
girih_attention_spec defaults();
template <>
girih_attention_limits defaults();
template <>
girih_schedule_options defaults();
template <>
girih_kv_segment defaults();
template <>
girih_batch defaults();
template <>
girih_segment_data defaults();
template <>
girih_attention_args defaults();
template <>
girih_append_batch defaults();
template <>
girih_norm_args defaults();
template <>
girih_activation_args defaults();
template <>
girih_yarn defaults();
template <>
girih_rope_table defaults();
template <>
girih_rope_args defaults();
template <>
girih_rope_append_args defaults();
template <>
girih_sample_args defaults();
template <>
girih_top_k_args defaults();
template <>
girih_speculative_args defaults();

}  // namespace girih::c_api
