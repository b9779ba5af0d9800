// The small grammars of the command line: lists of lengths and named calls with arguments. Also used by batch files (batch_json.h).
//
//   lengths   512  |  1,1,512  |  1x64,512x2 (1 sixty-four times, then 512 twice)
//             zipf:mean=4096,n=64[,s=1][,seed=1]       lengths proportional to 1 / rank^s with that mean, in shuffled order
//             uniform:min=1024,max=8192,n=256[,seed=1]
//   call      causal  |  window:left=1023,right=0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace girih::tools {

inline constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;  // keys are 32-bit indices inside a plan
inline constexpr std::int64_t kMaxLengths = std::int64_t{1} << 20;       // entries of one list

/// A name with numeric arguments; each argument is a list of at least one number.
struct NamedCall {
  std::string name;
  std::map<std::string, std::vector<double>, std::less<>> args;

  /// Throws invalid_argument for an argument that is not in `allowed`.
  void check_args(std::string_view what, std::initializer_list<std::string_view> allowed) const;
  bool has(std::string_view arg) const { return args.find(arg) != args.end(); }
  /// The argument as one whole number in [low, high]; throws where it is missing or outside.
  std::int64_t integer(std::string_view what, std::string_view arg, std::int64_t low, std::int64_t high) const;
  std::int64_t integer_or(std::string_view what, std::string_view arg, std::int64_t otherwise, std::int64_t low, std::int64_t high) const;
  /// The argument as one finite number.
  double number(std::string_view what, std::string_view arg) const;
  /// The argument as whole numbers in [low, high].
  std::vector<std::int64_t> integers(std::string_view what, std::string_view arg, std::int64_t low, std::int64_t high) const;
};

/// "name" or "name:arg=number,arg=number". `what` opens the messages (the option's or field's name); throws invalid_argument.
NamedCall parse_call(std::string_view text, std::string_view what);

/// Throws invalid_argument for what is not in the grammar, a length outside [0, kMaxLength] or more than kMaxLengths entries.
std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view what);

}  // namespace girih::tools
