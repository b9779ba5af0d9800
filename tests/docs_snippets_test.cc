// The code blocks of docs/layouts.md, run. The text between `// [name]` and `// [/name]` stands in the page under `<!-- snippet: name -->`;
// tests/check_docs.py compares the two.
// Queries are 0, so every visible key weighs the same, and a value is the number of its slot (+ 1000 times the KV head): the output is the
// mean over the slots that were read, and the LSE the logarithm of how many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "girih/attention.h"

namespace girih {
namespace {

/// Zeroed memory for a snippet's views.
std::vector<float> floats(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

/// Writes each slot's number into `plane` of `store`, whose memory is the test's.
void number_slots(const KvStore& store, const KvPlane& plane, int heads, int dim) {
  const std::int64_t slots = store.page_size == kEndlessPage ? 1 : store.page_size;
  for (std::int64_t page = 0; page < store.num_pages; ++page) {
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      for (int head = 0; head < heads; ++head) {
        const std::int64_t offset = page * plane.page_byte_stride + slot * plane.token_byte_stride + head * plane.head_byte_stride;
        auto* row = reinterpret_cast<float*>(static_cast<std::byte*>(const_cast<void*>(plane.data)) + offset);
        std::fill_n(row, dim, static_cast<float>(page * slots + slot + 1000 * head));
      }
    }
  }
}

std::span<std::byte> aligned(std::vector<std::byte>& memory) {
  void* data = memory.data();
  std::size_t space = memory.size();
  std::align(64, memory.size() - 64, data, space);
  return {static_cast<std::byte*>(data), memory.size() - 64};
}

/// Outputs of a run and what they must be.
struct Result {
  int heads = 0, group = 1, dim = 0;
  std::vector<float> o, lse;

