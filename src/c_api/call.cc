// See call.h. The last error is a string of the thread's own; where even that cannot be kept, a text that needs no memory takes its place.
#include "c_api/call.h"

#include <algorithm>
#include <new>

namespace girih::c_api {
namespace {

/// Far above any struct of ours: a size beyond it was never set.
constexpr std::uint64_t kMaxStructSize = 1 << 16;

thread_local std::string last_error;            // NOLINT(bugprone-dynamic-static-initializers): constant initialised
thread_local const char* last_error_text = "";  // last_error's, or a constant

girih_status status_of(Code code) {
  switch (code) {
    case Code::invalid_argument: return GIRIH_INVALID_ARGUMENT;
    case Code::unsupported: return GIRIH_UNSUPPORTED;
    case Code::out_of_memory: return GIRIH_OUT_OF_MEMORY;
    case Code::io: return GIRIH_IO;
    case Code::internal: return GIRIH_INTERNAL;
  }
  return GIRIH_INTERNAL;
}

girih_status record(girih_status status, std::string_view op, std::string_view text) noexcept {
  try {
    last_error = op.empty() ? std::string(text) : fmt::format("{}: {}", op, text);
    last_error_text = last_error.c_str();
  } catch (...) {
    last_error_text = "an error whose text did not fit in memory";
  }
  return status;
}

}  // namespace

void set_last_error(std::string_view text) noexcept { record(GIRIH_OK, {}, text); }

girih_status record_failure(std::string_view op) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return record(status_of(error.code()), {}, error.what());
  } catch (const Cancelled& error) {
    return record(GIRIH_CANCELLED, op, error.what());
  } catch (const std::bad_alloc&) {
    return record(GIRIH_OUT_OF_MEMORY, op, "an allocation failed");
  } catch (const std::length_error&) {
    return record(GIRIH_OUT_OF_MEMORY, op, "an array would be larger than memory can be");
  } catch (const std::exception& error) {
    return record(GIRIH_INTERNAL, op, error.what());
  } catch (...) {
    return record(GIRIH_INTERNAL, op, "something was thrown that is not an exception");
  }
}

std::string Field::text() const {
  if (parent_ == nullptr) return name_;
  return name_ != nullptr ? fmt::format("{}.{}", parent_->text(), name_) : fmt::format("{}[{}]", parent_->text(), index_);
}

void Call::check_capacity(const void* data, std::int64_t capacity, std::int64_t needed, const Field& field) const {
  check_array(data, capacity, field);
  if (capacity < needed) refuse("{} has room for {} entries; needs {}", field.text(), capacity, needed);
}

const char* Call::text(const char* given, const Field& field) const {
  if (given == nullptr) refuse("{} is NULL; must be a text", field.text());
  return given;
}

bool Call::flag(std::int32_t value, const Field& field) const {
  if (value != 0 && value != 1) refuse("{}={}; must be 0 or 1", field.text(), value);
  return value == 1;
}

void Call::reserved(std::int32_t value, const Field& parent) const {
  if (value != 0) refuse("{}.reserved={}; must be 0", parent.text(), value);
}

std::uint64_t Call::size_of(const void* given) {
  std::uint64_t size = 0;
  std::memcpy(&size, given, sizeof size);
  return size;
}

std::uint64_t Call::checked_size(const void* given, const StructInfo& info, const Field& field) const {
  const std::uint64_t size = size_of(given);
  if (size < info.first_size || size > kMaxStructSize) {
    refuse("{}.struct_size={}; must be sizeof({}), at least {}: begin with {}_init", field.text(), size, info.name, info.first_size,
           info.name);
  }
  return size;
}

void Call::take_bytes(Bytes to, const void* given, const StructInfo& info, const Field& field) const {
  const std::uint64_t size = checked_size(given, info, field);
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (size > to.size && std::any_of(bytes + to.size, bytes + size, [](unsigned char b) { return b != 0; })) {
    refuse("{}.struct_size={}: sets fields of a later version of {}, which has {} bytes in girih {}", field.text(), size, info.name,
           to.size, girih_version());
  }
  std::memcpy(to.data, given, std::min(size, to.size));
  std::memcpy(to.data, &to.size, sizeof to.size);  // it is complete now
}

void Call::put_bytes(void* given, ConstBytes from, const StructInfo& info, const Field& field) const {
  const std::uint64_t size = checked_size(given, info, field);
  auto* bytes = static_cast<unsigned char*>(given);
  const auto known = std::min(size, from.size);
  std::memcpy(bytes + sizeof size, static_cast<const unsigned char*>(from.data) + sizeof size, known - sizeof size);
  if (size > known) std::memset(bytes + known, 0, size - known);
}

}  // namespace girih::c_api

const char* girih_last_error(void) { return girih::c_api::last_error_text; }

const char* girih_status_name(girih_status status) {
  switch (status) {
    case GIRIH_OK: return "ok";
    case GIRIH_INVALID_ARGUMENT: return "invalid_argument";
    case GIRIH_UNSUPPORTED: return "unsupported";
    case GIRIH_OUT_OF_MEMORY: return "out_of_memory";
    case GIRIH_IO: return "io";
    case GIRIH_INTERNAL: return "internal";
    case GIRIH_CANCELLED: return "cancelled";
    default: return "unknown status";
  }
}
