// The kernels of kernels.cuh on the emulator.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "abi/tensor_map.h"

namespace girih::ptx_check {

enum class Check : std::uint8_t { fragments, conversions, functions };

/// The kernel's entry, and how many words it writes for a thread.
std::string_view entry(Check check);
int words(Check check);

/// Blocks of 32 threads (fragments: one warp), as the GPU test launches them. Returns [threads, words].
std::vector<std::uint32_t> run_emulated(Check check, const std::vector<std::uint32_t>& in, int num_threads);

/// hopper.cuh's kernel: one block of 128 threads over rows of 64 codes of 16 bits, kProductRows of them.
inline constexpr int kProductRows = 160;
inline constexpr int kProductBoxRows = 32;
inline constexpr std::int64_t kProductSharedBytes = kProductRows * 128 + 8;
/// Words by type: product_words() over the threads; then stmatrix's.
inline constexpr int kStoredWords = 2 * 4 * 128;
std::int64_t product_words();
std::vector<std::uint32_t> run_products(const abi::TensorMap& map);

}  // namespace girih::ptx_check
