// A trace's step as a batch (trace_step.h).
#include "tools/trace_step.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "girih/error.h"
#include "tools/models.h"
#include "tools/replay_batch.h"
#include "tools/replay_engine.h"
#include "tools/trace.h"

namespace girih::tools {
namespace {

std::vector<std::int64_t> copy(const Indices& indices) {
  std::vector<std::int64_t> values(indices.size());
  for (std::int64_t i = 0; i < indices.size(); ++i) values[i] = indices[i];
  return values;
}

}  // namespace

OwnedBatch batch_of_trace_step(const std::string& file, std::int64_t step) {
  const Trace trace = read_trace(file);
  ReplayOptions options;
  options.model = model_preset("llama3-8b");
  const std::int64_t num_pages = choose_pages(trace.requests, options);
  Scheduler scheduler(
      {.token_budget = options.token_budget, .max_batch = options.max_batch, .num_pages = num_pages, .page_size = options.page_size},
      trace.requests);
  StepBatch arrays;
  for (std::int64_t i = 0;; ++i) {
    if (scheduler.done()) throw Error(Code::invalid_argument, fmt::format("plan: --step {}: the replay of {} has {} steps", step, file, i));
    const auto entries = scheduler.next(std::numeric_limits<double>::infinity());
    if (i == step) {
      arrays.build(entries, options.page_size, options.sharing);
      break;
    }
    scheduler.finish();
  }
  const Batch source = arrays.batch();
  OwnedBatch batch;
  batch.spec = model_spec(options.model, 0, options.kv_dtype);
  batch.mask = NamedCall{"causal", {}};
  batch.qo_indptr = copy(source.qo_indptr);
  batch.q_pos = copy(source.q_pos);
  for (const KvSegment& segment : source.segments) {
    batch.segments.push_back({.qo_indptr = copy(segment.qo_indptr),
                              .kv_indptr = copy(segment.kv_indptr),
                              .kv_len = copy(segment.kv_len),
                              .kv_pos = copy(segment.kv_pos),
                              .page_size = segment.page_size});
  }
  const Indices kv_len = source.kv_len;
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < kv_len.size(); ++i) longest = std::max(longest, kv_len[i]);
  batch.variant = make_variant(batch.mask, NamedCall{"none", {}}, {batch.spec.num_qo_heads, batch.num_requests(), longest});
  batch.spec.variant = batch.variant.variant;
  return batch;
}

}  // namespace girih::tools
