// The replay: its scheduler on lengths alone, its batches, and whole small replays with and without sharing.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <set>

#include "girih/error.h"
#include "tools/replay.h"
#include "tools/replay_batch.h"
#include "tools/replay_digest.h"
#include "tools/replay_engine.h"
#include "tools/replay_scheduler.h"
#include "tools/replay_summary.h"
#include "tools/report.h"

namespace girih::tools {
namespace {

constexpr double kAllArrived = std::numeric_limits<double>::infinity();

TraceRequest request(std::int64_t input, std::int64_t output, std::vector<std::int64_t> hash_ids = {}) {
  return {.arrival = 0, .input_length = input, .output_length = output, .hash_ids = std::move(hash_ids)};
}

/// Requests that share prefixes at two depths, some that are prefixes of others, and one apart.
Trace shared_trace() {
  Trace trace{.source = "test", .format = "test", .requests = {}};
  trace.requests = {request(1300, 6, {1, 2, 3}), request(1100, 5, {1, 2, 4}), request(1024, 4, {1, 2}), request(700, 9, {1, 5}),
                    request(40, 3, {6}),         request(1030, 1, {1, 2, 7}), request(600, 0, {1, 8})};
  return trace;
}

ModelPreset small_model() {
  ModelPreset model{.name = "small", .note = ""};
  model.num_qo_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim_qk = model.head_dim_vo = 32;
  return model;
}

ReplayOptions small_options() {
  ReplayOptions options{.model = small_model()};
  options.token_budget = 256;
  options.max_batch = 4;
  options.page_size = 16;
  options.verify = 60;
  options.digests = true;
  return options;
}

// ---------------------------------------------------------------------------------------------------------------- scheduler

TEST(ReplayScheduler, ComputesEveryTokenOnceInOrder) {
  const Trace trace = shared_trace();
  for (bool sharing : {false, true}) {
    Scheduler scheduler({.token_budget = 300, .max_batch = 3, .num_pages = 400, .page_size = 16, .sharing = sharing}, trace.requests);
    std::vector<std::int64_t> computed(trace.requests.size(), 0), finished;
    std::int64_t query_tokens = 0;
    while (!scheduler.done()) {
      const auto entries = scheduler.next(kAllArrived);
      ASSERT_FALSE(entries.empty());
      ASSERT_LE(entries.size(), 3U);
      std::int64_t tokens = 0;
      for (const StepEntry& entry : entries) {
        const std::int64_t index = entry.running->index;
        // What was not computed by this request was taken over as whole blocks of its prompt.
        ASSERT_GE(entry.begin, computed[index]);
        ASSERT_EQ((entry.begin - computed[index]) % kPrefixBlock, 0);
        if (!sharing || entry.decode()) {
          ASSERT_EQ(entry.begin, computed[index]);
        }
        ASSERT_GE(std::ssize(entry.running->pages) * 16, entry.kv_len());
        computed[index] = entry.kv_len();
        tokens += entry.count;
      }
      ASSERT_LE(tokens, 300);
      query_tokens += tokens;
      for (std::int64_t index : scheduler.finish()) finished.push_back(index);
    }
    std::int64_t all = 0;
    for (std::size_t i = 0; i < computed.size(); ++i) {
      EXPECT_EQ(computed[i], kv_tokens(trace.requests[i]));
      all += computed[i];
    }
    EXPECT_EQ(std::set<std::int64_t>(finished.begin(), finished.end()).size(), trace.requests.size());
    EXPECT_EQ(query_tokens + scheduler.shared_tokens(), all);
    EXPECT_EQ(scheduler.shared_tokens() > 0, sharing);
    EXPECT_EQ(scheduler.pool().used(), 0);
  }
}

TEST(ReplayScheduler, QueuesWhenThePoolIsFull) {
  const std::vector<TraceRequest> requests(5, request(100, 29));                                            // 128 tokens each
  Scheduler scheduler({.token_budget = 1000, .max_batch = 5, .num_pages = 20, .page_size = 16}, requests);  // room for two
  std::int64_t finished = 0;
  while (!scheduler.done()) {
    ASSERT_LE(scheduler.next(kAllArrived).size(), 2U);
    finished += std::ssize(scheduler.finish());
  }
  EXPECT_EQ(finished, 5);
}

TEST(ReplayScheduler, WaitsForArrivals) {
  std::vector<TraceRequest> requests(2, request(10, 1));
  requests[1].arrival = 5;
  Scheduler scheduler({.token_budget = 64, .max_batch = 4, .num_pages = 8, .page_size = 16}, requests);
  EXPECT_EQ(scheduler.next(0).size(), 1U);
  scheduler.finish();
  EXPECT_TRUE(scheduler.next(4.9).empty());
  EXPECT_EQ(scheduler.next_arrival(), 5);
  EXPECT_EQ(scheduler.next(5).size(), 1U);
}

TEST(ReplayScheduler, RefusesWhatCannotWork) {
  const std::vector<TraceRequest> plain{request(100, 10)};
  const std::vector<TraceRequest> shared{request(600, 10, {1, 2})};
  EXPECT_THROW(Scheduler({.num_pages = 6, .page_size = 16}, plain), Error);                     // larger than the pool
  EXPECT_THROW(Scheduler({.token_budget = 8, .max_batch = 9, .num_pages = 99}, plain), Error);  // no token for each
  EXPECT_THROW(Scheduler({.num_pages = 99, .page_size = 24}, shared), Error);                   // pages across blocks
  EXPECT_NO_THROW(Scheduler({.num_pages = 99, .page_size = 24, .sharing = false}, shared));
  EXPECT_NO_THROW(Scheduler({.num_pages = 99, .page_size = 24}, plain));
}

// ---------------------------------------------------------------------------------------------------------------- batches

TEST(ReplayBatch, CascadeListsEveryKeyOnce) {
  const Trace trace = shared_trace();
  Scheduler scheduler({.token_budget = 2000, .max_batch = 6, .num_pages = 400, .page_size = 16}, trace.requests);
  std::int64_t most_segments = 0;
  while (!scheduler.done()) {
    const auto entries = scheduler.next(kAllArrived);
    StepBatch batch;
    batch.build(entries, 16, true);
    const Batch b = batch.batch();
    most_segments = std::max(most_segments, batch.num_segments());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      std::vector<std::int32_t> pages;
      std::int64_t keys = 0;
      for (std::int64_t s = 0; s < batch.num_segments(); ++s) {
        const KvSegment& segment = b.segments[s];
        std::int64_t g = 0;
        while (segment.qo_indptr[g + 1] <= batch.row(static_cast<std::int64_t>(i))) ++g;
        ASSERT_TRUE(segment.kv_len[g] == 0 || segment.kv_pos[g] == keys);
        keys += segment.kv_len[g];
        for (std::int64_t p = segment.kv_indptr[g]; p < segment.kv_indptr[g + 1]; ++p) pages.push_back(batch.segment_indices(s)[p]);
      }
      ASSERT_EQ(keys, entries[i].kv_len());
      const auto& own = entries[i].running->pages;
      ASSERT_EQ(pages, std::vector<std::int32_t>(own.begin(), own.begin() + (keys + 15) / 16));
    }
    ASSERT_LE(batch.grouped_keys(0), batch.flat_keys(0));
    scheduler.finish();
  }
  EXPECT_GE(most_segments, 3);
}

TEST(ReplayBatch, CountsWindowsAndPairs) {
  const std::vector<TraceRequest> requests{request(100, 1)};
  Scheduler scheduler({.token_budget = 2000, .max_batch = 1, .num_pages = 40, .page_size = 16}, requests);
  StepBatch batch;
  batch.build(scheduler.next(kAllArrived), 16, false);
  EXPECT_EQ(batch.flat_keys(0), 100);
  EXPECT_EQ(batch.visible_pairs(0), 5050);
  EXPECT_EQ(batch.visible_pairs(10), 55 + 90 * 10);
}

// ---------------------------------------------------------------------------------------------------------------- replays

TEST(Replay, SharingAgreesWithNoSharing) {
  const Context context({.num_workers = 2});
  ReplayOptions options = small_options();
  const ReplayResult shared = replay(context, shared_trace(), options);
  options.sharing = false;
  options.token_budget = 100;
  const ReplayResult flat = replay(context, shared_trace(), options);
  for (const ReplayResult* result : {&shared, &flat}) {
    EXPECT_EQ(result->verify.checked, 60);
    EXPECT_TRUE(result->verify.passed()) << result->verify.worst << " " << result->verify.max_ratio;
    EXPECT_EQ(result->finished_requests, 7);
    EXPECT_EQ(result->digests.size(), 7U);
  }
  EXPECT_GT(shared.shared_tokens, 0);
  EXPECT_EQ(flat.shared_tokens, 0);
  EXPECT_EQ(shared.settings, flat.settings);
  const std::string file = testing::TempDir() + "replay_results.json";
  write_results(file, shared.settings, shared.digests);
  const CompareResult compare = compare_results(file, flat.settings, flat.digests, DType::bf16);
  EXPECT_TRUE(compare.passed()) << compare.max_relative;
  EXPECT_EQ(compare.compared, 7);

  auto altered = flat.digests;
  altered[3].sum += 0.1 * std::sqrt(altered[3].squares);
  EXPECT_EQ(compare_results(file, flat.settings, altered, DType::bf16).different, 1);
  altered.erase(3);
  EXPECT_EQ(compare_results(file, flat.settings, altered, DType::bf16).missing, 1);
  EXPECT_THROW(compare_results(file, "other settings", flat.digests, DType::bf16), Error);
  EXPECT_THROW(compare_results(file + ".none", flat.settings, flat.digests, DType::bf16), Error);
}

TEST(Replay, VerifiesEveryKvTypeAndModel) {
  const Context context({.num_workers = 2});
  for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8, DType::nvfp4, DType::mxfp4}) {
    ReplayOptions options = small_options();
    options.kv_dtype = dtype;
    options.max_input = 600;
    options.verify = 30;
    const ReplayResult result = replay(context, shared_trace(), options);
    EXPECT_EQ(result.verify.checked, 30) << name(dtype);
    EXPECT_TRUE(result.verify.passed()) << name(dtype) << " " << result.verify.worst << " " << result.verify.max_ratio << " "
                                        << result.verify.max_stored_ratio;
  }
  for (const ModelPreset& preset : model_presets()) {
    ReplayOptions options = small_options();
    options.model = preset;
    options.num_layers = 2;
    options.max_input = 300;
    options.verify = 20;
    options.digests = false;
    const ReplayResult result = replay(context, shared_trace(), options);
    EXPECT_TRUE(result.verify.passed()) << preset.name << " " << result.verify.worst << " " << result.verify.max_ratio;
  }
}

