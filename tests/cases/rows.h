// Problems for the row operators: one table that the CPU's, the emulator's and the GPU's tests run, and the comparison with the reference.
// A problem owns its memory, laid out as the case asks and poisoned where nothing belongs; a GPU's test copies whole blocks.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "activation/activation.h"
#include "girih/activation.h"
#include "girih/norm.h"
#include "norm/norm.h"
#include "quantize/quantize.h"
#include "ref/dtypes.h"
#include "ref/rows.h"

namespace girih::cases {

enum class RowsOp { rms_norm, layer_norm, activate, quantize, dequantize };
/// dense; padded: 64 bytes between rows; odd: rows at odd multiples of an element; strided: every second element of a row.
enum class RowsLayout { dense, padded, odd, strided };

struct RowsCase {
  std::string name;
  RowsOp op = RowsOp::rms_norm;
  DType x = DType::bf16, weight = DType::bf16, out = DType::bf16;
  std::int64_t rows = 5, heads = 0, dim = 256;  // heads 0: rank 2
  RowsLayout layout = RowsLayout::dense;
  bool has_weight = true, has_bias = false, weight_per_head = false, residual = false, residual_out = false, in_place = false;
  float weight_offset = 0;
  Activation activation = Activation::silu;
  bool interleaved = false, separate_up = false;
  QuantScale scale = QuantScale::none;
  bool swizzled = false;
  float global_scale = 1;
  float spread = 1, shift = 0;  // of the values
  bool odd_values = false;      // zeros, infinities, NaN and huge values among them
  bool every_code = false;      // quantize: values at, between and beside all codes, and a scale of 1
};

/// Memory of one tensor: `view` into a block that is a multiple of 64 bytes at a multiple of 64.
struct RowsTensor {
  std::vector<std::byte> block;
  TensorView view;
  std::vector<std::byte> before;  // the block as it was made

  static constexpr std::int64_t kMargin = 64;

  RowsTensor() = default;
  RowsTensor(DType type, const RowsCase& c, std::int64_t dim, RowsLayout layout, bool ranked = true) {
    const std::int64_t heads = std::max<std::int64_t>(c.heads, 1);
    const std::int64_t step = layout == RowsLayout::strided && bits(type) != 4 ? 2 : 1;
    std::int64_t head_stride = dim * step;
    if (bits(type) == 4) head_stride += head_stride % 2;
    std::int64_t row_stride = heads * head_stride;
    if (layout == RowsLayout::padded) row_stride += 64 * 8 / bits(type);
    if (layout == RowsLayout::odd) row_stride += bits(type) == 4 ? 2 : 1;
    const std::int64_t first = layout == RowsLayout::odd ? (bits(type) == 4 ? 2 : 1) : 0;
    const std::int64_t size = bytes(type, first + c.rows * row_stride + 64) + 2 * kMargin;
    block.assign(static_cast<std::size_t>(size / 64 * 64 + 128), std::byte{0xff});
    view.dtype = type;
    view.rank = c.heads > 0 && ranked ? 3 : 2;
    view.shape = {c.rows, dim};
    view.strides = {row_stride, step};
    if (view.rank == 3) {
      view.shape = {c.rows, c.heads, dim};
      view.strides = {row_stride, head_stride, step};
    }
    view.data = aligned() + kMargin + bytes(type, first);
  }
  /// Copies keep their place within a multiple of 64.
  RowsTensor(const RowsTensor& other) { *this = other; }
  RowsTensor& operator=(const RowsTensor& other) {
    if (this == &other) return *this;
    const std::ptrdiff_t at = other.block.empty() ? 0 : static_cast<std::byte*>(other.view.data) - other.aligned();
    const std::ptrdiff_t old = other.block.empty() ? 0 : other.aligned() - other.block.data();
    block.resize(other.block.size());
    view = other.view;
    before = other.before;
    if (block.empty()) return *this;
    std::memcpy(aligned(), other.block.data() + old, block.size() - 64);
    view.data = aligned() + at;
    return *this;
  }

  std::byte* aligned() const {
    auto* p = const_cast<std::byte*>(block.data());
    return p + (64 - reinterpret_cast<std::uintptr_t>(p) % 64) % 64;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(block.size()) - 64; }

