// See check_args.h.
#include "attention/check_args.h"

#include <algorithm>
#include <cmath>

#include "attention/overlap.h"
#include "attention/spec.h"
#include "base/error.h"
#include "base/math.h"
#include "cuda/alignment.h"
#include "page/plane.h"

namespace girih::attention {
namespace {

constexpr const char* kOp = "attention.run";

bool on_device(const ScheduleState& s) { return s.device.kind == DeviceKind::cuda; }

void check_place(const ScheduleState& s, const char* field, Device device) {
  if (device == s.device || (!on_device(s) && device.kind == DeviceKind::cpu)) return;
  if (!on_device(s)) fail(Code::invalid_argument, kOp, "{} is not in CPU memory", field);
  fail(Code::invalid_argument, kOp, "{}.device={}; the schedule is for {}", field, name(device), name(s.device));
}

/// On a GPU tensors may have more rows than the plan uses, since a captured graph is replayed with batches of other sizes.
bool has_tokens(const ScheduleState& s, const TensorView& t, std::int64_t tokens) {
  return on_device(s) ? t.shape[0] >= tokens : t.shape[0] == tokens;
}

void check_aligned(const ScheduleState& s, std::string_view what, const void* data, DType dtype) {
  if (on_device(s) && !cuda::is_aligned(data, dtype)) cuda::fail_unaligned(kOp, what, data, dtype);
}

/// A tensor [tokens, heads, dim] with a dense last dimension.
RowsView check_rows(const ScheduleState& s, const char* field, const TensorView& t, DType dtype, std::int64_t tokens, std::int64_t heads,
                    std::int64_t dim) {
  check_place(s, field, t.device);
  if (t.dtype != dtype) fail(Code::invalid_argument, kOp, "{} is {}; the spec says {}", field, name(t.dtype), name(dtype));
  if (t.rank != 3 || !has_tokens(s, t, tokens) || t.shape[1] != heads || t.shape[2] != dim) {
    fail(Code::invalid_argument, kOp, "{} has rank {} and shape [{}, {}, {}]; must be [{}, {}, {}] (tokens, heads, dim)", field, t.rank,
         t.shape[0], t.shape[1], t.shape[2], tokens, heads, dim);
  }
  if (dim > 1 && t.strides[2] != 1)
    fail(Code::invalid_argument, kOp, "{}.strides[2]={}; the last dimension must be dense", field, t.strides[2]);
  if (t.data == nullptr && tokens * heads * dim > 0) fail(Code::invalid_argument, kOp, "{}.data is null", field);
  check_aligned(s, field, t.data, dtype);
  const std::int64_t size = bits(dtype) / 8;
  return {.data = static_cast<std::byte*>(t.data), .dtype = dtype, .token_stride = t.strides[0] * size, .head_stride = t.strides[1] * size};
}

RowsView check_lse(const ScheduleState& s, const TensorView& t, std::int64_t tokens, std::int64_t heads) {
  if (t.dtype != DType::f32) fail(Code::invalid_argument, kOp, "lse is {}; must be f32", name(t.dtype));
  if (t.rank != 2 || !has_tokens(s, t, tokens) || t.shape[1] != heads) {
    fail(Code::invalid_argument, kOp, "lse has rank {} and shape [{}, {}]; must be [{}, {}] (tokens, query heads), as spec.lse asks for it",
         t.rank, t.shape[0], t.shape[1], tokens, heads);
  }
  check_place(s, "lse", t.device);
  if (t.data == nullptr && tokens * heads > 0) fail(Code::invalid_argument, kOp, "lse.data is null");
  check_aligned(s, "lse", t.data, DType::f32);
  return {.data = static_cast<std::byte*>(t.data), .dtype = DType::f32, .token_stride = t.strides[0] * 4, .head_stride = t.strides[1] * 4};
}

/// A GPU's value is the caller's promise, as all that lies there.
const float* check_o_scale(const ScheduleState& s, const TensorView& t) {
  if (t.rank == 0) return nullptr;
  if (bits(s.spec.o_dtype) != 8)
    fail(Code::invalid_argument, kOp, "o_scale is given, but o is {}; only codes of 8 bits have one", name(s.spec.o_dtype));
  if (t.dtype != DType::f32) fail(Code::invalid_argument, kOp, "o_scale is {}; must be f32", name(t.dtype));
  if (t.numel() != 1) fail(Code::invalid_argument, kOp, "o_scale has {} elements; must be one number", t.numel());
  check_place(s, "o_scale", t.device);
  if (t.data == nullptr) fail(Code::invalid_argument, kOp, "o_scale.data is null");
  check_aligned(s, "o_scale", t.data, DType::f32);
  const auto* scale = static_cast<const float*>(t.data);
  if (!on_device(s) && !(*scale > 0 && std::isfinite(*scale) && std::isfinite(1 / *scale))) {
    fail(Code::invalid_argument, kOp, "o_scale={} must be > 0 and finite, as its inverse", *scale);
  }
  return scale;
}

void check_plane(const ScheduleState& s, std::int64_t segment, const char* field, const KvPlane& p, DType dtype, ScaleGranularity scale,
                 bool has_pages) {
  if (p.dtype != dtype) {
    fail(Code::invalid_argument, kOp, "segments[{}].store.{}.dtype={}; the spec says {}", segment, field, name(p.dtype), name(dtype));
  }
  if (p.data == nullptr) fail(Code::invalid_argument, kOp, "segments[{}].store.{}.data is null", segment, field);
  if (p.scales.granularity != scale) {
    fail(Code::invalid_argument, kOp, "segments[{}].store.{}.scales.granularity={} differs from the spec's {}", segment, field,
         static_cast<int>(p.scales.granularity), static_cast<int>(scale));
  }
  if (scale != ScaleGranularity::none && p.scales.data == nullptr) {
    fail(Code::invalid_argument, kOp, "segments[{}].store.{}.scales.data is null; {} data needs its scales", segment, field, name(dtype));
  }
  if (bits(dtype) == 4 && p.dim_byte_stride != 0) {
    fail(Code::invalid_argument, kOp, "segments[{}].store.{}.dim_byte_stride={}; 4-bit data must be dense (0)", segment, field,
         p.dim_byte_stride);
  }
  if (on_device(s)) page::check_plane_aligned(kOp, field, p, has_pages, segment);
}

/// Smallest and largest of a stretch of page ids.
std::pair<std::int32_t, std::int32_t> id_range(const std::int32_t* ids, std::int64_t n) {
  std::int32_t low = ids[0];
  std::int32_t high = ids[0];
  for (std::int64_t i = 1; i < n; ++i) {
    low = std::min(low, ids[i]);
    high = std::max(high, ids[i]);
  }
  return {low, high};
}

/// The keys of one table row lie inside the store.
void check_row(std::int64_t index, const SegmentData& data, bool read_ids, const abi::SegmentInfo& info, const abi::KvRow& row) {
  if (row.kv_len == 0) return;
  if (info.page_size == kEndlessPage) {
    if (row.table_begin + row.kv_len > data.store.num_pages) {
      fail(Code::invalid_argument, kOp, "segments[{}].store.num_pages={} tokens, but the plan reads tokens up to {}", index,
           data.store.num_pages, row.table_begin + row.kv_len);
    }
    return;
  }
  if (!read_ids) return;
  const std::int32_t* ids = data.kv_indices.data() + row.table_begin;
  const std::int64_t n = ceil_div(row.kv_len, info.page_size);
  const auto [low, high] = id_range(ids, n);
  if (low >= 0 && high < data.store.num_pages) return;
  for (std::int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= data.store.num_pages) {
      fail(Code::invalid_argument, kOp, "segments[{}].kv_indices[{}]={} is outside 0..num_pages-1={}", index, row.table_begin + i, ids[i],
           data.store.num_pages - 1);
    }
  }
}

void check_segment(const ScheduleState& s, std::int64_t index, const SegmentData& data, const abi::SegmentInfo& info,
                   std::span<const abi::KvRow> kv_rows) {
  const KvStore& store = data.store;
  if (store.page_size != info.page_size) {
    fail(Code::invalid_argument, kOp, "segments[{}].store.page_size={} differs from the planned {}", index, store.page_size,
         info.page_size);
  }
  const auto rows =
      kv_rows.subspan(static_cast<std::size_t>(info.kv_row_begin), static_cast<std::size_t>(info.num_groups * info.num_table_heads));
  // A graph that captures this run may be given keys later.
  const bool any_keys = on_device(s) || std::any_of(rows.begin(), rows.end(), [](const abi::KvRow& r) { return r.kv_len > 0; });
  if (!any_keys) return;
  const bool has_pages = info.page_size != kEndlessPage;
  check_plane(s, index, "k", store.k, s.spec.k_dtype, s.spec.k_scale, has_pages);
  if (s.spec.head_dim_rope > 0) check_plane(s, index, "k_rope", store.k_rope, rope_dtype(s.spec), rope_scale(s.spec), has_pages);
  if (!s.spec.v_is_k) check_plane(s, index, "v", store.v, s.spec.v_dtype, s.spec.v_scale, has_pages);
  if (info.page_size != kEndlessPage && std::ssize(data.kv_indices) < info.num_entries) {
    fail(Code::invalid_argument, kOp, "segments[{}].kv_indices has {} entries; the plan reads {}", index, data.kv_indices.size(),
         info.num_entries);
  }
  if (info.has_page_pos != 0 && std::ssize(data.page_pos) < info.num_entries) {
    fail(Code::invalid_argument, kOp, "segments[{}].page_pos has {} entries; the segment was planned with page_pos and reads {}", index,
         data.page_pos.size(), info.num_entries);
  }
  for (const abi::KvRow& row : rows) check_row(index, data, !on_device(s), info, row);
}

}  // namespace

