// The replay loop (replay_engine.h).
#include "tools/replay_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "abi/attention_plan.h"
#include "girih/error.h"
#include "girih/page.h"
#include "tools/replay_batch.h"
#include "tools/replay_device.h"
#include "tools/replay_kv.h"

namespace girih::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::invalid_argument, "replay: " + text); }

void require_at_least(std::int64_t value, std::int64_t low, const char* option) {
  if (value < low) refuse(fmt::format("{} {} must be at least {}", option, value, low));
}

/// The trace as it is replayed: the first `limit` requests, clipped.
std::vector<TraceRequest> select_requests(const Trace& trace, const ReplayOptions& options) {
  std::vector<TraceRequest> requests = trace.requests;
  if (options.limit > 0 && options.limit < std::ssize(requests)) requests.resize(options.limit);
  for (TraceRequest& request : requests) {
    if (options.max_input > 0) request.input_length = std::min(request.input_length, options.max_input);
    if (options.max_output > 0) request.output_length = std::min(request.output_length, options.max_output);
  }
  return requests;
}

/// Names what two runs must have in common for their results to be comparable. FNV-1a over the lengths and prefix ids.
std::string settings_of(std::span<const TraceRequest> requests, const ReplayOptions& options) {
  std::uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&hash](std::int64_t value) { hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001B3; };
  for (const TraceRequest& request : requests) {
    add(request.input_length);
    add(request.output_length);
    for (std::int64_t id : request.hash_ids) add(id);
  }
  return fmt::format("model={} kv={} layers={} seed={} requests={:016x}", options.model.name, name(options.kv_dtype), options.num_layers,
                     options.seed, hash);
}

class Replayer {
 public:
  Replayer(const Context& context, const Trace& trace, const ReplayOptions& options, const ReplayHooks& hooks);
  ReplayResult run();

 private:
  /// Layers with the same window share a schedule, and in each step a plan.
  struct Kind {
    std::int64_t window;
    Schedule schedule;
    Plan plan;
  };

  bool step();
  void wait_for_arrival() const;
  void fill_keys();
  void fill_queries();
  void put_rows();
  void begin_layers();
  std::int64_t num_yielding() const;
  void run_layers(StepRecord& record, std::vector<VerifySample>& samples);
  void run_layers_on_device(StepRecord& record, std::vector<VerifySample>& samples);
  AttentionArgs attention_args(int layer);
  void attend(int layer);
  bool is_checked(int layer, const std::vector<VerifySample>& samples) const;
  TensorView key_rows() const;
  TensorView value_rows() const;
  TensorView query_rows() const;
  TensorView output_rows() const;
  TensorView lse_rows() const;
  std::vector<VerifySample> choose_samples();
  const LayerPool& host_pool(int layer) const { return pools_[device_ ? 0 : static_cast<std::size_t>(layer)]; }
  void check_layer(int layer, std::vector<VerifySample>& samples);
  void account(StepRecord& record);
  void keep_picture(const StepRecord& record);
  void finish_step(const StepRecord& record);
  bool cascade() const { return options_.sharing && !options_.batch_invariant; }
  bool stopped() const { return hooks_.stop != nullptr && hooks_.stop->load(); }
  std::int64_t row_bytes(int heads, int dim) const { return bytes(rows_.dtype(), static_cast<std::int64_t>(heads) * dim); }

  const Context& context_;
  const ReplayOptions options_;
  const ReplayHooks& hooks_;
  ReplayResult result_;
  RandomRows rows_;
  std::vector<float> sinks_;
  std::vector<Kind> kinds_;
  AttentionSpec spec_;  // of the first kind: shapes and types are those of all
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<LayerPool> pools_;           // a layer's each; where there is a device_, one: the layer's that was fetched last
  std::unique_ptr<ReplayDevice> device_;   // where the context is on a GPU
  std::unique_ptr<LayerOperators> layer_;  // of full steps
  std::unique_ptr<Verifier> verifier_;
  std::unique_ptr<DigestTable> digests_;
  Buffer q_, o_, lse_, k_, v_, workspace_;
  StepBatch batch_;
  std::span<const StepEntry> entries_;
  std::vector<SegmentData> segment_data_;
  std::mt19937_64 random_;
  std::int64_t total_tokens_ = 0;
  std::int64_t computed_tokens_ = 0;
  double clock_ = 0;  // seconds of attention so far
  double longest_ = -1;
  Clock::time_point start_;
};

