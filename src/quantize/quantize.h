// Conversions' arguments, checked and as the row operators' core takes them.
#pragma once

#include "girih/quantize.h"
#include "rows/rows.h"

namespace girih {

rows::Launch describe_quantize(Device device, const TensorView& x, const TensorView& out, const Quantization& quantization);
rows::Launch describe_dequantize(Device device, const TensorView& x, const TensorView& out, const Quantization& quantization);

}  // namespace girih
