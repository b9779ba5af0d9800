// rope() and rope_append(): arguments checked and described as parts of the row operators' core.
#include "rope/rope.h"

#include <cmath>
#include <cstring>

#include "attention/cuda_state.h"
#include "attention/device_plan.h"
#include "base/error.h"
#include "base/numeric.h"
#include "cuda/runtime.h"
#include "page/batch.h"
#include "page/plane.h"
#include "rows/check.h"

namespace girih {
namespace {

using abi::Rotation;
using abi::Scaling;
using rows::Checker;
using rows::Launch;
using rows::RowShape;

constexpr std::string_view kRope = "rope";
constexpr std::string_view kRopeAppend = "rope_append";

bool is_index(DType t) { return t == DType::i32 || t == DType::i64; }

RowShape shape_of(const Checker& check, std::string_view name, const TensorView& t) {
  if (t.rank != 3) fail(Code::invalid_argument, check.op, "{} has rank {}; must be 3: [rows, heads, dim]", name, t.rank);
  return check.shape(name, t);
}

/// The table; fills what parts share. `pairs_of` must be a dim that holds the rotated elements.
void describe_table(const Checker& check, const RopeArgs& args, Launch& launch) {
  const TensorView& t = args.cos_sin;
  if (t.rank != 2) fail(Code::invalid_argument, check.op, "cos_sin has rank {}; must be 2: [positions, rotary_dim]", t.rank);
  if (t.dtype != DType::f32)
    fail(Code::invalid_argument, check.op, "cos_sin is {}; must be f32: 16-bit angles are wrong at long contexts", name(t.dtype));
  if (t.device != check.device)
    fail(Code::invalid_argument, check.op, "cos_sin.device={}; the context is for {}", name(t.device), name(check.device));
  if (t.shape[0] < 1) fail(Code::invalid_argument, check.op, "cos_sin.shape[0]={}; must hold at least one position", t.shape[0]);
  if (t.shape[1] < 2 || t.shape[1] % 2 != 0)
    fail(Code::invalid_argument, check.op, "cos_sin.shape[1]={}; must be even: cosines, then sines", t.shape[1]);
  if (t.strides[1] != 1) fail(Code::invalid_argument, check.op, "cos_sin.strides[1]={}; must be 1 (dense)", t.strides[1]);
  if (t.data == nullptr) fail(Code::invalid_argument, check.op, "cos_sin.data is null; must hold {} positions", t.shape[0]);
  if (args.rotary_begin < 0) fail(Code::invalid_argument, check.op, "rotary_begin={}; must be >= 0", args.rotary_begin);
  if (args.interleaved && args.rotary_begin % 2 != 0)
    fail(Code::invalid_argument, check.op, "rotary_begin={} with interleaved; must be even", args.rotary_begin);
  if (!std::isfinite(args.eps) || args.eps < 0) fail(Code::invalid_argument, check.op, "eps={}; must be finite and >= 0", args.eps);
  if (!std::isfinite(args.weight_offset)) fail(Code::invalid_argument, check.op, "weight_offset={}; must be finite", args.weight_offset);
  launch.params.cos_sin = static_cast<const float*>(t.data);
  launch.params.cos_sin_stride = t.strides[0];
  launch.params.num_positions = t.shape[0];
}

/// Positions, if they are given. `needed`: they must be.
void describe_positions(const Checker& check, const RopeArgs& args, std::int64_t rows, bool needed, Launch& launch) {
  const auto view = [&](std::string_view what, const TensorView& t, std::int64_t least) {
    if (t.rank != 1) fail(Code::invalid_argument, check.op, "{} has rank {}; must be 1", what, t.rank);
    if (!is_index(t.dtype)) fail(Code::invalid_argument, check.op, "{} is {}; must be i32 or i64", what, name(t.dtype));
    if (t.device != check.device)
      fail(Code::invalid_argument, check.op, "{}.device={}; the context is for {}", what, name(t.device), name(check.device));
    if (t.shape[0] < least) fail(Code::invalid_argument, check.op, "{}.shape[0]={}; must be at least {}", what, t.shape[0], least);
    if (rows > 0 && t.data == nullptr) fail(Code::invalid_argument, check.op, "{}.data is null; must hold {} indices", what, least);
    return static_cast<const unsigned char*>(t.data);
  };
  const bool by_request = args.indptr.rank != 0 || args.offsets.rank != 0;
  if (args.positions.rank != 0 && by_request) fail(Code::invalid_argument, check.op, "positions and indptr are both given; use one");
  if (args.positions.rank != 0) {
    launch.params.positions = view("positions", args.positions, rows);
    launch.params.positions_64 = args.positions.dtype == DType::i64 ? 1 : 0;
    launch.params.position_stride = args.positions.strides[0] * bits(args.positions.dtype) / 8;
  } else if (by_request) {
    launch.params.requests = args.indptr.shape[0] - 1;
    launch.params.indptr = view("indptr", args.indptr, 1);
    launch.params.offsets = view("offsets", args.offsets, launch.params.requests);
    launch.params.positions_64 = args.indptr.dtype == DType::i64 ? 1 : 0;
    if (args.indptr.dtype != args.offsets.dtype)
      fail(Code::invalid_argument, check.op, "offsets is {}; must be indptr's {}", name(args.offsets.dtype), name(args.indptr.dtype));
    for (const TensorView* t : {&args.indptr, &args.offsets}) {
      if (t->shape[0] > 1 && t->strides[0] != 1)
        fail(Code::invalid_argument, check.op, "indptr and offsets must be dense; a stride is {}", t->strides[0]);
    }
  } else if (needed) {
    fail(Code::invalid_argument, check.op, "neither positions nor indptr and offsets are given; rows need positions");
  }
  if (check.device.kind == DeviceKind::cuda || rows == 0) return;
  const auto index = [&](const TensorView& t, std::int64_t i) {
    const auto* at = static_cast<const char*>(t.data) + i * t.strides[0] * bits(t.dtype) / 8;
    std::int64_t value = 0;
    if (t.dtype == DType::i64) {
      std::memcpy(&value, at, 8);
    } else {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, at, 4);
      value = narrow;
    }
    return value;
  };
  const std::int64_t end = launch.params.num_positions;
  const auto inside = [&](std::string_view what, std::int64_t i, std::int64_t first, std::int64_t count) {
    if (count > 0 && (first < 0 || first > end - count))
      fail(Code::invalid_argument, check.op, "{}[{}]={} with {} rows; the table has positions 0..{}", what, i, first, count, end - 1);
  };
  if (args.positions.rank != 0) {
    for (std::int64_t i = 0; i < rows; ++i) inside("positions", i, index(args.positions, i), 1);
  } else if (by_request) {
    if (index(args.indptr, 0) != 0) fail(Code::invalid_argument, check.op, "indptr[0]={}; must be 0", index(args.indptr, 0));
    for (std::int64_t i = 0; i < launch.params.requests; ++i) {
      const std::int64_t count = index(args.indptr, i + 1) - index(args.indptr, i);
      if (count < 0)
        fail(Code::invalid_argument, check.op, "indptr[{}]={} < indptr[{}]={}; must be non-decreasing", i + 1, index(args.indptr, i + 1), i,
             index(args.indptr, i));
      inside("offsets", i, index(args.offsets, i), count);
    }
    if (index(args.indptr, launch.params.requests) != rows)
      fail(Code::invalid_argument, check.op, "indptr[{}]={}; must end at the {} rows", launch.params.requests,
           index(args.indptr, launch.params.requests), rows);
  }
}

/// A source with its norm and rotation.
Launch::Part add_source(const Checker& check, const RopeArgs& args, std::string_view name, const TensorView& t, const TensorView& weight,
                        bool rotated, const RowShape& shape, Launch& launch) {
  const Launch::Part part = launch.add();
  auto& [config, params] = part;
  config.x = rows::elem_of(t.dtype == DType::f16 || t.dtype == DType::bf16 ? t.dtype : DType::f32);
  params.x = check.source(name, t, shape);
  config.weight = config.x;
  config.dim = static_cast<int>(shape.dim);
  params.heads = static_cast<std::int32_t>(shape.heads);
  if (rotated) {
    const std::int64_t rotary = args.cos_sin.shape[1];
    if (rotary > shape.dim - args.rotary_begin)
      fail(Code::invalid_argument, check.op, "cos_sin.shape[1]={} with rotary_begin={}; {} has {} elements a head", rotary,
           args.rotary_begin, name, shape.dim);
    config.rotary = static_cast<int>(rotary);
    config.rotary_begin = args.rotary_begin;
    config.rotation = args.interleaved ? Rotation::interleaved : Rotation::half;
  }
  if (weight.rank != 0) {
    const std::string what = std::string(name) + "_weight";
    params.weight_head_stride = check.weight(what, weight, shape, t.dtype);
    params.weight = static_cast<const unsigned char*>(weight.data);
    params.eps = args.eps;
    params.weight_offset = args.weight_offset;
    config.weight = rows::elem_of(weight.dtype);
    config.has_weight = true;
    config.norm = abi::Norm::rms;
  }
  return part;
}

void add_output(const Checker& check, std::string_view name, const TensorView& out, const Quantization& q, const RowShape& shape,
                std::string_view source, Launch::Part part) {
  part.args.out = check.output(name, out, shape);
  check.quantization(q, out, shape, part);
  check.overlap(name, part.args.out, part.config.out, source, part.args.x, part.config.x, shape, shape.dim);
}

/// An output may not share memory with another part's source either: parts run side by side.
void check_apart(const Checker& check, const Launch& launch, int a, int b, std::string_view name_a, std::string_view name_b) {
  const auto one = [&](int w, int r, std::string_view written, std::string_view read) {
    const abi::RowPart& out = launch.params.parts[w];
    const abi::RowPart& in = launch.params.parts[r];
    const abi::PartConfig& cw = launch.configs[static_cast<std::size_t>(w)];
    const abi::PartConfig& cr = launch.configs[static_cast<std::size_t>(r)];
    if (cw.paged || out.out.data != in.x.data || launch.params.rows == 0) return;
    if (cw.dim > 0 && cr.dim > 0) fail(Code::invalid_argument, check.op, "{} is the memory of {}; each needs its own", written, read);
  };
  one(a, b, name_a, name_b);
  one(b, a, name_b, name_a);
}

/// Where rows of a plane go, and its scales.
void add_plane(const Checker& check, std::string_view name, const KvStore& store, const KvPlane& plane, const RowShape& shape,
               Launch::Part part) {
  page::check_plane(check.op, name, store, plane, shape.heads, shape.dim);
  auto& [config, params] = part;
  config.paged = true;
  config.out = rows::elem_of(plane.dtype);
  params.out.data = static_cast<unsigned char*>(const_cast<void*>(plane.data));
  params.page_stride = plane.page_byte_stride;
  params.out.row_stride = plane.token_byte_stride;
  params.out.head_stride = plane.head_byte_stride;
  params.out.dim_stride = page::dim_byte_stride(plane);
  const KvScales& s = plane.scales;
  if (s.granularity == ScaleGranularity::none) return;
  params.scales = static_cast<unsigned char*>(const_cast<void*>(s.data));
  params.scale_page_stride = s.page_byte_stride;
  params.scale_row_stride = s.token_byte_stride;
  params.scale_head_stride = s.head_byte_stride;
  params.scale_block_stride = s.granularity == ScaleGranularity::token_group ? 4 : 1;
  params.global_scale = s.global_scale;
  switch (s.granularity) {
    case ScaleGranularity::tensor: config.scaling = Scaling::tensor; break;
    case ScaleGranularity::head: config.scaling = Scaling::head; break;
    case ScaleGranularity::token_head: config.scaling = Scaling::row; break;
    default: config.scaling = Scaling::block;
  }
  if (check.device.kind == DeviceKind::cuda || (config.scaling != Scaling::tensor && config.scaling != Scaling::head)) return;
  for (std::int64_t head = 0; head < (config.scaling == Scaling::head ? shape.heads : 1); ++head) {
    const float scale = load_element<DType::f32>(static_cast<const char*>(s.data) + head * s.head_byte_stride, 0) * s.global_scale;
    if (!std::isfinite(scale) || !(scale > 0))
      fail(Code::invalid_argument, check.op, "{}.scales[{}] times global_scale={}; must be finite and > 0", name, head, scale);
  }
}

/// The rows that are appended, of a tensor that may hold more.
TensorView first_rows(const Checker& check, std::string_view name, TensorView t, std::int64_t rows) {
  if (t.rank == 3 && t.shape[0] < rows)
    fail(Code::invalid_argument, check.op, "{}.shape[0]={}; every one of the {} appended tokens needs a row", name, t.shape[0], rows);
  if (t.rank == 3) t.shape[0] = rows;
  return t;
}

}  // namespace

