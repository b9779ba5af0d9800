// See kv_maps.h.
#include "attention/kv_maps.h"

#include <cstring>
#include <numeric>

#include "xxhash.h"

namespace girih::attention {
namespace {

constexpr std::int64_t kMaxExtent = INT32_MAX;  // coordinates are 32-bit
constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;

/// Elements of 8 bits go by twos.
bool describe(const KvPlane& plane, const KvStore& store, std::int64_t dims, std::int64_t heads, int box_tokens, abi::TensorBox& box) {
  const bool endless = store.page_size == kEndlessPage;
  const std::int64_t size = bits(plane.dtype) / 8;
  box = {.data = plane.data,
         .extent = {dims * size / 2, heads, endless ? store.num_pages : store.page_size, endless ? 1 : store.num_pages},
         .stride = {2, plane.head_byte_stride, plane.token_byte_stride, endless ? 0 : plane.page_byte_stride},
         .box = {64, 1, box_tokens, 1}};
  if (reinterpret_cast<std::uintptr_t>(plane.data) % 16 != 0) return false;
  if (plane.dim_byte_stride != 0 && plane.dim_byte_stride != size) return false;
  for (int i = 1; i < abi::TensorBox::kDims; ++i) {
    if (box.extent[i] < 1 || box.extent[i] > kMaxExtent) return false;
    if (box.extent[i] == 1) box.stride[i] = 16;  // any
    if (box.stride[i] % 16 != 0 || box.stride[i] <= 0 || box.stride[i] >= kMaxStride) return false;
  }
  return true;
}

}  // namespace

int map_store(const AttentionSpec& spec, const KvStore& store, const ClassTune& tune, abi::TensorMap (&maps)[2]) {
  if (store.page_size % 8 != 0 || store.has_partial_page) return 0;
  const std::int64_t align = tune.align(spec.batch_invariant);
  const auto tokens = static_cast<int>(store.page_size == kEndlessPage ? tune.kv_block : std::gcd(store.page_size, align));
  const auto map = [&](const KvPlane& plane, int dims, abi::TensorMap& to) {
    abi::TensorBox box;
    if (!describe(plane, store, dims, spec.num_kv_heads, tokens, box)) return false;
    to = {};
    std::memcpy(&to, &box, sizeof(box));
    return true;
  };
  if (!map(store.k, spec.head_dim_qk - spec.head_dim_rope, maps[0])) return 0;
  maps[1] = maps[0];
  if (spec.head_dim_rope > 0) return map(store.k_rope, spec.head_dim_rope, maps[1]) ? tokens : 0;
  if (!spec.v_is_k && !map(store.v, spec.head_dim_vo, maps[1])) return 0;
  return tokens;
}

void EncodedMaps::encode(const cuda::Driver& driver, abi::TensorMap& map) {
  Entry& entry = entries_[XXH3_64bits(&map, sizeof(map)) % kSlots];
  if (!entry.used || std::memcmp(&entry.box, &map, sizeof(map)) != 0) {
    abi::TensorBox box;
    std::memcpy(&box, &map, sizeof(box));
    entry = {.used = true, .box = map, .encoded = driver.encode(box)};
  }
  map = entry.encoded;
}

}  // namespace girih::attention
