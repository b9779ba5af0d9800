// The kernels of kernels.cuh on the emulator.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace girih::ptx_check {

enum class Check : std::uint8_t { fragments, conversions, functions };

/// The kernel's entry, and how many words it writes for a thread.
std::string_view entry(Check check);
int words(Check check);

/// Blocks of 32 threads (fragments: one warp), as the GPU test launches them. Returns [threads, words].
std::vector<std::uint32_t> run_emulated(Check check, const std::vector<std::uint32_t>& in, int num_threads);

}  // namespace girih::ptx_check
