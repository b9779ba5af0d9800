// The row operators on the CPU: workers take equal shares of the rows, whatever parts these have. A row goes through the stages of
// cpu_kernels.h in an f32 buffer; rows that no stage must see whole go through in pieces that stay in the first cache. A plain RMSNorm
// loads each row in the pass that stores the one before. Large outputs are written past the caches, which saves reading them first.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/capabilities.h"
#include "base/error.h"
#include "base/math.h"
#include "base/numeric.h"
#include "base/scales.h"
#include "cpu/thread_pool.h"
#include "rows/cpu_floats.h"
#include "rows/cpu_kernels.h"
#include "rows/rows.h"

namespace girih::rows {
namespace {

using abi::Act;
using abi::Elem;
using abi::Norm;
using abi::Rotation;
using abi::Scaling;

constexpr std::int64_t kPiece = 2048;                         // elements: two buffers of f32 stay in the first cache
constexpr std::int64_t kMostJoined = 1 << 15;                 // elements of a row whose heads are done together
constexpr std::int64_t kSmallCall = 64 << 10;                 // bytes that one thread is done with before others have woken up
constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;  // outputs from here on do not stay in a cache anyway

DType type_of(Elem e) { return static_cast<DType>(e); }

/// What is the same for all rows of a part.
struct PartJob {
  const abi::PartConfig* config;
  const abi::RowPart* args;
  Floats weight;  // offset included; [heads or 1, dim]
  Floats bias;
  std::int64_t weight_heads = 0;
  std::int64_t piece = 0;
  bool heads_adjoin = false;  // all heads of a row are loaded and stored at once
  bool plain = false;         // stored as they are read, with no stage between
  bool dense_x = false, dense_second = false, dense_sum = false, dense_out = false;
  bool stream = false;
  bool far = false;  // the source does not stay in a cache anyway
};

/// Buffers of one worker.
struct Buffers {
  Floats row, scratch, factors;
  std::vector<std::byte> gathered, gathered_second, packed, scales;
};

std::int64_t bytes_of(Elem e, std::int64_t n) { return bytes(type_of(e), n); }

bool dense(const abi::RowTensor& t, Elem e) { return bits_of(e) == 4 || t.dim_stride == bits_of(e) / 8; }

void copy_elements(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride, std::int64_t size,
                   std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<std::size_t>(size));
}

std::byte* at(const abi::RowTensor& t, std::int64_t row, std::int64_t head) {
  return reinterpret_cast<std::byte*>(t.data) + row * t.row_stride + head * t.head_stride;
}

PartJob prepare(const Kernels& k, const abi::PartConfig& c, const abi::RowPart& a, std::int64_t rows) {
  PartJob job{.config = &c, .args = &a, .weight = {}, .bias = {}};
  job.dense_x = dense(a.x, c.x);
  job.dense_second = dense(a.second, c.x);
  job.dense_sum = dense(a.residual_out, c.x);
  job.dense_out = dense(a.out, c.out);
  job.plain = job.dense_x && !c.residual && c.act == Act::none && c.norm == Norm::none && c.rotation == Rotation::none;
  const bool whole = c.norm != Norm::none || c.rotation != Rotation::none || c.scaling == Scaling::row;
  job.piece = whole ? c.dim : std::min<std::int64_t>(c.dim, kPiece);
  job.weight_heads = a.weight_head_stride != 0 ? a.heads : 1;
  job.heads_adjoin = a.heads > 1 && job.dense_x && job.dense_out && !c.residual && c.act == Act::none && a.heads * c.dim <= kMostJoined &&
                     (c.scaling == Scaling::none || c.scaling == Scaling::tensor) && a.x.head_stride == bytes_of(c.x, c.dim) &&
                     bits_of(c.out) != 4 && a.out.head_stride == bytes_of(c.out, c.dim);
  if (job.heads_adjoin) job.piece = a.heads * c.dim;
  const auto widen = [&](const unsigned char* from, float offset, Floats& to) {
    to.enlarge(static_cast<std::size_t>(job.weight_heads * c.dim + kPad));
    for (std::int64_t h = 0; h < job.weight_heads; ++h) {
      float* row = to.data() + h * c.dim;
      k.load(c.weight, from + h * a.weight_head_stride, c.dim, row);
      for (std::int64_t d = 0; offset != 0 && d < c.dim; ++d) row[d] += offset;
    }
  };
  if (c.has_weight) {
    widen(a.weight, a.weight_offset, job.weight);
  } else if (c.norm != Norm::none) {
    job.weight_heads = 1;
    job.weight.enlarge(static_cast<std::size_t>(c.dim + kPad));
    std::fill_n(job.weight.data(), c.dim + kPad, 1.0F);
  }
  if (c.has_bias) widen(a.bias, 0, job.bias);
  job.far = rows * a.heads * bytes_of(c.x, c.dim) >= kStreamBytes;
  job.stream = a.out.data != a.x.data && a.out.data != a.second.data && rows * a.heads * bytes_of(c.out, c.dim) >= kStreamBytes;
  return job;
}

/// A row's position for rotation.
std::int64_t position_of(const abi::RowsParams& p, std::int64_t row) {
  const auto index = [&](const unsigned char* array, std::int64_t offset) {
    if (p.positions_64 == 0) {
      std::int32_t value;
      std::memcpy(&value, array + offset, sizeof(value));
      return static_cast<std::int64_t>(value);
    }
    std::int64_t value;
    std::memcpy(&value, array + offset, sizeof(value));
    return value;
  };
  if (p.positions != nullptr) return index(p.positions, row * p.position_stride);
  const std::int64_t size = p.positions_64 != 0 ? 8 : 4;
  std::int64_t low = 0, high = p.requests;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (index(p.indptr, (middle + 1) * size) <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < p.requests ? index(p.offsets, low * size) + row - index(p.indptr, low * size) : 0;
}

class RowWorker {
 public:
  RowWorker(const Kernels& k, const abi::RowsParams& p, const PartJob& job, Buffers& buffers)
      : k_(k), p_(p), job_(job), c_(*job.config), a_(*job.args), b_(buffers) {
    const auto room = static_cast<std::size_t>(job.piece + kPad);
    b_.row.enlarge(room);
  }

  void run(std::int64_t row) {
    if (c_.paged) place_ = p_.places[row];
    if (c_.rotation != Rotation::none) position_ = std::clamp<std::int64_t>(position_of(p_, row), 0, p_.num_positions - 1);
    if (job_.heads_adjoin) return run_joined(row);
    for (std::int64_t head = 0; head < a_.heads; ++head) run_head(row, head);
  }
  void run_head(std::int64_t row, std::int64_t head) {
    for (std::int64_t begin = 0; begin < c_.dim; begin += job_.piece)
      run_piece(row, head, begin, std::min<std::int64_t>(job_.piece, c_.dim - begin));
  }

  /// A plain RMSNorm of dense rows: begin, then one step a row.
  static bool steps(const PartJob& job) {
    const abi::PartConfig& c = *job.config;
    return c.norm == Norm::rms && c.rotation == Rotation::none && c.scaling == Scaling::none && !c.paged && c.out == c.x &&
           job.bias.size() == 0 && job.args->heads == 1 && job.dense_x && job.dense_out &&
           (!c.residual || (job.dense_second && (job.args->residual_out.data == nullptr || job.dense_sum)));
  }
  void run_steps(std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    const std::int64_t n = c_.dim;
    b_.scratch.enlarge(b_.row.size());
    float* row = b_.row.data();
    float* next = b_.scratch.data();
    const float* weight = job_.weight.data();
    float squares = load(begin, 0, 0, n);
    for (std::int64_t r = begin; r < end; ++r) {
      const float factor = factor_of(squares);
      if (r + 1 == end) {
        if (!c_.residual) k_.load(c_.x, at(a_.x, r, 0), n, row);
        const Scales scales{.dim = n, .factors = &factor, .weight = weight};
        return k_.scale_store(Elem::f32, c_.out, row, scales, at(a_.out, r, 0), job_.stream, nullptr);
      }
      const bool sum = a_.residual_out.data != nullptr;
      squares = k_.norm_step(c_.x,
                             {.next = at(a_.x, r + 1, 0),
                              .source = at(a_.x, r, 0),
                              .residual = c_.residual ? at(a_.second, r + 1, 0) : nullptr,
                              .sum = sum ? at(a_.residual_out, r + 1, 0) : nullptr,
                              .next_row = next,
                              .row = row,
                              .factor = factor,
                              .weight = weight,
                              .out = at(a_.out, r, 0),
                              .stream = job_.stream},
                             n);
      std::swap(row, next);
    }
  }

 private:
  /// Dense elements of a tensor's row, gathered where they are not.
  const std::byte* source(const abi::RowTensor& t, bool is_dense, std::int64_t row, std::int64_t head, std::int64_t begin, std::int64_t n,
                          std::vector<std::byte>& buffer) {
    const std::int64_t size = bits_of(c_.x) / 8;
    const std::byte* from = at(t, row, head) + begin * t.dim_stride;
    if (is_dense) return from;
    if (buffer.size() < static_cast<std::size_t>(n * size)) buffer.resize(static_cast<std::size_t>(n * size));
    copy_elements(from, t.dim_stride, buffer.data(), size, size, n);
    return buffer.data();
  }

  std::byte* scales_at(std::int64_t row, std::int64_t head) const {
    const std::int64_t place =
        c_.paged ? place_.page * a_.scale_page_stride + place_.token * a_.scale_row_stride : row * a_.scale_row_stride;
    return reinterpret_cast<std::byte*>(a_.scales) + place + head * a_.scale_head_stride;
  }

  float load(std::int64_t row, std::int64_t head, std::int64_t begin, std::int64_t n) {
    float* x = b_.row.data();
    if (c_.act != Act::none) {
      const std::int64_t width = c_.interleaved ? 2 : 1;
      const std::byte* gate = source(a_.x, job_.dense_x, row, head, begin * width, n * width, b_.gathered);
      const std::byte* up = c_.interleaved ? nullptr : source(a_.second, job_.dense_second, row, head, begin, n, b_.gathered_second);
      k_.activate(c_.x, Elem::f32, c_.act, c_.interleaved, gate, up, n, a_.alpha, a_.limit, x, false);
      return 0;
    }
    const std::byte* from = source(a_.x, job_.dense_x, row, head, begin, n, b_.gathered);
    if (!c_.residual) return k_.load(c_.x, from, n, x);
    const std::byte* residual = source(a_.second, job_.dense_second, row, head, begin, n, b_.gathered_second);
    if (a_.residual_out.data == nullptr) return k_.load_sum(c_.x, from, residual, n, x, nullptr);
    std::byte* sum = at(a_.residual_out, row, head) + begin * a_.residual_out.dim_stride;
    if (job_.dense_sum) return k_.load_sum(c_.x, from, residual, n, x, sum);
    const std::int64_t size = bits_of(c_.x) / 8;
    if (b_.packed.size() < static_cast<std::size_t>(n * size)) b_.packed.resize(static_cast<std::size_t>(n * size));
    const float squares = k_.load_sum(c_.x, from, residual, n, x, b_.packed.data());
    copy_elements(b_.packed.data(), size, sum, a_.residual_out.dim_stride, size, n);
    return squares;
  }

  void rotate(float* x, std::int64_t heads) {
    const float* cos = p_.cos_sin + position_ * p_.cos_sin_stride;
    k_.rotate(c_.rotation, x + c_.rotary_begin, heads, c_.dim, c_.rotary / 2, cos, cos + c_.rotary / 2);
  }

  /// Whether a norm reads its dense source twice, and no f32 buffer: the first cache holds a row of 16 bits more easily.
  bool from_source() const { return c_.norm == Norm::rms && job_.dense_x && !c_.residual && c_.x != Elem::f16; }
  float factor_of(float squares) const { return 1.0F / std::sqrt(squares / static_cast<float>(c_.dim) + a_.eps); }
  /// Of heads from `head` on.
  Scales scales_of(std::int64_t heads, std::int64_t head, const float* factors) const {
    const std::int64_t stride = job_.weight_heads > 1 ? c_.dim : 0;
    return {.heads = heads,
            .dim = c_.dim,
            .factors = factors,
            .weight = job_.weight.data() + head * stride,
            .bias = c_.has_bias ? job_.bias.data() + head * stride : nullptr,
            .weight_stride = stride};
  }

  /// All heads of a row: one load and one store.
  void run_joined(std::int64_t row) {
    float* x = b_.row.data();
    const std::int64_t n = a_.heads * c_.dim;
    if (job_.plain) return store(row, 0, 0, n, out_at(row, 0), c_.x, at(a_.x, row, 0));
    if (c_.norm == Norm::none) {
      load(row, 0, 0, n);
    } else {
      b_.factors.enlarge(static_cast<std::size_t>(a_.heads));
      float* factors = b_.factors.data();
      const std::byte* from = at(a_.x, row, 0);
      if (from_source()) {
        k_.squares(c_.x, from, a_.heads, c_.dim, factors);
      } else {
        load(row, 0, 0, n);
        if (c_.norm == Norm::rms) k_.squares(Elem::f32, x, a_.heads, c_.dim, factors);
      }
      for (std::int64_t head = 0; head < a_.heads; ++head)
        factors[head] = factor_of(c_.norm == Norm::layer ? k_.centre(x + head * c_.dim, c_.dim) : factors[head]);
      const Scales scales = scales_of(a_.heads, 0, factors);
      const Elem type = from_source() ? c_.x : Elem::f32;
      const void* values = from_source() ? static_cast<const void*>(from) : x;
      if (c_.rotation == Rotation::none && c_.scaling == Scaling::none)
        return k_.scale_store(type, c_.out, values, scales, out_at(row, 0), job_.stream, ahead(row, 0, n));
      k_.scale_store(type, Elem::f32, values, scales, x, false, nullptr);
    }
    if (c_.rotation != Rotation::none) rotate(x, a_.heads);
    store(row, 0, 0, n, out_at(row, 0), Elem::f32, x);
  }

  std::byte* out_at(std::int64_t row, std::int64_t head) const {
    if (!c_.paged) return at(a_.out, row, head);
    return reinterpret_cast<std::byte*>(a_.out.data) + place_.page * a_.page_stride + place_.token * a_.out.row_stride +
           head * a_.out.head_stride;
  }

  void run_piece(std::int64_t row, std::int64_t head, std::int64_t begin, std::int64_t n) {
    float* x = b_.row.data();
    if (c_.act != Act::none && c_.scaling == Scaling::none && c_.out == c_.x && job_.dense_x && job_.dense_out &&
        (c_.interleaved || job_.dense_second)) {
      const std::byte* gate = at(a_.x, row, head) + begin * (c_.interleaved ? 2 : 1) * a_.x.dim_stride;
      const std::byte* up = c_.interleaved ? nullptr : at(a_.second, row, head) + begin * a_.second.dim_stride;
      return k_.activate(c_.x, c_.out, c_.act, c_.interleaved, gate, up, n, a_.alpha, a_.limit,
                         at(a_.out, row, head) + begin * a_.out.dim_stride, job_.stream);
    }
    std::byte* out = out_at(row, head);
    out += bits_of(c_.out) == 4 ? begin / 2 : begin * a_.out.dim_stride;
    if (job_.plain) return store(row, head, begin, n, out, c_.x, at(a_.x, row, head) + begin * a_.x.dim_stride);
    if (c_.norm == Norm::none) {
      load(row, head, begin, n);
    } else {
      const std::byte* from = at(a_.x, row, head);
      const bool direct = from_source();
      float factor = 0;
      if (direct) {
        k_.squares(c_.x, from, 1, n, &factor);
      } else {
        factor = load(row, head, begin, n);
      }
      factor = factor_of(c_.norm == Norm::layer ? k_.centre(x, n) : factor);
      const Scales scales = scales_of(1, head, &factor);
      const Elem type = direct ? c_.x : Elem::f32;
      const void* values = direct ? static_cast<const void*>(from) : x;
      if (c_.rotation == Rotation::none && c_.scaling == Scaling::none && job_.dense_out)
        return k_.scale_store(type, c_.out, values, scales, out, job_.stream, ahead(row, head, begin + n));
      if (c_.rotation == Rotation::none && c_.scaling == Scaling::row)
        return store_scaled(row, head, n, k_.scale_largest(type, values, scales, x), out, Elem::f32, x);
      k_.scale_store(type, Elem::f32, values, scales, x, false, nullptr);
    }
    if (c_.rotation != Rotation::none) rotate(x, 1);
    store(row, head, begin, n, out, Elem::f32, x);
  }

  /// A scale that is given, or 1.
  float scale_of(std::int64_t head) const {
    if (c_.scaling == Scaling::none) return 1.0F;
    float scale;
    std::memcpy(&scale, a_.scales + (c_.scaling == Scaling::head ? head * a_.scale_head_stride : 0), sizeof(scale));
    return scale * a_.global_scale;
  }

  /// What is most likely read after the elements before `end`: what lies behind them.
  const std::byte* ahead(std::int64_t row, std::int64_t head, std::int64_t end) const {
    return job_.far && job_.dense_x ? at(a_.x, row, head) + end * a_.x.dim_stride * (c_.interleaved ? 2 : 1) : nullptr;
  }

  /// Codes of x / scale, for the elements before `end`.
  void encode(std::int64_t row, std::int64_t head, std::int64_t end, Elem from, const void* x, std::int64_t n, float scale,
              std::byte* out) {
    if (job_.dense_out) return k_.store(from, c_.out, x, n, scale, out, job_.stream, ahead(row, head, end));
    const std::int64_t size = bits_of(c_.out) / 8;
    if (b_.packed.size() < static_cast<std::size_t>(n * size)) b_.packed.resize(static_cast<std::size_t>(n * size));
    k_.store(from, c_.out, x, n, scale, b_.packed.data(), false, nullptr);
    copy_elements(b_.packed.data(), size, out, a_.out.dim_stride, size, n);
  }

  /// A whole row with a scale of its own, by its largest magnitude.
  void store_scaled(std::int64_t row, std::int64_t head, std::int64_t n, float most, std::byte* out, Elem from, const void* x) {
    const ChosenScale chosen = f32_scale(most, largest(type_of(c_.out)), a_.global_scale);
    std::memcpy(scales_at(row, head), &chosen.stored, sizeof(float));
    encode(row, head, n, from, x, n, chosen.scale, out);
  }

  /// Elements [begin, begin + n) of a row and head, which are in `x`.
  void store(std::int64_t row, std::int64_t head, std::int64_t begin, std::int64_t n, std::byte* out, Elem from, const void* x) {
    switch (c_.scaling) {
      case Scaling::none:
      case Scaling::tensor:
      case Scaling::head: return encode(row, head, begin + n, from, x, n, scale_of(head), out);
      case Scaling::row: return store_scaled(row, head, n, k_.largest(from, x, n), out, from, x);
      case Scaling::block:
      case Scaling::mx: return store_blocks(row, head, begin, n, out, from, x);
      case Scaling::tile: bug("tiles in the pipeline of rows");
    }
  }

  void store_blocks(std::int64_t row, std::int64_t head, std::int64_t begin, std::int64_t n, std::byte* out, Elem from, const void* x) {
    const std::int64_t block = block_of(c_.scaling, c_.out);
    const std::int64_t blocks = ceil_div(n, block);
    const std::int64_t size = block == 128 ? 4 : 1;
    const auto room = static_cast<std::size_t>(2 * (blocks + kPad));
    b_.scratch.enlarge(room);
    if (b_.scales.size() < room * 4) b_.scales.resize(room * 4);
    std::byte* codes = out;
    if (!job_.dense_out) {
      if (b_.packed.size() < static_cast<std::size_t>(n)) b_.packed.resize(static_cast<std::size_t>(n));
      codes = b_.packed.data();
    }
    const std::int64_t first = begin / block;
    std::byte* place = scales_at(row, head) + first * a_.scale_block_stride;
    const bool adjacent = a_.swizzled_columns == 0 && a_.scale_block_stride == size;
    std::byte* scales = adjacent ? place : b_.scales.data();
    k_.store_blocks(from, c_.out, c_.scaling, x, n, a_.global_scale, codes, scales, b_.scratch.data(), job_.stream && job_.dense_out,
                    ahead(row, head, begin + n));
    if (!job_.dense_out) copy_elements(codes, 1, out, a_.out.dim_stride, 1, n);
    if (adjacent) return;
    for (std::int64_t i = 0; i < blocks; ++i) {
      std::byte* to = a_.swizzled_columns > 0
                          ? reinterpret_cast<std::byte*>(a_.scales) + abi::swizzled_offset(row, first + i, a_.swizzled_columns)
                          : place + i * a_.scale_block_stride;
      std::memcpy(to, scales + i * size, static_cast<std::size_t>(size));
    }
  }

  const Kernels& k_;
  const abi::RowsParams& p_;
  const PartJob& job_;
  const abi::PartConfig& c_;
  const abi::RowPart& a_;
  Buffers& b_;
  abi::TokenPlace place_{};
  std::int64_t position_ = 0;
};

}  // namespace

abi::Elem elem_of(DType t) {
  if (!is_numeric(t)) bug("type {} as an element of rows", name(t));
  return static_cast<Elem>(t);
}

void run_on_cpu(const Context& context, const Launch& launch) {
  static_assert(static_cast<int>(DType::mxfp4) == static_cast<int>(Elem::mxfp4) &&
                static_cast<int>(DType::e4m3) == static_cast<int>(Elem::e4m3));
  const abi::RowsParams& p = launch.params;
  if (p.rows == 0) return;
  const Kernels k = kernels(context.cpu_target());
  if (launch.work == Work::quantize_tiles) return quantize_tiles_on_cpu(context, k, launch);
  if (launch.work == Work::dequantize) return dequantize_on_cpu(context, k, launch);
  std::vector<PartJob> jobs;
  std::int64_t total_bytes = 0;
  for (int i = 0; i < launch.num_parts; ++i) {
    const abi::PartConfig& c = launch.configs[static_cast<std::size_t>(i)];
    jobs.push_back(prepare(k, c, p.parts[i], p.rows));
    total_bytes += p.rows * p.parts[i].heads * bytes_of(c.x, c.dim);
  }
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    Buffers buffers;
    for (const PartJob& job : jobs) {
      RowWorker worker(k, p, job, buffers);
      if (RowWorker::steps(job)) {
        worker.run_steps(begin, end);
        continue;
      }
      for (std::int64_t row = begin; row < end; ++row) {
        if (job.config->paged && p.places[row].token < 0) continue;
        worker.run(row);
      }
    }
    k.flush();
  };
  cpu::ThreadPool& pool = context.pool();
  const std::int64_t workers = pool.num_workers();
  if (workers == 1 || total_bytes <= kSmallCall || p.rows == 1) return work(0, p.rows);
  pool.parallel([&](int worker) { work(p.rows * worker / workers, p.rows * (worker + 1) / workers); });
}

void run(const Context& context, std::string_view op, const Launch& launch, void* stream) {
  require_backend(context, op);
  if (context.device().kind == DeviceKind::cuda) return run_on_device(context, op, launch, stream);
  if (stream != nullptr) fail(Code::invalid_argument, op, "stream is given; the context is for the CPU");
  run_on_cpu(context, launch);
}

}  // namespace girih::rows
