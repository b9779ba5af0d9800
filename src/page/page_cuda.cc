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

/// A plane's rows and where they go.
void describe_plane(const PlaneSource& source, rows::Launch::Part part) {
  const KvPlane& plane = *source.plane;
  const TensorView& t = *source.tensor;
  auto& [config, args] = part;
  const std::int64_t element = bits(t.dtype) / 8;
  config.x = config.weight = rows::elem_of(t.dtype);
  config.out = rows::elem_of(plane.dtype);
  config.dim = static_cast<int>(t.shape[2]);
  config.paged = true;
  args.heads = static_cast<std::int32_t>(t.shape[1]);
  args.x = {static_cast<unsigned char*>(t.data), t.strides[0] * element, t.strides[1] * element,
            t.shape[2] == 1 ? element : t.strides[2] * element};
  args.out = {static_cast<unsigned char*>(const_cast<void*>(plane.data)), plane.token_byte_stride, plane.head_byte_stride,
              dim_byte_stride(plane)};
  args.page_stride = plane.page_byte_stride;
  const KvScales& scales = plane.scales;
  config.scaling = std::array{abi::Scaling::none, abi::Scaling::tensor, abi::Scaling::head,
                              abi::Scaling::row,  abi::Scaling::block,  abi::Scaling::block}[static_cast<std::size_t>(scales.granularity)];
  args.scales = static_cast<unsigned char*>(const_cast<void*>(scales.data));
  args.scale_page_stride = scales.page_byte_stride;
  args.scale_row_stride = scales.token_byte_stride;
  args.scale_head_stride = scales.head_byte_stride;
  args.scale_block_stride = scales.granularity == ScaleGranularity::token_group ? 4 : 1;
  args.global_scale = scales.global_scale;
}

}  // namespace

rows::Launch describe_append(std::span<const PlaneSource> planes, std::int64_t num_rows) {
  rows::Launch launch;
  launch.params.rows = num_rows;
  for (const PlaneSource& plane : planes) {
    const std::int64_t heads = plane.tensor->shape[1];
    if (num_rows > rows::kMaxRows / heads)
      fail(Code::invalid_argument, "append", "{} rows of {} heads; rows times heads must be <= {}", num_rows, heads, rows::kMaxRows);
    describe_plane(plane, launch.add());
  }
  return launch;
}

std::string copy_pages_source() {
  return fmt::format(
      "// copy_pages\n#include \"page/copy_pages.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}) copy_pages(const __grid_constant__ girih::abi::CopyParams p) {{\n"
      "  girih::page::run_copy_pages(p);\n}}\n",
      kCopyThreads);
}

void append_on_device(const Context& context, const KvStore& store, std::span<const PlaneSource> planes, std::span<const Piece> pieces,
                      std::int64_t num_rows, void* stream) {
  cuda::Runtime& runtime = context.cuda();
  const cuda::CurrentDevice current(*runtime.device);
  if (runtime.device->driver().is_capturing(stream))
    fail(Code::invalid_argument, "append", "stream is being captured, and a batch of host arrays would be frozen: append by a DevicePlan");
  rows::Launch launch = describe_append(planes, num_rows);
  std::vector<abi::TokenPlace> places(static_cast<std::size_t>(num_rows));
  for (const Piece& piece : pieces) {
    for (std::int64_t i = 0; i < piece.count; ++i) places[static_cast<std::size_t>(piece.row + i)] = {piece.page, piece.token + i};
  }
  launch.params.places = static_cast<const abi::TokenPlace*>(runtime.uploads.upload(std::as_bytes(std::span(places)), stream));
  launch.params.page_size = attention::fast_divider(store.page_size);
  rows::run_on_device(context, "append", launch, stream);
  runtime.uploads.launched(stream);
}

void append_planned(const Context& context, const attention::DevicePlanState& plan, const KvStore& store, std::int64_t segment,
                    std::span<const std::int32_t> kv_indices, std::span<const PlaneSource> planes, void* stream) {
  std::int64_t num_rows = planes.front().tensor->shape[0];
  for (const PlaneSource& plane : planes) num_rows = std::min(num_rows, plane.tensor->shape[0]);
  rows::Launch launch = describe_append(planes, num_rows);
  launch.params.segment = static_cast<std::int32_t>(segment);
  launch.params.plan = reinterpret_cast<const abi::PlanHeader*>(plan.blob.data());
  launch.params.kv_indices = kv_indices.data();
  launch.params.page_size = attention::fast_divider(store.page_size);
  rows::run_on_device(context, "append", launch, stream);
}

void append_by_table(const Context& context, const KvStore& store, const abi::AppendTable& table, const std::int32_t* kv_indices,
                     std::span<const PlaneSource> planes, std::int64_t num_rows, void* stream) {
  rows::Launch launch = describe_append(planes, num_rows);
  for (int i = 0; i < launch.num_parts; ++i) launch.configs[static_cast<std::size_t>(i)].listed = true;
  launch.params.table = table;
  launch.params.kv_indices = kv_indices;
  launch.params.page_size = attention::fast_divider(store.page_size);
  rows::run_on_device(context, "append", launch, stream);
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
  p.slices = 1;
  for (std::int32_t i = 0; i < p.num_shapes; ++i) {
    const abi::CopyShape& s = p.shapes[i];
    p.slices = std::max(p.slices, ceil_div(s.chunk * s.extent[0] * s.extent[1] * s.extent[2], abi::kCopySliceBytes));
  }
  p.pairs = static_cast<const abi::PagePair*>(runtime.uploads.upload(std::as_bytes(copies), stream));
  driver.launch({.function = function,
                 .num_blocks = static_cast<int>(std::min<std::int64_t>(p.num_pairs * p.num_shapes * p.slices, 1 << 16)),
                 .num_threads = kCopyThreads,
                 .stream = stream},
                &p);
  runtime.uploads.launched(stream);
}

}  // namespace girih::page
