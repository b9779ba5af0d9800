// What every function of the C ABI begins and ends with: guarded() turns exceptions into a status and this thread's last error, Call reads
// and checks what C hands over (handles, structs with a size, arrays, flags) and names it in errors. Field is the name of an argument,
// built only when it is needed, so that a call without errors allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "c_api/structs.h"

namespace girih::c_api {

/// `segments[2].store`: a name within a name.
class Field {
 public:
  Field(const char* name) : name_(name) {}
  Field(const Field& parent, const char* name) : parent_(&parent), name_(name) {}
  Field(const Field& parent, std::int64_t index) : parent_(&parent), index_(index) {}
  std::string text() const;

 private:
  const Field* parent_ = nullptr;
  const char* name_ = nullptr;
  std::int64_t index_ = 0;
};

/// A caller's callback asked to stop.
class Cancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Tells handles apart: what is passed as one kind must have been made as it.
constexpr std::uint64_t tag_of(std::string_view type_name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : type_name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

template <typename T>
constexpr const StructInfo& info_of() {
  static_assert(kStruct<T>.first_size > 0, "a struct with a size is in structs.h");
  static_assert(sizeof(T) >= kStruct<T>.first_size, "fields are never taken out");
  static_assert(std::is_trivially_copyable_v<T>);
  return kStruct<T>;
}

/// One call: `op` is the C function.
class Call {
 public:
  explicit Call(std::string_view op) : op_(op) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(Code::invalid_argument, op_, text, std::forward<Args>(args)...);
  }

  /// The object behind a handle.
  template <typename Handle>
  Handle& handle(Handle* given, const Field& field) const {
    if (given == nullptr) refuse("{} is NULL; must be a {}", field.text(), Handle::kName);
    if (given->tag != tag_of(Handle::kName)) refuse("{} is not a {}, or it has been destroyed", field.text(), Handle::kName);
    return *given;
  }

  /// Where a result goes.
  template <typename T>
  T& out(T* given, const Field& field) const {
    if (given == nullptr) refuse("{} is NULL; must point to what takes the result", field.text());
    return *given;
  }
  template <typename Handle>
  Handle*& new_handle(Handle** given) const {
    out(given, "out") = nullptr;
    return *given;
  }

  /// A struct with a size, as this library knows it.
  template <typename T>
  T read(const T* given, const Field& field) const {
    if (given == nullptr) refuse("{} is NULL; must point to a {}", field.text(), info_of<T>().name);
    T value = defaults<T>();
    take_bytes({&value, sizeof value}, given, info_of<T>(), field);
    return value;
  }
  template <typename T>
  T read_or_defaults(const T* given, const Field& field) const {
    return given == nullptr ? defaults<T>() : read(given, field);
  }
  /// Element `i` of an array whose first element's size is the distance between elements.
  template <typename T>
  T read_element(const T* first, std::int64_t i, const Field& array) const {
    const std::uint64_t distance = size_of(first);
    const auto* given = reinterpret_cast<const std::byte*>(first) + static_cast<std::uint64_t>(i) * distance;
    const Field field(array, i);
    if (i > 0 && size_of(given) != distance)
      refuse("{}.struct_size={} differs from the first element's {}", field.text(), size_of(given), distance);
    T value = defaults<T>();
    take_bytes({&value, sizeof value}, given, info_of<T>(), field);
    return value;
  }
  /// Fills a caller's struct, as far as it goes.
  template <typename T>
  void write(T* given, const T& value, const Field& field) const {
    if (given == nullptr) refuse("{} is NULL; must point to a {}", field.text(), info_of<T>().name);
    put_bytes(given, {&value, sizeof value}, info_of<T>(), field);
  }

  template <typename T>
  std::span<const T> array(const T* data, std::int64_t size, const Field& field) const {
    check_array(data, size, field);
    return {data, static_cast<std::size_t>(size)};
  }
  void check_array(const void* data, std::int64_t size, const Field& field) const {
    if (size < 0) refuse("{} has {} entries; must be >= 0", field.text(), size);
    if (size > 0 && data == nullptr) refuse("{} is NULL with {} entries", field.text(), size);
  }
  void check_capacity(const void* data, std::int64_t capacity, std::int64_t needed, const Field& field) const;
  const char* text(const char* given, const Field& field) const;
  bool flag(std::int32_t value, const Field& field) const;
  void reserved(std::int32_t value, const Field& parent) const;

  /// `count` is the number of enumerators.
  template <typename Enum>
  Enum enumerator(std::int32_t value, int count, const Field& field) const {
    if (value < 0 || value >= count) refuse("{}={} is unknown; must be in 0..{}", field.text(), value, count - 1);
    return static_cast<Enum>(value);
  }

 private:
  struct Bytes {
    void* data;
    std::uint64_t size;
  };
  struct ConstBytes {
    const void* data;
    std::uint64_t size;
  };
  static std::uint64_t size_of(const void* given);
  std::uint64_t checked_size(const void* given, const StructInfo& info, const Field& field) const;
  void take_bytes(Bytes to, const void* given, const StructInfo& info, const Field& field) const;
  void put_bytes(void* given, ConstBytes from, const StructInfo& info, const Field& field) const;

  std::string_view op_;
};

/// The status of the exception that is being handled; its text becomes this thread's last error.
girih_status record_failure(std::string_view op) noexcept;
void set_last_error(std::string_view text) noexcept;

template <typename Body>
girih_status guarded(std::string_view op, Body&& body) noexcept {
  try {
    body(Call(op));
    return GIRIH_OK;
  } catch (...) {
    return record_failure(op);
  }
}

template <typename T>
girih_status init_struct(std::string_view op, T* out, std::uint64_t struct_size) noexcept {
  return guarded(op, [&](const Call& call) {
    std::memcpy(&call.out(out, "out"), &struct_size, sizeof struct_size);
    call.write(out, defaults<T>(), "out");
  });
}

/// Of a handle that was made by `new`. What is no such handle is left alone.
template <typename Handle>
void destroy(std::string_view op, Handle* handle) noexcept {
  if (handle == nullptr) return;
  guarded(op, [&](const Call& call) {
    call.handle(handle, "handle").tag = 0;
    delete handle;
  });
}

/// A few converted elements without an allocation, or many with one.
template <typename T, std::size_t kInline>
class List {
 public:
  explicit List(std::int64_t size) : size_(static_cast<std::size_t>(size)) {
    if (size_ > kInline) many_.resize(size_);
  }
  T& operator[](std::int64_t i) { return (size_ > kInline ? many_.data() : few_.data())[i]; }
  std::span<const T> span() const { return {size_ > kInline ? many_.data() : few_.data(), size_}; }

 private:
  std::array<T, kInline> few_{};
  std::vector<T> many_;
  std::size_t size_;
};

}  // namespace girih::c_api
