// Which cases of tests/cases lend their specs to the emulator's kernels, and the GPU that these are generated for. A kernel depends on the
// spec alone, so few names cover the branches of every family; the test runs all cases whose kernels there are.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "attention/cuda.h"
#include "cases/attention.h"

namespace girih::emulator {

/// Few multiprocessors, so that even small batches are split between blocks.
inline cuda::DeviceInfo emulated_device() {
  return {.name = "emulator",
          .arch = 90,
          .num_sms = 3,
          .shared_per_block = 227 * 1024,
          .shared_per_sm = 228 * 1024,
          .l2_bytes = 50 << 20,
          .memory_bytes = std::int64_t{80} << 30};
}

/// Requests `ids` of four: keys for several chunks or one, one query or many.
inline cases::AttentionCase invariant_case(std::string name, const std::vector<std::int64_t>& ids) {
  constexpr std::array<std::int64_t, 4> kQ{1, 4, 37, 2};
  constexpr std::array<std::int64_t, 4> kKv{5000, 2500, 4100, 60};
  cases::Lengths lengths{"batch", {}, {}};
  for (const std::int64_t id : ids) {
    lengths.q.push_back(kQ[static_cast<std::size_t>(id)]);
    lengths.kv.push_back(kKv[static_cast<std::size_t>(id)]);
  }
  cases::AttentionCase c = cases::make_case(std::move(name), cases::make_spec(6, 2, 64), lengths);
  c.spec.batch_invariant = true;
  c.data_id = ids;
  return c;
}

/// Batch-invariant: all four requests together and by pairs; a plain sum, whose chunks are added.
inline std::vector<cases::AttentionCase> invariant_cases() {
  std::vector<cases::AttentionCase> all = {invariant_case("invariant_0123", {0, 1, 2, 3}), invariant_case("invariant_20", {2, 0}),
                                           invariant_case("invariant_31", {3, 1}), invariant_case("invariant_sigmoid", {3, 2, 1})};
  AttentionSpec& sum = all.back().spec;
  sum.variant.softmax = false;
  sum.variant.logits = variants::sigmoid_logits(-1.0F);
  sum.lse = LseKind::none;
  return all;
}

/// So many keys that the plan leaves the last of them to blocks that are free.
inline cases::AttentionCase long_decode_case() {
  return cases::make_case("long_decode", cases::make_spec(6, 2, 64), {"batch", {1, 1}, {13000, 12501}});
}

/// A mask with more values fixed for a row than a kernel keeps of each.
inline cases::AttentionCase many_row_values_case() {
  cases::AttentionCase c = cases::make_case("many_row_values", cases::make_spec(6, 2, 32), cases::lengths("mixed"));
  Expr mask = variants::causal();
  for (int i = 2; i < 12; ++i) mask = mask & (kv_pos() != q_idx() * i + request() + q_head());
  c.spec.variant.mask = mask;
  return c;
}

inline std::vector<cases::AttentionCase> all_cases() {
  std::vector<cases::AttentionCase> all = invariant_cases();
  all.push_back(many_row_values_case());
  all.push_back(long_decode_case());
  for (std::vector<cases::AttentionCase> some :
       {cases::layout_cases(), cases::segment_cases(), cases::dtype_cases(), cases::variant_cases()}) {
    for (cases::AttentionCase& c : some) all.push_back(std::move(c));
  }
  return all;
}

struct EmulatedSpec {
  std::string_view case_name;
  bool floor_too = false;  // where another family is the table's choice
};

inline constexpr EmulatedSpec kEmulatedSpecs[] = {
    // Shapes: the layouts' own, odd and small dims, unequal ones, every kind of group.
    {"nhd_mixed", true},
    {"page5_mixed", true},
    {"dim1_mixed", true},
    {"dim3_mixed"},
    {"dim40_mixed", true},
    {"dim80_mixed"},
    {"dim96_mixed"},
    {"dim128_mixed", true},
    {"dim192_mixed"},
    {"dim256_mixed"},
    {"dim576_append"},
    {"dim1024_append"},
    {"dim192x128_nhd", true},
    {"dim128x64_nhd"},
    {"dim24x40_nhd"},
    {"group1_mixed"},
    {"group3_mixed", true},
    {"group5_mixed"},
    {"group8_mixed"},
    {"group16_mixed"},
    // Segments: MLA in one tensor and two, sparse, a K in two tensors beside its own V.
    {"mla_one_decode_ps1", true},
    {"mla_two_decode_ps1"},
    {"sparse_mla", true},
    {"sparse_mla_two_tensors"},
    {"two_tensor_k_with_own_v", true},
    // Types.
    {"q_f32_o_f32_kv_f32", true},
    {"q_f16_o_f16_kv_f16", true},
    {"q_bf16_o_bf16_kv_bf16"},
    {"q_f16_o_bf16_kv_bf16"},
    {"q_bf16_o_f16_kv_f32"},
    {"kv_e4m3_tensor_nhd", true},
    {"kv_e4m3_head_nhd"},
    {"kv_e4m3_token_head_nhd"},
    {"kv_e5m2_tensor_nhd"},
    {"kv_e5m2_head_nhd"},
    {"kv_e5m2_token_head_nhd"},
    {"kv_i8_tensor_nhd"},
    {"kv_i8_head_nhd", true},
    {"kv_i8_token_head_nhd", true},
    {"kv_nvfp4_block_nhd", true},
    {"kv_mxfp4_block_nhd", true},
    {"kv_nvfp4_block_dim40"},
    {"kv_mxfp4_block_dim40"},
    {"mla_e4m3_head"},
    {"mla_nvfp4_block", true},
    {"k_i8_v_nvfp4_nhd", true},
    {"k_bf16_v_e4m3_nhd"},
    {"k_mxfp4_v_i8_nhd"},
    // Variants.
    {"none_mixed"},
    {"window_9_4_mixed", true},
    {"chunked_local_16_mixed"},
    {"document_plan_mixed"},
    {"custom_mask_run_mixed", true},
    {"tree_run_mixed"},
    {"by_everything_mixed", true},
    {"many_row_values", true},
    {"soft_cap_30_mixed", true},
    {"soft_cap_scalar_mixed"},
    {"alibi_mixed"},
    {"sinks_window_cap_mixed", true},
    {"bias_by_positions_mixed"},
    {"select_min_max_exp_mixed"},
    {"sigmoid_mixed", true},
    {"linear_sum_mixed"},
    {"qk_norm_mixed", true},
    {"value_scale_output_gate_mixed", true},
    {"key_by_position_mixed", true},
    {"rope_mixed", true},
    {"rope_interleave_mixed"},
    {"rope_partial_scaled_mixed"},
    {"rope_norm_mixed", true},
    {"rope_mla"},
    {"lse_none_mixed"},
    {"lse_base2_mixed"},
    {"partial_sinks_mixed", true},
    // Batch-invariant.
    {"invariant_0123", true},
    {"invariant_sigmoid", true},
};

}  // namespace girih::emulator
