// Dispatch by the table of include/girih/capabilities.h.
#pragma once

#include <string_view>

#include "girih/context.h"

namespace girih {

/// Throws unsupported where the operator's row does not name the context's device.
void require_backend(const Context& context, std::string_view op);

}  // namespace girih
