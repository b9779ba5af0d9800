// The cases of `girih bench page`: writes of new tokens to a paged cache, and copies of whole pages. See bench_rows.h.
#include <fmt/format.h>

#include <algorithm>

#include "base/math.h"
#include "base/numeric.h"
#include "cuda/runtime.h"
#include "girih/attention.h"
#include "tools/bench_rows.h"

namespace girih::tools {
namespace {

constexpr std::int64_t kMostRequests = 64;

struct PageCase {
  std::string name;
  std::int64_t heads = 8, dim = 128;
  DType cache = DType::bf16;
  bool mla = false;
};

double bytes_of_rows(DType type, std::int64_t rows, std::int64_t dim) {
  const double scales = scale_block(type) > 0 ? static_cast<double>(rows * ceil_div(dim, scale_block(type))) : 0;
  return static_cast<double>(bytes(type, rows * dim)) + scales;
}

KvStore make_store(BenchMemory& m, const AppendSetup& setup, const PageCase& c) {
  KvStore store = setup.store();
  if (c.mla) {
    store.k = setup.plane(m, c.cache, 1, 512);
    store.k_rope = setup.plane(m, c.cache, 1, 64);
  } else {
    store.k = setup.plane(m, c.cache, c.heads, c.dim);
    store.v = setup.plane(m, c.cache, c.heads, c.dim);
  }
  return store;
}

RowsBenchCase make_append(const PageCase& c, std::int64_t rows) {
  const std::int64_t elements = c.mla ? 576 : 2 * c.heads * c.dim;  // of a token
  const double written =
      c.mla ? bytes_of_rows(c.cache, rows, 512) + bytes_of_rows(c.cache, rows, 64) : 2 * bytes_of_rows(c.cache, rows * c.heads, c.dim);
  return {"page", fmt::format("{}_r{}", c.name, rows), rows, 2.0 * static_cast<double>(rows * elements) + written,
          [c, rows](BenchMemory& m) -> BenchCall {
            const auto setup = std::make_shared<AppendSetup>(m, rows, std::min(rows, kMostRequests));
            const KvStore store = make_store(m, *setup, c);
            const TensorView k = m.tensor(DType::bf16, {rows, c.heads, c.mla ? 512 : c.dim});
            const TensorView k_rope = c.mla ? m.tensor(DType::bf16, {rows, 1, 64}) : TensorView{};
            const TensorView v = c.mla ? TensorView{} : m.tensor(DType::bf16, {rows, c.heads, c.dim});
            return [&m, setup, store, k, k_rope, v](void* stream) {
              if (setup->on_device != nullptr)
                return append(m.context(), *setup->on_device, store, setup->pages_on_device(), k, k_rope, v, 0, stream);
              append(m.context(), store, setup->batch(), k, k_rope, v, stream);
            };
          }};
}

/// Every page of one half of a pool to the other half.
RowsBenchCase make_copy(std::int64_t rows) {
  constexpr std::int64_t kHeads = 8, kDim = 128;
  const std::int64_t pages = ceil_div(rows, AppendSetup::kPageSize);
  return {"page",
          fmt::format("copy_pages_8x128_r{}", rows),
          rows,
          2.0 * 2.0 * 2.0 * static_cast<double>(pages * AppendSetup::kPageSize * kHeads * kDim),
          [pages](BenchMemory& m) -> BenchCall {
            const auto setup = std::make_shared<AppendSetup>(m, 2 * pages * AppendSetup::kPageSize, 1);
            KvStore store = setup->store();
            store.k = setup->plane(m, DType::bf16, kHeads, kDim);
            store.v = setup->plane(m, DType::bf16, kHeads, kDim);
            std::vector<PageCopy> copies;
            for (std::int64_t i = 0; i < pages; ++i)
              copies.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(2 * pages - 1 - i)});
            return [&m, setup, store, copies](void* stream) {
              copy_pages(m.context(), store, static_cast<int>(kHeads), static_cast<int>(kDim), 0, static_cast<int>(kDim), copies, stream);
            };
          },
          false};
}

}  // namespace

