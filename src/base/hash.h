// XXH3, 128 bits, as text: names of cache entries and checks of files. Not cryptographic: it finds accidents; owners and modes of files
// keep strangers out.
#pragma once

#include <xxhash.h>

#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace girih {

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

inline Hash128 hash128(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

/// 32 hexadecimal digits.
inline std::string hash_text(std::string_view bytes) {
  const Hash128 hash = hash128(bytes);
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

}  // namespace girih
