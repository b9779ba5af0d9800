// Two verbs: fail() is the caller's fault, bug() ours. Messages are built with fmt.
#pragma once

#include <fmt/format.h>

#include "girih/error.h"

namespace girih {

/// Throws Error(code) with "op: text". `text` names the argument, its value, the rule and the remedy.
template <typename... Args>
[[noreturn]] void fail(Code code, std::string_view op, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format("{}: {}", op, fmt::format(text, std::forward<Args>(args)...)));
}

/// Throws Error(internal): an invariant of the library does not hold.
template <typename... Args>
[[noreturn]] void bug(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(Code::internal, fmt::format("girih bug: {} (please report it)", fmt::format(text, std::forward<Args>(args)...)));
}

}  // namespace girih
