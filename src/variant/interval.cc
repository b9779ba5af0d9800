// Proves masks. Three ways, fastest first: a conjunction of affine comparisons is a pair of intersected intervals, possible and always
// (causal, windows, chunks: tens of nanoseconds); any mask is first cut where an affine comparison changes, then each piece is classified
// by interval arithmetic; where a piece still depends on something that shorter ranges may decide (document ids), it is bisected down to
// the grain. Instructions that do not depend on kv_pos are evaluated once per call.

#include "variant/interval.h"

#include <algorithm>
#include <array>
#include <limits>

#include "variant/affine.h"
#include "variant/hull.h"
#include "variant/range_tree.h"

namespace girih::variant {
namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 62;  // beyond every border: half-open ends of "no bound"
constexpr std::int64_t kMaxScannedBits = std::int64_t{1} << 16;

bool is_small(Range r) { return r.lo >= -kAffineLimit && r.hi <= kAffineLimit; }

constexpr std::array<Range Box::*, kNumVars> kBoxMember = {nullptr,      &Box::q_pos,   nullptr,      &Box::q_idx,   &Box::q_len,
                                                           &Box::kv_len, &Box::request, &Box::q_head, &Box::kv_head, &Box::q_row,
                                                           nullptr,      nullptr,       nullptr};

/// Key positions [possible_begin, possible_end) outside which a leaf is never true, and those at which it always is.
struct Zone {
  std::int64_t possible_begin = -kFar, possible_end = kFar;
  std::int64_t always_begin = 0, always_end = 0;
};

Tri bits_in_range(const std::uint8_t* data, std::int64_t size, Range index) {
  const bool outside = index.lo < 0 || index.hi >= size;  // reads false there
  const std::int64_t first = std::max<std::int64_t>(index.lo, 0);
  const std::int64_t last = std::min(index.hi, size - 1);
  if (first > last) return Tri::never;
  if (last - first >= kMaxScannedBits) return Tri::depends;
  bool any = false;
  bool all = !outside;
  for (std::int64_t i = first; i <= last;) {
    if (i % 8 == 0 && last - i >= 7) {
      any = any || data[i / 8] != 0;
      all = all && data[i / 8] == 0xff;
      i += 8;
    } else {
      const bool bit = ((data[i / 8] >> (i % 8)) & 1) != 0;
      any = any || bit;
      all = all && bit;
      ++i;
    }
    if (any && !all) return Tri::depends;
  }
  return all ? Tri::always : Tri::never;
}

}  // namespace

struct MaskProver::State {
  explicit State(const Program& program);

  void bind(const ParamTable& params);
  Tri classify(const Box& box, Range kv);
  void find_runs(const Box& box, std::int64_t begin, std::int64_t end, std::int64_t grain, std::vector<Run>& runs);

  bool uses_q_head = false;

 private:
  /// An array of plan time; the tree is built when a range is first asked for.
  struct Array {
    RangeTree<std::int32_t> i32;
    RangeTree<std::int64_t> i64;
    RangeTree<float> f32;
    bool built = false;
  };

  /// A part of a top-level conjunction: an affine leaf, or else an instruction that is constant in kv_pos or depends on run-time values.
  struct Conjunct {
    std::int16_t leaf = -1;
    std::int16_t instruction = -1;
  };

  /// Cells of `grain` key positions, cell 0 at the origin.
  struct Grid {
    std::int64_t origin, grain;
  };
  /// Key positions [lo, hi) and the cells of the first and the last of them.
  struct Piece {
    std::int64_t lo, hi, first_cell, last_cell;
  };

  void find_needed();
  bool find_conjuncts(std::int16_t index);
  void need(std::int16_t index, std::vector<bool>& needed);
  Range term_range(const AffineTerm& term, const Box& box) const;
  bool rest_of(const AffineLeaf& leaf, const Box& box, Range& rest) const;
  Zone zone_of(const AffineLeaf& leaf, const Box& box) const;
  void leaf_hull(const AffineLeaf& leaf, const Box& box, Range kv, Hull& hull) const;
  void array_hull(const Instruction& instruction, Range index, Hull& hull);
  void evaluate(std::size_t index, const Box& box, const Range& kv);
  bool can_refine(const Instruction& instruction, const Hull& hull) const;
  void evaluate_fixed(const Box& box);
  const Hull& evaluate_moving(const Box& box, const Range& kv);
  void conjunction_runs(const Box& box, std::int64_t begin, std::int64_t end, std::vector<Run>& runs) const;
  void refine(const Box& box, const Grid& grid, const Piece& piece, std::size_t first, std::vector<Run>& runs);
  static void emit(std::int64_t begin, std::int64_t end, bool always, std::size_t first, std::vector<Run>& runs);

