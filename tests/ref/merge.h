// The merge of attention states from its formula (Eq. 2-3 of arXiv 2501.01005) in double: lse = log sum exp(lse_i),
// v = sum v_i exp(lse_i - lse). The merge of nothing, or of empty states only, is (0, -inf).
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace girih::ref {

struct State {
  std::vector<double> v;
  double lse = -std::numeric_limits<double>::infinity();   // natural log
};

inline State merge(std::span<const State> states, std::size_t dim) {
  State out;
  out.v.assign(dim, 0);
  double top = -std::numeric_limits<double>::infinity();
  for (const State& s : states) top = std::max(top, s.lse);
  if (std::isinf(top)) return out;
  double sum = 0;
  for (const State& s : states) {
    const double weight = std::isinf(s.lse) ? 0 : std::exp(s.lse - top);
    if (weight == 0) continue;
    sum += weight;
    for (std::size_t d = 0; d < dim; ++d) out.v[d] += weight * s.v[d];
  }
  for (double& x : out.v) x /= sum;
  out.lse = top + std::log(sum);
  return out;
}

}  // namespace girih::ref
