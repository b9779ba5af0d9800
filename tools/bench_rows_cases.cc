// See bench_rows.h.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "base/math.h"
#include "base/numeric.h"
#include "cuda/runtime.h"
#include "girih/activation.h"
#include "girih/norm.h"
#include "girih/rope.h"
#include "tools/bench_rows.h"

namespace girih::tools {
namespace {

constexpr std::int64_t kPatternElements = 1 << 16;

/// Normally distributed elements of a type, or any codes but NaN, tiled over a tensor.
std::vector<std::byte> make_pattern(DType type) {
  std::vector<std::byte> pattern(static_cast<std::size_t>(bytes(type, kPatternElements)));
  if (!is_numeric(type)) return pattern;
  std::mt19937_64 random(1);
  if (bits(type) < 16) {
    for (std::byte& b : pattern) b = static_cast<std::byte>(random() & 0xbb);  // an exponent bit is 0
    return pattern;
  }
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kPatternElements; ++i) store_element(type, pattern.data(), i, normal(random));
  return pattern;
}

constexpr std::int64_t kRowCounts[] = {1, 64, 2048, 16384};

struct NormCase {
  std::string name;
  std::int64_t heads = 0, dim = 0;
  bool add = false, layer = false;
  DType out = DType::bf16;
  QuantScale scale = QuantScale::none;
};

double bytes_of_scales(DType out, QuantScale scale, std::int64_t rows, std::int64_t dim) {
  switch (scale) {
    case QuantScale::token: return 4.0 * static_cast<double>(rows);
    case QuantScale::block:
      return static_cast<double>(rows) *
             (scale_block(out) > 0 ? static_cast<double>(ceil_div(dim, scale_block(out))) : 4.0 * static_cast<double>(ceil_div(dim, 128)));
    case QuantScale::mx: return static_cast<double>(rows * ceil_div(dim, 32));
    default: return 0;
  }
}

}  // namespace

Quantization make_quantization(BenchMemory& m, DType out, QuantScale scale, std::int64_t rows, std::int64_t dim) {
  Quantization q;
  q.scale = scale;
  switch (scale) {
    case QuantScale::none: break;
    case QuantScale::tensor: {
      q.scales = m.tensor(DType::f32, {1});
      const float one = 0.02F;
      if (m.context().device().kind == DeviceKind::cpu) {
        std::memcpy(q.scales.data, &one, sizeof(one));
      } else {
        const cuda::CurrentDevice current(*m.context().cuda().device);
        const cuda::Driver& driver = m.context().cuda().device->driver();
        driver.copy_to_device(reinterpret_cast<cuda::Pointer>(q.scales.data), &one, sizeof(one), nullptr);
        driver.synchronize(nullptr);
      }
      break;
    }
    case QuantScale::token: q.scales = m.tensor(DType::f32, {rows}); break;
    case QuantScale::block:
      q.scales = scale_block(out) > 0 ? m.tensor(DType::u8, {rows, ceil_div(dim, scale_block(out))})
                                      : m.tensor(DType::f32, {rows, ceil_div(dim, 128)});
      break;
    case QuantScale::mx: q.scales = m.tensor(DType::u8, {rows, ceil_div(dim, 32)}); break;
    case QuantScale::tile: q.scales = m.tensor(DType::f32, {ceil_div(rows, 128), ceil_div(dim, 128)}); break;
  }
  return q;
}

