// Trace readers (trace.h). Each reader walks the text line by line and throws at the first thing that is not as the format says.
#include "tools/trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "girih/error.h"

namespace girih::tools {
namespace {

constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;
constexpr std::string_view kCsvHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Where an error is: columns count bytes from 1.
struct Place {
  const std::string& file;
  std::int64_t line = 1;

  [[noreturn]] void fail(std::size_t column, const std::string& reason) const {
    throw Error(Code::io, fmt::format("{}:{}:{}: {}", file, line, column, reason));
  }
};

/// What a message may show of the input: short and printable.
std::string shown(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 40)) out += c >= 0x20 && c < 0x7F ? c : '?';
  return text.size() > 40 ? out + "..." : out;
}

/// Yields lines without their line ends; blank lines may only stand at the end.
class Lines {
 public:
  Lines(std::string_view text, Place& place) : text_(text), place_(place) { place_.line = 0; }

  std::optional<std::string_view> next() {
    if (text_.empty()) return std::nullopt;
    const std::size_t end = text_.find('\n');
    std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    ++place_.line;
    if (!line.empty()) return line;
    if (text_.find_first_not_of("\r\n") != std::string_view::npos) place_.fail(1, "blank line between requests");
    return std::nullopt;
  }

 private:
  std::string_view text_;
  Place& place_;
};

/// Days from 1970-01-01 in the Gregorian calendar; the year starts in March, so that the leap day is its last.
std::int64_t days_from_civil(std::int64_t year, int month, int day) {
  const std::int64_t y = month <= 2 ? year - 1 : year;
  const std::int64_t m = (month + 9) % 12;
  return 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 719469;
}

/// Takes digits of a fixed-format timestamp one field at a time.
class TimestampReader {
 public:
  TimestampReader(std::string_view text, const Place& place, std::size_t column) : text_(text), place_(place), column_(column) {}

