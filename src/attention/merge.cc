// Merges attention states (o, lse) that were computed over disjoint sets of keys: the same state algebra as inside run(), for states that
// come from elsewhere (other ranks, other calls). Per row and head in f32, two passes over the LSEs (maximum, then weights), then one over
// the values with weights that already sum to 1, so that nothing overflows that the result would not.
// A state whose weight is 0 (an empty one, lse = -inf, above all) is skipped whatever its values hold; a state that is alone with a weight
// is copied, so merging with empty states changes no bit. lse = +inf takes all weight (several share it); a NaN lse makes the row NaN.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/merge_cuda.h"
#include "base/error.h"
#include "base/numeric.h"
#include "cpu/thread_pool.h"
#include "cuda/alignment.h"
#include "girih/attention.h"

namespace girih {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr float kFull = std::numeric_limits<float>::infinity();
constexpr std::int64_t kChunk = 512;  // dims that one accumulator array holds

/// One state of one row and head, or the place of a merged one.
struct Cell {
  char* v = nullptr;
  char* s = nullptr;
};

struct ValueFormat {
  DType dtype = DType::f32;
  std::int64_t dim_byte_stride = 0;
};

float load_f32(const char* address) { return load_element<DType::f32>(address, 0); }

template <DType kType>
void add_weighted(const char* v, std::int64_t byte_stride, std::int64_t dims, float weight, float* acc) {
  if (byte_stride == bits(kType) / 8) {
    for (std::int64_t d = 0; d < dims; ++d) acc[d] += weight * load_element<kType>(v, d);
  } else {
    for (std::int64_t d = 0; d < dims; ++d) acc[d] += weight * load_element<kType>(v + d * byte_stride, 0);
  }
}

template <DType kType>
void store_values(char* v, std::int64_t byte_stride, std::int64_t dims, const float* values) {
  if (byte_stride == bits(kType) / 8) {
    for (std::int64_t d = 0; d < dims; ++d) store_element<kType>(v, d, values[d]);
  } else {
    for (std::int64_t d = 0; d < dims; ++d) store_element<kType>(v + d * byte_stride, 0, values[d]);
  }
}

/// Calls f.operator()<kType>() for the three types that states may have.
template <typename F>
void with_value_type(DType t, F&& f) {
  if (t == DType::f32) return f.template operator()<DType::f32>();
  if (t == DType::f16) return f.template operator()<DType::f16>();
  return f.template operator()<DType::bf16>();
}

void fill(const Cell& out, const ValueFormat& format, std::int64_t dim, float value) {
  with_value_type(format.dtype, [&]<DType kType>() {
    for (std::int64_t d = 0; d < dim; ++d) store_element<kType>(out.v + d * format.dim_byte_stride, 0, value);
  });
}

/// Copies the values of a state bit by bit, or converts them where the output has another type.
void copy_values(const Cell& in, const ValueFormat& in_format, const Cell& out, const ValueFormat& out_format, std::int64_t dim) {
  if (in.v == out.v && in_format.dtype == out_format.dtype && in_format.dim_byte_stride == out_format.dim_byte_stride) return;
  const auto size = static_cast<std::size_t>(bits(in_format.dtype) / 8);
  for (std::int64_t d = 0; d < dim; ++d) {
    const char* from = in.v + d * in_format.dim_byte_stride;
    char* to = out.v + d * out_format.dim_byte_stride;
    if (in_format.dtype == out_format.dtype) {
      std::memcpy(to, from, size);
    } else {
      store_element(out_format.dtype, to, 0, load_element(in_format.dtype, from, 0));
    }
  }
}

float weight_of(float s, float max, bool base2) {
  if (s == max) return 1.0F;  // also where both are +inf
  return base2 ? std::exp2(s - max) : std::exp(s - max);
}

/// Merges `count` states given by at(i) -> Cell and format(i) -> ValueFormat into `out`. Every input of a chunk of dims is read before
/// the chunk is written and the LSE comes last: `out` may be one of the states.
template <typename At, typename FormatOf>
void merge_cell(std::int64_t count, At&& at, FormatOf&& format, const Cell& out, const ValueFormat& out_format, std::int64_t dim,
                bool base2) {
  float max = kEmpty;
  bool nan = false;
  for (std::int64_t i = 0; i < count; ++i) {
    const float s = load_f32(at(i).s);
    nan |= std::isnan(s);
    max = std::max(max, s);
  }
  if (nan || max == kEmpty) {
    const float s = nan ? std::numeric_limits<float>::quiet_NaN() : kEmpty;
    fill(out, out_format, dim, nan ? s : 0.0F);
    store_element<DType::f32>(out.s, 0, s);
    return;
  }
  float total = 0;
  std::int64_t contributing = 0;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float weight = weight_of(load_f32(at(i).s), max, base2);
    total += weight;
    if (weight > 0) {
      ++contributing;
      last = i;
    }
  }
  if (contributing == 1) {
    copy_values(at(last), format(last), out, out_format, dim);
    store_element<DType::f32>(out.s, 0, max);
    return;
  }
  std::array<float, kChunk> acc;
  for (std::int64_t begin = 0; begin < dim; begin += kChunk) {
    const std::int64_t dims = std::min(kChunk, dim - begin);
    std::fill_n(acc.begin(), dims, 0.0F);
    for (std::int64_t i = 0; i < count; ++i) {
      const Cell in = at(i);
      const float weight = weight_of(load_f32(in.s), max, base2) / total;
      if (!(weight > 0)) continue;
      const ValueFormat in_format = format(i);
      with_value_type(in_format.dtype, [&]<DType kType>() {
        add_weighted<kType>(in.v + begin * in_format.dim_byte_stride, in_format.dim_byte_stride, dims, weight, acc.data());
      });
    }
    with_value_type(out_format.dtype, [&]<DType kType>() {
      store_values<kType>(out.v + begin * out_format.dim_byte_stride, out_format.dim_byte_stride, dims, acc.data());
    });
  }
  store_element<DType::f32>(out.s, 0, max == kFull ? max : max + (base2 ? std::log2(total) : std::log(total)));
}

