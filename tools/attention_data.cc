// See attention_data.h. Memory of one benchmark case: standard normal data, NHD pages in shuffled order. A table of normals is made once
// per plane and copied from varying offsets, since drawing a gigabyte of numbers would take longer than the benchmark.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/math.h"
#include "base/numeric.h"
#include "tools/attention_data.h"

namespace girih::tools {
namespace {

constexpr float kQuantStep = 1.0F / 32;  // of int8 and e4m3 codes: normals up to 4 fit

void encode(DType dtype, float value, std::byte* to) {
  switch (dtype) {
    case DType::f32: std::memcpy(to, &value, 4); return;
    case DType::bf16: {
      const std::uint16_t half = encode_bf16(value);
      std::memcpy(to, &half, 2);
      return;
    }
    case DType::i8: *to = static_cast<std::byte>(encode_i8(value / kQuantStep)); return;
    case DType::e4m3: *to = static_cast<std::byte>(encode_e4m3(value / kQuantStep)); return;
    default: bug("no encoder for {}", name(dtype));
  }
}

/// Of a token of codes, their scales and a RoPE part of bf16.
std::int64_t token_bytes(const AttentionSpec& spec) {
  const std::int64_t latent = spec.head_dim_qk - spec.head_dim_rope;
  return latent + latent / kScaleGroup * 4 + spec.head_dim_rope * 2;
}

}  // namespace

double useful_flops(const cases::ServingCase& c) {
  const NamedCall mask = parse_call(c.mask, c.name);
  double pairs = 0;
  for (std::size_t r = 0; r < c.qo_lens.size(); ++r) pairs += visible_pairs(mask, c.qo_lens[r], c.kv_lens[r]);
  return pairs * c.spec.num_qo_heads * 2.0 * (c.spec.head_dim_qk + c.spec.head_dim_vo);
}

double useful_bytes(const cases::ServingCase& c) {
  const NamedCall mask = parse_call(c.mask, c.name);
  double keys = static_cast<double>(c.shared_prefix);
  double rows = 0;
  for (std::size_t r = 0; r < c.qo_lens.size(); ++r) {
    keys += visible_keys(mask, c.qo_lens[r], c.kv_lens[r]) - static_cast<double>(c.shared_prefix);
    rows += static_cast<double>(c.qo_lens[r]);
  }
  const double key_bytes =
      static_cast<double>(c.spec.k_scale == ScaleGranularity::token_group ? token_bytes(c.spec)
                                                                          : bytes(c.spec.k_dtype, c.spec.head_dim_qk)) +
      (c.spec.v_is_k ? 0.0 : static_cast<double>(bytes(c.spec.v_dtype, c.spec.head_dim_vo)));
  const double row_bytes = static_cast<double>(bytes(c.spec.q_dtype, c.spec.head_dim_qk) + bytes(c.spec.o_dtype, c.spec.head_dim_vo));
  return keys * c.spec.num_kv_heads * key_bytes + rows * c.spec.num_qo_heads * row_bytes;
}

OwnedBatch make_batch(const cases::ServingCase& c) {
  OwnedBatch batch = make_batch(c.spec, c.qo_lens, c.kv_lens, c.page_size, parse_call(c.mask, c.name), parse_call(c.logits, c.name));
  if (c.sinks) add_sinks(batch.variant, std::vector<float>(static_cast<std::size_t>(c.spec.num_qo_heads), cases::kServingSink));
  if (c.packed_mask) pack_mask(batch.variant, parse_call(c.mask, c.name), c.qo_lens, c.kv_lens);
  batch.spec.variant = batch.variant.variant;
  return batch;
}

void AttentionData::Free::operator()(std::byte* memory) const { std::free(memory); }

AttentionData::Memory AttentionData::allocate(std::int64_t bytes) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<std::size_t>(round_up(std::max<std::int64_t>(bytes, 64), 64)))));
  if (memory == nullptr) throw std::bad_alloc();
  if (bytes > 0) blocks_.emplace_back(memory.get(), static_cast<std::size_t>(bytes));
  return memory;
}

