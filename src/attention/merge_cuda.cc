// See merge_cuda.h.
#include "attention/merge_cuda.h"

#include <algorithm>
#include <vector>

#include "abi/page_params.h"
#include "base/error.h"
#include "base/math.h"
#include "cuda/runtime.h"

namespace girih::attention {
namespace {

constexpr int kThreads = kMergeThreads;

std::int64_t byte_stride(const TensorView& t, int axis) {
  return axis < 0 ? 0 : t.strides[static_cast<std::size_t>(axis)] * (bits(t.dtype) / 8);
}

abi::StatesArg states_arg(const StatesView& states) {
  const int head = states.v->rank - 2;
  const int row = states.state_axis == 0 ? -1 : 0;
  return {.v = static_cast<const unsigned char*>(states.v->data),
          .s = static_cast<const unsigned char*>(states.s->data),
          .v_row_stride = byte_stride(*states.v, row),
          .v_state_stride = byte_stride(*states.v, states.state_axis),
          .v_head_stride = byte_stride(*states.v, head),
          .v_dim_stride = byte_stride(*states.v, head + 1),
          .s_row_stride = byte_stride(*states.s, row),
          .s_state_stride = byte_stride(*states.s, states.state_axis),
          .s_head_stride = byte_stride(*states.s, head)};
}

/// Bytes that a view with elements may touch.
std::pair<const char*, const char*> byte_range(const TensorView& t) {
  const char* low = static_cast<const char*>(t.data);
  const char* high = low + bits(t.dtype) / 8;
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t reach = (t.shape[static_cast<std::size_t>(i)] - 1) * byte_stride(t, i);
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

/// Elements are read and written by one thread each: an output may be an input, or lie apart.
void check_alias(std::string_view op, std::string_view what, const TensorView& out, const TensorView& in) {
  if (out.numel() == 0 || in.numel() == 0) return;
  const auto [out_low, out_high] = byte_range(out);
  const auto [in_low, in_high] = byte_range(in);
  if (out_high <= in_low || in_high <= out_low) return;
  bool same = out.data == in.data && out.dtype == in.dtype && out.rank == in.rank;
  for (int i = 0; same && i < out.rank; ++i) {
    const auto axis = static_cast<std::size_t>(i);
    same = out.shape[axis] == in.shape[axis] && (out.shape[axis] == 1 || out.strides[axis] == in.strides[axis]);
  }
  if (!same) fail(Code::unsupported, op, "{} overlaps an input without being one; on a CUDA device it must be an input or lie apart", what);
}

std::string_view type_name(DType t) { return t == DType::f32 ? "float" : name(t); }

}  // namespace

std::string merge_source(DType first, DType second, DType out, std::string& name) {
  name = fmt::format("merge_states_{}_{}_{}", girih::name(first), girih::name(second), girih::name(out));
  return fmt::format(
      "// {}\n#include \"attention/merge_states.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ girih::abi::MergeParams p) {{\n"
      "  using namespace girih;\n  attention::run_merge_states<{}, {}, {}>(p);\n}}\n",
      name, kThreads, name, type_name(first), type_name(second), type_name(out));
}

void merge_on_device(const Context& context, std::string_view op, const StatesView& a, const StatesView* b, Indices indptr,
                     const TensorView& v_out, const TensorView& s_out, bool base2, void* stream) {
  for (const StatesView* states : {&a, b}) {
    if (states == nullptr) continue;
    check_alias(op, "v_out", v_out, *states->v);
    check_alias(op, "s_out", s_out, *states->s);
  }
  const std::int64_t cells = v_out.shape[0] * v_out.shape[1];
  if (cells == 0) return;
  if (v_out.shape[1] > INT32_MAX || v_out.shape[2] > INT32_MAX)
    fail(Code::invalid_argument, op, "v_out has more than 2^31-1 heads or dims");
  cuda::Runtime& runtime = context.cuda();
  const DType second = b != nullptr ? b->v->dtype : a.v->dtype;
  std::string entry;
  const std::string source = merge_source(a.v->dtype, second, v_out.dtype, entry);
  const cuda::Function function = runtime.kernel(op, entry, source, stream).function;
  abi::MergeParams p{};
  p.states[0] = states_arg(a);
  if (b != nullptr) p.states[1] = states_arg(*b);
  p.v_out = static_cast<unsigned char*>(v_out.data);
  p.s_out = static_cast<unsigned char*>(s_out.data);
  p.v_row_stride = byte_stride(v_out, 0);
  p.v_head_stride = byte_stride(v_out, 1);
  p.v_dim_stride = byte_stride(v_out, 2);
  p.s_row_stride = byte_stride(s_out, 0);
  p.s_head_stride = byte_stride(s_out, 1);
  p.rows = v_out.shape[0];
  p.num_states = a.state_axis == 1 ? a.v->shape[1] : 1;
  p.heads = static_cast<std::int32_t>(v_out.shape[1]);
  p.dim = static_cast<std::int32_t>(v_out.shape[2]);
  p.pair = b != nullptr ? 1 : 0;
  p.base2 = base2 ? 1 : 0;
  const cuda::CurrentDevice current(*runtime.device);
  const cuda::Driver& driver = runtime.device->driver();
  if (a.state_axis == 0) {
    if (driver.is_capturing(stream)) fail(Code::invalid_argument, op, "stream is being captured, which would freeze indptr");
    std::vector<std::int64_t> offsets;
    for (std::int64_t i = 0; i < indptr.size(); ++i) offsets.push_back(indptr[i]);
    p.indptr = static_cast<const std::int64_t*>(runtime.uploads.upload(std::as_bytes(std::span(offsets)), stream));
  }
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(cells, kThreads / 32), std::int64_t{runtime.device->info().num_sms} * 16);
  driver.launch({.function = function, .num_blocks = static_cast<int>(blocks), .num_threads = kThreads, .stream = stream}, &p);
  if (a.state_axis == 0) runtime.uploads.launched(stream);
}

}  // namespace girih::attention
