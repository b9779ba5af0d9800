// The generated attention kernels that are built into the emulator's test: found by their source text, so that a test can only run what the
// library would compile for a GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "abi/attention_params.h"

namespace girih::emulator {

struct EmulatedKernel {
  std::uint64_t source_hash;
  const char* name;
  void (*entry)(abi::AttentionParams);
};

/// Of a kernel's generated source.
constexpr std::uint64_t source_hash(std::string_view source) {  // FNV-1a
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const char c : source) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return h;
}

/// In the generated kernels.cc.
std::span<const EmulatedKernel> emulated_kernels();

}  // namespace girih::emulator
