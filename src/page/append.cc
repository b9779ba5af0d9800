// append(): new K and V rows into the pages of a store, converted and quantised as they are written. Everything is checked first; then the
// workers take equal shares of the new tokens, whatever requests and pages these belong to.
// Where source and plane have the same type and the heads of a token lie as in the source, whole runs of tokens are one memcpy.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "cpu/thread_pool.h"
#include "cuda/alignment.h"
#include "girih/page.h"
#include "page/batch.h"
#include "page/page_cuda.h"
#include "page/plane.h"
#include "page/quantize.h"

namespace girih {
namespace {

using page::Piece;

constexpr std::string_view kOp = "append";
constexpr std::int64_t kMostSlots = std::int64_t{1} << 31;  // that kernels divide by the page size

/// One plane with the tensor that is written to it.
struct PlaneJob {
  const KvPlane* plane = nullptr;
  const char* source = nullptr;
  std::int64_t source_row_stride = 0;  // bytes, as the next two
  std::int64_t source_head_stride = 0;
  std::int64_t source_dim_stride = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
  std::int64_t token_bytes = 0;  // of a token whose heads are adjacent on both sides and copied as they are; else 0
  page::RowWriter writer;
};

/// `rows`: how many of the tensor's are read.
void check_source(Device device, std::string_view what, const TensorView& t, std::int64_t rows) {
  if (t.rank != 3) fail(Code::invalid_argument, kOp, "{} has rank {}; must be 3: [tokens, heads, dim]", what, t.rank);
  if (t.device != device) fail(Code::invalid_argument, kOp, "{}.device={}; the context is for {}", what, name(t.device), name(device));
  if (t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16) {
    fail(Code::invalid_argument, kOp, "{} is {}; new keys and values must be f32, f16 or bf16", what, name(t.dtype));
  }
  if (t.shape[0] < rows) {
    fail(Code::invalid_argument, kOp, "{}.shape[0]={} < {} tokens that are appended; every one needs a row", what, t.shape[0], rows);
  }
  if (rows > 0 && t.data == nullptr) fail(Code::invalid_argument, kOp, "{}.data is null; must hold {} rows", what, rows);
}

/// Scales that are inputs must be usable divisors.
void check_given_scales(std::string_view what, const KvPlane& plane, std::int64_t heads) {
  const KvScales& scales = plane.scales;
  if (scales.granularity != ScaleGranularity::tensor && scales.granularity != ScaleGranularity::head) return;
  const bool per_head = scales.granularity == ScaleGranularity::head;
  for (std::int64_t head = 0; head < (per_head ? heads : 1); ++head) {
    const float scale = load_element<DType::f32>(static_cast<const char*>(scales.data) + head * scales.head_byte_stride, 0);
    if (!std::isfinite(scale * scales.global_scale) || !(scale * scales.global_scale > 0)) {
      fail(Code::invalid_argument, kOp, "{}.scales[{}]={} times global_scale={}; must be finite and > 0", what, head, scale,
           scales.global_scale);
    }
  }
}

/// Throws unless the tensor's rows can be written to the plane.
void check_job(Device device, std::string_view tensor_name, std::string_view plane_name, const KvStore& store, const KvPlane& plane,
               const TensorView& t, std::int64_t rows, std::int64_t heads) {
  check_source(device, tensor_name, t, rows);
  if (t.shape[1] != heads) {
    fail(Code::invalid_argument, kOp, "{}.shape[1]={}; must be {} (heads of k)", tensor_name, t.shape[1], heads);
  }
  page::check_plane(kOp, plane_name, store, plane, heads, t.shape[2]);
}

PlaneJob make_job(std::string_view tensor_name, std::string_view plane_name, const KvStore& store, const KvPlane& plane,
                  const TensorView& t, std::int64_t rows, std::int64_t heads) {
  check_job({}, tensor_name, plane_name, store, plane, t, rows, heads);
  check_given_scales(plane_name, plane, heads);
  const std::int64_t element = bits(t.dtype) / 8;
  PlaneJob job;
  job.plane = &plane;
  job.source = static_cast<const char*>(t.data);
  job.source_row_stride = t.strides[0] * element;
  job.source_head_stride = t.strides[1] * element;
  job.source_dim_stride = t.shape[2] == 1 ? element : t.strides[2] * element;
  job.heads = heads;
  job.dim = t.shape[2];
  const bool in_place = job.source_dim_stride == element && reinterpret_cast<std::uintptr_t>(t.data) % alignof(float) == 0;
  job.writer = page::row_writer(t.dtype, in_place, plane.dtype, plane.scales.granularity);
  const std::int64_t row = job.dim * element;
  const bool adjacent = heads == 1 || (plane.head_byte_stride == row && job.source_head_stride == row);
  if (job.writer.move != nullptr && adjacent && job.source_dim_stride == element && page::dense_row(plane)) job.token_bytes = heads * row;
  return job;
}

/// Writes one token's heads by the row writer.
void write_token(const PlaneJob& job, std::int64_t row, std::int64_t page_id, std::int64_t token) {
  const KvPlane& plane = *job.plane;
  const KvScales& scales = plane.scales;
  const std::int64_t byte_stride = page::dim_byte_stride(plane);
  const bool computed = page::is_computed(scales.granularity);
  std::array<float, page::kMaxDim> buffer;
  for (std::int64_t head = 0; head < job.heads; ++head) {
    const char* source = job.source + row * job.source_row_stride + head * job.source_head_stride;
    char* out = page::token_address(plane, page_id, token) + head * plane.head_byte_stride;
    if (job.writer.move != nullptr) {
      job.writer.move(source, job.source_dim_stride, job.dim, out, byte_stride);
      continue;
    }
    const float* values = reinterpret_cast<const float*>(source);
    if (job.writer.load != nullptr) {
      job.writer.load(source, job.source_dim_stride, job.dim, buffer.data());
      values = buffer.data();
    }
    float scale = scales.global_scale;
    char* scale_out = nullptr;
    if (computed) {
      scale_out = page::token_address(scales, page_id, token) + head * scales.head_byte_stride;
    } else if (scales.granularity != ScaleGranularity::none) {
      const std::int64_t at = scales.granularity == ScaleGranularity::head ? head * scales.head_byte_stride : 0;
      scale *= load_element<DType::f32>(static_cast<const char*>(scales.data) + at, 0);
    }
    job.writer.store(values, job.dim, scale, out, byte_stride, scale_out);
  }
}

void write_piece(const PlaneJob& job, const Piece& piece) {
  if (job.token_bytes == 0) {
    for (std::int64_t i = 0; i < piece.count; ++i) write_token(job, piece.row + i, piece.page, piece.token + i);
    return;
  }
  const char* source = job.source + piece.row * job.source_row_stride;
  char* out = page::token_address(*job.plane, piece.page, piece.token);
  if (job.source_row_stride == job.token_bytes && job.plane->token_byte_stride == job.token_bytes) {
    std::memcpy(out, source, static_cast<std::size_t>(piece.count * job.token_bytes));
    return;
  }
  for (std::int64_t i = 0; i < piece.count; ++i) {
    std::memcpy(out + i * job.plane->token_byte_stride, source + i * job.source_row_stride, static_cast<std::size_t>(job.token_bytes));
  }
}

/// Rows [begin, end) of all planes. Pieces are in row order and cover all rows.
void write_rows(const std::vector<PlaneJob>& jobs, const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin, [](std::int64_t row, const Piece& p) { return row < p.row; }) - 1;
  for (; piece != pieces.end() && piece->row < end; ++piece) {
    if (piece->page < 0) continue;
    const std::int64_t first = std::max(begin, piece->row);
    const std::int64_t last = std::min(end, piece->row + piece->count);
    const Piece part{first, piece->page, piece->token + (first - piece->row), last - first};
    for (const PlaneJob& job : jobs) write_piece(job, part);
  }
}

void check_optional(std::string_view tensor_name, std::string_view plane_name, const TensorView& t, const KvPlane& plane) {
  if (t.rank == 0 && plane.data != nullptr) {
    fail(Code::invalid_argument, kOp, "{} is not given but {} has memory; give it, or leave the plane empty", tensor_name, plane_name);
  }
}

void check_tensors(Device device, const KvStore& store, std::int64_t rows, const TensorView& k, const TensorView& k_rope,
                   const TensorView& v) {
  check_source(device, "k", k, rows);
  if (k.shape[1] < 1) fail(Code::invalid_argument, kOp, "k.shape[1]={}; must have at least one head", k.shape[1]);
  check_optional("k_rope", "store.k_rope", k_rope, store.k_rope);
  check_optional("v", "store.v", v, store.v);
}

/// The planes of a store on a GPU; scales that are inputs cannot be read here.
std::vector<page::PlaneSource> device_planes(Device device, const KvStore& store, std::int64_t rows, const TensorView& k,
                                             const TensorView& k_rope, const TensorView& v) {
  std::vector<page::PlaneSource> planes;
  const auto add = [&](std::string_view tensor_name, std::string_view plane_name, const KvPlane& plane, const TensorView& t) {
    if (t.rank == 0) return;
    check_job(device, tensor_name, plane_name, store, plane, t, rows, k.shape[1]);
    if (!cuda::is_aligned(t.data, t.dtype)) cuda::fail_unaligned(kOp, tensor_name, t.data, t.dtype);
    page::check_plane_aligned(kOp, plane_name, plane, store.page_size != kEndlessPage);
    planes.push_back({&plane, &t});
  };
  add("k", "store.k", store.k, k);
  add("k_rope", "store.k_rope", store.k_rope, k_rope);
  add("v", "store.v", store.v, v);
  return planes;
}

void append_on_cpu(const Context& context, const KvStore& store, const std::vector<Piece>& pieces, std::int64_t rows, const TensorView& k,
                   const TensorView& k_rope, const TensorView& v, void* stream) {
  if (stream != nullptr) fail(Code::invalid_argument, kOp, "stream is given; the context is for the CPU");
  std::vector<PlaneJob> jobs;
  jobs.push_back(make_job("k", "store.k", store, store.k, k, rows, k.shape[1]));
  if (k_rope.rank != 0) jobs.push_back(make_job("k_rope", "store.k_rope", store, store.k_rope, k_rope, rows, k.shape[1]));
  if (v.rank != 0) jobs.push_back(make_job("v", "store.v", store, store.v, v, rows, k.shape[1]));
  if (rows == 0) return;
  cpu::ThreadPool& pool = context.pool();
  const std::int64_t workers = pool.num_workers();
  const std::int64_t share = rows / workers;
  const std::int64_t rest = rows % workers;
  pool.parallel([&](int worker) {
    const std::int64_t begin = worker * share + std::min<std::int64_t>(worker, rest);
    write_rows(jobs, pieces, begin, begin + share + (worker < rest ? 1 : 0));
  });
}

}  // namespace

