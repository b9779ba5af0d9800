// Conversions on the CPU that are not the pipeline of rows: quantisation by tiles of 128 x 128, and dequantisation.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/math.h"
#include "base/numeric.h"
#include "base/scales.h"
#include "cpu/thread_pool.h"
#include "rows/cpu_floats.h"
#include "rows/cpu_kernels.h"
#include "rows/rows.h"

namespace girih::rows {
namespace {

using abi::Elem;
using abi::Scaling;

constexpr std::int64_t kTile = 128;
constexpr std::int64_t kStrip = 2048;                         // columns of tiles that are done together: in the second cache
constexpr std::int64_t kPiece = 2048;                         // elements at once: a multiple of every block
constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;  // as in cpu.cc

DType type_of(Elem e) { return static_cast<DType>(e); }

/// Workers take equal shares of `count`.
template <typename F>
void share(const Context& context, std::int64_t count, F&& work) {
  cpu::ThreadPool& pool = context.pool();
  const std::int64_t workers = pool.num_workers();
  if (workers == 1 || count == 1) return work(std::int64_t{0}, count);
  pool.parallel([&](int worker) { work(count * worker / workers, count * (worker + 1) / workers); });
}

std::byte* place(const abi::RowTensor& t, Elem e, std::int64_t row, std::int64_t head, std::int64_t d) {
  return reinterpret_cast<std::byte*>(t.data) + row * t.row_stride + head * t.head_stride + (bits_of(e) == 4 ? d / 2 : d * t.dim_stride);
}

/// Elements [d, d + n) as dense memory: themselves, or a copy in `buffer`.
const std::byte* gather(const abi::RowTensor& t, Elem e, std::int64_t row, std::int64_t head, std::int64_t d, std::int64_t n,
                        std::vector<std::byte>& buffer) {
  const std::byte* from = place(t, e, row, head, d);
  const std::int64_t size = bits_of(e) / 8;
  if (bits_of(e) == 4 || t.dim_stride == size) return from;
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(buffer.data() + i * size, from + i * t.dim_stride, static_cast<std::size_t>(size));
  return buffer.data();
}

void scatter(const std::byte* from, std::byte* to, std::int64_t stride, std::int64_t size, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * size, static_cast<std::size_t>(size));
}

float factor_of(const abi::PartConfig& c, const std::byte* scale, float global) {
  if (c.x == Elem::nvfp4) return decode_e4m3(static_cast<std::uint8_t>(*scale)) * global;
  if (c.x == Elem::mxfp4 || c.scaling == Scaling::mx) return decode_e8m0(static_cast<std::uint8_t>(*scale)) * global;
  return load_element<DType::f32>(scale, 0) * global;
}

}  // namespace

void quantize_tiles_on_cpu(const Context& context, const Kernels& k, const Launch& launch) {
  const abi::PartConfig& c = launch.configs[0];
  const abi::RowPart& a = launch.params.parts[0];
  const std::int64_t rows = launch.params.rows;
  const std::int64_t strips = ceil_div(c.dim, kStrip);
  const std::int64_t size = bits_of(c.x) / 8;
  const bool stream = rows * c.dim >= kStreamBytes;
  share(context, ceil_div(rows, kTile) * strips, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::byte> source(kStrip * 4), codes(kStrip);
    Floats most, scales;
    most.enlarge(kStrip / kTile + kPad);
    scales.enlarge(2 * (kStrip / kTile + kPad));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i / strips * kTile;
      const std::int64_t d = i % strips * kStrip;
      const std::int64_t height = std::min(kTile, rows - first);
      const std::int64_t n = std::min<std::int64_t>(kStrip, c.dim - d);
      const auto row = [&](std::int64_t r) { return gather(a.x, c.x, first + r, 0, d, n, source); };
      std::fill_n(most.data(), kStrip / kTile, 0.0F);
      for (std::int64_t r = 0; r < height; ++r) k.raise_largest(c.x, row(r), n, most.data());
      for (std::int64_t t = 0; t < ceil_div(n, kTile); ++t) {
        const ChosenScale chosen = f32_scale(most.data()[t], largest(type_of(c.out)), a.global_scale);
        std::memcpy(a.scales + first / kTile * a.scale_row_stride + (d / kTile + t) * a.scale_block_stride, &chosen.stored, sizeof(float));
        scales.data()[t] = chosen.scale;
      }
      const bool dense = a.out.dim_stride == 1;
      const bool dense_x = a.x.dim_stride == size;
      for (std::int64_t r = 0; r < height; ++r) {
        std::byte* out = place(a.out, c.out, first + r, 0, d);
        const std::byte* next = nullptr;  // the strip beside this one, or below it
        if (dense_x && d + n < c.dim) next = place(a.x, c.x, first + r, 0, d + n);
        if (dense_x && d + n == c.dim && first + kTile + r < rows) next = place(a.x, c.x, first + kTile + r, 0, 0);
        k.store_divided(c.x, c.out, row(r), n, scales.data(), dense ? out : codes.data(), stream && dense, next);
        if (!dense) scatter(codes.data(), out, a.out.dim_stride, 1, n);
      }
    }
    k.flush();
  });
}