namespace {

void add_norms(std::vector<RowsBenchCase>& all) {
  const NormCase cases[] = {
      {.name = "rms_4096", .dim = 4096},
      {.name = "rms_8192", .dim = 8192},
      {.name = "rms_2880", .dim = 2880},
      {.name = "add_rms_4096", .dim = 4096, .add = true},
      {.name = "add_rms_8192", .dim = 8192, .add = true},
      {.name = "qk_rms_40x128", .heads = 40, .dim = 128},
      {.name = "layer_4096", .dim = 4096, .layer = true},
      {.name = "rms_4096_e4m3_tensor", .dim = 4096, .out = DType::e4m3, .scale = QuantScale::tensor},
      {.name = "rms_4096_e4m3_token", .dim = 4096, .out = DType::e4m3, .scale = QuantScale::token},
      {.name = "rms_4096_nvfp4", .dim = 4096, .out = DType::nvfp4, .scale = QuantScale::block},
      {.name = "add_rms_4096_e4m3_token", .dim = 4096, .add = true, .out = DType::e4m3, .scale = QuantScale::token},
  };
  for (const NormCase& c : cases) {
    for (const std::int64_t rows : kRowCounts) {
      const std::int64_t elements = rows * std::max<std::int64_t>(c.heads, 1) * c.dim;
      const double moved = static_cast<double>(elements) * (c.add ? 6 : 2) + static_cast<double>(bytes(c.out, elements)) +
                           2.0 * static_cast<double>(c.dim) + bytes_of_scales(c.out, c.scale, rows, c.dim);
      all.push_back({"norm", fmt::format("{}_r{}", c.name, rows), rows, moved, [c, rows](BenchMemory& m) -> BenchCall {
                       NormArgs a;
                       const auto make = [&](DType type) {
                         return c.heads > 0 ? m.tensor(type, {rows, c.heads, c.dim}) : m.tensor(type, {rows, c.dim});
                       };
                       a.x = make(DType::bf16);
                       a.weight = m.tensor(DType::bf16, {c.dim});
                       if (c.layer) a.bias = m.tensor(DType::bf16, {c.dim});
                       if (c.add) a.residual = a.residual_out = make(DType::bf16);
                       a.out = make(c.out);
                       a.quantization = make_quantization(m, c.out, c.scale, rows, c.dim);
                       return [&m, a, layer = c.layer](void* stream) {
                         layer ? layer_norm(m.context(), a, stream) : rms_norm(m.context(), a, stream);
                       };
                     }});
    }
  }
}

struct ActivationCase {
  std::string name;
  std::int64_t dim = 0;
  Activation activation = Activation::silu;
  bool interleaved = false;
  DType out = DType::bf16;
  QuantScale scale = QuantScale::none;
};

void add_activations(std::vector<RowsBenchCase>& all) {
  const ActivationCase cases[] = {
      {.name = "silu_14336", .dim = 14336},
      {.name = "silu_4096", .dim = 4096},
      {.name = "gelu_14336", .dim = 14336, .activation = Activation::gelu},
      {.name = "gelu_tanh_14336", .dim = 14336, .activation = Activation::gelu_tanh},
      {.name = "swigluoai_2880", .dim = 2880, .activation = Activation::swigluoai, .interleaved = true},
      {.name = "silu_14336_e4m3_tensor", .dim = 14336, .out = DType::e4m3, .scale = QuantScale::tensor},
      {.name = "silu_14336_e4m3_block", .dim = 14336, .out = DType::e4m3, .scale = QuantScale::block},
      {.name = "silu_14336_nvfp4", .dim = 14336, .out = DType::nvfp4, .scale = QuantScale::block},
  };
  for (const ActivationCase& c : cases) {
    for (const std::int64_t rows : kRowCounts) {
      const double moved = 4.0 * static_cast<double>(rows * c.dim) + static_cast<double>(bytes(c.out, rows * c.dim)) +
                           bytes_of_scales(c.out, c.scale, rows, c.dim);
      all.push_back({"activation", fmt::format("{}_r{}", c.name, rows), rows, moved, [c, rows](BenchMemory& m) -> BenchCall {
                       ActivationArgs a;
                       a.x = m.tensor(DType::bf16, {rows, 2 * c.dim});
                       a.interleaved = c.interleaved;
                       a.out = m.tensor(c.out, {rows, c.dim});
                       a.quantization = make_quantization(m, c.out, c.scale, rows, c.dim);
                       return [&m, a, activation = c.activation](void* stream) { activate(m.context(), activation, a, stream); };
                     }});
    }
  }
}

struct RopeCase {
  std::string name;
  std::int64_t q_heads = 32, k_heads = 8, dim = 128;
  bool interleaved = false, norm = false, append = false;
  DType cache = DType::bf16;
  bool mla = false;
};

void add_ropes(std::vector<RowsBenchCase>& all) {
  const RopeCase cases[] = {
      {.name = "rope_32x8x128"},
      {.name = "rope_interleaved_32x8x128", .interleaved = true},
      {.name = "rope_qk_norm_32x8x128", .norm = true},
      {.name = "rope_append_32x8x128", .append = true},
      {.name = "rope_append_e4m3_32x8x128", .append = true, .cache = DType::e4m3},
      {.name = "rope_qk_norm_append_32x8x128", .norm = true, .append = true},
      {.name = "mla_rope_append_128x64", .q_heads = 128, .k_heads = 1, .dim = 64, .interleaved = true, .append = true, .mla = true},
  };
  for (const RopeCase& c : cases) {
    for (const std::int64_t rows : kRowCounts) {
      const double q = static_cast<double>(rows * c.q_heads * c.dim), k = static_cast<double>(rows * c.k_heads * c.dim);
      const double latent = c.mla ? static_cast<double>(rows * 512) : 0;
      const double out = static_cast<double>(bits(c.cache)) / 8;
      const double moved =
          q * 4 + k * (2 + out) + (c.append && !c.mla ? k * (2 + out) : 0) + latent * (2 + out) + static_cast<double>(rows * c.dim) * 4;
      all.push_back({"rope", fmt::format("{}_r{}", c.name, rows), rows, moved, [c, rows](BenchMemory& m) -> BenchCall {
                       RopeAppendArgs a;
                       RopeArgs& r = a.rope;
                       r.q = r.q_out = m.tensor(DType::bf16, {rows, c.q_heads, c.dim});
                       // Norms in place, again and again, would end in subnormal numbers.
                       if (c.norm) r.q_out = m.tensor(DType::bf16, {rows, c.q_heads, c.dim});
                       r.k = m.tensor(DType::bf16, {rows, c.k_heads, c.dim});
                       r.cos_sin = m.tensor(DType::f32, {rows, c.dim});
                       r.interleaved = c.interleaved;
                       if (c.norm) r.q_weight = r.k_weight = m.tensor(DType::bf16, {c.dim});
                       if (!c.append) {
                         r.k_out = c.norm ? m.tensor(DType::bf16, {rows, c.k_heads, c.dim}) : r.k;
                         std::vector<std::int64_t> positions(static_cast<std::size_t>(rows));
                         std::iota(positions.begin(), positions.end(), 0);
                         r.positions = m.indices(positions);
                         return [&m, r](void* stream) { rope(m.context(), r, stream); };
                       }
                       const auto setup = std::make_shared<AppendSetup>(m, rows, 1);
                       KvStore store = setup->store();
                       if (c.mla) {
                         a.k_nope = m.tensor(DType::bf16, {rows, 1, 512});
                         store.k = setup->plane(m, c.cache, 1, 512);
                         store.k_rope = setup->plane(m, c.cache, 1, c.dim);
                       } else {
                         a.v = m.tensor(DType::bf16, {rows, c.k_heads, c.dim});
                         store.k = setup->plane(m, c.cache, c.k_heads, c.dim);
                         store.v = setup->plane(m, c.cache, c.k_heads, c.dim);
                       }
                       return [&m, a, setup, store](void* stream) {
                         if (setup->on_device != nullptr)
                           return rope_append(m.context(), *setup->on_device, store, setup->pages_on_device(), a, 0, stream);
                         rope_append(m.context(), store, setup->batch(), a, stream);
                       };
                     }});
    }
  }
}

struct ConversionCase {
  std::string name;
  DType type;
  QuantScale scale;
  bool back = false;  // dequantised
};

void add_conversions(std::vector<RowsBenchCase>& all) {
  constexpr std::int64_t kDim = 4096;
  const ConversionCase cases[] = {
      {"e4m3_tensor", DType::e4m3, QuantScale::tensor},
      {"e4m3_token", DType::e4m3, QuantScale::token},
      {"e4m3_block", DType::e4m3, QuantScale::block},
      {"e4m3_tile", DType::e4m3, QuantScale::tile},
      {"i8_token", DType::i8, QuantScale::token},
      {"nvfp4", DType::nvfp4, QuantScale::block},
      {"mxfp4", DType::mxfp4, QuantScale::block},
      {"mx_e4m3", DType::e4m3, QuantScale::mx},
      {"from_e4m3_block", DType::e4m3, QuantScale::block, true},
      {"from_nvfp4", DType::nvfp4, QuantScale::block, true},
  };
  for (const ConversionCase& c : cases) {
    for (const std::int64_t rows : kRowCounts) {
      const double moved = 2.0 * static_cast<double>(rows * kDim) + static_cast<double>(bytes(c.type, rows * kDim)) +
                           bytes_of_scales(c.type, c.scale, rows, kDim);
      all.push_back({"quant", fmt::format("{}_r{}", c.name, rows), rows, moved, [c, rows](BenchMemory& m) -> BenchCall {
                       const TensorView numbers = m.tensor(DType::bf16, {rows, kDim});
                       const TensorView codes = m.tensor(c.type, {rows, kDim});
                       const Quantization q = make_quantization(m, c.type, c.scale, rows, kDim);
                       return [&m, numbers, codes, q, back = c.back](void* stream) {
                         back ? dequantize(m.context(), codes, numbers, q, stream) : quantize(m.context(), numbers, codes, q, stream);
                       };
                     }});
    }
  }
}

}  // namespace

