// See convert.h.
#include "c_api/convert.h"

#include <algorithm>

#include "c_api/handles.h"

namespace girih::c_api {
namespace {

static_assert(static_cast<int>(DType::u8) == GIRIH_U8 && static_cast<int>(DType::nvfp4) == GIRIH_NVFP4);
static_assert(static_cast<int>(DeviceKind::cuda) == GIRIH_CUDA);
static_assert(static_cast<int>(ScaleGranularity::token_group) == GIRIH_SCALE_TOKEN_GROUP);
static_assert(static_cast<int>(LseKind::base2) == GIRIH_LSE_BASE2);
static_assert(static_cast<int>(QuantScale::tile) == GIRIH_QUANT_TILE);
static_assert(TensorView::kMaxRank == GIRIH_MAX_RANK && kEndlessPage == GIRIH_ENDLESS_PAGE);

constexpr int kNumDTypes = GIRIH_U8 + 1;
constexpr int kNumGranularities = GIRIH_SCALE_TOKEN_GROUP + 1;

/// A zeroed struct has 0, which no scale may be.
float factor(float value) { return value == 0 ? 1.0F : value; }

KvPlane kv_plane(const Call& call, const girih_kv_plane& value, const Field& field) {
  call.enumerator<int>(value.has_partial_page, 2, Field(field, "has_partial_page"));
  const Field scales(field, "scales");
  return {.data = value.data,
          .dtype = dtype(call, value.dtype, Field(field, "dtype")),
          .page_byte_stride = value.page_byte_stride,
          .token_byte_stride = value.token_byte_stride,
          .head_byte_stride = value.head_byte_stride,
          .dim_byte_stride = value.dim_byte_stride,
          .scales = {
              .granularity = call.enumerator<ScaleGranularity>(value.scales.granularity, kNumGranularities, Field(scales, "granularity")),
              .data = value.scales.data,
              .page_byte_stride = value.scales.page_byte_stride,
              .token_byte_stride = value.scales.token_byte_stride,
              .head_byte_stride = value.scales.head_byte_stride,
              .global_scale = factor(value.scales.global_scale)}};
}

girih_kv_plane to_c(const KvPlane& plane, bool has_partial_page) {
  return {.data = plane.data,
          .page_byte_stride = plane.page_byte_stride,
          .token_byte_stride = plane.token_byte_stride,
          .head_byte_stride = plane.head_byte_stride,
          .dim_byte_stride = plane.dim_byte_stride,
          .scales = {.data = plane.scales.data,
                     .page_byte_stride = plane.scales.page_byte_stride,
                     .token_byte_stride = plane.scales.token_byte_stride,
                     .head_byte_stride = plane.scales.head_byte_stride,
                     .granularity = static_cast<girih_scale_granularity>(plane.scales.granularity),
                     .global_scale = plane.scales.global_scale},
          .dtype = static_cast<girih_dtype>(plane.dtype),
          .has_partial_page = has_partial_page ? 1 : 0};
}

}  // namespace

DType dtype(const Call& call, girih_dtype value, const Field& field) { return call.enumerator<DType>(value, kNumDTypes, field); }

Device device(const Call& call, const girih_device& value, const Field& field) {
  return {.kind = call.enumerator<DeviceKind>(value.kind, GIRIH_CUDA + 1, Field(field, "kind")), .index = value.index};
}

TensorView tensor(const Call& call, const girih_tensor& value, const Field& field) {
  TensorView view;
  view.data = value.data;
  view.dtype = dtype(call, value.dtype, Field(field, "dtype"));
  view.device = device(call, value.device, Field(field, "device"));
  if (value.rank < 0 || value.rank > GIRIH_MAX_RANK) call.refuse("{}.rank={}; must be in 0..{}", field.text(), value.rank, GIRIH_MAX_RANK);
  view.rank = value.rank;
  std::int64_t count = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(value.rank); ++i) {
    if (value.shape[i] < 0) call.refuse("{}.shape[{}]={}; must be >= 0", field.text(), i, value.shape[i]);
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(value.shape[i], 1), &count))
      call.refuse("{}.shape[{}]={}: the number of elements exceeds 64 bits", field.text(), i, value.shape[i]);
    view.shape[i] = value.shape[i];
    view.strides[i] = value.strides[i];
  }
  return view;
}

TensorView tensor(const Call& call, const girih_tensor* value, const Field& field) {
  return value == nullptr ? TensorView() : tensor(call, *value, field);
}

Indices indices(const Call& call, const girih_indices& value, const Field& field) {
  call.reserved(value.reserved, field);
  if (value.data == nullptr && value.size == 0 && value.bits == 0) return {};
  call.check_array(value.data, value.size, field);
  const auto size = static_cast<std::size_t>(value.size);
  if (value.bits == 32) return std::span(static_cast<const std::int32_t*>(value.data), size);
  if (value.bits == 64) return std::span(static_cast<const std::int64_t*>(value.data), size);
  call.refuse("{}.bits={}; must be 32 or 64", field.text(), value.bits);
}

Indices indices(const Call& call, const girih_indices* value, const Field& field) {
  return value == nullptr ? Indices() : indices(call, *value, field);
}

