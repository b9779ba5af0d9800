// Block-sparse patterns as segments: a block of rows is a group of query rows, an attended block of columns a stretch of pages with
// their positions. The page is the greatest common divisor of every block border, so pages are as large as the pattern allows.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "girih/attention.h"

namespace girih {
namespace {

constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

template <typename... Args>
[[noreturn]] void refuse(std::string_view op, fmt::format_string<Args...> text, Args&&... args) {
  fail(Code::invalid_argument, op, text, std::forward<Args>(args)...);
}

/// Writes the tables of one head after another. Columns of a group come as ascending disjoint ranges.
class SegmentWriter {
 public:
  SegmentWriter(BlockSparse& out, int num_heads, std::int64_t page_size) : out_(out) {
    out_.page_size = page_size;
    out_.num_table_heads = num_heads;
  }
  void start_head() { out_.kv_indptr.push_back(std::ssize(out_.kv_indices)); }
  void add_columns(std::int64_t begin, std::int64_t end) {
    for (std::int64_t page = begin / out_.page_size; page * out_.page_size < end; ++page) {
      out_.kv_indices.push_back(static_cast<std::int32_t>(page));
      out_.page_pos.push_back(page * out_.page_size);
    }
    len_ += end - begin;
  }
  void end_group() {
    out_.kv_indptr.push_back(std::ssize(out_.kv_indices));
    out_.kv_len.push_back(len_);
    len_ = 0;
  }

 private:
  BlockSparse& out_;
  std::int64_t len_ = 0;
};

/// Borders [0, s0, s0 + s1, ...] of the sizes of one head.
std::vector<std::int64_t> borders_of(std::string_view op, const char* field, Indices sizes, std::int64_t begin, std::int64_t n) {
  std::vector<std::int64_t> borders(1, 0);
  for (std::int64_t i = begin; i < begin + n; ++i) {
    if (sizes[i] < 0) refuse(op, "{}[{}]={}; must be >= 0", field, i, sizes[i]);
    if (sizes[i] > kMaxSize - borders.back()) refuse(op, "{}[{}]={} brings the sum beyond 2^31", field, i, sizes[i]);
    borders.push_back(borders.back() + sizes[i]);
  }
  return borders;
}

}  // namespace

KvSegment BlockSparse::segment() const {
  KvSegment segment;
  segment.qo_indptr = qo_indptr;
  segment.page_size = page_size;
  segment.num_table_heads = num_table_heads;
  segment.kv_indptr = kv_indptr;
  segment.kv_len = kv_len;
  segment.page_pos = page_pos;
  return segment;
}

BlockSparse block_sparse(std::int64_t num_rows, std::int64_t num_cols, std::int64_t block_rows, std::int64_t block_cols, Indices indptr,
                         Indices indices, int num_heads) {
  constexpr std::string_view op = "attention.block_sparse";
  if (num_rows < 0 || num_rows > kMaxSize) refuse(op, "num_rows={}; must be in [0, 2^31)", num_rows);
  if (num_cols < 0 || num_cols > kMaxSize) refuse(op, "num_cols={}; must be in [0, 2^31)", num_cols);
  if (block_rows < 1 || block_rows > kMaxSize) refuse(op, "block_rows={}; must be in [1, 2^31)", block_rows);
  if (block_cols < 1 || block_cols > kMaxSize) refuse(op, "block_cols={}; must be in [1, 2^31)", block_cols);
  if (num_heads < 1) refuse(op, "num_heads={}; must be >= 1", num_heads);
  const std::int64_t rows = ceil_div(num_rows, block_rows);
  const std::int64_t cols = ceil_div(num_cols, block_cols);
  if (indptr.size() != num_heads * (rows + 1)) {
    refuse(op, "indptr has {} entries; must have {} (num_heads x (block rows + 1))", indptr.size(), num_heads * (rows + 1));
  }
  BlockSparse out;
  for (std::int64_t r = 0; r <= rows; ++r) out.qo_indptr.push_back(std::min(r * block_rows, num_rows));
  SegmentWriter writer(out, num_heads, block_cols);
  for (int head = 0; head < num_heads; ++head) {
    const std::int64_t base = head * (rows + 1);
    if (indptr[base] < 0) refuse(op, "indptr[{}]={}; must be >= 0", base, indptr[base]);
    writer.start_head();
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t begin = indptr[base + r];
      const std::int64_t end = indptr[base + r + 1];
      if (end < begin) refuse(op, "indptr[{}]={} < indptr[{}]={}; must be non-decreasing", base + r + 1, end, base + r, begin);
      if (end > indices.size()) refuse(op, "indptr[{}]={} exceeds the {} entries of indices", base + r + 1, end, indices.size());
      for (std::int64_t i = begin; i < end; ++i) {
        if (indices[i] < 0 || indices[i] >= cols) refuse(op, "indices[{}]={}; must be in [0, {}) (block columns)", i, indices[i], cols);
        if (i > begin && indices[i] <= indices[i - 1])
          refuse(op, "indices[{}]={} follows {}; must ascend within a block row", i, indices[i], indices[i - 1]);
        writer.add_columns(indices[i] * block_cols, std::min((indices[i] + 1) * block_cols, num_cols));
      }
      writer.end_group();
    }
  }
  return out;
}

