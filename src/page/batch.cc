// Where appended tokens go, by requests or by a table with an entry for every row. Of a batch, request r's tokens take the last
// places of kv_len[r], so its first piece may start inside a page that holds older tokens; pages before that one are never looked at.
#include "page/batch.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace girih::page {
namespace {

/// Table row of request r: entries [first, first + extent) of kv_indices (ragged: tokens of the store).
struct TableRow {
  std::int64_t first = 0;
  std::int64_t extent = 0;
};

/// `entries`: what the table may point into: kv_indices.size(), or the tokens of a ragged store.
void check_table(std::string_view op, const AppendBatch& batch, std::int64_t requests, std::int64_t entries,
                 std::string_view entries_name) {
  if (batch.table_stride < 0) fail(Code::invalid_argument, op, "table_stride={}; must be >= 0", batch.table_stride);
  if (!batch.kv_indptr.empty() && batch.table_stride != 0) {
    fail(Code::invalid_argument, op, "kv_indptr and table_stride={} are both given; give one", batch.table_stride);
  }
  if (batch.kv_indptr.empty()) {
    if (batch.table_stride == 0 && requests > 0) {
      fail(Code::invalid_argument, op, "neither kv_indptr nor table_stride is given; a page table needs one of them");
    }
    return;
  }
  if (batch.kv_indptr.size() != requests + 1) {
    fail(Code::invalid_argument, op, "kv_indptr has {} entries; must have {} (num_requests + 1)", batch.kv_indptr.size(), requests + 1);
  }
  for (std::int64_t r = 0; r <= requests; ++r) {
    const std::int64_t previous = r == 0 ? 0 : batch.kv_indptr[r - 1];
    if (batch.kv_indptr[r] < previous) {
      fail(Code::invalid_argument, op, "kv_indptr[{}]={} < {}; must be non-decreasing from >= 0", r, batch.kv_indptr[r], previous);
    }
  }
  if (batch.kv_indptr[requests] > entries) {
    fail(Code::invalid_argument, op, "kv_indptr[{}]={} > {}={}; must stay within it", requests, batch.kv_indptr[requests], entries_name,
         entries);
  }
}

/// The request's table row; throws where it is shorter than the `needed` entries.
TableRow table_row(std::string_view op, const AppendBatch& batch, std::int64_t request, std::int64_t needed, std::int64_t entries,
                   std::string_view entries_name) {
  TableRow row;
  if (!batch.kv_indptr.empty()) {
    row = {batch.kv_indptr[request], batch.kv_indptr[request + 1] - batch.kv_indptr[request]};
  } else if (needed > entries || request > (entries - needed) / batch.table_stride) {  // a product could overflow
    fail(Code::invalid_argument, op, "table row {} of stride {} needs {} entries past the end of {}={}", request, batch.table_stride,
         needed, entries_name, entries);
  } else {
    row = {request * batch.table_stride, batch.table_stride};
  }
  if (row.extent < needed) {
    fail(Code::invalid_argument, op, "kv_len[{}]={} needs {} table entries; the table gives {}", request, batch.kv_len[request], needed,
         row.extent);
  }
  return row;
}

/// Places of two requests must differ: their writes would race, and the older request would lose tokens.
void check_distinct(std::string_view op, const std::vector<Piece>& pieces) {
  std::vector<Piece> sorted;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(sorted), [](const Piece& p) { return p.page >= 0; });
  std::sort(sorted.begin(), sorted.end(),
            [](const Piece& a, const Piece& b) { return a.page != b.page ? a.page < b.page : a.token < b.token; });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const Piece& a = sorted[i - 1];
    const Piece& b = sorted[i];
    if (a.page == b.page && b.token < a.token + a.count) {
      fail(Code::invalid_argument, op, "rows {} and {} go to the same place (page {}, token {}); copy a shared page before appending to it",
           a.row + (b.token - a.token), b.row, b.page, b.token);
    }
  }
}