/// Runs f(row, head) over all rows and heads, contiguous shares a worker.
template <typename F>
void for_each_cell(const Context& context, std::int64_t rows, std::int64_t heads, F&& f) {
  const std::int64_t total = rows * heads;
  if (total == 0) return;
  cpu::ThreadPool& pool = context.pool();
  const std::int64_t workers = pool.num_workers();
  pool.parallel([&](int worker) {
    const std::int64_t begin = total / workers * worker + std::min<std::int64_t>(worker, total % workers);
    const std::int64_t end = begin + total / workers + (worker < total % workers ? 1 : 0);
    for (std::int64_t cell = begin; cell < end; ++cell) f(cell / heads, cell % heads);
  });
}

// ---------------------------------------------------------------------------------------------------------------- validation

/// Which function is called, and where its tensors must be.
struct Place {
  std::string_view op;
  Device device;
};

Place place_of(const Context& context, std::string_view op, void* stream) {
  if (stream != nullptr && context.device().kind == DeviceKind::cpu)
    fail(Code::invalid_argument, op, "stream is given; the context is for the CPU");
  return {op, context.device()};
}

void check_tensor(const Place& place, std::string_view what, const TensorView& t, int rank, bool values, bool output) {
  const std::string_view op = place.op;
  if (t.rank != rank) fail(Code::invalid_argument, op, "{} has rank {}; must be {}", what, t.rank, rank);
  if (t.device != place.device)
    fail(Code::invalid_argument, op, "{}.device={}; the context is for {}", what, name(t.device), name(place.device));
  if (values && t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16) {
    fail(Code::invalid_argument, op, "{} is {}; states may be f32, f16 or bf16", what, name(t.dtype));
  }
  if (!values && t.dtype != DType::f32) fail(Code::invalid_argument, op, "{} is {}; an LSE must be f32", what, name(t.dtype));
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    if (t.shape[i] < 0) fail(Code::invalid_argument, op, "{}.shape[{}]={}; must be >= 0", what, i, t.shape[i]);
    empty |= t.shape[i] == 0;
  }
  if (empty) return;
  if (t.data == nullptr) fail(Code::invalid_argument, op, "{}.data is null; must point to {} elements", what, t.numel());
  if (place.device.kind == DeviceKind::cuda && !cuda::is_aligned(t.data, t.dtype)) cuda::fail_unaligned(op, what, t.data, t.dtype);
  for (int i = 0; i < rank && output; ++i) {
    if (t.shape[i] > 1 && t.strides[i] == 0) {
      fail(Code::invalid_argument, op, "{}.strides[{}]=0 with extent {}; an output's elements must be distinct", what, i, t.shape[i]);
    }
  }
}

