// Times calls that queue work on a CUDA device: as replays of a graph with a cold L2 cache, and on the host.
#pragma once

#include <functional>
#include <vector>

#include "cuda/driver.h"
#include "cuda/runtime.h"
#include "girih/context.h"

namespace girih::tools {

class GpuTimer {
 public:
  explicit GpuTimer(const Context& context);
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  /// What `body` must queue its work on.
  cuda::Stream stream() const { return stream_; }
  /// Seconds of `repeats` replays of what `body` queues, which has been called once before. Ahead of each a buffer larger than the L2 cache
  /// is overwritten.
  std::vector<double> replays(const std::function<void()>& body, int repeats);
  /// The same of calls that are not captured: queued while the buffer is being overwritten.
  std::vector<double> calls(const std::function<void()>& body, int repeats);
  /// Median host seconds of a call that is queued behind others.
  double host(const std::function<void()>& body);

 private:
  std::vector<double> times(const std::function<void()>& queue, int repeats);

  const cuda::Driver& driver_;
  cuda::CurrentDevice current_;
  cuda::DeviceBuffer flush_;
  cuda::Stream stream_;
  cuda::Event begin_, end_;
};

}  // namespace girih::tools