  std::vector<Instruction> code_;
  std::vector<ParamInfo> infos_;
  std::vector<bool> moving_;   // depends on kv_pos
  std::vector<bool> tainted_;  // depends on a run-time parameter
  AffineForms affine_;
  std::vector<std::int16_t> fixed_;  // to evaluate once per call, in order
  std::vector<std::int16_t> moving_order_;
  std::vector<Conjunct> conjuncts_;
  bool is_conjunction_ = false;
  std::vector<Hull> hulls_;  // one an instruction; those of constants and plan-time scalars are kept
  std::vector<std::int64_t> cuts_;
  ParamTable params_{};
  std::vector<Array> arrays_;  // by parameter
};

MaskProver::State::State(const Program& program) : code_(program.mask.instructions), infos_(program.params) {
  const Code& mask = program.mask;
  uses_q_head = mask.uses(Var::q_head) || mask.uses(Var::kv_head);
  const std::size_t n = code_.size();
  for (std::size_t i = 0; i < n; ++i) {
    const Instruction& instruction = code_[i];
    bool moves = instruction.op == Op::var && instruction.var == Var::kv_pos;
    bool taints = instruction.param >= 0 && infos_[static_cast<std::size_t>(instruction.param)].time == ParamTime::run;
    for (const std::int16_t arg : instruction.args) {
      if (arg < 0) continue;
      moves = moves || moving_[static_cast<std::size_t>(arg)];
      taints = taints || tainted_[static_cast<std::size_t>(arg)];
    }
    moving_.push_back(moves);
    tainted_.push_back(taints);
  }
  affine_ = find_affine(mask, moving_);
  hulls_.resize(n);
  arrays_.resize(infos_.size());
  cuts_.reserve(4 * affine_.leaves.size() + 2);
  if (n == 0) return;
  find_needed();
  is_conjunction_ = find_conjuncts(static_cast<std::int16_t>(n - 1));
  bind(ParamTable{});
}

/// Sorts the instructions whose hull matters into those evaluated once per call and those evaluated per piece.
void MaskProver::State::find_needed() {
  std::vector<bool> needed(code_.size());
  need(static_cast<std::int16_t>(code_.size() - 1), needed);
  for (std::size_t i = 0; i < code_.size(); ++i) {
    const Op op = code_[i].op;
    if (!needed[i] || op == Op::const_boolean || op == Op::const_integer || op == Op::const_number || op == Op::scalar_param) continue;
    (moving_[i] ? moving_order_ : fixed_).push_back(static_cast<std::int16_t>(i));
  }
}

void MaskProver::State::need(std::int16_t index, std::vector<bool>& needed) {
  std::vector<std::int16_t> stack{index};
  while (!stack.empty()) {
    const auto i = static_cast<std::size_t>(stack.back());
    stack.pop_back();
    if (needed[i]) continue;
    needed[i] = true;
    if (affine_.leaf_of[i] >= 0) {
      // A leaf reads variables straight from the box.
      for (const AffineTerm& term : affine_.leaves[static_cast<std::size_t>(affine_.leaf_of[i])].terms) {
        if (code_[static_cast<std::size_t>(term.instruction)].op != Op::var) stack.push_back(term.instruction);
      }
      continue;
    }
    for (const std::int16_t arg : code_[i].args) {
      if (arg >= 0) stack.push_back(arg);
    }
  }
}

bool MaskProver::State::find_conjuncts(std::int16_t index) {
  std::vector<std::int16_t> stack{index};
  while (!stack.empty()) {
    const auto i = static_cast<std::size_t>(stack.back());
    stack.pop_back();
    if (code_[i].op == Op::and_) {
      stack.push_back(code_[i].args[1]);
      stack.push_back(code_[i].args[0]);
      continue;
    }
    Conjunct conjunct;
    const std::int16_t leaf = affine_.leaf_of[i];
    if (!moving_[i]) {
      conjunct.instruction = static_cast<std::int16_t>(i);
    } else if (leaf >= 0) {
      const AffineLeaf& form = affine_.leaves[static_cast<std::size_t>(leaf)];
      if (form.negate || (form.kv != 1 && form.kv != -1)) return false;
      conjunct.leaf = leaf;
    } else {
      return false;
    }
    conjuncts_.push_back(conjunct);
  }
  return true;
}

