// KvStore as Python has it: the library's store, what its arrays looked like, and the arrays themselves, kept alive.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bind.h"
#include "girih/attention.h"
#include "indices.h"

namespace girih::python {

/// Extents of a plane that the library's KvPlane does not keep, so that a store can be checked against a spec.
struct PlaneDims {
  bool given = false;
  std::int64_t heads = 0;
  std::int64_t dim = 0;  ///< elements; 4-bit: two a byte, so the last may be padding
};

struct Store {
  KvStore store{};
  Device device{};
  PlaneDims k{}, k_rope{}, v{};
  bool read_only = false;  ///< an array of it is; append() and copy_pages() refuse it
  std::vector<nb::object> owners{};
};

enum class Arrangement { paged, ragged, blocks };

struct ScaleArguments {
  nb::handle k_scale, v_scale;
  double k_global, v_global;
  nb::handle k_rope_scale = nb::none();
};

/// K, its RoPE part and V in arrays of their own; None where there is none. `block_page`: tokens a page of Arrangement::blocks.
Store make_store(Arrangement arrangement, nb::handle k, nb::handle v, std::string_view layout, std::int64_t block_page, nb::handle k_rope,
                 nb::handle k_dtype, nb::handle v_dtype, const ScaleArguments& scales);
/// K and V in one array of rank 5.
Store make_combined_store(nb::handle kv, std::string_view layout, nb::handle kv_dtype, const ScaleArguments& scales);

/// MLA's fp8 tokens: mla_token_kv_store().
Store make_mla_token_store(nb::handle tokens, int latent_dim, int rope_dim);

/// Throws ValueError naming `what` unless the store's heads, dims and device are the spec's.
void check_store(const Store& store, const AttentionSpec& spec, Device device, std::string_view what);

/// Throws ValueError unless the arrays have the heads and dims of the store's planes and these may be written.
void check_appended(const Store& store, const TensorView& k, const TensorView& k_rope, const TensorView& v);

/// A store with its page table for run(). Keeps both alive.
struct StoreSegment {
  nb::object owner{};  ///< the Store
  const Store* store = nullptr;
  DeviceIndices<std::int32_t> kv_indices{};
  DeviceIndices<std::int64_t> page_pos{};
};

/// "NHD" or "HND", else ValueError.
KvLayout kv_layout(std::string_view text);

}  // namespace girih::python