BlockSparse variable_block_sparse(Indices row_sizes, Indices col_sizes, std::span<const std::uint8_t> block_mask, int num_heads) {
  constexpr std::string_view op = "attention.variable_block_sparse";
  if (num_heads < 1) refuse(op, "num_heads={}; must be >= 1", num_heads);
  // Sizes are [n], or [num_heads, n]: the mask's size tells which.
  const std::int64_t mask_size = std::ssize(block_mask);
  const auto fits = [&](std::int64_t r, std::int64_t c) { return r <= kMaxSize && c <= kMaxSize && num_heads * r * c == mask_size; };
  std::int64_t rows = row_sizes.size();
  std::int64_t cols = col_sizes.size();
  bool rows_by_head = false;
  bool cols_by_head = false;
  if (num_heads > 1 && !fits(rows, cols)) {
    const bool row_heads = rows % num_heads == 0;
    const bool col_heads = cols % num_heads == 0;
    if (row_heads && col_heads && fits(rows / num_heads, cols / num_heads))
      rows_by_head = cols_by_head = true;
    else {
      rows_by_head = row_heads && fits(rows / num_heads, cols);
      cols_by_head = col_heads && fits(rows, cols / num_heads);
    }
    if (rows_by_head && cols_by_head && !fits(rows / num_heads, cols / num_heads)) {
      refuse(op,
             "row_sizes of {} and col_sizes of {} entries may either be the ones per head; repeat the shared sizes for each of {} heads",
             rows, cols, num_heads);
    }
    if (rows_by_head) rows /= num_heads;
    if (cols_by_head) cols /= num_heads;
  }
  if (!fits(rows, cols)) {
    refuse(op, "block_mask has {} entries; must have num_heads={} x {} row blocks x {} column blocks", mask_size, num_heads,
           row_sizes.size(), col_sizes.size());
  }
  std::vector<std::vector<std::int64_t>> row_borders;
  std::vector<std::vector<std::int64_t>> col_borders;
  for (int h = 0; h < num_heads; ++h) {
    row_borders.push_back(borders_of(op, "row_sizes", row_sizes, rows_by_head ? h * rows : 0, rows));
    col_borders.push_back(borders_of(op, "col_sizes", col_sizes, cols_by_head ? h * cols : 0, cols));
    if (row_borders[h].back() != row_borders[0].back()) {
      refuse(op, "row_sizes of head {} sum to {}, of head 0 to {}; must be equal", h, row_borders[h].back(), row_borders[0].back());
    }
    if (col_borders[h].back() != col_borders[0].back()) {
      refuse(op, "col_sizes of head {} sum to {}, of head 0 to {}; must be equal", h, col_borders[h].back(), col_borders[0].back());
    }
  }
  // A page may be cut by the end of the columns only, so the total is no border that it must divide.
  const std::int64_t total = col_borders[0].back();
  std::int64_t page = 0;
  for (const auto& borders : col_borders) {
    for (const std::int64_t border : borders) {
      if (border < total) page = std::gcd(page, border);
    }
  }
  BlockSparse out;
  for (const auto& borders : row_borders) out.qo_indptr.insert(out.qo_indptr.end(), borders.begin(), borders.end());
  std::sort(out.qo_indptr.begin(), out.qo_indptr.end());
  out.qo_indptr.erase(std::unique(out.qo_indptr.begin(), out.qo_indptr.end()), out.qo_indptr.end());
  SegmentWriter writer(out, num_heads, page > 0 ? page : std::max<std::int64_t>(total, 1));
  for (int h = 0; h < num_heads; ++h) {
    writer.start_head();
    std::int64_t row = 0;
    for (std::size_t g = 0; g + 1 < out.qo_indptr.size(); ++g) {
      while (row_borders[h][row + 1] <= out.qo_indptr[g]) ++row;
      for (std::int64_t c = 0; c < cols; ++c) {
        if (block_mask[static_cast<std::size_t>((h * rows + row) * cols + c)] == 0) continue;
        writer.add_columns(col_borders[h][c], col_borders[h][c + 1]);
      }
      writer.end_group();
    }
  }
  return out;
}

}  // namespace girih