AppendSetup::AppendSetup(BenchMemory& m, std::int64_t rows, std::int64_t requests) : indptr_{0}, kv_indptr_{0} {
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t count = rows * (r + 1) / requests - rows * r / requests;
    indptr_.push_back(indptr_.back() + count);
    kv_len_.push_back(count);
    kv_indptr_.push_back(kv_indptr_.back() + ceil_div(count, kPageSize));
  }
  for (std::int64_t i = 0; i < kv_indptr_.back(); ++i) pages_.push_back(static_cast<std::int32_t>(kv_indptr_.back() - 1 - i));
  if (m.context().device().kind == DeviceKind::cpu) return;
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 64;
  schedule_ = std::make_unique<Schedule>(
      girih::schedule(m.context(), spec, {.max_tokens = rows, .max_requests = requests, .max_kv_len = kv_len_.back()}));
  plan_ = std::make_unique<Plan>(*schedule_);
  KvSegment segment;
  segment.page_size = kPageSize;
  segment.kv_indptr = kv_indptr_;
  segment.kv_len = kv_len_;
  plan_->update({.qo_indptr = indptr_, .segments = {&segment, 1}});
  on_device = std::make_unique<DevicePlan>(m.context(), *schedule_);
  on_device->upload(*plan_);
  pages_view_ = m.tensor(DType::i32, {std::ssize(pages_)});
  const cuda::CurrentDevice current(*m.context().cuda().device);
  const cuda::Driver& driver = m.context().cuda().device->driver();
  driver.copy_to_device(reinterpret_cast<cuda::Pointer>(pages_view_.data), pages_.data(), std::ssize(pages_) * 4, nullptr);
  driver.synchronize(nullptr);
}

AppendBatch AppendSetup::batch() const {
  AppendBatch batch;
  batch.append_indptr = indptr_;
  batch.kv_len = kv_len_;
  batch.kv_indptr = kv_indptr_;
  batch.kv_indices = pages_;
  return batch;
}

KvStore AppendSetup::store() const {
  KvStore store;
  store.page_size = kPageSize;
  store.num_pages = std::ssize(pages_);
  return store;
}

KvPlane AppendSetup::plane(BenchMemory& m, DType type, std::int64_t heads, std::int64_t dim) const {
  const std::int64_t slots = std::ssize(pages_) * kPageSize;
  KvPlane p;
  p.dtype = type;
  p.head_byte_stride = bytes(type, dim);
  p.token_byte_stride = p.head_byte_stride * heads;
  p.page_byte_stride = p.token_byte_stride * kPageSize;
  p.data = m.tensor(type, {slots, heads, dim}).data;
  if (bits(type) == 8) {
    p.scales.granularity = ScaleGranularity::tensor;
    p.scales.data = make_quantization(m, type, QuantScale::tensor, slots, dim).scales.data;
  } else if (bits(type) == 4) {
    const std::int64_t blocks = ceil_div(dim, scale_block(type));
    p.scales.granularity = ScaleGranularity::block;
    p.scales.data = m.tensor(DType::u8, {slots, heads, blocks}).data;
    p.scales.head_byte_stride = blocks;
    p.scales.token_byte_stride = blocks * heads;
    p.scales.page_byte_stride = blocks * heads * kPageSize;
  }
  return p;
}

std::span<const std::int32_t> AppendSetup::pages_on_device() const {
  return {static_cast<const std::int32_t*>(pages_view_.data), pages_.size()};
}

void add_page_cases(std::vector<RowsBenchCase>& all) {
  const PageCase cases[] = {
      {.name = "append_8x128"},
      {.name = "append_8x128_e4m3", .cache = DType::e4m3},
      {.name = "append_8x128_nvfp4", .cache = DType::nvfp4},
      {.name = "append_mla", .heads = 1, .mla = true},
  };
  for (const PageCase& c : cases) {
    for (const std::int64_t rows : {1, 64, 2048, 16384}) all.push_back(make_append(c, rows));
  }
  for (const std::int64_t rows : {64, 2048, 16384}) all.push_back(make_copy(rows));
}

}  // namespace girih::tools
