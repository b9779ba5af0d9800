// See page_cuda.h.
#include "page/page_cuda.h"

#include <algorithm>

#include "attention/cuda_state.h"
#include "base/error.h"
#include "base/math.h"
#include "cuda/runtime.h"
#include "page/plane.h"

namespace girih::page {
namespace {

constexpr int kThreads = kAppendThreads;

std::string_view type_name(DType t) { return t == DType::f32 ? "float" : name(t); }

std::string_view scale_name(ScaleGranularity g) {
  return std::array<std::string_view, 5>{"none", "tensor", "head", "token_head", "block"}[static_cast<std::size_t>(g)];
}

abi::AppendPlane plane_arg(const PlaneSource& p) {
  const KvPlane& plane = *p.plane;
  const TensorView& t = *p.tensor;
  const std::int64_t element = bits(t.dtype) / 8;
  return {.source = static_cast<const unsigned char*>(t.data),
          .source_row_stride = t.strides[0] * element,
          .source_head_stride = t.strides[1] * element,
          .source_dim_stride = t.shape[2] == 1 ? element : t.strides[2] * element,
          .data = static_cast<unsigned char*>(const_cast<void*>(plane.data)),
          .page_stride = plane.page_byte_stride,
          .token_stride = plane.token_byte_stride,
          .head_stride = plane.head_byte_stride,
          .dim_stride = dim_byte_stride(plane),
          .scales = static_cast<unsigned char*>(const_cast<void*>(plane.scales.data)),
          .scale_page_stride = plane.scales.page_byte_stride,
          .scale_token_stride = plane.scales.token_byte_stride,
          .scale_head_stride = plane.scales.head_byte_stride,
          .global_scale = plane.scales.global_scale,
          .dim = static_cast<std::int32_t>(t.shape[2])};
}

abi::AppendParams params_of(std::span<const PlaneSource> planes) {
  abi::AppendParams p{};
  for (std::size_t i = 0; i < planes.size(); ++i) p.planes[i] = plane_arg(planes[i]);
  p.heads = static_cast<std::int32_t>(planes.front().tensor->shape[1]);
  return p;
}

/// Enough blocks for `warps` warps, but no more than fill the device a few times.
int num_blocks(const cuda::DeviceInfo& info, std::int64_t warps) {
  return static_cast<int>(std::clamp<std::int64_t>(ceil_div(warps, kThreads / 32), 1, std::int64_t{info.num_sms} * 16));
}

cuda::Function load_append(const Context& context, std::span<const PlaneSource> planes, void* stream) {
  std::string name;
  std::string source = append_source(planes, name);
  return context.cuda().kernel("append", name, source, stream).function;
}

}  // namespace

std::string append_source(std::span<const PlaneSource> planes, std::string& name) {
  name = "append";
  std::string body;
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const KvPlane& plane = *planes[i].plane;
    const DType source = planes[i].tensor->dtype;
    const std::string_view scale = scale_name(plane.scales.granularity);
    name +=
        fmt::format("_{}_{}{}{}", girih::name(source), girih::name(plane.dtype), scale == "none" ? "" : "_", scale == "none" ? "" : scale);
    body += fmt::format("    write_row<{}, {}, Scale::{}>(p.planes[{}], row, head, place);\n", type_name(source), type_name(plane.dtype),
                        scale, i);
  }
  return fmt::format(
      "// {}\n#include \"page/append.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ girih::abi::AppendParams p) {{\n"
      "  using namespace girih;\n  using namespace girih::page;\n"
      "  for_each_row(p, [&](i64 row, i64 head, abi::TokenPlace place) {{\n{}  }});\n}}\n",
      name, kThreads, name, body);
}

std::string copy_pages_source() {
  return fmt::format(
      "// copy_pages\n#include \"page/copy_pages.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}) copy_pages(const __grid_constant__ girih::abi::CopyParams p) {{\n"
      "  girih::page::run_copy_pages(p);\n}}\n",
      kCopyThreads);
}