void check_extent(std::string_view op, std::string_view what, const TensorView& t, int axis, std::int64_t expected, std::string_view rule) {
  if (t.shape[axis] != expected) {
    fail(Code::invalid_argument, op, "{}.shape[{}]={}; must be {} ({})", what, axis, t.shape[axis], expected, rule);
  }
}

void check_outputs(const Place& place, const TensorView& v_out, const TensorView& s_out) {
  const std::string_view op = place.op;
  check_tensor(place, "v_out", v_out, 3, true, true);
  check_tensor(place, "s_out", s_out, 2, false, true);
  check_extent(op, "s_out", s_out, 0, v_out.shape[0], "rows of v_out");
  check_extent(op, "s_out", s_out, 1, v_out.shape[1], "heads of v_out");
}

std::int64_t byte_stride(const TensorView& t, int axis) { return t.strides[axis] * (bits(t.dtype) / 8); }

ValueFormat value_format(const TensorView& v) { return {v.dtype, byte_stride(v, v.rank - 1)}; }

/// The cell [row, head] of v [row, head, dim] and s [row, head].
Cell cell_at(const TensorView& v, const TensorView& s, std::int64_t row, std::int64_t head) {
  return {static_cast<char*>(v.data) + row * byte_stride(v, 0) + head * byte_stride(v, 1),
          static_cast<char*>(s.data) + row * byte_stride(s, 0) + head * byte_stride(s, 1)};
}

/// First and one-past-last byte that a view with elements may touch.
std::array<const char*, 2> byte_range(const TensorView& t) {
  const char* low = static_cast<const char*>(t.data);
  const char* high = low + bits(t.dtype) / 8;
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t reach = (t.shape[i] - 1) * byte_stride(t, i);
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

void check_disjoint(std::string_view op, std::string_view what_out, const TensorView& out, std::string_view what_in, const TensorView& in) {
  if (out.numel() == 0 || in.numel() == 0) return;
  const auto a = byte_range(out);
  const auto b = byte_range(in);
  if (a[0] < b[1] && b[0] < a[1]) {
    fail(Code::invalid_argument, op, "{} overlaps {}; rows take states of other rows' places, so outputs need memory of their own",
         what_out, what_in);
  }
}

}  // namespace

void merge_state(const Context& context, const TensorView& v_a, const TensorView& s_a, const TensorView& v_b, const TensorView& s_b,
                 const TensorView& v_out, const TensorView& s_out, bool base2, void* stream) {
  constexpr std::string_view kOp = "merge_state";
  const Place place = place_of(context, kOp, stream);
  check_outputs(place, v_out, s_out);
  check_tensor(place, "v_a", v_a, 3, true, false);
  check_tensor(place, "s_a", s_a, 2, false, false);
  check_tensor(place, "v_b", v_b, 3, true, false);
  check_tensor(place, "s_b", s_b, 2, false, false);
  for (int axis = 0; axis < 3; ++axis) {
    check_extent(kOp, "v_a", v_a, axis, v_out.shape[axis], "as v_out");
    check_extent(kOp, "v_b", v_b, axis, v_out.shape[axis], "as v_out");
  }
  for (int axis = 0; axis < 2; ++axis) {
    check_extent(kOp, "s_a", s_a, axis, v_out.shape[axis], "as v_out");
    check_extent(kOp, "s_b", s_b, axis, v_out.shape[axis], "as v_out");
  }
  if (place.device.kind == DeviceKind::cuda) {
    const attention::StatesView a{&v_a, &s_a, -1};
    const attention::StatesView b{&v_b, &s_b, -1};
    return attention::merge_on_device(context, kOp, a, &b, {}, v_out, s_out, base2, stream);
  }
  const std::array<ValueFormat, 2> formats{value_format(v_a), value_format(v_b)};
  const ValueFormat out_format = value_format(v_out);
  for_each_cell(context, v_out.shape[0], v_out.shape[1], [&](std::int64_t row, std::int64_t head) {
    const std::array<Cell, 2> states{cell_at(v_a, s_a, row, head), cell_at(v_b, s_b, row, head)};
    merge_cell(
        2, [&](std::int64_t i) { return states[static_cast<std::size_t>(i)]; },
        [&](std::int64_t i) { return formats[static_cast<std::size_t>(i)]; }, cell_at(v_out, s_out, row, head), out_format, v_out.shape[2],
        base2);
  });
}

