// The norms' arguments, checked and as the row operators' core takes them.
#pragma once

#include <string_view>

#include "girih/norm.h"
#include "rows/rows.h"

namespace girih {

rows::Launch describe_norm(std::string_view op, Device device, abi::Norm norm, const NormArgs& args);

}  // namespace girih