void append(const Context& context, const KvStore& store, const AppendBatch& batch, const TensorView& k, const TensorView& k_rope,
            const TensorView& v, void* stream) {
  page::check_pages(kOp, store);
  const std::vector<Piece> pieces = page::plan_append(kOp, store, batch);
  const std::int64_t rows = batch.append_indptr[batch.append_indptr.size() - 1];
  check_tensors(context.device(), store, rows, k, k_rope, v);
  if (context.device().kind == DeviceKind::cuda) {
    const std::vector<page::PlaneSource> planes = device_planes(context.device(), store, rows, k, k_rope, v);
    if (rows > 0) page::append_on_device(context, store, planes, pieces, rows, stream);
    return;
  }
  append_on_cpu(context, store, pieces, rows, k, k_rope, v, stream);
}

void append(const Context& context, const KvStore& store, const AppendTable& table, const TensorView& k, const TensorView& k_rope,
            const TensorView& v, void* stream) {
  page::check_pages(kOp, store);
  const std::int64_t rows = page::check_table(kOp, context.device(), store, table);
  check_tensors(context.device(), store, rows, k, k_rope, v);
  if (context.device().kind == DeviceKind::cpu) {
    append_on_cpu(context, store, page::plan_append(kOp, store, table), rows, k, k_rope, v, stream);
    return;
  }
  if (table.slots.rank != 0 && store.page_size != kEndlessPage && store.num_pages > kMostSlots / store.page_size) {
    fail(Code::unsupported, kOp, "slots of a store of {} pages of {}: more than 2^31 places; give batch_indices and positions",
         store.num_pages, store.page_size);
  }
  const std::vector<page::PlaneSource> planes = device_planes(context.device(), store, rows, k, k_rope, v);
  if (rows == 0) return;
  const TensorView* arrays[] = {&table.slots, &table.batch_indices, &table.positions, &table.kv_indptr};
  const unsigned char* data[4];
  std::int32_t wide = 0;
  for (int i = 0; i < 4; ++i) {
    data[i] = static_cast<const unsigned char*>(arrays[i]->data);
    if (arrays[i]->dtype == DType::i64) wide |= 1 << i;
  }
  const abi::AppendTable args{.slots = data[0],
                              .batch_indices = data[1],
                              .positions = data[2],
                              .kv_indptr = data[3],
                              .num_requests = table.slots.rank == 0 ? table.kv_indptr.shape[0] - 1 : 0,
                              .num_pages = store.num_pages,
                              .num_entries = table.kv_indices.rank == 0 ? 0 : table.kv_indices.shape[0],
                              .wide = wide};
  page::append_by_table(context, store, args, static_cast<const std::int32_t*>(table.kv_indices.data), planes, rows, stream);
}