  /// "YYYY-MM-DD HH:MM:SS[.fraction][Z|+HH:MM|-HH:MM]" in seconds since 1970, UTC where no zone stands.
  double read() {
    const std::int64_t year = digits(4, 1, 9999, "year");
    literal("-");
    const int month = static_cast<int>(digits(2, 1, 12, "month"));
    literal("-");
    static constexpr std::array<int, 12> kDays{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    const int day = static_cast<int>(digits(2, 1, kDays[month - 1] + (month == 2 && leap ? 1 : 0), "day"));
    literal(" T");
    const std::int64_t hour = digits(2, 0, 23, "hour");
    literal(":");
    const std::int64_t minute = digits(2, 0, 59, "minute");
    literal(":");
    const std::int64_t second = digits(2, 0, 60, "second");
    double fraction = 0;
    if (peek() == '.') {
      ++at_;
      double unit = 0.1;
      if (!is_digit(peek())) fail("digits must follow the decimal point");
      for (; is_digit(peek()); ++at_, unit /= 10) fraction += unit * (peek() - '0');
    }
    const std::int64_t whole = ((days_from_civil(year, month, day) * 24 + hour) * 60 + minute - zone_minutes()) * 60 + second;
    if (at_ != text_.size()) fail("unexpected characters after the time");
    return static_cast<double>(whole) + fraction;
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  [[noreturn]] void fail(const std::string& reason) const {
    place_.fail(column_ + at_, fmt::format("TIMESTAMP \"{}\": {}; expected YYYY-MM-DD HH:MM:SS.fraction", shown(text_), reason));
  }
  void literal(std::string_view any_of) {
    if (at_ >= text_.size() || any_of.find(text_[at_]) == std::string_view::npos) fail(fmt::format("'{}' is missing", any_of[0]));
    ++at_;
  }
  std::int64_t digits(int count, std::int64_t low, std::int64_t high, const char* field) {
    std::int64_t value = 0;
    for (int i = 0; i < count; ++i) {
      if (at_ + i >= text_.size() || !is_digit(text_[at_ + i])) fail(fmt::format("{} must be {} digits", field, count));
      value = value * 10 + (text_[at_ + i] - '0');
    }
    if (value < low || value > high) fail(fmt::format("{} {} is not in [{}, {}]", field, value, low, high));
    at_ += count;
    return value;
  }
  std::int64_t zone_minutes() {
    if (peek() == 'Z') {
      ++at_;
      return 0;
    }
    if (peek() != '+' && peek() != '-') return 0;
    const std::int64_t sign = peek() == '+' ? 1 : -1;
    ++at_;
    const std::int64_t hours = digits(2, 0, 23, "zone hour");
    literal(":");
    return sign * (hours * 60 + digits(2, 0, 59, "zone minute"));
  }

  std::string_view text_;
  const Place& place_;
  std::size_t column_;
  std::size_t at_ = 0;
};

std::int64_t csv_length(std::string_view text, std::int64_t low, const char* field, const Place& place, std::size_t column) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size();
  if (text.empty() || error == std::errc::invalid_argument || !whole) {
    place.fail(column, fmt::format("{} \"{}\" is not an integer", field, shown(text)));
  }
  if (error != std::errc() || value < low || value > kMaxLength) {
    place.fail(column, fmt::format("{} {} is not in [{}, {}]", field, shown(text), low, kMaxLength));
  }
  return value;
}

void read_csv(std::string_view text, Place& place, std::vector<TraceRequest>& requests) {
  Lines lines(text, place);
  lines.next();  // the header, by which the format was recognised
  while (const auto line = lines.next()) {
    const std::size_t first = line->find(',');
    if (first == std::string_view::npos) place.fail(line->size() + 1, "1 field; expected 3: TIMESTAMP,ContextTokens,GeneratedTokens");
    const std::size_t second = line->find(',', first + 1);
    if (second == std::string_view::npos) place.fail(line->size() + 1, "2 fields; expected 3: TIMESTAMP,ContextTokens,GeneratedTokens");
    const std::size_t third = line->find(',', second + 1);
    if (third != std::string_view::npos) place.fail(third + 1, "more than 3 fields");
    TraceRequest request;
    request.arrival = TimestampReader(line->substr(0, first), place, 1).read();
    request.input_length = csv_length(line->substr(first + 1, second - first - 1), 1, "ContextTokens", place, first + 2);
    request.output_length = csv_length(line->substr(second + 1), 0, "GeneratedTokens", place, second + 2);
    requests.push_back(std::move(request));
  }
}

/// The column of a member's name in its line, 1 if it does not stand there literally.
std::size_t column_of(std::string_view line, std::string_view field) {
  const std::size_t at = line.find(fmt::format("\"{}\"", field));
  return at == std::string_view::npos ? 1 : at + 1;
}

const nlohmann::json& member(const nlohmann::json& object, std::string_view field, const Place& place, std::string_view line) {
  const auto it = object.find(std::string(field));
  if (it == object.end()) place.fail(line.size(), fmt::format("\"{}\" is missing", field));
  return *it;
}

std::int64_t json_integer(const nlohmann::json& value, std::int64_t low, std::int64_t high, std::string_view field, const Place& place,
                          std::string_view line) {
  if (!value.is_number_integer()) place.fail(column_of(line, field), fmt::format("\"{}\" must be an integer", field));
  const bool huge = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(high);
  if (huge || value.get<std::int64_t>() < low) {
    place.fail(column_of(line, field), fmt::format("\"{}\" {} is not in [{}, {}]", field, value.dump(), low, high));
  }
  return value.get<std::int64_t>();
}

TraceRequest json_request(std::string_view line, const Place& place) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    place.fail(std::clamp<std::size_t>(error.byte, 1, line.size() + 1), "not a JSON object: syntax error");
  } catch (const nlohmann::json::exception&) {
    place.fail(1, "not a JSON object: a number is out of range");
  }
  if (!object.is_object()) place.fail(1, "not a JSON object");
  TraceRequest request;
  const nlohmann::json& timestamp = member(object, "timestamp", place, line);
  if (!timestamp.is_number()) place.fail(column_of(line, "timestamp"), "\"timestamp\" must be a number of milliseconds");
  request.arrival = timestamp.get<double>() / 1000;
  if (!(request.arrival >= 0 && request.arrival <= 1e12)) {
    place.fail(column_of(line, "timestamp"), fmt::format("\"timestamp\" {} is not in [0, 1e15] milliseconds", shown(timestamp.dump())));
  }
  request.input_length = json_integer(member(object, "input_length", place, line), 1, kMaxLength, "input_length", place, line);
  request.output_length = json_integer(member(object, "output_length", place, line), 0, kMaxLength, "output_length", place, line);
  const nlohmann::json& hash_ids = member(object, "hash_ids", place, line);
  if (!hash_ids.is_array()) place.fail(column_of(line, "hash_ids"), "\"hash_ids\" must be an array");
  const std::int64_t blocks = (request.input_length + kPrefixBlock - 1) / kPrefixBlock;
  if (static_cast<std::int64_t>(hash_ids.size()) > blocks) {
    place.fail(column_of(line, "hash_ids"),
               fmt::format("{} hash_ids, but {} tokens are {} blocks of {}", hash_ids.size(), request.input_length, blocks, kPrefixBlock));
  }
  request.hash_ids.reserve(hash_ids.size());
  for (const nlohmann::json& id : hash_ids) {
    request.hash_ids.push_back(json_integer(id, 0, std::numeric_limits<std::int64_t>::max(), "hash_ids", place, line));
  }
  return request;
}