// What is beside attention neither disturbs it nor goes untimed.
TEST(Replay, FullStepsRunEverythingBesideAttention) {
  const Context context({.num_workers = 2});
  ReplayOptions options = small_options();
  const ReplayResult plain = replay(context, shared_trace(), options);
  options.full_step = true;
  options.num_layers = 1;
  options.model.hidden_size = 64;
  options.model.intermediate_size = 96;
  options.model.experts_per_token = 2;
  options.model.vocab_size = 1000;
  options.model.rotary_dim = 16;
  const ReplayResult full = replay(context, shared_trace(), options);
  EXPECT_TRUE(full.verify.passed()) << full.verify.worst;
  ASSERT_EQ(full.digests.size(), plain.digests.size());
  for (const auto& [request, digest] : plain.digests) EXPECT_EQ(full.digests.at(request).sum, digest.sum);
  LayerSeconds all;
  for (const StepRecord& step : full.steps) {
    EXPECT_GT(step.beside.norm, 0);
    EXPECT_GT(step.beside.rope, 0);
    EXPECT_GT(step.beside.activation, 0);
    EXPECT_GT(step.seconds(), step.append_seconds + step.plan_seconds + step.run_seconds);
    all += step.beside;
  }
  EXPECT_GT(all.sampling, 0);
  EXPECT_EQ(plain.steps.front().beside.total(), 0);
  const ReplaySummary summary = summarise(full, {});
  EXPECT_NE(summary_text(full, summary, {}).find("sampling"), std::string::npos);
  EXPECT_TRUE(summary_json(full, summary, {}, {})["rows"][0].contains("beside"));
}

