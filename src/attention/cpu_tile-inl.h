// One tile's state and the way data comes in: the scratch pointers, the page walk, K and V rows as f32, and Q rows.
// K and V are used where they lie (`direct`) when a vector load can widen them; otherwise a block of rows is staged as f32.
#if defined(GIRIH_ATTENTION_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ATTENTION_CPU_TILE_INL_H_
#undef GIRIH_ATTENTION_CPU_TILE_INL_H_
#else
#define GIRIH_ATTENTION_CPU_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/cpu.h"
#include "attention/cpu_bf16.h"
#include "attention/cpu_math-inl.h"
#include "attention/prefetch.h"
#include "base/numeric.h"
#include "variant/evaluate-inl.h"
#include "variant/evaluate.h"

HWY_BEFORE_NAMESPACE();
namespace girih::attention {
namespace HWY_NAMESPACE {
namespace hv = girih::variant::HWY_NAMESPACE;

using variant::RowVars;

/// How one plane set (K, or V) of a segment is read for one KV head.
struct Source {
  const KvPlane* plane = nullptr;
  const KvPlane* rope_plane = nullptr;  // K's second tensor
  int dim = 0;                          // of `plane`
  int rope_dim = 0;
  bool direct = false;
  bool scale_rows = false;  // scales are applied while staging
  float factor = 1;         // otherwise a scale common to all rows, for the caller to apply
};

/// Where the keys of one block lie, and what is known of each. The next block is located while the current one is worked on, so that
/// its rows can be prefetched: rows of one head are far apart in memory and hardware prefetchers do not follow page tables.
struct KeyBlock {
  int n = 0;
  std::int64_t* page = nullptr;
  std::int64_t* slot = nullptr;
  const std::byte** k_at = nullptr;
  const std::byte** v_at = nullptr;
  std::int64_t* pos = nullptr;  // logical
  std::int64_t* rope_pos = nullptr;
  float* k_scale = nullptr;  // per key, direct token_head
  float* v_scale = nullptr;
};

/// Heads of a small tile that are served together, whose rows lie one after another in memory.
inline constexpr int kMaxBundle = 32;

struct Tile {
  const CpuRun* run = nullptr;
  const ScheduleState* schedule = nullptr;
  CpuShape shape;

  // Scratch (sizes: cpu.cc).
  float* q = nullptr;        // small: [rows, ldk]; large: [dqk, ldr] (transposed)
  float* o = nullptr;        // [rows, ldv]
  float* chunk_o = nullptr;  // [rows, ldv]
  float* m = nullptr;        // [rows] running maximum, base-2 units
  float* l = nullptr;        // [rows] running sum
  float* chunk_m = nullptr;
  float* chunk_l = nullptr;
  float* scores = nullptr;           // small: [rows, kv_block]; large: [kv_block, ldr]
  float* probs = nullptr;            // weights as bf16, [rows, kv_block]
  float* k = nullptr;                // [kv_block, ldk]
  float* v = nullptr;                // [kv_block, ldv]
  std::uint32_t* v_pairs = nullptr;  // [kv_block / 2, ldv], bf16 products
  float* corr = nullptr;             // [rows]
  float* key_factors = nullptr;      // [kv_block]
  KeyBlock keys, next;               // the block at work and the one after it (n = 0: none)
  RowVars* rows = nullptr;           // [rows]
  std::int64_t* q_rope_pos = nullptr;
  std::uint8_t* visible = nullptr;        // small: [kv_block]; large: [kv_block, ldr]
  std::uint8_t* token_visible = nullptr;  // large: the same for tokens in place of rows
  std::uint8_t* sees_all = nullptr;       // large: per 16 rows, of the step at work
  RowVars* tokens = nullptr;              // [rows], one row of each token
  std::byte* mask_tile = nullptr;         // large: evaluation of the hooks over the tile
  std::byte* logits_tile = nullptr;
  std::byte* eval = nullptr;
  float* wide = nullptr;  // one row
  float* cos = nullptr;
  float* sin = nullptr;