  void expect_slots(std::int64_t row, int head, const std::vector<int>& slots) const {
    double mean = 1000.0 * (head / group);
    for (const int slot : slots) mean += static_cast<double>(slot) / static_cast<double>(slots.size());
    const std::size_t at = static_cast<std::size_t>(row * heads + head);
    for (int d = 0; d < dim; ++d) {
      ASSERT_NEAR(o[at * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)], mean, 1e-3)
          << "row " << row << " head " << head << " dim " << d;
    }
    ASSERT_NEAR(lse[at], std::log(static_cast<double>(slots.size())), 1e-5) << "row " << row << " head " << head;
  }
  void expect_slots(std::int64_t row, const std::vector<int>& slots) const {
    for (int head = 0; head < heads; ++head) expect_slots(row, head, slots);
  }
};

/// Slots [begin, end).
std::vector<int> slots(int begin, int end) {
  std::vector<int> list(static_cast<std::size_t>(end - begin));
  std::iota(list.begin(), list.end(), begin);
  return list;
}
std::vector<int> operator+(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class DocsSnippets : public testing::Test {
 protected:
  const Context context{ContextOptions{.num_workers = 2}};
  AttentionSpec spec{.num_qo_heads = 4, .num_kv_heads = 2, .head_dim_qk = 32};
  std::vector<float> k = floats(32 * 4 * 2 * 32), v = floats(32 * 4 * 2 * 32);

  DocsSnippets() { spec.variant.mask = variants::causal(); }

  /// Up to 32 pages of 4 tokens, NHD, numbered.
  KvStore pool(std::int64_t num_pages) {
    const KvStore store = paged_kv_store({k.data(), DType::f32, {num_pages, 4, 2, 32}}, {v.data(), DType::f32, {num_pages, 4, 2, 32}});
    number_slots(store, store.v, 2, 32);
    return store;
  }

  Result attend(const Batch& batch, std::span<const SegmentData> segments) const {
    AttentionSpec spec = this->spec;
    spec.q_dtype = spec.o_dtype = DType::f32;
    if (spec.k_scale == ScaleGranularity::none) spec.k_dtype = spec.v_dtype = DType::f32;
    spec.lse = LseKind::natural;
    const std::int64_t rows = batch.qo_indptr[batch.qo_indptr.size() - 1];
    const int first = spec.head_dim_qk - spec.head_dim_rope;
    Result result{.heads = spec.num_qo_heads,
                  .group = spec.num_qo_heads / spec.num_kv_heads,
                  .dim = spec.head_dim_vo > 0 ? spec.head_dim_vo : spec.head_dim_qk,
                  .o = {},
                  .lse = {}};
    std::vector<float> q_data = floats(rows * result.heads * first), q_rope_data = floats(rows * result.heads * spec.head_dim_rope);
    result.o = floats(rows * result.heads * result.dim);
    result.lse = floats(rows * result.heads);
    const TensorView q(q_data.data(), DType::f32, {rows, result.heads, first});
    const TensorView o(result.o.data(), DType::f32, {rows, result.heads, result.dim});
    const TensorView lse(result.lse.data(), DType::f32, {rows, result.heads});
    TensorView q_rope;
    if (spec.head_dim_rope > 0) q_rope = TensorView(q_rope_data.data(), DType::f32, {rows, result.heads, spec.head_dim_rope});

    // [loop]
    const AttentionLimits limits{.max_tokens = 64, .max_requests = 8, .max_segments = 4, .max_groups = 64, .max_kv_len = 4096};
    const Schedule schedule = girih::schedule(context, spec, limits);  // once
    std::vector<std::byte> memory(static_cast<std::size_t>(schedule.workspace_bytes()) + 64);
    Plan plan(schedule);

    plan.update(batch);  // each step

    run(context, schedule, plan,  // each layer
        {.q = q, .q_rope = q_rope, .segments = segments, .o = o, .lse = lse, .workspace = aligned(memory)});
    // [/loop]
    return result;
  }
  Result attend(const Batch& batch, const SegmentData& data) const { return attend(batch, {&data, 1}); }
};

TEST_F(DocsSnippets, Single) {
  std::vector<float> q = floats(3 * 4 * 32), o = q, lse = floats(3 * 4);
  const KvStore store = ragged_kv_store({k.data(), DType::f32, {8, 2, 32}}, {v.data(), DType::f32, {8, 2, 32}});
  number_slots(store, store.v, 2, 32);
  // [single]
  const std::int64_t qo_len = 3, kv_len = 8;  // qo_len = 1: decode, qo_len = kv_len: prefill
  AttentionSpec spec;
  spec.variant.mask = variants::causal();
  single_attention(context, spec, {q.data(), DType::f32, {qo_len, 4, 32}}, {k.data(), DType::f32, {kv_len, 2, 32}},
                   {v.data(), DType::f32, {kv_len, 2, 32}}, {o.data(), DType::f32, {qo_len, 4, 32}}, {lse.data(), DType::f32, {qo_len, 4}});
  // [/single]
  const Result result{.heads = 4, .group = 2, .dim = 32, .o = o, .lse = lse};
  for (int row = 0; row < 3; ++row) result.expect_slots(row, slots(0, 6 + row));
}

TEST_F(DocsSnippets, Ragged) {
  // [ragged]
  const std::vector<std::int32_t> qo_indptr{0, 2, 3, 6}, kv_indptr{0, 6, 14, 17};  // tokens
  const KvSegment segment{.page_size = kEndlessPage, .kv_indptr = kv_indptr};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}};
  const KvStore store = ragged_kv_store({k.data(), DType::f32, {17, 2, 32}}, {v.data(), DType::f32, {17, 2, 32}});
  const SegmentData data{.store = store};
  // [/ragged]
  number_slots(store, store.v, 2, 32);
  const Result result = attend(batch, data);
  result.expect_slots(0, slots(0, 5));
  result.expect_slots(1, slots(0, 6));
  result.expect_slots(2, slots(6, 14));
  result.expect_slots(3, {14});
  result.expect_slots(5, {14, 15, 16});
}

