// Buffers of the row operators' workers on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace girih::rows {

/// Floats that begin a cache line: vectors of one that straddle two lines cost twice. Enlarging it loses what it held.
class Floats {
 public:
  Floats() = default;
  Floats(Floats&&) = default;
  Floats(const Floats&) = delete;
  std::size_t size() const { return size_; }
  void enlarge(std::size_t size) {
    if (size <= size_) return;
    memory_.resize(size + 15);
    size_ = size;
    first_ = memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64 / 4;
  }
  float* data() { return first_; }
  const float* data() const { return first_; }

 private:
  std::vector<float> memory_;
  float* first_ = nullptr;  // moves with memory_, whose elements stay where they are
  std::size_t size_ = 0;
};

}  // namespace girih::rows