Replayer::Replayer(const Context& context, const Trace& trace, const ReplayOptions& options, const ReplayHooks& hooks)
    : context_(context),
      options_(options),
      hooks_(hooks),
      rows_(model_spec(options.model, 0, options.kv_dtype).q_dtype, options.seed),
      random_(options.seed) {
  require_at_least(options.num_layers, 1, "--layers");
  require_at_least(options.page_size, 1, "--page-size");
  require_at_least(options.verify, 0, "--verify");
  result_.source = trace.source;
  result_.format = trace.format;
  result_.backend = context.device().kind == DeviceKind::cuda ? "cuda" : "cpu";
  result_.options = options;
  result_.requests = select_requests(trace, options);
  if (result_.requests.empty()) refuse("the trace has no requests");
  result_.num_pages = choose_pages(result_.requests, options);
  result_.settings = settings_of(result_.requests, options);
  scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{.token_budget = options.token_budget,
                                                            .max_batch = options.max_batch,
                                                            .num_pages = result_.num_pages,
                                                            .page_size = options.page_size,
                                                            .sharing = options.sharing},
                                           result_.requests);
  AttentionLimits limits{.max_tokens = options.token_budget, .max_requests = options.max_batch};
  limits.max_segments = cascade() ? kMaxSharedLevels + 1 : 1;
  for (const TraceRequest& request : result_.requests) {
    total_tokens_ += kv_tokens(request);
    limits.max_kv_len = std::max(limits.max_kv_len, kv_tokens(request));
  }
  for (std::int64_t window : layer_windows(options.model, options.num_layers)) {
    AttentionSpec spec = model_spec(options.model, window, options.kv_dtype);
    spec.batch_invariant = options.batch_invariant;
    Schedule schedule = girih::schedule(context, spec, limits);
    Plan plan(schedule);
    result_.workspace_bytes = std::max(result_.workspace_bytes, schedule.workspace_bytes());
    kinds_.push_back({window, std::move(schedule), std::move(plan)});
  }
  spec_ = kinds_.front().schedule.spec();
  result_.schedule_key = kinds_.front().schedule.key();
  result_.num_units = kinds_.front().schedule.num_units();
  result_.kv_token_bytes = kv_bytes_per_token(spec_);
  result_.pool_bytes = result_.kv_token_bytes * result_.num_pages * options.page_size * options.num_layers;
  const bool on_gpu = context.device().kind == DeviceKind::cuda;
  const int num_host_pools = on_gpu ? 1 : options.num_layers;
  for (int i = 0; i < num_host_pools; ++i) pools_.emplace_back(spec_, result_.num_pages, options.page_size);
  if (options.model.sinks) {
    for (int head = 0; head < spec_.num_qo_heads; ++head) sinks_.push_back(static_cast<float>(random_() >> 40) * 0x1.0p-23F - 1.0F);
  }
  const std::int64_t tokens = options.token_budget;
  q_ = Buffer(tokens * row_bytes(spec_.num_qo_heads, spec_.head_dim_qk));
  o_ = Buffer(tokens * row_bytes(spec_.num_qo_heads, spec_.head_dim_vo));
  lse_ = Buffer(tokens * spec_.num_qo_heads * static_cast<std::int64_t>(sizeof(float)));
  k_ = Buffer(tokens * row_bytes(spec_.num_kv_heads, spec_.head_dim_qk));
  v_ = Buffer(tokens * row_bytes(spec_.num_kv_heads, spec_.head_dim_vo));
  workspace_ = Buffer(result_.workspace_bytes);
  if (on_gpu) {
    try {
      device_ = std::make_unique<ReplayDevice>(context, pools_.front(), options.num_layers, result_.workspace_bytes, sinks_);
    } catch (const Error& error) {
      if (error.code() != Code::out_of_memory) throw;
      throw Error(Code::out_of_memory, fmt::format("replay: pools of {} layers take {} bytes on the device ({}); give fewer --layers or a "
                                                   "smaller --kv-pool",
                                                   options.num_layers, result_.pool_bytes, error.what()));
    }
    for (const Kind& kind : kinds_) device_->add_plan(kind.schedule);
    const TensorView k(k_.data(), rows_.dtype(), {1, spec_.num_kv_heads, spec_.head_dim_qk});
    const TensorView v(v_.data(), rows_.dtype(), {1, spec_.num_kv_heads, spec_.head_dim_vo});
    device_->warm_up(k, spec_.v_is_k ? TensorView() : v);
  }
  if (options.full_step) {
    layer_ = std::make_unique<LayerOperators>(context, result_.options.model, rows_.dtype(), tokens, options.max_batch, limits.max_kv_len,
                                              options.seed);
  }
  verifier_ = std::make_unique<Verifier>(result_.options.model, rows_, sinks_, options.page_size, options.verify);
  if (options.digests) {
    digests_ = std::make_unique<DigestTable>(static_cast<std::int64_t>(spec_.num_qo_heads) * spec_.head_dim_vo, spec_.o_dtype);
  }
}