TEST_F(DocsSnippets, PagedCsr) {
  // [paged_csr]
  const std::vector<std::int32_t> qo_indptr{0, 1, 2, 3}, kv_indptr{0, 3, 4, 6}, last_page_len{2, 3, 4};
  const std::vector<std::int32_t> kv_indices{4, 0, 6, 2, 1, 5};
  const std::vector<std::int64_t> kv_len = kv_len_from_last_page(kv_indptr, last_page_len, 4);  // 10, 3, 8
  const KvSegment segment{.page_size = 4, .kv_indptr = kv_indptr, .kv_len = kv_len};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}};
  const KvStore store = paged_kv_store({k.data(), DType::f32, {7, 4, 2, 32}}, {v.data(), DType::f32, {7, 4, 2, 32}});
  const SegmentData data{.store = store, .kv_indices = kv_indices};
  // [/paged_csr]
  number_slots(store, store.v, 2, 32);
  const Result result = attend(batch, data);
  result.expect_slots(0, slots(16, 20) + slots(0, 4) + slots(24, 26));
  result.expect_slots(1, slots(8, 11));
  result.expect_slots(2, slots(4, 8) + slots(20, 24));
}

TEST_F(DocsSnippets, BlockTable) {
  const KvStore store = pool(7);
  const std::vector<std::int32_t> qo_indptr{0, 1, 2, 3};
  // clang-format off: a table
  // [block_table]
  const std::vector<std::int32_t> seq_lens{10, 3, 8};
  const std::vector<std::int32_t> block_tables{4, 0,  6,  -1, -1,  // a row per request;
                                               2, -1, -1, -1, -1,  // the -1 could be anything
                                               1, 5,  -1, -1, -1};
  const KvSegment segment{.page_size = 4, .table_stride = 5, .kv_len = seq_lens};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}};
  const SegmentData data{.store = store, .kv_indices = block_tables};
  // [/block_table]
  // clang-format on
  const Result result = attend(batch, data);
  result.expect_slots(0, slots(16, 20) + slots(0, 4) + slots(24, 26));
  result.expect_slots(1, slots(8, 11));
  result.expect_slots(2, slots(4, 8) + slots(20, 24));
}

TEST_F(DocsSnippets, Strides) {
  std::vector<float> both = floats(7 * 2 * 4 * 2 * 32), all_layers = floats(7 * 3 * 2 * 4 * 2 * 32);
  const std::int64_t layer = 1;
  // [strides]
  // [page, token, head, dim] and [page, head, token, dim]
  const KvStore nhd = paged_kv_store({k.data(), DType::f32, {7, 4, 2, 32}}, {v.data(), DType::f32, {7, 4, 2, 32}});
  const KvStore hnd = paged_kv_store({k.data(), DType::f32, {7, 2, 4, 32}}, {v.data(), DType::f32, {7, 2, 4, 32}}, KvLayout::hnd);
  // One tensor [page, k or v, token, head, dim]
  const KvStore one = paged_kv_store({both.data(), DType::f32, {7, 2, 4, 2, 32}});
  // All 3 layers in a page: [page, layer, k or v, token, head, dim]
  const std::int64_t plane = 4 * 2 * 32, page = 3 * 2 * plane;  // elements
  float* const at = all_layers.data() + layer * 2 * plane;
  const KvStore interleaved = paged_kv_store({at, DType::f32, {7, 4, 2, 32}, {page, 2 * 32, 32, 1}},
                                             {at + plane, DType::f32, {7, 4, 2, 32}, {page, 2 * 32, 32, 1}});
  // [/strides]
  const std::vector<std::int32_t> qo_indptr{0, 1}, kv_indptr{0, 2}, kv_len{7}, kv_indices{5, 2};
  const KvSegment segment{.page_size = 4, .kv_indptr = kv_indptr, .kv_len = kv_len};
  for (const KvStore* store : {&nhd, &hnd, &one, &interleaved}) {
    number_slots(*store, store->v, 2, 32);
    attend({.qo_indptr = qo_indptr, .segments = {&segment, 1}}, SegmentData{.store = *store, .kv_indices = kv_indices})
        .expect_slots(0, slots(20, 24) + slots(8, 11));
  }
}

