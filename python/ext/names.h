// Enumerators by the names that Python writes. A table holds the names in the order of the enumerators.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "bind.h"
#include "girih/attention.h"
#include "girih/quantize.h"

namespace girih::python {

template <std::size_t N>
using EnumNames = std::array<std::string_view, N>;

inline constexpr EnumNames<6> kGranularities = {"none", "tensor", "head", "token_head", "block", "token_group"};
inline constexpr EnumNames<3> kLseKinds = {"none", "natural", "base2"};
inline constexpr EnumNames<6> kQuantScales = {"none", "tensor", "token", "block", "mx", "tile"};

template <typename Enum, std::size_t N>
std::string name_in(const EnumNames<N>& names, Enum value) {
  return std::string(names[static_cast<std::size_t>(value)]);
}

/// The enumerator called `text`; throws ValueError with all names where there is none. `argument` is what the caller calls it.
template <typename Enum, std::size_t N>
Enum enum_of(const EnumNames<N>& names, std::string_view text, std::string_view argument) {
  for (std::size_t i = 0; i < N; ++i)
    if (text == names[i]) return static_cast<Enum>(i);
  bad_value(argument, fmt::format("\"{}\" is unknown; known are {}", text, fmt::join(names, ", ")));
}

}  // namespace girih::python
