// A row on the CPU: loaded and processed into f32, then cut by filters, then drawn from. One object a worker; its memory is reused from
// row to row.
#pragma once

#include <span>
#include <vector>

#include "abi/sampling_params.h"
#include "girih/tensor.h"
#include "sampling/cpu.h"
#include "sampling/cut.h"

namespace girih::sampling {

/// Filters of one row; what is off does nothing.
struct Filters {
  std::int64_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  bool joint = false;
};

class Row {
 public:
  Row(const CpuKernels& kernels, std::int64_t capacity);

  /// Entries of any byte stride become the row. Call set_weighting() before masses are asked for.
  void load(const unsigned char* source, DType type, std::int64_t byte_stride, std::int64_t n, bool probs);
  /// Bias, penalties and mask of row `r`; NaN that arise count as -inf.
  void process(const abi::SampleParams& p, std::int64_t r);
  /// row = max(row - other, 0), both of probabilities: the residual distribution.
  void subtract(const unsigned char* other, DType type, std::int64_t byte_stride);
  void remove(std::int64_t i) { x_[static_cast<std::size_t>(i)] = -__builtin_inff(); }

  /// Finds the largest entry; `temperature` > 0 (probabilities: not used).
  void set_weighting(float temperature);

  std::int64_t size() const { return n_; }
  bool has_nan() const { return has_nan_; }
  bool has_mass() const { return weighting_.max > -__builtin_inff(); }
  float at(std::int64_t i) const { return x_[static_cast<std::size_t>(i)]; }
  const Weighting& weighting() const { return weighting_; }
  std::int64_t argmax() const;  ///< the first entry of the order

  /// Mass of all entries.
  std::uint64_t total();
  /// Finds which entries are kept. Where no filter has an effect: everything(), and no list.
  void filter(const Filters& filters);
  bool everything() const { return everything_; }
  std::span<const std::int32_t> kept() const { return kept_; }
  std::uint64_t kept_mass() const { return kept_mass_; }
  /// The entry that 64 random bits choose of what is kept; >= 0.
  std::int64_t draw(std::uint64_t random_bits);

  /// The first min(k, entries that are not -inf) of the order: (key, index) in the order.
  struct Entry {
    std::uint32_t key;
    std::int32_t index;
  };
  std::span<const Entry> first(std::int64_t k);

  /// Natural logarithm of the probability of entry i where all have `total`.
  float logprob(std::int64_t i, std::uint64_t total, float temperature) const;
  /// out[0, n) = weight / divisor.
  const float* divided(float divisor);

 private:
  /// Indices, ascending, that include the first k of the order among entries that are not -inf.
  void gather_first(std::int64_t k);
  void list_masses();
  void keep_cut(const Cut& cut);
  std::uint64_t mass_of(float x) const;
  float least_value(float min_p) const;

  const CpuKernels& kernels_;
  std::int64_t n_ = 0;
  bool probs_ = false;
  bool has_nan_ = false;
  bool summed_ = false;
  std::uint64_t total_ = 0;
  Weighting weighting_;
  std::vector<float> x_, listed_;
  std::vector<unsigned char> dense_;
  std::vector<std::uint64_t> chunks_, masses_;
  std::vector<std::int32_t> kept_, gathered_;
  std::vector<std::uint32_t> keys_;
  std::vector<Entry> entries_;
  std::vector<float> sample_;
  CutScratch scratch_;
  bool everything_ = true;
  std::uint64_t kept_mass_ = 0;
};

}  // namespace girih::sampling
