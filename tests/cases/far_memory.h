// Memory at the end of a large range of addresses of which nothing else exists: what reaches it by an offset kept in 32 bits touches
// addresses that fault. Reserved, so that no other object lies in the range, which the library would take for one that shares memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace girih::cases {

class FarMemory {
 public:
  /// `before` bytes that fault, then `size` bytes of zeros.
  FarMemory(std::int64_t before, std::int64_t size) : before_(static_cast<std::size_t>(before)), size_(static_cast<std::size_t>(size)) {
    const std::size_t page = 1 << 16;
    gap_ = (page - before_ % page) % page;  // so that `before` ends where pages of the system begin
    range_ = ::mmap(nullptr, gap_ + before_ + size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range_ == MAP_FAILED) throw std::bad_alloc();
    if (::mprotect(data(), size_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  }
  ~FarMemory() { ::munmap(range_, gap_ + before_ + size_); }
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;

  /// The first byte of the range.
  std::byte* base() const { return static_cast<std::byte*>(range_) + gap_; }
  /// The first byte of memory.
  std::byte* data() const { return base() + before_; }

 private:
  std::size_t before_, size_, gap_ = 0;
  void* range_ = nullptr;
};

}  // namespace girih::cases
