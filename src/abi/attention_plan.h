// The plan blob: what plan() writes and every backend's run() reads. Plain structs, 8-byte aligned, also compiled by NVRTC.
// Rows are *packed*: row = token * group + head_in_group, over the whole query tensor, for one KV head. Key ranges are indices into a
// group's list of keys (not logical positions), below 2^31; byte offsets are 64-bit.
#pragma once

#include <cstdint>

namespace girih::abi {

inline constexpr std::uint32_t kPlanMagic = 0x31504847;  // "GHP1"
inline constexpr std::uint32_t kPlanVersion = 2;

/// A typed array inside the blob.
struct BlobArray {
  std::int64_t offset;  // bytes from the blob's start, 64-byte aligned
  std::int64_t count;   // elements
};

struct PlanHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::int64_t blob_bytes;
  std::uint64_t schedule_hash;  // of the schedule's key and limits; a blob runs with an equal schedule only
  std::int64_t num_tokens;      // rows of the query tensor
  std::int32_t num_requests;
  std::int32_t num_segments;
  std::int32_t num_units;
  std::int32_t batch_invariant;
  std::int32_t class_unit_begin[3];  // units of tile class c are [class_unit_begin[c], class_unit_begin[c + 1]); where the schedule does
                                     // not separate classes (CPU) all units are in [0, num_units) = class 0's
  std::int32_t num_empty_merges;     // the first merges have no parts: rows that see no key
  BlobArray unit_begin;              // int32 [num_units + 1]: items of unit u are [unit_begin[u], unit_begin[u+1]); first of the arrays
  BlobArray items;                   // WorkItem; second of the arrays, so that a kernel finds both without reading the header
  BlobArray merges;                  // MergeItem
  BlobArray merge_parts;             // MergePart
  BlobArray requests;                // RequestInfo [num_requests]
  BlobArray segments;                // SegmentInfo [num_segments]
  BlobArray kv_rows;                 // KvRow: all segments' [num_table_heads, num_groups]
  BlobArray params;                  // PlanParam, one per parameter of the variant (run-time ones have size 0 here)
  BlobArray param_data;              // bytes
  std::int64_t part_rows;            // rows of partial state in the workspace
  std::int64_t max_unit_cost, total_cost, max_piece_cost, visible_pairs;
};

/// A piece of work: rows x keys of one KV head. Consecutive items of a unit may continue one tile (kFirst .. kLast), carrying its state.
struct WorkItem {
  static constexpr std::uint8_t kFirst = 1;  // state starts empty
  static constexpr std::uint8_t kLast = 2;   // state is written: to the output if part_row < 0, else to the workspace
  static constexpr std::uint8_t kChunk = 4;  // batch-invariant: this item's keys are reduced on their own, then folded into the state
  std::int32_t row_begin;                    // packed row
  std::uint16_t row_count;                   // 1 .. tile rows of the class; 0 in the padded tail
  std::uint8_t tile_class;                   // 0 = small (decode), 1 = large (prefill)
  std::uint8_t flags;
  std::int32_t kv_row;    // index into kv_rows
  std::int32_t kv_begin;  // keys [kv_begin, kv_end); kv_begin is a multiple of the class's KV block
  std::int32_t kv_end;
  std::int32_t full_begin;  // keys [full_begin, full_end) are visible to every row: no mask code. Multiples of the KV block, or kv_end;
  std::int32_t full_end;    // empty (both = kv_begin): every block is masked
  std::int32_t part_row;    // first row of partial state in the workspace, or -1
  std::uint16_t kv_head;
  std::uint16_t segment;
  std::int32_t cost;
  // Merges that wait for the part that this item ends (kLast with part_row >= 0). Whoever brings the last part of a merge performs it.
  std::int32_t merge_begin;
  std::int32_t merge_count;
};
static_assert(sizeof(WorkItem) == 48);

/// Rows [row_begin, row_begin + row_count) of a KV head are the merge of `part_count` partial states, folded in order; 0 = empty rows.
struct MergeItem {
  std::int32_t row_begin;
  std::int32_t row_count;
  std::int32_t part_begin;  // into merge_parts
  std::int32_t part_count;
  std::int32_t kv_head;
  std::int32_t reserved;
};
static_assert(sizeof(MergeItem) == 24);

struct MergePart {
  std::int32_t part_row;  // workspace row of the merge item's first row
};

struct RequestInfo {
  std::int64_t q_begin;  // first query row (token)
  std::int64_t q_len;
  std::int64_t kv_len;  // logical
  std::int64_t q_pos;   // position of the first query row
  std::int64_t q_rope_pos;
};

struct SegmentInfo {
  std::int64_t page_size;  // 0 = endless (ragged)
  std::int64_t num_groups;
  std::int64_t num_entries;   // table entries a run must supply: highest used + 1 (0 when ragged)
  std::int32_t kv_row_begin;  // its rows of kv_rows
  std::int32_t num_table_heads;
  std::int32_t has_page_pos;
  std::int32_t masked;
};

/// One group's list of keys for one table head.
struct KvRow {
  std::int64_t table_begin;  // first entry in kv_indices; ragged: the first token
  std::int64_t kv_len;       // keys
  std::int64_t kv_pos;       // logical position of key 0 (unused with page_pos)
  std::int64_t kv_rope_pos;  // RoPE position of key 0; with page_pos: added to the logical position minus kv_pos
  std::int64_t q_begin;      // the group's query rows (tokens)
  std::int64_t q_end;
};

struct PlanParam {
  std::int64_t offset;  // into param_data: a scalar's 8 bytes (double or int64) or an array's elements
  std::int64_t size;    // elements; 1 for a scalar
};

}  // namespace girih::abi
