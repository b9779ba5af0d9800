// Problems for rotation, alone and with appends: one table that the CPU's, the emulator's and the GPU's tests run.
#pragma once

#include <map>

#include "cases/rows.h"
#include "girih/rope.h"
#include "rope/rope.h"

namespace girih::cases {

struct RopeCase {
  std::string name;
  bool append = false, mla = false;
  DType x = DType::bf16, q_out = DType::bf16, cache = DType::bf16;
  QuantScale q_scale = QuantScale::none;
  ScaleGranularity k_scale = ScaleGranularity::none;
  std::int64_t rows = 9, q_heads = 4, k_heads = 2, dim = 128, rotary = 128, begin = 0;
  bool interleaved = false, norm = false, by_request = false, in_place = false;
  RowsLayout layout = RowsLayout::dense;
  std::int64_t page_size = 4;
};

/// Where the new tokens of three requests go: rows, as the lists' ends.
struct RopeBatch {
  std::vector<std::int64_t> append_indptr, kv_len, kv_indptr;
  std::vector<std::int32_t> kv_indices;
  explicit RopeBatch(std::int64_t rows, std::int64_t page_size) {
    append_indptr = {0, rows / 3, rows / 3, rows};
    kv_len = {rows / 3 + 5, 7, rows - rows / 3 + 1};
    kv_indptr = {0};
    for (const std::int64_t len : kv_len) kv_indptr.push_back(kv_indptr.back() + (len + page_size - 1) / page_size);
    // Every page once, in an order that jumps.
    const std::int64_t pages = kv_indptr.back();
    for (std::int64_t i = 0; i < pages; ++i) kv_indices.push_back(static_cast<std::int32_t>(pages - 1 - i));
  }
  AppendBatch view() const {
    AppendBatch b;
    b.append_indptr = append_indptr;
    b.kv_len = kv_len;
    b.kv_indices = kv_indices;
    b.kv_indptr = kv_indptr;
    return b;
  }
};

struct RopeProblem {
  static constexpr std::int64_t kPositions = 300;
  static constexpr double kTheta = 1000;

  RopeCase c;
  RopeBatch batch;
  RowsTensor q, k, v, q_nope, k_nope, q_out, k_out, q_nope_out, q_weight, k_weight, table, positions, indptr, offsets;
  RowsTensor cache_k, cache_rope, cache_v, scales_k, scales_rope, scales_v, q_scales;
  std::vector<std::int64_t> position_of;

