// Host index arrays (indptr, lengths, positions, block tables) as callers have them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bind.h"

namespace girih::python {

/// What IndexArray takes.
class IndicesLike : public nb::object {
  static bool any(nb::handle) { return true; }
  NB_OBJECT_DEFAULT(IndicesLike, nb::object, "girih._typing.IndicesLike", any)
};

/// The ints of a sequence (T = int32 or int64). Throws TypeError for what is none and ValueError for what does not fit, naming the entry.
template <typename T>
std::vector<T> integers(nb::handle sequence, std::string_view name);

/// An int32 or int64 array in host memory of rank 1 (or, where `max_rank` is 2, a dense table), or any sequence of ints. Dense arrays
/// are seen in place and kept alive, others and sequences are copied. None = not given. A CUDA array is refused with the name and what to
/// do: reading it here would wait for the device.
class IndexArray {
 public:
  IndexArray() = default;
  IndexArray(nb::handle object, std::string_view name, int max_rank = 1);
  explicit IndexArray(std::vector<std::int64_t> values) : values_(std::move(values)), given_(true) { view_ = values_; }
  IndexArray(IndexArray&&) noexcept = default;
  IndexArray& operator=(IndexArray&&) noexcept = default;

  const Indices& view() const { return view_; }
  bool given() const { return given_; }

 private:
  void copy_strided(const TensorView& t);

  Indices view_{};
  std::vector<std::int64_t> values_{};
  nb::object owner_{};
  bool given_ = false;
};

/// Page ids (T = int32) or page positions (T = int64): in place where they are an array on `device`, copied from a sequence of ints where
/// that is the CPU. None = empty.
template <typename T>
class DeviceIndices {
 public:
  DeviceIndices() = default;
  DeviceIndices(DeviceIndices&&) noexcept = default;
  DeviceIndices& operator=(DeviceIndices&&) noexcept = default;
  DeviceIndices(nb::handle object, std::string_view name, Device device);
  std::span<const T> view() const { return view_; }

 private:
  std::span<const T> view_{};
  std::vector<T> values_{};
  nb::object owner_{};
};

}  // namespace girih::python
