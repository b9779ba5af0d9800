// The replay on a CUDA device, against a fake driver (fake_cuda/fake_driver.h) that hands launches to the emulator: what it queues and when
// it waits, and that its checks see what the device did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/floor.cuh"
#include "emulator/emulator.h"
#include "fake_cuda/emulated.h"
#include "girih/error.h"
#include "rows/pipeline.cuh"
#include "tools/replay_engine.h"
#include "tools/replay_summary.h"

namespace girih::tools {
namespace {

// ---------------------------------------------------------------------------------------------------------------- the fake

constexpr int kQoHeads = 4, kKvHeads = 2, kDim = 32;

/// As the library generates them for causal attention of f32.
struct Causal : attention::PlainVariant {
  static constexpr bool kHasMask = true;
  struct MaskRow {
    i64 last;
  };
  static MaskRow mask_row(const Params&, const attention::RowVars& row) { return {i64{row.q_pos}}; }
  static bool mask(const Params&, const MaskRow& row, i64 kv_pos) { return kv_pos <= row.last; }
};
constexpr attention::Config floor_config(int tile_class, int tile_rows, int shared_bytes) {
  attention::Config config;
  config.head_dim_qk = config.head_dim_vo = kDim;
  config.group = kQoHeads / kKvHeads;
  config.q_type = config.k_type = config.v_type = config.o_type = attention::Type::f32;
  config.lse = attention::Lse::natural;
  config.tile_class = tile_class;
  config.tile_rows = tile_rows;
  config.kv_block = 32;
  config.shared_bytes = shared_bytes;
  return config;
}
void decode(abi::AttentionParams p) { attention::run_floor<floor_config(0, 8, 14976), Causal>(p); }
void prefill(abi::AttentionParams p) { attention::run_floor<floor_config(1, 32, 28032), Causal>(p); }

void append_f32(abi::RowsParams p) {
  constexpr abi::PartConfig kPart{.x = abi::Elem::f32,
                                  .weight = abi::Elem::f32,
                                  .out = abi::Elem::f32,
                                  .dim = kDim,
                                  .threads = kDim / 4,
                                  .heads = kKvHeads,
                                  .aligned = true,
                                  .paged = true,
                                  .listed = true};
  rows::run<rows::Parts{kPart, 2}>(p);
}

std::vector<std::string>& launches() {
  static std::vector<std::string> names;
  return names;
}
bool skip_attention = false;  // a device that does not do what it is told

void* prepare(const fake_cuda::LaunchCall& call) {
  const std::string name = call.name;
  launches().push_back(name);
  if (name.starts_with("rows_f32_f32_2h_listed")) return fake_cuda::keep(fake_cuda::emulate(call, append_f32));
  const bool is_decode = name.ends_with("_floor_decode");
  EXPECT_TRUE(is_decode || name.ends_with("_floor_prefill")) << name;
  return fake_cuda::keep(skip_attention ? fake_cuda::Prepared([] {}) : fake_cuda::emulate(call, is_decode ? decode : prefill));
}

class ReplayOnDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fake_cuda::set_emulated_hooks(prepare);
    JitOptions jit;
    jit.cache_dir = "";
    context_ = std::make_unique<Context>(ContextOptions{.device = {DeviceKind::cuda, 0}, .jit = jit});
  }
  static void TearDownTestSuite() { context_.reset(); }
  void SetUp() override {
    launches().clear();
    skip_attention = false;
  }

  static ReplayOptions options() {
    ReplayOptions options{.model = {.name = "small", .note = ""}};
    options.model.num_qo_heads = kQoHeads;
    options.model.num_kv_heads = kKvHeads;
    options.model.head_dim_qk = options.model.head_dim_vo = kDim;
    options.kv_dtype = DType::f32;
    options.token_budget = 64;
    options.max_batch = 4;
    options.sharing = false;
    options.num_layers = 3;
    return options;
  }
  static Trace trace() {
    return {.source = "test",
            .format = "test",
            .requests = {{.input_length = 70, .output_length = 4}, {.input_length = 9, .output_length = 6}}};
  }

  static inline std::unique_ptr<Context> context_;
};

TEST_F(ReplayOnDevice, ChecksWhatEveryLayerComputed) {
  ReplayOptions o = options();
  o.verify = 40;
  const ReplayResult result = replay(*context_, trace(), o);
  EXPECT_EQ(result.finished_requests, 2);
  EXPECT_EQ(result.verify.checked, 40);
  EXPECT_TRUE(result.verify.passed()) << result.verify.worst << " " << result.verify.max_ratio << " " << result.verify.max_stored_ratio;
  skip_attention = true;
  EXPECT_EQ(replay(*context_, trace(), o).verify.failed, 40) << "outputs are NaN before a layer that is checked";
}

TEST_F(ReplayOnDevice, DigestsAreThoseOfTheCpu) {
  ReplayOptions o = options();
  o.digests = true;
  const ReplayResult device = replay(*context_, trace(), o);
  const ReplayResult host = replay(Context({.num_workers = 1}), trace(), o);
  ASSERT_EQ(device.digests.size(), 2U);
  EXPECT_EQ(device.settings, host.settings);
  for (const auto& [request, digest] : host.digests) {
    const Digest& other = device.digests.at(request);
    EXPECT_NEAR(digest.sum, other.sum, 1e-5 * std::sqrt(digest.squares));
  }
}

// One layer more is two or three launches a step (append, a kernel for each class of tiles), and no wait.
TEST_F(ReplayOnDevice, LayersAreQueuedWithoutWaiting) {
  ReplayOptions o = options();
  std::vector<std::int64_t> waits, appends;
  std::size_t steps = 0;
  for (int layers : {2, 5}) {
    o.num_layers = layers;
    launches().clear();
    const std::int64_t before = fake_cuda::count("fake_cuda_num_waits");
    const ReplayResult result = replay(*context_, trace(), o);
    waits.push_back(fake_cuda::count("fake_cuda_num_waits") - before);
    appends.push_back(
        std::count_if(launches().begin(), launches().end(), [](const std::string& name) { return name.starts_with("rows"); }));
    steps = result.steps.size();
    for (const StepRecord& step : result.steps) {
      EXPECT_GT(step.queue_seconds, 0);
      EXPECT_GE(step.kernel_seconds, 0);
    }
    EXPECT_EQ(result.pool_bytes, result.kv_token_bytes * result.num_pages * o.page_size * layers);
    EXPECT_NE(summary_text(result, summarise(result, {}), {}).find("the host queues them in"), std::string::npos);
  }
  EXPECT_EQ(appends[0], 1 + 2 * std::int64_t(steps));  // the warm-up's, then one a layer and step
  EXPECT_EQ(appends[1], 1 + 5 * std::int64_t(steps));
  EXPECT_EQ(waits[0], waits[1]);
}

TEST_F(ReplayOnDevice, PoolsThatDoNotFitAreRefusedByWhatToChange) {
  ReplayOptions o = options();
  o.pool_tokens = std::int64_t{1} << 26;  // 8 GiB a plane; the fake device gives out 4 GiB at once
  try {
    replay(*context_, trace(), o);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("--layers"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace girih::tools