TEST_F(DocsSnippets, Cascade) {
  const KvStore store = pool(12);
  // [cascade]
  const std::vector<std::int32_t> qo_indptr{0, 1, 2, 3, 4, 5};
  const std::vector<std::int32_t> rows_0{0, 5}, indptr_0{0, 3}, len_0{12}, pages_0{0, 1, 2};
  const std::vector<std::int32_t> rows_1{0, 2, 5}, indptr_1{0, 2, 4}, len_1{8, 5}, pages_1{3, 4, 5, 6};
  const std::vector<std::int32_t> indptr_2{0, 1, 2, 3, 4, 5}, len_2{3, 2, 2, 1, 2}, pages_2{7, 8, 9, 10, 11};
  const std::vector<KvSegment> segments{{.qo_indptr = rows_0, .page_size = 4, .kv_indptr = indptr_0, .kv_len = len_0, .masked = false},
                                        {.qo_indptr = rows_1, .page_size = 4, .kv_indptr = indptr_1, .kv_len = len_1, .masked = false},
                                        {.page_size = 4, .kv_indptr = indptr_2, .kv_len = len_2}};
  const Batch batch{.qo_indptr = qo_indptr, .segments = segments};
  const std::vector<SegmentData> data{
      {.store = store, .kv_indices = pages_0}, {.store = store, .kv_indices = pages_1}, {.store = store, .kv_indices = pages_2}};
  // [/cascade]
  const Result result = attend(batch, data);
  result.expect_slots(0, slots(0, 12) + slots(12, 20) + slots(28, 31));
  result.expect_slots(1, slots(0, 12) + slots(12, 20) + slots(32, 34));
  result.expect_slots(3, slots(0, 12) + slots(20, 25) + slots(40, 41));
}

TEST_F(DocsSnippets, Mixed) {
  const KvStore store = pool(19);
  // [mixed]
  const std::vector<std::int32_t> qo_indptr{0, 40, 41, 42, 43};  // a prefill chunk of 40 rows, three decodes
  const std::vector<std::int32_t> kv_len{40, 9, 17, 3}, kv_indptr{0, 10, 13, 18, 19};
  std::vector<std::int32_t> kv_indices(19);
  std::iota(kv_indices.begin(), kv_indices.end(), 0);
  const KvSegment segment{.page_size = 4, .kv_indptr = kv_indptr, .kv_len = kv_len};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}};
  // [/mixed]
  const Result result = attend(batch, SegmentData{.store = store, .kv_indices = kv_indices});
  result.expect_slots(0, {0});
  result.expect_slots(39, slots(0, 40));
  result.expect_slots(41, slots(52, 69));
  result.expect_slots(42, slots(72, 75));
}

TEST_F(DocsSnippets, BlockSparse) {
  spec.variant.mask = {};
  const TensorView k(this->k.data(), DType::f32, {20, 2, 32}), v(this->v.data(), DType::f32, {20, 2, 32});
  // [block_sparse]
  const std::vector<std::int32_t> indptr{0, 2, 3, 6}, indices{0, 3, 1, 0, 2, 4};
  const BlockSparse pattern = block_sparse(12, 20, 4, 4, indptr, indices);
  const KvSegment segment = pattern.segment();
  const std::vector<std::int32_t> qo_indptr{0, 12}, kv_len{20};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len};
  const KvStore store = block_sparse_kv_store(k, v, pattern.page_size);
  const SegmentData data{.store = store, .kv_indices = pattern.kv_indices, .page_pos = pattern.page_pos};
  // [/block_sparse]
  number_slots(store, store.v, 2, 32);
  const Result result = attend(batch, data);
  result.expect_slots(3, slots(0, 4) + slots(12, 16));
  result.expect_slots(4, slots(4, 8));
  result.expect_slots(11, slots(0, 4) + slots(8, 12) + slots(16, 20));
}

