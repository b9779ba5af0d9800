// The mask as words of 32 keys. A condition becomes a word; and, or, not work on words. Values are needed in up to three stages, which have
// blocks of their own, since an instruction is named alike in all of them: at the lane's own key, at the first key, and key by key.
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "variant/cuda_forms.h"

namespace girih::variant {
namespace {

class WordPrinter {
 public:
  explicit WordPrinter(const HookPrinter& hook) : hook_(hook), own_{hook, "ptx::lane_idx()"}, first_{hook, "0"}, each_{hook, "column"} {}

  std::string print() {
    const std::string result = word(hook_.last());
    std::string text;
    const auto declare = [&](const Stage& stage) {
      for (const auto& [i, name] : stage.kept) text += fmt::format("    {} {};\n", type_name(hook_.at(i).type), name);
    };
    const auto print_stage = [&](const Stage& stage) {
      if (stage.kept.empty()) return;
      text += "    {\n" + stage.position() + stage.body;
      for (const auto& [i, name] : stage.kept) text += fmt::format("    {} = {};\n", name, hook_.operand(i, false));
      text += "    }\n";
    };
    // What is evaluated key by key asks for values of the keys' lanes.
    declare(own_);
    print_stage(own_);
    declare(first_);
    print_stage(first_);
    for (const auto& [i, name] : each_.kept) text += fmt::format("    u32 {} = 0;\n", name);
    if (!each_.kept.empty()) {
      text += "#pragma unroll 8\n    for (int column = 0; column < ptx::kWarp; ++column) {\n" + each_.position() + each_.body;
      for (const auto& [i, name] : each_.kept) text += fmt::format("    {} |= ({} ? 1U : 0U) << column;\n", name, hook_.operand(i, false));
      text += "    }\n";
    }
    return HookPrinter::function("u32 mask_word", "const MaskRow& u, i64 first", text + words_, result);
  }

 private:
  /// Statements that give instructions their values at one key.
  struct Stage {
    const HookPrinter& hook;
    std::string column;
    std::string body{};
    std::map<std::size_t, std::string> kept{};  // values that are read after the stage, by which name
    std::set<std::size_t> done{};
    bool has_position = false;

    std::string position() const {
      return has_position ? fmt::format("    const i64 kv_pos = first{};\n", column == "0" ? "" : " + " + column) : std::string();
    }
  };

  std::size_t arg(std::size_t i, int n) const { return static_cast<std::size_t>(hook_.at(i).args[static_cast<std::size_t>(n)]); }
  bool of_key_alone(std::size_t i) const { return !hook_.at(i).uniform && !hook_.at(i).by_row; }

  /// Sees to it that the stage has instruction i under its name.
  void need(Stage& stage, std::size_t i) {
    const Instruction& x = hook_.at(i);
    if (x.uniform || !stage.done.insert(i).second) return;
    if (x.op == Op::var) {
      stage.has_position = true;
      return;
    }
    if (&stage == &each_ && of_key_alone(i)) {
      keep(own_, i, "k");
      stage.body += fmt::format("    const {} {} = of_lane({}, column);\n", type_name(x.type), hook_.operand(i, false), own_.kept.at(i));
      return;
    }
    for (const std::int16_t a : x.args) {
      if (a >= 0) need(stage, static_cast<std::size_t>(a));
    }
    stage.body += fmt::format("    const {} {} = {};\n", type_name(x.type), hook_.operand(i, false), hook_.expression(i));
  }
  std::string keep(Stage& stage, std::size_t i, std::string_view prefix) {
    need(stage, i);
    return stage.kept.emplace(i, fmt::format("{}{}", prefix, i)).first->second;
  }
  /// An integer's value at the first key.
  std::string at_first(std::size_t i) { return hook_.at(i).uniform ? hook_.operand(i, false) : keep(first_, i, "f"); }

  /// The word of a condition: an expression.
  std::string word(std::size_t i) {
    const auto found = names_.find(i);
    if (found != names_.end()) return found->second;
    const std::string text = make_word(i);
    std::string name = fmt::format("w{}", i);
    words_ += fmt::format("    const u32 {} = {};\n", name, text);
    return names_.emplace(i, std::move(name)).first->second;
  }

