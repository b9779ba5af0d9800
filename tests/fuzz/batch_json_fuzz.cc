// Batch files: any bytes give a batch or Error(io), nothing else, and a batch keeps its own promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "girih/error.h"
#include "tools/batch_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const girih::tools::OwnedBatch batch = girih::tools::parse_batch_json({reinterpret_cast<const char*>(data), size}, "fuzz.json");
    const girih::tools::BatchView view = batch.view();
    if (view.batch.qo_indptr.size() != batch.num_requests() + 1 || view.segments.size() != batch.segments.size()) std::abort();
    if (batch.limits().max_tokens != batch.num_tokens()) std::abort();
  } catch (const girih::Error& error) {
    if (error.code() != girih::Code::io) std::abort();
  }
  return 0;
}
