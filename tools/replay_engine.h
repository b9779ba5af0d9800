// The replay itself: each step is scheduled, its new keys and values appended, planned, and run in every layer. Times are of append, plan
// and run alone ("attention only"), of a full step also of what a layer does beside attention: making random data and checking results are
// left out of every figure.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "girih/context.h"
#include "tools/models.h"
#include "tools/plan_report.h"
#include "tools/replay_digest.h"
#include "tools/replay_layer.h"
#include "tools/replay_scheduler.h"
#include "tools/replay_verify.h"
#include "tools/trace.h"

namespace girih::tools {

struct ReplayOptions {
  ModelPreset model{};
  DType kv_dtype = DType::bf16;
  int num_layers = 1;  ///< each with a pool of its own; all are given the same rows
  std::int64_t page_size = 16;
  std::int64_t token_budget = 2048;
  std::int64_t max_batch = 64;
  std::int64_t pool_tokens = 0;  ///< per layer; rounded up to pages; 0 = what the requests need, at most kDefaultPoolTokens
  std::int64_t limit = 0;        ///< first requests of the trace; 0 = all
  std::int64_t max_input = 0;    ///< longer prompts are cut; 0 = none
  std::int64_t max_output = 0;
  std::int64_t max_steps = 0;  ///< 0 = until every request is complete
  bool sharing = true;
  bool real_time = false;        ///< requests arrive at their timestamps
  bool batch_invariant = false;  ///< prefixes are shared in the pool, but read as one segment: cascade levels would have to meet
                                 ///< where only the spec may cut
  bool full_step = false;        ///< norms, RoPE, activation and sampling too, on data of their own
  std::int64_t verify = 0;       ///< samples
  bool digests = false;
  std::int64_t picture_step = -1;  ///< whose work is kept for the report; -1 = the step that took longest
  std::uint64_t seed = 1;
};
inline constexpr std::int64_t kDefaultPoolTokens = 131072;

struct StepRecord {
  /// On the host's clock. On a GPU append's are its kernels' by events, and run's what is left until the last layer is done.
  double append_seconds = 0, plan_seconds = 0, run_seconds = 0;
  double kernel_seconds = 0;  ///< on a GPU: of append and run, by events between them
  double queue_seconds = 0;   ///< on a GPU: what it took the host to queue them
  std::int64_t prefill_requests = 0, decode_requests = 0;
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  std::int64_t segments = 0;
  std::int64_t flat_keys = 0;          ///< keys that requests see, over all layers
  std::int64_t read_keys = 0;          ///< keys read when a shared prefix is read once
  std::int64_t pool_pages = 0;         ///< in use
  std::int64_t logical_kv_tokens = 0;  ///< KV tokens of the batch, each request counting its own
  double bytes = 0;                    ///< KV, Q and O that attention must move
  double flops = 0;
  std::array<ListBalance, attention::kNumClasses> balance;  ///< of the plan's lists; the worst plan's where a step has several
  LayerSeconds beside{};                                    ///< of a full step; zeros otherwise
  double seconds() const { return append_seconds + plan_seconds + run_seconds + beside.total(); }
};

/// One step's work list, for the picture.
struct WorkPicture {
  struct Piece {
    std::int64_t cost = 0;
    int segment = 0;
    int tile_class = 0;
  };
  std::int64_t step = -1;
  std::vector<std::vector<Piece>> units;
};

struct ReplayResult {
  std::string source, format;
  std::string backend;  ///< cpu, cuda
  ReplayOptions options{};
  std::vector<TraceRequest> requests;  ///< as replayed: limited and clipped
  std::string schedule_key;
  int num_units = 0;
  std::array<int, attention::kNumClasses> list_units{};  ///< of each list
  std::int64_t num_pages = 0;
  std::int64_t pool_bytes = 0;  ///< all layers
  std::int64_t workspace_bytes = 0;
  std::int64_t kv_token_bytes = 0;  ///< of one token in one layer
  std::vector<StepRecord> steps;
  std::vector<double> token_gaps;  ///< seconds between a request's tokens
  std::int64_t finished_requests = 0;
  std::int64_t shared_tokens = 0;  ///< prompt tokens taken over instead of computed
  std::int64_t prompt_tokens = 0;  ///< of the requests begun
  std::int64_t peak_pool_pages = 0;
  std::int64_t peak_logical_kv_tokens = 0;
  double wall_seconds = 0;  ///< all included
  bool interrupted = false;
  WorkPicture picture;
  VerifyResult verify;
  std::map<std::int64_t, Digest> digests;
  std::string settings;  ///< what results must agree on to be compared
};

struct ReplayProgress {
  std::int64_t step = 0;
  double fraction = 0;      ///< of all tokens
  std::int64_t tokens = 0;  ///< computed so far
  std::int64_t running = 0, finished = 0, total = 0;
};

struct ReplayHooks {
  std::function<void(const ReplayProgress&)> on_step{};
  const std::atomic<bool>* stop = nullptr;  ///< once true, the replay ends after the current step
};

/// Pages of the pool of each layer: `pool_tokens`, or what the requests need within kDefaultPoolTokens, and at least the largest request.
std::int64_t choose_pages(std::span<const TraceRequest> requests, const ReplayOptions& options);

/// Replays the trace. Throws invalid_argument for options that cannot work, before anything runs.
ReplayResult replay(const Context& context, const Trace& trace, const ReplayOptions& options, const ReplayHooks& hooks = {});

}  // namespace girih::tools
