// The attention benchmark's cases as data, and the memory that running one needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "girih/attention.h"
#include "tools/batch_json.h"

namespace girih::tools {

struct AttentionCase {
  std::string name;
  AttentionSpec spec;                          ///< without variant
  std::vector<std::int64_t> qo_lens, kv_lens;  ///< per request
  std::string mask = "causal", logits = "none";
  std::int64_t shared_prefix = 0;  ///< the first keys of every request lie in the same pages (a multiple of the page size)
  bool cascade = false;            ///< the shared prefix is a segment of its own, one group over all requests
};

inline constexpr std::int64_t kBenchPageSize = 16;

std::vector<AttentionCase> attention_cases();

/// Multiply-adds of visible pairs, twice: 2 * (head_dim_qk + head_dim_vo) flops a pair and query head.
double useful_flops(const AttentionCase& c);
/// Distinct keys and values once, Q and O.
double useful_bytes(const AttentionCase& c);

/// Batch, random data in shuffled pages and arguments of run(), without workspace.
class AttentionData {
 public:
  explicit AttentionData(const AttentionCase& c);
  AttentionData(const AttentionData&) = delete;
  AttentionData& operator=(const AttentionData&) = delete;

  const OwnedBatch& batch() const { return batch_; }
  AttentionArgs args() const;
  const TensorView& output() const { return o_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;
  static Memory allocate(std::int64_t bytes);
  Memory random_memory(DType dtype, std::int64_t elements, std::uint64_t seed);
  void make_pages(const AttentionCase& c);
  void make_store(const AttentionSpec& spec);

  OwnedBatch batch_;
  std::vector<std::vector<std::int32_t>> pages_;  // per segment
  std::int64_t num_pages_ = 0;
  Memory q_memory_, o_memory_, k_memory_, v_memory_;
  float scale_ = 1;  // of every quantised plane
  KvStore store_;
  TensorView q_, o_;
  std::vector<SegmentData> segments_;
};

}  // namespace girih::tools
