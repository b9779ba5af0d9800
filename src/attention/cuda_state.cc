// See cuda_state.h.
#include "attention/cuda_state.h"

#include <algorithm>
#include <bit>
#include <numbers>

#include "attention/cuda_family.h"
#include "attention/kv_maps.h"
#include "attention/spec.h"

namespace girih::attention {
namespace {

abi::RowsArg rows_arg(const RowsView& rows) { return {reinterpret_cast<unsigned char*>(rows.data), rows.token_stride, rows.head_stride}; }

abi::PlaneArg plane_arg(const KvPlane& p) {
  return {.data = static_cast<const unsigned char*>(p.data),
          .page_stride = p.page_byte_stride,
          .token_stride = p.token_byte_stride,
          .head_stride = p.head_byte_stride,
          .dim_stride = p.dim_byte_stride != 0 ? p.dim_byte_stride : bits(p.dtype) / 8,
          .scales = static_cast<const unsigned char*>(p.scales.data),
          .scale_page_stride = p.scales.page_byte_stride,
          .scale_token_stride = p.scales.token_byte_stride,
          .scale_head_stride = p.scales.head_byte_stride,
          .global_scale = p.scales.global_scale};
}

}  // namespace

abi::FastDivider fast_divider(std::int64_t divisor) {
  if (divisor == 0) return {0, 0, 0};
  const auto d = static_cast<std::uint64_t>(divisor);
  const auto log = static_cast<std::uint32_t>(std::bit_width(d - 1));  // 2^log >= d > 2^(log-1): the magic number has 32 bits
  // The error of the rounded-up quotient, below d / 2^(31 + log) <= 2^-31, never carries n / d over an integer for n < 2^31.
  __extension__ using Wide = unsigned __int128;
  const Wide magic = ((Wide{1} << (31 + log)) + d - 1) / d;
  return {static_cast<std::uint32_t>(d), static_cast<std::uint32_t>(magic), 31 + log};
}

abi::AttentionParams cuda_params(const ScheduleState& s, const CheckedArgs& args) {
  abi::AttentionParams p{};
  p.q = rows_arg(args.q);
  p.q_rope = rows_arg(args.q_rope);
  p.o = rows_arg(args.o);
  p.o_scale = args.o_scale;
  p.lse = reinterpret_cast<float*>(args.lse.data);
  p.lse_token_stride = args.lse.token_stride / 4;
  p.lse_head_stride = args.lse.head_stride / 4;
  p.part_o = reinterpret_cast<float*>(args.workspace + args.at.part_o);
  p.part_ml = reinterpret_cast<float*>(args.workspace + args.at.part_ml);
  const bool plain = s.program.softmax && s.program.logits.empty();
  p.score_factor = static_cast<float>(plain ? s.spec.sm_scale * std::numbers::log2e : s.spec.sm_scale);
  p.num_segments = static_cast<std::int32_t>(args.segments.size());
  p.num_units = s.num_units;
  const bool maps = s.cuda->kernels.classes[kLarge].family == kWgmmaFamily.name;
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    const SegmentData& data = args.segments[i];
    abi::SegmentArg& segment = p.segments[i];
    segment.k = plane_arg(data.store.k);
    if (s.spec.head_dim_rope > 0) segment.k_rope = plane_arg(data.store.k_rope);
    segment.v = plane_arg(s.spec.v_is_k ? data.store.k : data.store.v);
    segment.kv_indices = data.store.page_size == kEndlessPage ? nullptr : data.kv_indices.data();
    if (segment.kv_indices != nullptr)
      segment.num_entries = static_cast<std::int32_t>(std::min<std::int64_t>(std::ssize(data.kv_indices), INT32_MAX));
    segment.page_pos = data.page_pos.empty() ? nullptr : data.page_pos.data();
    segment.page_size = fast_divider(data.store.page_size);
    if (maps && i < abi::kMaxMappedSegments) segment.box_tokens = map_store(s.spec, data.store, s.tune.classes[kLarge], p.kv_maps[i]);
  }
  for (std::size_t i = 0; i < s.program.params.size(); ++i) {
    if (s.program.params[i].time != ParamTime::run) continue;
    const variant::ParamData& from = args.params[i];
    p.params[i] = {from.data, from.size, from.integer, from.number};
  }
  return p;
}

void set_class(const ScheduleState& s, const CheckedArgs& args, int tile_class, abi::AttentionParams& p) {
  const auto c = static_cast<std::size_t>(tile_class);
  p.first_unit = class_unit_begin(s, tile_class);
  p.class_units = class_units(s, tile_class);
  p.chunk_o = s.spec.batch_invariant ? reinterpret_cast<float*>(args.workspace + args.at.chunk_o[c]) : nullptr;
  p.chunk_ml = s.spec.batch_invariant ? reinterpret_cast<float*>(args.workspace + args.at.chunk_ml[c]) : nullptr;
}

}  // namespace girih::attention
