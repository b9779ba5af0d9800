// Continuous batching with chunked prefill over a page pool: which requests take part in a step and with how many tokens. No data, no
// attention: lengths, pages and prefix nodes only.
//
// Each step takes one token of every decoding request, then prompt chunks in order of admission until the token budget is used up. A
// request is admitted (in order of arrival, none overtakes) when its input and output fit the pool together with all that was promised
// before, so a running request never has to give up its pages. With sharing, prompt blocks that the pool holds already are taken over
// instead of being computed; blocks are published when the step that completes them is done.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tools/page_pool.h"
#include "tools/trace.h"

namespace girih::tools {

struct SchedulerOptions {
  std::int64_t token_budget = 2048;  ///< query tokens a step; at least max_batch
  std::int64_t max_batch = 64;       ///< running requests
  std::int64_t num_pages = 0;
  std::int64_t page_size = 16;
  bool sharing = true;  ///< needs a page_size that divides kPrefixBlock where the trace has hash_ids
};

/// Tokens whose keys and values a request leaves in the pool: the last generated token is not fed back.
constexpr std::int64_t kv_tokens(const TraceRequest& request) {
  return request.input_length + (request.output_length > 0 ? request.output_length - 1 : 0);
}

struct RunningRequest {
  std::int64_t index = 0;  ///< in the trace
  const TraceRequest* request = nullptr;
  std::int64_t computed = 0;        ///< tokens whose keys and values the pool holds
  std::int64_t promised_pages = 0;  ///< not yet allocated
  double last_token_time = -1;      ///< for the engine: when its last output token was ready
  std::vector<std::int32_t> path;   ///< prefix nodes, kPrefixBlock tokens each
  std::vector<std::int32_t> pages;  ///< in order of position; those of the path come first
};

/// Query tokens [begin, begin + count) of one request; their keys and values are appended in the same step.
struct StepEntry {
  RunningRequest* running = nullptr;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool decode() const { return begin >= running->request->input_length; }
  std::int64_t kv_len() const { return begin + count; }
  /// Whether the step's last row of this request yields an output token.
  bool yields_token() const { return kv_len() >= running->request->input_length && running->request->output_length > 0; }
};

class Scheduler {
 public:
  /// `requests` must outlive the scheduler. Throws invalid_argument for options that cannot work, or a request larger than the pool.
  Scheduler(const SchedulerOptions& options, std::span<const TraceRequest> requests);

  bool done() const { return next_ == std::ssize(requests_) && running_.empty(); }
  /// Decides the next step among the requests that have arrived at `now` (seconds); pages for its tokens are allocated. Empty: nothing
  /// has arrived yet. Entries are ordered by shared prefix. Every next() that is not empty is followed by finish().
  std::span<const StepEntry> next(double now);
  /// The step was computed. Returns the indices of the requests that are complete; their pages are released.
  std::span<const std::int64_t> finish();

  double next_arrival() const { return next_ < std::ssize(requests_) ? requests_[next_].arrival : 0; }
  std::int64_t num_running() const { return std::ssize(running_); }
  std::int64_t shared_tokens() const { return shared_tokens_; }  ///< prompt tokens taken over instead of computed, so far
  const PagePool& pool() const { return pool_; }

 private:
  bool admit();
  void extend_match(RunningRequest& running);
  void add_entry(RunningRequest& running, std::int64_t count);
  void publish_blocks(RunningRequest& running);
  void release(RunningRequest& running);

  SchedulerOptions options_;
  std::span<const TraceRequest> requests_;
  PagePool pool_;
  std::int64_t pages_per_block_;
  std::int64_t next_ = 0;            // the next request to admit
  std::int64_t promised_pages_ = 0;  // of all running requests
  std::int64_t shared_tokens_ = 0;
  std::vector<std::unique_ptr<RunningRequest>> running_;  // in order of admission
  std::vector<StepEntry> entries_;
  std::vector<std::int64_t> finished_;
};

}  // namespace girih::tools