Launch describe_rope(Device device, const RopeArgs& args) {
  const Checker check{.op = kRope, .device = device};
  if (args.q.rank == 0 && args.k.rank == 0) fail(Code::invalid_argument, kRope, "neither q nor k is given; there is nothing to rotate");
  Launch launch;
  describe_table(check, args, launch);
  const auto add = [&](std::string_view name, const TensorView& t, const TensorView& out, const TensorView& weight, const Quantization& q) {
    const std::string out_name = std::string(name) + "_out";
    if (t.rank == 0) {
      if (out.rank != 0 || weight.rank != 0) fail(Code::invalid_argument, kRope, "{} or its weight is given without {}", out_name, name);
      return;
    }
    const RowShape shape = shape_of(check, name, t);
    if (launch.num_parts > 0 && shape.rows != launch.params.rows)
      fail(Code::invalid_argument, kRope, "{}.shape[0]={}; must be {} (rows of q)", name, shape.rows, launch.params.rows);
    launch.params.rows = shape.rows;
    add_output(check, out_name, out, q, shape, name, add_source(check, args, name, t, weight, true, shape, launch));
  };
  add("q", args.q, args.q_out, args.q_weight, args.q_quantization);
  add("k", args.k, args.k_out, args.k_weight, args.k_quantization);
  if (launch.num_parts == 2) check_apart(check, launch, 0, 1, "q_out", "k");
  describe_positions(check, args, launch.params.rows, true, launch);
  return launch;
}

