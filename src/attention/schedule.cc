// schedule(): every choice that does not depend on the batch, made once.
#include "attention/schedule.h"

#include <algorithm>

#include "attention/cpu.h"
#include "attention/cuda_run.h"
#include "attention/cuda_state.h"
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
    text += fmt::format("|{},{},{},{},{},{},{},{}", c.tile_rows, c.kv_block, c.kv_align, c.cost_piece, c.cost_block, c.cost_block_row,
                        c.gang, c.cost_part_row);
  }
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace

WorkspaceOffsets lay_out_workspace(const ScheduleState& state, std::int64_t part_rows) {
  constexpr std::int64_t kAlign = 64;
  std::int64_t end = 0;
  const auto place = [&end](std::int64_t bytes) {
    const std::int64_t at = end;
    end += round_up(bytes, kAlign);
    return at;
  };
  WorkspaceOffsets o;
  o.unit_scratch = place(state.unit_scratch_bytes * state.scratch_slots);
  for (std::size_t c = 0; c < kNumClasses; ++c) {
    const bool chunks = state.cuda != nullptr && state.spec.batch_invariant;
    const std::int64_t rows = chunks ? std::int64_t{class_units(state, static_cast<int>(c))} * state.tune.classes[c].tile_rows : 0;
    o.chunk_o[c] = place(rows * state.part_stride * 4);
    o.chunk_ml[c] = place(rows * 2 * 4);
  }
  o.part_o = place(part_rows * state.part_stride * 4);
  o.part_ml = place(part_rows * 2 * 4);
  o.total = end;
  return o;
}

namespace {

/// What both backends begin with: everything that the caller says, checked.
std::shared_ptr<ScheduleState> begin_state(Device device, const AttentionSpec& spec, const AttentionLimits& limits) {
  auto state = std::make_shared<ScheduleState>();
  state->device = device;
  state->program = variant::compile(spec.variant);
  state->spec = normalise(spec, state->program, device.kind);
  state->limits = normalise_limits(limits);
  state->key = spec_key(state->spec, state->program);
  state->group = state->spec.num_qo_heads / state->spec.num_kv_heads;
  if (state->limits.max_tokens * state->group > INT32_MAX) {
    fail(Code::invalid_argument, kOp, "limits.max_tokens={} times {} query heads per KV head is above 2^31-1 rows", limits.max_tokens,
         state->group);
  }
  state->part_stride = static_cast<int>(round_up(state->spec.head_dim_vo, 16));
  return state;
}

/// What follows from units and tiles.
void finish_state(ScheduleState& state) {
  state.hash = schedule_hash(state);
  set_bounds(state);
  const WorkspaceOffsets o = lay_out_workspace(state, state.max_part_rows);
  const auto region = [&state](const char* name, std::int64_t begin, std::int64_t end) {
    if (begin < end) state.layout.push_back({name, begin, end - begin});
  };
  region("unit_scratch", o.unit_scratch, o.chunk_o[kSmall]);
  region("chunks", o.chunk_o[kSmall], o.part_o);
  region("part_o", o.part_o, o.part_ml);
  region("part_ml", o.part_ml, o.total);
  state.workspace_bytes = o.total;
}

std::shared_ptr<ScheduleState> make_cpu_state(const Context& context, const AttentionSpec& spec, const AttentionLimits& limits,
                                              const ScheduleOptions& options) {
  auto state = begin_state({}, spec, limits);
  if (options.num_units < 0 || options.num_units > 65536) {
    fail(Code::invalid_argument, kOp, "options.num_units={} is outside 0..65536", options.num_units);
  }
  if (options.num_sms != 0)
    fail(Code::invalid_argument, kOp, "options.num_sms={} with a CPU context; num_units is its number", options.num_sms);
  if (!options.family.empty() && options.family != "cpu") {
    fail(Code::invalid_argument, kOp, "options.family=\"{}\" with a CPU context, whose only family is \"cpu\"", options.family);
  }
  state->num_units = options.num_units > 0 ? options.num_units : context.num_workers();
  state->tune = tune_cpu(state->spec);
  prepare_cpu(*state, context);
  finish_state(*state);
  return state;
}

}  // namespace

std::shared_ptr<ScheduleState> make_cuda_state(const cuda::DeviceInfo& device, int device_index, const AttentionSpec& spec,
                                               const AttentionLimits& limits, const ScheduleOptions& options) {
  auto state = begin_state({DeviceKind::cuda, device_index}, spec, limits);
  check_cuda_limits(state->limits);
  if (options.num_units != 0) {
    fail(Code::invalid_argument, kOp, "options.num_units={} on a CUDA device; its units are the blocks that run at once: set num_sms",
         options.num_units);
  }
  if (options.num_sms < 0 || options.num_sms > device.num_sms) {
    fail(Code::invalid_argument, kOp, "options.num_sms={}; {} has {}", options.num_sms, device.name, device.num_sms);
  }
  auto cuda = std::make_shared<CudaState>();
  cuda->device = device;
  cuda->kernels = choose_cuda_kernels(state->spec, state->program, device, options.family, state->limits.max_qo_len * state->group,
                                      state->limits.max_segments > 1);
  state->tune = cuda->kernels.tune;
  const int sms = options.num_sms > 0 ? options.num_sms : device.num_sms;
  // With batch_invariant the class of a group of several requests is large, whatever its rows; plan() refuses such groups here.
  const bool large_occurs = state->limits.max_qo_len * state->group > state->tune.small_rows;
  state->separate_classes = true;
  const auto units_of = [&](int c) { return cuda->kernels.classes[c].blocks_per_sm * sms * cuda->kernels.classes[c].unit_turns; };
  state->num_small_units = units_of(kSmall);
  state->num_units = state->num_small_units + (large_occurs ? units_of(kLarge) : 0);
  state->cuda = std::move(cuda);
  finish_state(*state);
  return state;
}

}  // namespace attention

Schedule schedule(const Context& context, const AttentionSpec& spec, const AttentionLimits& limits, const ScheduleOptions& options) {
  if (context.device().kind == DeviceKind::cpu) return Schedule(attention::make_cpu_state(context, spec, limits, options));
  return Schedule(attention::load_cuda_state(context, spec, limits, options));
}

const AttentionSpec& Schedule::spec() const { return state_->spec; }
const AttentionLimits& Schedule::limits() const { return state_->limits; }
const std::string& Schedule::key() const { return state_->key; }
int Schedule::num_units() const { return state_->num_units; }
std::int64_t Schedule::workspace_bytes() const { return state_->workspace_bytes; }
std::span<const WorkspaceRegion> Schedule::workspace_layout() const { return state_->layout; }

}  // namespace girih
