// Included before everything else (g++ -include) where kernel text is compiled as C++20: defines CUDA's keywords away. `__shared__` and the
// thread builtins stay undefined, so that kernels which go past kernels/ptx do not compile.
#pragma once

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