void rope(const Context& context, const RopeArgs& args, void* stream) {
  rows::run(context, kRope, describe_rope(context.device(), args), stream);
}

Launch describe_rope_append(Device device, const KvStore& store, std::int64_t num_rows, const RopeAppendArgs& args) {
  const Checker check{.op = kRopeAppend, .device = device};
  const RopeArgs& r = args.rope;
  page::check_pages(kRopeAppend, store);
  if (r.k.rank == 0) fail(Code::invalid_argument, kRopeAppend, "rope.k is not given; there is nothing to append");
  if (r.k_out.rank != 0 || r.k_quantization.scale != QuantScale::none)
    fail(Code::invalid_argument, kRopeAppend, "rope.k_out or k_quantization is given; the store's planes say where and how keys are kept");
  Launch launch;
  launch.params.rows = num_rows;
  describe_table(check, r, launch);
  const auto part = [&](std::string_view name, const TensorView& whole, const TensorView& weight, bool rotated, RowShape& shape) {
    const TensorView t = first_rows(check, name, whole, num_rows);
    shape = shape_of(check, name, t);
    return add_source(check, r, name, t, weight, rotated, shape, launch);
  };
  RowShape shape;
  const auto queries = [&](std::string_view name, const TensorView& q, std::string_view out_name, const TensorView& q_out,
                           const TensorView& weight, bool rotated) {
    if (q.rank == 0) {
      if (q_out.rank != 0) fail(Code::invalid_argument, kRopeAppend, "{} is given without {}", out_name, name);
      return;
    }
    const Launch::Part p = part(name, q, weight, rotated, shape);
    add_output(check, out_name, first_rows(check, out_name, q_out, num_rows), r.q_quantization, shape, name, p);
  };
  if (args.q_nope.rank != 0 && r.q_quantization.scale != QuantScale::none && r.q_quantization.scale != QuantScale::tensor)
    fail(Code::invalid_argument, kRopeAppend, "q_nope with q_quantization.scale={}; two tensors can share a tensor's scale only",
         static_cast<int>(r.q_quantization.scale));
  queries("q", r.q, "q_out", r.q_out, r.q_weight, true);
  queries("q_nope", args.q_nope, "q_nope_out", args.q_nope_out, {}, false);
  const bool mla = args.k_nope.rank != 0;
  if (!mla && store.k_rope.data != nullptr)
    fail(Code::invalid_argument, kRopeAppend, "store.k_rope has memory but k_nope is not given; give it, or leave the plane empty");
  RowShape k_shape;
  add_plane(check, mla ? "store.k_rope" : "store.k", store, mla ? store.k_rope : store.k,
            k_shape = shape_of(check, "k", first_rows(check, "k", r.k, num_rows)), part("k", r.k, r.k_weight, true, shape));
  const auto same_heads = [&](std::string_view name) {
    if (shape.heads != k_shape.heads)
      fail(Code::invalid_argument, kRopeAppend, "{}.shape[1]={}; must be {} (heads of k)", name, shape.heads, k_shape.heads);
  };
  if (mla) {
    const Launch::Part p = part("k_nope", args.k_nope, {}, false, shape);
    same_heads("k_nope");
    add_plane(check, "store.k", store, store.k, shape, p);
  }
  if (args.v.rank != 0) {
    const Launch::Part p = part("v", args.v, {}, false, shape);
    same_heads("v");
    add_plane(check, "store.v", store, store.v, shape, p);
  } else if (store.v.data != nullptr) {
    fail(Code::invalid_argument, kRopeAppend, "v is not given but store.v has memory; give it, or leave the plane empty");
  }
  for (int a = 0; a < launch.num_parts; ++a) {
    for (int b = a + 1; b < launch.num_parts; ++b) check_apart(check, launch, a, b, "an output of queries", "another tensor");
  }
  return launch;
}