AttentionData::Memory AttentionData::random_memory(DType dtype, std::int64_t elements, std::uint64_t seed) {
  constexpr std::int64_t kTable = 1 << 15;
  constexpr std::int64_t kCopy = 1 << 12;  // elements copied at a time
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const std::int64_t size = bits(dtype) / 8;
  std::vector<std::byte> table(static_cast<std::size_t>(kTable * size));
  for (std::int64_t i = 0; i < kTable; ++i) encode(dtype, normal(random), table.data() + i * size);
  Memory memory = allocate(elements * size);
  for (std::int64_t at = 0; at < elements; at += kCopy) {
    const std::int64_t from = static_cast<std::int64_t>(random() % (kTable - kCopy));
    std::memcpy(memory.get() + at * size, table.data() + from * size, static_cast<std::size_t>(std::min(kCopy, elements - at) * size));
  }
  return memory;
}

AttentionData::AttentionData(const cases::ServingCase& c) : page_size_(c.page_size) {
  batch_ = make_batch(c);
  blocks_.emplace_back(reinterpret_cast<const std::byte*>(&scale_), sizeof scale_);
  const AttentionSpec& spec = batch_.spec;
  make_pages(c);
  make_store(spec);
  const std::int64_t tokens = batch_.num_tokens();
  const std::int64_t first_dims = spec.head_dim_qk - spec.head_dim_rope;
  q_memory_ = random_memory(spec.q_dtype, tokens * spec.num_qo_heads * first_dims, 11);
  o_memory_ = allocate(bytes(spec.o_dtype, tokens * spec.num_qo_heads * spec.head_dim_vo));
  q_ = TensorView(q_memory_.get(), spec.q_dtype, {tokens, spec.num_qo_heads, first_dims});
  if (spec.head_dim_rope > 0) {
    q_rope_memory_ = random_memory(spec.q_dtype, tokens * spec.num_qo_heads * spec.head_dim_rope, 14);
    q_rope_ = TensorView(q_rope_memory_.get(), spec.q_dtype, {tokens, spec.num_qo_heads, spec.head_dim_rope});
  }
  o_ = TensorView(o_memory_.get(), spec.o_dtype, {tokens, spec.num_qo_heads, spec.head_dim_vo});
  for (const std::vector<std::int32_t>& pages : pages_) segments_.push_back({.store = store_, .kv_indices = pages, .page_pos = {}});
}

void AttentionData::make_pages(const cases::ServingCase& c) {
  if (c.page_size == kEndlessPage) {
    num_pages_ = batch_.segments.front().kv_indptr.back();
    pages_.resize(1);
    return;
  }
  if (c.pool > 0) {
    std::mt19937_64 random(7);
    std::vector<std::int32_t> all(static_cast<std::size_t>(c.pool)), lists;
    for (const std::int64_t count : c.kv_lens) {
      std::iota(all.begin(), all.end(), static_cast<std::int32_t>(num_pages_));
      std::shuffle(all.begin(), all.end(), random);
      lists.insert(lists.end(), all.begin(), all.begin() + count);
      num_pages_ += c.pool;
    }
    pages_ = {std::move(lists)};
    return;
  }
  const std::int64_t prefix_pages = c.shared_prefix / c.page_size;
  std::vector<std::int32_t> prefix, own, flat;
  for (std::int64_t p = 0; p < prefix_pages; ++p) prefix.push_back(static_cast<std::int32_t>(num_pages_++));
  for (std::int64_t kv_len : c.kv_lens) {
    flat.insert(flat.end(), prefix.begin(), prefix.end());
    for (std::int64_t p = prefix_pages; p < ceil_div(kv_len, c.page_size); ++p) {
      own.push_back(static_cast<std::int32_t>(num_pages_));
      flat.push_back(static_cast<std::int32_t>(num_pages_++));
    }
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_pages_));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(7));
  const auto shuffled = [&order](std::vector<std::int32_t> pages) {
    for (std::int32_t& p : pages) p = order[static_cast<std::size_t>(p)];
    return pages;
  };
  if (!c.cascade) {
    pages_ = {shuffled(flat)};
    return;
  }
  pages_ = {shuffled(prefix), shuffled(own)};
  std::vector<std::int64_t> own_lens = c.kv_lens;
  for (std::int64_t& n : own_lens) n -= c.shared_prefix;
  batch_.segments = {make_segment({c.shared_prefix}, c.page_size), make_segment(own_lens, c.page_size)};
  batch_.segments[0].qo_indptr = {0, batch_.num_tokens()};
}

