// Which cases of tests/cases lend their specs to the emulator's kernels, and the GPUs that these are generated for. A kernel depends on the
// spec, and on whether groups have few rows, so few names cover the branches of every family; the test runs all cases whose kernels there
// are. On sm_75, whose tensor
// cores know f16 only and which copies without cp.async, a subset runs, with f16 in place of bf16.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/cuda.h"
#include "attention/spec.h"
#include "cases/attention.h"
#include "cases/cuda_only.h"
#include "cases/mla.h"
#include "cases/regressions.h"
#include "girih/error.h"

namespace girih::emulator {

inline constexpr int kEmulatedSms = 3;  // so few that even small batches are split between blocks that have several items each
inline cuda::DeviceInfo emulated_device(int arch, int num_sms = kEmulatedSms) {
  cuda::DeviceInfo device = cuda::example_device(arch);
  device.name = "emulator";
  device.num_sms = num_sms;
  return device;
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

inline cases::AttentionCase invariant_mla_case(std::string name, const std::vector<std::int64_t>& ids) {
  cases::AttentionCase c = invariant_case(std::move(name), ids);
  c.spec = cases::make_spec(4, 1, 576, 512);
  c.spec.v_is_k = true;
  c.spec.batch_invariant = true;
  return c;
}

/// Of tokens of 656 bytes; the spec is mla8_tokens_invariant's.
inline cases::AttentionCase invariant_tokens_case(std::string name, const std::vector<std::int64_t>& ids) {
  cases::AttentionCase c = invariant_mla_case(std::move(name), ids);
  cases::set_kv(c.spec, DType::e4m3, ScaleGranularity::token_group, DType::e4m3, ScaleGranularity::token_group);
  c.spec.head_dim_rope = 64;
  c.spec.k_rope_dtype = DType::bf16;
  c.segments[0].layout = cases::Layout::tokens;
  return c;
}

/// Batch-invariant: all four requests together and by pairs; a plain sum, whose chunks are added; MLA.
inline std::vector<cases::AttentionCase> invariant_cases() {
  std::vector<cases::AttentionCase> all = {invariant_case("invariant_0123", {0, 1, 2, 3}), invariant_case("invariant_20", {2, 0}),
                                           invariant_case("invariant_31", {3, 1}), invariant_case("invariant_sigmoid", {3, 2, 1}),
                                           invariant_mla_case("invariant_mla", {2, 3, 1})};
  AttentionSpec& sum = all[all.size() - 2].spec;
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

/// Infinities and NaN in K and V of 8 bits and Q of 16, and NaN in all three of e4m3; all keys are visible. e4m3 has no infinities, i8
/// neither.
inline std::vector<cases::AttentionCase> non_finite_cases() {
  std::vector<cases::AttentionCase> all;
  for (const DType type : {DType::e4m3, DType::e5m2, DType::i8}) {
    cases::AttentionCase c = cases::make_case(std::string("non_finite_") + std::string(name(type)), cases::make_spec(4, 2, 64),
                                              {"", {1, 5, 30, 2, 12}, {1, 40, 60, 2, 70}});
    c.spec.variant.mask = {};
    cases::set_kv(c.spec, type, ScaleGranularity::tensor, type, ScaleGranularity::tensor);
    c.edit = [](const cases::Site& s, double x) {
      constexpr double kInf = std::numeric_limits<double>::infinity();
      constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
      if (s.plane == cases::Plane::q) {
        if (s.index == 1 && s.dim == 3) return kInf;
        if (s.index == 2 && s.dim == 5) return kNan;
        if (s.index == 3 && s.dim == 8) return -kInf;
        // A tiny element against an infinity: the sign of what is far below the row's largest counts.
        if (s.group == 1 && s.dim == 4) return -0x1p-70;
        if (s.group == 1 && s.dim == 6) return 0x1p20;
      }
      if (s.plane == cases::Plane::k) {
        if (s.group == 1 && s.index == 30 && s.dim == 4) return kInf;
        if (s.group == 2 && s.head == 1 && s.index == 50 && s.dim == 9) return kNan;
      }
      if (s.plane == cases::Plane::v && s.group != 1) {
        if (s.index == 40 && s.dim == 10) return kNan;
        if (s.index == 1 && s.dim == 12) return s.head == 0 ? kInf : -kInf;
      }
      return x;
    };
    all.push_back(std::move(c));
  }
  cases::AttentionCase fp8 = all.front();
  fp8.name = "non_finite_fp8";
  fp8.spec.q_dtype = DType::e4m3;
  fp8.spec.sm_scale = 0x1p-8;
  fp8.edit = [](const cases::Site& s, double x) {
    const bool is_nan = s.plane == cases::Plane::q   ? s.index == 2 && s.dim == 5
                        : s.plane == cases::Plane::k ? s.group == 2 && s.head == 1 && s.index == 50 && s.dim == 9
                                                     : s.group != 1 && s.index == 40 && s.dim == 10;
    return is_nan ? std::numeric_limits<double>::quiet_NaN() : x;
  };
  all.push_back(std::move(fp8));
  for (cases::AttentionCase& c : cases::token_group_cases()) {  // and NaN among a key's scales
    if (c.name != "mla_tokens_lists") continue;
    c.name = "non_finite_mla_tokens";
    c.edit_scale = [](const cases::Site& s, double drawn) {
      return s.group % 2 == 1 && s.index == 20 && s.dim / kScaleGroup == 1 ? std::numeric_limits<double>::quiet_NaN() : drawn;
    };
    all.push_back(std::move(c));
  }
  return all;
}

/// The case as it is run on an architecture: before sm_80 f16 takes bf16's place, but in cases that are named after their types.
inline cases::AttentionCase on_arch(cases::AttentionCase c, int arch) {
  if (arch >= 80 || c.name.starts_with("q_") || c.name.starts_with("k_")) return c;
  for (DType* type : {&c.spec.q_dtype, &c.spec.k_dtype, &c.spec.v_dtype, &c.spec.o_dtype}) {
    if (*type == DType::bf16) *type = DType::f16;
  }
  if (c.spec.k_rope_dtype == DType::bf16) c.spec.k_rope_dtype = DType::f16;
  return c;
}

inline std::vector<cases::AttentionCase> all_cases(int arch) {
  std::vector<cases::AttentionCase> all = invariant_cases();
  for (cases::AttentionCase& c : non_finite_cases()) all.push_back(std::move(c));
  for (cases::AttentionCase& c : cases::mla_cases()) all.push_back(std::move(c));
  all.push_back(many_row_values_case());
  all.push_back(long_decode_case());
  for (std::vector<cases::AttentionCase> some :
       {cases::layout_cases(), cases::segment_cases(), cases::dtype_cases(), cases::token_group_cases(), cases::variant_cases(),
        cases::cuda_only_cases(), cases::regression_cases(), cases::fp8_query_cases(), cases::widened_key_cases(),
        cases::code_output_cases()}) {
    for (cases::AttentionCase& c : some) all.push_back(std::move(c));
  }
  for (cases::AttentionCase& c : all) c = on_arch(std::move(c), arch);
  return all;
}

/// What a schedule for the case takes groups to have at most.
inline std::int64_t max_rows(const cases::AttentionCase& c) {
  const std::int64_t tokens = std::accumulate(c.q_len.begin(), c.q_len.end(), std::int64_t{0});
  return std::max<std::int64_t>(tokens, 1) * (c.spec.num_qo_heads / c.spec.num_kv_heads);
}

/// Limits for which cascades have a kernel of their own, whatever segments the case has; it must have no more rows.
inline void allow_cascades(AttentionLimits& limits, std::int64_t group) {
  limits.max_qo_len = attention::kCascadeRows / group;
  limits.max_segments = std::max<std::int64_t>(limits.max_segments, 2);
}

/// The mma family as it is on sm_89, whose products of bytes sm_90's emulator runs as well.
inline constexpr std::string_view kMmaOfSm89 = "mma_sm89";
struct FamilyOfChip {
  std::string_view family;
  int arch;
};
inline FamilyOfChip family_of_chip(std::string_view name, int arch) {
  return name == kMmaOfSm89 ? FamilyOfChip{"mma", 89} : FamilyOfChip{name, arch};
}

/// The table's choice, then the families that it leaves out and that other GPUs or specs have, or that must be asked for.
inline std::vector<std::string_view> families_of(const AttentionSpec& spec, const variant::Program& program, int arch) {
  const auto takes = [&](std::string_view name) {
    const FamilyOfChip of = family_of_chip(name, arch);
    try {
      attention::choose_cuda_kernels(spec, program, emulated_device(of.arch), of.family);
      return true;
    } catch (const Error& error) {
      if (error.code() != Code::unsupported) throw;
      return false;
    }
  };
  std::vector<std::string_view> all{""};
  const std::string chosen = attention::choose_cuda_kernels(spec, program, emulated_device(arch)).classes[attention::kLarge].family;
  for (const std::string_view family : {"wgmma", "mma"}) {
    if (chosen != family && takes(family)) all.push_back(family);
  }
  if (bits(spec.q_dtype) == 8 && arch == 90 && takes(kMmaOfSm89)) all.push_back(kMmaOfSm89);
  all.emplace_back("floor");
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
    {"mla_heads1_page1"},
    {"mla_heads16_page1"},
    {"mla_heads16_page1_two"},
    {"mla_heads128_page1"},
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
    {"kv_e4m3_tensor_dim128"},
    {"kv_e4m3_token_head_dim256"},
    {"kv_e5m2_head_dim40"},
    {"kv_e5m2_token_head_padded"},
    {"kv_i8_token_head_dim128"},
    {"kv_i8_tensor_dim128"},
    {"kv_e4m3_query_magnitudes"},
    {"kv_e5m2_query_magnitudes"},
    {"kv_i8_query_magnitudes"},
    {"non_finite_e4m3", true},
    {"non_finite_e5m2", true},
    {"non_finite_i8", true},
    {"non_finite_fp8", true},
    {"mla576_e4m3_tensor"},
    {"mla544_i8_token_head"},
    {"mla512_e5m2_head"},
    {"mla_e4m3_head"},
    {"mla_nvfp4_block", true},
    {"kv_e4m3_token_group_nhd"},
    {"kv_i8_token_group_ragged"},
    {"v_token_group_token_contiguous"},
    {"rope_f32_beside_bf16"},
    {"rope_bf16_beside_nvfp4"},
    {"token_group_in_both_parts"},
    {"mla_tokens_decode_ps64", true},
    {"mla_tokens_lists", true},
    {"mla_tokens_many_heads"},
    {"mla_tokens_small"},
    {"mla8_page1"},
    {"mla8_two_f16_i8"},
    {"mla8_tokens_invariant"},
    {"mla8_heads128_lists"},
    {"k_i8_v_nvfp4_nhd", true},
    {"k_bf16_v_e4m3_nhd"},
    {"k_mxfp4_v_i8_nhd"},
    {"F04_i8_nhd_single_append"},
    // Variants.
    {"none_mixed"},
    {"window_9_4_mixed", true},
    {"chunked_local_16_mixed"},
    {"document_plan_mixed"},
    {"spans_plan_mixed"},
    {"custom_mask_run_mixed", true},
    {"tree_run_mixed"},
    {"by_everything_mixed", true},
    {"many_row_values", true},
    {"soft_cap_30_mixed", true},
    {"soft_cap_scalar_mixed"},
    {"alibi_mixed"},
    {"sinks_window_cap_mixed", true},
    {"dims64_window_9_4_tall"},
    {"dims64_soft_cap_30_tall"},
    {"dims64_alibi_tall"},
    {"dims128_window_9_4_tall"},
    {"dims128_soft_cap_30_tall"},
    {"cuda_text_mixed", true},
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
    {"mla576_sinks_window_cap_mixed"},
    {"mla576_sigmoid_mixed"},
    {"lse_none_mixed"},
    {"lse_base2_mixed"},
    {"partial_sinks_mixed", true},
    // Batch-invariant.
    {"invariant_0123", true},
    {"invariant_sigmoid", true},
    {"invariant_mla"},
    // Keys of 8 bits beside 16-bit Q, by wgmma as well.
    {"kv8_paged"},
    {"kv8_f16_e4m3_e5m2"},
    {"kv8_f16_i8"},
    {"kv8_i8_e4m3"},
    {"kv8_dim96x96"},
    {"kv8_dim192x128"},
    {"kv8_dim112x192"},
    {"kv8_full"},
    {"kv8_soft_cap"},
    {"kv8_sigmoid"},
    {"kv8_invariant"},
    // Q of 8 bits.
    {"fp8_paged", true},
    {"fp8_tensor_scales"},
    {"fp8_dim64x64"},
    {"fp8_dim96x96"},
    {"fp8_dim192x128"},
    {"fp8_dim256x256"},
    {"fp8_dim128x192"},
    {"fp8_full"},
    {"fp8_many_keys"},
    {"fp8_window"},
    {"fp8_soft_cap"},
    {"fp8_sinks"},
    {"fp8_invariant"},
    {"fp8_rising_scores"},
    // O of 8 bits.
    {"out_e4m3_dim3", true},
    {"out_e4m3_dim40"},
    {"out_e4m3_dim64"},
    {"out_e4m3_prefill", true},
    {"out_e5m2_dim128"},
    {"out_e4m3_dim256"},
    {"out_e4m3_dim192x128"},
    {"out_e5m2_split_keys"},
    {"out_e4m3_f32"},
    {"out_e4m3_mla"},
    {"out_e4m3_of_codes"},
    {"out_e4m3_saturated"},
    {"out_e4m3_invariant"},
    {"out_e4m3_sinks"},
    {"out_e4m3_output_hook"},
    {"out_e4m3_cascade"},
};

/// What of the kernels differs on sm_75 for all kinds of K and V, masks and hooks; types that its tensor cores refuse.
inline constexpr EmulatedSpec kEmulatedSpecs75[] = {
    {"nhd_mixed", true},
    {"dim40_mixed"},
    {"dim128_mixed"},
    {"dim256_mixed"},
    {"mla_one_decode_ps1"},
    {"two_tensor_k_with_own_v"},
    {"q_f32_o_f32_kv_f32"},
    {"q_bf16_o_bf16_kv_bf16"},
    {"q_f16_o_f16_kv_f16"},
    {"kv_e4m3_head_nhd", true},
    {"kv_i8_token_head_nhd"},
    {"kv_nvfp4_block_nhd"},
    {"mla_e4m3_head"},
    {"kv_e4m3_token_group_nhd"},
    {"mla_tokens_lists"},
    {"custom_mask_run_mixed"},
    {"by_everything_mixed"},
    {"soft_cap_30_mixed"},
    {"sinks_window_cap_mixed"},
    {"partial_sinks_mixed"},
    {"rope_mixed"},
    {"invariant_0123", true},
    {"fp8_paged"},
    {"out_e4m3_dim64"},
};

inline std::span<const EmulatedSpec> emulated_specs(int arch) {
  if (arch == 75) return kEmulatedSpecs75;
  return kEmulatedSpecs;
}

}  // namespace girih::emulator
