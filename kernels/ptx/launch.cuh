// Programmatic dependent launch: a kernel may start while the one before it in the stream drains. Nothing before sm_90.
#pragma once

namespace girih::ptx {

/// What the previous kernel wrote is visible after it. Called before the first read of anything that a kernel writes.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel may start once every block has called it or ended.
__device__ __forceinline__ void start_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace girih::ptx
