// Executes one instruction of a hook over the lanes of a frame, for every operation and type (evaluate.cc).

#if defined(GIRIH_VARIANT_EXECUTE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_VARIANT_EXECUTE_INL
#undef GIRIH_VARIANT_EXECUTE_INL
#else
#define GIRIH_VARIANT_EXECUTE_INL
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "variant/evaluate.h"
#include "variant/lanes-inl.h"
#include "variant/narrow.h"

HWY_BEFORE_NAMESPACE();
namespace girih::variant {
namespace HWY_NAMESPACE {
namespace {

/// Where the value of an instruction lies, for the instructions that read it. No data: in its slot. Without initial values: a frame has
/// many, and clears those that it uses.
struct Place {
  const void* data;
  int step;
  bool wide;
};

/// What an evaluation starts from, and where each instruction's value lies.
struct Frame {
  const Instruction* instructions;
  int count;
  const ParamTable* params;
  Extent extent;                            // of the instruction at work
  std::byte* free;                          // next unused scratch
  Slot slots[Program::kMaxInstructions];    // values of those that are the same for every lane
  Place places[Program::kMaxInstructions];  // of the others
};

HWY_INLINE void* take(Frame& frame, std::size_t bytes) {
  void* result = frame.free;
  frame.free += (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  return result;
}

/// Bytes of an element of an instruction's type; integer lanes are of type I.
template <typename I>
HWY_INLINE std::size_t element_bytes(const Instruction& instruction) {
  return instruction.type == ExprType::number ? sizeof(float) : instruction.type == ExprType::integer ? sizeof(I) : 1;
}

/// Integer lanes are of type I; integers in slots always 64-bit.
template <typename T>
HWY_INLINE HWY_ATTR Lanes<T> operand(const Frame& frame, const Instruction& instruction, int arg) {
  const int index = instruction.args[static_cast<std::size_t>(arg)];
  const Place& place = frame.places[index];
  if (place.data != nullptr) return {static_cast<const T*>(place.data), T{}, place.step, place.wide};
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
  map_lanes<F>(operand<T>(frame, instruction, 0), operand<T>(frame, instruction, 1), out, frame.extent);
}

template <typename F, typename T>
HWY_ATTR void compare(const Frame& frame, const Instruction& instruction, std::uint8_t* out) {
  map_lanes<F>(operand<T>(frame, instruction, 0), operand<T>(frame, instruction, 1), out, frame.extent);
}

template <typename F, typename T>
HWY_ATTR void unary(const Frame& frame, const Instruction& instruction, T* out) {
  map_lanes<F>(operand<T>(frame, instruction, 0), out, frame.extent);
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
    case Op::tanh: return tanh_lanes(a(), 1.0F, 1.0F, out, frame.extent);
    case Op::sigmoid: return unary<Sigmoid>(frame, instruction, out);
    case Op::sqrt: return sqrt_lanes<false>(a(), out, frame.extent);
    case Op::rsqrt: return sqrt_lanes<true>(a(), out, frame.extent);
    case Op::to_number: return map_lanes<ToNumber>(operand<I>(frame, instruction, 0), out, frame.extent);
    case Op::select:
      return select_lanes(operand<std::uint8_t>(frame, instruction, 0), operand<float>(frame, instruction, 1),
                          operand<float>(frame, instruction, 2), out, frame.extent);
    case Op::array_param: {
      const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
      return gather_lanes(static_cast<const float*>(param.data), param.size, operand<I>(frame, instruction, 0), out, frame.extent);
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
                          operand<I>(frame, instruction, 2), out, frame.extent);
    case Op::array_param: {
      const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
      const Lanes<I> index = operand<I>(frame, instruction, 0);
      if (instruction.dtype == DType::i32)
        return gather_lanes(static_cast<const std::int32_t*>(param.data), param.size, index, out, frame.extent);
      return gather_lanes(static_cast<const std::int64_t*>(param.data), param.size, index, out, frame.extent);
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
                          operand<std::uint8_t>(frame, instruction, 2), out, frame.extent);
    case Op::bits_param: {
      const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
      return gather_bits(static_cast<const std::uint8_t*>(param.data), param.size, operand<I>(frame, instruction, 0), out, frame.extent);
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

/// The instructions without operands or lanes: constants and scalar parameters, into their slots. False for any other.
HWY_INLINE HWY_ATTR bool run_constant(Frame& frame, int index) {
  const Instruction& instruction = frame.instructions[index];
  Slot& slot = frame.slots[index];
  switch (instruction.op) {
    case Op::const_boolean: slot.boolean = static_cast<std::uint8_t>(instruction.integer); return true;
    case Op::const_integer: slot.integer = instruction.integer; return true;
    case Op::const_number: slot.number = instruction.number; return true;
    case Op::scalar_param: {
      const ParamData& param = (*frame.params)[static_cast<std::size_t>(instruction.param)];
      if (instruction.type == ExprType::number) {
        slot.number = param.number;
      } else {
        slot.integer = param.integer;
      }
      return true;
    }
    default: return false;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace girih::variant
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_VARIANT_EXECUTE_INL
