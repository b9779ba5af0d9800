// The row operators on a CUDA device: which threads hold a row, the kernel's text from its parts' configurations, and the launch. A kernel
// is compiled once for a Context and configuration, dims included; alignment decides between vectors and single elements.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/math.h"
#include "cuda/runtime.h"
#include "rows/rows.h"

namespace girih::rows {
namespace {

using abi::Act;
using abi::Elem;
using abi::Norm;
using abi::PartConfig;
using abi::Rotation;
using abi::RowPart;
using abi::RowTensor;
using abi::Scaling;

constexpr int kWarp = 32;
constexpr int kSmallRowThreads = 128;  // of a block whose rows take a warp or less
constexpr int kWarpVectors = 4;        // of 16 bytes a lane, before a row takes a whole block
constexpr int kPieceLoads = 2;         // of a lane, for rows that may be cut
constexpr int kPartnerVectors = 8;     // of a lane at most, so that it holds both elements of what is rotated by halves
constexpr int kHeadVectors = 8;        // of a lane, over heads that are loaded together
constexpr int kConversionThreads = 256;
constexpr int kTile = 128;
constexpr int kDequantizeElements = 8;  // of a thread at once
constexpr int kDequantizeVectors = 4;   // of those, loaded together
constexpr int kReduceBytes = 256;       // kernels/rows/pipeline.cuh

constexpr std::array<std::string_view, 8> kElems = {"f32", "f16", "bf16", "e4m3", "e5m2", "i8", "nvfp4", "mxfp4"};
constexpr std::array<std::string_view, 3> kNorms = {"none", "rms", "layer"};
constexpr std::array<std::string_view, 6> kActs = {"none", "silu", "gelu", "gelu_tanh", "swigluoai", "multiply"};
constexpr std::array<std::string_view, 3> kRotations = {"none", "half", "interleaved"};
constexpr std::array<std::string_view, 7> kScalings = {"none", "tensor", "head", "row", "block", "mx", "tile"};

template <std::size_t kSize, typename E>
std::string_view text(const std::array<std::string_view, kSize>& names, E value) {
  return names[static_cast<std::size_t>(value)];
}

bool multiple(const void* pointer, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// Whether rows of the tensor may be touched `bytes` bytes at a time.
bool aligned(const RowTensor& t, Elem e, int heads, std::int64_t rows, std::int64_t bytes) {
  if (t.data == nullptr) return true;
  if (bits_of(e) != 4 && t.dim_stride != bits_of(e) / 8) return false;
  return multiple(t.data, bytes) && (rows <= 1 || t.row_stride % bytes == 0) && (heads <= 1 || t.head_stride % bytes == 0);
}

bool is_aligned(const abi::RowsParams& p, const PartConfig& c, const RowPart& a) {
  const int vector = 128 / bits_of(c.x);
  const std::int64_t out = std::min(16, vector * bits_of(c.out) / 8);
  if (c.dim % vector != 0) return false;
  if (!aligned(a.x, c.x, a.heads, p.rows, 16) || !aligned(a.second, c.x, a.heads, p.rows, 16)) return false;
  if (!aligned(a.residual_out, c.x, a.heads, p.rows, 16) || !aligned(a.out, c.out, a.heads, c.paged ? 2 : p.rows, out)) return false;
  if (c.paged && a.page_stride % out != 0) return false;
  for (const unsigned char* w : {a.weight, a.bias}) {
    if (w != nullptr && (!multiple(w, 16) || a.weight_head_stride % 16 != 0)) return false;
  }
  return c.rotation == Rotation::none || (multiple(p.cos_sin, 16) && p.cos_sin_stride % 4 == 0 && c.rotary % 8 == 0);
}

/// Whether a stage must see a row whole.
bool whole_row(const PartConfig& c) { return c.norm != Norm::none || c.rotation != Rotation::none || c.scaling == Scaling::row; }

int block_threads(const PartConfig& c) {
  const int vectors = static_cast<int>(ceil_div(c.dim, 128 / bits_of(c.x)));
  if (!whole_row(c) || vectors <= kWarp * kWarpVectors) return 0;
  return static_cast<int>(std::min<std::int64_t>(round_up(ceil_div(vectors, kWarpVectors), kWarp), 1024));
}

/// Fewer threads, each with more of a row, where these then hold both elements of each pair.
void hold_partners(PartConfig& c, int vectors, int least) {
  for (PartConfig fewer = c; fewer.threads >= least && vectors <= kPartnerVectors * fewer.threads; fewer.threads /= 2) {
    fewer.vectors = static_cast<int>(ceil_div(vectors, fewer.threads));
    if (!abi::holds_partners(fewer)) continue;
    c = fewer;
    return;
  }
}

int heads_together(const PartConfig& c, int heads) {
  // Rotation by way of shared memory needs as much again.
  const bool shared = c.rotation == Rotation::half && !abi::holds_partners(c);
  const int operands = c.residual || c.act != Act::none || shared ? 2 : 1;
  for (int n : {4, 2}) {
    if (heads % n == 0 && n * c.vectors * operands <= kHeadVectors) return n;
  }
  return 1;
}

void shape_part(PartConfig& c, int num_threads, int heads) {
  const int per_vector = 128 / bits_of(c.x);
  const int vectors = static_cast<int>(ceil_div(c.dim, per_vector));
  if (block_threads(c) > 0) {
    c.threads = num_threads;
    c.vectors = static_cast<int>(ceil_div(vectors, num_threads));
    return;
  }
  int least = 1;
  if (const int block = block_of(c.scaling, c.out); block > 0) least = std::max(1, block / per_vector);  // neighbours that hold a block
  c.threads = std::min(kWarp, std::max<int>(least, static_cast<int>(std::bit_ceil(static_cast<unsigned>(vectors)))));
  c.vectors = static_cast<int>(ceil_div(vectors, c.threads));
  if (!whole_row(c)) c.vectors = std::min(c.vectors, c.act != Act::none && c.scaling == Scaling::none ? kPieceLoads / 2 : kPieceLoads);
  if (c.rotation == Rotation::half) hold_partners(c, vectors, least);
  c.heads = heads_together(c, heads);
}

std::string config_text(const PartConfig& c) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  return fmt::format(
      "girih::abi::PartConfig{{.x = girih::abi::Elem::{}, .weight = girih::abi::Elem::{}, .out = girih::abi::Elem::{}, .dim = {}, "
      ".rotary = {}, .rotary_begin = {}, .threads = {}, .vectors = {}, .heads = {}, .aligned = {}, .residual = {}, .interleaved = {}, "
      ".has_weight = {}, .has_bias = {}, .head_weights = {}, .paged = {}, .listed = {}, .act = girih::abi::Act::{}, "
      ".norm = girih::abi::Norm::{}, .rotation = girih::abi::Rotation::{}, .scaling = girih::abi::Scaling::{}}}",
      text(kElems, c.x), text(kElems, c.weight), text(kElems, c.out), c.dim, c.rotary, c.rotary_begin, c.threads, c.vectors, c.heads,
      flag(c.aligned), flag(c.residual), flag(c.interleaved), flag(c.has_weight), flag(c.has_bias), flag(c.head_weights), flag(c.paged),
      flag(c.listed), text(kActs, c.act), text(kNorms, c.norm), text(kRotations, c.rotation), text(kScalings, c.scaling));
}

std::string part_name(const PartConfig& c) {
  std::string name = fmt::format("_{}", text(kElems, c.x));
  if (c.residual) name += "_add";
  if (c.act != Act::none) name += fmt::format("_{}{}", text(kActs, c.act), c.interleaved ? "_interleaved" : "");
  if (c.norm != Norm::none) {
    name += fmt::format("_{}", text(kNorms, c.norm));
    if (c.has_weight || c.has_bias) name += fmt::format("_{}{}{}", text(kElems, c.weight), c.has_weight ? "w" : "", c.has_bias ? "b" : "");
  }
  if (c.rotation != Rotation::none) name += fmt::format("_rope_{}_{}_{}", text(kRotations, c.rotation), c.rotary_begin, c.rotary);
  name += fmt::format("_{}", text(kElems, c.out));
  if (c.scaling != Scaling::none) name += fmt::format("_{}", text(kScalings, c.scaling));
  if (c.heads > 1) name += fmt::format("_{}h", c.heads);
  return name + fmt::format("{}_{}_{}x{}{}", c.listed ? "_listed" : (c.paged ? "_paged" : ""), c.dim, c.threads, c.vectors,
                            c.aligned ? "" : "_elements");
}

/// All of the (shaped) configurations, as bytes: what a loaded kernel is found by.
std::string key_of(const Launch& launch, int num_threads) {
  std::string key = "rows";
  key.push_back(static_cast<char>(launch.work));
  const auto put = [&key](auto value) { key.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  put(num_threads);
  for (int i = 0; i < launch.num_parts; ++i) {
    const PartConfig& c = launch.configs[static_cast<std::size_t>(i)];
    for (const int value : {c.dim, c.rotary, c.rotary_begin, c.threads, c.vectors, c.heads}) put(value);
    for (const bool value : {c.aligned, c.residual, c.interleaved, c.has_weight, c.has_bias, c.head_weights, c.paged, c.listed}) put(value);
    put(c.x), put(c.weight), put(c.out), put(c.act), put(c.norm), put(c.rotation), put(c.scaling);
  }
  return key;
}

/// Kernels of one part that cut the tensor without regard to rows.
Shape shape_conversion(Launch& launch) {
  PartConfig& c = launch.configs[0];
  const RowPart& a = launch.params.parts[0];
  const std::int64_t rows = launch.params.rows;
  Shape shape{.num_threads = kConversionThreads};
  if (launch.work == Work::quantize_tiles) {
    c.threads = kConversionThreads;
    c.vectors = kTile * kTile / kConversionThreads * bits_of(c.x) / 128;
    c.aligned = is_aligned(launch.params, c, a);
    shape.num_blocks = ceil_div(rows, kTile) * ceil_div(c.dim, kTile);
  } else {
    c.threads = 1;
    c.vectors = kDequantizeVectors;
    const std::int64_t in = kDequantizeElements * bits_of(c.x) / 8;
    const std::int64_t out = std::min(16, kDequantizeElements * bits_of(c.out) / 8);
    c.aligned = c.dim % kDequantizeElements == 0 && aligned(a.x, c.x, a.heads, rows, in) && aligned(a.out, c.out, a.heads, rows, out);
    shape.num_blocks =
        ceil_div(rows * a.heads * ceil_div(c.dim, kDequantizeElements), std::int64_t{kConversionThreads} * kDequantizeVectors);
  }
  shape.shared_bytes = kReduceBytes;
  return shape;
}

}  // namespace

Shape shape_launch(Launch& launch) {
  if (launch.work != Work::pipeline) return shape_conversion(launch);
  Shape shape;
  for (int i = 0; i < launch.num_parts; ++i)
    shape.num_threads = std::max(shape.num_threads, block_threads(launch.configs[static_cast<std::size_t>(i)]));
  if (shape.num_threads == 0) shape.num_threads = kSmallRowThreads;
  for (int i = 0; i < launch.num_parts; ++i) {
    PartConfig& c = launch.configs[static_cast<std::size_t>(i)];
    const RowPart& a = launch.params.parts[i];
    shape_part(c, shape.num_threads, a.heads);
    c.head_weights = a.heads > 1 && a.weight_head_stride != 0;
    c.aligned = is_aligned(launch.params, c, a);
    const std::int64_t groups = c.threads > kWarp ? 1 : shape.num_threads / c.threads;
    const std::int64_t piece = std::int64_t{c.threads} * c.vectors * (128 / bits_of(c.x));
    const std::int64_t blocks = ceil_div(launch.params.rows * (a.heads / c.heads) * ceil_div(c.dim, piece), groups);
    launch.params.parts[i].num_blocks = static_cast<std::int32_t>(blocks);
    shape.num_blocks += blocks;
    if (c.rotation == Rotation::half && !abi::holds_partners(c))
      shape.shared_bytes = std::max<std::int64_t>(shape.shared_bytes, groups * piece * 4);
  }
  shape.shared_bytes += kReduceBytes;
  return shape;
}

/// Blocks of a multiprocessor for which registers shall do; 1 = as many as the compiler likes. For rows that wait for the scale of all of
/// them it likes twice as many as these take, which leaves too few rows under way.
int least_blocks(const Launch& launch, const Shape& shape) {
  const PartConfig& c = launch.configs[0];
  constexpr int kMostValues = 32;  // of a row that a thread holds
  const bool one = launch.work == Work::pipeline && launch.num_parts == 1 && c.vectors * (128 / bits_of(c.x)) <= kMostValues;
  if (!one || c.scaling != Scaling::row) return 1;
  const int threads = c.norm == Norm::none && !c.residual && c.act == Act::none ? 1024 : 640;  // of 64 and of 96 registers
  return std::max(1, threads / shape.num_threads);
}

std::string source_of(const Launch& launch, const Shape& shape, std::string& name) {
  constexpr std::array<std::string_view, 3> kFiles = {"pipeline", "tiles", "dequantize"};
  constexpr std::array<std::string_view, 3> kEntries = {"run", "quantize_tiles", "dequantize"};
  name = launch.work == Work::pipeline ? "rows" : text(kEntries, launch.work);
  std::string configs;
  for (int i = 0; i < launch.num_parts; ++i) {
    const PartConfig& c = launch.configs[static_cast<std::size_t>(i)];
    name += part_name(c);
    if (launch.work != Work::pipeline) {
      configs = config_text(c);
      continue;
    }
    // Parts of one configuration share their code.
    int count = 1;
    while (i + 1 < launch.num_parts && launch.configs[static_cast<std::size_t>(i + 1)] == c) ++count, ++i;
    if (count > 1) name += fmt::format("_{}p", count);
    configs += fmt::format("{}\n      girih::rows::Parts{{{}, {}}}", configs.empty() ? "" : ",", config_text(c), count);
  }
  return fmt::format(
      "// {}\n#include \"rows/{}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const __grid_constant__ girih::abi::RowsParams p) {{\n"
      "  girih::rows::{}<{}>(p);\n}}\n",
      name, text(kFiles, launch.work), shape.num_threads, least_blocks(launch, shape), name, text(kEntries, launch.work), configs);
}

void run_on_device(const Context& context, std::string_view op, const Launch& given, void* stream) {
  Launch launch = given;
  const Shape shape = shape_launch(launch);
  cuda::Runtime& runtime = context.cuda();
  const std::string key = key_of(launch, shape.num_threads);
  const jit::Kernel*& kernel = runtime.by_name[key];
  if (kernel == nullptr) {
    std::string name;
    const std::string source = source_of(launch, shape, name);
    kernel = &runtime.kernel(op, name, source, stream);
  }
  if (shape.num_blocks == 0) return;
  const cuda::CurrentDevice current(*runtime.device);
  runtime.device->driver().launch({.function = kernel->function,
                                   .num_blocks = static_cast<int>(shape.num_blocks),
                                   .num_threads = shape.num_threads,
                                   .shared_bytes = shape.shared_bytes,
                                   .stream = stream,
                                   .dependent = runtime.device->info().arch >= 90},
                                  &launch.params);
}

}  // namespace girih::rows
