// Twin of kernels/ptx/launch.cuh: the emulator runs one grid at a time.
#pragma once

namespace girih::ptx {

inline void wait_for_previous_grid() {}
inline void start_next_grid() {}

}  // namespace girih::ptx
