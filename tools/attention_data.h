// What `girih bench attention` needs beside the table of tests/cases/serving.h: useful work, and the memory that running a case takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "girih/attention.h"
#include "tests/cases/serving.h"
#include "tools/batch_json.h"

namespace girih::tools {

/// Multiply-adds of visible pairs, twice: 2 * (head_dim_qk + head_dim_vo) flops a pair and query head.
double useful_flops(const cases::ServingCase& c);
/// Distinct keys and values that a row sees once, Q and O. A shared prefix is taken to be seen whole.
double useful_bytes(const cases::ServingCase& c);

/// The case's batch with its variant: one segment over all requests, also where the case is a cascade.
OwnedBatch make_batch(const cases::ServingCase& c);

/// Batch, random data in shuffled pages and arguments of run(), without workspace.
class AttentionData {
 public:
  explicit AttentionData(const cases::ServingCase& c);
  AttentionData(const AttentionData&) = delete;
  AttentionData& operator=(const AttentionData&) = delete;

  const OwnedBatch& batch() const { return batch_; }
  AttentionArgs args() const;
  /// All memory that args() points into, but page tables and parameters.
  const std::vector<std::span<const std::byte>>& blocks() const { return blocks_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;
  Memory allocate(std::int64_t bytes);
  Memory random_memory(DType dtype, std::int64_t elements, std::uint64_t seed);
  void make_pages(const cases::ServingCase& c);
  void make_store(const AttentionSpec& spec);
  void make_token_store(const AttentionSpec& spec);

  OwnedBatch batch_;
  std::vector<std::vector<std::int32_t>> pages_;  // per segment
  std::int64_t page_size_ = 0;
  std::int64_t num_pages_ = 0;  // ragged: tokens
  std::vector<std::span<const std::byte>> blocks_;
  Memory q_memory_, q_rope_memory_, o_memory_, k_memory_, v_memory_;
  float scale_ = 1;  // of every quantised plane
  KvStore store_;
  TensorView q_, q_rope_, o_;
  std::vector<SegmentData> segments_;
};

}  // namespace girih::tools
