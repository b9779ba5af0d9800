// Element types, devices and non-owning tensor views: what every operator's arguments are made of.
// Strides count elements (as in DLPack) and are 64-bit throughout; nothing here owns memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace girih {

/// Element types. The two 4-bit types are composite: `nvfp4` is e2m1 codes in blocks of 16 with e4m3 block scales
/// and one f32 scale per tensor, `mxfp4` is e2m1 codes in blocks of 32 with e8m0 block scales (OCP MX 1.0).
/// 4-bit codes are packed two to a byte, the even element in the low nibble.
enum class DType : std::uint8_t { f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4, i32, i64, u8 };

/// Bits of one element: 32, 16, 8, 4 or 64.
constexpr int bits(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32: return 32;
    case DType::f16:
    case DType::bf16: return 16;
    case DType::nvfp4:
    case DType::mxfp4: return 4;
    case DType::i64: return 64;
    default: return 8;
  }
}

/// Bytes that `n` consecutive elements take (4-bit: rounded up to whole bytes).
constexpr std::int64_t bytes(DType t, std::int64_t n) { return (n * bits(t) + 7) / 8; }

/// "f32", "bf16", "e4m3", ...
std::string_view name(DType t);
/// The inverse of `name`; throws Error(invalid_argument) that lists the names.
DType dtype_from_name(std::string_view text);

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu", "cuda:0".
std::string name(Device device);

/// A non-owning strided view. `strides` are in elements; a dimension of extent 1 may have any stride.
struct TensorView {
  static constexpr int kMaxRank = 6;

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  TensorView() = default;
  /// A dense row-major view.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {});
  /// Any strides, in elements.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape, std::initializer_list<std::int64_t> strides,
             Device device = {});

  /// The product of the extents (1 for rank 0); 0 for a view that was not given (rank 0, no data).
  std::int64_t numel() const;
};

/// A non-owning array of int32 or int64 host indices (indptr, lengths, positions): engines hold either.
/// Default-constructed means "not given", which differs from an empty array only where a function says so.
class Indices {
 public:
  Indices() = default;
  Indices(std::span<const std::int32_t> values) : data_(values.data()), size_(std::ssize(values)) {}
  Indices(std::span<const std::int64_t> values) : data_(values.data()), size_(std::ssize(values)), is_64_(true) {}
  Indices(const std::vector<std::int32_t>& values) : Indices(std::span<const std::int32_t>(values)) {}
  Indices(const std::vector<std::int64_t>& values) : Indices(std::span<const std::int64_t>(values)) {}

  std::int64_t operator[](std::int64_t i) const {
    return is_64_ ? static_cast<const std::int64_t*>(data_)[i] : static_cast<const std::int32_t*>(data_)[i];
  }
  std::int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  const void* data_ = nullptr;
  std::int64_t size_ = 0;
  bool is_64_ = false;
};

}  // namespace girih
