// Evaluates hooks for every SIMD target, over one row (lanes are the keys of a tile row, or the elements of a head vector) or over a tile
// (lanes are its query rows). First all uniform instructions, one value each; then the others, a loop over the lanes each. Integer lanes
// are 64-bit by definition, but 32-bit lanes are used where interval arithmetic shows that no value leaves 32 bits: twice the lanes, and
// most targets compare and convert 64-bit integers poorly.
// Over a tile an instruction is worked out no more often than it differs: once for all, once a row, once a key, or for each pair.

#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "variant/evaluate.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "variant/evaluate-inl.h"
#include "variant/execute-inl.h"
#include "variant/lanes-inl.h"
#include "variant/narrow.h"

HWY_BEFORE_NAMESPACE();
namespace girih::variant {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE void start(Frame& frame, const Code& code, const ParamTable& params, std::byte* scratch) {
  frame.instructions = code.instructions.data();
  frame.count = static_cast<int>(code.instructions.size());
  frame.params = &params;
  frame.free = scratch;
  for (int i = 0; i < frame.count; ++i) frame.places[i].data = nullptr;
}

HWY_INLINE std::int64_t row_var(const RowVars& row, Var var) {
  switch (var) {
    case Var::q_pos: return row.q_pos;
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

// ---------------------------------------------------------------------------------------------------------------- one row

/// A row's evaluation.
struct RowFrame : Frame {
  const RowVars* row;
  const std::int64_t* kv_pos;  // lanes, or one value where the hook takes it as uniform
  float* values;               // lanes of score or x, in and out
  int n;
};

HWY_ATTR void run_uniform(RowFrame& frame) {
  frame.extent = {1, 1, 0};
  for (int i = 0; i < frame.count; ++i) {
    const Instruction& instruction = frame.instructions[i];
    if (!instruction.uniform || run_constant(frame, i)) continue;
    Slot& slot = frame.slots[i];
    if (instruction.op != Op::var) {
      execute<std::int64_t>(frame, instruction, &slot);
    } else if (instruction.var == Var::mean_square) {
      slot.number = mean_square_of(frame.values, frame.n);
    } else if (instruction.var == Var::kv_pos) {
      slot.integer = *frame.kv_pos;  // NOLINT(clang-analyzer-core.NullDereference): set for hooks that may use it
    } else {
      slot.integer = row_var(*frame.row, instruction.var);
    }
  }
}

/// Lanes of score, x, kv_pos or dim. `positions`: kv_pos as I.
template <typename I>
HWY_ATTR const void* var_lanes(RowFrame& frame, Var var, const I* positions) {
  if (var == Var::kv_pos) return positions;
  if (var != Var::dim) return frame.values;
  auto* out = static_cast<I*>(take(frame, sizeof(I) * static_cast<std::size_t>(frame.n)));
  for (int i = 0; i < frame.n; ++i) out[i] = static_cast<I>(i);
  return out;
}

/// The instructions that are not uniform; the last writes to `result`.
template <typename I>
HWY_ATTR void run_lanes(RowFrame& frame, const I* positions, void* result) {
  frame.extent = {1, frame.n, 0};
  for (int i = 0; i < frame.count; ++i) {
    const Instruction& instruction = frame.instructions[i];
    if (instruction.uniform) continue;
    const void* at = result;
    if (instruction.op == Op::var) {
      at = var_lanes(frame, instruction.var, positions);
    } else {
      void* out = i == frame.count - 1 ? result : take(frame, element_bytes<I>(instruction) * static_cast<std::size_t>(frame.n));
      execute<I>(frame, instruction, out);
      at = out;
    }
    frame.places[i] = {at, 0, true};
  }
}

/// Everything into `result`: frame.values, or booleans.
HWY_ATTR void run(RowFrame& frame, void* result) {
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
  const IntegerLanes lanes = integer_lanes(frame.instructions, frame.count, frame.slots, nullptr);
  if (lanes.narrow) {
    if (!lanes.positions) return run_lanes<std::int32_t>(frame, nullptr, result);
    auto* positions = static_cast<std::int32_t*>(take(frame, sizeof(std::int32_t) * static_cast<std::size_t>(frame.n)));
    if (narrow_positions(frame.kv_pos, positions, frame.n)) return run_lanes<std::int32_t>(frame, positions, result);
  }
  run_lanes<std::int64_t>(frame, frame.kv_pos, result);
}

HWY_ATTR void start_row(RowFrame& frame, const Code& code, const ParamTable& params, const RowVars& row, int n, std::byte* scratch) {
  start(frame, code, params, scratch);
  frame.row = &row;
  frame.kv_pos = nullptr;
  frame.values = nullptr;
  frame.n = n;
}

// ---------------------------------------------------------------------------------------------------------------- a tile

/// How often an instruction is worked out over a tile. One for each pair of a row and a key is neither `fixed`, nor by row or key alone.
HWY_INLINE bool is_fixed(const Instruction& in) { return in.uniform && !in.by_row; }
HWY_INLINE bool is_by_row(const Instruction& in) { return in.uniform && in.by_row; }
HWY_INLINE bool is_by_key(const Instruction& in) { return !in.uniform && !in.by_row; }

/// A tile's evaluation, kept in the caller's memory from step to step. Behind it lie the values by row, then a step's.
struct TileFrame : Frame {
  const RowVars* rows;
  int num_rows;
  int lanes;             // num_rows rounded up; the lanes past the end repeat the last row
  bool narrow;           // integer lanes are 32-bit
  bool reads_positions;  // lane by lane
  int soft_cap;          // the first of the instructions that one loop does (find_soft_cap), or -1
  std::byte* row_values;
  std::byte* step_values;
  const void* by_row[Program::kMaxInstructions];
};

/// The constant operand of a product, or -1 if it has none.
HWY_INLINE int constant_factor(const TileFrame& tile, int index) {
  const Instruction& in = tile.instructions[index];
  if (in.op != Op::mul || in.type != ExprType::number) return -1;
  for (const std::int16_t arg : in.args) {
    if (arg >= 0 && is_fixed(tile.instructions[arg])) return arg;
  }
  return -1;
}

/// Finds a soft cap, c tanh(d x): three instructions in a row whose inner values nothing else reads. Each done for itself would go through
/// memory twice more. -1: none.
HWY_INLINE int find_soft_cap(const TileFrame& tile) {
  for (int i = 0; i + 2 < tile.count; ++i) {
    const Instruction& tanh = tile.instructions[i + 1];
    const Instruction& outer = tile.instructions[i + 2];
    if (tile.instructions[i].uniform || !tile.instructions[i].by_row || tanh.op != Op::tanh || tanh.args[0] != i) continue;
    if (constant_factor(tile, i) < 0 || constant_factor(tile, i + 2) < 0 || (outer.args[0] != i + 1 && outer.args[1] != i + 1)) continue;
    bool read = false;
    for (int j = i + 2; j < tile.count; ++j) {
      for (const std::int16_t arg : tile.instructions[j].args) read = read || arg == i || (arg == i + 1 && j > i + 2);
    }
    if (!read) return i;
  }
  return -1;
}

/// The largest and smallest values of the variables that the instructions by row read.
HWY_INLINE void find_ranges(const TileFrame& tile, LaneRange (&ranges)[kNumVars]) {
  for (int i = 0; i < tile.count; ++i) {
    const Instruction& instruction = tile.instructions[i];
    if (!is_by_row(instruction) || instruction.op != Op::var) continue;
    LaneRange& range = ranges[static_cast<int>(instruction.var)];
    range.lo = range.hi = row_var(tile.rows[0], instruction.var);
    for (int r = 1; r < tile.num_rows; ++r) {
      const std::int64_t x = row_var(tile.rows[r], instruction.var);
      if (x < range.lo) range.lo = x;
      if (x > range.hi) range.hi = x;
    }
  }
}

template <typename I>
HWY_ATTR void run_rows(TileFrame& tile) {
  tile.free = tile.row_values;
  tile.extent = {1, tile.lanes, 0};
  for (int i = 0; i < tile.count; ++i) {
    const Instruction& instruction = tile.instructions[i];
    if (!is_by_row(instruction)) continue;
    void* out = take(tile, element_bytes<I>(instruction) * static_cast<std::size_t>(tile.lanes));
    if (instruction.op == Op::var) {
      auto* x = static_cast<I*>(out);
      for (int r = 0; r < tile.lanes; ++r) {
        x[r] = static_cast<I>(row_var(tile.rows[r < tile.num_rows ? r : tile.num_rows - 1], instruction.var));
      }
    } else {
      execute<I>(tile, instruction, out);
    }
    tile.by_row[i] = out;
    tile.places[i] = {out, 0, true};
  }
  tile.step_values = tile.free;
}

/// A step of keys over lanes [first, first + lanes).
struct Step {
  const std::int64_t* kv_pos;
  int keys;
  int first, lanes;
  float* scores;  // of the first key and lane, rows `ld` apart
  void* result;   // likewise
  int ld;
};

/// Values by key, as the lanes that other such instructions read; `by_key` remembers where they lie.
template <typename I>
HWY_ATTR void run_keys(TileFrame& tile, const Step& step, const I* positions, const void** by_key) {
  tile.extent = {1, step.keys, 0};
  for (int i = 0; i < tile.count; ++i) {
    const Instruction& instruction = tile.instructions[i];
    if (!is_by_key(instruction)) continue;
    const void* at = positions;
    if (instruction.op != Op::var) {
      void* out = take(tile, element_bytes<I>(instruction) * static_cast<std::size_t>(step.keys));
      execute<I>(tile, instruction, out);
      at = out;
    }
    by_key[i] = at;
    tile.places[i] = {at, 0, true};
  }
}

/// An instruction's values from one on.
template <typename I>
HWY_INLINE const void* from_element(const Instruction& instruction, const void* data, int element) {
  return static_cast<const std::byte*>(data) + element_bytes<I>(instruction) * static_cast<std::size_t>(element);
}

/// The pairs of keys [begin, begin + keys) with the step's lanes.
template <typename I>
HWY_ATTR void run_pairs(TileFrame& tile, const Step& step, int begin, int keys, const void* const* by_key) {
  std::byte* const free = tile.free;
  const int last = tile.count - 1;
  void* result = static_cast<std::byte*>(step.result) +
                 element_bytes<I>(tile.instructions[last]) * static_cast<std::size_t>(begin) * static_cast<std::size_t>(step.ld);
  for (int i = 0; i < tile.count; ++i) {
    const Instruction& instruction = tile.instructions[i];
    if (is_by_key(instruction)) {
      tile.places[i] = {from_element<I>(instruction, by_key[i], begin), 1, false};
    } else if (instruction.uniform) {
      continue;
    } else if (instruction.op == Op::var) {
      tile.places[i] = {step.scores + static_cast<std::int64_t>(begin) * step.ld, step.ld, true};
    } else {
      const bool caps = i == tile.soft_cap;
      const int value = caps ? i + 2 : i;
      const bool is_last = value == last;
      tile.extent = {keys, step.lanes, is_last ? step.ld : step.lanes};
      const std::size_t bytes = element_bytes<I>(instruction) * static_cast<std::size_t>(keys) * static_cast<std::size_t>(step.lanes);
      void* out = is_last ? result : take(tile, bytes);
      if (caps) {
        const int before = constant_factor(tile, i);
        const int after = constant_factor(tile, value);
        const Lanes<float> x = operand<float>(tile, instruction, instruction.args[0] == before ? 1 : 0);
        tanh_lanes(x, tile.slots[before].number, tile.slots[after].number, static_cast<float*>(out), tile.extent);
      } else {
        execute<I>(tile, instruction, out);
      }
      tile.places[value] = {out, step.lanes, true};
      i = value;
    }
  }
  if (tile.instructions[last].uniform || !tile.instructions[last].by_row) {
    Instruction copy;
    copy.args[0] = static_cast<std::int16_t>(last);
    const Extent all{keys, step.lanes, step.ld};
    if (tile.instructions[last].type == ExprType::boolean) {
      spread_lanes(operand<std::uint8_t>(tile, copy, 0), static_cast<std::uint8_t*>(result), all);
    } else {
      spread_lanes(operand<float>(tile, copy, 0), static_cast<float*>(result), all);
    }
  }
  tile.free = free;
}

template <typename I>
HWY_ATTR void run_step(TileFrame& tile, const Step& step, const I* positions) {
  const void* by_key[Program::kMaxInstructions];
  for (int i = 0; i < tile.count; ++i) {
    if (is_by_row(tile.instructions[i])) tile.places[i] = {tile.by_row[i], 0, true};
  }
  run_keys(tile, step, positions, by_key);
  for (int i = 0; i < tile.count; ++i) {
    const Instruction& instruction = tile.instructions[i];
    if (is_by_row(instruction)) tile.places[i].data = from_element<I>(instruction, tile.by_row[i], step.first);
  }
  const int batch = tile_batch_keys(step.lanes);
  for (int begin = 0; begin < step.keys; begin += batch) {
    run_pairs<I>(tile, step, begin, begin + batch < step.keys ? batch : step.keys - begin, by_key);
  }
}

HWY_ATTR void run_tile(std::byte* memory, const Step& step) {
  TileFrame& tile = *reinterpret_cast<TileFrame*>(memory);
  tile.free = tile.step_values;
  if (tile.narrow) {
    auto* positions = static_cast<std::int32_t*>(take(tile, sizeof(std::int32_t) * static_cast<std::size_t>(step.keys)));
    if (!tile.reads_positions || narrow_positions(step.kv_pos, positions, step.keys)) return run_step<std::int32_t>(tile, step, positions);
    tile.narrow = false;  // and stays so: positions of a tile are alike
    run_rows<std::int64_t>(tile);
    tile.free = tile.step_values;
  }
  run_step<std::int64_t>(tile, step, step.kv_pos);
}

}  // namespace

void evaluate_logits(const Program& program, const ParamTable& params, const RowVars& row, const std::int64_t* kv_pos, int n, float* score,
                     std::byte* scratch) {
  RowFrame frame;
  start_row(frame, program.logits, params, row, n, scratch);
  frame.kv_pos = kv_pos;
  frame.values = score;
  run(frame, score);
}

void evaluate_mask(const Program& program, const ParamTable& params, const RowVars& row, const std::int64_t* kv_pos, int n,
                   std::uint8_t* visible, std::byte* scratch) {
  RowFrame frame;
  start_row(frame, program.mask, params, row, n, scratch);
  frame.kv_pos = kv_pos;
  run(frame, visible);
}

void evaluate_transform(const Code& code, const ParamTable& params, const RowVars& row, std::int64_t kv_pos, int n, float* x,
                        std::byte* scratch) {
  if (code.instructions.empty()) return;
  RowFrame frame;
  start_row(frame, code, params, row, n, scratch);
  frame.kv_pos = &kv_pos;
  frame.values = x;
  run(frame, x);
}

float evaluate_sink(const Program& program, const ParamTable& params, std::int64_t q_head, std::byte* scratch) {
  RowFrame frame;
  RowVars row;
  row.q_head = q_head;
  start_row(frame, program.sink, params, row, 1, scratch);
  float sink = 0;
  run(frame, &sink);
  return sink;
}

void begin_tile_hook(const Code& code, const ParamTable& params, const RowVars* rows, int num_rows, int lanes, std::byte* memory) {
  static_assert(sizeof(TileFrame) <= kTileFrameBytes);
  TileFrame& tile = *reinterpret_cast<TileFrame*>(memory);
  start(tile, code, params, memory);
  tile.rows = rows;
  tile.num_rows = num_rows;
  tile.lanes = lanes;
  tile.row_values = memory + kTileFrameBytes;
  tile.extent = {1, 1, 0};
  for (int i = 0; i < tile.count; ++i) {
    const Instruction& instruction = tile.instructions[i];
    if (!is_fixed(instruction) || run_constant(tile, i)) continue;
    if (instruction.op == Op::var) {
      tile.slots[i].integer = row_var(rows[0], instruction.var);
    } else {
      execute<std::int64_t>(tile, instruction, &tile.slots[i]);
    }
  }
  LaneRange ranges[kNumVars];
  find_ranges(tile, ranges);
  const IntegerLanes integers = integer_lanes(tile.instructions, tile.count, tile.slots, ranges);
  tile.narrow = integers.narrow;
  tile.reads_positions = integers.positions;
  tile.soft_cap = find_soft_cap(tile);
  tile.narrow ? run_rows<std::int32_t>(tile) : run_rows<std::int64_t>(tile);
}

void evaluate_tile_logits(std::byte* tile, const std::int64_t* kv_pos, int num_keys, int first, int lanes, float* scores, int ld) {
  run_tile(tile, {kv_pos, num_keys, first, lanes, scores + first, scores + first, ld});
}

void evaluate_tile_mask(std::byte* tile, const std::int64_t* kv_pos, int num_keys, std::uint8_t* visible) {
  const int lanes = reinterpret_cast<const TileFrame*>(tile)->lanes;
  run_tile(tile, {kv_pos, num_keys, 0, lanes, nullptr, visible, lanes});
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::variant
HWY_AFTER_NAMESPACE();
