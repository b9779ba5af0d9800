// Fuzz target: the trace readers either give requests within their stated limits or throw Error(io) that names a place.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "girih/error.h"
#include "tools/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace girih::tools;
  try {
    const Trace trace = parse_trace(std::string_view(reinterpret_cast<const char*>(data), size), "f");
    if (trace.requests.empty()) std::abort();
    double last = 0;
    for (const TraceRequest& request : trace.requests) {
      const std::int64_t blocks = (request.input_length + kPrefixBlock - 1) / kPrefixBlock;
      if (request.input_length < 1 || request.output_length < 0 || request.input_length >= std::int64_t{1} << 31) std::abort();
      if (static_cast<std::int64_t>(request.hash_ids.size()) > blocks || !(request.arrival >= last)) std::abort();
      last = request.arrival;
    }
  } catch (const girih::Error& error) {
    if (error.code() != girih::Code::io || std::string(error.what()).substr(0, 2) != "f:") std::abort();
  }
  return 0;
}
