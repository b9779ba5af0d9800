// The sampling operators on the GPU against the CPU backend on the same data: the same tokens and bits; logarithms to their rounding.
#include <cmath>
#include <random>

#include "base/numeric.h"
#include "device.h"
#include "girih/sampling.h"
#include "sampling/sampling_cuda.h"

namespace girih::cuda_test {
namespace {

const Context& cpu() {
  static const Context context(ContextOptions{.device = {}, .num_workers = 0});
  return context;
}

/// Compiles what these tests launch over all CPUs: one after another, as calls come, they would take most of a minute.
void warm_up() {
  using sampling::KernelKind;
  using sampling::SampleTraits;
  static const bool done = [] {
    cuda::Runtime& runtime = gpu().context->cuda();
    const std::int64_t limit = runtime.device->info().shared_per_block;
    std::vector<jit::KernelSource> sources;
    const auto add = [&](KernelKind kind, DType type, const SampleTraits& traits = {}) {
      const sampling::SamplingKernel kernel = sampling::sampling_kernel(kind, type, limit, traits);
      sources.push_back({.name = kernel.name, .source = kernel.source, .target = ""});
      if (traits.few || sampling::resident_shape(runtime.device->info(), kind, type, traits, 1, 1000).cluster == 0) return;
      const sampling::SamplingKernel resident = sampling::resident_kernel(kind, type, traits);
      sources.push_back({.name = resident.name, .source = resident.source, .target = ""});
    };
    for (const bool top_k : {false, true}) {
      for (const bool top_p : {false, true}) {
        add(KernelKind::sample, DType::f16, {.top_k = top_k, .top_p = top_p, .first = true});
        add(KernelKind::sample, DType::bf16, {.probs = true, .top_k = top_k, .top_p = top_p});
        for (const bool first : {false, true}) {
          add(KernelKind::sample, DType::bf16, {.top_k = top_k, .top_p = top_p, .first = first});
          add(KernelKind::sample, DType::f32, {.top_k = top_k, .top_p = top_p, .first = first});
          add(KernelKind::sample, DType::f32, {.probs = true, .top_k = top_k, .top_p = top_p, .first = first});
        }
      }
    }
    for (const DType type : {DType::f32, DType::bf16}) {
      add(KernelKind::top_k, type);
      for (const bool masked : {false, true}) add(KernelKind::sample, type, {.edits = true, .masked = masked, .top_p = true});
    }
    for (const KernelKind kind : {KernelKind::softmax, KernelKind::top_p_renorm, KernelKind::top_k_renorm, KernelKind::speculative})
      add(kind, DType::f32);
    add(KernelKind::top_k_mask, DType::bf16);
    for (const SampleTraits& t : {SampleTraits{.probs = true, .top_p = true, .few = true}, SampleTraits{.top_p = true, .few = true},
                                  SampleTraits{.edits = true, .top_p = true, .few = true}})
      add(KernelKind::sample, DType::f32, t);
    runtime.jit->warmup(sources);
    return true;
  }();
  (void)done;
}

constexpr std::int64_t kKinds = 8;

/// Rows of every kind that has a way of its own: two plain, all equal, two values, one peak, a heavy tail, mostly -inf, NaN and infinities.
std::vector<float> odd_values(std::int64_t rows, std::int64_t vocab, std::uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(rows * vocab));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < vocab; ++i) {
      const float n = normal(random);
      float& v = x[static_cast<std::size_t>(r * vocab + i)];
      switch (r % kKinds) {
        case 2: v = 0.5F; break;
        case 3: v = n > 0.4F ? 1.0F : -1.0F; break;
        case 4: v = i == vocab / 2 ? 20.0F : n; break;
        case 5: v = std::exp(3 * n); break;
        case 6: v = n > 2.3F ? n : -INFINITY; break;
        case 7: v = n > 2.0F ? NAN : n < -3.2F ? INFINITY : n; break;
        default: v = 2 * n;
      }
    }
  }
  return x;
}
void make_probs(std::vector<float>& x, std::int64_t vocab) {
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(vocab)) {
    double sum = 0;
    for (std::int64_t i = 0; i < vocab; ++i) {
      float& v = x[begin + static_cast<std::size_t>(i)];
      v = std::isnan(v) ? 0.0F : std::exp(std::min(v, 30.0F) - 20);
      sum += static_cast<double>(v);
    }
    for (std::int64_t i = 0; i < vocab; ++i) x[begin + static_cast<std::size_t>(i)] /= static_cast<float>(sum);
  }
}

