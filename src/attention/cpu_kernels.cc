// The CPU attention kernels, compiled once per SIMD target: a unit's items in order, and the merge of parts.
#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "attention/cpu.h"
#include "attention/cpu_large-inl.h"
#include "attention/cpu_small-inl.h"
#include "attention/cpu_state-inl.h"
#include "attention/cpu_tile-inl.h"
#include "base/math.h"

HWY_BEFORE_NAMESPACE();
namespace girih::attention {
namespace HWY_NAMESPACE {

void reset_state(int rows, int ldv, float* m, float* l, float* o) {
  for (int i = 0; i < rows; ++i) {
    m[i] = kNegInf;
    l[i] = 0;
  }
  for (int i = 0; i < rows; ++i) clear_row(o + static_cast<std::int64_t>(i) * ldv, ldv);
}

void begin_tile(Tile& t, const abi::WorkItem& item) {
  const PlanView& plan = *t.run->plan;
  const bool small = item.tile_class == kSmall;
  t.num_rows = item.row_count;
  t.ldr = static_cast<int>(round_up(item.row_count, 16));
  t.kv_head = item.kv_head;
  t.data = t.run->segments.data() + item.segment;
  t.segment = plan.segments.data() + item.segment;
  bind_sources(t, small);
  describe_rows(t, item.row_begin, item.row_count, item.kv_head);
  if (small) {
    small_load_queries(t);
  } else {
    large_load_queries(t);
  }
  reset_state(t.ldr, t.shape.ldv, t.m, t.l, t.o);
}

/// All blocks of an item into a state.
void reduce_item(Tile& t, const abi::WorkItem& item, float* m, float* l, float* o) {
  const std::int64_t block = t.schedule->tune.classes[item.tile_class].kv_block;
  const auto keys_from = [&](std::int64_t begin) HWY_ATTR {
    const std::int64_t left = item.kv_end - begin;
    return static_cast<int>(left < block ? left : block);
  };
  if (item.kv_begin < item.kv_end) locate_keys(t, item.kv_begin, keys_from(item.kv_begin), t.next);
  for (std::int64_t begin = item.kv_begin; begin < item.kv_end; begin += block) {
    const KeyBlock done = t.keys;
    t.keys = t.next;
    t.next = done;
    t.next.n = 0;
    if (begin + block < item.kv_end) locate_keys(t, begin + block, keys_from(begin + block), t.next);
    const bool full = begin >= item.full_begin && begin + t.keys.n <= item.full_end;
    (item.tile_class == kSmall ? small_block : large_block)(t, !full, m, l, o);
  }
}

/// V's common scale, left out of the products, enters here: once per state that is written or folded.
void apply_value_factor(const Tile& t, float* o) {
  if (t.v_source.factor == 1.0F) return;
  for (int i = 0; i < t.num_rows; ++i) scale_output_row(t.v_source.factor, t.shape.ldv, o + static_cast<std::int64_t>(i) * t.shape.ldv);
}

void fold_chunk(Tile& t, const abi::WorkItem& item) {
  const int ldv = t.shape.ldv;
  reset_state(t.ldr, ldv, t.chunk_m, t.chunk_l, t.chunk_o);
  reduce_item(t, item, t.chunk_m, t.chunk_l, t.chunk_o);
  apply_value_factor(t, t.chunk_o);
  for (int i = 0; i < t.num_rows; ++i) {
    float* o = t.o + static_cast<std::int64_t>(i) * ldv;
    const float* chunk = t.chunk_o + static_cast<std::int64_t>(i) * ldv;
    if (t.schedule->program.softmax) {
      fold_row(t.m[i], t.l[i], o, t.chunk_m[i], t.chunk_l[i], chunk, ldv);
    } else {
      add_row(o, chunk, ldv);
    }
  }
}

void end_tile(Tile& t, const abi::WorkItem& item) {
  if ((item.flags & abi::WorkItem::kChunk) == 0) apply_value_factor(t, t.o);
  for (int i = 0; i < t.num_rows; ++i) {
    float* o = t.o + static_cast<std::int64_t>(i) * t.shape.ldv;
    if (item.part_row >= 0) {
      store_part_row(t, item.part_row + i, t.m[i], t.l[i], o);
    } else {
      finish_row(t, t.rows[i], t.m[i], t.l[i], o);
    }
  }
}

void run_unit(const CpuRun& run, int unit, std::byte* scratch) {
  Tile t;
  bind_scratch(run, scratch, t);
  const PlanView& plan = *run.plan;
  const std::int32_t end = plan.unit_begin[static_cast<std::size_t>(unit) + 1];
  for (std::int32_t i = plan.unit_begin[static_cast<std::size_t>(unit)]; i < end; ++i) {
    const abi::WorkItem& item = plan.items[static_cast<std::size_t>(i)];
    if (item.row_count == 0) continue;
    if (item.flags & abi::WorkItem::kFirst) begin_tile(t, item);
    t.kv_row = plan.kv_rows.data() + item.kv_row;
    if (item.flags & abi::WorkItem::kChunk) {
      fold_chunk(t, item);
    } else {
      reduce_item(t, item, t.m, t.l, t.o);
    }
    if (item.flags & abi::WorkItem::kLast) end_tile(t, item);
  }
}

void merge_row(Tile& t, const abi::MergeItem& item, int row) {
  const int ldv = t.shape.ldv;
  float m = kNegInf;
  float l = 0;
  clear_row(t.o, ldv);
  for (int p = 0; p < item.part_count; ++p) {
    const std::int64_t part = t.run->plan->merge_parts[static_cast<std::size_t>(item.part_begin + p)].part_row + row;
    const float* o = t.run->part_o + part * t.schedule->part_stride;
    if (t.schedule->program.softmax) {
      fold_row(m, l, t.o, t.run->part_ml[2 * part], t.run->part_ml[2 * part + 1], o, ldv);
    } else {
      add_row(t.o, o, ldv);
    }
  }
  describe_rows(t, item.row_begin + row, 1, item.kv_head);
  finish_row(t, t.rows[0], m, l, t.o);
}

void run_merges(const CpuRun& run, std::int64_t begin, std::int64_t end, std::byte* scratch) {
  Tile t;
  bind_scratch(run, scratch, t);
  std::int64_t first = 0;
  for (const abi::MergeItem& item : run.plan->merges) {
    const std::int64_t from = begin > first ? begin - first : 0;
    const std::int64_t to = end - first < item.row_count ? end - first : item.row_count;
    for (std::int64_t row = from; row < to; ++row) merge_row(t, item, static_cast<int>(row));
    first += item.row_count;
    if (first >= end) return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace girih::attention {

const CpuKernels* cpu_kernels(CpuTarget target) {
#if GIRIH_HAVE_AVX3
  static constexpr CpuKernels kAvx3 = {N_AVX3::run_unit, N_AVX3::run_merges};
  if (target == CpuTarget::avx3 || target == CpuTarget::avx3_bf16) return &kAvx3;
#endif
#if GIRIH_HAVE_AVX2
  static constexpr CpuKernels kAvx2 = {N_AVX2::run_unit, N_AVX2::run_merges};
  if (target == CpuTarget::avx2) return &kAvx2;
#endif
#if GIRIH_HAVE_NEON
  static constexpr CpuKernels kNeon = {N_NEON::run_unit, N_NEON::run_merges};
  if (target == CpuTarget::neon) return &kNeon;
#endif
  static constexpr CpuKernels kScalar = {N_EMU128::run_unit, N_EMU128::run_merges};
  if (target == CpuTarget::scalar) return &kScalar;
  return nullptr;
}

}  // namespace girih::attention
#endif  // HWY_ONCE