TEST_F(DocsSnippets, VariableBlockSparse) {
  spec.variant.mask = {};
  const TensorView k(this->k.data(), DType::f32, {20, 2, 32}), v(this->v.data(), DType::f32, {20, 2, 32});
  // clang-format off: a table
  // [variable_block_sparse]
  const std::vector<std::int32_t> row_sizes{5, 7}, col_sizes{3, 9, 8};
  const std::vector<std::uint8_t> block_mask{1, 0, 1, /* row block 1 */ 0, 1, 1,   // KV head 0
                                             0, 1, 0, /* row block 1 */ 1, 1, 0};  // KV head 1
  const BlockSparse pattern = variable_block_sparse(row_sizes, col_sizes, block_mask, 2);
  // [/variable_block_sparse]
  // clang-format on
  const KvSegment segment = pattern.segment();
  const std::vector<std::int32_t> qo_indptr{0, 12}, kv_len{20};
  const KvStore store = block_sparse_kv_store(k, v, pattern.page_size);
  const SegmentData data{.store = store, .kv_indices = pattern.kv_indices, .page_pos = pattern.page_pos};
  number_slots(store, store.v, 2, 32);
  const Result result = attend({.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len}, data);
  result.expect_slots(0, 1, slots(0, 3) + slots(12, 20));
  result.expect_slots(4, 2, slots(3, 12));
  result.expect_slots(5, 0, slots(3, 20));
  result.expect_slots(11, 3, slots(0, 12));
}

TEST_F(DocsSnippets, PageSelection) {
  const KvStore store = pool(8);
  // [page_selection]
  const std::vector<std::int32_t> kv_indptr{0, 3, 3, 7}, selected{10, 14};  // [head, group + 1], [head, group]
  const std::vector<std::int32_t> kv_indices{0, 3, 7, 2, 3, 6, 7};
  const std::vector<std::int64_t> page_pos{0, 12, 28, 8, 12, 24, 28};
  const KvSegment segment{.page_size = 4, .num_table_heads = 2, .kv_indptr = kv_indptr, .kv_len = selected, .page_pos = page_pos};
  const std::vector<std::int32_t> qo_indptr{0, 1}, kv_len{30};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len};
  const SegmentData data{.store = store, .kv_indices = kv_indices, .page_pos = page_pos};
  // [/page_selection]
  const Result result = attend(batch, data);
  result.expect_slots(0, 0, slots(0, 4) + slots(12, 16) + slots(28, 30));
  result.expect_slots(0, 3, slots(8, 16) + slots(24, 30));
}

TEST_F(DocsSnippets, SinkWindow) {
  const KvStore store = pool(10);
  // [sink_window]
  spec.variant.mask = (variants::first_tokens(2) | variants::window(7)) & variants::causal();
  const std::vector<std::int32_t> kv_indptr{0, 4}, kept{14}, kv_indices{9, 4, 1, 6};
  const std::vector<std::int64_t> page_pos{0, 20, 24, 28};
  const KvSegment segment{.page_size = 4, .kv_indptr = kv_indptr, .kv_len = kept, .page_pos = page_pos};
  const std::vector<std::int32_t> qo_indptr{0, 1}, kv_len{30};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len};
  const SegmentData data{.store = store, .kv_indices = kv_indices, .page_pos = page_pos};
  // [/sink_window]
  attend(batch, data).expect_slots(0, slots(36, 38) + slots(18, 20) + slots(4, 8) + slots(24, 26));
}