  // Of the current tile.
  int num_rows = 0;   // of one head
  int ldr = 0;        // rows rounded up to 16
  int kv_head = 0;    // the first, or the one being set up
  int num_heads = 1;  // small tiles: neighbouring heads served together (rows of head h from h * num_rows)
  float head_score_factor[kMaxBundle] = {};
  float head_value_factor[kMaxBundle] = {};
  const SegmentData* data = nullptr;
  const abi::SegmentInfo* segment = nullptr;
  const abi::KvRow* kv_row = nullptr;
  Source k_source, v_source;
  bool v_in_k = false;           // V rows are the leading part of the staged K rows
  bool needs_positions = false;  // KeyBlock::pos, rope_pos
  bool needs_slots = false;      // KeyBlock::page, slot
  bool mask_begun = false;       // mask_tile is prepared for this tile
  bool logits_begun = false;     // logits_tile likewise
  bool mask_by_token = false;    // the mask's lanes are tokens, not rows
  int num_mask_rows = 0;         // lanes of the mask
  bool bf16 = false;             // products in bf16: Q, staged K and V, and weights are bf16, and Q is not scaled
  bool bytes = false;            // and K and V are codes of 8 bits that are widened in registers: Q and O are permuted (cpu_bf16.h)
  float q_factor = 1;            // multiplies Q as it is loaded
  float score_factor = 1;        // multiplies scores instead
};

HWY_INLINE void bind_key_block(std::byte* memory, std::int64_t keys, KeyBlock& b) {
  b.page = reinterpret_cast<std::int64_t*>(memory);
  b.slot = b.page + keys;
  b.k_at = reinterpret_cast<const std::byte**>(b.slot + keys);
  b.v_at = b.k_at + keys;
  b.pos = reinterpret_cast<std::int64_t*>(b.v_at + keys);
  b.rope_pos = b.pos + keys;
  b.k_scale = reinterpret_cast<float*>(b.rope_pos + keys);
  b.v_scale = b.k_scale + keys;
}

HWY_INLINE void bind_scratch(const CpuRun& run, std::byte* base, Tile& t) {
  const ScheduleState& s = *run.schedule;
  const ScratchOffsets at = cpu_scratch(s);
  t.run = &run;
  t.schedule = &s;
  t.shape = cpu_shape(s);
  const std::int64_t rows = t.shape.max_rows;
  const std::int64_t keys = t.shape.kv_block;
  const auto floats = [base](std::int64_t offset) HWY_ATTR { return reinterpret_cast<float*>(base + offset); };
  t.q = floats(at.q);
  t.o = floats(at.o);
  t.chunk_o = floats(at.chunk_o);
  t.m = floats(at.state);
  t.l = t.m + rows;
  t.chunk_m = t.l + rows;
  t.chunk_l = t.chunk_m + rows;
  t.scores = floats(at.scores);
  t.probs = floats(at.probs);
  t.k = floats(at.k);
  t.v = floats(at.v);
  t.v_pairs = reinterpret_cast<std::uint32_t*>(base + at.v_pairs);
  t.corr = floats(at.corr);
  t.key_factors = t.corr + rows;
  bind_key_block(base + at.key_info, keys, t.keys);
  bind_key_block(base + at.key_info + keys * kKeyInfoBytes, keys, t.next);
  t.rows = reinterpret_cast<RowVars*>(base + at.row_info);
  t.q_rope_pos = reinterpret_cast<std::int64_t*>(t.rows + rows);
  t.tokens = reinterpret_cast<RowVars*>(t.q_rope_pos + rows);
  t.visible = reinterpret_cast<std::uint8_t*>(base + at.visible);
  t.token_visible = reinterpret_cast<std::uint8_t*>(base + at.token_visible);
  t.sees_all = reinterpret_cast<std::uint8_t*>(base + at.sees_all);
  t.mask_tile = base + at.mask_tile;
  t.logits_tile = base + at.logits_tile;
  t.wide = floats(at.eval);
  t.cos = t.wide + (t.shape.ldk > t.shape.ldv ? t.shape.ldk : t.shape.ldv);
  t.sin = t.cos + t.shape.ldk;
  t.eval = reinterpret_cast<std::byte*>(t.sin + t.shape.ldk);
}

// ------------------------------------------------------------------------------------------------------------------ rows

/// Positions, request and head of packed rows [row_begin, row_begin + count) of a KV head, as the tile's rows from `first` on.
HWY_INLINE void describe_rows(Tile& t, std::int32_t row_begin, int first, int count, int kv_head) {
  const auto requests = t.run->plan->requests;
  const int group = t.schedule->group;
  std::int64_t token = row_begin / group;
  int head = static_cast<int>(row_begin % group);
  // The last request that begins at or before `token`; requests without rows share their begin with the next one.
  std::int64_t low = 0;
  std::int64_t high = static_cast<std::int64_t>(requests.size());
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (requests[static_cast<std::size_t>(middle)].q_begin <= token ? low : high) = middle;
  }
  for (int i = first; i < first + count; ++i) {
    while (token >= requests[static_cast<std::size_t>(low)].q_begin + requests[static_cast<std::size_t>(low)].q_len) ++low;
    const abi::RequestInfo& r = requests[static_cast<std::size_t>(low)];
    const std::int64_t q_idx = token - r.q_begin;
    t.rows[i] = {.q_pos = r.q_pos + q_idx,
                 .q_idx = q_idx,
                 .q_len = r.q_len,
                 .kv_len = r.kv_len,
                 .request = low,
                 .q_head = kv_head * group + head,
                 .kv_head = kv_head,
                 .q_row = token};
    t.q_rope_pos[i] = r.q_rope_pos + q_idx;
    if (++head == group) {
      head = 0;
      ++token;
    }
  }
}

// ------------------------------------------------------------------------------------------------------------------ planes

HWY_INLINE float read_f32(const void* data, std::int64_t byte_offset) {
  float value = 0;
  std::memcpy(&value, static_cast<const std::byte*>(data) + byte_offset, sizeof(value));
  return value;
}

/// The scale common to all rows of a head: 1 where there is none.
HWY_INLINE float head_scale(const KvPlane& p, int head) {
  switch (p.scales.granularity) {
    case ScaleGranularity::tensor: return read_f32(p.scales.data, 0) * p.scales.global_scale;
    case ScaleGranularity::head: return read_f32(p.scales.data, head * p.scales.head_byte_stride) * p.scales.global_scale;
    default: return 1.0F;
  }
}

HWY_INLINE const std::byte* row_address(const KvPlane& p, std::int64_t page, std::int64_t slot, int head) {
  return static_cast<const std::byte*>(p.data) + page * p.page_byte_stride + slot * p.token_byte_stride + head * p.head_byte_stride;
}
HWY_INLINE std::int64_t scale_offset(const KvScales& s, std::int64_t page, std::int64_t slot, int head) {
  return page * s.page_byte_stride + slot * s.token_byte_stride + head * s.head_byte_stride;
}
HWY_INLINE float token_scale(const KvPlane& p, std::int64_t page, std::int64_t slot, int head) {
  return read_f32(p.scales.data, scale_offset(p.scales, page, slot, head)) * p.scales.global_scale;
}

inline bool is_four_bit(DType t) { return t == DType::nvfp4 || t == DType::mxfp4; }
/// Scales of parts of a row, which go in as it is widened.
inline bool scales_parts(const KvPlane& p) { return is_four_bit(p.dtype) || p.scales.granularity == ScaleGranularity::token_group; }

template <class Load>
HWY_INLINE void widen_row(const std::byte* p, int dim, float* out) {
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) hn::StoreU(Load::load(p + i * Load::kBytes), df, out + i);
  if (i == dim) return;
  std::byte tail[kLanes * Load::kBytes] = {};
  std::memcpy(tail, p + i * Load::kBytes, static_cast<std::size_t>((dim - i) * Load::kBytes));
  float wide[kLanes];
  hn::StoreU(Load::load(tail), df, wide);
  for (int j = 0; i + j < dim; ++j) out[i + j] = wide[j];
}

