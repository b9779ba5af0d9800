// Which backends an operator runs on. Dispatch reads the same rows (an operator refuses a device that its row does not name), `girih info`
// prints them, and docs/operators.md shows them. Attention has a richer table of its own: attention_capabilities().
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace girih {

enum class Capture : std::uint8_t {
  no,              ///< reads host arrays at the call: cannot be captured in a CUDA graph
  yes,             ///< once a call outside of a capture has loaded its kernel
  not_applicable,  ///< not on CUDA
};

struct OperatorCapability {
  std::string_view op;  ///< the function's name; the form that takes a DevicePlan ends in "(plan)"
  std::string_view header;
  bool cpu = false;
  bool cuda = false;
  Capture capture = Capture::not_applicable;
  std::string_view reads;   ///< element types of what is read
  std::string_view writes;  ///< element types of results
};

/// In the order of the documentation.
std::span<const OperatorCapability> operator_capabilities();

}  // namespace girih
