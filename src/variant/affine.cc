// Finds affine forms bottom-up. Each form also carries the sum of its coefficients' magnitudes and of its constants as the expression wrote
// them, before cancelling: with terms within kAffineLimit those bound every intermediate value, so a wrap can be excluded once and for all.

#include "variant/affine.h"

#include <optional>

namespace girih::variant {
namespace {

constexpr std::int64_t kMaxWeight = std::int64_t{1} << 20;  // times kAffineLimit: 2^60
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 60;

struct Form {
  std::int64_t kv = 0;
  std::int64_t constant = 0;
  std::vector<AffineTerm> terms;
  std::int64_t weight = 0;           // sum of |coefficient| as written
  std::int64_t constant_weight = 0;  // sum of |constant| as written
};

using MaybeForm = std::optional<Form>;

std::int64_t magnitude(std::int64_t v) { return v < 0 ? -v : v; }

bool within(const Form& f) { return f.weight <= kMaxWeight && f.constant_weight <= kMaxConstant; }

/// f * by, or nothing if it grows too large.
MaybeForm scaled(const Form& f, std::int64_t by) {
  if (by < -kMaxConstant || by > kMaxConstant) return std::nullopt;
  Form r = f;
  if (__builtin_mul_overflow(f.weight, magnitude(by), &r.weight) ||
      __builtin_mul_overflow(f.constant_weight, magnitude(by), &r.constant_weight)) {
    return std::nullopt;
  }
  if (!within(r)) return std::nullopt;
  r.kv *= by;
  r.constant *= by;
  for (AffineTerm& term : r.terms) term.coefficient *= by;
  return r;
}

MaybeForm sum(const Form& a, const Form& b) {
  Form r = a;
  r.kv += b.kv;
  r.constant += b.constant;
  r.weight += b.weight;
  r.constant_weight += b.constant_weight;
  for (const AffineTerm& term : b.terms) {
    bool found = false;
    for (AffineTerm& mine : r.terms) {
      if (mine.instruction != term.instruction) continue;
      mine.coefficient += term.coefficient;
      found = true;
    }
    if (!found) r.terms.push_back(term);
  }
  std::erase_if(r.terms, [](const AffineTerm& t) { return t.coefficient == 0; });
  return within(r) ? MaybeForm(r) : std::nullopt;
}

MaybeForm difference(const MaybeForm& a, const MaybeForm& b) {
  if (!a || !b) return std::nullopt;
  const MaybeForm minus = scaled(*b, -1);
  return minus ? sum(*a, *minus) : std::nullopt;
}

MaybeForm plus_constant(const MaybeForm& a, std::int64_t constant) {
  if (!a) return std::nullopt;
  Form c;
  c.constant = constant;
  c.constant_weight = magnitude(constant);
  return sum(*a, c);
}

class Finder {
 public:
  Finder(const Code& code, const std::vector<bool>& moving) : code_(code), moving_(moving) {}

  AffineForms find() {
    const std::size_t n = code_.instructions.size();
    AffineForms result;
    result.leaf_of.assign(n, -1);
    for (std::size_t i = 0; i < n; ++i) {
      const Instruction& instruction = code_.instructions[i];
      forms_.push_back(instruction.type == ExprType::integer ? form_of(i) : std::nullopt);
      const Op op = instruction.op;
      if (op != Op::lt && op != Op::le && op != Op::eq && op != Op::ne) continue;
      if (code_.instructions[static_cast<std::size_t>(instruction.args[0])].type != ExprType::integer) continue;
      if (std::optional<AffineLeaf> leaf = leaf_of(instruction)) {
        result.leaf_of[i] = static_cast<std::int16_t>(result.leaves.size());
        result.leaves.push_back(std::move(*leaf));
      }
    }
    return result;
  }

 private:
  const MaybeForm& arg(const Instruction& instruction, std::size_t k) const {
    return forms_[static_cast<std::size_t>(instruction.args[k])];
  }

  MaybeForm form_of(std::size_t i) const {
    const Instruction& instruction = code_.instructions[i];
    MaybeForm form = expanded(instruction);
    if (form || moving_[i]) return form;
    Form term;
    term.terms.push_back({static_cast<std::int16_t>(i), 1});
    term.weight = 1;
    return term;
  }

