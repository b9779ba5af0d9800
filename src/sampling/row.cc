// See row.h.
#include "sampling/row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/math.h"
#include "base/numeric.h"

namespace girih::sampling {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.4426950408889634F;

std::uint32_t key_of(float x) { return abi::key_of_bits(std::bit_cast<std::uint32_t>(x)); }
std::size_t padded(std::int64_t n) { return static_cast<std::size_t>(round_up(n, kRowPadding)); }

/// Copies elements `byte_stride` apart end to end.
void collect(const unsigned char* source, std::int64_t item, std::int64_t byte_stride, std::int64_t n, std::vector<unsigned char>& out) {
  out.resize(static_cast<std::size_t>(n * item));
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(out.data() + i * item, source + i * byte_stride, static_cast<std::size_t>(item));
}

}  // namespace

Row::Row(const CpuKernels& kernels, std::int64_t capacity) : kernels_(kernels) {
  x_.resize(padded(capacity));
  chunks_.resize(static_cast<std::size_t>(ceil_div(capacity, kChunk)));
}

void Row::load(const unsigned char* source, DType type, std::int64_t byte_stride, std::int64_t n, bool probs) {
  const std::int64_t item = bits(type) / 8;
  if (byte_stride != item) {
    collect(source, item, byte_stride, n, dense_);
    source = dense_.data();
  }
  n_ = n;
  probs_ = probs;
  summed_ = false;
  has_nan_ = kernels_.load(source, type, n, probs, x_.data());
}

void Row::process(const abi::SampleParams& p, std::int64_t r) {
  const auto put = [this](std::int32_t token, float x) { x_[static_cast<std::size_t>(token)] = std::isnan(x) ? kMinusInf : x + 0.0F; };
  if (p.bias.indptr.rows != nullptr) {
    const auto* values = static_cast<const float*>(p.bias.values);
    for (std::int64_t i = p.bias.indptr.at(r); i < p.bias.indptr.at(r + 1); ++i) put(p.bias.tokens[i], at(p.bias.tokens[i]) + values[i]);
  }
  if (p.history.indptr.rows != nullptr) {
    const auto* counts = static_cast<const std::int32_t*>(p.history.values);
    const float repetition = p.repetition.at(r), frequency = p.frequency.at(r), presence = p.presence.at(r);
    for (std::int64_t i = p.history.indptr.at(r); i < p.history.indptr.at(r + 1); ++i) {
      const std::int32_t count = counts == nullptr ? 1 : counts[i];
      float x = at(p.history.tokens[i]);
      x = x > 0 ? x / repetition : x * repetition;
      if (count > 0) x = __builtin_fmaf(-frequency, static_cast<float>(count), x) - presence;
      put(p.history.tokens[i], x);
    }
  }
  if (p.allowed != nullptr) kernels_.mask(p.allowed + r * p.allowed_stride, n_, x_.data());
}

void Row::subtract(const unsigned char* other, DType type, std::int64_t byte_stride) {
  for (std::int64_t i = 0; i < n_; ++i) {
    const float q = load_element(type, other + i * byte_stride, 0);
    float& x = x_[static_cast<std::size_t>(i)];
    if (q > 0) x -= q;
    if (!(x > 0)) x = kMinusInf;
  }
  summed_ = false;
}

void Row::set_weighting(float temperature) {
  summed_ = false;
  weighting_ = {.probs = probs_, .max = kernels_.max(x_.data(), n_), .scale = kLog2E / temperature, .reference = abi::kOneExponent};
  if (probs_ && has_mass() && std::isfinite(weighting_.max))
    weighting_.reference = abi::reference_of_largest(std::bit_cast<std::uint32_t>(weighting_.max));
}

std::int64_t Row::argmax() const {
  std::int64_t i = 0;
  while (i < n_ - 1 && x_[static_cast<std::size_t>(i)] != weighting_.max) ++i;
  return i;
}

std::uint64_t Row::total() {
  if (!summed_) total_ = kernels_.sum(x_.data(), n_, weighting_, chunks_.data());
  summed_ = true;
  return total_;
}

std::uint64_t Row::mass_of(float x) const {
  float one[kRowPadding];
  std::uint64_t mass[kRowPadding];
  std::fill_n(one, kRowPadding, x);
  kernels_.masses(one, 1, weighting_, mass);
  return mass[0];
}

/// The least value whose mass is at least min_p of the largest: found on the masses themselves, so that there is no second rounding.
float Row::least_value(float min_p) const {
  const std::uint64_t largest = mass_of(weighting_.max);
  const std::uint64_t need = min_p >= 1 ? largest : abi::mass_needed(largest, std::bit_cast<std::uint32_t>(min_p));
  std::uint32_t low = abi::kKeyOfMinusInf + 1, high = key_of(weighting_.max);
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (mass_of(std::bit_cast<float>(abi::bits_of_key(middle))) >= need) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::bit_cast<float>(abi::bits_of_key(high));
}

/// A sample of the row says where its first k begin; should it be wrong, all entries are taken.
void Row::gather_first(std::int64_t k) {
  constexpr std::int64_t kSamples = 2048;
  float pivot = std::numeric_limits<float>::lowest();
  if (n_ >= 2 * kSamples) {
    const std::int64_t step = n_ / kSamples;
    sample_.clear();
    for (std::int64_t i = step / 2; i < n_; i += step) sample_.push_back(x_[static_cast<std::size_t>(i)]);
    const double expected = static_cast<double>(k) / static_cast<double>(step);
    const auto rank = static_cast<std::ptrdiff_t>(expected + 4 * std::sqrt(expected) + 4);
    if (rank < std::ssize(sample_)) {
      std::nth_element(sample_.begin(), sample_.begin() + rank, sample_.end(), std::greater<>());
      pivot = std::max(pivot, sample_[static_cast<std::size_t>(rank)]);
    }
  }
  gathered_.resize(padded(n_) + static_cast<std::size_t>(kRowPadding));
  std::int64_t count = kernels_.gather(x_.data(), n_, pivot, gathered_.data());
  if (count < k && pivot != std::numeric_limits<float>::lowest())
    count = kernels_.gather(x_.data(), n_, std::numeric_limits<float>::lowest(), gathered_.data());
  gathered_.resize(static_cast<std::size_t>(count));
}