/// Dense rows of a type, here and on the device.
struct Tensor {
  std::vector<std::byte> data;
  TensorView host, device;
  Tensor(DeviceMemory& memory, const std::vector<float>& x, DType type, std::int64_t rows, std::int64_t vocab)
      : data(static_cast<std::size_t>(bytes(type, rows * vocab))) {
    for (std::int64_t i = 0; i < rows * vocab; ++i) store_element(type, data.data(), i, x[static_cast<std::size_t>(i)]);
    host = TensorView(data.data(), type, {rows, vocab});
    device = host;
    device.device = gpu().context->device();
    device.data = memory.add(data.data(), std::ssize(data));
  }
};
template <typename T>
struct Array {
  std::vector<T> values;
  DType type;
  explicit Array(std::vector<T> v)
      : values(std::move(v)),
        type(std::is_same_v<T, float> ? DType::f32
             : sizeof(T) == 8         ? DType::i64
             : sizeof(T) == 4         ? DType::i32
                                      : DType::u8) {}
  TensorView host() { return TensorView(values.data(), type, {std::ssize(values)}); }
  TensorView device(DeviceMemory& memory) {
    TensorView t = host();
    t.device = gpu().context->device();
    t.data = memory.add(values.data(), std::ssize(values) * static_cast<std::int64_t>(sizeof(T)));
    return t;
  }
  void fetch(DeviceMemory& memory) { memory.fetch(values.data(), std::ssize(values) * static_cast<std::int64_t>(sizeof(T))); }
};
TensorView columns(const TensorView& t, std::int64_t n) { return TensorView(t.data, t.dtype, {t.shape[0] / n, n}, t.device); }

bool near(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= 3e-6F * (1 + std::fabs(b)); }

struct Filters {
  std::int64_t top_k;
  float top_p, min_p;
  bool joint;
};
constexpr Filters kFilters[] = {{0, 1, 0, false},    {1, 1, 0, false},          {50, 1, 0, false},   {20000, 1, 0, false},
                                {0, 0.9F, 0, false}, {0, 0.3F, 0, false},       {0, 1, 0.1F, false}, {40, 0.8F, 0, false},
                                {40, 0.8F, 0, true}, {20000, 0.6F, 0.2F, true}, {0, 0, 0, false}};

void check_sample(std::int64_t rows, std::int64_t vocab, DType type, bool probs, bool with_logprobs) {
  std::vector<float> x = odd_values(rows, vocab, static_cast<std::uint64_t>(vocab));
  if (probs) make_probs(x, vocab);
  DeviceMemory memory;
  Tensor input(memory, x, type, rows, vocab);
  std::int64_t step = 0;
  for (const Filters& f : kFilters) {
    SCOPED_TRACE(fmt::format("{} x {} {} {} k {} p {} min_p {} joint {}", rows, vocab, name(type), probs ? "probs" : "logits", f.top_k,
                             f.top_p, f.min_p, f.joint));
    const auto n = static_cast<std::size_t>(rows);
    Array<std::int32_t> want{std::vector<std::int32_t>(n, -7)}, got = want, want_top{std::vector<std::int32_t>(n * 7)}, got_top = want_top;
    Array<float> want_log{std::vector<float>(n)}, got_log = want_log, want_logs{std::vector<float>(n * 7)}, got_logs = want_logs;
    Array<std::uint8_t> want_valid{std::vector<std::uint8_t>(n, 9)}, got_valid = want_valid;
    DeviceMemory results;
    SampleArgs args;
    args.kind = probs ? SampleInput::probs : SampleInput::logits;
    args.top_k = f.top_k;
    args.top_p = f.top_p;
    args.min_p = f.min_p;
    args.order = f.joint ? FilterOrder::joint : FilterOrder::top_k_first;
    args.temperature = probs ? 1.0F : 0.8F;
    args.random = {.seed = 5, .offset = step++};
    args.input = input.host;
    args.tokens = want.host();
    args.valid = want_valid.host();
    if (with_logprobs) {
      args.logprobs = want_log.host();
      args.top_tokens = columns(want_top.host(), 7);
      args.top_logprobs = columns(want_logs.host(), 7);
    }
    sample(cpu(), args);
    args.input = input.device;
    args.tokens = got.device(results);
    args.valid = got_valid.device(results);
    if (with_logprobs) {
      args.logprobs = got_log.device(results);
      args.top_tokens = columns(got_top.device(results), 7);
      args.top_logprobs = columns(got_logs.device(results), 7);
    }
    sample(*gpu().context, args);
    got.fetch(results);
    got_valid.fetch(results);
    ASSERT_EQ(want_valid.values, got_valid.values);
    ASSERT_EQ(want.values, got.values);
    if (!with_logprobs) continue;
    got_log.fetch(results);
    got_top.fetch(results);
    got_logs.fetch(results);
    ASSERT_EQ(want_top.values, got_top.values);
    for (std::size_t i = 0; i < n; ++i)
      ASSERT_TRUE(near(want_log.values[i], got_log.values[i])) << want_log.values[i] << " " << got_log.values[i];
    for (std::size_t i = 0; i < n * 7; ++i)
      ASSERT_TRUE(near(want_logs.values[i], got_logs.values[i])) << want_logs.values[i] << " " << got_logs.values[i];
  }
}