// Every model's shapes, rotations of a part and experts among them.
TEST(Replay, FullStepsOfEveryModel) {
  const Context context({.num_workers = 2});
  Trace trace{.source = "test", .format = "test", .requests = {request(20, 2), request(7, 3)}};
  for (const ModelPreset& model : model_presets()) {
    ReplayOptions options{.model = model};
    options.token_budget = 16;
    options.max_batch = 2;
    options.full_step = true;
    options.verify = 4;
    const ReplayResult result = replay(context, trace, options);
    EXPECT_TRUE(result.verify.passed()) << model.name;
    EXPECT_EQ(result.finished_requests, 2) << model.name;
  }
}

TEST(Replay, StopsWhereAsked) {
  const Context context({.num_workers = 1});
  ReplayOptions options = small_options();
  options.max_steps = 3;
  EXPECT_EQ(replay(context, shared_trace(), options).steps.size(), 3U);

  options.max_steps = 0;
  std::atomic<bool> stop{false};
  const ReplayResult interrupted =
      replay(context, shared_trace(), options, {.on_step = [&](const ReplayProgress& p) { stop = p.step >= 2; }, .stop = &stop});
  EXPECT_TRUE(interrupted.interrupted);
  EXPECT_EQ(interrupted.steps.size(), 2U);

  options.limit = 2;
  const ReplayResult limited = replay(context, shared_trace(), options);
  EXPECT_FALSE(limited.interrupted);
  EXPECT_EQ(limited.finished_requests, 2);
  EXPECT_EQ(limited.token_gaps.size(), 5U + 4U);
}