/// Values, keys and masses of the list kept_.
void Row::list_masses() {
  const std::int64_t n = std::ssize(kept_);
  listed_.resize(padded(n));
  masses_.resize(padded(n));
  keys_.resize(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    listed_[i] = at(kept_[i]);
    keys_[i] = key_of(listed_[i]);
  }
  std::fill(listed_.begin() + n, listed_.end(), kMinusInf);
  kernels_.masses(listed_.data(), n, weighting_, masses_.data());
}

/// Takes what the cut leaves out of the list.
void Row::keep_cut(const Cut& cut) {
  std::size_t out = 0;
  std::int64_t ties = cut.ties;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (keys_[i] < cut.key || (keys_[i] == cut.key && ties-- <= 0)) continue;
    kept_[out] = kept_[i];
    keys_[out] = keys_[i];
    masses_[out++] = masses_[i];
  }
  kept_.resize(out);
  keys_.resize(out);
}

void Row::filter(const Filters& f) {
  const bool by_count = f.top_k > 0 && f.top_k < n_;
  const bool by_mass = f.top_p < 1;
  const bool by_least = f.min_p > 0;
  everything_ = !by_count && !by_mass && !by_least;
  if (everything_) {
    kept_mass_ = total();
    return;
  }
  if (by_count) {
    gather_first(f.top_k);
  } else {
    const float pivot = by_mass ? std::numeric_limits<float>::lowest() : least_value(f.min_p);
    gathered_.resize(padded(n_) + static_cast<std::size_t>(kRowPadding));
    gathered_.resize(static_cast<std::size_t>(kernels_.gather(x_.data(), n_, pivot, gathered_.data())));
  }
  kept_.assign(gathered_.begin(), gathered_.end());
  list_masses();
  if (by_count && std::ssize(kept_) > f.top_k)
    keep_cut(cut_row(keys_.data(), nullptr, std::ssize(kept_), static_cast<std::uint64_t>(f.top_k), scratch_));
  const auto sum = [this] {
    std::uint64_t mass = 0;
    for (std::size_t i = 0; i < kept_.size(); ++i) mass += masses_[i];
    return mass;
  };
  if (by_mass) {
    const std::uint64_t listed = sum();
    const std::uint64_t need = abi::mass_needed(f.joint && by_count ? total() : listed, std::bit_cast<std::uint32_t>(f.top_p));
    if (need < listed) keep_cut(cut_row(keys_.data(), masses_.data(), std::ssize(kept_), need, scratch_));
  }
  if (by_least && (by_count || by_mass)) {
    const std::uint32_t least = key_of(least_value(f.min_p));
    keep_cut({.key = least, .ties = std::ssize(kept_), .amount = 0});
  }
  kept_mass_ = sum();
}

std::int64_t Row::draw(std::uint64_t random_bits) {
  std::uint64_t left = abi::multiply_high(random_bits, kept_mass_);
  if (!everything_) {
    std::size_t i = 0;
    while (left >= masses_[i]) left -= masses_[i++];
    return kept_[i];
  }
  std::size_t chunk = 0;
  while (left >= chunks_[chunk]) left -= chunks_[chunk++];
  const std::int64_t begin = static_cast<std::int64_t>(chunk) * kChunk;
  masses_.resize(static_cast<std::size_t>(kChunk));
  kernels_.masses(x_.data() + begin, std::min(kChunk, n_ - begin), weighting_, masses_.data());
  std::int64_t i = 0;
  while (left >= masses_[static_cast<std::size_t>(i)]) left -= masses_[static_cast<std::size_t>(i++)];
  return begin + i;
}

std::span<const Row::Entry> Row::first(std::int64_t k) {
  gather_first(k);
  entries_.clear();
  for (const std::int32_t i : gathered_) entries_.push_back({key_of(at(i)), i});
  const auto before = [](const Entry& a, const Entry& b) { return a.key != b.key ? a.key > b.key : a.index < b.index; };
  const std::int64_t count = std::min<std::int64_t>(k, std::ssize(entries_));
  if (count < std::ssize(entries_)) std::nth_element(entries_.begin(), entries_.begin() + count, entries_.end(), before);
  entries_.resize(static_cast<std::size_t>(count));
  std::sort(entries_.begin(), entries_.end(), before);
  return entries_;
}

float Row::logprob(std::int64_t i, std::uint64_t total, float temperature) const {
  const float x = at(i);
  const double all = std::ldexp(static_cast<double>(total), weighting_.reference - abi::kOneExponent - abi::kMassBits);
  if (std::isinf(weighting_.max)) return static_cast<float>(x == weighting_.max ? -std::log(all) : kMinusInf);
  if (probs_) return static_cast<float>(std::log(static_cast<double>(std::max(x, 0.0F))) - std::log(all));
  return static_cast<float>((static_cast<double>(x) - static_cast<double>(weighting_.max)) / static_cast<double>(temperature) -
                            std::log(all));
}

const float* Row::divided(float divisor) {
  listed_.resize(padded(n_));
  kernels_.divide(x_.data(), n_, weighting_, divisor, listed_.data());
  return listed_.data();
}

}  // namespace girih::sampling