void Replayer::wait_for_arrival() const {
  // In slices, so that an interrupt is noticed.
  const double left = scheduler_->next_arrival() - seconds_since(start_);
  std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(left, 0.0, 0.05)));
}

void Replayer::fill_keys() {
  const std::int64_t k_bytes = row_bytes(1, spec_.head_dim_qk);
  const std::int64_t v_bytes = row_bytes(1, spec_.head_dim_vo);
  std::byte* k = k_.data();
  std::byte* v = v_.data();
  for (const StepEntry& entry : entries_) {
    for (std::int64_t position = entry.begin; position < entry.kv_len(); ++position) {
      for (int head = 0; head < spec_.num_kv_heads; ++head, k += k_bytes) {
        std::memcpy(k, rows_.row(RowKind::key, *entry.running, position, head), k_bytes);
        if (spec_.v_is_k) continue;
        std::memcpy(v, rows_.row(RowKind::value, *entry.running, position, head), v_bytes);
        v += v_bytes;
      }
    }
  }
}

void Replayer::fill_queries() {
  const std::int64_t q_bytes = row_bytes(1, spec_.head_dim_qk);
  std::byte* q = q_.data();
  for (const StepEntry& entry : entries_) {
    for (std::int64_t position = entry.begin; position < entry.kv_len(); ++position) {
      for (int head = 0; head < spec_.num_qo_heads; ++head, q += q_bytes) {
        std::memcpy(q, rows_.row(RowKind::query, *entry.running, position, head), q_bytes);
      }
    }
  }
}

/// To the GPU, with the tables that say where things are.
void Replayer::put_rows() {
  device_->put(key_rows());
  device_->put(value_rows());
  device_->put(query_rows());
  device_->twin(output_rows());  // memory for the results, before time counts
  device_->twin(lse_rows());
  std::vector<std::span<const std::int32_t>> tables;
  for (std::int64_t i = 0; i < batch_.num_segments(); ++i) tables.push_back(batch_.segment_indices(i));
  std::vector<std::int32_t> slots;
  for (const StepEntry& entry : entries_) {
    for (std::int64_t position = entry.begin; position < entry.kv_len(); ++position) {
      const std::int64_t page = entry.running->pages[static_cast<std::size_t>(position / options_.page_size)];
      slots.push_back(static_cast<std::int32_t>(page * options_.page_size + position % options_.page_size));
    }
  }
  device_->set_tables(tables, slots);
}

TensorView Replayer::key_rows() const {
  return TensorView(k_.data(), rows_.dtype(), {batch_.num_tokens(), spec_.num_kv_heads, spec_.head_dim_qk});
}
TensorView Replayer::value_rows() const {
  if (spec_.v_is_k) return {};
  return TensorView(v_.data(), rows_.dtype(), {batch_.num_tokens(), spec_.num_kv_heads, spec_.head_dim_vo});
}
TensorView Replayer::query_rows() const {
  return TensorView(q_.data(), spec_.q_dtype, {batch_.num_tokens(), spec_.num_qo_heads, spec_.head_dim_qk});
}
TensorView Replayer::output_rows() const {
  return TensorView(o_.data(), spec_.o_dtype, {batch_.num_tokens(), spec_.num_qo_heads, spec_.head_dim_vo});
}
TensorView Replayer::lse_rows() const { return TensorView(lse_.data(), DType::f32, {batch_.num_tokens(), spec_.num_qo_heads}); }