  std::byte* row(std::int64_t r, std::int64_t head) const {
    const std::int64_t at = r * view.strides[0] + (view.rank == 3 ? head * view.strides[1] : 0);
    return static_cast<std::byte*>(view.data) + (bits(view.dtype) == 4 ? at / 2 : at * (bits(view.dtype) / 8));
  }
  std::int64_t byte_stride() const { return view.strides[static_cast<std::size_t>(view.rank - 1)] * bits(view.dtype) / 8; }
  std::uint32_t code(std::int64_t r, std::int64_t head, std::int64_t d) const {
    return ref::load_code(row(r, head), view.dtype, d, byte_stride());
  }
  double value(std::int64_t r, std::int64_t head, std::int64_t d) const {
    const std::uint32_t bits_read = code(r, head, d);
    if (view.dtype == DType::f32) return static_cast<double>(std::bit_cast<float>(bits_read));
    return ref::decode(view.dtype, bits_read);
  }
  void set(std::int64_t r, std::int64_t head, std::int64_t d, double x) const {
    ref::store_code(row(r, head), view.dtype, d, byte_stride(), ref::encode(view.dtype, x));
  }
};

struct RowsProblem {
  RowsCase c;
  RowsTensor x, second, weight, bias, residual_out, out, scales;
  std::vector<ref::Values> sums, expected;  // [rows * heads]

  std::int64_t heads() const { return std::max<std::int64_t>(c.heads, 1); }
  DType code_type() const { return c.op == RowsOp::dequantize ? c.x : c.out; }
  std::int64_t block() const {
    if (c.scale == QuantScale::mx) return 32;
    if (c.scale == QuantScale::tile) return 128;
    if (c.scale != QuantScale::block) return 0;
    return code_type() == DType::nvfp4 ? 16 : (code_type() == DType::mxfp4 ? 32 : 128);
  }
  bool converts() const { return c.op == RowsOp::quantize || c.op == RowsOp::dequantize; }
  bool activates() const { return c.op == RowsOp::activate; }

  explicit RowsProblem(RowsCase given) : c(std::move(given)) {
    std::mt19937_64 random(static_cast<std::uint64_t>(c.dim * 31 + c.rows));
    const std::int64_t wide = activates() && !c.separate_up ? 2 * c.dim : c.dim;
    x = RowsTensor(c.x, c, wide, c.layout);
    draw(x, wide, random);
    if (c.residual || c.separate_up) {
      second = RowsTensor(c.x, c, c.dim, c.layout);
      draw(second, c.dim, random);
    }
    const auto vector = [&](bool given_, RowsTensor& t) {
      if (!given_) return;
      RowsCase one{.name = {}, .rows = 1, .heads = c.weight_per_head ? c.heads : 0, .dim = c.dim};
      t = RowsTensor(c.weight, one, c.dim, RowsLayout::dense);
      for (std::int64_t h = 0; h < std::max<std::int64_t>(one.heads, 1); ++h) {
        for (std::int64_t d = 0; d < c.dim; ++d) t.set(0, h, d, std::normal_distribution<double>()(random));
      }
      for (int i = 1; i < t.view.rank; ++i) {
        t.view.shape[static_cast<std::size_t>(i - 1)] = t.view.shape[static_cast<std::size_t>(i)];
        t.view.strides[static_cast<std::size_t>(i - 1)] = t.view.strides[static_cast<std::size_t>(i)];
      }
      --t.view.rank;
    };
    vector(c.has_weight && !activates() && !converts(), weight);
    vector(c.has_bias, bias);
    if (!c.in_place) {
      out = RowsTensor(c.out, c, c.dim, c.layout);
      out.before = out.block;
    }
    if (c.residual_out) residual_out = RowsTensor(c.x, c, c.dim, c.layout);
    make_scales();
    work_out();
  }

  /// Every code's value, the middle between neighbours, what lies beside either as f32, and beyond the ends.
  static std::vector<double> values_around_codes(DType type) {
    std::vector<double> codes, all{NAN, INFINITY, -INFINITY, 1e30, -1e30, 1e-30, -1e-30, 0.0, -0.0};
    for (std::uint32_t code = 0; code < (1U << bits(type)); ++code) {
      const double v = ref::decode(type, code);
      if (std::isfinite(v)) codes.push_back(v);
    }
    std::sort(codes.begin(), codes.end());
    const auto add = [&all](double v) {
      const auto f = static_cast<float>(v);
      for (const float x : {f, std::nextafter(f, -INFINITY), std::nextafter(f, INFINITY)}) all.push_back(static_cast<double>(x));
    };
    for (std::size_t i = 0; i < codes.size(); ++i) {
      add(codes[i]);
      if (i + 1 < codes.size()) add((codes[i] + codes[i + 1]) / 2);
    }
    add(codes.back() * 1.01);
    add(codes.front() * 1.01);
    return all;
  }

