// Attention over any KV-cache layout: schedule once, plan each step, run each layer.
//
//   AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim_qk = 128};
//   Schedule schedule = girih::schedule(context, spec, limits);       // freezes kernels, tiles, workspace size
//   Plan plan(schedule);  plan.update(batch);                         // each step: host only, writes the work list
//   run(context, schedule, plan, args);                               // each layer: allocates nothing
//
// One problem form serves every layout (FlashInfer, arXiv 2501.01005, section 3): for each query row, a union of disjoint KV segments
// whose partial results are merged as attention states (o, lse). docs/layouts.md draws how each concept of the field becomes segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "girih/context.h"
#include "girih/error.h"
#include "girih/tensor.h"
#include "girih/variant.h"

namespace girih {

// ---------------------------------------------------------------------------------------------------------------- KV store

/// How the scales of quantised data are laid out. Unquantised types take `none`, e4m3, e5m2 and i8 one of tensor, head, token_head,
/// token_group, nvfp4 and mxfp4 `block`.
enum class ScaleGranularity : std::uint8_t { none, tensor, head, token_head, block, token_group };

/// Neighbouring dims of a token and head that share a `token_group` scale; planes have a multiple of them.
inline constexpr int kScaleGroup = 128;

/// Scales of one plane: value = code * scale. Byte strides as in KvPlane.
struct KvScales {
  ScaleGranularity granularity = ScaleGranularity::none;
  /// f32: [1] | [num_kv_heads] | [page, token, head]; block: e4m3 (nvfp4) or e8m0 (mxfp4) [page, token, head, ceil(dim / block)];
  /// token_group: f32 [page, token, head, dim / 128]. The last dimension is dense.
  const void* data = nullptr;
  std::int64_t page_byte_stride = 0;   ///< token_head, token_group and block
  std::int64_t token_byte_stride = 0;  ///< token_head, token_group and block
  std::int64_t head_byte_stride = 0;   ///< head, token_head, token_group and block
  float global_scale = 1.0F;           ///< nvfp4's tensor scale; multiplies every scale of any granularity
};

/// One plane (K, the RoPE part of K, or V): where element [page, token, head, dim] lives. Strides in bytes.
struct KvPlane {
  const void* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t page_byte_stride = 0;
  std::int64_t token_byte_stride = 0;
  std::int64_t head_byte_stride = 0;
  std::int64_t dim_byte_stride = 0;  ///< 0 = dense elements; otherwise bytes between elements (V may be token-contiguous); not for 4-bit
  KvScales scales{};
};

/// `page_size` of a ragged store: each request has one endless page; a page id is then the index of its first token.
inline constexpr std::int64_t kEndlessPage = 0;

/// Keys and values of one layer. An argument of run(): one plan serves all layers.
struct KvStore {
  std::int64_t page_size = 16;    ///< tokens a page, any >= 1, or kEndlessPage
  std::int64_t num_pages = 0;     ///< page ids are in [0, num_pages); ragged: number of tokens
  KvPlane k{};                    ///< dims [0, head_dim_qk - head_dim_rope)
  KvPlane k_rope{};               ///< dims [head_dim_qk - head_dim_rope, head_dim_qk) where the spec has head_dim_rope > 0
  KvPlane v{};                    ///< unused where spec.v_is_k: V is then the first head_dim_vo dims of k
  bool has_partial_page = false;  ///< the last page's memory may end before its page_size tokens
};

enum class KvLayout : std::uint8_t {
  nhd,  ///< [page, token, head, dim]
  hnd,  ///< [page, head, token, dim]
};

/// Paged K and V as 4-D tensors [num_pages, page_size, heads, dim] (nhd) or [num_pages, heads, page_size, dim] (hnd), any strides.
KvStore paged_kv_store(const TensorView& k, const TensorView& v, KvLayout layout = KvLayout::nhd);
/// Paged K and V in one 5-D tensor [num_pages, 2, page_size, heads, dim] (nhd) or [num_pages, 2, heads, page_size, dim] (hnd).
KvStore paged_kv_store(const TensorView& kv, KvLayout layout = KvLayout::nhd);
/// Ragged K and V as 3-D tensors [num_tokens, heads, dim] (nhd) or [heads, num_tokens, dim] (hnd), any strides.
KvStore ragged_kv_store(const TensorView& k, const TensorView& v, KvLayout layout = KvLayout::nhd);
/// MLA's fp8 tokens as DeepSeek-V3.2 caches them (FlashMLA's sparse decoding over fp8): bytes [num_pages, page_size, B] or [num_pages,
/// page_size, 1, B] of an 8-bit type, B = latent_dim + latent_dim / 128 * 4 + rope_dim * 2 (656): e4m3 codes of the latent, an f32 scale
/// for each 128 of them, then the RoPE part as bf16. For specs of k_dtype e4m3, k_scale token_group, k_rope_dtype bf16 and v_is_k.
KvStore mla_token_kv_store(const TensorView& tokens, int latent_dim = 512, int rope_dim = 64);
/// The same memory as pages of one token, which lists of tokens need: page id = page * page_size + slot. Pages must adjoin.
KvStore single_token_pages(const KvStore& store);

// ---------------------------------------------------------------------------------------------------------------- problem

enum class LseKind : std::uint8_t { none, natural, base2 };

/// What is asked: everything that selects and shapes a kernel.
struct AttentionSpec {
  int num_qo_heads = 1;  ///< any multiple of num_kv_heads
  int num_kv_heads = 1;
  int head_dim_qk = 128;        ///< 1..1024
  int head_dim_vo = 0;          ///< 0 = head_dim_qk; 1..1024
  int head_dim_rope = 0;        ///< > 0: Q and K come in two tensors, the second holds the last head_dim_rope dims (MLA)
  DType q_dtype = DType::bf16;  ///< f32, f16, bf16; CUDA also e4m3
  DType k_dtype = DType::bf16;  ///< f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4
  DType v_dtype = DType::bf16;
  DType o_dtype = DType::bf16;  ///< f32, f16, bf16; e4m3, e5m2 with a scale at run time
  /// Of K's second tensor (head_dim_rope > 0). Not given: k_dtype, with scales of its own if quantised; or f32, f16, bf16 beside any K.
  std::optional<DType> k_rope_dtype{};
  ScaleGranularity k_scale = ScaleGranularity::none;
  ScaleGranularity v_scale = ScaleGranularity::none;
  bool v_is_k = false;          ///< V is a view of K's first head_dim_vo dims (MLA): the store is read once
  double sm_scale = 0;          ///< 0 = 1 / sqrt(head_dim_qk)
  LseKind lse = LseKind::none;  ///< f32 [num_tokens, num_qo_heads]
  /// The result is to be merged elsewhere: leaves out the sink and the output transform; needs lse, softmax and O of 16 bits or more.
  bool partial_state = false;
  bool batch_invariant = false;  ///< a row's bits depend on its own request only (docs/numerics.md)
  Variant variant{};
};

/// The largest batch that a schedule must serve; plan() refuses what exceeds it.
struct AttentionLimits {
  std::int64_t max_tokens = 0;  ///< rows of the query tensor
  std::int64_t max_requests = 0;
  std::int64_t max_segments = 1;
  std::int64_t max_groups = 0;             ///< query groups over all segments; 0 = max_requests * max_segments
  std::int64_t max_kv_len = 0;             ///< keys of one group in one segment
  std::int64_t max_param_bytes = 1 << 20;  ///< plan-time parameters
  /// Query rows of one request, and of one group; 0 = max_tokens. A schedule whose requests are all short needs one kernel, not two.
  std::int64_t max_qo_len = 0;
  /// Work items of a plan, which size a GPU's copy of it. 0 = on the CPU any number; on a GPU what any batch needs where a row sees one
  /// run of keys (no mask, causal, windows), and up to four runs a tile under other masks.
  std::int64_t max_items = 0;
};

/// Groups of query rows, each with its run of pages.
struct KvSegment {
  /// Group g holds query rows [qo_indptr[g], qo_indptr[g+1]). Not given: the groups are the requests of the batch.
  Indices qo_indptr{};
  std::int64_t page_size = 16;  ///< as the store's; kEndlessPage = ragged
  /// 1: all KV heads share pages; num_kv_heads: each head has its own table rows, ordered [head, group].
  int num_table_heads = 1;
  /// CSR: [num_table_heads, num_groups + 1] offsets into kv_indices. Ragged: token offsets, kv_indices is not used.
  Indices kv_indptr{};
  /// Strided table in place of kv_indptr (vLLM's block_tables): table row r starts at entry r * table_stride.
  std::int64_t table_stride = 0;
  /// [num_table_heads, num_groups] keys. Ragged: optional, else the extents of kv_indptr. Table entries past ceil(len / page_size) are
  /// never read.
  Indices kv_len{};
  /// [num_groups] logical position of the group's first key. Not given: after the preceding segments' keys of the group's first row.
  Indices kv_pos{};
  /// One per table entry: logical position of the page's first key, where pages are not adjacent; excludes kv_pos. Also given to run().
  Indices page_pos{};
  /// [num_groups] RoPE position of the first key. Not given: its logical position.
  Indices kv_rope_pos{};
  bool masked = true;  ///< false: every key of the segment is visible to every row of its group
};

/// One step's work. All arrays are host memory, read during plan() only.
struct Batch {
  Indices qo_indptr{};  ///< [num_requests + 1]; request r owns query rows [qo_indptr[r], qo_indptr[r+1])
  std::span<const KvSegment> segments{};
  Indices kv_len{};                      ///< [num_requests] logical KV length; not given: keys over the segments that cover the request
  Indices q_pos{};                       ///< [num_requests] position of the first query row; not given: kv_len - q_len (bottom-right)
  Indices q_rope_pos{};                  ///< [num_requests] RoPE position of the first query row; not given: q_pos
  std::span<const ParamValue> params{};  ///< values of plan-time parameters
};

// ---------------------------------------------------------------------------------------------------------------- schedule

namespace attention {
struct ScheduleState;
struct PlanState;
struct DevicePlanState;
}  // namespace attention

/// A buffer that run() needs.
struct WorkspaceRegion {
  std::string name;
  std::int64_t offset = 0;  ///< bytes
  std::int64_t size = 0;    ///< bytes
};

/// Immutable and shareable between threads.
class Schedule {
 public:
  const AttentionSpec& spec() const;  ///< normalised: defaults filled in
  const AttentionLimits& limits() const;
  const std::string& key() const;        ///< names the kernel: the same in logs, caches and benchmark rows
  int num_units() const;                 ///< CPU workers or CTAs that a plan is balanced over
  std::int64_t workspace_bytes() const;  ///< for the worst batch within the limits
  std::span<const WorkspaceRegion> workspace_layout() const;
  const attention::ScheduleState& state() const { return *state_; }                               ///< internal to the library
  const std::shared_ptr<const attention::ScheduleState>& shared_state() const { return state_; }  ///< internal to the library
  explicit Schedule(std::shared_ptr<const attention::ScheduleState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const attention::ScheduleState> state_;
};

/// Tuning that a caller may fix; zeros take the table's choice.
struct ScheduleOptions {
  int num_units = 0;     ///< CPU: what a plan is balanced over; 0 = the context's workers
  int num_sms = 0;       ///< CUDA: multiprocessors to use, so that others stay free for work beside this; 0 = all
  std::string family{};  ///< CUDA: "floor", "mma", "wgmma" (small tiles: the next family); "" = the fastest that takes the spec
};

/// Validates the spec against capabilities() and freezes every choice. Throws invalid_argument or unsupported.
Schedule schedule(const Context& context, const AttentionSpec& spec, const AttentionLimits& limits, const ScheduleOptions& options = {});

/// CUDA: compiles the kernels that schedules of these specs need, in parallel with bounded memory, or finds them in packs and cache, so
/// that schedule() only loads them. All are tried before the first failure is thrown. On the CPU there is nothing to do.
void warmup(const Context& context, std::span<const AttentionSpec> specs, const WarmupFn& progress = {});

struct PlanInfo {
  std::int64_t num_items = 0;
  std::int64_t num_merges = 0;       ///< merged row ranges
  std::int64_t workspace_bytes = 0;  ///< used of schedule.workspace_bytes()
  std::int64_t blob_bytes = 0;
  std::int64_t max_unit_cost = 0;  ///< planner's cost units
  std::int64_t total_cost = 0;
  std::int64_t max_piece_cost = 0;  ///< largest piece that cannot be cut
  std::int64_t visible_pairs = 0;   ///< (row, key) pairs in the kept tiles, per query head (an upper bound where masks cut tiles)
};

/// The work list of one batch: a blob that run() reads. Reuses its memory from step to step.
class Plan {
 public:
  explicit Plan(const Schedule& schedule);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  /// Plans `batch`. Throws invalid_argument before anything is changed. Allocates only when a batch is larger than all before.
  const PlanInfo& update(const Batch& batch);
  /// Takes over a blob made by another process with an equal schedule; every index in it is checked.
  const PlanInfo& load(std::span<const std::byte> blob);