TensorView BenchMemory::indices(const std::vector<std::int64_t>& values) {
  TensorView view = tensor(DType::i64, {std::ssize(values)});
  if (context_.device().kind == DeviceKind::cpu) {
    std::memcpy(view.data, values.data(), values.size() * 8);
    return view;
  }
  const cuda::CurrentDevice current(*context_.cuda().device);
  const cuda::Driver& driver = context_.cuda().device->driver();
  driver.copy_to_device(reinterpret_cast<cuda::Pointer>(view.data), values.data(), std::ssize(values) * 8, nullptr);
  driver.synchronize(nullptr);
  return view;
}

TensorView BenchMemory::tensor(DType type, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, type, shape, context_.device());
  const std::int64_t size = std::max<std::int64_t>(bytes(type, view.numel()), 64);
  const std::vector<std::byte> pattern = make_pattern(type);
  const std::int64_t piece = std::ssize(pattern);
  if (context_.device().kind == DeviceKind::cpu) {
    host_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<std::size_t>(round_up(size, 4096)))));
    view.data = host_.back().get();
    for (std::int64_t at = 0; at < size; at += piece)
      std::memcpy(host_.back().get() + at, pattern.data(), static_cast<std::size_t>(std::min(piece, size - at)));
    return view;
  }
  const cuda::CurrentDevice current(*context_.cuda().device);
  const cuda::Driver& driver = context_.cuda().device->driver();
  device_.emplace_back(context_.cuda().device, size);
  const cuda::Pointer base = device_.back().pointer();
  driver.copy_to_device(base, pattern.data(), std::min(piece, size), nullptr);
  driver.synchronize(nullptr);
  for (std::int64_t at = std::min(piece, size); at < size; at *= 2)
    driver.copy_on_device(base + static_cast<cuda::Pointer>(at), base, std::min(at, size - at), nullptr);
  driver.synchronize(nullptr);
  view.data = device_.back().data();
  return view;
}

std::vector<RowsBenchCase> rows_bench_cases(const std::string& op) {
  std::vector<RowsBenchCase> all;
  if (op == "norm") add_norms(all);
  if (op == "activation") add_activations(all);
  if (op == "rope") add_ropes(all);
  if (op == "quant") add_conversions(all);
  if (op == "page") add_page_cases(all);
  return all;
}

}  // namespace girih::tools
