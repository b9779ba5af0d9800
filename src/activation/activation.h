// An activation's arguments, checked and as the row operators' core takes them.
#pragma once

#include "girih/activation.h"
#include "rows/rows.h"

namespace girih {

rows::Launch describe_activation(Device device, Activation activation, const ActivationArgs& args);

}  // namespace girih
