// Random rows and KV pools (replay_kv.h).
#include "tools/replay_kv.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <random>

namespace girih::tools {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kTableSize = std::int64_t{1} << 20;
constexpr float kFp8Scale = 1.0F / 32;  // anything that is not 1, so that a forgotten scale shows; 32 * the largest number fits e4m3

/// splitmix64's finalizer (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// A binary float of `exponent_bits` and `mantissa_bits` with subnormals; infinities and NaN are the caller's business.
double small_float(unsigned code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const unsigned mantissa = code & ((1U << mantissa_bits) - 1);
  const double sign = (code >> (exponent_bits + mantissa_bits)) & 1 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1U << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

template <typename T>
T load(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/// For |value| in [2^-14, 65504] and 0; smaller numbers become 0, which the table's rows can bear.
std::uint16_t to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t rounded = (bits & 0x7FFFFFFF) + 0xFFF + ((bits >> 13) & 1);
  const std::int32_t shifted = static_cast<std::int32_t>(rounded >> 13) - (112 << 10);
  return static_cast<std::uint16_t>(shifted < 1 << 10 ? sign : sign | static_cast<std::uint32_t>(shifted));
}

int scale_block(DType dtype) { return dtype == DType::nvfp4 ? 16 : 32; }

}  // namespace

Buffer::Buffer(std::int64_t size) : memory_(std::calloc(static_cast<std::size_t>(size + kAlignment), 1)), size_(size) {
  if (!memory_) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  data_ = static_cast<std::byte*>(memory_.get()) + (kAlignment - address % kAlignment) % kAlignment;
}

double element(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f32: return load<float>(data, index);
    case DType::f16: return small_float(load<std::uint16_t>(data, index), 5, 10);
    case DType::bf16: return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(data, index)) << 16);
    case DType::e4m3: return small_float(load<std::uint8_t>(data, index), 4, 3);
    case DType::e5m2: return small_float(load<std::uint8_t>(data, index), 5, 2);
    case DType::i8: return load<std::int8_t>(data, index);
    default: {
      const unsigned pair = load<std::uint8_t>(data, index / 2);
      return small_float(index % 2 == 0 ? pair & 15 : pair >> 4, 2, 1);
    }
  }
}

void store_element(void* data, DType dtype, std::int64_t index, float value) {
  std::byte* base = static_cast<std::byte*>(data);
  if (dtype == DType::f32) {
    std::memcpy(base + index * 4, &value, 4);
    return;
  }
  const std::uint16_t half = dtype == DType::f16 ? to_f16(value) : to_bf16(value);
  std::memcpy(base + index * 2, &half, 2);
}

RandomRows::RandomRows(DType dtype, std::uint64_t seed) : dtype_(dtype), seed_(mix(seed)), table_(bytes(dtype, kTableSize + kMaxWidth)) {
  std::mt19937_64 random(seed);
  const auto uniform = [&random] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
  // The sum of four uniform numbers, centred: near to normal, variance 1, bounded by sqrt(12).
  for (std::int64_t i = 0; i < kTableSize + kMaxWidth; ++i) {
    const double sum = uniform() + uniform() + uniform() + uniform() - 2;
    store_element(table_.data(), dtype, i, static_cast<float>(sum * std::sqrt(3.0)));
  }
}

const std::byte* RandomRows::row(RowKind kind, const RunningRequest& running, std::int64_t position, int head) const {
  const TraceRequest& request = *running.request;
  const std::int64_t block = position / kPrefixBlock;
  const bool whole_block = (block + 1) * kPrefixBlock <= request.input_length && block < std::ssize(request.hash_ids);
  const bool shared = kind != RowKind::query && whole_block;
  const std::uint64_t content = shared ? static_cast<std::uint64_t>(request.hash_ids[block]) : ~static_cast<std::uint64_t>(running.index);
  std::uint64_t h = mix(content ^ seed_);
  h = mix(h ^ static_cast<std::uint64_t>(position));
  h = mix(h ^ (static_cast<std::uint64_t>(head) << 2) ^ static_cast<std::uint64_t>(kind));
  return table_.data() + bytes(dtype_, static_cast<std::int64_t>(h % kTableSize));
}

