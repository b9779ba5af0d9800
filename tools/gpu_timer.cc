// See gpu_timer.h.
#include "tools/gpu_timer.h"

#include "tools/bench.h"

namespace girih::tools {

namespace {
constexpr std::int64_t kFlushBytes = std::int64_t{256} << 20;
}

GpuTimer::GpuTimer(const Context& context)
    : driver_(context.cuda().device->driver()),
      current_(*context.cuda().device),
      flush_(context.cuda().device, kFlushBytes),
      stream_(driver_.create_stream()),
      begin_(driver_.create_event(true)),
      end_(driver_.create_event(true)) {}

GpuTimer::~GpuTimer() {
  driver_.destroy_event(begin_);
  driver_.destroy_event(end_);
  driver_.destroy(stream_);
}

std::vector<double> GpuTimer::replays(const std::function<void()>& body, int repeats) {
  driver_.begin_capture(stream_);
  body();
  const cuda::Graph graph = driver_.end_capture(stream_);
  const cuda::GraphExec exec = driver_.instantiate(graph);
  driver_.destroy_graph(graph);
  std::vector<double> seconds = times([&] { driver_.launch_graph(exec, stream_); }, repeats);
  driver_.destroy_graph_exec(exec);
  return seconds;
}

std::vector<double> GpuTimer::calls(const std::function<void()>& body, int repeats) { return times(body, repeats); }

std::vector<double> GpuTimer::times(const std::function<void()>& queue, int repeats) {
  std::vector<double> seconds;
  for (int i = -3; i < repeats; ++i) {  // three to warm up
    driver_.fill(flush_.pointer(), static_cast<std::uint8_t>(i), kFlushBytes, stream_);
    driver_.record(begin_, stream_);
    queue();
    driver_.record(end_, stream_);
    driver_.synchronize(stream_);
    if (i >= 0) seconds.push_back(driver_.elapsed_seconds(begin_, end_));
  }
  return seconds;
}

double GpuTimer::host(const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i < 40; ++i) {
    const BenchClock::time_point start = BenchClock::now();
    body();
    times.push_back(seconds_since(start));
    if (i % 8 == 7) driver_.synchronize(stream_);
  }
  return median(times);
}

}  // namespace girih::tools