/// Gives the operators beside attention the step's positions.
void Replayer::begin_layers() {
  std::vector<std::int32_t> positions;
  for (const StepEntry& entry : entries_)
    for (std::int64_t position = entry.begin; position < entry.kv_len(); ++position)
      positions.push_back(static_cast<std::int32_t>(position));
  layer_->begin_step(positions);
}

std::int64_t Replayer::num_yielding() const {
  return std::count_if(entries_.begin(), entries_.end(), [](const StepEntry& entry) { return entry.yields_token(); });
}

AttentionArgs Replayer::attention_args(int layer) {
  segment_data_.clear();
  for (std::int64_t i = 0; i < batch_.num_segments(); ++i) {
    segment_data_.push_back({.store = host_pool(layer).store(), .kv_indices = batch_.segment_indices(i)});
  }
  AttentionArgs args;
  args.q = query_rows();
  args.o = output_rows();
  args.lse = lse_rows();
  args.segments = segment_data_;
  return args;
}

void Replayer::attend(int layer) {
  const Kind& kind = kinds_[layer % kinds_.size()];
  AttentionArgs args = attention_args(layer);
  args.workspace = workspace_.span();
  ParamValue sinks{.name = "sinks"};
  sinks.array = TensorView(sinks_.data(), DType::f32, {std::ssize(sinks_)});
  if (!sinks_.empty()) args.params = {&sinks, 1};
  girih::run(context_, kind.schedule, kind.plan, args);
}

/// As many samples as this step's share of all tokens: at the end of the trace exactly the number asked for.
std::vector<VerifySample> Replayer::choose_samples() {
  const std::int64_t done = computed_tokens_ + batch_.num_tokens() + scheduler_->shared_tokens();
  const auto target = static_cast<std::int64_t>(static_cast<__int128>(options_.verify) * done / total_tokens_);
  std::vector<VerifySample> samples;
  for (std::int64_t i = verifier_->result().checked; i < target; ++i) {
    const auto row = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(batch_.num_tokens()));
    std::int64_t entry = 0;
    while (batch_.row(entry + 1) <= row) ++entry;
    VerifySample sample{.step = std::ssize(result_.steps), .entry = &entries_[entry]};
    sample.position = entries_[entry].begin + row - batch_.row(entry);
    sample.layer = static_cast<int>(random_() % static_cast<std::uint64_t>(options_.num_layers));
    sample.head = static_cast<int>(random_() % static_cast<std::uint64_t>(spec_.num_qo_heads));
    const std::int64_t head_row = row * spec_.num_qo_heads + sample.head;
    sample.q = q_.data() + head_row * row_bytes(1, spec_.head_dim_qk);
    sample.o = o_.data() + head_row * row_bytes(1, spec_.head_dim_vo);
    samples.push_back(sample);
  }
  return samples;
}

bool Replayer::is_checked(int layer, const std::vector<VerifySample>& samples) const {
  return digests_ || std::any_of(samples.begin(), samples.end(), [layer](const VerifySample& s) { return s.layer == layer; });
}

void Replayer::check_layer(int layer, std::vector<VerifySample>& samples) {
  if (!is_checked(layer, samples)) return;
  const Kind& kind = kinds_[layer % kinds_.size()];
  if (device_) {
    device_->fetch(output_rows());
    device_->fetch(lse_rows());
    device_->fetch_pool(layer, pools_.front());
  }
  for (VerifySample& sample : samples) {
    if (sample.layer != layer) continue;
    const std::int64_t head_row = (static_cast<const std::byte*>(sample.o) - o_.data()) / row_bytes(1, spec_.head_dim_vo);
    std::memcpy(&sample.lse, lse_.data() + head_row * static_cast<std::int64_t>(sizeof(float)), sizeof(float));
    verifier_->check(sample, spec_, kind.window, host_pool(layer));
  }
  if (!digests_) return;
  const std::byte* o = o_.data();
  for (const StepEntry& entry : entries_) {
    for (std::int64_t position = entry.begin; position < entry.kv_len();
         ++position, o += row_bytes(spec_.num_qo_heads, spec_.head_dim_vo)) {
      if (DigestTable::counts(*entry.running->request, position)) digests_->add(entry.running->index, position, layer, o);
    }
  }
}

