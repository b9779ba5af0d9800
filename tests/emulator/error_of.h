// What the emulator says of a launch that is expected to fail.
#pragma once

#include <string>

#include "emulator/emulator.h"

namespace girih::emulator {

/// The error's text; "none" where there was none.
template <typename Kernel>
std::string error_of(const Kernel& kernel, const LaunchOptions& options) {
  try {
    launch(kernel, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace girih::emulator
