// The kernel texts inside the library: everything under kernels/ and src/abi/ at build time, by the names that kernels include them by.
// bundle_hash() is part of every cache key, so that a library with other kernels never takes this one's; it depends on names and texts
// only, not on where or when they were built.
#pragma once

#include <span>
#include <string_view>

namespace girih::jit {

struct EmbeddedSource {
  std::string_view name;  // "core/types.cuh", "abi/attention_plan.h", "cstdint"
  std::string_view text;  // followed by a NUL
};

/// Sorted by name.
std::span<const EmbeddedSource> embedded_sources();
/// 32 hexadecimal digits.
std::string_view bundle_hash();

}  // namespace girih::jit