void append_on_device(const Context& context, const KvStore& store, std::span<const PlaneSource> planes, std::span<const Piece> pieces,
                      std::int64_t rows, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::Function function = load_append(context, planes, stream);
  const cuda::CurrentDevice current(*runtime.device);
  const cuda::Driver& driver = runtime.device->driver();
  if (driver.is_capturing(stream)) {
    fail(Code::invalid_argument, "append", "stream is being captured, and a batch of host arrays would be frozen: append by a DevicePlan");
  }
  std::vector<abi::TokenPlace> places(static_cast<std::size_t>(rows));
  for (const Piece& piece : pieces) {
    for (std::int64_t i = 0; i < piece.count; ++i) places[static_cast<std::size_t>(piece.row + i)] = {piece.page, piece.token + i};
  }
  abi::AppendParams p = params_of(planes);
  p.rows = rows;
  p.places = static_cast<const abi::TokenPlace*>(runtime.uploads.upload(std::as_bytes(std::span(places)), stream));
  p.page_size = attention::fast_divider(store.page_size);
  driver.launch(
      {.function = function, .num_blocks = num_blocks(runtime.device->info(), rows * p.heads), .num_threads = kThreads, .stream = stream},
      &p);
  runtime.uploads.launched(stream);
}

void append_planned(const Context& context, const attention::DevicePlanState& plan, const KvStore& store, std::int64_t segment,
                    std::span<const std::int32_t> kv_indices, std::span<const PlaneSource> planes, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::Function function = load_append(context, planes, stream);
  const cuda::CurrentDevice current(*runtime.device);
  abi::AppendParams p = params_of(planes);
  p.rows = planes.front().tensor->shape[0];
  for (const PlaneSource& plane : planes) p.rows = std::min(p.rows, plane.tensor->shape[0]);
  p.segment = static_cast<std::int32_t>(segment);
  p.plan = reinterpret_cast<const abi::PlanHeader*>(plan.blob.data());
  p.kv_indices = kv_indices.data();
  p.page_size = attention::fast_divider(store.page_size);
  if (p.rows == 0) return;
  runtime.device->driver().launch(
      {.function = function, .num_blocks = num_blocks(runtime.device->info(), p.rows * p.heads), .num_threads = kThreads, .stream = stream},
      &p);
}

void append_by_table(const Context& context, const KvStore& store, const abi::AppendTable& table, const std::int32_t* kv_indices,
                     std::span<const PlaneSource> planes, std::int64_t rows, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::Function function = load_append(context, planes, stream);
  const cuda::CurrentDevice current(*runtime.device);
  abi::AppendParams p = params_of(planes);
  p.rows = rows;
  p.table = table;
  p.kv_indices = kv_indices;
  p.page_size = attention::fast_divider(store.page_size);
  runtime.device->driver().launch(
      {.function = function, .num_blocks = num_blocks(runtime.device->info(), rows * p.heads), .num_threads = kThreads, .stream = stream},
      &p);
}

void copy_on_device(const Context& context, const abi::CopyParams& shapes, std::span<const PageCopy> copies, void* stream) {
  static_assert(sizeof(PageCopy) == sizeof(abi::PagePair));
  cuda::Runtime& runtime = context.cuda();
  const cuda::Function function = runtime.kernel("copy_pages", "copy_pages", copy_pages_source(), stream).function;
  const cuda::CurrentDevice current(*runtime.device);
  const cuda::Driver& driver = runtime.device->driver();
  if (driver.is_capturing(stream))
    fail(Code::invalid_argument, "copy_pages", "stream is being captured; the list of copies would be frozen");
  abi::CopyParams p = shapes;
  p.num_pairs = std::ssize(copies);
  p.pairs = static_cast<const abi::PagePair*>(runtime.uploads.upload(std::as_bytes(copies), stream));
  driver.launch({.function = function,
                 .num_blocks = static_cast<int>(std::min<std::int64_t>(p.num_pairs * p.num_shapes, 1 << 16)),
                 .num_threads = kCopyThreads,
                 .stream = stream},
                &p);
  runtime.uploads.launched(stream);
}

}  // namespace girih::page
