// The replay's attention on a CUDA device: twins of its buffers, filled before a step's work and fetched where results are checked, and a
// pool for each layer. Copies of inputs and results are not part of any figure; the work between is timed by the host's clock and by
// events. Layers are queued one behind the other, as an engine does; for a plan's upload the copies of inputs wait.
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
  /// `num_layers` zeroed pools of the shape of `pool`.
  ReplayDevice(const Context& context, const LayerPool& pool, int num_layers, std::int64_t workspace_bytes, std::span<const float> sinks);
  ~ReplayDevice();
  ReplayDevice(const ReplayDevice&) = delete;
  ReplayDevice& operator=(const ReplayDevice&) = delete;

  void add_plan(const Schedule& schedule) { plans_.emplace_back(context_, schedule); }
  /// Queues the upload of a kind's plan.
  void upload(std::size_t kind, const Plan& plan);
  /// The page tables of the step, and where its new tokens go: page * page_size + place.
  void set_tables(std::span<const std::span<const std::int32_t>> tables, std::span<const std::int32_t> slots);

  /// Tensors on the host are replaced by twins that hold the same bytes.
  TensorView twin(const TensorView& host);
  void put(const TensorView& host);
  /// Makes the twin's bytes 0xFF, NaN in every type.
  void poison(const TensorView& host);
  void fetch(const TensorView& host);
  /// Into `pool`, of the same shape.
  void fetch_pool(int layer, const LayerPool& pool);

  /// Compiles and loads the append kernel, by one token of page 0: its first call is no step's.
  void warm_up(const TensorView& k, const TensorView& v);
  /// Queues a layer's append, then its attention.
  void append(int layer, const TensorView& k, const TensorView& v);
  void attend(int layer, std::size_t kind, const Schedule& schedule, const Plan& plan, AttentionArgs args);
  /// Until all that is queued is done.
  void wait();
  struct Seconds {
    double append = 0, attend = 0;
  };
  /// Of the layers queued since the last call, all of them done: by events between their kernels.
  Seconds take_seconds();

 private:
  struct Twin {
    const void* host;
    cuda::DeviceBuffer memory;
  };
  struct Pool {
    cuda::DeviceBuffer k, v, k_scales, v_scales;
    KvStore store;
  };
  void make_plane(const KvPlane& host, KvPlane& plane, cuda::DeviceBuffer& data, cuda::DeviceBuffer& scales, const KvStore& store);
  void mark();
  cuda::DeviceBuffer& memory_of(const TensorView& host);

  const Context& context_;
  const cuda::Driver& driver_;
  const cuda::CurrentDevice current_;
  std::vector<Pool> pools_;
  std::vector<DevicePlan> plans_;
  std::vector<Twin> twins_;
  cuda::DeviceBuffer workspace_, sinks_, tables_;  // tables_: page tables, then slots
  std::int64_t num_sinks_ = 0;
  std::vector<std::span<const std::int32_t>> segment_tables_;
  TensorView slots_;
  std::vector<cuda::Event> marks_;  // before and behind each kernel: begin, append, attend, append, attend, ...
  std::size_t num_marks_ = 0;
};

}  // namespace girih::tools