/// e2m1 codes, each block times its scale.
inline void widen_four_bit_row(const KvPlane& p, const std::byte* row, const std::uint8_t* scales, int dim, float* out) {
  static constexpr float kValues[16] = {0.F, .5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, -0.F, -.5F, -1.F, -1.5F, -2.F, -3.F, -4.F, -6.F};
  const int block = p.dtype == DType::nvfp4 ? 16 : 32;
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  for (int begin = 0; begin < dim; begin += block) {
    const std::uint8_t code = scales[begin / block];
    const float scale = (p.dtype == DType::nvfp4 ? decode_e4m3(code) : decode_e8m0(code)) * p.scales.global_scale;
    const int end = min_int(begin + block, dim);
    for (int i = begin; i < end; ++i) out[i] = kValues[(codes[i / 2] >> (4 * (i & 1))) & 15] * scale;
  }
}

/// The codes of a row as f32; not for 4-bit data.
inline void widen_codes(const KvPlane& p, const std::byte* row, int dim, float* out) {
  if (p.dim_byte_stride != 0 && p.dim_byte_stride != bits(p.dtype) / 8) {
    for (int i = 0; i < dim; ++i) out[i] = load_element(p.dtype, row + i * p.dim_byte_stride, 0);
    return;
  }
  switch (p.dtype) {
    case DType::f32: return widen_row<LoadF32>(row, dim, out);
    case DType::f16: return widen_row<LoadF16>(row, dim, out);
    case DType::bf16: return widen_row<LoadBf16>(row, dim, out);
    case DType::e4m3: return widen_row<LoadE4m3>(row, dim, out);
    case DType::e5m2: return widen_row<LoadE5m2>(row, dim, out);
    default: return widen_row<LoadI8>(row, dim, out);
  }
}

