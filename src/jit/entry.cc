// See entry.h. Little-endian, as every machine with an NVIDIA GPU is; on another, the magic number does not match.
#include "jit/entry.h"

#include <array>
#include <cstring>

#include "base/hash.h"

namespace girih::jit {
namespace {

constexpr std::uint64_t kMagic = 0x6c656e72656b2e67;  // "g.kernel"
constexpr std::uint32_t kVersion = 1;

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t num_fields;
  std::uint64_t length;       // bytes that follow
  std::uint64_t checksum[2];  // of them
};
static_assert(sizeof(Header) == 40);

enum Field : std::uint8_t { kName, kTarget, kKey, kNvrtc, kRecipe, kLog, kImage, kNumFields };

}  // namespace

std::string encode_entry(const Cubin& cubin, const Recipe& recipe) {
  const std::string recipe_text = recipe.text();
  const std::array<std::string_view, kNumFields> fields = {cubin.name,  cubin.target, cubin.key,  cubin.nvrtc_version,
                                                           recipe_text, cubin.log,    cubin.image};
  std::string bytes(sizeof(Header), '\0');
  for (const std::string_view field : fields) {
    const std::uint64_t size = field.size();
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    bytes.append(field);
  }
  const Hash128 checksum = hash128(std::string_view(bytes).substr(sizeof(Header)));
  const Header header = {kMagic, kVersion, kNumFields, bytes.size() - sizeof(Header), {checksum.low, checksum.high}};
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

std::optional<Entry> decode_entry(std::string_view bytes, std::string& why) {
  const auto refuse = [&why](std::string_view reason) {
    why = reason;
    return std::nullopt;
  };
  Header header{};
  if (bytes.size() < sizeof header) return refuse("shorter than a header");
  std::memcpy(&header, bytes.data(), sizeof header);
  bytes.remove_prefix(sizeof header);
  if (header.magic != kMagic) return refuse("not a kernel file");
  if (header.version != kVersion || header.num_fields != kNumFields) return refuse("of another version of the format");
  if (header.length != bytes.size()) return refuse("truncated, or longer than it says");
  const Hash128 checksum = hash128(bytes);
  if (checksum.low != header.checksum[0] || checksum.high != header.checksum[1]) return refuse("checksum does not match");

  std::array<std::string_view, kNumFields> fields;
  for (std::string_view& field : fields) {
    std::uint64_t size = 0;
    if (bytes.size() < sizeof size) return refuse("fields end early");
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (size > bytes.size()) return refuse("fields end early");
    field = bytes.substr(0, size);
    bytes.remove_prefix(size);
  }
  if (!bytes.empty()) return refuse("bytes after the last field");

  std::optional<Entry> entry(std::in_place);
  Cubin& cubin = entry->cubin;
  cubin.name = fields[kName];
  cubin.target = fields[kTarget];
  cubin.key = fields[kKey];
  cubin.nvrtc_version = fields[kNvrtc];
  cubin.log = fields[kLog];
  cubin.image = fields[kImage];
  cubin.resources = parse_resources(cubin.log);
  entry->recipe_text = fields[kRecipe];
  if (cubin.key != recipe_key(entry->recipe_text, cubin.nvrtc_version)) return refuse("its key does not follow from its recipe");
  return entry;
}

}  // namespace girih::jit
