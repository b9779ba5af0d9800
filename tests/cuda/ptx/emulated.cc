// See emulated.h.
#include "cuda/ptx/emulated.h"

#include "cuda/ptx/hopper.cuh"
#include "cuda/ptx/kernels.cuh"
#include "emulator/emulator.h"

namespace girih::ptx_check {

std::string_view entry(Check check) {
  switch (check) {
    case Check::fragments: return "ptx_check_fragments";
    case Check::conversions: return "ptx_check_conversions";
    case Check::functions: return "ptx_check_functions";
  }
  return "";
}

int words(Check check) {
  return check == Check::fragments ? kFragmentWords : check == Check::conversions ? kConversionWords : kFunctionWords;
}

std::vector<std::uint32_t> run_emulated(Check check, const std::vector<std::uint32_t>& in, int num_threads) {
  std::vector<std::uint32_t> out(static_cast<std::size_t>(num_threads * words(check)));
  constexpr void (*kKernels[])(Params) = {ptx_check_fragments, ptx_check_conversions, ptx_check_functions};
  emulator::launch(kKernels[static_cast<int>(check)], {in.data(), out.data(), num_threads},
                   {.num_blocks = (num_threads + 31) / 32, .num_threads = 32, .shared_bytes = 512});
  return out;
}

static_assert(kQueries + kKeys == kProductRows && kBoxRows == kProductBoxRows);

std::int64_t product_words() { return std::int64_t{128} * 3 * kProductWords; }

std::vector<std::uint32_t> run_products(const abi::TensorMap& map) {
  std::vector<std::uint32_t> out(static_cast<std::size_t>(product_words() + kStoredWords));
  emulator::launch(ptx_check_products, {map, out.data()}, {.num_blocks = 1, .num_threads = 128, .shared_bytes = kProductSharedBytes});
  return out;
}

}  // namespace girih::ptx_check