KvPlane LayerPool::make_plane(DType dtype, ScaleGranularity granularity, int num_heads, int dim, std::int64_t num_pages,
                              std::int64_t page_size, Buffer& data, Buffer& scales) {
  KvPlane plane{.dtype = dtype};
  plane.head_byte_stride = bytes(dtype, dim);
  plane.token_byte_stride = plane.head_byte_stride * num_heads;
  plane.page_byte_stride = plane.token_byte_stride * page_size;
  data = Buffer(plane.page_byte_stride * num_pages);
  plane.data = data.data();
  plane.scales.granularity = granularity;
  if (granularity == ScaleGranularity::none) return plane;
  if (granularity == ScaleGranularity::tensor) {
    scales = Buffer(sizeof(float));
    std::memcpy(scales.data(), &kFp8Scale, sizeof(float));
  } else {
    const bool block = granularity == ScaleGranularity::block;
    plane.scales.head_byte_stride = block ? (dim + scale_block(dtype) - 1) / scale_block(dtype) : static_cast<int>(sizeof(float));
    plane.scales.token_byte_stride = plane.scales.head_byte_stride * num_heads;
    plane.scales.page_byte_stride = plane.scales.token_byte_stride * page_size;
    scales = Buffer(plane.scales.page_byte_stride * num_pages);
  }
  plane.scales.data = scales.data();
  return plane;
}

LayerPool::LayerPool(const AttentionSpec& spec, std::int64_t num_pages, std::int64_t page_size) {
  store_.page_size = page_size;
  store_.num_pages = num_pages;
  store_.k = make_plane(spec.k_dtype, spec.k_scale, spec.num_kv_heads, spec.head_dim_qk, num_pages, page_size, k_data_, k_scales_);
  if (spec.v_is_k) return;
  store_.v = make_plane(spec.v_dtype, spec.v_scale, spec.num_kv_heads, spec.head_dim_vo, num_pages, page_size, v_data_, v_scales_);
}

double LayerPool::read(const KvPlane& plane, std::int64_t page, std::int64_t token, int head, int dim) {
  const auto* row = static_cast<const std::byte*>(plane.data) + page * plane.page_byte_stride + token * plane.token_byte_stride +
                    head * plane.head_byte_stride;
  const double code = element(row, plane.dtype, dim);
  const KvScales& scales = plane.scales;
  const auto* at = static_cast<const std::byte*>(scales.data) + page * scales.page_byte_stride + token * scales.token_byte_stride +
                   head * scales.head_byte_stride;
  switch (scales.granularity) {
    case ScaleGranularity::none: return code;
    case ScaleGranularity::block: {
      const int block = dim / scale_block(plane.dtype);
      if (plane.dtype == DType::mxfp4) return code * std::ldexp(1.0, load<std::uint8_t>(at, block) - 127) * scales.global_scale;
      return code * element(at, DType::e4m3, block) * scales.global_scale;
    }
    default: return code * load<float>(at, 0) * scales.global_scale;
  }
}

std::int64_t kv_bytes_per_token(const AttentionSpec& spec) {
  const auto row = [](DType dtype, ScaleGranularity granularity, int dim) {
    std::int64_t size = bytes(dtype, dim);
    if (granularity == ScaleGranularity::token_head) size += static_cast<std::int64_t>(sizeof(float));
    if (granularity == ScaleGranularity::block) size += (dim + scale_block(dtype) - 1) / scale_block(dtype);
    return size;
  };
  const std::int64_t k = row(spec.k_dtype, spec.k_scale, spec.head_dim_qk);
  const std::int64_t v = spec.v_is_k ? 0 : row(spec.v_dtype, spec.v_scale, spec.head_dim_vo);
  return spec.num_kv_heads * (k + v);
}

}  // namespace girih::tools