void MaskProver::State::bind(const ParamTable& params) {
  params_ = params;
  for (Array& array : arrays_) array.built = false;
  for (std::size_t i = 0; i < code_.size(); ++i) {
    const Instruction& instruction = code_[i];
    Hull& hull = hulls_[i];
    switch (instruction.op) {
      case Op::const_boolean: hull.boolean = instruction.integer != 0 ? Tri::always : Tri::never; break;
      case Op::const_integer: hull.integer = {instruction.integer, instruction.integer}; break;
      case Op::const_number: hull.number = {instruction.number, instruction.number, instruction.number != instruction.number}; break;
      case Op::scalar_param: {
        const ParamData& data = params_[static_cast<std::size_t>(instruction.param)];
        hull.integer = tainted_[i] ? kAllIntegers : Range{data.integer, data.integer};
        hull.number = {data.number, data.number, tainted_[i] || data.number != data.number};
        break;
      }
      default: break;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- affine leaves

inline Range MaskProver::State::term_range(const AffineTerm& term, const Box& box) const {
  const auto i = static_cast<std::size_t>(term.instruction);
  if (code_[i].op == Op::var) return box.*kBoxMember[static_cast<std::size_t>(code_[i].var)];
  return hulls_[i].integer;
}

/// The hull of D without its multiple of kv_pos; false where a term is too large to exclude overflow.
inline bool MaskProver::State::rest_of(const AffineLeaf& leaf, const Box& box, Range& rest) const {
  rest = {leaf.constant, leaf.constant};
  bool small = true;
  for (const AffineTerm& term : leaf.terms) {
    const Range r = term_range(term, box);
    small = small && is_small(r);
    if (!small) break;
    rest.lo += term.coefficient * (term.coefficient > 0 ? r.lo : r.hi);
    rest.hi += term.coefficient * (term.coefficient > 0 ? r.hi : r.lo);
  }
  return small;
}

/// For a leaf with kv = +-1. The caller has checked that positions are small.
inline Zone MaskProver::State::zone_of(const AffineLeaf& leaf, const Box& box) const {
  Zone zone;
  Range rest;
  if (!rest_of(leaf, box, rest)) return zone;
  const std::int64_t w = leaf.width;
  if (leaf.kind == AffineLeaf::Kind::below) {
    if (leaf.kv > 0) return {-kFar, -rest.lo, -kFar, -rest.hi};
    return {rest.lo + 1, kFar, rest.hi + 1, kFar};
  }
  if (leaf.kv > 0) return {-rest.hi, w - rest.lo + 1, -rest.lo, w - rest.hi + 1};
  return {rest.lo - w, rest.hi + 1, rest.hi - w, rest.lo + 1};
}

void MaskProver::State::leaf_hull(const AffineLeaf& leaf, const Box& box, Range kv, Hull& hull) const {
  hull.boolean = Tri::depends;
  hull.refinable = false;
  Range d;
  if (!is_small(kv) || !rest_of(leaf, box, d)) return;
  d.lo += leaf.kv * (leaf.kv > 0 ? kv.lo : kv.hi);
  d.hi += leaf.kv * (leaf.kv > 0 ? kv.hi : kv.lo);
  if (leaf.kind == AffineLeaf::Kind::below) {
    hull.boolean = d.hi < 0 ? Tri::always : (d.lo >= 0 ? Tri::never : Tri::depends);
  } else {
    if (d.hi < 0 || d.lo > leaf.width) hull.boolean = Tri::never;
    if (d.lo >= 0 && d.hi <= leaf.width) hull.boolean = Tri::always;
    if (leaf.negate) hull.boolean = tri_not(hull.boolean);
  }
  // Pieces are cut at the borders of leaves with kv = +-1 already: bisecting further tells nothing about them.
  hull.refinable = hull.boolean == Tri::depends && (leaf.kv > 1 || leaf.kv < -1) && kv.lo < kv.hi;
}

// ---------------------------------------------------------------------------------------------------------------- any instruction

void MaskProver::State::array_hull(const Instruction& instruction, Range index, Hull& hull) {
  const auto p = static_cast<std::size_t>(instruction.param);
  const ParamData& data = params_[p];
  if (infos_[p].time == ParamTime::run) {
    hull.integer = instruction.dtype == DType::i32 ? Range{INT32_MIN, INT32_MAX} : kAllIntegers;
    hull.number = {-__builtin_inff(), __builtin_inff(), true};
    return;
  }
  const bool outside = index.lo < 0 || index.hi >= data.size;
  const std::int64_t first = std::max<std::int64_t>(index.lo, 0);
  const std::int64_t last = std::min(index.hi, data.size - 1);
  if (first > last) {
    hull.integer = {0, 0};
    hull.number = {0, 0, false};
    return;
  }
  Array& array = arrays_[p];
  const auto join_range = [&](auto& tree, const auto* values, auto& range) {
    if (first != last && !array.built) {
      tree.build(values, data.size);
      array.built = true;
    }
    if (outside) range.lo = range.hi = 0;
    tree.join_range(values, first, last, range);
  };
  if (instruction.dtype == DType::f32) {
    RangeTree<float>::Hull r;
    join_range(array.f32, static_cast<const float*>(data.data), r);
    hull.number = {r.lo, r.hi, r.nan};
    if (r.lo > r.hi) hull.number = {-__builtin_inff(), __builtin_inff(), true};
  } else if (instruction.dtype == DType::i32) {
    RangeTree<std::int32_t>::Hull r;
    join_range(array.i32, static_cast<const std::int32_t*>(data.data), r);
    hull.integer = {r.lo, r.hi};
  } else {
    RangeTree<std::int64_t>::Hull r;
    join_range(array.i64, static_cast<const std::int64_t*>(data.data), r);
    hull.integer = {r.lo, r.hi};
  }
}

/// Whether a shorter range of key positions may decide what now depends.
bool MaskProver::State::can_refine(const Instruction& instruction, const Hull& hull) const {
  if (instruction.type != ExprType::boolean || hull.boolean != Tri::depends) return false;
  bool refinable = false;
  for (const std::int16_t arg : instruction.args) {
    if (arg < 0) break;
    const auto a = static_cast<std::size_t>(arg);
    const Hull& operand = hulls_[a];
    if (code_[a].type == ExprType::boolean) {
      refinable = refinable || (operand.boolean == Tri::depends && operand.refinable);
    } else if (tainted_[a]) {
      return false;
    } else if (moving_[a]) {
      const bool wide =
          code_[a].type == ExprType::integer ? operand.integer.lo < operand.integer.hi : operand.number.lo < operand.number.hi;
      refinable = refinable || wide || operand.number.nan;
    }
  }
  return refinable;
}

/// Fills the hull of an instruction from those of its operands.
void MaskProver::State::evaluate(std::size_t index, const Box& box, const Range& kv) {
  Hull& hull = hulls_[index];
  if (affine_.leaf_of[index] >= 0) {
    return leaf_hull(affine_.leaves[static_cast<std::size_t>(affine_.leaf_of[index])], box, kv, hull);
  }
  const Instruction& instruction = code_[index];
  static const Hull kNone;
  const auto arg = [&](std::size_t k) -> const Hull& {
    return instruction.args[k] >= 0 ? hulls_[static_cast<std::size_t>(instruction.args[k])] : kNone;
  };
  switch (instruction.op) {
    case Op::var: hull.integer = instruction.var == Var::kv_pos ? kv : box.*kBoxMember[static_cast<std::size_t>(instruction.var)]; return;
    case Op::param_handle: return;
    case Op::cuda_code:
      hull.integer = kAllIntegers;
      hull.number = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(), true};
      return;
    case Op::array_param: return array_hull(instruction, arg(0).integer, hull);
    case Op::bits_param: {
      const auto p = static_cast<std::size_t>(instruction.param);
      hull.boolean = Tri::depends;
      hull.refinable = false;
      if (infos_[p].time == ParamTime::run) return;
      hull.boolean = bits_in_range(static_cast<const std::uint8_t*>(params_[p].data), params_[p].size, arg(0).integer);
      break;
    }
    default: {
      const std::int16_t last = instruction.args[2] >= 0 ? instruction.args[1] : instruction.args[0];
      apply(instruction, code_[static_cast<std::size_t>(last)].type, arg(0), arg(1), arg(2), hull);
      break;
    }
  }
  hull.refinable = can_refine(instruction, hull);
}

void MaskProver::State::evaluate_fixed(const Box& box) {
  for (const std::int16_t i : fixed_) evaluate(static_cast<std::size_t>(i), box, {0, 0});
}

const Hull& MaskProver::State::evaluate_moving(const Box& box, const Range& kv) {
  for (const std::int16_t i : moving_order_) evaluate(static_cast<std::size_t>(i), box, kv);
  return hulls_.back();
}

Tri MaskProver::State::classify(const Box& box, Range kv) {
  if (code_.empty()) return Tri::always;
  evaluate_fixed(box);
  return evaluate_moving(box, kv).boolean;
}

// ---------------------------------------------------------------------------------------------------------------- runs

inline void MaskProver::State::emit(std::int64_t begin, std::int64_t end, bool always, std::size_t first, std::vector<Run>& runs) {
  if (begin >= end) return;
  if (runs.size() > first && runs.back().end == begin && runs.back().always == always) {
    runs.back().end = end;
  } else {
    runs.push_back({begin, end, always});
  }
}

void MaskProver::State::conjunction_runs(const Box& box, std::int64_t begin, std::int64_t end, std::vector<Run>& runs) const {
  Zone all{begin, end, begin, end};
  for (const Conjunct& conjunct : conjuncts_) {
    Zone zone;
    if (conjunct.leaf >= 0) {
      zone = zone_of(affine_.leaves[static_cast<std::size_t>(conjunct.leaf)], box);
    } else {
      const Tri tri = hulls_[static_cast<std::size_t>(conjunct.instruction)].boolean;
      if (tri == Tri::never) return;
      if (tri == Tri::always) continue;
    }
    all.possible_begin = std::max(all.possible_begin, zone.possible_begin);
    all.possible_end = std::min(all.possible_end, zone.possible_end);
    all.always_begin = std::max(all.always_begin, zone.always_begin);
    all.always_end = std::min(all.always_end, zone.always_end);
  }
  if (all.possible_begin >= all.possible_end) return;
  const std::size_t first = runs.size();
  if (all.always_begin >= all.always_end) {
    emit(all.possible_begin, all.possible_end, false, first, runs);
    return;
  }
  emit(all.possible_begin, all.always_begin, false, first, runs);
  emit(all.always_begin, all.always_end, true, first, runs);
  emit(all.always_end, all.possible_end, false, first, runs);
}

/// Classifies `piece`, which lies in the given cells, and bisects at borders of cells while that can help.
void MaskProver::State::refine(const Box& box, const Grid& grid, const Piece& piece, std::size_t first, std::vector<Run>& runs) {
  const Hull& hull = evaluate_moving(box, {piece.lo, piece.hi - 1});
  const Tri tri = hull.boolean;
  if (tri == Tri::never) return;
  if (tri == Tri::depends && hull.refinable && piece.first_cell < piece.last_cell) {
    const std::int64_t cell = piece.first_cell + (piece.last_cell - piece.first_cell + 1) / 2;
    const std::int64_t middle = grid.origin + cell * grid.grain;
    refine(box, grid, {piece.lo, middle, piece.first_cell, cell - 1}, first, runs);
    refine(box, grid, {middle, piece.hi, cell, piece.last_cell}, first, runs);
    return;
  }
  emit(piece.lo, piece.hi, tri == Tri::always, first, runs);
}

void MaskProver::State::find_runs(const Box& box, std::int64_t begin, std::int64_t end, std::int64_t grain, std::vector<Run>& runs) {
  if (begin >= end) return;
  const std::size_t first = runs.size();
  if (code_.empty()) return emit(begin, end, true, first, runs);
  evaluate_fixed(box);
  const bool small = is_small({begin, end});
  if (is_conjunction_ && small) return conjunction_runs(box, begin, end, runs);
  if (grain < 1) grain = 1;
  cuts_.clear();
  cuts_.push_back(begin);
  for (const AffineLeaf& leaf : affine_.leaves) {
    if (!small || (leaf.kv != 1 && leaf.kv != -1)) continue;
    const Zone zone = zone_of(leaf, box);
    for (const std::int64_t cut : {zone.possible_begin, zone.possible_end, zone.always_begin, zone.always_end}) {
      if (cut > begin && cut < end) cuts_.push_back(cut);
    }
  }
  cuts_.push_back(end);
  std::sort(cuts_.begin(), cuts_.end());
  for (std::size_t i = 0; i + 1 < cuts_.size(); ++i) {
    const std::int64_t lo = cuts_[i];
    const std::int64_t hi = cuts_[i + 1];
    if (lo < hi) refine(box, {begin, grain}, {lo, hi, (lo - begin) / grain, (hi - 1 - begin) / grain}, first, runs);
  }
}

MaskProver::MaskProver(const Program& program) : state_(std::make_unique<State>(program)) {}
MaskProver::~MaskProver() = default;
MaskProver::MaskProver(MaskProver&&) noexcept = default;

void MaskProver::bind(const ParamTable& params) { state_->bind(params); }
Tri MaskProver::classify(const Box& box, Range kv_pos) const { return state_->classify(box, kv_pos); }

void MaskProver::find_runs(const Box& box, std::int64_t begin, std::int64_t end, std::int64_t grain, std::vector<Run>& runs) const {
  state_->find_runs(box, begin, end, grain, runs);
}

bool MaskProver::uses_q_head() const { return state_->uses_q_head; }

}  // namespace girih::variant