  void draw(RowsTensor& t, std::int64_t n, std::mt19937_64& random) const {
    std::normal_distribution<double> normal(c.shift, c.spread);
    if (c.op == RowsOp::dequantize) {
      // Any code, one after another, and then at random.
      for (std::int64_t r = 0; r < c.rows; ++r) {
        for (std::int64_t h = 0; h < heads(); ++h) {
          for (std::int64_t d = 0; d < n; ++d)
            ref::store_code(t.row(r, h), c.x, d, t.byte_stride(),
                            static_cast<std::uint32_t>(bits(c.x) > 8 ? ref::encode(c.x, normal(random))
                                                                     : (r == 0 ? static_cast<std::uint64_t>(d) : random())));
        }
      }
      return;
    }
    if (c.every_code) {
      const std::vector<double> values = values_around_codes(c.out);
      for (std::int64_t r = 0; r < c.rows; ++r) {
        for (std::int64_t d = 0; d < n; ++d) t.set(r, 0, d, values[static_cast<std::size_t>(r * n + d) % values.size()]);
      }
      return;
    }
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t h = 0; h < heads(); ++h) {
        for (std::int64_t d = 0; d < n; ++d) {
          double v = normal(random);
          if (c.odd_values) {
            const double odd[] = {0, INFINITY, -INFINITY, NAN, 1e-30, -3e4, 87, -104, -200};
            const std::uint64_t kind = random() % 27;
            if (kind < std::size(odd)) v = odd[kind];
          }
          t.set(r, h, d, v);
        }
      }
    }
  }

  void make_scales() {
    if (c.scale == QuantScale::none) return;
    const bool f32 = c.scale == QuantScale::tensor || c.scale == QuantScale::token || c.scale == QuantScale::tile ||
                     (c.scale == QuantScale::block && bits(code_type()) == 8);
    RowsCase shape = c;
    if (c.scale == QuantScale::tile) shape.rows = (c.rows + 127) / 128;
    const std::int64_t blocks = block() > 0 ? (c.dim + block() - 1) / block() : 1;
    if (c.scale == QuantScale::tensor) shape.rows = 1, shape.heads = 0;
    if (c.swizzled) shape.rows = (c.rows + 127) / 128 * 128, shape.heads = 0;
    scales = RowsTensor(f32 ? DType::f32 : DType::u8, shape, c.swizzled ? (blocks + 3) / 4 * 4 : blocks, RowsLayout::dense);
    if (c.scale == QuantScale::tensor) {
      scales.view = TensorView(scales.view.data, DType::f32, {1});
      *static_cast<float*>(scales.view.data) = c.every_code ? 1.0F : 0.013F;
    } else if (c.scale == QuantScale::token) {
      scales.view =
          c.heads > 0 ? TensorView(scales.view.data, DType::f32, {c.rows, c.heads}) : TensorView(scales.view.data, DType::f32, {c.rows});
    }
    if (c.op != RowsOp::dequantize) return;
    std::mt19937_64 random(3);
    auto* all = reinterpret_cast<std::uint8_t*>(scales.view.data);
    const std::int64_t count = scales.view.numel();
    for (std::int64_t i = 0; i < count; ++i) {
      if (f32) {
        reinterpret_cast<float*>(all)[i] = std::exp2(static_cast<float>(random() % 17) - 8) * 1.1F;
      } else {
        all[i] = static_cast<std::uint8_t>(code_type() == DType::nvfp4 ? random() % 127 : 100 + random() % 50);
      }
    }
  }

  /// What the operator must give.
  void work_out() {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t h = 0; h < heads(); ++h) {
        ref::Values row(static_cast<std::size_t>(c.dim)), w(row.size(), 1.0), b(row.size(), 0.0);
        for (std::int64_t d = 0; d < c.dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          const std::int64_t weight_head = c.weight_per_head ? h : 0;
          if (!weight.block.empty()) w[at] = read_vector(weight, weight_head, d) + static_cast<double>(c.weight_offset);
          if (!bias.block.empty()) b[at] = read_vector(bias, weight_head, d);
          if (activates()) {
            const double gate = c.interleaved ? x.value(r, h, 2 * d) : x.value(r, h, d);
            const double up = c.separate_up ? second.value(r, h, d) : (c.interleaved ? x.value(r, h, 2 * d + 1) : x.value(r, h, c.dim + d));
            row[at] = ref::activate(c.activation, gate, up, 1.702F, 7.0);
          } else {
            row[at] = x.value(r, h, d) + (c.residual ? second.value(r, h, d) : 0.0);
            if (c.op == RowsOp::dequantize && c.scale != QuantScale::none) row[at] *= stored_scale(r, h, d);
          }
        }
        sums.push_back(row);
        if (c.op == RowsOp::rms_norm) row = ref::rms_norm(row, w, 1e-6F);
        if (c.op == RowsOp::layer_norm) row = ref::layer_norm(row, w, b, 1e-6F);
        expected.push_back(row);
      }
    }
  }

  static double read_vector(const RowsTensor& t, std::int64_t head, std::int64_t d) {
    const std::int64_t at = (t.view.rank == 2 ? head * t.view.strides[0] : 0) + d;
    const std::uint32_t code = ref::load_code(static_cast<std::byte*>(t.view.data), t.view.dtype, at, bits(t.view.dtype) / 8);
    return t.view.dtype == DType::f32 ? static_cast<double>(std::bit_cast<float>(code)) : ref::decode(t.view.dtype, code);
  }

  Quantization quantization() const {
    return {.scale = c.scale, .scales = scales.view, .global_scale = c.global_scale, .swizzled = c.swizzled};
  }
  /// x's first half where an activation is in place.
  TensorView out_view() const {
    if (!c.in_place) return out.view;
    TensorView v = x.view;
    v.shape[static_cast<std::size_t>(v.rank - 1)] = c.dim;
    return v;
  }
  NormArgs norm_args() const {
    NormArgs a;
    a.x = x.view;
    a.weight = weight.view;
    a.bias = bias.view;
    if (c.residual) a.residual = second.view;
    if (c.residual_out) a.residual_out = residual_out.view;
    a.out = out_view();
    a.quantization = quantization();
    a.weight_offset = c.weight_offset;
    return a;
  }
  ActivationArgs activation_args() const {
    ActivationArgs a;
    a.x = x.view;
    if (c.separate_up) a.up = second.view;
    a.interleaved = c.interleaved;
    a.out = out_view();
    a.quantization = quantization();
    return a;
  }
  /// All tensors, to be moved to a device and back.
  std::vector<RowsTensor*> tensors() {
    std::vector<RowsTensor*> all;
    for (RowsTensor* t : {&x, &second, &weight, &bias, &residual_out, &out, &scales}) {
      if (!t->block.empty()) all.push_back(t);
    }
    return all;
  }
  rows::Launch describe(Device device) {
    for (RowsTensor* t : tensors()) t->view.device = device;
    switch (c.op) {
      case RowsOp::activate: return describe_activation(device, c.activation, activation_args());
      case RowsOp::quantize: return describe_quantize(device, x.view, out_view(), quantization());
      case RowsOp::dequantize: return describe_dequantize(device, x.view, out_view(), quantization());
      case RowsOp::layer_norm: return describe_norm("layer_norm", device, abi::Norm::layer, norm_args());
      default: return describe_norm("rms_norm", device, abi::Norm::rms, norm_args());
    }
  }
  void run(const Context& context, void* stream = nullptr) {
    switch (c.op) {
      case RowsOp::activate: return activate(context, c.activation, activation_args(), stream);
      case RowsOp::quantize: return quantize(context, x.view, out_view(), quantization(), stream);
      case RowsOp::dequantize: return dequantize(context, x.view, out_view(), quantization(), stream);
      case RowsOp::layer_norm: return layer_norm(context, norm_args(), stream);
      default: return rms_norm(context, norm_args(), stream);
    }
  }

  /// The factor of a code as stored.
  double stored_scale(std::int64_t r, std::int64_t h, std::int64_t d) const {
    const auto* base = static_cast<const std::byte*>(scales.view.data);
    const double global = static_cast<double>(c.global_scale);
    const auto f32_at = [&](std::int64_t i) {
      float f;
      std::memcpy(&f, base + 4 * i, 4);
      return static_cast<double>(f) * global;
    };
    if (c.scale == QuantScale::tensor) return f32_at(0);
    if (c.scale == QuantScale::tile) return f32_at(r / 128 * ((c.dim + 127) / 128) + d / 128);
    if (c.scale == QuantScale::token) return f32_at(r * heads() + h);
    const std::int64_t blocks = (c.dim + block() - 1) / block();
    const std::int64_t column = d / block();
    if (bits(code_type()) == 8 && c.scale == QuantScale::block) return f32_at((r * heads() + h) * blocks + column);
    std::int64_t at = (r * heads() + h) * blocks + column;
    if (c.swizzled) at = (r / 128 * ((blocks + 3) / 4) + column / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + column % 4;
    const auto code = static_cast<std::uint32_t>(base[at]);
    return global * (code_type() == DType::nvfp4 ? ref::decode(DType::e4m3, code) : ref::decode_e8m0(code));
  }

  /// The rule of computed scales.
  double ruled_scale(std::int64_t r, const ref::Values& row, std::int64_t d) const {
    const std::int64_t width = block() > 0 ? block() : c.dim;
    double most = 0;
    if (c.scale == QuantScale::tile) {
      for (std::int64_t other = r / 128 * 128; other < std::min(c.rows, r / 128 * 128 + 128); ++other) {
        for (std::int64_t i = d / 128 * 128; i < std::min(c.dim, d / 128 * 128 + 128); ++i) {
          const double v = std::fabs(expected[static_cast<std::size_t>(other)][static_cast<std::size_t>(i)]);
          if (std::isfinite(v)) most = std::max(most, v);
        }
      }
    }
    for (std::int64_t i = d / width * width; i < std::min(c.dim, d / width * width + width); ++i) {
      const double v = std::fabs(row[static_cast<std::size_t>(i)]);
      if (std::isfinite(v)) most = std::max(most, v);
    }
    const double global = static_cast<double>(c.global_scale);
    if (c.out == DType::nvfp4) return global * ref::decode(DType::e4m3, ref::encode(DType::e4m3, most / 6 / global));
    const bool powers = c.scale == QuantScale::mx || c.out == DType::mxfp4;
    if (most == 0) return global;
    const int exponent = c.out == DType::e4m3 ? 8 : (c.out == DType::e5m2 ? 15 : 2);
    if (powers) return global * std::exp2(std::floor(std::log2(most / global)) - exponent);
    return most / ref::largest(c.out);
  }

  /// Error that f32 arithmetic may make, beside the output's rounding.
  double slack(const ref::Values& row) const {
    double most = 0;
    for (const double v : row) most = std::isfinite(v) ? std::max(most, std::fabs(v)) : most;
    return most * 4e-6;
  }

  testing::AssertionResult matches() const {
    const RowsTensor& result = c.in_place ? x : out;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t h = 0; h < heads(); ++h) {
        const auto index = static_cast<std::size_t>(r * heads() + h);
        const ref::Values& row = expected[index];
        for (std::int64_t d = 0; d < c.dim; ++d) {
          const double want = row[static_cast<std::size_t>(d)];
          const auto place = [&] { return testing::AssertionFailure() << c.name << " [" << r << ", " << h << ", " << d << "]: "; };
          if (c.residual_out) {
            const double sum = sums[index][static_cast<std::size_t>(d)];
            const double stored = residual_out.value(r, h, d);
            const double rounded =
                c.x == DType::f32 ? sum : ref::decode(c.x, ref::encode(c.x, static_cast<double>(static_cast<float>(sum))));
            if (std::isnan(sum) ? !std::isnan(stored) : !(std::fabs(stored - rounded) <= std::fabs(sum) * 1e-7) && stored != rounded)
              return place() << "residual_out " << stored << ", want " << rounded;
          }
          double scale = 1;
          if (c.scale != QuantScale::none && c.op != RowsOp::dequantize) {
            scale = stored_scale(r, h, d);
            if (c.scale != QuantScale::tensor) {
              const double rule = ruled_scale(r, row, d);
              // A value on the border of two scales may go to either.
              const double step = c.out == DType::nvfp4 ? rule / 8 + 1e-30 : (block() == 32 ? rule : rule * 1e-5);
              if (!(std::fabs(scale - rule) <= step)) return place() << "scale " << scale << ", want " << rule;
            }
          }
          const double got = result.value(r, h, d) * scale;
          if (std::isnan(want)) {
            const bool has_nan = c.out != DType::i8 && bits(c.out) != 4;
            if (has_nan ? !std::isnan(got) && !(activates() && std::isinf(got)) : got != 0)
              return place() << got << ", want NaN or its code";
            continue;
          }
          // Overflows and underflows on the way decide between infinity and NaN.
          if (activates() && !std::isfinite(want) && !std::isfinite(got)) continue;
          const double nearest =
              scale == 0 ? 0 : (c.out == DType::f32 ? want : ref::decode(c.out, ref::encode(c.out, want / scale)) * scale);
          if (got == nearest) continue;
          if (!(std::fabs(got - want) <= std::fabs(nearest - want) + slack(row)))
            return place() << got << ", want " << want << " (" << nearest << ")";
        }
      }
    }
    return only_places_written(result);
  }

  /// Bytes that belong to no element are as they were.
  testing::AssertionResult only_places_written(const RowsTensor& result) const {
    if (c.in_place) return testing::AssertionSuccess();
    RowsTensor copy = result;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t h = 0; h < heads(); ++h) {
        for (std::int64_t d = 0; d < c.dim; ++d) {
          if (bits(c.out) == 4) {
            copy.row(r, h)[d / 2] = std::byte{0xff};
          } else {
            ref::store_code(copy.row(r, h), c.out, d, copy.byte_stride(), 0xffffffffU);
          }
        }
      }
    }
    const std::byte* p = copy.aligned();
    for (std::int64_t i = 0; i < copy.size(); ++i) {
      if (p[i] != std::byte{0xff}) return testing::AssertionFailure() << c.name << ": byte " << i << " outside of the rows was written";
    }
    return testing::AssertionSuccess();
  }
};

