// The one exception type of the library. Its text names the operator, the argument, its value, the rule and the remedy,
// e.g. `attention.plan: kv_indptr[3]=17 < kv_indptr[2]=20; must be non-decreasing`.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace girih {

enum class Code : std::uint8_t {
  invalid_argument,  ///< the caller broke a rule that the documentation states
  unsupported,       ///< a valid request that this backend or device does not do (see capabilities())
  out_of_memory,     ///< a workspace or pool is too small, or an allocation failed
  io,                ///< a file cannot be read, written or parsed
  internal,          ///< a fault of the library: please report it
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text) : std::runtime_error(text), code_(code) {}
  Code code() const noexcept { return code_; }

 private:
  Code code_;
};

}  // namespace girih
