// Serving traces: what `girih replay` reads. Two formats, told apart by their content: the Azure LLM inference CSV
// (TIMESTAMP,ContextTokens,GeneratedTokens) and Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids).
// A trace is read and checked whole before anything runs; what is wrong is reported as Error(io) "file:line:column: reason".
//
// Rules: lengths are integers below 2^31, input at least 1, output at least 0. Timestamps need not ascend (traces are merged from several
// front ends): requests are put in the order of arrival, ties in file order. A byte order mark, CRLF and a missing last newline are taken.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace girih::tools {

/// Tokens that one id of `hash_ids` stands for.
inline constexpr std::int64_t kPrefixBlock = 512;

struct TraceRequest {
  double arrival = 0;                    ///< seconds since the first request of the trace
  std::int64_t input_length = 0;         ///< tokens of the prompt
  std::int64_t output_length = 0;        ///< tokens generated
  std::vector<std::int64_t> hash_ids{};  ///< one per kPrefixBlock prompt tokens, the last may be cut; equal leading ids = a shared prefix
};

struct Trace {
  std::string source;                  ///< the file's name, or what the built-in workload is drawn from
  std::string format;                  ///< "azure csv", "mooncake jsonl", "built-in"
  std::vector<TraceRequest> requests;  ///< by arrival
};

/// Reads a trace from memory; `file` names it in errors.
Trace parse_trace(std::string_view text, const std::string& file);
/// Reads a trace from a file.
Trace read_trace(const std::string& path);
/// Requests drawn from the quantiles of the Azure conversation trace 2023, Poisson arrivals; the same for equal seeds on every machine.
Trace built_in_trace(std::int64_t num_requests, std::uint64_t seed);

}  // namespace girih::tools
