// Compares outputs with the reference: non-finite values first (as masks), then finite ones within the tolerance of ref/attention.h.
// Runs a case on every CPU target with 1 worker and 7 units, and with 2 workers, so that keys are split and parts merged.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numbers>

#include "cases/problem.h"

namespace girih::cases {

/// One Context per (target, workers), kept for the process: starting threads for every case is slow.
inline Context& context_for(CpuTarget target, int workers) {
  static std::map<std::pair<CpuTarget, int>, Context> contexts;
  const auto key = std::pair(target, workers);
  if (!contexts.contains(key)) contexts.emplace(key, Context({.device = {}, .num_workers = workers, .target = target, .log = {}}));
  return contexts.at(key);
}

inline testing::AssertionResult matches(const Problem& p, const std::vector<ref::RowResult>& expected, const Outputs& out) {
  if (!out.canaries_intact()) return testing::AssertionFailure() << "memory outside the outputs was written";
  const double unit = p.spec.lse == LseKind::base2 ? std::numbers::log2e : 1;
  for (std::int64_t t = 0; t < p.num_tokens(); ++t) {
    for (std::int64_t h = 0; h < p.spec.num_qo_heads; ++h) {
      const ref::RowResult& row = expected[static_cast<std::size_t>(t * p.spec.num_qo_heads + h)];
      ref::Tolerance tol = ref::tolerance(p.spec.o_dtype, p.spec.head_dim_qk, row.num_visible, out.bf16_weights);
      tol.o_tiny *= out.unit();
      if (out.byte_scores) tol.byte_sums = true;
      if (out.byte_weights) ref::allow_weights_of_bytes(tol);
      for (std::int64_t d = 0; d < p.spec.head_dim_vo; ++d) {
        const double got = out.o_at(t, h, d);
        const double want = std::clamp(row.o[static_cast<std::size_t>(d)], -out.largest(), out.largest());
        const double allowed = ref::o_tolerance(tol, row, static_cast<std::size_t>(d));
        const bool empty = row.num_visible == 0 && want == 0;
        if (!std::isfinite(got) || (empty ? got != 0 : std::fabs(got - want) > allowed)) {
          return testing::AssertionFailure() << "o[" << t << ", " << h << ", " << d << "] = " << got << ", want " << want << " +- "
                                             << allowed << " (" << row.num_visible << " visible keys)";
        }
      }
      if (p.spec.lse == LseKind::none) continue;
      const double got = out.lse_at(t, h);
      const double want = row.lse * unit;
      const double allowed = ref::lse_tolerance(tol, row) * unit;
      if (std::isfinite(want) ? !(std::fabs(got - want) <= allowed) : got != want) {
        return testing::AssertionFailure() << "lse[" << t << ", " << h << "] = " << got << ", want " << want << " +- " << allowed;
      }
    }
  }
  return testing::AssertionSuccess();
}

/// Builds, runs everywhere, compares.
inline void check(const AttentionCase& c) {
  const Problem p(c);
  const std::vector<ref::RowResult> expected = reference(p);
  for (CpuTarget target : available_cpu_targets()) {
    for (const auto& [workers, units] : {std::pair{1, 7}, {2, 2}}) {
      const Outputs out = execute(p, context_for(target, workers), {.units = units});
      EXPECT_TRUE(matches(p, expected, out)) << c.name << " on " << girih::name(target) << ", " << workers << " workers, " << units
                                             << " units";
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace girih::cases
