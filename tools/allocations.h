// See allocations.cc.
#pragma once

#include <cstdint>

namespace girih::tools {
/// Calls of operator new in this process so far.
std::int64_t allocation_count();
}  // namespace girih::tools