HWY_INLINE void scale_row(float factor, int dim, float* x) {
  for (int i = 0; i < dim; ++i) x[i] *= factor;
}

/// One row of a plane as f32, unscaled but where scales_parts().
inline void widen_plane_row(const KvPlane& p, const std::byte* row, std::int64_t page, std::int64_t slot, int head, int dim, float* out) {
  const std::int64_t scales_at = scale_offset(p.scales, page, slot, head);
  if (is_four_bit(p.dtype)) return widen_four_bit_row(p, row, static_cast<const std::uint8_t*>(p.scales.data) + scales_at, dim, out);
  widen_codes(p, row, dim, out);
  if (p.scales.granularity != ScaleGranularity::token_group) return;
  for (int begin = 0; begin < dim; begin += kScaleGroup) {
    const float scale = read_f32(p.scales.data, scales_at + begin / kScaleGroup * 4) * p.scales.global_scale;
    scale_row(scale, min_int(kScaleGroup, dim - begin), out + begin);
  }
}

HWY_INLINE bool widens_in_place(const KvPlane& p, int dim) {
  return !scales_parts(p) && (p.dim_byte_stride == 0 || p.dim_byte_stride == bits(p.dtype) / 8) && dim % kLanes == 0;
}

/// Rows that the bf16 products read where they lie.
HWY_INLINE bool in_place_bf16(const KvPlane& p, int dim, int multiple) {
  return p.dtype == DType::bf16 && (p.dim_byte_stride == 0 || p.dim_byte_stride == 2) && dim % multiple == 0;
}

/// Codes that the bf16 products of small tiles widen in registers.
HWY_INLINE bool in_place_bytes(const KvPlane& p, int dim) {
  return bits(p.dtype) == 8 && !scales_parts(p) && (p.dim_byte_stride == 0 || p.dim_byte_stride == 1) && dim % 64 == 0;
}

/// Whether the rows of neighbouring heads lie one after another (NHD).
HWY_INLINE bool rows_adjoin(const Source& s) { return s.plane->head_byte_stride == s.dim * bits(s.plane->dtype) / 8; }

