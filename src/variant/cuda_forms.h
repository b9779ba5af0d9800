// Further forms of the hooks of scores, for kernels that have the scores of neighbouring keys in registers.
#pragma once

#include <string>

#include "variant/cuda_printer.h"

namespace girih::variant {

/// The logits hook over keys at consecutive positions, split by what changes how often:
///   logits_step(params, row, factor, first)      once a row and step: `first` is the position of column 0, `factor` makes scores of
///   products logits_core(params, step, raw, column)       once a score
/// The logit in base-2 units (without softmax, the weight) is core, or core * step.scale + step.offset where kLogitsScaled.
/// kLogitsLogistic: core is 1 / (2^x + 1) with x = logits_argument(params, step, raw, column).
/// kLogitsAdditive: the logit, in natural units, is the score + step.slope * column + step.base.
/// kLogitsBound: its largest magnitude, infinite if unknown.
std::string print_logits_steps(const Program& program, const HookPrinter& logits);

/// The mask over 32 keys at consecutive positions, the first at `first`, for a lane's own row:
///   mask_word(params, row, first)                bit i: key i is visible. All lanes of the warp call it together, with rows of their own.
/// Comparisons that are affine in kv_pos and runs of packed bits take a few instructions for all 32; what depends on the key alone is
/// worked out once a key, by the lane of that number; only the rest is evaluated key by key.
std::string print_mask_word(const HookPrinter& mask);

}  // namespace girih::variant
