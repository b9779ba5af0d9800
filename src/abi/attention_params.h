// What one launch of a CUDA attention kernel is given, by value: pointers of this layer beside the plan's device copy. Host and NVRTC
// compile it. Everything that a graph replay may change lies behind `plan` (the uploaded blob); everything here is frozen by a capture.
#pragma once

#include <cstdint>

#include "abi/attention_plan.h"
#include "abi/tensor_map.h"

namespace girih::abi {

inline constexpr int kMaxCudaSegments = 6;    // kernel parameters are 4 KiB at most
inline constexpr int kMaxMappedSegments = 4;  // whose keys the copy engine may bring: the first ones
inline constexpr int kMaxCudaParams = 32;     // variant::Program::kMaxParams

/// n / divisor for 0 <= n < 2^31 as a multiplication: (n * magic) >> shift.
struct FastDivider {
  std::uint32_t divisor;
  std::uint32_t magic;
  std::uint32_t shift;
};

/// One plane of a KvStore; strides in bytes.
struct PlaneArg {
  const unsigned char* data;
  std::int64_t page_stride;
  std::int64_t token_stride;
  std::int64_t head_stride;
  std::int64_t dim_stride;      // bytes between elements; dense: the element's size (4-bit: 0)
  const unsigned char* scales;  // null where the dtype has none
  std::int64_t scale_page_stride;
  std::int64_t scale_token_stride;
  std::int64_t scale_head_stride;
  float global_scale;
};

struct SegmentArg {
  PlaneArg k, k_rope, v;
  const std::int32_t* kv_indices;  // [num_entries] page ids; null where ragged
  std::int32_t num_entries;        // that the caller gave
  std::int32_t box_tokens;         // keys of a box of kv_maps, none of which crosses a page; 0: the segment has no maps
  const std::int64_t* page_pos;    // [num_entries] or null
  FastDivider page_size;           // divisor 0: endless (ragged): the "page" is table_begin, the slot the key's index
};

/// Rows [tokens, heads, dim] with a dense last dimension; strides in bytes.
struct RowsArg {
  unsigned char* data;
  std::int64_t token_stride;
  std::int64_t head_stride;
};

/// A run-time parameter of the variant: an array on the device or a scalar.
struct ParamArg {
  const void* data;
  std::int64_t size;
  std::int64_t integer;
  float number;
};

/// How the kernels of a plan's two lists share a stream (sm_90 on, where their blocks fit a multiprocessor together): the second starts
/// once all blocks of the first run, in what room they leave, and ends after it. What the first list's kernel waited for is then complete
/// for both, and what follows the second follows both.
enum class ListOrder : std::int32_t { kAlone, kFirst, kSecond };

struct AttentionParams {
  const PlanHeader* plan;   // the uploaded blob; 64-byte aligned
  std::int32_t* counters;   // [max_merges] zero between launches: parts of each merge that have arrived
  std::int32_t* next_unit;  // [classes] zero between launches: units taken beyond a block's own
  RowsArg q, q_rope, o;
  float* lse;                     // null where the spec asks for none
  std::int64_t lse_token_stride;  // elements
  std::int64_t lse_head_stride;
  float* part_o;   // [part_rows, part_stride]
  float* part_ml;  // [part_rows, 2]: running maximum (base-2 units), sum
  float* chunk_o;  // batch_invariant: [units of the class, tile_rows, part_stride] the fold so far of the tile at work
  float* chunk_ml;
  const float* o_scale;  // of O of 8 bits; null: 1
  float score_factor;    // sm_scale, times log2(e) where the logits hook is absent
  std::int32_t num_segments;
  std::int32_t num_units;    // of all classes, as the header has it: with it the items are found without reading the header
  std::int32_t first_unit;   // of this launch's class: block b runs unit first_unit + b
  std::int32_t class_units;  // of this class: those beyond the number of blocks are taken by blocks that have ended theirs
  std::int32_t leaves_l2;    // whether K and V that are read once should be the first to leave L2
  ListOrder order;           // of this launch
  std::int32_t plan_bytes;   // that may be asked for ahead: of the blob, or of the room for it where a graph's replays bring others
  SegmentArg segments[kMaxCudaSegments];
  ParamArg params[kMaxCudaParams];           // run-time parameters; plan-time ones are in the blob
  TensorMap kv_maps[kMaxMappedSegments][2];  // K and V as [page, slot, head, dim]; for kernels of the wgmma family
};
static_assert(sizeof(AttentionParams) <= 4096);

}  // namespace girih::abi
