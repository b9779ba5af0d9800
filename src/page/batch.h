// An append batch, checked and turned into pieces: runs of new tokens that lie in one page.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "girih/page.h"

namespace girih::page {

struct Piece {
  std::int64_t row = 0;    // first row of the new K and V
  std::int64_t page = 0;   // page id; ragged: 0; below 0: these rows are not written
  std::int64_t token = 0;  // first place in the page; ragged: token of the store
  std::int64_t count = 0;
};

/// Throws unless append_indptr is [num_requests + 1] from 0, non-decreasing, and kv_len [num_requests] holds what is appended.
void check_lengths(std::string_view op, Indices append_indptr, Indices kv_len);

/// Checks the batch against the store and returns its pieces in row order. Only page ids of places that are written are read. Throws where
/// two new tokens would take the same place (a shared page must be copied before it is appended to).
std::vector<Piece> plan_append(std::string_view op, const KvStore& store, const AppendBatch& batch);

/// The rows of a table whose arrays are host memory likewise. Rows that go nowhere are pieces of page -1.
std::vector<Piece> plan_append(std::string_view op, const KvStore& store, const AppendTable& table);

/// Throws unless the table's arrays are dense index arrays on `device` that fit each other and the store. Returns how many rows it has.
std::int64_t check_table(std::string_view op, Device device, const KvStore& store, const AppendTable& table);

}  // namespace girih::page
