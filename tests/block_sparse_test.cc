// Block-sparse patterns as segments, and KV stores out of tensors: each pattern is planned and read back as the set of (row, column)
// pairs that it attends, which must be the pattern's own.
#include <gtest/gtest.h>

#include <random>

#include "girih/error.h"
#include "plan_batches.h"

namespace girih {
namespace {

using Ints = std::vector<std::int64_t>;

/// attended[head][row][column] of a segment over `rows` rows, from its tables.
std::vector<std::vector<std::vector<int>>> attended(const BlockSparse& s, std::int64_t rows, std::int64_t cols) {
  std::vector<std::vector<std::vector<int>>> out(static_cast<std::size_t>(s.num_table_heads),
                                                 std::vector<std::vector<int>>(rows, std::vector<int>(cols, 0)));
  const std::int64_t groups = std::ssize(s.qo_indptr) - 1;
  for (int h = 0; h < s.num_table_heads; ++h) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t begin = s.kv_indptr[h * (groups + 1) + g];
      for (std::int64_t key = 0; key < s.kv_len[h * groups + g]; ++key) {
        const std::int64_t entry = begin + key / s.page_size;
        EXPECT_EQ(s.page_pos[entry], s.kv_indices[entry] * s.page_size);
        for (std::int64_t row = s.qo_indptr[g]; row < s.qo_indptr[g + 1]; ++row) ++out[h][row][s.page_pos[entry] + key % s.page_size];
      }
    }
  }
  return out;
}

/// The planner takes the segment, and its items hold as many pairs as the pattern.
void check_planned(const BlockSparse& s, std::int64_t rows, std::int64_t pairs) {
  plan_test::ScheduleForm form;
  form.num_kv_heads = 2;
  form.num_units = 3;
  attention::PlanState plan(plan_test::make_schedule(form));
  const Ints qo_indptr = {0, rows};
  const KvSegment segment = s.segment();
  Batch batch;
  batch.qo_indptr = qo_indptr;
  batch.segments = {&segment, 1};
  make_plan(plan, batch);
  std::int64_t found = 0;
  for (const abi::WorkItem& item : plan.view.items) found += std::int64_t{item.row_count} * (item.kv_end - item.kv_begin);
  EXPECT_EQ(found, s.num_table_heads == 1 ? 2 * pairs : pairs);
}

TEST(BlockSparse, BlocksOfOneSizeCutByTheEnd) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t rows = 1 + random() % 20;
    const std::int64_t cols = 1 + random() % 40;
    const std::int64_t block_rows = 1 + random() % 6;
    const std::int64_t block_cols = 1 + random() % 9;
    const int heads = 1 + static_cast<int>(random() % 2);
    Ints indptr, indices;
    std::vector<std::vector<std::vector<int>>> expected(heads, std::vector<std::vector<int>>(rows, std::vector<int>(cols, 0)));
    std::int64_t pairs = 0;
    for (int h = 0; h < heads; ++h) {
      indptr.push_back(std::ssize(indices));
      for (std::int64_t r = 0; r * block_rows < rows; ++r) {
        for (std::int64_t c = 0; c * block_cols < cols; ++c) {
          if (random() % 3 == 0) continue;
          indices.push_back(c);
          for (std::int64_t i = r * block_rows; i < std::min((r + 1) * block_rows, rows); ++i) {
            for (std::int64_t j = c * block_cols; j < std::min((c + 1) * block_cols, cols); ++j) ++expected[h][i][j], ++pairs;
          }
        }
        indptr.push_back(std::ssize(indices));
      }
    }
    const BlockSparse s = block_sparse(rows, cols, block_rows, block_cols, indptr, indices, heads);
    EXPECT_EQ(s.page_size, block_cols);
    ASSERT_EQ(attended(s, rows, cols), expected);
    check_planned(s, rows, pairs);
  }
}

