// A compiled kernel as bytes: what a cache file and a file of a pack hold. A header {magic, version, length, checksum}, then
// length-prefixed fields: the recipe (source included) beside the image, so that a reader can prove that the image is the one it asks for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jit/compiler.h"

namespace girih::jit {

std::string encode_entry(const Cubin& cubin, const Recipe& recipe);

struct Entry {
  Cubin cubin;
  std::string recipe_text;  // Recipe::text()
};
/// Empty where `bytes` is not a whole entry of this version whose key follows from its recipe; `why` then says what is wrong.
std::optional<Entry> decode_entry(std::string_view bytes, std::string& why);

}  // namespace girih::jit
