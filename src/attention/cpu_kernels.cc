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

/// How many items from `item` on are one small tile for neighbouring KV heads, to be served together: what a token holds of all of them is
/// one run of memory (prefetch.h).
int bundle_length(const Tile& t, const abi::WorkItem* item, const abi::WorkItem* end) {
  const AttentionSpec& spec = t.schedule->spec;
  constexpr std::uint8_t kWhole = abi::WorkItem::kFirst | abi::WorkItem::kLast;
  if (item->tile_class != kSmall || item->flags != kWhole || item->kv_begin == item->kv_end) return 1;
  if (spec.k_scale == ScaleGranularity::token_head || spec.v_scale == ScaleGranularity::token_head) return 1;
  const int most = min_int(kMaxBundle, t.shape.max_rows / item->row_count);
  int n = 1;
  for (; n < most && item + n < end; ++n) {
    const abi::WorkItem& next = item[n];
    if (next.kv_head != item->kv_head + n || next.row_begin != item->row_begin || next.row_count != item->row_count ||
        next.kv_row != item->kv_row || next.flags != kWhole || next.kv_begin != item->kv_begin || next.kv_end != item->kv_end ||
        next.full_begin != item->full_begin || next.full_end != item->full_end) {
      break;
    }
  }
  return n;
}

/// Sets the tile up for `num_heads` items from `item` on; fewer if the data does not lie so that heads can share a block. Returns how
/// many.
int begin_tile(Tile& t, const abi::WorkItem* item, int num_heads) {
  const PlanView& plan = *t.run->plan;
  const bool small = item->tile_class == kSmall;
  t.num_rows = item->row_count;
  t.ldr = static_cast<int>(round_up(item->row_count, 16));
  t.data = t.run->segments.data() + item->segment;
  t.segment = plan.segments.data() + item->segment;
  t.kv_head = item->kv_head;
  bind_sources(t, small);
  if (!t.k_source.direct || !t.v_source.direct || !rows_adjoin(t.k_source) || !rows_adjoin(t.v_source)) num_heads = 1;
  t.num_heads = num_heads;
  for (int h = 0; h < num_heads; ++h) {
    const int first = h * t.num_rows;
    t.kv_head = item->kv_head + h;
    if (h > 0) bind_sources(t, small);
    t.head_score_factor[h] = t.score_factor;
    t.head_value_factor[h] = t.v_source.factor;
    describe_rows(t, item->row_begin, first, item->row_count, t.kv_head);
    if (small) {
      small_load_queries(t, first);
    } else {
      large_load_queries(t);
    }
  }
  t.kv_head = item->kv_head;
  reset_state(small ? num_heads * t.num_rows : t.ldr, t.shape.ldv, t.m, t.l, t.o);
  return num_heads;
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

/// V's common scale, left out of the products, enters once per state that is written or folded: here for chunks.
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

void end_tile(Tile& t, const abi::WorkItem* item) {
  for (int h = 0; h < t.num_heads; ++h) {
    const bool scaled = (item[h].flags & abi::WorkItem::kChunk) != 0;
    for (int r = 0; r < t.num_rows; ++r) {
      const int i = h * t.num_rows + r;
      float* o = t.o + static_cast<std::int64_t>(i) * t.shape.ldv;
      if (t.bytes) bf16::restore_output(o, t.shape.dvo);
      if (!scaled && t.head_value_factor[h] != 1.0F) scale_output_row(t.head_value_factor[h], t.shape.ldv, o);
      if (item[h].part_row >= 0) {
        store_part_row(t, item[h].part_row + r, t.m[i], t.l[i], o);
      } else {
        finish_row(t, t.rows[i], t.m[i], t.l[i], o);
      }
    }
  }
}

void run_unit(const CpuRun& run, int unit, std::byte* scratch) {
  Tile t;
  bind_scratch(run, scratch, t);
  const PlanView& plan = *run.plan;
  const abi::WorkItem* item = plan.items.data() + plan.unit_begin[static_cast<std::size_t>(unit)];
  const abi::WorkItem* end = plan.items.data() + plan.unit_begin[static_cast<std::size_t>(unit) + 1];
  for (int taken = 1; item < end; item += taken) {
    taken = 1;
    if (item->row_count == 0) continue;
    if (item->flags & abi::WorkItem::kFirst) taken = begin_tile(t, item, bundle_length(t, item, end));
    t.kv_row = plan.kv_rows.data() + item->kv_row;
    if (item->flags & abi::WorkItem::kChunk) {
      fold_chunk(t, *item);
    } else {
      reduce_item(t, *item, t.m, t.l, t.o);
    }
    if (item->flags & abi::WorkItem::kLast) end_tile(t, item);
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
  describe_rows(t, item.row_begin + row, 0, 1, item.kv_head);
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