AppendPlaces append_places(std::string_view op, const KvStore& store, const AppendBatch& batch) {
  AppendPlaces out;
  const std::vector<page::Piece> pieces = page::plan_append(op, store, batch);
  const std::int64_t requests = batch.append_indptr.size() - 1;
  const auto rows = static_cast<std::size_t>(batch.append_indptr[requests]);
  out.places.resize(rows);
  out.positions.resize(rows);
  for (const page::Piece& piece : pieces) {
    for (std::int64_t i = 0; i < piece.count; ++i) out.places[static_cast<std::size_t>(piece.row + i)] = {piece.page, piece.token + i};
  }
  for (std::int64_t r = 0; r < requests; ++r) {
    for (std::int64_t row = batch.append_indptr[r]; row < batch.append_indptr[r + 1]; ++row)
      out.positions[static_cast<std::size_t>(row)] = batch.kv_len[r] - (batch.append_indptr[r + 1] - row);
  }
  return out;
}

void rope_append(const Context& context, const KvStore& store, const AppendBatch& batch, const RopeAppendArgs& args, void* stream) {
  page::check_pages(kRopeAppend, store);
  const AppendPlaces at = append_places(kRopeAppend, store, batch);
  const std::int64_t num_rows = std::ssize(at.places);
  Launch launch = describe_rope_append(context.device(), store, num_rows, args);
  const Checker check{.op = kRopeAppend, .device = context.device()};
  describe_positions(check, args.rope, num_rows, false, launch);
  const bool own_positions = launch.params.positions == nullptr && launch.params.indptr == nullptr;
  for (std::size_t i = 0; own_positions && i < at.positions.size(); ++i) {
    if (at.positions[i] >= launch.params.num_positions)
      fail(Code::invalid_argument, kRopeAppend, "row {} is key {} of its list; cos_sin has positions 0..{}", i, at.positions[i],
           launch.params.num_positions - 1);
  }
  if (num_rows == 0) return;
  if (own_positions) {
    launch.params.positions_64 = 1;
    launch.params.position_stride = 8;
  }
  if (context.device().kind == DeviceKind::cpu) {
    launch.params.places = at.places.data();
    if (own_positions) launch.params.positions = reinterpret_cast<const unsigned char*>(at.positions.data());
    return rows::run(context, kRopeAppend, launch, stream);
  }
  cuda::Runtime& runtime = context.cuda();
  const cuda::CurrentDevice current(*runtime.device);
  if (runtime.device->driver().is_capturing(stream))
    fail(Code::invalid_argument, kRopeAppend,
         "stream is being captured, and a batch of host arrays would be frozen: append by a DevicePlan");
  // Both arrays in one upload.
  const std::size_t place_bytes = at.places.size() * sizeof(abi::TokenPlace);
  std::vector<std::byte> blob(place_bytes + (own_positions ? at.positions.size() * 8 : 0));
  std::memcpy(blob.data(), at.places.data(), place_bytes);
  if (own_positions) std::memcpy(blob.data() + place_bytes, at.positions.data(), at.positions.size() * 8);
  const auto* on_device = static_cast<const std::byte*>(runtime.uploads.upload(blob, stream));
  launch.params.places = reinterpret_cast<const abi::TokenPlace*>(on_device);
  if (own_positions) launch.params.positions = reinterpret_cast<const unsigned char*>(on_device + place_bytes);
  rows::run(context, kRopeAppend, launch, stream);
  runtime.uploads.launched(stream);
}

