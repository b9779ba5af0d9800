// The row operators' kernels under the emulator: every case of cases/rows.h and rope.h against the reference, with threads in an order
// drawn at random.
// ctest: emulated-rows shards=2 timeout=600
#include <gtest/gtest.h>

#include "cases/rope.h"
#include "cases/rows.h"
#include "emulator/emulator.h"
#include "emulator/row_kernels.h"

namespace girih {
namespace {

constexpr Device kEmulated{DeviceKind::cuda, 0};

void run_emulated(rows::Launch launch, std::uint64_t seed) {
  const rows::Shape shape = rows::shape_launch(launch);
  if (shape.num_blocks == 0) return;
  std::string name;
  const std::uint64_t hash = emulator::source_hash(rows::source_of(launch, shape, name));
  for (const emulator::RowKernel& kernel : emulator::row_kernels()) {
    if (kernel.source_hash != hash) continue;
    emulator::launch(kernel.entry, launch.params,
                     {.num_blocks = static_cast<int>(shape.num_blocks),
                      .num_threads = shape.num_threads,
                      .shared_bytes = shape.shared_bytes,
                      .seed = seed});
    return;
  }
  FAIL() << name << " is not built";
}

class EmulatedRows : public testing::TestWithParam<cases::RowsCase> {};

TEST_P(EmulatedRows, MatchesTheReference) {
  for (const std::uint64_t seed : {0, 5}) {
    cases::RowsProblem p(GetParam());
    run_emulated(p.describe(kEmulated), seed);
    EXPECT_TRUE(p.matches()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EmulatedRows, testing::ValuesIn(cases::rows_cases()), [](const auto& info) { return info.param.name; });

class EmulatedRope : public testing::TestWithParam<cases::RopeCase> {};

TEST_P(EmulatedRope, MatchesTheReference) {
  for (const std::uint64_t seed : {0, 5}) {
    cases::RopeProblem p(GetParam());
    rows::Launch launch = p.describe(kEmulated);
    AppendPlaces at;
    if (p.c.append) {
      at = append_places("test", p.store(), p.batch.view());
      launch.params.places = at.places.data();
    }
    if (p.c.by_request) {
      launch.params.indptr = static_cast<const unsigned char*>(p.indptr.view.data);
      launch.params.offsets = static_cast<const unsigned char*>(p.offsets.view.data);
      launch.params.requests = 3;
    } else if (p.c.append) {
      launch.params.positions = reinterpret_cast<const unsigned char*>(at.positions.data());
      launch.params.position_stride = 8;
    }
    if (p.c.by_request || p.c.append) launch.params.positions_64 = 1;
    run_emulated(launch, seed);
    EXPECT_TRUE(p.matches()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EmulatedRope, testing::ValuesIn(cases::rope_cases()), [](const auto& info) { return info.param.name; });

/// By a plan: the query tokens are the last keys of their lists, at the positions that these have; tokens without a place are left out.
TEST(EmulatedRopePlan, PlacesAndPositionsComeFromTheBlob) {
  cases::RopeProblem p({.name = "append_bf16", .append = true});
  const cases::RopeBatch& batch = p.batch;
  struct Blob {
    alignas(64) abi::PlanHeader header{};
    abi::SegmentInfo segment{};
    abi::KvRow rows[3]{};
  } blob;
  blob.header.num_tokens = p.c.rows;
  blob.header.segments = {reinterpret_cast<const char*>(&blob.segment) - reinterpret_cast<const char*>(&blob), 1};
  blob.header.kv_rows = {reinterpret_cast<const char*>(blob.rows) - reinterpret_cast<const char*>(&blob), 3};
  blob.segment = {.page_size = p.c.page_size,
                  .num_groups = 3,
                  .num_entries = std::ssize(batch.kv_indices),
                  .kv_row_begin = 0,
                  .num_table_heads = 1,
                  .has_page_pos = 0,
                  .masked = 1};
  for (std::size_t r = 0; r < 3; ++r)
    blob.rows[r] = {.table_begin = batch.kv_indptr[r],
                    .kv_len = batch.kv_len[r],
                    .kv_pos = 0,
                    .kv_rope_pos = 0,
                    .q_begin = batch.append_indptr[r],
                    .q_end = batch.append_indptr[r + 1]};
  rows::Launch launch = p.describe(kEmulated);
  launch.params.plan = &blob.header;
  launch.params.kv_indices = batch.kv_indices.data();
  launch.params.page_size = {static_cast<std::uint32_t>(p.c.page_size), 0x80000000U, 33};
  run_emulated(launch, 3);
  EXPECT_TRUE(p.matches());
}

}  // namespace
}  // namespace girih