  const PlanInfo& info() const;
  std::span<const std::byte> blob() const;
  const Schedule& schedule() const;
  const attention::PlanState& state() const { return *state_; }  ///< internal to the library

 private:
  std::unique_ptr<attention::PlanState> state_;
};

/// A plan on its CUDA device: memory of fixed size and address for any plan of one schedule. One serves all layers of a step.
/// Its work is ordered by streams: upload() waits, in the stream, for runs before it, and runs wait for it. Runs with one DevicePlan may
/// not overlap (its merge counters are theirs); use two for that. Not copyable; one thread at a time.
///
/// With CUDA graphs: capture run(), not upload(). Before each replay update() the plan and upload() it on the stream that replays: the
/// graph reads the new batch, of any sizes within the schedule's limits, as long as it needs no more tokens, table entries and segments
/// than the tensors of the capture have (upload() refuses others). Or capture upload() too: it then copies from pinned memory at a fixed
/// address, which stage() fills. The caller must know that the copies of all replays before have been done, say from having waited for
/// their results. A DevicePlan must live as long as the graphs that were captured with it.
class DevicePlan {
 public:
  DevicePlan(const Context& context, const Schedule& schedule);
  ~DevicePlan();
  DevicePlan(DevicePlan&&) noexcept;
  DevicePlan& operator=(DevicePlan&&) noexcept;

