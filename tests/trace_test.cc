// Trace readers: what they take, and where they say a malformed file is wrong.
#include "tools/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "girih/error.h"

namespace girih::tools {
namespace {

constexpr const char* kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

/// The error text of a file that must be refused.
std::string refusal(const std::string& text) {
  try {
    parse_trace(text, "t");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

void expect_refused(const std::string& text, const std::string& start, const std::string& part) {
  const std::string error = refusal(text);
  EXPECT_TRUE(error.starts_with(start)) << error << "\nexpected to start with " << start;
  EXPECT_NE(error.find(part), std::string::npos) << error << "\nexpected to hold " << part;
}

TEST(TraceCsv, ReadsRequests) {
  const Trace trace = parse_trace(std::string(kHeader) + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n", "t");
  EXPECT_EQ(trace.format, "azure csv");
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].input_length, 374);
  EXPECT_EQ(trace.requests[1].output_length, 109);
  EXPECT_EQ(trace.requests[0].arrival, 0);
  EXPECT_NEAR(trace.requests[1].arrival, 4.314579, 1e-5);
}

TEST(TraceCsv, TakesByteOrderMarkCrlfAndNoLastNewline) {
  const Trace trace =
      parse_trace("\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-02-29T00:00:00Z,1,0\r\n2024-03-01 01:00:00+01:00,2,1", "t");
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[1].arrival, 86400);
  EXPECT_EQ(trace.requests[1].output_length, 1);
}

TEST(TraceCsv, OrdersByArrival) {
  const Trace trace =
      parse_trace(std::string(kHeader) + "2023-11-16 00:00:09,1,1\n2023-11-16 00:00:01,2,1\n2023-11-16 00:00:09,3,1\n\n", "t");
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.requests[0].input_length, 2);
  EXPECT_EQ(trace.requests[1].input_length, 1);
  EXPECT_EQ(trace.requests[2].input_length, 3);
  EXPECT_EQ(trace.requests[2].arrival, 8);
}

TEST(TraceCsv, NamesThePlaceOfAnError) {
  const std::string h = kHeader;
  expect_refused(h + "2023-11-16 18:15:46,374\n", "t:2:24: ", "2 fields");
  expect_refused(h + "2023-11-16 18:15:46\n", "t:2:20: ", "1 field");
  expect_refused(h + "2023-11-16 18:15:46,1,2,3\n", "t:2:24: ", "more than 3");
  expect_refused(h + "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:46,x,44\n", "t:3:21: ", "ContextTokens \"x\" is not an integer");
  expect_refused(h + "2023-11-16 18:15:46,37 4,44\n", "t:2:21: ", "is not an integer");
  expect_refused(h + "2023-11-16 18:15:46,,44\n", "t:2:21: ", "is not an integer");
  expect_refused(h + "2023-11-16 18:15:46,0,44\n", "t:2:21: ", "[1, 2147483647]");
  expect_refused(h + "2023-11-16 18:15:46,5,-1\n", "t:2:23: ", "GeneratedTokens -1 is not in [0, ");
  expect_refused(h + "2023-11-16 18:15:46,2147483648,1\n", "t:2:21: ", "2147483648 is not in");
  expect_refused(h + "2023-11-16 18:15:46,99999999999999999999999,1\n", "t:2:21: ", "is not in");
  expect_refused(h + "2023-13-16 18:15:46,5,1\n", "t:2:6: ", "month 13 is not in [1, 12]");
  expect_refused(h + "2023-02-29 18:15:46,5,1\n", "t:2:9: ", "day 29 is not in [1, 28]");
  expect_refused(h + "2023-02-28 18:15:46.,5,1\n", "t:2:21: ", "digits must follow");
  expect_refused(h + "2023-02-28 18:15,5,1\n", "t:2:17: ", "':' is missing");
  expect_refused(h + "2023-02-28 18:15:46 PM,5,1\n", "t:2:20: ", "unexpected characters");
  expect_refused(h + "\n2023-02-28 18:15:46,5,1\n", "t:2:1: ", "blank line");
  expect_refused(h, "t:1:1: ", "no requests");
}

TEST(Trace, RefusesWhatIsNoTrace) {
  expect_refused("", "t:1:1: ", "empty");
  expect_refused("\n\r\n", "t:1:1: ", "empty");
  expect_refused("\xEF\xBB\xBF", "t:1:1: ", "empty");
  expect_refused("hello\n", "t:1:1: ", "neither a CSV");
  expect_refused("TIMESTAMP,ContextTokens\n1,2\n", "t:1:1: ", "neither a CSV");
  EXPECT_THROW(read_trace("/nonexistent/trace.csv"), Error);
}

TEST(TraceJsonl, ReadsRequests) {
  const Trace trace = parse_trace(
      "{\"timestamp\": 3000, \"input_length\": 1025, \"output_length\": 5, \"hash_ids\": [0, 14, 7]}\r\n"
      "{\"timestamp\": 4500, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [0]}",
      "t");
  EXPECT_EQ(trace.format, "mooncake jsonl");
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].hash_ids, (std::vector<std::int64_t>{0, 14, 7}));
  EXPECT_EQ(trace.requests[1].arrival, 1.5);
}

