// A batch with owned arrays, made from lengths or read from a JSON file:
//
//   {"spec":   {"num_qo_heads": 32, "num_kv_heads": 8, "head_dim_qk": 128, "q_dtype": "bf16", ...},     fields of AttentionSpec
//    "mask":   "causal" or {"name": "window", "left": 1023},                                            named_variant.h
//    "logits": {"name": "soft_cap", "cap": 50},
//    "batch":  {"qo_lens": [1, 1, 512], "kv_lens": "zipf:mean=4096,n=3", "page_size": 16}}              or, in place of the last two,
//               "segments": [{"qo_lens": [514], "kv_lens": [4096], "page_size": 16, "kv_pos": [0], "masked": false}, ...]
//
// A list is an array of whole numbers or a text in the grammar of lengths.h. A page size of 0 or "endless" means a ragged store.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "girih/attention.h"
#include "tools/named_variant.h"

namespace girih::tools {

struct OwnedSegment {
  std::vector<std::int64_t> qo_indptr;  ///< empty = the requests are the groups
  std::vector<std::int64_t> kv_indptr;  ///< pages are taken in order: group g has [kv_indptr[g], kv_indptr[g+1])
  std::vector<std::int64_t> kv_len;
  std::vector<std::int64_t> kv_pos;  ///< empty = not given
  std::int64_t page_size = 16;
  bool masked = true;
};

/// Views into an OwnedBatch. Keep both alive; `batch.segments` points to `segments`, which moves along.
struct BatchView {
  std::vector<KvSegment> segments;
  Batch batch;
  BatchView() = default;
  BatchView(BatchView&&) = default;
  BatchView& operator=(BatchView&&) = default;
};

struct OwnedBatch {
  AttentionSpec spec;  ///< with the variant
  NamedVariant variant;
  NamedCall mask{"full", {}};
  std::vector<std::int64_t> qo_indptr;
  std::vector<std::int64_t> q_pos;  ///< empty = not given
  std::vector<OwnedSegment> segments;

  std::int64_t num_requests() const { return std::ssize(qo_indptr) - 1; }
  std::int64_t num_tokens() const { return qo_indptr.back(); }
  BatchView view() const;
  /// The smallest limits that admit this batch.
  AttentionLimits limits() const;
};

/// Sums, starting with 0.
std::vector<std::int64_t> indptr_of(const std::vector<std::int64_t>& lens);
OwnedSegment make_segment(const std::vector<std::int64_t>& kv_lens, std::int64_t page_size);

/// One segment over all requests. A single qo length serves every request. Throws invalid_argument, naming --qo-lens or --kv-lens.
OwnedBatch make_batch(const AttentionSpec& spec, std::vector<std::int64_t> qo_lens, const std::vector<std::int64_t>& kv_lens,
                      std::int64_t page_size, const NamedCall& mask, const NamedCall& logits);

/// Throws Error(io) with `file`, the position (line and column, or the JSON pointer of the value) and the reason. Unknown and repeated
/// keys are refused. Whether the spec can be served is for schedule() to say.
OwnedBatch parse_batch_json(std::string_view text, std::string_view file);
OwnedBatch read_batch_json(const std::string& file);

}  // namespace girih::tools