void Replayer::account(StepRecord& record) {
  for (const StepEntry& entry : entries_) {
    (entry.decode() ? record.decode_requests : record.prefill_requests) += 1;
    (entry.decode() ? record.decode_tokens : record.prefill_tokens) += entry.count;
    record.logical_kv_tokens += entry.kv_len();
  }
  record.segments = batch_.num_segments();
  record.pool_pages = scheduler_->pool().used();
  const double io_bytes = static_cast<double>(batch_.num_tokens()) * static_cast<double>(row_bytes(spec_.num_qo_heads, spec_.head_dim_qk) +
                                                                                         row_bytes(spec_.num_qo_heads, spec_.head_dim_vo));
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    const Kind& kind = kinds_[layer % kinds_.size()];
    const std::int64_t read = batch_.grouped_keys(kind.window);
    record.flat_keys += batch_.flat_keys(kind.window);
    record.read_keys += read;
    record.bytes += static_cast<double>(read) * static_cast<double>(result_.kv_token_bytes) + io_bytes;
    record.flops +=
        2.0 * static_cast<double>(batch_.visible_pairs(kind.window)) * spec_.num_qo_heads * (spec_.head_dim_qk + spec_.head_dim_vo);
  }
  for (const Kind& kind : kinds_) {
    const auto lists = list_balances(kind.schedule.state(), kind.plan.state().view);
    for (std::size_t c = 0; c < lists.size(); ++c) {
      record.balance[c].num_units = result_.list_units[c] = lists[c].num_units;
      record.balance[c].empty &= lists[c].empty;
      record.balance[c].largest = std::max(record.balance[c].largest, lists[c].largest);
    }
  }
}

void Replayer::keep_picture(const StepRecord& record) {
  const std::int64_t step = std::ssize(result_.steps);
  const bool wanted = options_.picture_step >= 0 ? step == options_.picture_step : record.run_seconds > longest_;
  if (!wanted) return;
  longest_ = record.run_seconds;
  WorkPicture picture{.step = step, .units = {}};
  const std::span<const std::byte> blob = kinds_.front().plan.blob();
  abi::PlanHeader header;
  std::memcpy(&header, blob.data(), sizeof(header));
  for (std::int64_t unit = 0; unit < header.num_units; ++unit) {
    std::int32_t range[2];
    std::memcpy(range, blob.data() + header.unit_begin.offset + unit * static_cast<std::int64_t>(sizeof(std::int32_t)), sizeof(range));
    std::vector<WorkPicture::Piece>& pieces = picture.units.emplace_back();
    for (std::int64_t i = range[0]; i < range[1]; ++i) {
      abi::WorkItem item;
      std::memcpy(&item, blob.data() + header.items.offset + i * static_cast<std::int64_t>(sizeof(item)), sizeof(item));
      pieces.push_back({.cost = item.cost, .segment = item.segment, .tile_class = item.tile_class});
    }
  }
  result_.picture = std::move(picture);
}

void Replayer::finish_step(const StepRecord& record) {
  clock_ += record.seconds();
  computed_tokens_ += batch_.num_tokens();
  for (const StepEntry& entry : entries_) {
    if (!entry.yields_token()) continue;
    if (entry.running->last_token_time >= 0) result_.token_gaps.push_back(clock_ - entry.running->last_token_time);
    entry.running->last_token_time = clock_;
  }
  result_.peak_pool_pages = std::max(result_.peak_pool_pages, record.pool_pages);
  result_.peak_logical_kv_tokens = std::max(result_.peak_logical_kv_tokens, record.logical_kv_tokens);
  result_.steps.push_back(record);
  for (std::int64_t request : scheduler_->finish()) {
    ++result_.finished_requests;
    if (digests_) digests_->finish(request);
  }
  if (!hooks_.on_step) return;
  const double done = static_cast<double>(computed_tokens_ + scheduler_->shared_tokens());
  hooks_.on_step({.step = std::ssize(result_.steps),
                  .fraction = done / static_cast<double>(total_tokens_),
                  .tokens = computed_tokens_,
                  .running = scheduler_->num_running(),
                  .finished = result_.finished_requests,
                  .total = std::ssize(result_.requests)});
}