void append(const Context& context, const DevicePlan& plan, const KvStore& store, std::span<const std::int32_t> kv_indices,
            const TensorView& k, const TensorView& k_rope, const TensorView& v, std::int64_t segment, void* stream) {
  const attention::DevicePlanState& state = plan.state();
  if (context.device() != state.schedule->device)
    fail(Code::invalid_argument, kOp, "context.device={}; the plan is on {}", name(context.device()), name(state.schedule->device));
  if (state.uploaded == nullptr) fail(Code::invalid_argument, kOp, "plan holds no batch yet; call upload() first");
  const attention::PlanView& view = state.uploaded->view;
  if (segment < 0 || segment >= std::ssize(view.segments))
    fail(Code::invalid_argument, kOp, "segment={}; the plan has {}", segment, view.segments.size());
  const abi::SegmentInfo& info = view.segments[static_cast<std::size_t>(segment)];
  if (info.num_table_heads != 1)
    fail(Code::unsupported, kOp, "segments[{}] has a table for each KV head; append by an AppendBatch for each", segment);
  page::check_pages(kOp, store);
  if (store.page_size != info.page_size)
    fail(Code::invalid_argument, kOp, "store.page_size={} differs from the planned {}", store.page_size, info.page_size);
  if (std::ssize(kv_indices) < info.num_entries)
    fail(Code::invalid_argument, kOp, "kv_indices has {} entries; the plan reads {}", kv_indices.size(), info.num_entries);
  const std::int64_t rows = view.header->num_tokens;
  check_tensors(context.device(), store, rows, k, k_rope, v);
  const std::vector<page::PlaneSource> planes = device_planes(context.device(), store, rows, k, k_rope, v);
  page::append_planned(context, state, store, segment, kv_indices, planes, stream);
}

AppendPositions append_positions(Indices append_indptr, Indices kv_len) {
  page::check_lengths("append_positions", append_indptr, kv_len);
  const std::int64_t requests = append_indptr.size() - 1;
  AppendPositions out;
  try {
    out.batch_indices.reserve(static_cast<std::size_t>(append_indptr[requests]));
    out.positions.reserve(static_cast<std::size_t>(append_indptr[requests]));
  } catch (const std::exception&) {
    fail(Code::out_of_memory, "append_positions", "append_indptr ends at {}: no memory for as many positions", append_indptr[requests]);
  }
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t added = append_indptr[r + 1] - append_indptr[r];
    for (std::int64_t i = 0; i < added; ++i) {
      out.batch_indices.push_back(static_cast<std::int32_t>(r));
      out.positions.push_back(kv_len[r] - added + i);
    }
  }
  return out;
}

}  // namespace girih