/// A dense array of indices, or none.
void check_indices(std::string_view op, Device device, std::string_view what, const TensorView& t, std::int64_t size) {
  if (t.rank != 1) fail(Code::invalid_argument, op, "{} has rank {}; must be 1", what, t.rank);
  if (t.device != device) fail(Code::invalid_argument, op, "{}.device={}; must be {}, as the store", what, name(t.device), name(device));
  if (t.dtype != DType::i32 && t.dtype != DType::i64) fail(Code::invalid_argument, op, "{} is {}; must be i32 or i64", what, name(t.dtype));
  if (size >= 0 && t.shape[0] != size) fail(Code::invalid_argument, op, "{} has {} entries; must have {}", what, t.shape[0], size);
  if (t.shape[0] > 1 && t.strides[0] != 1) fail(Code::invalid_argument, op, "{} has stride {}; must be dense", what, t.strides[0]);
  if (t.shape[0] > 0 && t.data == nullptr) fail(Code::invalid_argument, op, "{}.data is null; must hold {} entries", what, t.shape[0]);
}

std::int64_t index_at(const TensorView& t, std::int64_t i) {
  return t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[i] : static_cast<const std::int32_t*>(t.data)[i];
}

constexpr Piece kNowhere = {.row = 0, .page = -1, .token = 0, .count = 1};

/// Where row `row` goes by its slot.
Piece place_of_slot(std::string_view op, const KvStore& store, const AppendTable& table, std::int64_t row) {
  const std::int64_t slot = index_at(table.slots, row);
  if (slot < 0) return kNowhere;
  const bool endless = store.page_size == kEndlessPage;
  const std::int64_t page = endless ? 0 : slot / store.page_size;
  if ((endless ? slot : page) >= store.num_pages) {
    fail(Code::invalid_argument, op, "slots[{}]={} lies outside of the store, which has {} {}", row, slot, store.num_pages,
         endless ? "tokens" : "pages");
  }
  return {.row = row, .page = page, .token = endless ? slot : slot % store.page_size, .count = 1};
}

/// The same by its request and position.
Piece place_of_position(std::string_view op, const KvStore& store, const AppendTable& table, std::int64_t row) {
  const std::int64_t request = index_at(table.batch_indices, row);
  if (request < 0) return kNowhere;
  const std::int64_t requests = table.kv_indptr.shape[0] - 1;
  if (request >= requests) fail(Code::invalid_argument, op, "batch_indices[{}]={}; kv_indptr is of {} requests", row, request, requests);
  const bool endless = store.page_size == kEndlessPage;
  const std::int64_t position = index_at(table.positions, row);
  const std::int64_t begin = index_at(table.kv_indptr, request), end = index_at(table.kv_indptr, request + 1);
  const std::int64_t entries = endless ? store.num_pages : table.kv_indices.shape[0];
  if (begin < 0 || end < begin || end > entries) {
    fail(Code::invalid_argument, op, "kv_indptr[{}..{}]={}, {}; must be non-decreasing in [0, {}]", request, request + 1, begin, end,
         entries);
  }
  const std::int64_t index = endless ? position : position / store.page_size;
  if (position < 0 || index >= end - begin) {
    fail(Code::invalid_argument, op, "positions[{}]={} of request {}, whose list has {} {}; it must already include what is appended", row,
         position, request, end - begin, endless ? "tokens" : "pages");
  }
  if (endless) return {.row = row, .page = 0, .token = begin + position, .count = 1};
  const std::int64_t page = index_at(table.kv_indices, begin + index);
  if (page < 0 || page >= store.num_pages) {
    fail(Code::invalid_argument, op, "kv_indices[{}]={} (request {}); must be in [0, num_pages={})", begin + index, page, request,
         store.num_pages);
  }
  return {.row = row, .page = page, .token = position % store.page_size, .count = 1};
}

}  // namespace

std::int64_t check_table(std::string_view op, Device device, const KvStore& store, const AppendTable& table) {
  const auto absent = [&](std::string_view what, const TensorView& t, std::string_view beside) {
    if (t.rank != 0) fail(Code::invalid_argument, op, "{} is given beside {}; leave it out", what, beside);
  };
  if (table.slots.rank != 0) {
    check_indices(op, device, "slots", table.slots, -1);
    absent("batch_indices", table.batch_indices, "slots");
    absent("positions", table.positions, "slots");
    absent("kv_indptr", table.kv_indptr, "slots");
    absent("kv_indices", table.kv_indices, "slots");
    return table.slots.shape[0];
  }
  check_indices(op, device, "batch_indices", table.batch_indices, -1);
  check_indices(op, device, "positions", table.positions, table.batch_indices.shape[0]);
  check_indices(op, device, "kv_indptr", table.kv_indptr, -1);
  if (table.kv_indptr.shape[0] < 1) fail(Code::invalid_argument, op, "kv_indptr is empty; must have num_requests + 1 entries");
  if (store.page_size == kEndlessPage) {
    absent("kv_indices", table.kv_indices, "a ragged store");
  } else {
    check_indices(op, device, "kv_indices", table.kv_indices, -1);
    if (table.kv_indices.dtype != DType::i32)
      fail(Code::invalid_argument, op, "kv_indices is {}; must be i32", name(table.kv_indices.dtype));
  }
  return table.batch_indices.shape[0];
}