/// Decides how the tile's K and V are read, and which scales ride on Q and O instead of on every element.
HWY_INLINE void bind_sources(Tile& t, bool small) {
  const ScheduleState& s = *t.schedule;
  const variant::Program& program = s.program;
  const KvStore& store = t.data->store;
  Source k;
  k.plane = &store.k;
  k.dim = s.spec.head_dim_qk - s.spec.head_dim_rope;
  k.rope_dim = s.spec.head_dim_rope;
  if (k.rope_dim > 0) k.rope_plane = &store.k_rope;
  const bool k_changes = !program.key.empty() || s.rope != nullptr;
  const KvPlane& v_plane = s.spec.v_is_k ? store.k : store.v;
  t.bytes = small && s.byte_lookup && k.rope_dim == 0 && in_place_bytes(store.k, k.dim) && in_place_bytes(v_plane, s.spec.head_dim_vo);
  t.bf16 =
      t.bytes ||
      (s.bf16_dot && (!small || (k.rope_dim == 0 && in_place_bf16(store.k, k.dim, 32) && in_place_bf16(v_plane, s.spec.head_dim_vo, 32))));
  const bool in_place = t.bf16 ? t.bytes || in_place_bf16(store.k, k.dim, 2) : small && widens_in_place(store.k, k.dim);
  k.direct = !k_changes && k.rope_dim == 0 && in_place;
  k.scale_rows = !t.bf16 && (!program.key.empty() || k.rope_dim > 0 || (!k.direct && s.spec.k_scale == ScaleGranularity::token_head));
  if (!k.scale_rows) k.factor = head_scale(store.k, t.kv_head);

  Source v;
  v.plane = &v_plane;
  v.dim = s.spec.head_dim_vo;
  v.direct = program.value.empty() && (t.bf16 ? t.bytes || in_place_bf16(*v.plane, v.dim, 1) : small && widens_in_place(*v.plane, v.dim));
  v.scale_rows = !t.bf16 && (!program.value.empty() || (!v.direct && s.spec.v_scale == ScaleGranularity::token_head));
  const bool rope_spares_v = s.rope == nullptr || s.rope->begin() >= v.dim;
  t.v_in_k = s.spec.v_is_k && !k.direct && (t.bf16 || !v.direct) && program.key.empty() && program.value.empty() && rope_spares_v;
  if (t.v_in_k) v.scale_rows = k.scale_rows;
  if (!v.scale_rows) v.factor = head_scale(*v.plane, t.kv_head);
  t.k_source = k;
  t.v_source = v;

  constexpr float kOne = 1.0F;
  const float units = program.softmax && program.logits.empty() ? kLog2e : kOne;  // scores in base-2 units unless a hook reads them
  const float factor = static_cast<float>(s.spec.sm_scale) * units * k.factor;
  t.q_factor = t.bf16 ? kOne : factor;
  t.score_factor = t.bf16 ? factor : kOne;
  // Staged rows may need their slot for scales; a direct row only for its token's scale.
  t.needs_slots =
      !k.direct || !v.direct || s.spec.k_scale == ScaleGranularity::token_head || s.spec.v_scale == ScaleGranularity::token_head;
  t.needs_positions =
      !program.mask.empty() || program.logits.uses(variant::Var::kv_pos) || k_changes || program.value.uses(variant::Var::kv_pos);
}

/// Fills `b` with keys [begin, begin + n) of the tile's list.
HWY_INLINE void locate_keys(const Tile& t, std::int64_t begin, int n, KeyBlock& b) {
  const abi::KvRow& row = *t.kv_row;
  const KvPlane& k = *t.k_source.plane;  // NOLINT(clang-analyzer-core.NullDereference): begin_tile() has bound both sources
  const KvPlane& v = *t.v_source.plane;
  const bool endless = t.segment->page_size == kEndlessPage;
  const bool has_page_pos = !endless && t.segment->has_page_pos != 0;
  const std::int64_t page_size = endless ? INT64_MAX : t.segment->page_size;
  std::int64_t entry = endless ? 0 : row.table_begin + begin / page_size;
  std::int64_t slot = endless ? row.table_begin + begin : begin % page_size;
  b.n = n;
  for (int i = 0; i < n; ++entry, slot = 0) {
    // A run within one page. A ragged store is one page whose slots are its tokens (page_byte_stride is not used).
    const std::int64_t page = endless ? 0 : t.data->kv_indices[static_cast<std::size_t>(entry)];
    const int run = static_cast<int>(page_size - slot < n - i ? page_size - slot : n - i);
    const std::byte* k_at = row_address(k, page, slot, t.kv_head);
    const std::byte* v_at = row_address(v, page, slot, t.kv_head);
    for (int j = 0; j < run; ++j) b.k_at[i + j] = k_at + j * k.token_byte_stride;
    for (int j = 0; j < run; ++j) b.v_at[i + j] = v_at + j * v.token_byte_stride;
    if (t.needs_slots) {
      for (int j = 0; j < run; ++j) b.page[i + j] = page;
      for (int j = 0; j < run; ++j) b.slot[i + j] = slot + j;
    }
    if (t.needs_positions) {
      const std::int64_t pos = has_page_pos ? t.data->page_pos[static_cast<std::size_t>(entry)] + slot : row.kv_pos + begin + i;
      for (int j = 0; j < run; ++j) b.pos[i + j] = pos + j;
      for (int j = 0; j < run; ++j) b.rope_pos[i + j] = pos + j + (row.kv_rope_pos - row.kv_pos);
    }
    i += run;
  }
  if (!t.k_source.scale_rows && t.schedule->spec.k_scale == ScaleGranularity::token_head) {
    for (int i = 0; i < n; ++i) b.k_scale[i] = token_scale(k, b.page[i], b.slot[i], t.kv_head);
  }
  if (!t.v_source.scale_rows && t.schedule->spec.v_scale == ScaleGranularity::token_head) {
    for (int i = 0; i < n; ++i) b.v_scale[i] = token_scale(v, b.page[i], b.slot[i], t.kv_head);
  }
}