TEST(Replay, BatchInvariantRunsVerify) {
  const Context context({.num_workers = 2});
  ReplayOptions options = small_options();
  options.batch_invariant = true;
  EXPECT_TRUE(replay(context, shared_trace(), options).verify.passed());
}

TEST(Replay, ReportIsSelfContained) {
  const Context context({.num_workers = 2});
  ReplayOptions options = small_options();
  options.picture_step = 1;
  const ReplayResult result = replay(context, shared_trace(), options);
  EXPECT_EQ(result.picture.step, 1);
  std::size_t items = 0;
  for (const auto& unit : result.picture.units) items += unit.size();
  EXPECT_GT(items, 0U);
  const MachineCeilings ceilings{.read_bytes_per_second = 1e10, .f32_flops = 1e11, .bf16_flops = 0};
  const ReplaySummary summary = summarise(result, ceilings);
  EXPECT_GT(summary.roofline_fraction, 0);
  const std::string html = report_html(result, summary, ceilings, {});
  for (const char* outside : {"<script", "http://", "https://", "src=", "<link", "@import", "url("})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(Replay, PoolSizes) {
  EXPECT_EQ(parse_pool_size("64k").value, 65536);
  EXPECT_FALSE(parse_pool_size("100").in_bytes);
  EXPECT_EQ(parse_pool_size("2MiB").value, 2 << 20);
  EXPECT_TRUE(parse_pool_size("1GB").in_bytes);
  for (const char* bad : {"", "k", "-1", "0", "1.5k", "12 MB", "9999999999999999999", "1TB", "99999999999GiB"})
    EXPECT_THROW(parse_pool_size(bad), Error) << bad;
}

TEST(Replay, Percentiles) {
  EXPECT_EQ(percentiles({}).p99, 0);
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = percentiles(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.max, 100);
}

}  // namespace
}  // namespace girih::tools