std::vector<Piece> plan_append(std::string_view op, const KvStore& store, const AppendTable& table) {
  const bool by_slots = table.slots.rank != 0;
  const std::int64_t rows = by_slots ? table.slots.shape[0] : table.batch_indices.shape[0];
  std::vector<Piece> pieces;
  for (std::int64_t row = 0; row < rows; ++row) {
    Piece place = by_slots ? place_of_slot(op, store, table, row) : place_of_position(op, store, table, row);
    place.row = row;
    if (!pieces.empty()) {
      Piece& last = pieces.back();
      if (last.page == place.page && (place.page < 0 || last.token + last.count == place.token)) {
        ++last.count;
        continue;
      }
    }
    pieces.push_back(place);
  }
  check_distinct(op, pieces);
  return pieces;
}

void check_lengths(std::string_view op, Indices append_indptr, Indices kv_len) {
  if (append_indptr.empty()) fail(Code::invalid_argument, op, "append_indptr is empty; must have num_requests + 1 entries");
  const std::int64_t requests = append_indptr.size() - 1;
  if (append_indptr[0] != 0) fail(Code::invalid_argument, op, "append_indptr[0]={}; must be 0", append_indptr[0]);
  if (kv_len.size() != requests) {
    fail(Code::invalid_argument, op, "kv_len has {} entries; must have {} (num_requests)", kv_len.size(), requests);
  }
  for (std::int64_t r = 0; r < requests; ++r) {
    if (append_indptr[r + 1] < append_indptr[r]) {
      fail(Code::invalid_argument, op, "append_indptr[{}]={} < append_indptr[{}]={}; must be non-decreasing", r + 1, append_indptr[r + 1],
           r, append_indptr[r]);
    }
    const std::int64_t added = append_indptr[r + 1] - append_indptr[r];
    if (kv_len[r] < added) {
      fail(Code::invalid_argument, op, "kv_len[{}]={} < {} tokens appended; must be the length after the append", r, kv_len[r], added);
    }
  }
}

std::vector<Piece> plan_append(std::string_view op, const KvStore& store, const AppendBatch& batch) {
  check_lengths(op, batch.append_indptr, batch.kv_len);
  const bool endless = store.page_size == kEndlessPage;
  const std::int64_t requests = batch.append_indptr.size() - 1;
  const std::int64_t entries = endless ? store.num_pages : std::ssize(batch.kv_indices);
  const std::string_view entries_name = endless ? "store.num_pages" : "kv_indices.size()";
  check_table(op, batch, requests, entries, entries_name);
  std::vector<Piece> pieces;
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t row = batch.append_indptr[r];
    const std::int64_t added = batch.append_indptr[r + 1] - row;
    if (added == 0) continue;
    const std::int64_t len = batch.kv_len[r];
    const std::int64_t first = len - added;
    if (endless) {
      pieces.push_back({row, 0, table_row(op, batch, r, len, entries, entries_name).first + first, added});
      continue;
    }
    const std::int64_t needed = len / store.page_size + (len % store.page_size != 0 ? 1 : 0);
    const TableRow table = table_row(op, batch, r, needed, entries, entries_name);
    for (std::int64_t at = first; at < len;) {
      const std::int64_t entry = table.first + at / store.page_size;
      const std::int64_t page = batch.kv_indices[static_cast<std::size_t>(entry)];
      if (page < 0 || page >= store.num_pages) {
        fail(Code::invalid_argument, op, "kv_indices[{}]={} (request {}); must be in [0, num_pages={})", entry, page, r, store.num_pages);
      }
      const std::int64_t token = at % store.page_size;
      const std::int64_t count = std::min(store.page_size - token, len - at);
      pieces.push_back({row + (at - first), page, token, count});
      at += count;
    }
  }
  check_distinct(op, pieces);
  return pieces;
}

}  // namespace girih::page
