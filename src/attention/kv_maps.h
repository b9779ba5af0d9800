// Segments' keys and values as the copy engine of sm_90 takes boxes of them.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/attention_params.h"
#include "abi/tensor_map.h"
#include "attention/schedule.h"
#include "cuda/driver.h"
#include "girih/attention.h"

namespace girih::attention {

/// Describes the store for kernels with steps and items as `tune` has them: maps[0] K; maps[1] V, or the second part of K where V is K's;
/// each an abi::TensorBox. Returns the keys of a box; 0 where the copy engine cannot take the store (strides that are not multiples of 16
/// bytes, pages of other than a multiple of 8 tokens).
int map_store(const AttentionSpec& spec, const KvStore& store, const ClassTune& tune, abi::TensorMap (&maps)[2]);

/// The driver's form of boxes: encoded when first met and kept, as many as fit, so that the launches of a step need not.
class EncodedMaps {
 public:
  EncodedMaps() : entries_(kSlots) {}

  /// Turns a TensorBox into the driver's form in place. Allocates nothing.
  void encode(const cuda::Driver& driver, abi::TensorMap& map);

 private:
  static constexpr std::size_t kSlots = 512;  // K and V of 256 layers, where none share a slot
  struct Entry {
    bool used = false;
    abi::TensorMap box, encoded;
  };
  std::vector<Entry> entries_;
};

}  // namespace girih::attention