  /// Copies the plan's batch to the device, on `stream` (a CUstream or cudaStream_t; null = the default stream). `plan` may be updated as
  /// soon as this returns. Allocates nothing (the first captured one: its pinned memory); waits only where four uploads are under way.
  void upload(const Plan& plan, void* stream = nullptr);
  /// Makes the next replays of a graph with a captured upload() read this plan.
  void stage(const Plan& plan);

  std::int64_t capacity_bytes() const;                                 ///< of the device's copy; a captured upload copies all of it
  const attention::DevicePlanState& state() const { return *state_; }  ///< internal to the library

 private:
  std::unique_ptr<attention::DevicePlanState> state_;
};

// ---------------------------------------------------------------------------------------------------------------- run

/// Data of one segment at run time.
struct SegmentData {
  KvStore store{};
  std::span<const std::int32_t> kv_indices{};  ///< page ids; empty for a ragged store
  std::span<const std::int64_t> page_pos{};    ///< where the segment was planned with page_pos
};

struct AttentionArgs {
  TensorView q{};                           ///< [num_tokens, num_qo_heads, head_dim_qk (- head_dim_rope)], last dim dense
  TensorView q_rope{};                      ///< [num_tokens, num_qo_heads, head_dim_rope] where the spec has it
  std::span<const SegmentData> segments{};  ///< as planned
  std::span<const ParamValue> params{};     ///< values of run-time parameters
  TensorView o{};                           ///< [num_tokens, num_qo_heads, head_dim_vo], last dim dense; every element is written
  TensorView lse{};                         ///< f32 [num_tokens, num_qo_heads] where the spec asks for it
  /// O of e4m3 or e5m2: f32 [1], > 0 and finite, as its inverse; O holds the codes nearest to value / o_scale, saturated. Not given: 1.
  TensorView o_scale{};
  /// 64-byte aligned; contents need not be initialised. CPU: >= plan.info().workspace_bytes; CUDA: >= schedule.workspace_bytes().
  std::span<std::byte> workspace{};
  void* stream = nullptr;                   ///< CUDA: a CUstream or cudaStream_t; null = the default stream
  const DevicePlan* device_plan = nullptr;  ///< CUDA: holds `plan`
};

/// Computes O (and LSE). Allocates nothing. Throws before anything is written. Outputs share no memory with each other, with what is read
/// or with the workspace (columns of one array are apart).
/// On a CUDA device every pointer is device memory, work is queued on args.stream and nothing is waited for; tensors may have more rows
/// than the plan. Page ids and page positions are then data that the host cannot see: an id outside [0, num_pages) in an entry that the
/// plan reads is the caller's error and, unlike on the CPU, is not found.
void run(const Context& context, const Schedule& schedule, const Plan& plan, const AttentionArgs& args);

/// One call for the simplest use: one request, ragged K and V [kv_len, num_kv_heads, dim], Q [qo_len, num_qo_heads, dim]. Plans and
/// allocates at each call; the spec's head counts, dims and types come from the tensors. On a CUDA device it works on the default stream
/// and waits for the result.
void single_attention(const Context& context, AttentionSpec spec, const TensorView& q, const TensorView& k, const TensorView& v,
                      const TensorView& o, const TensorView& lse = {}, std::span<const ParamValue> params = {});

/// Lengths from FlashInfer's page table: (pages - 1) * page_size + last_page_len, 0 for a request without pages.
std::vector<std::int64_t> kv_len_from_last_page(Indices kv_indptr, Indices last_page_len, std::int64_t page_size);

// ---------------------------------------------------------------------------------------------------------------- block sparse

/// A block-sparse pattern turned into a segment; owns the arrays that `segment` points to. Page = `page_size` tokens of a ragged store
/// seen as pages (`paged view`): page id i is tokens [i * page_size, ...).
struct BlockSparse {
  std::int64_t page_size = 0;
  std::vector<std::int64_t> qo_indptr, kv_indptr, kv_len, page_pos;
  std::vector<std::int32_t> kv_indices;
  int num_table_heads = 1;
  KvSegment segment() const;  ///< views of the arrays above
};

/// BSR over a [num_rows, num_cols] score matrix with blocks of block_rows x block_cols (the last of each may be cut by the end).
/// `indptr` [num_block_rows + 1] and `indices` (ascending within a row); for patterns per KV head both are [num_heads, ...] with
/// indptr offsets absolute.
BlockSparse block_sparse(std::int64_t num_rows, std::int64_t num_cols, std::int64_t block_rows, std::int64_t block_cols, Indices indptr,
                         Indices indices, int num_heads = 1);
/// Blocks of any sizes: `block_mask` [num_heads, row_sizes.size(), col_sizes.size()] row-major, nonzero = attended.
BlockSparse variable_block_sparse(Indices row_sizes, Indices col_sizes, std::span<const std::uint8_t> block_mask, int num_heads = 1);
/// The store of `block_sparse`: K and V [num_tokens, heads, dim] seen as pages of `page_size` tokens.
KvStore block_sparse_kv_store(const TensorView& k, const TensorView& v, std::int64_t page_size, KvLayout layout = KvLayout::nhd);

// ---------------------------------------------------------------------------------------------------------------- token lists

/// A list of tokens for each query row (sparse MLA); owns the arrays that `segment` points to. For a store of pages of one token.
struct KeyLists {
  std::vector<std::int64_t> qo_indptr, kv_indptr, kv_len;
  std::vector<std::int32_t> kv_indices;
  KvSegment segment() const;  ///< views of the arrays above; not masked
};

/// Lists out of `indices` [num_rows, top_k], host memory: row i attends to its entries >= 0, in their order; negative ones are unused.
/// Where the used entries come first and their counts are known, no copy is needed (docs/layouts.md).
KeyLists key_lists(std::span<const std::int32_t> indices, std::int64_t num_rows);

// ---------------------------------------------------------------------------------------------------------------- merge

/// Merges two attention states (Eq. 2-3 of arXiv 2501.01005). v: [n, heads, dim] f32, f16 or bf16; s: f32 [n, heads], natural log
/// (base-2 states merge rightly with base2 = true). Outputs may alias inputs (on a CUDA device: be them, or lie
/// apart). The merge of empty states is empty: (0, -inf). On a CUDA device tensors are device memory and work is queued on `stream`;
/// `indptr` is host memory, so merge_states_varlen() cannot be captured.
void merge_state(const Context& context, const TensorView& v_a, const TensorView& s_a, const TensorView& v_b, const TensorView& s_b,
                 const TensorView& v_out, const TensorView& s_out, bool base2 = false, void* stream = nullptr);
/// v: [n, num_states, heads, dim], s: [n, num_states, heads] -> [n, heads, dim], [n, heads]; num_states may be 0.
void merge_states(const Context& context, const TensorView& v, const TensorView& s, const TensorView& v_out, const TensorView& s_out,
                  bool base2 = false, void* stream = nullptr);
/// Row i merges states [indptr[i], indptr[i+1]) of v [total, heads, dim], s [total, heads] -> [n, heads, dim], [n, heads].
void merge_states_varlen(const Context& context, const TensorView& v, const TensorView& s, Indices indptr, const TensorView& v_out,
                         const TensorView& s_out, bool base2 = false, void* stream = nullptr);

// ---------------------------------------------------------------------------------------------------------------- capabilities

/// One row of the capability table: what a backend's attention does. Validation and dispatch read the same rows.
struct AttentionCapability {
  DeviceKind device = DeviceKind::cpu;
  std::string family;  ///< "cpu", "floor", "mma", "wgmma"
  std::vector<DType> q_dtypes, o_dtypes, kv_dtypes;
  int max_head_dim = 0;
  std::vector<std::string> features;  ///< "paged", "cascade", "rope", "softmax_off", ...
};
std::vector<AttentionCapability> attention_capabilities();

}  // namespace girih
