// tests/kernel_resources.txt: what the listed kernels cost when they were last recorded, so that a change to kernels shows what it costs as
// a change to this file. By kernel, then a line for each group of architectures with equal figures:
//     attention_32x8_d128_..._mma_decode
//       sm_80 sm_87: 234 registers, 115216 shared
//       sm_90a: 255 registers, 106512 shared, 16 stack, 72 + 72 spilled (widening)
// The word in parentheses names one of the reasons at the top of the file: who uses local memory needs one. `?` stands where none is given.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "kernel_resources/measure.h"

namespace girih::kernel_resources {

inline constexpr std::string_view kNoReason = "?";

struct Recorded {
  Measured measured;   // without static_shared
  std::string reason;  // where it uses local memory
};

struct Record {
  std::string nvrtc;                           // exact version
  std::map<std::string, std::string> reasons;  // text by word
  /// By kernel, by architecture's name ("sm_90a" after "sm_89").
  struct ByArch {
    bool operator()(const std::string& a, const std::string& b) const { return a.size() != b.size() ? a.size() < b.size() : a < b; }
  };
  std::map<std::string, std::map<std::string, Recorded, ByArch>> kernels;

  /// Null where there is no line.
  const Recorded* find(const ListedKernel& kernel) const;
};

/// Throws std::runtime_error with the line's number.
Record parse_record(std::string_view text);
std::string print_record(const Record& record);
/// "234 registers, 115216 shared".
std::string describe(const Measured& measured);

}  // namespace girih::kernel_resources