  std::string make_word(std::size_t i) {
    const Instruction& x = hook_.at(i);
    if (x.uniform) return fmt::format("{} ? ptx::kAllLanes : 0U", hook_.operand(i, false));
    switch (x.op) {
      case Op::and_: return word(arg(i, 0)) + " & " + word(arg(i, 1));
      case Op::or_: return word(arg(i, 0)) + " | " + word(arg(i, 1));
      case Op::not_: return "~" + word(arg(i, 0));
      case Op::select: {
        const std::string condition = word(arg(i, 0));
        return fmt::format("({0} & {1}) | (~{0} & {2})", condition, word(arg(i, 1)), word(arg(i, 2)));
      }
      case Op::bits_param:
        if (hook_.slope(arg(i, 0)) == 1) return fmt::format("bits_at({}, {})", hook_.data_and_size(x), at_first(arg(i, 0)));
        break;
      case Op::lt:
      case Op::le:
      case Op::eq:
      case Op::ne:
        if (std::string text = comparison(i); !text.empty()) return text;
        break;
      default: break;
    }
    if (of_key_alone(i)) return fmt::format("ptx::ballot({})", keep(own_, i, "k"));
    return keep(each_, i, "e");
  }

  /// Empty where it is not affine in kv_pos with a slope of 1 or -1 or none.
  std::string comparison(std::size_t i) {
    const Instruction& x = hook_.at(i);
    if (hook_.at(arg(i, 0)).type != ExprType::integer) return {};
    const auto a = hook_.slope(arg(i, 0));
    const auto b = hook_.slope(arg(i, 1));
    const bool negated = x.op == Op::ne;
    const auto signed_word = [&](bool negate, const std::string& text) { return (negate ? "~" : "") + text; };
    if (a && b && (*a - *b == 1 || *a - *b == -1)) {
      const bool rises = *a - *b == 1;
      const std::string left = at_first(arg(i, 0));
      const std::string right = at_first(arg(i, 1));
      const std::string both = rises ? left + ", " + right : right + ", " + left;
      if (x.op == Op::lt) return rises ? fmt::format("keys_below({})", both) : fmt::format("~keys_up_to({})", both);
      if (x.op == Op::le) return rises ? fmt::format("keys_up_to({})", both) : fmt::format("~keys_below({})", both);
      return signed_word(negated, fmt::format("key_at({})", both));
    }
    // A key's chunk: floor(position / size), compared with a row's.
    for (const int side : {0, 1}) {
      const std::size_t quotient = arg(i, side);
      const std::size_t other = arg(i, 1 - side);
      const Instruction& q = hook_.at(quotient);
      if (q.op != Op::div || q.uniform || !hook_.at(other).uniform || hook_.slope(arg(quotient, 0)) != 1) continue;
      const Instruction& size = hook_.at(arg(quotient, 1));
      if (size.op != Op::const_integer || size.integer <= 0 || size.integer > HookPrinter::kMaxSlope * HookPrinter::kMaxSlope) continue;
      const std::string position = at_first(arg(quotient, 0));
      const std::string before = fmt::format("keys_below_chunk({}, {}, {}, 0)", position, hook_.operand(other, false), size.integer);
      const std::string within = fmt::format("keys_below_chunk({}, {}, {}, 1)", position, hook_.operand(other, false), size.integer);
      if (x.op == Op::lt) return side == 0 ? before : "~" + within;
      if (x.op == Op::le) return side == 0 ? within : "~" + before;
      return signed_word(negated, fmt::format("({} & ~{})", within, before));
    }
    return {};
  }

  const HookPrinter& hook_;
  Stage own_, first_, each_;
  std::map<std::size_t, std::string> names_;
  std::string words_;
};

}  // namespace

std::string print_mask_word(const HookPrinter& mask) { return WordPrinter(mask).print(); }

}  // namespace girih::variant
