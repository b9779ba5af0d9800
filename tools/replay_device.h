// The replay's attention on a CUDA device: twins of its buffers and pools, filled before a layer's work and fetched where results are
// checked. Copies of inputs and results are not part of any figure; the work between is timed by the host's clock and by events. Nothing
// waits between a layer's append and its attention; for a plan's upload the copies of inputs wait.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/driver.h"
#include "girih/attention.h"
#include "girih/page.h"
#include "tools/replay_kv.h"

namespace girih::tools {

class ReplayDevice {
 public:
  /// Memory for the rows of `tokens` tokens and one pool a layer, as `pools` has them.
  ReplayDevice(const Context& context, const std::vector<LayerPool>& pools, std::int64_t workspace_bytes, std::span<const float> sinks);
  ~ReplayDevice();
  ReplayDevice(const ReplayDevice&) = delete;
  ReplayDevice& operator=(const ReplayDevice&) = delete;

  void add_plan(const Schedule& schedule) { plans_.emplace_back(context_, schedule); }
  /// Queues the upload of a kind's plan.
  void upload(std::size_t kind, const Plan& plan);
  /// The page tables of the step.
  void set_tables(std::span<const std::span<const std::int32_t>> tables);

  /// Tensors on the host are replaced by twins that hold the same bytes.
  TensorView twin(const TensorView& host);
  void put(const TensorView& host);
  void fetch(const TensorView& host);
  void fetch_pool(int layer, const LayerPool& pool);

  /// Compiles and loads the append kernel, by one token of page 0: its first call is no step's.
  void warm_up(const TensorView& k, const TensorView& v);
  /// Queues a layer's append.
  void append(int layer, const AppendBatch& batch, const TensorView& k, const TensorView& v);
  /// Queues its attention; waits until both are done.
  void attend(int layer, std::size_t kind, const Schedule& schedule, const Plan& plan, AttentionArgs args);
  void wait();
  /// Seconds between events before each append and after each attention since the last call: kernels, and what they wait for the host.
  double take_kernel_seconds();

 private:
  struct Twin {
    const void* host;
    cuda::DeviceBuffer memory;
  };
  struct Pool {
    cuda::DeviceBuffer k, v, k_scales, v_scales;
    KvStore store;
  };
  void copy_plane(const KvPlane& host, KvPlane& plane, cuda::DeviceBuffer& data, cuda::DeviceBuffer& scales, const KvStore& store);
  cuda::DeviceBuffer& memory_of(const TensorView& host);

  const Context& context_;
  const cuda::Driver& driver_;
  const cuda::CurrentDevice current_;
  std::vector<Pool> pools_;
  std::vector<DevicePlan> plans_;
  std::vector<Twin> twins_;
  cuda::DeviceBuffer workspace_, sinks_, tables_;
  std::int64_t num_sinks_ = 0;
  std::vector<std::span<const std::int32_t>> segment_tables_;
  cuda::Event begin_, end_;
  double kernel_seconds_ = 0;
};

}  // namespace girih::tools