girih_indices view_of(const std::vector<std::int64_t>& values) {
  if (values.empty()) return {};
  return {.data = values.data(), .size = std::ssize(values), .bits = 64, .reserved = 0};
}

KvStore kv_store(const Call& call, const girih_kv_store& value, const Field& field) {
  return {.page_size = value.page_size,
          .num_pages = value.num_pages,
          .k = kv_plane(call, value.k, Field(field, "k")),
          .k_rope = kv_plane(call, value.k_rope, Field(field, "k_rope")),
          .v = kv_plane(call, value.v, Field(field, "v")),
          .has_partial_page = value.k.has_partial_page != 0 || value.v.has_partial_page != 0};
}

KvStore kv_store(const Call& call, const girih_kv_store* value, const Field& field) {
  if (value == nullptr) call.refuse("{} is NULL; must point to a girih_kv_store", field.text());
  return kv_store(call, *value, field);
}

girih_kv_store to_c(const KvStore& store) {
  return {.page_size = store.page_size,
          .num_pages = store.num_pages,
          .k = to_c(store.k, store.has_partial_page),
          .k_rope = to_c(store.k_rope, store.has_partial_page),
          .v = to_c(store.v, store.has_partial_page)};
}

AppendBatch append_batch(const Call& call, const girih_append_batch* value, const Field& field) {
  const girih_append_batch batch = call.read(value, field);
  return {.append_indptr = indices(call, batch.append_indptr, Field(field, "append_indptr")),
          .kv_len = indices(call, batch.kv_len, Field(field, "kv_len")),
          .kv_indices = call.array(batch.kv_indices, batch.num_kv_indices, Field(field, "kv_indices")),
          .kv_indptr = indices(call, batch.kv_indptr, Field(field, "kv_indptr")),
          .table_stride = batch.table_stride};
}

Quantization quantization(const Call& call, const girih_quantization& value, const Field& field) {
  call.reserved(value.reserved, field);
  return {.scale = call.enumerator<QuantScale>(value.scale, GIRIH_QUANT_TILE + 1, Field(field, "scale")),
          .scales = tensor(call, value.scales, Field(field, "scales")),
          .global_scale = factor(value.global_scale),
          .swizzled = call.flag(value.swizzled, Field(field, "swizzled"))};
}

Rope::Llama31 llama31(const girih_llama31& value) {
  return {.factor = value.factor,
          .low_freq_factor = value.low_freq_factor,
          .high_freq_factor = value.high_freq_factor,
          .old_context_len = value.old_context_len};
}

ParamList params(const Call& call, const girih_param_value* values, std::int64_t count, const Field& field) {
  call.check_array(values, count, field);
  if (count > variant::Program::kMaxParams)
    call.refuse("{} has {} entries; a variant has at most {} parameters", field.text(), count, variant::Program::kMaxParams);
  ParamList list(count);
  for (std::int64_t i = 0; i < count; ++i) {
    const Field element(field, i);
    list[i] = {.name = call.text(values[i].name, Field(element, "name")),
               .number = values[i].number,
               .integer = values[i].integer,
               .array = tensor(call, values[i].array, Field(element, "array"))};
  }
  return list;
}

AttentionSpec spec(const Call& call, const girih_attention_spec& s, const Field& field) {
  const auto type = [&](girih_dtype value, const char* name) { return dtype(call, value, Field(field, name)); };
  const auto scale = [&](girih_scale_granularity value, const char* name) {
    return call.enumerator<ScaleGranularity>(value, kNumGranularities, Field(field, name));
  };
  AttentionSpec spec{.num_qo_heads = s.num_qo_heads,
                     .num_kv_heads = s.num_kv_heads,
                     .head_dim_qk = s.head_dim_qk,
                     .head_dim_vo = s.head_dim_vo,
                     .head_dim_rope = s.head_dim_rope,
                     .q_dtype = type(s.q_dtype, "q_dtype"),
                     .k_dtype = type(s.k_dtype, "k_dtype"),
                     .v_dtype = type(s.v_dtype, "v_dtype"),
                     .o_dtype = type(s.o_dtype, "o_dtype"),
                     .k_rope_dtype = {},
                     .k_scale = scale(s.k_scale, "k_scale"),
                     .v_scale = scale(s.v_scale, "v_scale"),
                     .v_is_k = call.flag(s.v_is_k, Field(field, "v_is_k")),
                     .sm_scale = s.sm_scale,
                     .lse = call.enumerator<LseKind>(s.lse, GIRIH_LSE_BASE2 + 1, Field(field, "lse")),
                     .partial_state = call.flag(s.partial_state, Field(field, "partial_state")),
                     .batch_invariant = call.flag(s.batch_invariant, Field(field, "batch_invariant")),
                     .variant = {}};
  if (call.enumerator<int>(s.k_rope_dtype_plus_one, kNumDTypes + 1, Field(field, "k_rope_dtype_plus_one")) > 0)
    spec.k_rope_dtype = static_cast<DType>(s.k_rope_dtype_plus_one - 1);
  if (s.variant != nullptr) spec.variant = call.handle(s.variant, Field(field, "variant")).value;
  return spec;
}

}  // namespace girih::c_api