/// Asks for `bytes` bytes at p.
HWY_INLINE void prefetch_row(const std::byte* p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/// Scales one part of a staged row by its plane's tensor, head or token scale (those of parts went in with the codes).
HWY_INLINE void apply_row_scale(const KvPlane& p, std::int64_t page, std::int64_t slot, int head, int dim, float* x) {
  if (p.scales.granularity == ScaleGranularity::token_head) {
    scale_row(token_scale(p, page, slot, head), dim, x);
  } else if (p.scales.granularity == ScaleGranularity::tensor || p.scales.granularity == ScaleGranularity::head) {
    scale_row(head_scale(p, head), dim, x);
  }
}

/// K rows of the current block into t.k [n, ldk], zero-padded; its k_at then points there.
inline void stage_k(Tile& t) {
  const ScheduleState& s = *t.schedule;
  const Source& source = t.k_source;
  const int ldk = t.shape.ldk;
  const int row_bytes = source.dim * bits(source.plane->dtype) / 8;  // NOLINT(clang-analyzer-core.NullDereference): bound, as above
  KeyBlock& b = t.keys;
  for (int i = 0; i < b.n; ++i) {
    if (i < t.next.n) prefetch_row(t.next.k_at[i], row_bytes);
    float* row = t.k + static_cast<std::int64_t>(i) * ldk;
    widen_plane_row(*source.plane, b.k_at[i], b.page[i], b.slot[i], t.kv_head, source.dim, row);
    if (source.scale_rows) apply_row_scale(*source.plane, b.page[i], b.slot[i], t.kv_head, source.dim, row);
    if (source.rope_plane != nullptr) {
      const KvPlane& p = *source.rope_plane;
      float* part = row + source.dim;
      widen_plane_row(p, row_address(p, b.page[i], b.slot[i], t.kv_head), b.page[i], b.slot[i], t.kv_head, source.rope_dim, part);
      if (source.scale_rows) apply_row_scale(p, b.page[i], b.slot[i], t.kv_head, source.rope_dim, part);
    }
    if (!s.program.key.empty()) {
      const RowVars vars{.kv_head = t.kv_head};
      hv::evaluate_transform(s.program.key, t.run->params, vars, b.pos[i], t.shape.dqk, row, t.eval);
    }
    if (s.rope != nullptr) {
      s.rope->angles(b.rope_pos[i], t.cos, t.sin);
      s.rope->rotate(t.cos, t.sin, row);
    }
    for (int j = t.shape.dqk; j < ldk; ++j) row[j] = 0;
    b.k_at[i] = reinterpret_cast<const std::byte*>(row);
  }
}

/// V rows of the current block into t.v [n, ldv], zero-padded; its v_at then points there.
inline void stage_v(Tile& t) {
  const ScheduleState& s = *t.schedule;
  const Source& source = t.v_source;
  const int ldv = t.shape.ldv;
  const int row_bytes = source.dim * bits(source.plane->dtype) / 8;  // NOLINT(clang-analyzer-core.NullDereference): bound, as above
  KeyBlock& b = t.keys;
  for (int i = 0; i < b.n; ++i) {
    if (i < t.next.n) prefetch_row(t.next.v_at[i], row_bytes);
    float* row = t.v + static_cast<std::int64_t>(i) * ldv;
    widen_plane_row(*source.plane, b.v_at[i], b.page[i], b.slot[i], t.kv_head, source.dim, row);
    if (source.scale_rows) apply_row_scale(*source.plane, b.page[i], b.slot[i], t.kv_head, source.dim, row);
    if (!s.program.value.empty()) {
      const RowVars vars{.kv_head = t.kv_head};
      hv::evaluate_transform(s.program.value, t.run->params, vars, t.needs_positions ? b.pos[i] : 0, t.shape.dvo, row, t.eval);
    }
    for (int j = t.shape.dvo; j < ldv; ++j) row[j] = 0;
    b.v_at[i] = reinterpret_cast<const std::byte*>(row);
  }
}

/// Rows of the current block as bf16 [n, ld], zero past dim, for products that read bf16. Values of 8-bit types are exact in bf16.
inline void stage_bf16_row(const KvPlane& p, const std::byte* row, int dim, float* wide, std::uint16_t* out) {
  if (p.dtype == DType::bf16 && (p.dim_byte_stride == 0 || p.dim_byte_stride == 2)) {
    std::memcpy(out, row, static_cast<std::size_t>(dim) * 2);
    return;
  }
  widen_codes(p, row, dim, wide);
  for (int i = 0; i < dim; ++i) out[i] = static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, wide[i]) >> 16);
}