  explicit RopeProblem(RopeCase given) : c(std::move(given)), batch(c.rows, c.page_size) {
    std::mt19937_64 random(static_cast<std::uint64_t>(c.dim * 7 + c.rows));
    const auto tensor = [&](std::int64_t heads, std::int64_t dim) {
      RowsTensor t(c.x, shape(c.rows, heads, dim), dim, c.layout);
      for (std::int64_t r = 0; r < c.rows; ++r) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t d = 0; d < dim; ++d) t.set(r, h, d, std::normal_distribution<double>()(random));
        }
      }
      return t;
    };
    q = tensor(c.q_heads, c.dim);
    k = tensor(c.k_heads, c.dim);
    if (!c.in_place) q_out = RowsTensor(c.q_out, shape(c.rows, c.q_heads, c.dim), c.dim, c.layout);
    if (!c.in_place && !c.append) k_out = RowsTensor(c.q_out, shape(c.rows, c.k_heads, c.dim), c.dim, c.layout);
    if (c.mla) {
      q_nope = tensor(c.q_heads, 2 * c.dim);
      k_nope = tensor(c.k_heads, 2 * c.dim);
      q_nope_out = RowsTensor(c.q_out, shape(c.rows, c.q_heads, 2 * c.dim), 2 * c.dim, c.layout);
    } else if (c.append) {
      v = tensor(c.k_heads, c.dim);
    }
    if (c.norm) {
      for (RowsTensor* w : {&q_weight, &k_weight}) {
        *w = RowsTensor(c.x, shape(1, 0, c.dim), c.dim, RowsLayout::dense);
        for (std::int64_t d = 0; d < c.dim; ++d) w->set(0, 0, d, std::normal_distribution<double>()(random));
        w->view = TensorView(w->view.data, c.x, {c.dim});
      }
    }
    RopeTable rule;
    rule.rotary_dim = static_cast<int>(c.rotary);
    rule.theta = kTheta;
    const std::vector<float> cos_sin = rope_cos_sin(rule, kPositions);
    table = RowsTensor(DType::f32, shape(kPositions, 0, c.rotary), c.rotary, RowsLayout::dense);
    std::memcpy(table.view.data, cos_sin.data(), cos_sin.size() * 4);
    make_positions(random);
    if (c.append) make_cache();
    if (c.q_scale != QuantScale::none) {
      q_scales = RowsTensor(DType::f32, shape(c.q_scale == QuantScale::tensor ? 1 : c.rows, c.q_heads, 1), 1, RowsLayout::dense);
      if (c.q_scale == QuantScale::tensor) {
        q_scales.view = TensorView(q_scales.view.data, DType::f32, {1});
        *static_cast<float*>(q_scales.view.data) = 0.02F;
      } else {
        q_scales.view = TensorView(q_scales.view.data, DType::f32, {c.rows, c.q_heads});
      }
    }
  }

  static RowsCase shape(std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return {.name = {}, .rows = rows, .heads = heads, .dim = dim};
  }

  void make_positions(std::mt19937_64& random) {
    const auto indices = [](const std::vector<std::int64_t>& values, bool wide) {
      const auto n = std::ssize(values);
      RowsTensor t(DType::f32, shape(1, 0, n * 2), n * 2, RowsLayout::dense);
      for (std::int64_t i = 0; i < n; ++i) {
        if (wide) {
          static_cast<std::int64_t*>(t.view.data)[i] = values[static_cast<std::size_t>(i)];
        } else {
          static_cast<std::int32_t*>(t.view.data)[i] = static_cast<std::int32_t>(values[static_cast<std::size_t>(i)]);
        }
      }
      t.view = TensorView(t.view.data, wide ? DType::i64 : DType::i32, {n});
      return t;
    };
    if (c.by_request) {
      const std::vector<std::int64_t> starts{0, c.rows / 2, c.rows / 2, c.rows}, first{17, 3, 200};
      indptr = indices(starts, true);
      offsets = indices(first, true);
      for (std::int64_t r = 0; r < c.rows; ++r) position_of.push_back(r < c.rows / 2 ? 17 + r : 200 + r - c.rows / 2);
    } else if (c.append) {
      for (std::size_t r = 0; r < 3; ++r) {
        for (std::int64_t row = batch.append_indptr[r]; row < batch.append_indptr[r + 1]; ++row)
          position_of.push_back(batch.kv_len[r] - (batch.append_indptr[r + 1] - row));
      }
    } else {
      for (std::int64_t r = 0; r < c.rows; ++r) position_of.push_back(static_cast<std::int64_t>(random() % kPositions));
      positions = indices(position_of, c.rows % 2 == 0);
    }
  }

  std::int64_t slots() const { return std::ssize(batch.kv_indices) * c.page_size; }
  void make_cache() {
    const auto plane = [&](RowsTensor& data, RowsTensor& scales, std::int64_t dim) {
      data = RowsTensor(c.cache, shape(slots(), c.k_heads, dim), dim, RowsLayout::dense);
      if (c.k_scale == ScaleGranularity::none) return;
      const bool given = c.k_scale == ScaleGranularity::tensor || c.k_scale == ScaleGranularity::head;
      const std::int64_t block = c.cache == DType::nvfp4 ? 16 : 32;
      const bool blocks = c.k_scale == ScaleGranularity::block;
      const std::int64_t of_a_head = blocks                                       ? (dim + block - 1) / block
                                     : c.k_scale == ScaleGranularity::token_group ? dim / kScaleGroup
                                                                                  : 1;
      scales = RowsTensor(blocks ? DType::u8 : DType::f32, shape(given ? 1 : slots(), c.k_heads, of_a_head), of_a_head, RowsLayout::dense);
      for (std::int64_t h = 0; given && h < c.k_heads; ++h) scales.set(0, h, 0, 0.01 * static_cast<double>(h + 1));
    };
    plane(cache_k, scales_k, c.mla ? 2 * c.dim : c.dim);
    if (c.mla) {
      plane(cache_rope, scales_rope, c.dim);
    } else {
      plane(cache_v, scales_v, c.dim);
    }
  }
  KvPlane plane_of(const RowsTensor& data, const RowsTensor& scales) const {
    KvPlane p;
    if (data.block.empty()) return p;
    const auto row = [](const RowsTensor& t) { return bytes(t.view.dtype, t.view.strides[0]); };
    p.data = data.view.data;
    p.dtype = c.cache;
    p.head_byte_stride = bytes(c.cache, data.view.strides[1]);
    p.token_byte_stride = row(data);
    p.page_byte_stride = row(data) * c.page_size;
    p.scales.granularity = c.k_scale;
    if (scales.block.empty()) return p;
    p.scales.data = scales.view.data;
    p.scales.head_byte_stride = bytes(scales.view.dtype, scales.view.strides[1]);
    p.scales.token_byte_stride = row(scales);
    p.scales.page_byte_stride = row(scales) * c.page_size;
    return p;
  }
  KvStore store() const {
    KvStore s;
    s.page_size = c.page_size;
    s.num_pages = std::ssize(batch.kv_indices);
    s.k = plane_of(cache_k, scales_k);
    s.k_rope = plane_of(cache_rope, scales_rope);
    s.v = plane_of(cache_v, scales_v);
    return s;
  }

  RopeArgs args() const {
    RopeArgs a;
    a.q = q.view;
    a.k = k.view;
    a.q_out = c.in_place ? q.view : q_out.view;
    if (!c.append) a.k_out = c.in_place ? k.view : k_out.view;
    a.cos_sin = table.view;
    a.positions = positions.view;
    a.indptr = indptr.view;
    a.offsets = offsets.view;
    a.rotary_begin = static_cast<int>(c.begin);
    a.interleaved = c.interleaved;
    a.q_weight = q_weight.view;
    a.k_weight = k_weight.view;
    a.q_quantization = {.scale = c.q_scale, .scales = q_scales.view};
    if (!c.append) a.k_quantization.scale = QuantScale::none;
    return a;
  }
  RopeAppendArgs append_args() const {
    RopeAppendArgs a;
    a.rope = args();
    a.v = v.view;
    a.k_nope = k_nope.view;
    a.q_nope = q_nope.view;
    a.q_nope_out = q_nope_out.view;
    return a;
  }
  std::vector<RowsTensor*> tensors() {
    std::vector<RowsTensor*> all;
    for (RowsTensor* t :
         {&q,         &k,      &v,       &q_nope,  &k_nope,     &q_out,   &k_out,    &q_nope_out,  &q_weight, &k_weight, &table,
          &positions, &indptr, &offsets, &cache_k, &cache_rope, &cache_v, &scales_k, &scales_rope, &scales_v, &q_scales}) {
      if (!t->block.empty()) all.push_back(t);
    }
    return all;
  }
  /// Without places: these belong to the run.
  rows::Launch describe(Device device) {
    for (RowsTensor* t : tensors()) t->view.device = device;
    return c.append ? describe_rope_append(device, store(), c.rows, append_args()) : describe_rope(device, args());
  }
  void run(const Context& context, void* stream = nullptr) {
    if (c.append) return rope_append(context, store(), batch.view(), append_args(), stream);
    rope(context, args(), stream);
  }

  /// What row r and head h of a source must become; the other operand's weight.
  ref::Values expected(const RowsTensor& t, const RowsTensor& weight, std::int64_t r, std::int64_t h, std::int64_t dim,
                       bool rotated) const {
    ref::Values row;
    for (std::int64_t d = 0; d < dim; ++d) row.push_back(t.value(r, h, d));
    if (!weight.block.empty()) {
      ref::Values w;
      for (std::int64_t d = 0; d < dim; ++d) w.push_back(RowsProblem::read_vector(weight, 0, d));
      row = ref::rms_norm(row, w, 1e-6F);
    }
    if (rotated) {
      std::vector<double> angles;
      for (std::int64_t i = 0; i < c.rotary / 2; ++i)
        angles.push_back(static_cast<double>(position_of[static_cast<std::size_t>(r)]) *
                         std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotary)));
      ref::rotate(row.data() + c.begin, angles, c.interleaved);
    }
    return row;
  }

  testing::AssertionResult row_matches(std::string_view what, const RowsTensor& out, std::int64_t r, std::int64_t h, const ref::Values& row,
                                       const std::function<double(std::int64_t)>& scale_of) const {
    double most = 0;
    for (const double x : row) most = std::max(most, std::fabs(x));
    for (std::int64_t d = 0; d < std::ssize(row); ++d) {
      const double want = row[static_cast<std::size_t>(d)];
      const double scale = scale_of(d);
      const double got = out.value(r, h, d) * scale;
      const double nearest =
          scale == 0
              ? 0
              : (out.view.dtype == DType::f32 ? want : ref::decode(out.view.dtype, ref::encode(out.view.dtype, want / scale)) * scale);
      if (!(std::fabs(got - want) <= std::fabs(nearest - want) + most * 3e-6))
        return testing::AssertionFailure() << c.name << ' ' << what << " [" << r << ", " << h << ", " << d << "]: " << got << ", want "
                                           << want << " (" << nearest << ")";
    }
    return testing::AssertionSuccess();
  }

  /// The slot of the cache that row r goes to.
  std::int64_t slot_of(std::int64_t r) const {
    std::size_t request = 0;
    while (batch.append_indptr[request + 1] <= r) ++request;
    const std::int64_t key = batch.kv_len[request] - (batch.append_indptr[request + 1] - r);
    return batch.kv_indices[static_cast<std::size_t>(batch.kv_indptr[request] + key / c.page_size)] * c.page_size + key % c.page_size;
  }

  testing::AssertionResult matches() const {
    const auto one = [](std::int64_t) { return 1.0; };
    const auto q_scale = [&](std::int64_t r, std::int64_t h) {
      return [this, r, h](std::int64_t) {
        if (c.q_scale == QuantScale::none) return 1.0;
        const auto* s = static_cast<const float*>(q_scales.view.data);
        return static_cast<double>(s[c.q_scale == QuantScale::tensor ? 0 : r * c.q_heads + h]);
      };
    };
    const auto cache_scale = [&](const RowsTensor& scales, std::int64_t slot, std::int64_t h) {
      return [this, &scales, slot, h](std::int64_t d) {
        switch (c.k_scale) {
          case ScaleGranularity::none: return 1.0;
          case ScaleGranularity::tensor: return scales.value(0, 0, 0);
          case ScaleGranularity::head: return scales.value(0, h, 0);
          case ScaleGranularity::token_head: return scales.value(slot, h, 0);
          case ScaleGranularity::token_group: return scales.value(slot, h, d / kScaleGroup);
          case ScaleGranularity::block: break;
        }
        const auto code = static_cast<std::uint32_t>(scales.row(slot, h)[d / (c.cache == DType::nvfp4 ? 16 : 32)]);
        return c.cache == DType::nvfp4 ? ref::decode(DType::e4m3, code) : ref::decode_e8m0(code);
      };
    };
    std::map<std::int64_t, bool> written;
    // In place the source is gone: what is expected comes from a problem made anew.
    const RopeProblem fresh = c.in_place ? RopeProblem(c) : *this;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t h = 0; h < c.q_heads; ++h) {
        auto result = row_matches("q", c.in_place ? q : q_out, r, h, fresh.expected(fresh.q, q_weight, r, h, c.dim, true), q_scale(r, h));
        if (!result) return result;
        if (!c.mla) continue;
        result = row_matches("q_nope", q_nope_out, r, h, expected(q_nope, {}, r, h, 2 * c.dim, false), q_scale(r, h));
        if (!result) return result;
      }
      const std::int64_t slot = c.append ? slot_of(r) : 0;
      written[slot] = true;
      for (std::int64_t h = 0; h < c.k_heads; ++h) {
        const ref::Values key = fresh.expected(fresh.k, k_weight, r, h, c.dim, true);
        if (!c.append) {
          const auto result = row_matches("k", c.in_place ? k : k_out, r, h, key, one);
          if (!result) return result;
          continue;
        }
        auto result = row_matches("k", c.mla ? cache_rope : cache_k, slot, h, key, cache_scale(c.mla ? scales_rope : scales_k, slot, h));
        if (!result) return result;
        result = c.mla
                     ? row_matches("k_nope", cache_k, slot, h, expected(k_nope, {}, r, h, 2 * c.dim, false), cache_scale(scales_k, slot, h))
                     : row_matches("v", cache_v, slot, h, expected(v, {}, r, h, c.dim, false), cache_scale(scales_v, slot, h));
        if (!result) return result;
      }
    }
    for (const RowsTensor* cache : {&cache_k, &cache_rope, &cache_v}) {
      if (cache->block.empty()) continue;
      for (std::int64_t slot = 0; slot < slots(); ++slot) {
        if (written.contains(slot)) continue;
        const std::int64_t size = bytes(c.cache, cache->view.strides[0]);
        for (std::int64_t i = 0; i < size; ++i) {
          if (cache->row(slot, 0)[i] != std::byte{0xff})
            return testing::AssertionFailure() << c.name << ": slot " << slot << " of the cache was written";
        }
      }
    }
    return testing::AssertionSuccess();
  }
};