/// Small cases that every backend and test runs.
inline std::vector<RowsCase> rows_cases() {
  using enum RowsOp;
  using enum RowsLayout;
  constexpr DType f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16;
  std::vector<RowsCase> all = {
      {.name = "rms_bf16", .rows = 9},
      {.name = "rms_f16_f32_weight", .x = f16, .weight = f32, .out = f16, .dim = 512},
      {.name = "rms_f32", .x = f32, .weight = f32, .out = f32, .rows = 3, .dim = 1024},
      {.name = "rms_bf16_to_f32", .out = f32, .dim = 64},
      {.name = "rms_f32_to_bf16", .x = f32, .weight = f32, .dim = 128},
      {.name = "rms_no_weight", .dim = 128, .has_weight = false},
      {.name = "rms_hidden_2880", .rows = 3, .dim = 2880},
      {.name = "rms_hidden_4096", .rows = 3, .dim = 4096, .residual = true, .residual_out = true},
      {.name = "rms_gemma", .rows = 4, .dim = 2304, .layout = padded, .residual = true, .weight_offset = 1},
      {.name = "rms_dim_1", .dim = 1},
      {.name = "rms_dim_7", .dim = 7},
      {.name = "rms_dim_1037_odd", .rows = 4, .dim = 1037, .layout = odd},
      {.name = "rms_strided", .dim = 96, .layout = strided},  // H16
      {.name = "rms_in_place", .rows = 6, .dim = 320, .in_place = true},
      {.name = "rms_odd_values", .rows = 12, .dim = 72, .odd_values = true},
      {.name = "rms_large_values", .x = f32, .weight = f32, .out = f32, .dim = 256, .spread = 1e4F},
      {.name = "rms_qk_heads", .rows = 7, .heads = 5, .dim = 128},
      {.name = "rms_heads_weight_each", .rows = 3, .heads = 4, .dim = 64, .layout = padded, .weight_per_head = true},
      {.name = "rms_heads_in_place_odd", .rows = 5, .heads = 3, .dim = 40, .layout = odd, .in_place = true},
      {.name = "layer_bf16", .op = layer_norm, .dim = 768, .has_bias = true},
      {.name = "layer_f32", .op = layer_norm, .x = f32, .weight = f32, .out = f32, .rows = 4, .dim = 1600, .has_bias = true, .shift = 30},
      {.name = "layer_plain", .op = layer_norm, .dim = 100, .has_weight = false},
      {.name = "layer_odd",
       .op = layer_norm,
       .x = f16,
       .weight = f16,
       .out = bf16,
       .dim = 333,
       .layout = odd,
       .has_bias = true,
       .residual = true,
       .residual_out = true},
      {.name = "layer_e4m3_token",
       .op = layer_norm,
       .out = DType::e4m3,
       .rows = 3,
       .dim = 1600,
       .has_bias = true,
       .scale = QuantScale::token},
      {.name = "rms_e4m3_tensor", .out = DType::e4m3, .dim = 512, .scale = QuantScale::tensor},
      {.name = "rms_e4m3_token",
       .out = DType::e4m3,
       .rows = 3,
       .dim = 4096,
       .residual = true,
       .residual_out = true,
       .scale = QuantScale::token},
      {.name = "rms_i8_token_odd", .out = DType::i8, .dim = 200, .layout = odd, .scale = QuantScale::token, .global_scale = 0.5F},
      {.name = "rms_e5m2_token_heads", .out = DType::e5m2, .rows = 4, .heads = 3, .dim = 128, .scale = QuantScale::token},
      {.name = "rms_nvfp4", .out = DType::nvfp4, .rows = 5, .dim = 512, .scale = QuantScale::block, .global_scale = 0.01F},
      {.name = "rms_nvfp4_swizzled", .out = DType::nvfp4, .rows = 133, .dim = 144, .scale = QuantScale::block, .swizzled = true},
      {.name = "rms_mxfp4_f32", .x = f32, .weight = f32, .out = DType::mxfp4, .dim = 224, .scale = QuantScale::block},
      {.name = "rms_e4m3_block", .out = DType::e4m3, .dim = 1280, .scale = QuantScale::block},
      {.name = "rms_mx_e4m3", .x = f16, .weight = f16, .out = DType::e4m3, .dim = 160, .scale = QuantScale::mx},
      {.name = "rms_nvfp4_dim_21", .out = DType::nvfp4, .dim = 21, .layout = odd, .scale = QuantScale::block},
      {.name = "silu_bf16", .op = activate, .rows = 4, .dim = 1376, .spread = 3},
      {.name = "silu_f32", .op = activate, .x = f32, .out = f32, .dim = 260, .spread = 8},
      {.name = "silu_odd_values", .op = activate, .rows = 6, .dim = 128, .odd_values = true},
      {.name = "silu_in_place", .op = activate, .dim = 256, .in_place = true},
      {.name = "silu_separate_odd", .op = activate, .x = f16, .out = bf16, .dim = 77, .layout = odd, .separate_up = true},
      {.name = "gelu_bf16", .op = activate, .dim = 512, .activation = Activation::gelu, .spread = 3},
      {.name = "gelu_f32", .op = activate, .x = f32, .out = f32, .dim = 300, .activation = Activation::gelu, .spread = 4},
      {.name = "gelu_tanh_bf16", .op = activate, .dim = 704, .layout = padded, .activation = Activation::gelu_tanh, .spread = 3},
      {.name = "gelu_tanh_f32", .op = activate, .x = f32, .out = f32, .dim = 64, .activation = Activation::gelu_tanh, .spread = 3},
      {.name = "swigluoai", .op = activate, .dim = 384, .activation = Activation::swigluoai, .interleaved = true, .spread = 5},
      {.name = "swigluoai_halves", .op = activate, .x = f32, .out = f32, .dim = 50, .activation = Activation::swigluoai, .spread = 5},
      {.name = "swigluoai_odd",
       .op = activate,
       .dim = 45,
       .layout = odd,
       .activation = Activation::swigluoai,
       .interleaved = true,
       .spread = 5},
      {.name = "multiply", .op = activate, .x = f16, .out = f16, .dim = 1024, .activation = Activation::multiply},
      {.name = "silu_e4m3_tensor", .op = activate, .out = DType::e4m3, .dim = 640, .scale = QuantScale::tensor},
      {.name = "silu_e4m3_block", .op = activate, .out = DType::e4m3, .dim = 2048, .scale = QuantScale::block},
      {.name = "silu_e4m3_token", .op = activate, .out = DType::e4m3, .rows = 3, .dim = 2816, .scale = QuantScale::token},
      {.name = "silu_nvfp4",
       .op = activate,
       .out = DType::nvfp4,
       .rows = 3,
       .dim = 1056,
       .scale = QuantScale::block,
       .global_scale = 0.02F},
      {.name = "silu_mxfp4_odd", .op = activate, .out = DType::mxfp4, .dim = 71, .layout = odd, .scale = QuantScale::block},
      {.name = "swigluoai_mx",
       .op = activate,
       .out = DType::e5m2,
       .dim = 128,
       .activation = Activation::swigluoai,
       .interleaved = true,
       .scale = QuantScale::mx},
      {.name = "codes_e4m3",
       .op = quantize,
       .x = f32,
       .out = DType::e4m3,
       .rows = 4,
       .dim = 400,
       .scale = QuantScale::tensor,
       .every_code = true},
      {.name = "codes_e5m2",
       .op = quantize,
       .x = f32,
       .out = DType::e5m2,
       .rows = 4,
       .dim = 400,
       .scale = QuantScale::tensor,
       .every_code = true},
      {.name = "codes_i8",
       .op = quantize,
       .x = f32,
       .out = DType::i8,
       .rows = 4,
       .dim = 401,
       .layout = odd,
       .scale = QuantScale::tensor,
       .every_code = true},
      {.name = "quantize_e2m1_codes",
       .op = quantize,
       .x = f32,
       .out = DType::nvfp4,
       .rows = 3,
       .dim = 64,
       .scale = QuantScale::block,
       .every_code = true},
      {.name = "quantize_e4m3_token", .op = quantize, .out = DType::e4m3, .dim = 1032, .scale = QuantScale::token, .odd_values = true},
      {.name = "quantize_e4m3_block", .op = quantize, .out = DType::e4m3, .rows = 3, .dim = 1100, .scale = QuantScale::block},
      {.name = "quantize_e4m3_tile", .op = quantize, .out = DType::e4m3, .rows = 130, .dim = 384, .scale = QuantScale::tile},
      {.name = "quantize_i8_tile_odd",
       .op = quantize,
       .x = f32,
       .out = DType::i8,
       .rows = 77,
       .dim = 201,
       .layout = odd,
       .scale = QuantScale::tile,
       .global_scale = 2},
      {.name = "quantize_nvfp4",
       .op = quantize,
       .out = DType::nvfp4,
       .rows = 4,
       .heads = 2,
       .dim = 128,
       .scale = QuantScale::block,
       .global_scale = 0.003F,
       .odd_values = true},
      {.name = "quantize_nvfp4_swizzled",
       .op = quantize,
       .x = f16,
       .out = DType::nvfp4,
       .rows = 150,
       .dim = 96,
       .scale = QuantScale::block,
       .swizzled = true},
      {.name = "quantize_mxfp4", .op = quantize, .out = DType::mxfp4, .rows = 6, .dim = 288, .scale = QuantScale::block, .spread = 1e-3F},
      {.name = "quantize_mx_e4m3_swizzled",
       .op = quantize,
       .out = DType::e4m3,
       .rows = 9,
       .dim = 320,
       .scale = QuantScale::mx,
       .swizzled = true},
      {.name = "quantize_mx_e5m2",
       .op = quantize,
       .x = f32,
       .out = DType::e5m2,
       .rows = 3,
       .dim = 96,
       .scale = QuantScale::mx,
       .spread = 1e20F},
      {.name = "quantize_tiny_blocks",
       .op = quantize,
       .x = f32,
       .out = DType::e4m3,
       .rows = 3,
       .dim = 256,
       .scale = QuantScale::block,
       .spread = 1e-23F},
      {.name = "convert_f32_to_f16", .op = quantize, .x = f32, .out = f16, .dim = 333, .layout = padded, .odd_values = true},
      {.name = "dequantize_e4m3_tensor", .op = dequantize, .x = DType::e4m3, .dim = 256, .scale = QuantScale::tensor},
      {.name = "dequantize_e5m2_token",
       .op = dequantize,
       .x = DType::e5m2,
       .out = f32,
       .rows = 4,
       .heads = 3,
       .dim = 256,
       .scale = QuantScale::token},
      {.name = "dequantize_i8_block",
       .op = dequantize,
       .x = DType::i8,
       .out = f32,
       .dim = 520,
       .scale = QuantScale::block,
       .global_scale = 0.5F},
      {.name = "dequantize_e4m3_tile", .op = dequantize, .x = DType::e4m3, .rows = 140, .dim = 264, .scale = QuantScale::tile},
      {.name = "dequantize_nvfp4",
       .op = dequantize,
       .x = DType::nvfp4,
       .out = f16,
       .rows = 4,
       .dim = 512,
       .scale = QuantScale::block,
       .global_scale = 0.01F},
      {.name = "dequantize_nvfp4_swizzled",
       .op = dequantize,
       .x = DType::nvfp4,
       .rows = 133,
       .dim = 96,
       .scale = QuantScale::block,
       .swizzled = true},
      {.name = "dequantize_mxfp4_odd",
       .op = dequantize,
       .x = DType::mxfp4,
       .out = f32,
       .dim = 71,
       .layout = odd,
       .scale = QuantScale::block},
      {.name = "dequantize_mx", .op = dequantize, .x = DType::e4m3, .out = f32, .dim = 99, .layout = odd, .scale = QuantScale::mx},
      {.name = "no_rows", .rows = 0},
  };
  return all;
}

}  // namespace girih::cases
