// See alignment.h.
#include "cuda/alignment.h"

#include <algorithm>

#include "base/error.h"
#include "base/numeric.h"

namespace girih::cuda {

namespace {

std::int64_t element_bytes(DType dtype) { return std::max(1, bits(dtype) / 8); }

}  // namespace

bool is_aligned(const void* data, DType dtype, std::initializer_list<std::int64_t> byte_strides) {
  const std::int64_t size = element_bytes(dtype);
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data)) % size == 0 &&
         std::all_of(byte_strides.begin(), byte_strides.end(), [size](std::int64_t stride) { return stride % size == 0; });
}

void fail_unaligned(std::string_view op, std::string_view what, const void* data, DType dtype) {
  fail(Code::invalid_argument, op, "{}.data={} and its byte strides must be multiples of {}, the bytes of {}, on a GPU", what, data,
       element_bytes(dtype), name(dtype));
}

}  // namespace girih::cuda
