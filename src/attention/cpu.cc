// CPU backend, target-independent part: scratch layout, units over workers, merges after the last unit.
#include "attention/cpu.h"

#include <algorithm>

#include "attention/spec.h"
#include "base/math.h"
#include "cpu/features.h"
#include "cpu/thread_pool.h"
#include "variant/evaluate.h"

namespace girih::attention {

CpuShape cpu_shape(const ScheduleState& s) {
  CpuShape shape;
  shape.dqk = s.spec.head_dim_qk;
  shape.dvo = s.spec.head_dim_vo;
  shape.ldk = static_cast<int>(round_up(shape.dqk, 16));
  shape.ldv = static_cast<int>(round_up(shape.dvo, 16));
  shape.max_rows = static_cast<int>(round_up(std::max(s.tune.classes[kSmall].tile_rows, s.tune.classes[kLarge].tile_rows), 16));
  shape.kv_block = std::max(s.tune.classes[kSmall].kv_block, s.tune.classes[kLarge].kv_block);
  return shape;
}

ScratchOffsets cpu_scratch(const ScheduleState& s) {
  const CpuShape shape = cpu_shape(s);
  const std::int64_t rows = shape.max_rows;
  const std::int64_t keys = shape.kv_block;
  std::int64_t at = 0;
  const auto place = [&at](std::int64_t bytes) {
    const std::int64_t offset = at;
    at += round_up(bytes, 64);
    return offset;
  };
  ScratchOffsets o{};
  o.q = place(rows * shape.ldk * 4);
  o.o = place(rows * shape.ldv * 4);
  o.chunk_o = place(s.spec.batch_invariant ? rows * shape.ldv * 4 : 0);
  o.state = place(4 * rows * 4);  // m, l, and a chunk's m, l
  o.scores = place(rows * keys * 4);
  o.probs = place(s.bf16_dot ? rows * keys * 2 : 0);
  o.k = place(keys * shape.ldk * 4);
  o.v = place(keys * shape.ldv * 4);
  o.v_pairs = place(s.bf16_dot ? keys / 2 * shape.ldv * 4 : 0);
  o.corr = place((rows + keys) * 4);
  o.key_info = place(2 * keys * kKeyInfoBytes);  // the block at work and the next one
  o.row_info = place(rows * static_cast<std::int64_t>(2 * sizeof(variant::RowVars) + 8));
  const bool masked = !s.program.mask.empty();
  o.visible = place(masked ? rows * keys + 8 : 0);  // rows are written eight at a time
  o.token_visible = place(masked && s.group > 1 ? rows * keys : 0);
  o.sees_all = place(masked ? rows / 16 : 0);
  o.mask_tile = place(variant::evaluate_tile_bytes(s.program.mask, shape.max_rows, shape.kv_block));
  o.logits_tile = place(variant::evaluate_tile_bytes(s.program.logits, shape.max_rows, shape.kv_block));
  o.eval = place(variant::evaluate_scratch_bytes(s.program, std::max({shape.kv_block, shape.ldk, shape.ldv})) +
                 4 * static_cast<std::int64_t>(2 * shape.ldk + std::max(shape.ldk, shape.ldv)));  // and cos, sin, one row
  o.total = at;
  return o;
}

/// The bf16 dot product rounds weights to bf16, as O will be: only where Q is bf16, O no finer, and K and V are held exactly by bf16,
/// which codes times the scales of their parts are not.
static bool uses_bf16_dot(const ScheduleState& s) {
  const auto fits = [](DType t, ScaleGranularity scale) {
    return t == DType::bf16 || (bits(t) == 8 && scale != ScaleGranularity::token_group);
  };
  const AttentionSpec& spec = s.spec;
  const bool plain_keys = s.program.query.empty() && s.program.key.empty() && !s.program.rope;  // else Q and K need f32
  return s.cpu_target == CpuTarget::avx3_bf16 && plain_keys && s.program.value.empty() && s.program.softmax &&
         spec.q_dtype == DType::bf16 && (spec.o_dtype == DType::bf16 || bits(spec.o_dtype) == 8) && fits(spec.k_dtype, spec.k_scale) &&
         fits(spec.v_dtype, spec.v_scale) && (spec.head_dim_rope == 0 || (spec.k_dtype == DType::bf16 && rope_dtype(spec) == DType::bf16));
}

void prepare_cpu(ScheduleState& state, const Context& context) {
  state.cpu_target = context.cpu_target();
  state.bf16_dot = uses_bf16_dot(state);
  const bool bytes = bits(state.spec.k_dtype) == 8 && bits(state.spec.v_dtype) == 8;
  state.byte_lookup = state.bf16_dot && bytes && cpu::detect_features().avx512_vbmi;
  state.scratch_slots = std::min(state.num_units, context.num_workers());
  state.unit_scratch_bytes = cpu_scratch(state).total;
  if (state.program.rope) {
    state.rope = std::make_shared<RopeTable>(*state.program.rope, state.spec.head_dim_qk, state.limits.max_kv_len);
  }
}

void run_cpu(const Context& context, const CpuRun& run) {
  const ScheduleState& schedule = *run.schedule;
  const CpuKernels& kernels = *cpu_kernels(schedule.cpu_target);
  const int num_units = run.plan->header->num_units;
  const int workers = std::min(schedule.scratch_slots, context.num_workers());
  cpu::ThreadPool& pool = context.pool();
  pool.parallel([&](int worker) {
    if (worker >= workers) return;
    std::byte* scratch = run.scratch + worker * schedule.unit_scratch_bytes;
    for (int unit = worker; unit < num_units; unit += workers) kernels.run_unit(run, unit, scratch);
  });
  std::int64_t merge_rows = 0;
  for (const abi::MergeItem& item : run.plan->merges) merge_rows += item.row_count;
  if (merge_rows == 0) return;
  pool.parallel([&](int worker) {
    if (worker >= workers) return;
    kernels.run_merges(run, merge_rows * worker / workers, merge_rows * (worker + 1) / workers,
                       run.scratch + worker * schedule.unit_scratch_bytes);
  });
}

}  // namespace girih::attention
