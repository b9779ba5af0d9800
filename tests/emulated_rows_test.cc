// The row operators' kernels under the emulator: every case of cases/rows.h against the reference, with few blocks, so that each works on
// several rows, and with threads in an order drawn at random.
// ctest: emulated-rows shards=2 timeout=600
#include <gtest/gtest.h>

#include "cases/rows.h"
#include "emulator/emulator.h"
#include "emulator/row_kernels.h"

namespace girih {
namespace {

constexpr Device kEmulated{DeviceKind::cuda, 0};

void run_emulated(cases::RowsProblem& p, int most_blocks, std::uint64_t seed) {
  rows::Launch launch = p.describe(kEmulated);
  const rows::Shape shape = rows::shape_launch(launch);
  if (shape.num_items == 0) return;
  std::string name;
  const std::uint64_t hash = emulator::source_hash(rows::source_of(launch, shape, name));
  for (const emulator::RowKernel& kernel : emulator::row_kernels()) {
    if (kernel.source_hash != hash) continue;
    emulator::launch(kernel.entry, launch.params,
                     {.num_blocks = static_cast<int>(std::min<std::int64_t>(shape.num_items, most_blocks)),
                      .num_threads = shape.num_threads,
                      .shared_bytes = shape.shared_bytes,
                      .seed = seed});
    return;
  }
  FAIL() << name << " is not built";
}

class EmulatedRows : public testing::TestWithParam<cases::RowsCase> {};

TEST_P(EmulatedRows, MatchesTheReference) {
  for (const auto& [blocks, seed] : {std::pair{1, std::uint64_t{0}}, {3, std::uint64_t{5}}}) {
    cases::RowsProblem p(GetParam());
    run_emulated(p, blocks, seed);
    EXPECT_TRUE(p.matches()) << blocks << " blocks";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EmulatedRows, testing::ValuesIn(cases::rows_cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace girih