TEST(BlockSparse, BlocksOfAnySizeByHead) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const int heads = 1 + static_cast<int>(random() % 2);
    const std::int64_t n_rows = 1 + random() % 5;
    const std::int64_t n_cols = 2 + random() % 5;
    bool rows_by_head = heads == 2 && random() % 2 == 0;
    bool cols_by_head = heads == 2 && random() % 2 == 0;
    // One of them alone cannot be told from the other alone where the other's count is even, too.
    if (rows_by_head != cols_by_head && (rows_by_head ? n_cols : n_rows) % 2 == 0) rows_by_head = cols_by_head = true;
    // Random borders with one total for all heads.
    const auto sizes = [&](std::int64_t n, std::int64_t total, int copies, std::int64_t unit) {
      Ints out;
      for (int h = 0; h < copies; ++h) {
        Ints borders = {0, total};
        for (std::int64_t i = 1; i < n; ++i) borders.push_back(static_cast<std::int64_t>(random()) % (total / unit + 1) * unit);
        std::sort(borders.begin(), borders.end());
        for (std::int64_t i = 0; i < n; ++i) out.push_back(borders[i + 1] - borders[i]);
      }
      return out;
    };
    const std::int64_t rows = 1 + random() % 20;
    const std::int64_t unit = 1 + random() % 4;
    const std::int64_t cols = unit * static_cast<std::int64_t>(1 + random() % 12) + static_cast<std::int64_t>(random() % unit);
    const Ints row_sizes = sizes(n_rows, rows, rows_by_head ? 2 : 1, 1);
    const Ints col_sizes = sizes(n_cols, cols, cols_by_head ? 2 : 1, unit);
    std::vector<std::uint8_t> mask;
    for (std::int64_t i = 0; i < heads * n_rows * n_cols; ++i) mask.push_back(random() % 2);
    std::vector<std::vector<std::vector<int>>> expected(heads, std::vector<std::vector<int>>(rows, std::vector<int>(cols, 0)));
    std::int64_t pairs = 0;
    for (int h = 0; h < heads; ++h) {
      std::int64_t row = 0;
      for (std::int64_t r = 0; r < n_rows; ++r) {
        for (std::int64_t i = 0; i < row_sizes[(rows_by_head ? h * n_rows : 0) + r]; ++i, ++row) {
          std::int64_t col = 0;
          for (std::int64_t c = 0; c < n_cols; ++c) {
            for (std::int64_t j = 0; j < col_sizes[(cols_by_head ? h * n_cols : 0) + c]; ++j, ++col) {
              expected[h][row][col] = mask[(h * n_rows + r) * n_cols + c];
              pairs += expected[h][row][col];
            }
          }
        }
      }
    }
    const BlockSparse s = variable_block_sparse(row_sizes, col_sizes, mask, heads);
    EXPECT_EQ(s.page_size % unit == 0 || s.page_size == cols, true) << s.page_size << " of unit " << unit;
    ASSERT_EQ(attended(s, rows, cols), expected) << "round " << round;
    check_planned(s, rows, pairs);
  }
}