void merge_states(const Context& context, const TensorView& v, const TensorView& s, const TensorView& v_out, const TensorView& s_out,
                  bool base2, void* stream) {
  constexpr std::string_view kOp = "merge_states";
  const Place place = place_of(context, kOp, stream);
  check_outputs(place, v_out, s_out);
  check_tensor(place, "v", v, 4, true, false);
  check_tensor(place, "s", s, 3, false, false);
  check_extent(kOp, "v", v, 0, v_out.shape[0], "rows of v_out");
  check_extent(kOp, "v", v, 2, v_out.shape[1], "heads of v_out");
  check_extent(kOp, "v", v, 3, v_out.shape[2], "dims of v_out");
  for (int axis = 0; axis < 3; ++axis) check_extent(kOp, "s", s, axis, v.shape[axis], "as v");
  if (place.device.kind == DeviceKind::cuda)
    return attention::merge_on_device(context, kOp, {&v, &s, 1}, nullptr, {}, v_out, s_out, base2, stream);
  const ValueFormat format = value_format(v);
  const ValueFormat out_format = value_format(v_out);
  for_each_cell(context, v_out.shape[0], v_out.shape[1], [&](std::int64_t row, std::int64_t head) {
    const auto at = [&](std::int64_t i) {
      return Cell{static_cast<char*>(v.data) + row * byte_stride(v, 0) + i * byte_stride(v, 1) + head * byte_stride(v, 2),
                  static_cast<char*>(s.data) + row * byte_stride(s, 0) + i * byte_stride(s, 1) + head * byte_stride(s, 2)};
    };
    merge_cell(
        v.shape[1], at, [&](std::int64_t) { return format; }, cell_at(v_out, s_out, row, head), out_format, v_out.shape[2], base2);
  });
}

void merge_states_varlen(const Context& context, const TensorView& v, const TensorView& s, Indices indptr, const TensorView& v_out,
                         const TensorView& s_out, bool base2, void* stream) {
  constexpr std::string_view kOp = "merge_states_varlen";
  const Place place = place_of(context, kOp, stream);
  check_outputs(place, v_out, s_out);
  check_tensor(place, "v", v, 3, true, false);
  check_tensor(place, "s", s, 2, false, false);
  check_extent(kOp, "v", v, 1, v_out.shape[1], "heads of v_out");
  check_extent(kOp, "v", v, 2, v_out.shape[2], "dims of v_out");
  for (int axis = 0; axis < 2; ++axis) check_extent(kOp, "s", s, axis, v.shape[axis], "as v");
  if (indptr.size() != v_out.shape[0] + 1) {
    fail(Code::invalid_argument, kOp, "indptr has {} entries; must have {} (rows of v_out + 1)", indptr.size(), v_out.shape[0] + 1);
  }
  for (std::int64_t i = 0; i < indptr.size(); ++i) {
    const std::int64_t previous = i == 0 ? 0 : indptr[i - 1];
    if (indptr[i] < previous)
      fail(Code::invalid_argument, kOp, "indptr[{}]={} < {}; must be non-decreasing from >= 0", i, indptr[i], previous);
  }
  const std::int64_t last = indptr[indptr.size() - 1];
  if (last > v.shape[0]) fail(Code::invalid_argument, kOp, "indptr ends at {}; v has only {} states", last, v.shape[0]);
  check_disjoint(kOp, "v_out", v_out, "v", v);
  check_disjoint(kOp, "s_out", s_out, "s", s);
  if (place.device.kind == DeviceKind::cuda)
    return attention::merge_on_device(context, kOp, {&v, &s, 0}, nullptr, indptr, v_out, s_out, base2, stream);
  const ValueFormat format = value_format(v);
  const ValueFormat out_format = value_format(v_out);
  for_each_cell(context, v_out.shape[0], v_out.shape[1], [&](std::int64_t row, std::int64_t head) {
    const std::int64_t first = indptr[row];
    merge_cell(
        indptr[row + 1] - first, [&](std::int64_t i) { return cell_at(v, s, first + i, head); }, [&](std::int64_t) { return format; },
        cell_at(v_out, s_out, row, head), out_format, v_out.shape[2], base2);
  });
}

}  // namespace girih
