// top_k(): the first k of each row as values and indices.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "base/capabilities.h"
#include "base/numeric.h"
#include "sampling/check.h"
#include "sampling/row.h"
#include "sampling/sampling_cuda.h"
#include "sampling/workers.h"

namespace girih {
namespace {

using sampling::Row;

/// One worker's rows.
class Selector {
 public:
  Selector(const abi::TopKParams& p, DType type, const sampling::CpuKernels& kernels) : p_(p), type_(type), row_(kernels, p.vocab) {}

  void run(std::int64_t r) {
    const std::int64_t start = p_.starts == nullptr ? 0 : p_.starts[r * p_.starts_stride];
    const std::int64_t length = p_.lengths == nullptr ? p_.vocab - start : p_.lengths[r * p_.lengths_stride];
    const unsigned char* source = p_.input.data + r * p_.input.row_stride + start * p_.input.stride;
    chosen_.clear();
    if (length > 0) {
      row_.load(source, type_, p_.input.stride, length, false);
      for (const Row::Entry& entry : row_.first(p_.k)) chosen_.push_back(entry.index);
      if (std::ssize(chosen_) < std::min<std::int64_t>(p_.k, length)) add_last(source, length);
    }
    if (p_.sorted == 0) std::sort(chosen_.begin(), chosen_.end());
    for (std::int64_t i = 0; i < p_.k; ++i) {
      const bool there = i < std::ssize(chosen_);
      const std::int64_t index = there ? chosen_[static_cast<std::size_t>(i)] : -1;
      p_.indices.set(r, i, there ? p_.returned(r, index) : -1);
      if (p_.values.data == nullptr) continue;
      unsigned char* out = p_.values.data + r * p_.values.row_stride + i * p_.values.stride;
      if (there) {
        std::memcpy(out, source + index * p_.input.stride, static_cast<std::size_t>(bits(type_) / 8));
      } else {
        store_element(type_, out, 0, -std::numeric_limits<float>::infinity());
      }
    }
  }

 private:
  /// Entries of -inf, then NaN, by index: what Row leaves out.
  void add_last(const unsigned char* source, std::int64_t length) {
    for (const bool want_nan : {false, true}) {
      for (std::int64_t i = 0; i < length && std::ssize(chosen_) < p_.k; ++i) {
        const float x = load_element(type_, source + i * p_.input.stride, 0);
        if (want_nan ? x != x : x == -std::numeric_limits<float>::infinity()) chosen_.push_back(static_cast<std::int32_t>(i));
      }
    }
  }

  const abi::TopKParams& p_;
  DType type_;
  Row row_;
  std::vector<std::int32_t> chosen_;
};

}  // namespace

void top_k(const Context& context, const TopKArgs& args) {
  const abi::TopKParams p = sampling::check_top_k(context, args);
  if (p.rows == 0) return;
  require_backend(context, "top_k");
  if (context.device().kind == DeviceKind::cuda) return sampling::top_k_on_device(context, p, args.input.dtype, args.stream);
  sampling::for_each_row(
      context, p.rows, [&] { return Selector(p, args.input.dtype, sampling::cpu_kernels(context.cpu_target())); },
      [](Selector& selector, std::int64_t r) { selector.run(r); });
}

}  // namespace girih
