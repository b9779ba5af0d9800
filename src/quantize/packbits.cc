// packbits() and segment_packbits(): masks of a byte an element into masks of a bit.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "cpu/thread_pool.h"
#include "cuda/runtime.h"
#include "girih/quantize.h"
#include "rows/cpu_kernels.h"

namespace girih {
namespace {

constexpr int kThreads = 256;
constexpr const char* kSource =
    "// packbits\n#include \"quantize/packbits.cuh\"\n"
    "extern \"C\" __global__ void __launch_bounds__(256) packbits(const __grid_constant__ girih::abi::PackBitsParams p) {\n"
    "  girih::quantize::pack_bits(p);\n}\n";

void check(const Context& context, std::string_view op, std::string_view what, const TensorView& t, std::int64_t least) {
  if (t.rank != 1) fail(Code::invalid_argument, op, "{} has rank {}; must be 1", what, t.rank);
  if (t.dtype != DType::u8) fail(Code::invalid_argument, op, "{} is {}; must be u8", what, name(t.dtype));
  if (t.device != context.device())
    fail(Code::invalid_argument, op, "{}.device={}; the context is for {}", what, name(t.device), name(context.device()));
  if (t.shape[0] < least) fail(Code::invalid_argument, op, "{}.shape[0]={}; must be at least {}", what, t.shape[0], least);
  if (t.shape[0] > 1 && t.strides[0] != 1) fail(Code::invalid_argument, op, "{}.strides[0]={}; must be 1 (dense)", what, t.strides[0]);
  if (least > 0 && t.data == nullptr) fail(Code::invalid_argument, op, "{}.data is null; must hold {} bytes", what, least);
}

/// Packing overwrites bits that later bytes are made of.
void check_apart(std::string_view op, const TensorView& x, std::int64_t n, const TensorView& out, std::int64_t n_out) {
  const auto* a = static_cast<const std::byte*>(x.data);
  const auto* b = static_cast<const std::byte*>(out.data);
  if (n > 0 && a < b + n_out && b < a + n) fail(Code::invalid_argument, op, "out shares memory with x; must be apart from it");
}

void launch(const Context& context, std::string_view op, const abi::PackBitsParams& p, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::Function function = runtime.kernel(op, "packbits", kSource, stream).function;
  if (p.num_bytes == 0) return;
  const cuda::CurrentDevice current(*runtime.device);
  const cuda::DeviceInfo& info = runtime.device->info();
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(p.num_bytes, kThreads), std::int64_t{info.num_sms} * 8);
  runtime.device->driver().launch({.function = function,
                                   .num_blocks = static_cast<int>(blocks),
                                   .num_threads = kThreads,
                                   .stream = stream,
                                   .dependent = info.arch >= 90},
                                  &p);
}

void check_order(std::string_view op, BitOrder order) {
  if (order != BitOrder::little && order != BitOrder::big) fail(Code::invalid_argument, op, "order={} is unknown", static_cast<int>(order));
}

}  // namespace

void packbits(const Context& context, const TensorView& x, const TensorView& out, BitOrder order, void* stream) {
  constexpr std::string_view kOp = "packbits";
  check_order(kOp, order);
  check(context, kOp, "x", x, 0);
  const std::int64_t n = x.shape[0];
  if (n < 0) fail(Code::invalid_argument, kOp, "x.shape[0]={}; must be >= 0", n);
  if (n > 0 && x.data == nullptr) fail(Code::invalid_argument, kOp, "x.data is null; must hold {} bytes", n);
  const std::int64_t num_bytes = ceil_div(n, 8);
  check(context, kOp, "out", out, num_bytes);
  check_apart(kOp, x, n, out, num_bytes);
  const auto* from = static_cast<const unsigned char*>(x.data);
  auto* to = static_cast<unsigned char*>(out.data);
  const bool big = order == BitOrder::big;
  if (context.device().kind == DeviceKind::cuda)
    return launch(context, kOp,
                  {.x = from,
                   .out = to,
                   .indptr = nullptr,
                   .out_indptr = nullptr,
                   .num_segments = 1,
                   .num_bits = n,
                   .num_bytes = num_bytes,
                   .big = big},
                  stream);
  if (stream != nullptr) fail(Code::invalid_argument, kOp, "stream is given; the context is for the CPU");
  const rows::Kernels k = rows::kernels(context.cpu_target());
  const std::int64_t workers = context.num_workers();
  context.pool().parallel([&](int worker) {
    const std::int64_t begin = num_bytes * worker / workers;
    const std::int64_t end = num_bytes * (worker + 1) / workers;
    if (begin < end) k.pack_bits(from + begin * 8, std::min(end * 8, n) - begin * 8, big, to + begin);
  });
}

std::vector<std::int64_t> segment_packbits(const Context& context, const TensorView& x, Indices indptr, const TensorView& out,
                                           BitOrder order, void* stream) {
  constexpr std::string_view kOp = "segment_packbits";
  check_order(kOp, order);
  if (indptr.size() < 1) fail(Code::invalid_argument, kOp, "indptr is empty; must be [num_segments + 1]");
  if (indptr[0] != 0) fail(Code::invalid_argument, kOp, "indptr[0]={}; must be 0", indptr[0]);
  const std::int64_t segments = indptr.size() - 1;
  std::vector<std::int64_t> bits(1, 0), out_indptr(1, 0);
  for (std::int64_t i = 0; i < segments; ++i) {
    if (indptr[i + 1] < indptr[i])
      fail(Code::invalid_argument, kOp, "indptr[{}]={} < indptr[{}]={}; must be non-decreasing", i + 1, indptr[i + 1], i, indptr[i]);
    bits.push_back(indptr[i + 1]);
    out_indptr.push_back(out_indptr.back() + ceil_div(indptr[i + 1] - indptr[i], 8));
  }
  check(context, kOp, "x", x, bits.back());
  check(context, kOp, "out", out, out_indptr.back());
  check_apart(kOp, x, bits.back(), out, out_indptr.back());
  const auto* from = static_cast<const unsigned char*>(x.data);
  auto* to = static_cast<unsigned char*>(out.data);
  const bool big = order == BitOrder::big;
  if (context.device().kind == DeviceKind::cuda) {
    cuda::Runtime& runtime = context.cuda();
    const cuda::CurrentDevice current(*runtime.device);
    if (runtime.device->driver().is_capturing(stream))
      fail(Code::invalid_argument, kOp, "stream is being captured; the segments would be frozen");
    std::vector<std::int64_t> both = bits;
    both.insert(both.end(), out_indptr.begin(), out_indptr.end());
    const auto* on_device = static_cast<const std::int64_t*>(runtime.uploads.upload(std::as_bytes(std::span(both)), stream));
    launch(context, kOp,
           {.x = from,
            .out = to,
            .indptr = on_device,
            .out_indptr = on_device + bits.size(),
            .num_segments = segments,
            .num_bits = bits.back(),
            .num_bytes = out_indptr.back(),
            .big = big},
           stream);
    runtime.uploads.launched(stream);
    return out_indptr;
  }
  if (stream != nullptr) fail(Code::invalid_argument, kOp, "stream is given; the context is for the CPU");
  const rows::Kernels k = rows::kernels(context.cpu_target());
  for (std::int64_t i = 0; i < segments; ++i) {
    const auto at = static_cast<std::size_t>(i);
    k.pack_bits(from + bits[at], bits[at + 1] - bits[at], big, to + out_indptr[at]);
  }
  return out_indptr;
}

}  // namespace girih
