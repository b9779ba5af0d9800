// A tensor as the copy engine of sm_90 and later (TMA) takes boxes from it. Hosts describe it by a TensorBox; the driver's table turns that
// into the device's own 128 bytes (cuTensorMapEncodeTiled), and the emulator reads the TensorBox itself: either lies in a TensorMap.
#pragma once

#include <cstdint>

namespace girih::abi {

/// 16-bit elements; dim 0 is dense. A box is rows of 128 bytes (64 elements of dim 0), swizzled as wgmma has them (kernels/ptx/wgmma.cuh).
struct TensorBox {
  static constexpr int kDims = 4;
  const void* data;                 // a multiple of 16
  std::int64_t extent[kDims];       // elements, < 2^32
  std::int64_t stride[kDims];       // bytes, multiples of 16 below 2^40; [0] is the element's size
  std::int32_t box[kDims];          // 1 .. 256
};

/// In a kernel's parameters, or wherever else a map lies.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
static_assert(sizeof(TensorBox) <= sizeof(TensorMap));

}  // namespace girih::abi