void rope_append(const Context& context, const DevicePlan& plan, const KvStore& store, std::span<const std::int32_t> kv_indices,
                 const RopeAppendArgs& args, std::int64_t segment, void* stream) {
  const attention::DevicePlanState& state = plan.state();
  if (context.device() != state.schedule->device)
    fail(Code::invalid_argument, kRopeAppend, "context.device={}; the plan is on {}", name(context.device()), name(state.schedule->device));
  if (state.uploaded == nullptr) fail(Code::invalid_argument, kRopeAppend, "plan holds no batch yet; call upload() first");
  const attention::PlanView& view = state.uploaded->view;
  if (segment < 0 || segment >= std::ssize(view.segments))
    fail(Code::invalid_argument, kRopeAppend, "segment={}; the plan has {}", segment, view.segments.size());
  const abi::SegmentInfo& info = view.segments[static_cast<std::size_t>(segment)];
  if (info.num_table_heads != 1)
    fail(Code::unsupported, kRopeAppend, "segments[{}] has a table for each KV head; append by an AppendBatch for each", segment);
  if (store.page_size != info.page_size)
    fail(Code::invalid_argument, kRopeAppend, "store.page_size={} differs from the planned {}", store.page_size, info.page_size);
  if (std::ssize(kv_indices) < info.num_entries)
    fail(Code::invalid_argument, kRopeAppend, "kv_indices has {} entries; the plan reads {}", kv_indices.size(), info.num_entries);
  // As many rows as every tensor has: a later upload may bring more tokens, and rows that the plan has no place for are left out.
  std::int64_t num_rows = args.rope.k.rank == 3 ? args.rope.k.shape[0] : 0;
  for (const TensorView* t : {&args.rope.q, &args.v, &args.k_nope, &args.q_nope}) {
    if (t->rank == 3) num_rows = std::min(num_rows, t->shape[0]);
  }
  if (num_rows < view.header->num_tokens)
    fail(Code::invalid_argument, kRopeAppend, "tensors have {} rows; the plan has {} query tokens", num_rows, view.header->num_tokens);
  Launch launch = describe_rope_append(context.device(), store, num_rows, args);
  describe_positions({.op = kRopeAppend, .device = context.device()}, args.rope, num_rows, false, launch);
  launch.params.plan = reinterpret_cast<const abi::PlanHeader*>(state.blob.data());
  launch.params.segment = static_cast<std::int32_t>(segment);
  launch.params.kv_indices = kv_indices.data();
  launch.params.page_size = attention::fast_divider(store.page_size);
  rows::run(context, kRopeAppend, launch, stream);
}

}  // namespace girih
