// Evaluates hooks over lanes (the keys of a tile row, or the elements of a head vector) for every SIMD target. First all uniform
// instructions, one value each; then the others, a loop over the lanes each. Integer lanes are 64-bit by definition, but 32-bit lanes are
// used where interval arithmetic over the row shows that no value leaves 32 bits: twice the lanes, and most targets compare and convert
// 64-bit integers poorly. Buffers of one row stay in the first-level cache.

#include <type_traits>

#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "variant/evaluate.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "variant/evaluate-inl.h"
#include "variant/lanes-inl.h"
#include "variant/narrow.h"

HWY_BEFORE_NAMESPACE();
namespace girih::variant {
namespace HWY_NAMESPACE {
namespace {

/// What an evaluation starts from, and where each instruction's value lies.
struct Frame {
  const Instruction* instructions;
  int count;
  const ParamTable* params;
  const RowVars* row;
  const std::int64_t* kv_pos;  // lanes, or one value where the hook takes it as uniform
  float* values;               // lanes of score or x, in and out
  int n;
  std::byte* free;                               // next unused scratch
  Slot slots[Program::kMaxInstructions];         // values of uniform instructions
  const void* lanes[Program::kMaxInstructions];  // lanes of the others
};

HWY_INLINE void* take(Frame& frame, std::size_t bytes) {
  void* result = frame.free;
  frame.free += (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  return result;
}

/// Integer lanes are of type I; uniform integers always 64-bit.
template <typename T>
HWY_INLINE HWY_ATTR Lanes<T> operand(const Frame& frame, const Instruction& instruction, int arg) {
  const int index = instruction.args[static_cast<std::size_t>(arg)];
  if (!frame.instructions[index].uniform) return {static_cast<const T*>(frame.lanes[index]), T{}};
  const Slot& slot = frame.slots[index];
  if constexpr (std::is_same_v<T, std::uint8_t>) {
    return {nullptr, slot.boolean};
  } else if constexpr (std::is_same_v<T, float>) {
    return {nullptr, slot.number};
  } else {
    return {nullptr, static_cast<T>(slot.integer)};
  }
}

template <typename F, typename T>
HWY_ATTR void binary(const Frame& frame, const Instruction& instruction, T* out) {
  map_lanes<F>(operand<T>(frame, instruction, 0), operand<T>(frame, instruction, 1), out, frame.n);
}

template <typename F, typename T>
HWY_ATTR void compare(const Frame& frame, const Instruction& instruction, std::uint8_t* out) {
  map_lanes<F>(operand<T>(frame, instruction, 0), operand<T>(frame, instruction, 1), out, frame.n);
}

template <typename F, typename T>
HWY_ATTR void unary(const Frame& frame, const Instruction& instruction, T* out) {
  map_lanes<F>(operand<T>(frame, instruction, 0), out, frame.n);
}

template <typename I>
HWY_ATTR void number_instruction(const Frame& frame, const Instruction& instruction, float* out) {
  const auto a = [&]() HWY_ATTR { return operand<float>(frame, instruction, 0); };
  switch (instruction.op) {
    case Op::add: return binary<Add>(frame, instruction, out);
    case Op::sub: return binary<Sub>(frame, instruction, out);
    case Op::mul: return binary<Mul>(frame, instruction, out);
    case Op::div: return binary<Div>(frame, instruction, out);
    case Op::min: return binary<Min>(frame, instruction, out);
    case Op::max: return binary<Max>(frame, instruction, out);
    case Op::neg: return unary<Neg>(frame, instruction, out);
    case Op::abs: return unary<Abs>(frame, instruction, out);
    case Op::exp: return unary<Exp>(frame, instruction, out);
    case Op::log: return unary<Log>(frame, instruction, out);
    case Op::tanh: return unary<Tanh>(frame, instruction, out);
    case Op::sigmoid: return unary<Sigmoid>(frame, instruction, out);
    case Op::sqrt: return sqrt_lanes<false>(a(), out, frame.n);
    case Op::rsqrt: return sqrt_lanes<true>(a(), out, frame.n);
    case Op::to_number: return map_lanes<ToNumber>(operand<I>(frame, instruction, 0), out, frame.n);
    case Op::select:
      return select_lanes(operand<std::uint8_t>(frame, instruction, 0), operand<float>(frame, instruction, 1),
                          operand<float>(frame, instruction, 2), out, frame.n);
    case Op::array_param: {
      const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
      return gather_lanes(static_cast<const float*>(param.data), param.size, operand<I>(frame, instruction, 0), out, frame.n);
    }
    default: return;
  }
}

template <typename I>
HWY_ATTR void integer_instruction(const Frame& frame, const Instruction& instruction, I* out) {
  switch (instruction.op) {
    case Op::add: return binary<Add>(frame, instruction, out);
    case Op::sub: return binary<Sub>(frame, instruction, out);
    case Op::mul: return binary<Mul>(frame, instruction, out);
    case Op::div: return binary<Div>(frame, instruction, out);
    case Op::mod: return binary<Mod>(frame, instruction, out);
    case Op::min: return binary<Min>(frame, instruction, out);
    case Op::max: return binary<Max>(frame, instruction, out);
    case Op::neg: return unary<Neg>(frame, instruction, out);
    case Op::abs: return unary<Abs>(frame, instruction, out);
    case Op::select:
      return select_lanes(operand<std::uint8_t>(frame, instruction, 0), operand<I>(frame, instruction, 1),
                          operand<I>(frame, instruction, 2), out, frame.n);
    case Op::array_param: {
      const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
      const Lanes<I> index = operand<I>(frame, instruction, 0);
      if (instruction.dtype == DType::i32)
        return gather_lanes(static_cast<const std::int32_t*>(param.data), param.size, index, out, frame.n);
      return gather_lanes(static_cast<const std::int64_t*>(param.data), param.size, index, out, frame.n);
    }
    default: return;
  }
}

template <typename I>
HWY_ATTR void boolean_instruction(const Frame& frame, const Instruction& instruction, std::uint8_t* out) {
  const bool numbers = frame.instructions[instruction.args[0]].type == ExprType::number;
  switch (instruction.op) {
    case Op::lt: return numbers ? compare<Lt, float>(frame, instruction, out) : compare<Lt, I>(frame, instruction, out);
    case Op::le: return numbers ? compare<Le, float>(frame, instruction, out) : compare<Le, I>(frame, instruction, out);
    case Op::eq: return numbers ? compare<Eq, float>(frame, instruction, out) : compare<Eq, I>(frame, instruction, out);
    case Op::ne: return numbers ? compare<Ne, float>(frame, instruction, out) : compare<Ne, I>(frame, instruction, out);
    case Op::and_: return binary<And>(frame, instruction, out);
    case Op::or_: return binary<Or>(frame, instruction, out);
    case Op::not_: return unary<Not>(frame, instruction, out);
    case Op::select:
      return select_lanes(operand<std::uint8_t>(frame, instruction, 0), operand<std::uint8_t>(frame, instruction, 1),
                          operand<std::uint8_t>(frame, instruction, 2), out, frame.n);
    case Op::bits_param: {
      const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
      return gather_bits(static_cast<const std::uint8_t*>(param.data), param.size, operand<I>(frame, instruction, 0), out, frame.n);
    }
    default: return;
  }
}

/// Runs an operation into `out` (elements of the instruction's type).
template <typename I>
HWY_ATTR void execute(const Frame& frame, const Instruction& instruction, void* out) {
  switch (instruction.type) {
    case ExprType::number: return number_instruction<I>(frame, instruction, static_cast<float*>(out));
    case ExprType::integer: return integer_instruction<I>(frame, instruction, static_cast<I*>(out));
    case ExprType::boolean: return boolean_instruction<I>(frame, instruction, static_cast<std::uint8_t*>(out));
  }
}

HWY_ATTR std::int64_t integer_var(const Frame& frame, Var var) {
  const RowVars& row = *frame.row;
  switch (var) {
    case Var::q_pos: return row.q_pos;
    case Var::kv_pos: return *frame.kv_pos;  // NOLINT(clang-analyzer-core.NullDereference): set for hooks that may use it
    case Var::q_idx: return row.q_idx;
    case Var::q_len: return row.q_len;
    case Var::kv_len: return row.kv_len;
    case Var::request: return row.request;
    case Var::q_head: return row.q_head;
    case Var::kv_head: return row.kv_head;
    case Var::q_row: return row.q_row;
    default: return 0;
  }
}

HWY_ATTR void run_uniform(Frame& frame) {
  for (int i = 0; i < frame.count; ++i) {
    const Instruction& instruction = frame.instructions[i];
    if (!instruction.uniform) continue;
    Slot& slot = frame.slots[i];
    switch (instruction.op) {
      case Op::const_boolean: slot.boolean = static_cast<std::uint8_t>(instruction.integer); break;
      case Op::const_integer: slot.integer = instruction.integer; break;
      case Op::const_number: slot.number = instruction.number; break;
      case Op::var:
        if (instruction.var == Var::mean_square) {
          slot.number = mean_square_of(frame.values, frame.n);
        } else {
          slot.integer = integer_var(frame, instruction.var);
        }
        break;
      case Op::scalar_param: {
        const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
        if (instruction.type == ExprType::number) {
          slot.number = param.number;
        } else {
          slot.integer = param.integer;
        }
        break;
      }
      default: execute<std::int64_t>(frame, instruction, &slot); break;
    }
  }
}

/// Lanes of score, x, kv_pos or dim. `positions`: kv_pos as I.
template <typename I>
HWY_ATTR const void* var_lanes(Frame& frame, Var var, const I* positions) {
  if (var == Var::kv_pos) return positions;
  if (var != Var::dim) return frame.values;
  auto* out = static_cast<I*>(take(frame, sizeof(I) * static_cast<std::size_t>(frame.n)));
  for (int i = 0; i < frame.n; ++i) out[i] = static_cast<I>(i);
  return out;
}

/// The instructions that are not uniform; the last writes to `result`.
template <typename I>
HWY_ATTR void run_lanes(Frame& frame, const I* positions, void* result) {
  for (int i = 0; i < frame.count; ++i) {
    const Instruction& instruction = frame.instructions[i];
    if (instruction.uniform) continue;
    if (instruction.op == Op::var) {
      frame.lanes[i] = var_lanes(frame, instruction.var, positions);
      continue;
    }
    const auto n = static_cast<std::size_t>(frame.n);
    const std::size_t size = instruction.type == ExprType::number ? sizeof(float) : instruction.type == ExprType::integer ? sizeof(I) : 1;
    void* out = i == frame.count - 1 ? result : take(frame, size * n);
    execute<I>(frame, instruction, out);
    frame.lanes[i] = out;
  }
}

/// Everything into `result`: frame.values, or booleans.
HWY_ATTR void run(Frame& frame, void* result) {
  run_uniform(frame);
  const Instruction& last = frame.instructions[frame.count - 1];
  if (last.uniform) {
    const Slot& slot = frame.slots[frame.count - 1];
    if (last.type == ExprType::boolean) {
      fill_lanes(slot.boolean, static_cast<std::uint8_t*>(result), frame.n);
    } else {
      fill_lanes(slot.number, static_cast<float*>(result), frame.n);
    }
    return;
  }
  if (last.op == Op::var) return;  // score or x as it is: it lies there already
  const IntegerLanes lanes = integer_lanes(frame.instructions, frame.count, frame.slots);
  if (lanes.narrow) {
    if (!lanes.positions) return run_lanes<std::int32_t>(frame, nullptr, result);
    auto* positions = static_cast<std::int32_t*>(take(frame, sizeof(std::int32_t) * static_cast<std::size_t>(frame.n)));
    if (narrow_positions(frame.kv_pos, positions, frame.n)) return run_lanes<std::int32_t>(frame, positions, result);
  }
  run_lanes<std::int64_t>(frame, frame.kv_pos, result);
}

HWY_ATTR void start(Frame& frame, const Code& code, const ParamTable& params, const RowVars& row, int n, std::byte* scratch) {
  frame.instructions = code.instructions.data();
  frame.count = static_cast<int>(code.instructions.size());
  frame.params = &params;
  frame.row = &row;
  frame.kv_pos = nullptr;
  frame.values = nullptr;
  frame.n = n;
  frame.free = scratch;
}

}  // namespace

void evaluate_logits(const Program& program, const ParamTable& params, const RowVars& row, const std::int64_t* kv_pos, int n, float* score,
                     std::byte* scratch) {
  Frame frame;
  start(frame, program.logits, params, row, n, scratch);
  frame.kv_pos = kv_pos;
  frame.values = score;
  run(frame, score);
}

void evaluate_mask(const Program& program, const ParamTable& params, const RowVars& row, const std::int64_t* kv_pos, int n,
                   std::uint8_t* visible, std::byte* scratch) {
  Frame frame;
  start(frame, program.mask, params, row, n, scratch);
  frame.kv_pos = kv_pos;
  run(frame, visible);
}

void evaluate_transform(const Code& code, const ParamTable& params, const RowVars& row, std::int64_t kv_pos, int n, float* x,
                        std::byte* scratch) {
  if (code.instructions.empty()) return;
  Frame frame;
  start(frame, code, params, row, n, scratch);
  frame.kv_pos = &kv_pos;
  frame.values = x;
  run(frame, x);
}

float evaluate_sink(const Program& program, const ParamTable& params, std::int64_t q_head, std::byte* scratch) {
  Frame frame;
  RowVars row;
  row.q_head = q_head;
  start(frame, program.sink, params, row, 1, scratch);
  float sink = 0;
  run(frame, &sink);
  return sink;
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::variant
HWY_AFTER_NAMESPACE();
