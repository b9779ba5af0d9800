// What a GPU asks of addresses that a caller gives: elements lie at multiples of their size. The CPU backend takes them as they come.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "girih/tensor.h"

namespace girih::cuda {

/// Whether `data` and the strides are multiples of the bytes of `dtype` (4-bit data: of one byte).
bool is_aligned(const void* data, DType dtype, std::initializer_list<std::int64_t> byte_strides = {});

/// Throws invalid_argument for the tensor, plane or scales called `what`, which are not.
[[noreturn]] void fail_unaligned(std::string_view op, std::string_view what, const void* data, DType dtype);

}  // namespace girih::cuda