  MaybeForm expanded(const Instruction& instruction) const {
    switch (instruction.op) {
      case Op::const_integer:
        if (instruction.integer < -kMaxConstant || instruction.integer > kMaxConstant) return std::nullopt;
        return plus_constant(Form{}, instruction.integer);
      case Op::var: {
        if (instruction.var != Var::kv_pos) return std::nullopt;
        Form form;
        form.kv = 1;
        form.weight = 1;
        return form;
      }
      case Op::add: {
        const MaybeForm& a = arg(instruction, 0);
        const MaybeForm& b = arg(instruction, 1);
        return a && b ? sum(*a, *b) : std::nullopt;
      }
      case Op::sub: return difference(arg(instruction, 0), arg(instruction, 1));
      case Op::neg: return arg(instruction, 0) ? scaled(*arg(instruction, 0), -1) : std::nullopt;
      case Op::mul: {
        const MaybeForm& a = arg(instruction, 0);
        const MaybeForm& b = arg(instruction, 1);
        if (!a || !b) return std::nullopt;
        if (a->weight == 0) return scaled(*b, a->constant);
        return b->weight == 0 ? scaled(*a, b->constant) : std::nullopt;
      }
      default: return std::nullopt;
    }
  }

  std::optional<AffineLeaf> leaf_of(const Instruction& compare) const {
    if (auto leaf = make_leaf(compare.op, difference(arg(compare, 0), arg(compare, 1)), 0)) return leaf;
    const bool is_equality = compare.op == Op::eq || compare.op == Op::ne;
    // floor(x / s) compared with r: x compared with s * r, up to s - 1.
    if (const auto [x, s] = moving_quotient(compare.args[0]); x && arg(compare, 1)) {
      const MaybeForm d = difference(x, scaled(*arg(compare, 1), s));
      if (is_equality) return make_leaf(compare.op, d, s - 1);
      return make_leaf(Op::lt, compare.op == Op::lt ? d : plus_constant(d, -s), 0);
    }
    if (const auto [x, s] = moving_quotient(compare.args[1]); x && arg(compare, 0)) {
      const MaybeForm scaled_left = scaled(*arg(compare, 0), s);
      if (is_equality) return make_leaf(compare.op, difference(x, scaled_left), s - 1);
      return make_leaf(Op::lt, plus_constant(difference(scaled_left, x), compare.op == Op::lt ? s - 1 : -1), 0);
    }
    return std::nullopt;
  }

  struct Quotient {
    MaybeForm dividend;
    std::int64_t divisor = 0;
  };

  /// x / s with an affine x that depends on kv_pos and a constant s > 0.
  Quotient moving_quotient(std::int16_t index) const {
    const Instruction& instruction = code_.instructions[static_cast<std::size_t>(index)];
    if (instruction.op != Op::div || instruction.type != ExprType::integer || !moving_[static_cast<std::size_t>(index)]) return {};
    const Instruction& divisor = code_.instructions[static_cast<std::size_t>(instruction.args[1])];
    if (divisor.op != Op::const_integer || divisor.integer <= 0 || divisor.integer > kMaxWeight) return {};
    return {arg(instruction, 0), divisor.integer};
  }

  static std::optional<AffineLeaf> make_leaf(Op op, const MaybeForm& d, std::int64_t width) {
    const MaybeForm form = op == Op::le ? plus_constant(d, -1) : d;
    if (!form) return std::nullopt;
    AffineLeaf leaf;
    leaf.kind = op == Op::eq || op == Op::ne ? AffineLeaf::Kind::band : AffineLeaf::Kind::below;
    leaf.negate = op == Op::ne;
    leaf.width = width;
    leaf.kv = form->kv;
    leaf.constant = form->constant;
    leaf.terms = form->terms;
    return leaf;
  }

  const Code& code_;
  const std::vector<bool>& moving_;
  std::vector<MaybeForm> forms_;
};

}  // namespace

AffineForms find_affine(const Code& code, const std::vector<bool>& moving) { return Finder(code, moving).find(); }

}  // namespace girih::variant
