// What a replay computes on: random rows, and one KV pool per layer. A row is a function of what the token is (its request, or the prefix
// block that several requests share), its position and head, so that runs with and without sharing hold the same values. Layers are given
// the same rows: made once a step, however many layers a model has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "girih/attention.h"
#include "tools/models.h"
#include "tools/replay_scheduler.h"

namespace girih::tools {

/// Zeroed memory, 64-byte aligned, touched only when used.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size);
  std::byte* data() const { return data_; }
  std::span<std::byte> span() const { return {data_, static_cast<std::size_t>(size_)}; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// An element of an unquantised or fp8 or int8 type, in double; `index` counts elements. 4-bit types: the e2m1 code's value.
double element(const void* data, DType dtype, std::int64_t index);
/// The nearest f32, f16 or bf16 (ties to even).
void store_element(void* data, DType dtype, std::int64_t index, float value);

/// Which of a layer's tensors a row belongs to.
enum class RowKind : std::uint8_t { query, key, value };

/// Random rows: windows into one long table of numbers, picked by a hash.
class RandomRows {
 public:
  RandomRows(DType dtype, std::uint64_t seed);
  DType dtype() const { return dtype_; }
  /// `width` elements, at most kMaxWidth, of the token at `position` of a request. Keys and values of whole shared blocks depend on the
  /// block's hash id in place of the request.
  const std::byte* row(RowKind kind, const RunningRequest& running, std::int64_t position, int head) const;
  static constexpr std::int64_t kMaxWidth = 1024;

 private:
  DType dtype_;
  std::uint64_t seed_;
  Buffer table_;
};

/// Pages of one layer, [page, token, head, dim], and their scales.
class LayerPool {
 public:
  LayerPool(const AttentionSpec& spec, std::int64_t num_pages, std::int64_t page_size);
  const KvStore& store() const { return store_; }
  /// One element of K or V as the pool holds it, scale included.
  double k(std::int64_t page, std::int64_t token, int head, int dim) const { return read(store_.k, page, token, head, dim); }
  double v(std::int64_t page, std::int64_t token, int head, int dim) const {
    return read(store_.v.data != nullptr ? store_.v : store_.k, page, token, head, dim);
  }

 private:
  KvPlane make_plane(DType dtype, ScaleGranularity granularity, int num_heads, int dim, std::int64_t num_pages, std::int64_t page_size,
                     Buffer& data, Buffer& scales);
  static double read(const KvPlane& plane, std::int64_t page, std::int64_t token, int head, int dim);

  Buffer k_data_, v_data_, k_scales_, v_scales_;
  KvStore store_;
};

/// Bytes that one token's keys and values take in one layer, scales included.
std::int64_t kv_bytes_per_token(const AttentionSpec& spec);

}  // namespace girih::tools
