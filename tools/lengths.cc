// Parsers of lengths.h. Every count is checked before memory is taken for it.
#include "tools/lengths.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"

namespace girih::tools {
namespace {

std::int64_t parse_integer(std::string_view text, std::string_view what, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    fail(Code::invalid_argument, what, "'{}' is not a whole number in [{}, {}]", text, low, high);
  }
  return value;
}

double parse_number(std::string_view text, std::string_view what, std::string_view arg) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    fail(Code::invalid_argument, what, "{}='{}' is not a finite number", arg, text);
  }
  return value;
}

/// Calls f(piece) for the pieces of `text` between commas.
template <typename F>
void for_each_piece(std::string_view text, F&& f) {
  for (;;) {
    const std::size_t comma = text.find(',');
    f(text.substr(0, comma));
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::int64_t> zipf_lengths(const NamedCall& call, std::string_view what) {
  call.check_args(what, {"mean", "n", "s", "seed"});
  const std::int64_t mean = call.integer(what, "mean", 0, kMaxLength);
  const std::int64_t n = call.integer(what, "n", 0, kMaxLengths);
  const double exponent = call.has("s") ? call.number(what, "s") : 1.0;
  if (exponent < 0 || exponent > 8) fail(Code::invalid_argument, what, "s={} is outside [0, 8]", exponent);
  std::mt19937_64 random(static_cast<std::uint64_t>(call.integer_or(what, "seed", 1, 0, kMaxLength)));
  std::vector<double> weights(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::pow(static_cast<double>(i + 1), -exponent);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> lengths(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double length = static_cast<double>(mean) * static_cast<double>(n) * weights[i] / sum;
    lengths[i] = std::llround(std::min(length, static_cast<double>(kMaxLength)));
  }
  // Own shuffle: std::shuffle's order differs between standard libraries.
  for (std::size_t i = lengths.size(); i > 1; --i) std::swap(lengths[i - 1], lengths[random() % i]);
  return lengths;
}

std::vector<std::int64_t> uniform_lengths(const NamedCall& call, std::string_view what) {
  call.check_args(what, {"min", "max", "n", "seed"});
  const std::int64_t low = call.integer(what, "min", 0, kMaxLength);
  const std::int64_t high = call.integer(what, "max", low, kMaxLength);
  const std::int64_t n = call.integer(what, "n", 0, kMaxLengths);
  std::mt19937_64 random(static_cast<std::uint64_t>(call.integer_or(what, "seed", 1, 0, kMaxLength)));
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(n));
  for (std::int64_t& length : lengths) length = low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  return lengths;
}

const std::vector<double>& find_arg(const NamedCall& call, std::string_view what, std::string_view arg) {
  const auto found = call.args.find(arg);
  if (found == call.args.end()) fail(Code::invalid_argument, what, "{} needs {}=NUMBER", call.name, arg);
  return found->second;
}

std::int64_t whole(double value, std::string_view what, std::string_view arg, std::int64_t low, std::int64_t high) {
  if (!(value >= static_cast<double>(low) && value <= static_cast<double>(high)) || value != std::floor(value)) {
    fail(Code::invalid_argument, what, "{}={} is not a whole number in [{}, {}]", arg, value, low, high);
  }
  return static_cast<std::int64_t>(value);
}

double single(const std::vector<double>& values, std::string_view what, std::string_view arg) {
  if (values.size() != 1) fail(Code::invalid_argument, what, "{} has {} values; must be one number", arg, values.size());
  return values.front();
}

}  // namespace

void NamedCall::check_args(std::string_view what, std::initializer_list<std::string_view> allowed) const {
  for (const auto& [arg, values] : args) {
    if (std::find(allowed.begin(), allowed.end(), arg) != allowed.end()) continue;
    std::string list;
    for (std::string_view a : allowed) list += (list.empty() ? "" : ", ") + std::string(a);
    fail(Code::invalid_argument, what, "{} has no argument '{}'; it takes: {}", name, arg, list.empty() ? "none" : list);
  }
}

std::int64_t NamedCall::integer(std::string_view what, std::string_view arg, std::int64_t low, std::int64_t high) const {
  return whole(single(find_arg(*this, what, arg), what, arg), what, arg, low, high);
}

std::int64_t NamedCall::integer_or(std::string_view what, std::string_view arg, std::int64_t otherwise, std::int64_t low,
                                   std::int64_t high) const {
  return has(arg) ? integer(what, arg, low, high) : otherwise;
}

double NamedCall::number(std::string_view what, std::string_view arg) const {
  const double value = single(find_arg(*this, what, arg), what, arg);
  if (!std::isfinite(value)) fail(Code::invalid_argument, what, "{}={} is not finite", arg, value);
  return value;
}

std::vector<std::int64_t> NamedCall::integers(std::string_view what, std::string_view arg, std::int64_t low, std::int64_t high) const {
  std::vector<std::int64_t> result;
  for (double value : find_arg(*this, what, arg)) result.push_back(whole(value, what, arg, low, high));
  return result;
}

NamedCall parse_call(std::string_view text, std::string_view what) {
  NamedCall call;
  const std::size_t colon = text.find(':');
  call.name = std::string(text.substr(0, colon));
  if (call.name.empty()) fail(Code::invalid_argument, what, "'{}' has no name; write name or name:arg=number", text);
  if (colon == std::string_view::npos) return call;
  for_each_piece(text.substr(colon + 1), [&](std::string_view piece) {
    const std::size_t equal = piece.find('=');
    if (equal == 0 || equal == std::string_view::npos) {
      fail(Code::invalid_argument, what, "'{}' in '{}' is not of the form arg=number", piece, text);
    }
    const std::string arg(piece.substr(0, equal));
    if (call.has(arg)) fail(Code::invalid_argument, what, "{} is given twice in '{}'", arg, text);
    call.args[arg] = {parse_number(piece.substr(equal + 1), what, arg)};
  });
  return call;
}

std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view what) {
  if (text.find(':') != std::string_view::npos) {
    const NamedCall call = parse_call(text, what);
    if (call.name == "zipf") return zipf_lengths(call, what);
    if (call.name == "uniform") return uniform_lengths(call, what);
    fail(Code::invalid_argument, what, "'{}' is no distribution; there are zipf and uniform", call.name);
  }
  std::vector<std::int64_t> lengths;
  if (text.empty()) return lengths;
  for_each_piece(text, [&](std::string_view piece) {
    const std::size_t times = piece.find('x');
    const std::int64_t length = parse_integer(piece.substr(0, times), what, 0, kMaxLength);
    const std::int64_t count = times == std::string_view::npos ? 1 : parse_integer(piece.substr(times + 1), what, 0, kMaxLengths);
    if (count > kMaxLengths - std::ssize(lengths)) fail(Code::invalid_argument, what, "more than {} lengths", kMaxLengths);
    lengths.insert(lengths.end(), static_cast<std::size_t>(count), length);
  });
  return lengths;
}

}  // namespace girih::tools