CheckedArgs check_args(const ScheduleState& s, const PlanState& plan, const AttentionArgs& args) {
  const PlanView& view = plan.view;
  if (view.header == nullptr) fail(Code::invalid_argument, kOp, "plan holds no batch yet; call update() first");
  if (view.header->schedule_hash != s.hash) fail(Code::invalid_argument, kOp, "plan was made for another schedule");
  const AttentionSpec& spec = s.spec;
  const std::int64_t tokens = view.header->num_tokens;
  CheckedArgs run;
  run.q = check_rows(s, "q", args.q, spec.q_dtype, tokens, spec.num_qo_heads, first_part_dim(spec));
  if (spec.head_dim_rope > 0) {
    run.q_rope = check_rows(s, "q_rope", args.q_rope, spec.q_dtype, tokens, spec.num_qo_heads, spec.head_dim_rope);
  } else if (args.q_rope.rank != 0) {
    fail(Code::invalid_argument, kOp, "q_rope is given, but spec.head_dim_rope=0");
  }
  run.o = check_rows(s, "o", args.o, spec.o_dtype, tokens, spec.num_qo_heads, spec.head_dim_vo);
  run.o_scale = check_o_scale(s, args.o_scale);
  if (spec.lse != LseKind::none) {
    run.lse = check_lse(s, args.lse, tokens, spec.num_qo_heads);
  } else if (args.lse.rank != 0) {
    fail(Code::invalid_argument, kOp, "lse is given, but spec.lse=none; ask for it in the spec");
  }
  if (std::ssize(args.segments) != view.header->num_segments) {
    fail(Code::invalid_argument, kOp, "segments has {} entries; the plan has {}", args.segments.size(), view.header->num_segments);
  }
  run.segments = args.segments;
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    check_segment(s, static_cast<std::int64_t>(i), args.segments[i], view.segments[i], view.kv_rows);
  }
  run.params = plan.params;
  variant::bind_params(s.program, ParamTime::run, args.params, kOp, run.params, s.device);

  // A graph that captures this run may be given any plan later.
  const std::int64_t needed = on_device(s) ? s.workspace_bytes : plan.info.workspace_bytes;
  if (std::ssize(args.workspace) < needed) {
    fail(Code::out_of_memory, kOp, "workspace has {} bytes; needs {} (the schedule's worst case: {})", args.workspace.size(), needed,
         s.workspace_bytes);
  }
  if (reinterpret_cast<std::uintptr_t>(args.workspace.data()) % 64 != 0) {
    fail(Code::invalid_argument, kOp, "workspace.data()={} is not 64-byte aligned", static_cast<const void*>(args.workspace.data()));
  }
  check_outputs_apart(spec, args);
  run.workspace = args.workspace.data();
  run.at = lay_out_workspace(s, on_device(s) ? s.max_part_rows : view.header->part_rows);
  return run;
}

}  // namespace girih::attention