void read_jsonl(std::string_view text, Place& place, std::vector<TraceRequest>& requests) {
  Lines lines(text, place);
  while (const auto line = lines.next()) requests.push_back(json_request(*line, place));
}

// Quantiles of the Azure conversation trace: Azure Public Dataset, LLM inference trace 2023 (conversation, 19,366 requests), CC-BY 4.0;
// Patel et al., "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024.
struct Quantile {
  double fraction;
  double context_tokens;
  double generated_tokens;
};
constexpr std::array<Quantile, 17> kAzureConversation{{{0.00, 2, 7},
                                                       {0.01, 29, 16},
                                                       {0.05, 181, 41},
                                                       {0.10, 207, 54},
                                                       {0.20, 387, 77},
                                                       {0.25, 396, 85},
                                                       {0.30, 403, 91},
                                                       {0.40, 703, 103},
                                                       {0.50, 1020, 129},
                                                       {0.60, 1071, 177},
                                                       {0.70, 1130, 384},
                                                       {0.75, 1189, 395},
                                                       {0.80, 1315, 400},
                                                       {0.90, 2734, 424},
                                                       {0.95, 4083, 451},
                                                       {0.99, 4142, 601},
                                                       {1.00, 14050, 1000}}};
constexpr double kAzureRequestsPerSecond = 19366.0 / 3501.7;

/// Straight lines between the quantiles.
std::int64_t draw(double u, double Quantile::*tokens) {
  std::size_t i = 1;
  while (i + 1 < kAzureConversation.size() && kAzureConversation[i].fraction < u) ++i;
  const Quantile& a = kAzureConversation[i - 1];
  const Quantile& b = kAzureConversation[i];
  return std::llround(a.*tokens + (u - a.fraction) / (b.fraction - a.fraction) * (b.*tokens - a.*tokens));
}

}  // namespace

Trace parse_trace(std::string_view text, const std::string& file) {
  Place place{.file = file};
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) place.fail(1, "the file is empty");
  Trace trace{.source = file, .format = {}, .requests = {}};
  const std::string_view first_line = text.substr(0, text.find_first_of("\r\n"));
  if (first_line == kCsvHeader) {
    trace.format = "azure csv";
    read_csv(text, place, trace.requests);
  } else if (text.front() == '{') {
    trace.format = "mooncake jsonl";
    read_jsonl(text, place, trace.requests);
  } else {
    place.fail(1, fmt::format("neither a CSV with the header {} nor JSON lines", kCsvHeader));
  }
  if (trace.requests.empty()) place.fail(1, "no requests after the header");
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival < b.arrival; });
  const double start = trace.requests.front().arrival;
  for (TraceRequest& request : trace.requests) request.arrival -= start;
  return trace;
}

Trace read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(Code::io, fmt::format("{}: cannot be opened for reading", path));
  std::ostringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad() || text.fail()) throw Error(Code::io, fmt::format("{}: cannot be read", path));
  return parse_trace(text.str(), path);
}

Trace built_in_trace(std::int64_t num_requests, std::uint64_t seed) {
  Trace trace{.source = "quantiles of the Azure conversation trace 2023", .format = "built-in", .requests = {}};
  // mt19937_64 is the same everywhere, the standard distributions are not: uniform numbers are made by hand.
  std::mt19937_64 random(seed);
  const auto uniform = [&random] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
  double arrival = 0;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    TraceRequest request;
    request.arrival = arrival;
    request.input_length = draw(uniform(), &Quantile::context_tokens);
    request.output_length = draw(uniform(), &Quantile::generated_tokens);
    arrival -= std::log1p(-uniform()) / kAzureRequestsPerSecond;
    trace.requests.push_back(std::move(request));
  }
  return trace;
}

}  // namespace girih::tools