void expect_refused(const char* text, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(BlockSparse, RefusesBadPatterns) {
  const Ints indptr = {0, 1, 2};
  const Ints indices = {0, 1};
  expect_refused("block_rows=0", [&] { block_sparse(4, 4, 0, 2, indptr, indices); });
  expect_refused("block_cols=-1", [&] { block_sparse(4, 4, 2, -1, indptr, indices); });
  expect_refused("num_rows=-4", [&] { block_sparse(-4, 4, 2, 2, indptr, indices); });
  expect_refused("num_cols=4294967296", [&] { block_sparse(4, std::int64_t{1} << 32, 2, 2, indptr, indices); });
  expect_refused("num_heads=0", [&] { block_sparse(4, 4, 2, 2, indptr, indices, 0); });
  expect_refused("indptr has 3 entries", [&] { block_sparse(6, 4, 2, 2, indptr, indices); });
  expect_refused("indptr[2]=3 exceeds", [&] { block_sparse(4, 4, 2, 2, Ints{0, 1, 3}, indices); });
  expect_refused("indptr[1]=-1 < indptr[0]=0", [&] { block_sparse(4, 4, 2, 2, Ints{0, -1, 2}, indices); });
  expect_refused("indices[1]=2", [&] { block_sparse(4, 4, 2, 2, indptr, Ints{0, 2}); });
  expect_refused("indices[1]=0 follows 1", [&] { block_sparse(2, 4, 2, 2, Ints{0, 2}, Ints{1, 0}); });
  const std::vector<std::uint8_t> mask(4, 1);
  expect_refused("row_sizes[1]=-1", [&] { variable_block_sparse(Ints{2, -1}, Ints{2, 2}, mask); });
  expect_refused("col_sizes[1]=2147483647 brings the sum", [&] { variable_block_sparse(Ints{2, 1}, Ints{2, 2147483647}, mask); });
  expect_refused("block_mask has 4 entries", [&] { variable_block_sparse(Ints{2, 1, 1}, Ints{2, 2}, mask); });
  expect_refused("row_sizes of 4 and col_sizes of 2 entries may either", [&] {
    variable_block_sparse(Ints{1, 1, 1, 1}, Ints{2, 2}, std::vector<std::uint8_t>(8, 1), 2);
  });
  expect_refused("row_sizes of head 1 sum to 4", [&] { variable_block_sparse(Ints{3, 4}, Ints{2, 1, 2, 1}, mask, 2); });
}

TEST(KvStore, StridesInBytes) {
  std::vector<std::uint16_t> data(2 * 2 * 3 * 4 * 8);
  const TensorView kv(data.data(), DType::bf16, {2, 2, 3, 4, 8});
  KvStore store = paged_kv_store(kv, KvLayout::nhd);
  EXPECT_EQ(store.page_size, 3);
  EXPECT_EQ(store.num_pages, 2);
  EXPECT_EQ(store.k.page_byte_stride, 2 * 3 * 4 * 8 * 2);
  EXPECT_EQ(store.k.token_byte_stride, 4 * 8 * 2);
  EXPECT_EQ(store.k.head_byte_stride, 8 * 2);
  EXPECT_EQ(store.k.dim_byte_stride, 0);
  EXPECT_EQ(static_cast<const std::byte*>(store.v.data) - static_cast<const std::byte*>(store.k.data), 3 * 4 * 8 * 2);
  store = paged_kv_store(kv, KvLayout::hnd);
  EXPECT_EQ(store.page_size, 4);
  EXPECT_EQ(store.k.token_byte_stride, 8 * 2);
  EXPECT_EQ(store.k.head_byte_stride, 4 * 8 * 2);

  const TensorView k(data.data(), DType::bf16, {10, 2, 8});
  const TensorView v(data.data(), DType::bf16, {10, 2, 4}, {1, 80, 20});  // tokens contiguous
  store = ragged_kv_store(k, v);
  EXPECT_EQ(store.page_size, kEndlessPage);
  EXPECT_EQ(store.num_pages, 10);
  EXPECT_EQ(store.v.token_byte_stride, 2);
  EXPECT_EQ(store.v.dim_byte_stride, 40);
  store = block_sparse_kv_store(k, k, 4);
  EXPECT_EQ(store.num_pages, 3);
  EXPECT_EQ(store.k.page_byte_stride, 4 * 2 * 8 * 2);

  const TensorView k4(data.data(), DType::nvfp4, {2, 4, 2, 16});
  EXPECT_EQ(paged_kv_store(k4, k4).k.head_byte_stride, 8);

  expect_refused("k has rank 3; must be 4", [&] { paged_kv_store(k, k); });
  expect_refused("kv.shape[1]=4; must be 2", [&] { paged_kv_store(TensorView(data.data(), DType::bf16, {2, 4, 2, 2, 2})); });
  expect_refused("v.shape[0]=5", [&] { ragged_kv_store(k, TensorView(data.data(), DType::bf16, {5, 2, 8})); });
  expect_refused("k.data is null", [&] { ragged_kv_store(TensorView(nullptr, DType::bf16, {5, 2, 8}), k); });
  expect_refused("k.strides[3]=2; 4-bit", [&] { paged_kv_store(TensorView(data.data(), DType::nvfp4, {2, 4, 2, 4}, {64, 16, 8, 2}), k4); });
  expect_refused("k.strides[2]=15 elements of nvfp4", [&] {
    paged_kv_store(TensorView(data.data(), DType::nvfp4, {2, 4, 2, 4}, {128, 32, 15, 1}), k4);
  });
  expect_refused("page_size=0", [&] { block_sparse_kv_store(k, k, 0); });
}

TEST(KvStore, LengthsFromLastPages) {
  EXPECT_EQ(kv_len_from_last_page(Ints{0, 2, 2, 5}, Ints{3, 0, 16}, 16), (Ints{19, 0, 48}));
  EXPECT_TRUE(kv_len_from_last_page(Indices{}, Indices{}, 16).empty());
  expect_refused("last_page_len[0]=17", [&] { kv_len_from_last_page(Ints{0, 2}, Ints{17}, 16); });
  expect_refused("last_page_len[0]=0", [&] { kv_len_from_last_page(Ints{0, 2}, Ints{0}, 16); });
  expect_refused("kv_indptr[1]=-1 < kv_indptr[0]=0", [&] { kv_len_from_last_page(Ints{0, -1}, Ints{1}, 16); });
  expect_refused("kv_indptr has 3 entries", [&] { kv_len_from_last_page(Ints{0, 1, 2}, Ints{1}, 16); });
  expect_refused("page_size=0", [&] { kv_len_from_last_page(Ints{0, 1}, Ints{1}, 0); });
}

}  // namespace
}  // namespace girih
