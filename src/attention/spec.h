// What is asked, checked: defaults filled in, every rule of the spec enforced against the capability table, and the key that names it.
#pragma once

#include <string>

#include "girih/attention.h"
#include "variant/program.h"

namespace girih::attention {

/// Fills defaults and checks every field; throws invalid_argument or unsupported naming it.
AttentionSpec normalise(const AttentionSpec& spec, const variant::Program& program, DeviceKind device);

/// Names the kernel, e.g. "attention_32x8_d128_bf16_kv_e4m3t_o_bf16_lse_3f2a91c0": readable parts, then a hash of the variant's text.
std::string spec_key(const AttentionSpec& spec, const variant::Program& program);

/// dtype * dims of the plane that K (or Q) keeps in its first tensor.
inline int first_part_dim(const AttentionSpec& spec) { return spec.head_dim_qk - spec.head_dim_rope; }

bool is_quantised(DType t);

/// Of K's second tensor (head_dim_rope > 0).
DType rope_dtype(const AttentionSpec& spec);
ScaleGranularity rope_scale(const AttentionSpec& spec);

}  // namespace girih::attention
