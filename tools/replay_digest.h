// `--results F` and `--compare F`: a digest of each finished request's outputs, and its comparison between two runs that may differ in
// sharing, batch order, workers or SIMD target. A digest is the sum of outputs times fixed pseudo-random weights, in double, over the
// positions that every run computes: from the last prompt block on (earlier ones may be taken over from another request).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "girih/tensor.h"
#include "tools/replay_scheduler.h"

namespace girih::tools {

struct Digest {
  double sum = 0;
  double squares = 0;  ///< of the summed terms: the scale that a difference is measured against
};

class DigestTable {
 public:
  /// Rows of `width` = heads * head_dim_vo elements.
  DigestTable(std::int64_t width, DType dtype);
  /// Whether the outputs at this position count.
  static bool counts(const TraceRequest& request, std::int64_t position) {
    return position >= (request.input_length - 1) / kPrefixBlock * kPrefixBlock;
  }
  void add(std::int64_t request, std::int64_t position, int layer, const void* o);
  void finish(std::int64_t request);
  const std::map<std::int64_t, Digest>& finished() const { return finished_; }

 private:
  DType dtype_;
  std::vector<float> weights_;
  std::map<std::int64_t, Digest> running_, finished_;
};

/// Writes digests with the settings they belong to. Throws std::runtime_error if the file cannot be written.
void write_results(const std::string& path, const std::string& settings, const std::map<std::int64_t, Digest>& digests);

struct CompareResult {
  std::int64_t compared = 0;
  std::int64_t missing = 0;  ///< in one of the two only
  std::int64_t different = 0;
  double max_relative = 0;  ///< largest |difference| / sqrt(squares)
  double tolerance = 0;
  bool passed() const { return different == 0 && missing == 0; }
};
/// Throws Error(io) for a file that is none of ours, Error(invalid_argument) for other settings.
CompareResult compare_results(const std::string& path, const std::string& settings, const std::map<std::int64_t, Digest>& digests,
                              DType o_dtype);

}  // namespace girih::tools