inline std::vector<RopeCase> rope_cases() {
  constexpr DType f32 = DType::f32, f16 = DType::f16;
  return {
      {.name = "rope_128"},
      {.name = "rope_interleaved", .rows = 8, .interleaved = true},
      {.name = "rope_in_place", .in_place = true},
      {.name = "rope_in_place_interleaved", .interleaved = true, .in_place = true, .layout = RowsLayout::padded},
      {.name = "rope_partial", .dim = 96, .rotary = 48},
      {.name = "rope_partial_at_end", .dim = 192, .rotary = 64, .begin = 128, .interleaved = true},
      {.name = "rope_odd_pairs", .dim = 80, .rotary = 50, .begin = 7},
      {.name = "rope_f32", .x = f32, .q_out = f32, .dim = 64, .rotary = 64},
      {.name = "rope_f16_odd_layout", .x = f16, .q_out = f16, .dim = 40, .rotary = 40, .layout = RowsLayout::odd},
      {.name = "rope_strided_interleaved", .dim = 36, .rotary = 20, .begin = 2, .interleaved = true, .layout = RowsLayout::strided},
      {.name = "rope_by_request", .rows = 11, .dim = 64, .rotary = 64, .by_request = true},
      {.name = "rope_dim_320", .rows = 3, .dim = 320, .rotary = 320},
      {.name = "rope_dim_2048", .x = f32, .q_out = f32, .rows = 3, .q_heads = 1, .k_heads = 1, .dim = 2048, .rotary = 1024},
      {.name = "rope_qk_norm", .norm = true},
      {.name = "rope_qk_norm_by_request", .x = f16, .q_out = f32, .dim = 96, .rotary = 64, .norm = true, .by_request = true},
      {.name = "append_bf16", .append = true},
      {.name = "append_qk_norm", .append = true, .rows = 12, .norm = true},
      {.name = "append_e4m3_tensor",
       .append = true,
       .q_out = DType::e4m3,
       .cache = DType::e4m3,
       .q_scale = QuantScale::tensor,
       .k_scale = ScaleGranularity::tensor},
      {.name = "append_e4m3_head",
       .append = true,
       .q_out = DType::e4m3,
       .cache = DType::e4m3,
       .q_scale = QuantScale::token,
       .k_scale = ScaleGranularity::head},
      {.name = "append_i8_token_head",
       .append = true,
       .cache = DType::i8,
       .k_scale = ScaleGranularity::token_head,
       .dim = 64,
       .rotary = 64,
       .norm = true},
      {.name = "append_e4m3_token_group",
       .append = true,
       .cache = DType::e4m3,
       .k_scale = ScaleGranularity::token_group,
       .dim = 256,
       .rotary = 64},
      {.name = "append_nvfp4", .append = true, .cache = DType::nvfp4, .k_scale = ScaleGranularity::block},
      {.name = "append_mxfp4_partial",
       .append = true,
       .cache = DType::mxfp4,
       .k_scale = ScaleGranularity::block,
       .dim = 96,
       .rotary = 40,
       .begin = 4},
      {.name = "append_page_1_odd",
       .append = true,
       .cache = f16,
       .dim = 36,
       .rotary = 36,
       .interleaved = true,
       .layout = RowsLayout::odd,
       .page_size = 1},
      {.name = "append_by_request", .append = true, .rows = 10, .by_request = true},
      {.name = "mla_bf16", .append = true, .mla = true, .q_heads = 8, .k_heads = 1, .dim = 64, .rotary = 64, .interleaved = true},
      {.name = "mla_e4m3",
       .append = true,
       .mla = true,
       .q_out = DType::e4m3,
       .cache = DType::e4m3,
       .q_scale = QuantScale::tensor,
       .k_scale = ScaleGranularity::tensor,
       .q_heads = 3,
       .k_heads = 1,
       .dim = 64,
       .rotary = 64},
  };
}

}  // namespace girih::cases