TEST_F(DocsSnippets, TokenList) {
  std::vector<float> latent = floats(18 * 576);
  spec = {.num_qo_heads = 4, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .v_is_k = true};
  // [token_list]
  const std::vector<std::int32_t> qo_indptr{0, 3}, kv_len{18};  // one request, three rows
  const std::vector<std::int32_t> rows{0, 1, 2, 3}, kv_indptr{0, 3, 7, 10}, count{3, 4, 3};
  const std::vector<std::int32_t> tokens{1, 4, 9, 4, 5, 10, 15, 0, 9, 16};  // slots in the pool
  const KvSegment segment{.qo_indptr = rows, .page_size = 1, .kv_indptr = kv_indptr, .kv_len = count, .masked = false};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len};
  const KvPlane plane{.data = latent.data(), .dtype = DType::f32, .page_byte_stride = 576 * 4};
  const SegmentData data{.store = {.page_size = 1, .num_pages = 18, .k = plane}, .kv_indices = tokens};
  // [/token_list]
  number_slots(data.store, plane, 1, 512);
  const Result result = attend(batch, data);
  result.expect_slots(0, {1, 4, 9});
  result.expect_slots(1, {4, 5, 10, 15});
  result.expect_slots(2, {0, 9, 16});
}

TEST_F(DocsSnippets, Mla) {
  std::vector<float> ckv = floats(7 * 4 * 576), kpe = floats(7 * 4 * 64);
  const std::vector<std::int32_t> qo_indptr{0, 1, 4}, kv_indptr{0, 2, 4}, kv_len{7, 8}, kv_indices{6, 1, 3, 0};
  const KvSegment segment{.page_size = 4, .kv_indptr = kv_indptr, .kv_len = kv_len};
  const auto check = [&](const AttentionSpec& mla, const KvStore& store) {
    spec = mla;
    spec.variant.mask = variants::causal();
    number_slots(store, store.k, 1, 512);
    const Result result =
        attend({.qo_indptr = qo_indptr, .segments = {&segment, 1}}, SegmentData{.store = store, .kv_indices = kv_indices});
    result.expect_slots(0, slots(24, 28) + slots(4, 7));
    result.expect_slots(1, slots(12, 16) + slots(0, 2));
    result.expect_slots(3, slots(12, 16) + slots(0, 4));
  };
  {
    // [mla]
    AttentionSpec spec{.num_qo_heads = 16, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .v_is_k = true};
    spec.sm_scale = 1 / std::sqrt(128.0 + 64.0);  // of the head before absorption
    const KvPlane latent{.data = ckv.data(), .dtype = DType::f32, .page_byte_stride = 4 * 576 * 4, .token_byte_stride = 576 * 4};
    const KvStore store{.page_size = 4, .num_pages = 7, .k = latent};
    // [/mla]
    check(spec, store);
  }
  {
    // [mla_two_tensors]
    AttentionSpec spec{.num_qo_heads = 16, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .head_dim_rope = 64};
    spec.v_is_k = true;
    const KvPlane latent{.data = ckv.data(), .dtype = DType::f32, .page_byte_stride = 4 * 512 * 4, .token_byte_stride = 512 * 4};
    const KvPlane rope{.data = kpe.data(), .dtype = DType::f32, .page_byte_stride = 4 * 64 * 4, .token_byte_stride = 64 * 4};
    const KvStore store{.page_size = 4, .num_pages = 7, .k = latent, .k_rope = rope};
    // [/mla_two_tensors]
    check(spec, store);
  }
}

TEST_F(DocsSnippets, MlaTokens) {
  std::vector<unsigned char> pool(7 * 64 * 656);
  for (std::size_t slot = 0; slot < 7 * 64; ++slot) {
    std::fill_n(pool.data() + slot * 656, 512, static_cast<unsigned char>(0x38));  // 1.0 as e4m3
    const std::vector<float> scales(4, static_cast<float>(slot));
    std::memcpy(pool.data() + slot * 656 + 512, scales.data(), 16);
  }
  // [mla_tokens]
  AttentionSpec spec{.num_qo_heads = 16, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .head_dim_rope = 64};
  spec.k_dtype = DType::e4m3;
  spec.k_rope_dtype = DType::bf16;
  spec.k_scale = ScaleGranularity::token_group;
  spec.v_is_k = true;
  const KvStore store = mla_token_kv_store({pool.data(), DType::u8, {7, 64, 656}});  // pages of 64 tokens
  const std::vector<std::int32_t> top_k{70, 3,  -1,  -1,                             // [rows, 4], of which -1 is not used
                                        -1, -1, -1,  -1,                             // this row has no token
                                        5,  -1, 200, 201};
  const KeyLists lists = key_lists(top_k, 3);
  const KvSegment segment = lists.segment();
  const std::vector<std::int32_t> qo_indptr{0, 3}, kv_len{448};
  const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len};
  const SegmentData data{.store = single_token_pages(store), .kv_indices = lists.kv_indices};
  // [/mla_tokens]
  this->spec = spec;
  const Result result = attend(batch, data);
  result.expect_slots(0, {70, 3});
  result.expect_slots(2, {5, 200, 201});
  EXPECT_EQ(result.o[16 * 512], 0.0F);
  EXPECT_EQ(result.lse[16], -INFINITY);
}