/// Tokens as mla_token_kv_store has them.
void AttentionData::make_token_store(const AttentionSpec& spec) {
  constexpr std::int64_t kNormals = 1 << 12;
  const std::int64_t size = token_bytes(spec), rope_bytes = spec.head_dim_rope * 2;
  const std::int64_t latent = spec.head_dim_qk - spec.head_dim_rope;
  std::mt19937_64 random(15);
  std::normal_distribution<float> normal;
  std::vector<std::byte> normals(kNormals * 2);
  for (std::int64_t i = 0; i < kNormals; ++i) encode(DType::bf16, normal(random), normals.data() + 2 * i);
  k_memory_ = random_memory(spec.k_dtype, num_pages_ * page_size_ * size, 12);
  for (std::int64_t i = 0; i < num_pages_ * page_size_; ++i) {
    std::byte* token = k_memory_.get() + i * size;
    for (std::int64_t group = 0; group < latent / kScaleGroup; ++group) std::memcpy(token + latent + 4 * group, &kQuantStep, 4);
    const std::int64_t from = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kNormals - spec.head_dim_rope));
    std::memcpy(token + size - rope_bytes, normals.data() + 2 * from, static_cast<std::size_t>(rope_bytes));
  }
  store_ = mla_token_kv_store({k_memory_.get(), DType::u8, {num_pages_, page_size_, size}}, static_cast<int>(latent), spec.head_dim_rope);
}

void AttentionData::make_store(const AttentionSpec& spec) {
  if (spec.k_scale == ScaleGranularity::token_group) {
    make_token_store(spec);
    return;
  }
  const std::int64_t page_tokens = std::max<std::int64_t>(page_size_, 1);  // ragged: num_pages_ counts tokens
  store_.page_size = page_size_;
  store_.num_pages = num_pages_;
  const auto plane = [&](DType dtype, int dim, ScaleGranularity scale, Memory& memory, std::uint64_t seed) {
    memory = random_memory(dtype, num_pages_ * page_tokens * spec.num_kv_heads * dim, seed);
    KvPlane p;
    p.data = memory.get();
    p.dtype = dtype;
    p.head_byte_stride = bytes(dtype, dim);
    p.token_byte_stride = p.head_byte_stride * spec.num_kv_heads;
    p.page_byte_stride = page_size_ == kEndlessPage ? 0 : p.token_byte_stride * page_tokens;
    p.scales.granularity = scale;
    if (scale != ScaleGranularity::none) {
      scale_ = kQuantStep;
      p.scales.data = &scale_;
    }
    return p;
  };
  store_.k = plane(spec.k_dtype, spec.head_dim_qk, spec.k_scale, k_memory_, 12);
  if (!spec.v_is_k) store_.v = plane(spec.v_dtype, spec.head_dim_vo, spec.v_scale, v_memory_, 13);
}

AttentionArgs AttentionData::args() const {
  AttentionArgs args;
  args.q = q_;
  args.q_rope = q_rope_;
  args.segments = segments_;
  args.params = batch_.variant.run_params;
  args.o = o_;
  return args;
}

}  // namespace girih::tools