TEST(SamplingCuda, TokensAreTheCpus) {
  GIRIH_NEEDS_GPU();
  warm_up();
  check_sample(17, 1, DType::f32, false, true);
  check_sample(17, 333, DType::f16, false, true);
  check_sample(1, 128256, DType::f32, false, false);
  check_sample(8, 128256, DType::bf16, false, true);
  check_sample(24, 50257, DType::f32, true, false);
  check_sample(160, 32003, DType::bf16, true, false);
  check_sample(8, 200000, DType::f32, true, true);
  check_sample(8, 1000000, DType::bf16, false, false);
}

TEST(SamplingCuda, BiasPenaltiesAndMask) {
  GIRIH_NEEDS_GPU();
  warm_up();
  constexpr std::int64_t kRows = 12, kVocab = 151936;
  for (const DType type : {DType::f32, DType::bf16}) {
    DeviceMemory memory;
    Tensor input(memory, odd_values(kRows, kVocab, 3), type, kRows, kVocab);
    std::mt19937_64 random(4);
    Array<std::int32_t> indptr({0}), tokens({}), counts({}), bias_indptr({0}), bias_tokens({}),
        allowed{std::vector<std::int32_t>(kRows * kVocab / 32)};
    Array<float> bias({}), penalty({});
    for (std::int32_t& word : allowed.values) word = static_cast<std::int32_t>(random() | random());
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t i = 0; i < r * 400; ++i) {
        tokens.values.push_back(static_cast<std::int32_t>(i * 31 % kVocab));
        counts.values.push_back(static_cast<std::int32_t>(random() % 5));
      }
      for (std::int64_t i = 0; i < r * 20; ++i) {
        bias_tokens.values.push_back(static_cast<std::int32_t>(i * 101 % kVocab));
        bias.values.push_back(static_cast<float>(random() % 100) / 20);
      }
      indptr.values.push_back(static_cast<std::int32_t>(tokens.values.size()));
      bias_indptr.values.push_back(static_cast<std::int32_t>(bias.values.size()));
      penalty.values.push_back(1 + 0.05F * static_cast<float>(r));
    }
    for (const bool masked : {false, true}) {
      Array<std::int32_t> want{std::vector<std::int32_t>(kRows, -7)}, got = want;
      SampleArgs args;
      args.top_p = 0.95F;
      args.temperature = 0.9F;
      args.frequency_penalty = 0.2F;
      args.presence_penalty = 0.1F;
      args.random.seed = 77;
      args.input = input.host;
      args.bias_tokens = {bias_indptr.host(), bias_tokens.host()};
      args.bias = bias.host();
      args.history = {indptr.host(), tokens.host()};
      args.history_counts = counts.host();
      args.repetition_penalty = penalty.host();
      if (masked) args.allowed = columns(allowed.host(), kVocab / 32);
      args.tokens = want.host();
      sample(cpu(), args);
      args.input = input.device;
      args.bias_tokens = {bias_indptr.device(memory), bias_tokens.device(memory)};
      args.bias = bias.device(memory);
      args.history = {indptr.device(memory), tokens.device(memory)};
      args.history_counts = counts.device(memory);
      args.repetition_penalty = penalty.device(memory);
      if (masked) args.allowed = columns(allowed.device(memory), kVocab / 32);
      args.tokens = got.device(memory);
      sample(*gpu().context, args);
      got.fetch(memory);
      EXPECT_EQ(want.values, got.values) << name(type) << " masked " << masked;
    }
  }
}