void Replayer::run_layers(StepRecord& record, std::vector<VerifySample>& samples) {
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    // NaN everywhere: a row that run() forgets cannot pass.
    if (is_checked(layer, samples)) std::memset(o_.data(), 0xFF, o_.span().size());
    const Clock::time_point append_start = Clock::now();
    append(context_, pools_[layer].store(), batch_.append(), key_rows(), {}, value_rows());
    record.append_seconds += seconds_since(append_start);
    const Clock::time_point run_start = Clock::now();
    attend(layer);
    record.run_seconds += seconds_since(run_start);
    if (layer_) layer_->run_layer(record.beside);
    check_layer(layer, samples);
  }
}

/// Layer behind layer; the host waits only at the end, and where results are checked or other operators are timed.
void Replayer::run_layers_on_device(StepRecord& record, std::vector<VerifySample>& samples) {
  for (int layer = 0; layer < options_.num_layers;) {
    int end = layer + 1;  // the layers that go without a stop
    while (!layer_ && end < options_.num_layers && !is_checked(end - 1, samples) && !is_checked(end, samples)) ++end;
    if (is_checked(layer, samples)) {
      device_->poison(output_rows());
      device_->poison(lse_rows());
    }
    const Clock::time_point start = Clock::now();
    for (; layer < end; ++layer) {
      const std::size_t kind = static_cast<std::size_t>(layer) % kinds_.size();
      device_->append(layer, key_rows(), value_rows());
      device_->attend(layer, kind, kinds_[kind].schedule, kinds_[kind].plan, attention_args(layer));
    }
    record.queue_seconds += seconds_since(start);
    device_->wait();
    const double seconds = seconds_since(start);
    const ReplayDevice::Seconds kernels = device_->take_seconds();
    record.kernel_seconds += kernels.append + kernels.attend;
    record.append_seconds += kernels.append;
    record.run_seconds += seconds - kernels.append;
    if (layer_) layer_->run_layer(record.beside);
    check_layer(end - 1, samples);
  }
}

/// False if there was nothing to do yet.
bool Replayer::step() {
  entries_ = scheduler_->next(options_.real_time ? seconds_since(start_) : std::numeric_limits<double>::infinity());
  if (entries_.empty()) return false;
  StepRecord record;
  batch_.build(entries_, options_.page_size, cascade());
  fill_keys();
  fill_queries();
  if (device_) put_rows();
  const Clock::time_point plan_start = Clock::now();
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    kinds_[kind].plan.update(batch_.batch());
    if (device_) device_->upload(kind, kinds_[kind].plan);
  }
  record.plan_seconds = seconds_since(plan_start);
  if (layer_) begin_layers();
  std::vector<VerifySample> samples = choose_samples();
  device_ ? run_layers_on_device(record, samples) : run_layers(record, samples);
  if (layer_) layer_->sample_tokens(num_yielding(), record.beside);
  account(record);
  keep_picture(record);
  finish_step(record);
  return true;
}

ReplayResult Replayer::run() {
  start_ = Clock::now();
  while (!scheduler_->done() && !(result_.interrupted = stopped())) {
    if (options_.max_steps > 0 && std::ssize(result_.steps) >= options_.max_steps) break;
    if (!step()) wait_for_arrival();
  }
  result_.wall_seconds = seconds_since(start_);
  result_.shared_tokens = scheduler_->shared_tokens();
  for (const StepRecord& record : result_.steps) result_.prompt_tokens += record.prefill_tokens;
  result_.prompt_tokens += result_.shared_tokens;
  result_.verify = verifier_->result();
  if (digests_) result_.digests = digests_->finished();
  return std::move(result_);
}

}  // namespace

std::int64_t choose_pages(std::span<const TraceRequest> requests, const ReplayOptions& options) {
  const auto pages = [&](std::int64_t tokens) { return (tokens + options.page_size - 1) / options.page_size; };
  if (options.pool_tokens > 0) return pages(options.pool_tokens);
  std::int64_t all = 0;
  std::int64_t largest = 0;
  for (const TraceRequest& request : requests) {
    all += pages(kv_tokens(request));
    largest = std::max(largest, pages(kv_tokens(request)));
  }
  return std::min(all, std::max(largest, pages(kDefaultPoolTokens)));
}

ReplayResult replay(const Context& context, const Trace& trace, const ReplayOptions& options, const ReplayHooks& hooks) {
  return Replayer(context, trace, options, hooks).run();
}

}  // namespace girih::tools
