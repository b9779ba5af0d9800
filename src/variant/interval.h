// Proofs about masks. Over a box of query coordinates and a range of key positions a mask is never true, always true, or it depends.
// Ranges are inclusive int64 hulls; whatever cannot be proven is `depends`; comparisons with NaN prove nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "variant/program.h"

namespace girih::variant {

struct Range {
  std::int64_t lo = 0;
  std::int64_t hi = 0;  // inclusive; lo <= hi
};

/// Hulls of everything but kv_pos for the rows of a query tile.
struct Box {
  Range q_pos, q_idx, q_len, kv_len, request, q_head, kv_head, q_row;
};

enum class Tri : std::uint8_t { never, always, depends };

/// Evaluates masks of one Program against one set of plan-time parameters. Holds scratch and the min/max trees of plan-time arrays;
/// reusing it allocates nothing once it has seen the largest arrays.
class MaskProver {
 public:
  explicit MaskProver(const Program& program);
  ~MaskProver();
  MaskProver(MaskProver&&) noexcept;

  /// Takes the plan-time values of one batch (run-time entries of the table are ignored).
  void bind(const ParamTable& params);

  Tri classify(const Box& box, Range kv_pos) const;

  struct Run {
    std::int64_t begin, end;  // kv positions [begin, end)
    bool always;
  };
  /// The positions [begin, end) at which the mask is not proven never, as ascending disjoint runs, appended to `runs` (adjacent runs of
  /// one kind are joined). Exact for comparisons that are affine in kv_pos; elsewhere found by bisection down to `grain` positions
  /// (aligned at multiples of `grain` from `begin`). O(pieces x log) evaluations, not O(positions).
  void find_runs(const Box& box, std::int64_t begin, std::int64_t end, std::int64_t grain, std::vector<Run>& runs) const;

  bool uses_q_head() const;  // the mask differs by query head: classify per KV head

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace girih::variant