TEST(SamplingCuda, RowsForRowsAreTheCpusBits) {
  GIRIH_NEEDS_GPU();
  warm_up();
  for (const std::int64_t vocab : {37, 32000, 128256}) {
    for (const std::int64_t rows : {2, 24}) {
      std::vector<float> x = odd_values(rows, vocab, 9);
      std::vector<float> y = x;
      make_probs(y, vocab);
      DeviceMemory memory;
      Tensor logits(memory, x, DType::f32, rows, vocab), halves(memory, x, DType::bf16, rows, vocab),
          probs(memory, y, DType::f32, rows, vocab);
      const std::vector<float> nothing(x.size());
      Tensor want(memory, nothing, DType::f32, rows, vocab), got(memory, nothing, DType::f32, rows, vocab);
      Tensor want_half(memory, nothing, DType::bf16, rows, vocab), got_half(memory, nothing, DType::bf16, rows, vocab);
      const auto compare = [&](Tensor& a, Tensor& b, const char* what) {
        memory.fetch(b.data.data(), std::ssize(b.data));
        EXPECT_TRUE(a.data == b.data) << what << " " << rows << " x " << vocab;
      };
      softmax(cpu(), logits.host, 0.7F, want.host);
      softmax(*gpu().context, logits.device, 0.7F, got.device);
      compare(want, got, "softmax");
      top_p_renorm_probs(cpu(), probs.host, 0.8F, want.host);
      top_p_renorm_probs(*gpu().context, probs.device, 0.8F, got.device);
      compare(want, got, "top_p_renorm_probs");
      top_k_renorm_probs(cpu(), probs.host, 30, want.host);
      top_k_renorm_probs(*gpu().context, probs.device, 30, got.device);
      compare(want, got, "top_k_renorm_probs");
      top_k_mask_logits(cpu(), halves.host, 3000, want_half.host);
      top_k_mask_logits(*gpu().context, halves.device, 3000, got_half.device);
      compare(want_half, got_half, "top_k_mask_logits");
    }
  }
}

TEST(SamplingCuda, TopKIsTheCpus) {
  GIRIH_NEEDS_GPU();
  warm_up();
  for (const std::int64_t vocab : {900, 128256, 200000}) {
    for (const std::int64_t k : {1, 50, 2048, 4096}) {
      for (const bool sorted : {false, true}) {
        for (const DType type : {DType::f32, DType::bf16}) {
          const std::int64_t rows = vocab < 1000 ? 200 : 8;
          DeviceMemory memory;
          Tensor input(memory, odd_values(rows, vocab, 3), type, rows, vocab);
          const std::vector<float> nothing(static_cast<std::size_t>(rows * k));
          Tensor want_values(memory, nothing, type, rows, k), got_values(memory, nothing, type, rows, k);
          Array<std::int32_t> want{std::vector<std::int32_t>(nothing.size())}, got = want;
          TopKArgs args;
          args.k = k;
          args.sorted = sorted;
          args.input = input.host;
          args.values = want_values.host;
          args.indices = columns(want.host(), k);
          top_k(cpu(), args);
          args.input = input.device;
          args.values = got_values.device;
          args.indices = columns(got.device(memory), k);
          top_k(*gpu().context, args);
          got.fetch(memory);
          memory.fetch(got_values.data.data(), std::ssize(got_values.data));
          EXPECT_TRUE(want.values == got.values) << vocab << " k " << k << " sorted " << sorted << " " << name(type);
          EXPECT_TRUE(want_values.data == got_values.data) << vocab << " k " << k << " sorted " << sorted << " " << name(type);
        }
      }
    }
  }
}