inline void stage_bf16(Tile& t, const Source& source, const std::byte** at, const std::byte* const* next_at, float* memory, int ld) {
  const KeyBlock& b = t.keys;
  const int row_bytes = source.dim * bits(source.plane->dtype) / 8;  // NOLINT(clang-analyzer-core.NullDereference): bound, as above
  float* wide = t.wide;
  for (int i = 0; i < b.n; ++i) {
    if (i < t.next.n) prefetch_row(next_at[i], row_bytes);
    auto* row = reinterpret_cast<std::uint16_t*>(memory) + static_cast<std::int64_t>(i) * ld;
    stage_bf16_row(*source.plane, at[i], source.dim, wide, row);
    if (source.rope_plane != nullptr) {
      const std::byte* part = row_address(*source.rope_plane, b.page[i], b.slot[i], t.kv_head);
      stage_bf16_row(*source.rope_plane, part, source.rope_dim, wide, row + source.dim);
    }
    for (int j = source.dim + source.rope_dim; j < ld; ++j) row[j] = 0;
    at[i] = reinterpret_cast<const std::byte*>(row);
  }
}

// ------------------------------------------------------------------------------------------------------------------ queries

HWY_INLINE void widen_query_part(const RowsView& view, const RowVars& r, int dim, float* out) {
  const std::byte* p = view.at(r.q_row, r.q_head);
  switch (view.dtype) {
    case DType::f32: return widen_row<LoadF32>(p, dim, out);
    case DType::f16: return widen_row<LoadF16>(p, dim, out);
    default: return widen_row<LoadBf16>(p, dim, out);
  }
}

/// Row i of the tile as it is, both parts, for the bf16 products: `out` has room for dqk, the caller pads.
HWY_INLINE void copy_query_row(const Tile& t, int i, std::uint16_t* out) {
  const int rope_dim = t.schedule->spec.head_dim_rope;
  const int first = t.shape.dqk - rope_dim;
  const RowVars& r = t.rows[i];
  std::memcpy(out, t.run->q.at(r.q_row, r.q_head), static_cast<std::size_t>(first) * 2);
  if (rope_dim > 0) std::memcpy(out + first, t.run->q_rope.at(r.q_row, r.q_head), static_cast<std::size_t>(rope_dim) * 2);
}

/// Row i of the tile as f32 [ldk]: transformed, rotated and scaled.
HWY_INLINE void load_query_row(Tile& t, int i, float* out) {
  const ScheduleState& s = *t.schedule;
  const int first = s.spec.head_dim_qk - s.spec.head_dim_rope;
  widen_query_part(t.run->q, t.rows[i], first, out);
  if (s.spec.head_dim_rope > 0) widen_query_part(t.run->q_rope, t.rows[i], s.spec.head_dim_rope, out + first);
  if (!s.program.query.empty()) {
    hv::evaluate_transform(s.program.query, t.run->params, t.rows[i], 0, t.shape.dqk, out, t.eval);
  }
  if (s.rope != nullptr) {
    s.rope->angles(t.q_rope_pos[i], t.cos, t.sin);
    s.rope->rotate(t.cos, t.sin, out);
  }
  scale_row(t.q_factor, t.shape.dqk, out);
  for (int j = t.shape.dqk; j < t.shape.ldk; ++j) out[j] = 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_TILE_INL_H_
