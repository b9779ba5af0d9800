// `girih plan --trace FILE --step K`: the batch that `girih replay FILE`, with its defaults, has in step K.
#pragma once

#include <cstdint>
#include <string>

#include "tools/batch_json.h"

namespace girih::tools {

/// Schedules the trace up to the step, without data. Throws Error(io) for a bad file, invalid_argument for a step that is not reached.
OwnedBatch batch_of_trace_step(const std::string& file, std::int64_t step);

}  // namespace girih::tools
