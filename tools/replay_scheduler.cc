// Continuous batching (replay_scheduler.h).
#include "tools/replay_scheduler.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "girih/error.h"

namespace girih::tools {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::invalid_argument, "replay: " + text); }

void validate(const SchedulerOptions& options, std::span<const TraceRequest> requests) {
  if (options.max_batch < 1) refuse(fmt::format("--max-batch {} must be at least 1", options.max_batch));
  if (options.page_size < 1) refuse(fmt::format("--page-size {} must be at least 1", options.page_size));
  if (options.token_budget < options.max_batch) {
    refuse(fmt::format("--token-budget {} < --max-batch {}: a step must hold one token of every running request", options.token_budget,
                       options.max_batch));
  }
  bool has_prefixes = false;
  const std::int64_t pool_tokens = options.num_pages * options.page_size;
  for (std::int64_t i = 0; i < std::ssize(requests); ++i) {
    has_prefixes = has_prefixes || !requests[i].hash_ids.empty();
    if (kv_tokens(requests[i]) > pool_tokens) {
      refuse(fmt::format("request {} needs {} tokens of KV, the pool holds {} ({} pages of {}); enlarge --kv-pool or clip with --max-input",
                         i, kv_tokens(requests[i]), pool_tokens, options.num_pages, options.page_size));
    }
  }
  if (options.sharing && has_prefixes && kPrefixBlock % options.page_size != 0) {
    refuse(
        fmt::format("--page-size {} does not divide the trace's prefix blocks of {} tokens, so they cannot be shared; choose a divisor or "
                    "give --no-sharing",
                    options.page_size, kPrefixBlock));
  }
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, std::span<const TraceRequest> requests)
    : options_(options),
      requests_((validate(options, requests), requests)),
      pool_(options.num_pages, options.page_size),
      pages_per_block_(kPrefixBlock / options.page_size) {}

void Scheduler::extend_match(RunningRequest& running) {
  const TraceRequest& request = *running.request;
  // At least the prompt's last token is computed: its output is the first token generated.
  const std::int64_t blocks = std::min<std::int64_t>(std::ssize(request.hash_ids), (request.input_length - 1) / kPrefixBlock);
  while (options_.sharing && std::ssize(running.path) < blocks && running.computed == std::ssize(running.path) * kPrefixBlock) {
    const std::int32_t parent = running.path.empty() ? PagePool::kRoot : running.path.back();
    const std::int32_t node = pool_.find(parent, request.hash_ids[running.path.size()]);
    if (node == PagePool::kNone) return;
    pool_.acquire(node);
    const auto pages = pool_.pages(node);
    running.path.push_back(node);
    running.pages.insert(running.pages.end(), pages.begin(), pages.end());
    running.computed += kPrefixBlock;
    running.promised_pages -= std::ssize(pages);
    promised_pages_ -= std::ssize(pages);
    shared_tokens_ += kPrefixBlock;
  }
}

bool Scheduler::admit() {
  auto running = std::make_unique<RunningRequest>();
  running->index = next_;
  running->request = &requests_[next_];
  running->promised_pages = pool_.pages_for(kv_tokens(*running->request));
  promised_pages_ += running->promised_pages;
  extend_match(*running);
  if (promised_pages_ > pool_.available()) {
    shared_tokens_ -= running->computed;
    release(*running);
    return false;
  }
  running_.push_back(std::move(running));
  ++next_;
  return true;
}

void Scheduler::add_entry(RunningRequest& running, std::int64_t count) {
  const std::int64_t new_pages = pool_.pages_for(running.computed + count) - std::ssize(running.pages);
  pool_.allocate(new_pages, running.pages);
  running.promised_pages -= new_pages;
  promised_pages_ -= new_pages;
  entries_.push_back({.running = &running, .begin = running.computed, .count = count});
}

std::span<const StepEntry> Scheduler::next(double now) {
  entries_.clear();
  std::int64_t budget = options_.token_budget;
  for (const auto& running : running_) {
    if (running->computed < running->request->input_length) continue;
    add_entry(*running, 1);
    --budget;
  }
  const auto prefill = [&](RunningRequest& running) {
    const std::int64_t count = std::min(budget, running.request->input_length - running.computed);
    add_entry(running, count);
    budget -= count;
  };
  for (const auto& running : running_) {
    if (budget == 0) break;
    if (running->computed >= running->request->input_length) continue;
    extend_match(*running);
    prefill(*running);
  }
  while (budget > 0 && next_ < std::ssize(requests_) && std::ssize(running_) < options_.max_batch && requests_[next_].arrival <= now) {
    if (!admit()) break;
    prefill(*running_.back());
  }
  // Neighbours share the longest prefixes, so that every shared prefix is one group of adjacent query rows.
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const StepEntry& a, const StepEntry& b) { return a.running->path < b.running->path; });
  return entries_;
}

void Scheduler::publish_blocks(RunningRequest& running) {
  const TraceRequest& request = *running.request;
  const std::int64_t whole = std::min(running.computed, request.input_length) / kPrefixBlock;
  const std::int64_t blocks = std::min<std::int64_t>(std::ssize(request.hash_ids), whole);
  while (options_.sharing && std::ssize(running.path) < blocks) {
    const std::int64_t depth = std::ssize(running.path);
    const std::int32_t parent = depth == 0 ? PagePool::kRoot : running.path.back();
    const auto first = running.pages.begin() + depth * pages_per_block_;
    const std::int32_t node = pool_.insert(parent, request.hash_ids[depth], {first, first + pages_per_block_});
    // Another request may have published the same block first: its pages hold the same values.
    std::ranges::copy(pool_.pages(node), first);
    running.path.push_back(node);
  }
}

void Scheduler::release(RunningRequest& running) {
  const std::int64_t shared = std::ssize(running.path) * pages_per_block_;
  pool_.free(std::span<const std::int32_t>(running.pages).subspan(shared));
  for (auto node = running.path.rbegin(); node != running.path.rend(); ++node) pool_.release(*node);
  promised_pages_ -= running.promised_pages;
}

std::span<const std::int64_t> Scheduler::finish() {
  finished_.clear();
  for (const StepEntry& entry : entries_) {
    entry.running->computed += entry.count;
    publish_blocks(*entry.running);
  }
  std::erase_if(running_, [this](const std::unique_ptr<RunningRequest>& running) {
    if (running->computed < kv_tokens(*running->request)) return false;
    release(*running);
    finished_.push_back(running->index);
    return true;
  });
  entries_.clear();
  return finished_;
}

}  // namespace girih::tools
