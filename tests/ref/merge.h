// Merge of attention states in double precision, from the formula (Eq. 2-3 of arXiv 2501.01005): weights exp(s_i - max), value the
// weighted mean, LSE the logarithm of the weights' sum. A state with s = -inf is empty and takes no part, whatever its v holds.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace girih::ref {

struct State {
  std::vector<double> v;
  double s = -std::numeric_limits<double>::infinity();
};

inline State merge(const std::vector<State>& states, std::size_t dim, bool base2 = false) {
  const double inf = std::numeric_limits<double>::infinity();
  const double unit = base2 ? std::log(2.0) : 1.0;
  State out{std::vector<double>(dim, 0.0), -inf};
  double max = -inf;
  for (const State& state : states) {
    if (std::isnan(state.s)) return State{std::vector<double>(dim, state.s), state.s};
    max = std::fmax(max, state.s);
  }
  if (max == -inf) return out;
  double total = 0;
  for (const State& state : states) {
    if (state.s == -inf) continue;
    const double weight = state.s == max ? 1.0 : std::exp((state.s - max) * unit);
    total += weight;
    for (std::size_t d = 0; d < dim && weight > 0; ++d) out.v[d] += weight * state.v[d];
  }
  for (double& x : out.v) x /= total;
  out.s = max + std::log(total) / unit;
  return out;
}

}  // namespace girih::ref
