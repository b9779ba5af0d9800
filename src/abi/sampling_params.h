// Parameters of the sampling operators, checked, as both backends take them (kernels by value). Strides of vectors and matrices of
// parameters and results count elements, those of rows of data bytes.
#pragma once

#include <cstdint>

#include "abi/sampling_math.h"

namespace girih::abi {

/// One value for all rows, or [rows].
struct RowFloatArg {
  const float* rows;  // null: `value`
  std::int64_t stride;
  float value;
  float at(std::int64_t row) const { return rows == nullptr ? value : rows[row * stride]; }
};
/// i32 or i64, one value or [rows]; also an array of indices.
struct RowIntArg {
  const void* rows;  // null: `value`
  std::int64_t stride;
  std::int64_t value;
  std::int32_t is_64;
  std::int64_t at(std::int64_t row) const {
    if (rows == nullptr) return value;
    return is_64 != 0 ? static_cast<const std::int64_t*>(rows)[row * stride] : static_cast<const std::int32_t*>(rows)[row * stride];
  }
};
/// Results that are tokens or indices: [rows] or [rows, n].
struct TokenOut {
  void* data;  // null: not wanted
  std::int64_t row_stride;
  std::int64_t stride;
  std::int32_t is_64;
  void set(std::int64_t row, std::int64_t i, std::int64_t value) const {
    if (is_64 != 0) {
      static_cast<std::int64_t*>(data)[row * row_stride + i * stride] = value;
    } else {
      static_cast<std::int32_t*>(data)[row * row_stride + i * stride] = static_cast<std::int32_t>(value);
    }
  }
  std::int64_t at(std::int64_t row, std::int64_t i) const {
    return is_64 != 0 ? static_cast<const std::int64_t*>(data)[row * row_stride + i * stride]
                      : static_cast<const std::int32_t*>(data)[row * row_stride + i * stride];
  }
};
struct FloatOut {
  float* data;  // null: not wanted
  std::int64_t row_stride;
  std::int64_t stride;
  void set(std::int64_t row, std::int64_t i, float value) const { data[row * row_stride + i * stride] = value; }
};

/// Rows of entries, f32, f16 or bf16.
struct RowsIn {
  const unsigned char* data;
  std::int64_t row_stride;  // bytes
  std::int64_t stride;      // bytes
  std::int64_t num_rows;
};
struct RowsOut {
  unsigned char* data;
  std::int64_t row_stride;
  std::int64_t stride;
};

/// Tokens of each row with a value beside each.
struct ListArg {
  RowIntArg indptr;            // [rows + 1]; rows null: no lists
  const std::int32_t* tokens;  // [n]
  const void* values;          // [n] f32 (bias) or i32 (counts), or null: all 1
  std::int64_t n;
};

struct RandomArg {
  RowIntArg seed;
  RowIntArg offset;
  std::int32_t seed_per_row;
  std::uint64_t bits(std::int64_t row, std::uint32_t purpose) const {
    return random_bits(static_cast<std::uint64_t>(seed.at(row)), static_cast<std::uint64_t>(offset.at(row)),
                       seed_per_row != 0 ? 0 : static_cast<std::uint32_t>(row), purpose);
  }
};

/// sample(), softmax(), the renormalising functions and top_k_mask_logits(): a row is loaded, cut, and drawn from or written.
struct SampleParams {
  RowsIn input;
  RowIntArg indices;  // rows null: row r
  std::int64_t rows;
  std::int32_t vocab;
  std::int32_t probs;
  ListArg bias;
  ListArg history;
  RowFloatArg repetition;
  RowFloatArg frequency;
  RowFloatArg presence;
  const std::uint32_t* allowed;  // [rows, words], or null
  std::int64_t allowed_stride;
  RowFloatArg temperature;
  RowIntArg top_k;
  RowFloatArg top_p;
  RowFloatArg min_p;
  std::int32_t joint;
  RandomArg random;
  TokenOut tokens;
  unsigned char* valid;
  std::int64_t valid_stride;
  FloatOut logprobs;
  TokenOut top_tokens;
  FloatOut top_logprobs;
  std::int32_t num_top;
  std::int32_t filtered_logprobs;
  RowsOut out;  // of the functions that write rows
};

struct TopKParams {
  RowsIn input;
  std::int64_t rows;
  std::int32_t vocab;
  std::int32_t k;
  std::int32_t sorted;
  const std::int32_t* starts;  // [rows] or null
  std::int64_t starts_stride;
  const std::int32_t* lengths;
  std::int64_t lengths_stride;
  const std::int32_t* table;  // [requests, pages] or null
  std::int64_t table_row_stride;
  std::int64_t table_stride;
  std::int64_t table_rows;
  std::int64_t table_pages;
  const std::int32_t* row_requests;  // [rows] or null
  std::int64_t row_requests_stride;
  std::int64_t page_size;
  const std::int32_t* offsets;  // [rows] or null
  std::int64_t offsets_stride;
  RowsOut values;  // data null: not wanted
  TokenOut indices;

  /// What index `i` of a row is returned as. Pages and requests outside the table give -1.
  std::int64_t returned(std::int64_t row, std::int64_t i) const {
    if (table == nullptr) return i + (offsets == nullptr ? 0 : offsets[row * offsets_stride]);
    const std::int64_t request = row_requests == nullptr ? row : row_requests[row * row_requests_stride];
    const std::int64_t page = i / page_size;
    if (request < 0 || request >= table_rows || page >= table_pages) return -1;
    return table[request * table_row_stride + page * table_stride] * page_size + (i - page * page_size);
  }
};

struct SpeculativeParams {
  RowsIn draft;                     // [batch, n] rows of vocab; data null: certain
  std::int64_t draft_place_stride;  // bytes from place to place; row_stride is from request to request
  RowsIn target;
  std::int64_t target_place_stride;
  const std::int32_t* draft_tokens;
  std::int64_t draft_tokens_row_stride;
  std::int64_t draft_tokens_stride;
  RowIntArg lengths;
  std::int64_t batch;
  std::int32_t n;
  std::int32_t vocab;
  std::int32_t greedy;
  RandomArg random;
  TokenOut tokens;
  TokenOut accepted;
};

}  // namespace girih::abi
