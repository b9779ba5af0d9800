// Integer arithmetic that every layer shares.
#pragma once

#include <cstdint>

namespace girih {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) { return ceil_div(a, multiple) * multiple; }
constexpr std::int64_t round_down(std::int64_t a, std::int64_t multiple) { return a / multiple * multiple; }

}  // namespace girih
