// The page of `girih replay --report`: one file, inline SVG and CSS, no scripts, nothing loaded from elsewhere.
#pragma once

#include <string>

#include "tools/machine.h"
#include "tools/replay_engine.h"
#include "tools/replay_summary.h"

namespace girih::tools {

std::string report_html(const ReplayResult& result, const ReplaySummary& summary, const MachineCeilings& ceilings,
                        const MachineFacts& machine);

}  // namespace girih::tools