TEST(TraceJsonl, NamesThePlaceOfAnError) {
  const std::string good = "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [1]}\n";
  expect_refused(good + "{\"timestamp\": 0, \"input_length\": 10, oops}\n", "t:2:38", "syntax error");
  expect_refused(good + "[]\n", "t:2:1: ", "not a JSON object");
  expect_refused(good + good.substr(0, 20), "t:2:", "syntax error");
  expect_refused("{\"timestamp\": 0, \"output_length\": 5, \"hash_ids\": [1]}", "t:1:", "\"input_length\" is missing");
  expect_refused("{\"timestamp\": 0, \"input_length\": 1.5, \"output_length\": 5, \"hash_ids\": []}", "t:1:18: ", "must be an integer");
  expect_refused("{\"timestamp\": 0, \"input_length\": -1, \"output_length\": 5, \"hash_ids\": []}", "t:1:18: ", "-1 is not in");
  expect_refused("{\"timestamp\": 0, \"input_length\": 18446744073709551615, \"output_length\": 5, \"hash_ids\": []}",
                 "t:1:18: ", "is not in");
  expect_refused("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 5, \"hash_ids\": []}",
                 "t:1:2: ", "\"timestamp\" -1 is not in");
  expect_refused("{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 5, \"hash_ids\": []}", "t:1:2: ", "is not in");
  expect_refused("{\"timestamp\": \"0\", \"input_length\": 1, \"output_length\": 5, \"hash_ids\": []}", "t:1:2: ", "must be a number");
  expect_refused("{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [1, 2]}",
                 "t:1:", "2 hash_ids, but 512 tokens are 1 blocks");
  expect_refused("{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [\"a\"]}",
                 "t:1:", "\"hash_ids\" must be an integer");
  expect_refused("{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": 3}", "t:1:", "must be an array");
}

TEST(BuiltInTrace, FollowsTheQuantiles) {
  const Trace trace = built_in_trace(4001, 7);
  ASSERT_EQ(trace.requests.size(), 4001U);
  std::vector<std::int64_t> inputs;
  for (const TraceRequest& request : trace.requests) {
    ASSERT_GE(request.input_length, 2);
    ASSERT_LE(request.input_length, 14050);
    ASSERT_GE(request.output_length, 7);
    ASSERT_LE(request.output_length, 1000);
    inputs.push_back(request.input_length);
  }
  std::sort(inputs.begin(), inputs.end());
  EXPECT_NEAR(static_cast<double>(inputs[2000]), 1020, 40);
  EXPECT_TRUE(
      std::is_sorted(trace.requests.begin(), trace.requests.end(), [](const auto& a, const auto& b) { return a.arrival < b.arrival; }));
  EXPECT_EQ(built_in_trace(10, 7).requests[9].input_length, trace.requests[9].input_length);
  EXPECT_NE(built_in_trace(10, 8).requests[0].input_length, trace.requests[0].input_length);
}

}  // namespace
}  // namespace girih::tools