void dequantize_on_cpu(const Context& context, const Kernels& k, const Launch& launch) {
  const abi::PartConfig& c = launch.configs[0];
  const abi::RowPart& a = launch.params.parts[0];
  const std::int64_t block = block_of(c.scaling, c.x);
  const std::int64_t out_size = bits_of(c.out) / 8;
  const bool dense = a.out.dim_stride == out_size;
  const bool stream = a.out.data != a.x.data && launch.params.rows * a.heads * c.dim * out_size >= kStreamBytes;
  share(context, launch.params.rows, [&](std::int64_t begin, std::int64_t end) {
    Floats x, factors;
    x.enlarge(kPiece + kPad);
    factors.enlarge(kPiece / 16 + kPad);
    std::vector<std::byte> source(kPiece * 4), packed(kPiece * 4);
    const auto scale_at = [&](std::int64_t row, std::int64_t head, std::int64_t d) {
      const auto* base = reinterpret_cast<const std::byte*>(a.scales);
      switch (c.scaling) {
        case Scaling::none: return 1.0F;
        case Scaling::tensor: break;
        case Scaling::tile: base += row / kTile * a.scale_row_stride + d / kTile * a.scale_block_stride; break;
        default:
          if (a.swizzled_columns > 0) {
            base += abi::swizzled_offset(row, d / block, a.swizzled_columns);
          } else {
            base += row * a.scale_row_stride + head * a.scale_head_stride + (block > 0 ? d / block * a.scale_block_stride : 0);
          }
      }
      return factor_of(c, base, a.global_scale);
    };
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < a.heads; ++head) {
        for (std::int64_t d = 0; d < c.dim; d += kPiece) {
          const std::int64_t n = std::min<std::int64_t>(kPiece, c.dim - d);
          k.load(c.x, gather(a.x, c.x, row, head, d, n, source), n, x.data());
          const std::int64_t step = block > 0 ? block : kPiece;
          if (c.x == Elem::nvfp4 && a.swizzled_columns == 0 && a.scale_block_stride == 1) {
            const std::byte* codes = reinterpret_cast<const std::byte*>(a.scales) + row * a.scale_row_stride + head * a.scale_head_stride;
            k.load(Elem::e4m3, codes + d / block, ceil_div(n, block), factors.data());
            for (std::int64_t i = 0; i < ceil_div(n, block); ++i) factors.data()[i] *= a.global_scale;
          } else {
            for (std::int64_t i = 0; i < n; i += step) factors.data()[i / step] = scale_at(row, head, d + i);
          }
          std::byte* out = place(a.out, c.out, row, head, d);
          k.scale_blocks(c.out, x.data(), n, factors.data(), step, dense ? out : packed.data(), stream && dense);
          if (!dense) scatter(packed.data(), out, a.out.dim_stride, out_size, n);
        }
      }
    }
    k.flush();
  });
}

}  // namespace girih::rows