TEST(SamplingCuda, SpeculativeChainsAreTheCpus) {
  GIRIH_NEEDS_GPU();
  warm_up();
  constexpr std::int64_t kBatch = 32, kN = 4, kVocab = 32000;
  std::vector<float> target = odd_values(kBatch * (kN + 1), kVocab, 1), draft = odd_values(kBatch * kN, kVocab, 2);
  make_probs(target, kVocab);
  make_probs(draft, kVocab);
  DeviceMemory memory;
  Tensor p(memory, target, DType::f32, kBatch * (kN + 1), kVocab), q(memory, draft, DType::f32, kBatch * kN, kVocab);
  Array<std::int32_t> tokens{std::vector<std::int32_t>(kBatch * kN)};
  for (std::size_t i = 0; i < tokens.values.size(); ++i) {  // where the target is large, so that some are accepted
    const auto row = target.begin() + static_cast<std::ptrdiff_t>((i / kN * (kN + 1) + i % kN) * kVocab);
    tokens.values[i] = static_cast<std::int32_t>(std::max_element(row, row + kVocab) - row);
  }
  const auto shaped = [](TensorView t, std::int64_t places) { return TensorView(t.data, t.dtype, {kBatch, places, kVocab}, t.device); };
  for (const int kind : {0, 1, 2}) {
    Array<std::int32_t> want{std::vector<std::int32_t>(kBatch * (kN + 1))}, got = want, want_accepted{std::vector<std::int32_t>(kBatch)},
                                                                            got_accepted = want_accepted;
    SpeculativeArgs args;
    args.greedy = kind == 2;
    args.random.seed = 12;
    if (kind == 0) args.draft_probs = shaped(q.host, kN);
    args.target_probs = shaped(p.host, kN + 1);
    args.draft_tokens = columns(tokens.host(), kN);
    args.tokens = columns(want.host(), kN + 1);
    args.accepted = want_accepted.host();
    chain_speculative_sample(cpu(), args);
    if (kind == 0) args.draft_probs = shaped(q.device, kN);
    args.target_probs = shaped(p.device, kN + 1);
    args.draft_tokens = columns(tokens.device(memory), kN);
    args.tokens = columns(got.device(memory), kN + 1);
    args.accepted = got_accepted.device(memory);
    chain_speculative_sample(*gpu().context, args);
    got.fetch(memory);
    got_accepted.fetch(memory);
    EXPECT_EQ(want.values, got.values) << kind;
    EXPECT_EQ(want_accepted.values, got_accepted.values) << kind;
  }
}

/// A captured call reads its parameters when it is replayed.
TEST(SamplingCuda, AGraphDrawsAnewAtEachOffset) {
  GIRIH_NEEDS_GPU();
  warm_up();
  constexpr std::int64_t kRows = 4, kVocab = 32000;
  const cuda::Driver& driver = gpu().driver();
  const cuda::CurrentDevice current(*gpu().context->cuda().device);
  DeviceMemory memory;
  Tensor input(memory, odd_values(kRows, kVocab, 6), DType::f32, kRows, kVocab);
  Array<std::int64_t> offset({0});
  Array<std::int32_t> got{std::vector<std::int32_t>(kRows)};
  SampleArgs args;
  args.input = input.device;
  args.random = {.seed = 3, .offset = offset.device(memory)};
  args.tokens = got.device(memory);
  cuda::Stream stream = driver.create_stream();
  args.stream = stream;
  sample(*gpu().context, args);
  driver.begin_capture(stream);
  sample(*gpu().context, args);
  const cuda::Graph graph = driver.end_capture(stream);
  const cuda::GraphExec exec = driver.instantiate(graph);
  driver.destroy_graph(graph);
  for (std::int64_t step = 0; step < 5; ++step) {
    driver.copy_to_device(reinterpret_cast<cuda::Pointer>(args.random.offset.rows.data), &step, 8, stream);
    driver.launch_graph(exec, stream);
    driver.synchronize(stream);
    got.fetch(memory);
    Array<std::int32_t> want{std::vector<std::int32_t>(kRows)};
    SampleArgs on_cpu;
    on_cpu.input = input.host;
    on_cpu.random = {.seed = 3, .offset = step};
    on_cpu.tokens = want.host();
    sample(cpu(), on_cpu);
    EXPECT_EQ(want.values, got.values) << step;
  }
  driver.destroy_graph_exec(exec);
  driver.destroy(stream);
}

}  // namespace
}  // namespace girih::cuda_test
