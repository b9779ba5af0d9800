// A stand-in for libcuda.so.1 on machines without a GPU: the host side of the CUDA backend runs against it. Device memory is ordinary
// memory; work is queued and done as late as allowed (when something waits for it), in the order in which it was queued, so that memory
// that is reused too early shows. Kernels are what the test says they are.
#pragma once

#include <cstdint>

namespace girih::fake_cuda {

struct LaunchCall {
  const char* name;
  const void* params;  // the kernel's struct; valid during prepare() only
  int num_blocks;
  int num_threads;
  std::int64_t shared_bytes;
  int cluster_size;
  bool dependent;  // programmatic stream serialization
};

/// What a launch does: prepare() when it is queued (or captured), execute() each time it is its turn.
struct Hooks {
  void* (*prepare)(const LaunchCall& call);
  void (*execute)(void* prepared);
};

}  // namespace girih::fake_cuda

extern "C" {
/// Of the library: found by dlsym.
void fake_cuda_set_hooks(const girih::fake_cuda::Hooks* hooks);
/// Allocations and other handles that are alive, and operations that wait for their turn.
std::int64_t fake_cuda_num_alive();
std::int64_t fake_cuda_num_queued();
/// Calls of cuMemAlloc and cuMemHostAlloc, and of what waits for the device, so far.
std::int64_t fake_cuda_num_allocations();
std::int64_t fake_cuda_num_waits();
}
