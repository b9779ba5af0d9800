// `--verify N`: random (row, head) samples of a replay recomputed in double precision, from the bytes in the pool, through the page list as
// the request sees it. Two things are checked: the attention of those bytes, and that the pool holds at every position what was appended
// there (a page taken twice or a wrong prefix would pass the first check).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "girih/attention.h"
#include "tools/models.h"
#include "tools/replay_kv.h"
#include "tools/replay_scheduler.h"

namespace girih::tools {

struct VerifyResult {
  std::int64_t requested = 0;
  std::int64_t checked = 0;
  std::int64_t failed = 0;  ///< samples beyond the tolerance, or with a wrong pool
  double max_error = 0;     ///< largest |o - reference|
  double max_lse_error = 0;
  double max_ratio = 0;         ///< largest error over its tolerance, o and LSE; at most 1 passes
  double max_stored_ratio = 0;  ///< largest |pool - appended| over what quantisation allows; at most 1 passes
  std::string worst;            ///< where max_ratio was found
  bool passed() const { return failed == 0; }
};

/// One row of one head, as run() computed it.
struct VerifySample {
  std::int64_t step = 0;
  const StepEntry* entry = nullptr;
  std::int64_t position = 0;
  int layer = 0;
  int head = 0;             ///< query head
  const void* q = nullptr;  ///< [head_dim_qk]
  const void* o = nullptr;  ///< [head_dim_vo]
  float lse = 0;
};

class Verifier {
 public:
  Verifier(const ModelPreset& model, const RandomRows& rows, std::vector<float> sinks, std::int64_t page_size, std::int64_t requested);
  void check(const VerifySample& sample, const AttentionSpec& spec, std::int64_t window, const LayerPool& pool);
  const VerifyResult& result() const { return result_; }

 private:
  double stored_ratio(const VerifySample& sample, const AttentionSpec& spec, const LayerPool& pool, std::int64_t position) const;

  const ModelPreset& model_;
  const RandomRows& rows_;
  std::vector<float> sinks_;
  std::int64_t page_size_;
  VerifyResult result_;
};

}  // namespace girih::tools