TEST_F(DocsSnippets, QkVo) {
  std::vector<float> k = floats(17 * 4 * 192), v = floats(17 * 4 * 128);
  // [qk_vo]
  spec = {.num_qo_heads = 4, .num_kv_heads = 4, .head_dim_qk = 192, .head_dim_vo = 128};
  const KvStore store = ragged_kv_store({k.data(), DType::f32, {17, 4, 192}}, {v.data(), DType::f32, {17, 4, 128}});
  // [/qk_vo]
  number_slots(store, store.v, 4, 128);
  const std::vector<std::int32_t> qo_indptr{0, 2}, kv_indptr{0, 17};
  const KvSegment segment{.page_size = kEndlessPage, .kv_indptr = kv_indptr};
  attend({.qo_indptr = qo_indptr, .segments = {&segment, 1}}, SegmentData{.store = store}).expect_slots(1, slots(0, 17));
}

TEST_F(DocsSnippets, ContextParallel) {
  std::vector<float> states = floats(2 * 2 * 4 * 32), lses = floats(2 * 2 * 4), o = floats(2 * 4 * 32), lse = floats(2 * 4);
  const KvStore whole = ragged_kv_store({k.data(), DType::f32, {16, 2, 32}}, {v.data(), DType::f32, {16, 2, 32}});
  number_slots(whole, whole.v, 2, 32);
  for (int rank = 0; rank < 2; ++rank) {
    float* const k = this->k.data() + rank * 8 * 2 * 32;
    float* const v = this->v.data() + rank * 8 * 2 * 32;
    // [context_parallel]
    spec.lse = LseKind::natural;
    spec.partial_state = true;
    const std::vector<std::int32_t> shard{0, 8}, kv_pos{8 * rank};  // this rank's keys, and where they begin
    const KvSegment segment{.page_size = kEndlessPage, .kv_indptr = shard, .kv_pos = kv_pos};
    const std::vector<std::int32_t> qo_indptr{0, 2}, kv_len{16};  // all rows and the whole length, on every rank
    const Batch batch{.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len};
    const SegmentData data{.store = ragged_kv_store({k, DType::f32, {8, 2, 32}}, {v, DType::f32, {8, 2, 32}})};
    // [/context_parallel]
    const Result part = attend(batch, data);
    for (int row = 0; row < 2; ++row) {
      std::copy_n(part.o.begin() + row * 128, 128, states.begin() + (row * 2 + rank) * 128);
      std::copy_n(part.lse.begin() + row * 4, 4, lses.begin() + (row * 2 + rank) * 4);
    }
  }
  // [merge]
  // After the exchange: states [row, rank, head, dim] and their LSEs [row, rank, head].
  merge_states(context, {states.data(), DType::f32, {2, 2, 4, 32}}, {lses.data(), DType::f32, {2, 2, 4}},
               {o.data(), DType::f32, {2, 4, 32}}, {lse.data(), DType::f32, {2, 4}});
  // [/merge]
  const Result result{.heads = 4, .group = 2, .dim = 32, .o = o, .lse = lse};
  result.expect_slots(0, slots(0, 15));
  result.expect_slots(1, slots(0, 16));
}

}  // namespace
}  // namespace girih
