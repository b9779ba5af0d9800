// schedule(): every choice that does not depend on the batch, made once.
#include "attention/schedule.h"

#include <algorithm>

#include "attention/cpu.h"
#include "attention/plan.h"
#include "attention/spec.h"
#include "base/error.h"
#include "base/math.h"
#include "xxhash.h"

namespace girih {
namespace attention {
namespace {

constexpr const char* kOp = "attention.schedule";
constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;  // no product of a few sizes and strides overflows below it

AttentionLimits normalise_limits(AttentionLimits limits) {
  const auto check = [](const char* field, std::int64_t value, std::int64_t low) {
    if (value < low || value > kMaxSize) fail(Code::invalid_argument, kOp, "limits.{}={} is outside {}..2^40", field, value, low);
  };
  check("max_tokens", limits.max_tokens, 0);
  check("max_requests", limits.max_requests, 0);
  check("max_segments", limits.max_segments, 0);
  check("max_groups", limits.max_groups, 0);
  check("max_kv_len", limits.max_kv_len, 0);
  check("max_param_bytes", limits.max_param_bytes, 0);
  check("max_qo_len", limits.max_qo_len, 0);
  check("max_items", limits.max_items, 0);
  if (limits.max_items > INT32_MAX) fail(Code::invalid_argument, kOp, "limits.max_items={} is above 2^31-1", limits.max_items);
  if (limits.max_segments > 65535) fail(Code::invalid_argument, kOp, "limits.max_segments={} is above 65535", limits.max_segments);
  if (limits.max_kv_len > INT32_MAX) {
    fail(Code::invalid_argument, kOp, "limits.max_kv_len={} is above 2^31-1 keys of one group in one segment", limits.max_kv_len);
  }
  if (limits.max_groups == 0) limits.max_groups = limits.max_requests * std::max<std::int64_t>(limits.max_segments, 1);
  if (limits.max_qo_len == 0) limits.max_qo_len = limits.max_tokens;
  return limits;
}

std::uint64_t schedule_hash(const ScheduleState& s) {
  const AttentionLimits& l = s.limits;
  std::string text = fmt::format("{}|{}|{},{},{},{},{},{},{},{}|{},{},{}|{},{},{}", s.key, s.program.key_text, l.max_tokens, l.max_requests,
                                 l.max_segments, l.max_groups, l.max_kv_len, l.max_param_bytes, l.max_qo_len, l.max_items, s.num_units,
                                 s.separate_classes, s.num_small_units, s.spec.sm_scale, s.tune.small_rows, s.tune.invariant_chunk);
  for (const ClassTune& c : s.tune.classes) {
    text += fmt::format("|{},{},{},{},{}", c.tile_rows, c.kv_block, c.cost_piece, c.cost_block, c.cost_block_row);
  }
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace

WorkspaceOffsets lay_out_workspace(const ScheduleState& state, std::int64_t part_rows) {
  constexpr std::int64_t kAlign = 64;
  WorkspaceOffsets o;
  o.unit_scratch = 0;
  o.part_o = state.unit_scratch_bytes * state.scratch_slots;
  o.part_ml = o.part_o + round_up(part_rows * state.part_stride * 4, kAlign);
  o.total = o.part_ml + round_up(part_rows * 2 * 4, kAlign);
  return o;
}

namespace {

std::shared_ptr<ScheduleState> make_state(const Context& context, const AttentionSpec& spec, const AttentionLimits& limits,
                                          const ScheduleOptions& options) {
  auto state = std::make_shared<ScheduleState>();
  state->program = variant::compile(spec.variant);
  state->spec = normalise(spec, state->program, context.device().kind);
  state->limits = normalise_limits(limits);
  if (options.num_units < 0 || options.num_units > 65536) {
    fail(Code::invalid_argument, kOp, "options.num_units={} is outside 0..65536", options.num_units);
  }
  state->key = spec_key(state->spec, state->program);
  state->num_units = options.num_units > 0 ? options.num_units : context.num_workers();
  state->group = state->spec.num_qo_heads / state->spec.num_kv_heads;
  if (state->limits.max_tokens * state->group > INT32_MAX) {
    fail(Code::invalid_argument, kOp, "limits.max_tokens={} times {} query heads per KV head is above 2^31-1 rows", limits.max_tokens,
         state->group);
  }
  state->part_stride = static_cast<int>(round_up(state->spec.head_dim_vo, 16));
  state->tune = tune_cpu(state->spec);
  prepare_cpu(*state, context);
  state->hash = schedule_hash(*state);
  set_bounds(*state);
  const WorkspaceOffsets offsets = lay_out_workspace(*state, state->max_part_rows);
  state->layout = {{"unit_scratch", offsets.unit_scratch, offsets.part_o - offsets.unit_scratch},
                   {"part_o", offsets.part_o, offsets.part_ml - offsets.part_o},
                   {"part_ml", offsets.part_ml, offsets.total - offsets.part_ml}};
  state->workspace_bytes = offsets.total;
  return state;
}

}  // namespace
}  // namespace attention

Schedule schedule(const Context& context, const AttentionSpec& spec, const AttentionLimits& limits, const ScheduleOptions& options) {
  return Schedule(attention::make_state(context, spec, limits, options));
}

const AttentionSpec& Schedule::spec() const { return state_->spec; }
const AttentionLimits& Schedule::limits() const { return state_->limits; }
const std::string& Schedule::key() const { return state_->key; }
int Schedule::num_units() const { return state_->num_units; }
std::int64_t Schedule::workspace_bytes() const { return state_->workspace_bytes; }
std::span<const WorkspaceRegion> Schedule::workspace_layout() const { return state_->layout; }

}  // namespace girih
