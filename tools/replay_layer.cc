// See replay_layer.h.
#include "tools/replay_layer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cuda/runtime.h"
#include "girih/activation.h"
#include "girih/norm.h"
#include "girih/rope.h"
#include "girih/sampling.h"

namespace girih::tools {
namespace {

/// The first `rows` rows of a dense tensor.
TensorView first_rows(TensorView view, std::int64_t rows) {
  view.shape[0] = rows;
  return view;
}

}  // namespace

LayerSeconds& LayerSeconds::operator+=(const LayerSeconds& other) {
  norm += other.norm;
  rope += other.rope;
  activation += other.activation;
  sampling += other.sampling;
  return *this;
}

LayerOperators::LayerOperators(const Context& context, const ModelPreset& model, DType dtype, std::int64_t max_tokens,
                               std::int64_t max_rows, std::int64_t max_positions, std::uint64_t seed)
    : context_(context), model_(model), seed_(seed) {
  if (context.device().kind == DeviceKind::cuda) current_.emplace(*context.cuda().device);
  const std::int64_t hidden = model.hidden_size;
  const int rotary = model.rotary_dim;
  x_ = make(dtype, {max_tokens, hidden});
  residual_ = make(dtype, {max_tokens, hidden});
  sum_ = make(dtype, {max_tokens, hidden});
  normed_ = make(dtype, {max_tokens, hidden});
  weight_ = make(dtype, {hidden});
  // MLA rotates a part of the head that engines keep in tensors of its own.
  const std::int64_t head_dim = model.v_is_k ? rotary : model.head_dim_qk;
  q_ = make(dtype, {max_tokens, model.num_qo_heads, head_dim});
  k_ = make(dtype, {max_tokens, model.num_kv_heads, head_dim});
  RopeTable table;
  table.rotary_dim = rotary;
  table.theta = model.rope_theta;
  const std::vector<float> angles = rope_cos_sin(table, max_positions);
  cos_sin_ = place(angles.data(), DType::f32, {max_positions, rotary});
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(max_tokens), 0);
  positions_ = place(zeros.data(), DType::i32, {max_tokens});
  const std::int64_t rows = max_tokens * model.experts_per_token;
  gate_up_ = make(dtype, {rows, 2 * model.intermediate_size});
  activated_ = make(dtype, {rows, model.intermediate_size});
  logits_ = make(DType::f32, {max_rows, model.vocab_size});
  tokens_ = place(zeros.data(), DType::i32, {std::min(max_rows, max_tokens)});
  // The first call on a GPU compiles and loads kernels: no step's time.
  LayerSeconds unused;
  num_tokens_ = 1;
  run_layer(unused);
  sample_tokens(1, unused);
}

TensorView LayerOperators::make(DType dtype, std::initializer_list<std::int64_t> shape) {
  constexpr std::int64_t kPeriod = 4093;  // elements after which numbers repeat: making many is not what is measured
  TensorView view(nullptr, dtype, shape);
  const std::int64_t size = bytes(dtype, 1);
  Buffer buffer(std::max<std::int64_t>(view.numel() * size, 1));
  std::uint64_t state = seed_ * 0x9E3779B97F4A7C15U + host_.size() + device_.size();
  for (std::int64_t i = 0; i < std::min(view.numel(), kPeriod); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    store_element(buffer.data(), dtype, i, static_cast<float>(state >> 40) * 0x1.0p-23F - 1.0F);
  }
  for (std::int64_t done = kPeriod; done < view.numel();) {
    const std::int64_t count = std::min(done, view.numel() - done);
    std::memcpy(buffer.data() + done * size, buffer.data(), static_cast<std::size_t>(count * size));
    done += count;
  }
  return place(buffer.data(), dtype, shape);
}

TensorView LayerOperators::place(const void* host, DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape, context_.device());
  const std::int64_t size = std::max<std::int64_t>(bytes(dtype, view.numel()), 64);
  if (context_.device().kind == DeviceKind::cpu) {
    view.data = host_.emplace_back(size).data();
  } else {
    view.data = device_.emplace_back(context_.cuda().device, size).data();
  }
  copy_in(view, host);
  return view;
}

void LayerOperators::copy_in(const TensorView& to, const void* host) {
  const std::int64_t size = bytes(to.dtype, to.numel());
  if (context_.device().kind == DeviceKind::cpu) {
    std::memcpy(to.data, host, static_cast<std::size_t>(size));
    return;
  }
  const cuda::Driver& driver = context_.cuda().device->driver();
  driver.copy_to_device(reinterpret_cast<cuda::Pointer>(to.data), host, size, nullptr);
  driver.synchronize(nullptr);
}

void LayerOperators::timed(double& seconds, const std::function<void()>& body) const {
  const auto start = std::chrono::steady_clock::now();
  body();
  if (context_.device().kind == DeviceKind::cuda) context_.cuda().device->driver().synchronize(nullptr);
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void LayerOperators::begin_step(std::span<const std::int32_t> positions) {
  num_tokens_ = std::ssize(positions);
  copy_in(first_rows(positions_, num_tokens_), positions.data());
}

void LayerOperators::run_layer(LayerSeconds& seconds) {
  NormArgs norm;
  norm.x = first_rows(x_, num_tokens_);
  norm.residual = first_rows(residual_, num_tokens_);
  norm.residual_out = first_rows(sum_, num_tokens_);
  norm.weight = weight_;
  norm.out = first_rows(normed_, num_tokens_);
  RopeArgs rotation;
  rotation.q = rotation.q_out = first_rows(q_, num_tokens_);
  rotation.k = rotation.k_out = first_rows(k_, num_tokens_);
  rotation.cos_sin = cos_sin_;
  rotation.positions = first_rows(positions_, num_tokens_);
  ActivationArgs gate;
  gate.x = first_rows(gate_up_, num_tokens_ * model_.experts_per_token);
  gate.out = first_rows(activated_, num_tokens_ * model_.experts_per_token);
  timed(seconds.norm, [&] { rms_norm(context_, norm); });
  timed(seconds.rope, [&] { rope(context_, rotation); });
  timed(seconds.norm, [&] { rms_norm(context_, norm); });
  timed(seconds.activation, [&] { activate(context_, model_.activation, gate); });
}

void LayerOperators::sample_tokens(std::int64_t rows, LayerSeconds& seconds) {
  if (rows == 0) return;
  SampleArgs args;
  args.input = first_rows(logits_, rows);
  args.temperature = 0.7F;
  args.top_p = 0.95F;
  args.random = {.seed = static_cast<std::int64_t>(seed_), .offset = static_cast<std::int64_t>(step_++)};
  args.tokens = first_rows(tokens_, rows);
  timed(seconds.sampling, [&] { girih::sample(context_, args); });
}

}  // namespace girih::tools
