// Every rule on a batch has a case here: the error is invalid_argument, names the argument, and leaves the plan as it was.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "girih/error.h"
#include "plan_batches.h"

namespace girih {
namespace {

using plan_test::PlanBatch;
using plan_test::ScheduleForm;

using Ints = std::vector<std::int64_t>;

/// A good batch of three requests, one paged segment, that a case spoils.
struct Spoiled {
  PlanBatch owner = plan_test::simple_batch({2, 1, 3}, {20, 0, 35}, 16);
  Batch batch;
  std::vector<KvSegment> segments = owner.segments;
  Ints a, b, c;  // replacement arrays
  std::vector<std::int32_t> small;
  std::vector<ParamValue> params;
};

struct Case {
  const char* text;  // the message must contain it
  std::function<void(Spoiled&)> spoil;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.text; }

ScheduleForm form_of() {
  ScheduleForm form;
  form.num_kv_heads = 2;
  form.group = 2;
  form.num_units = 3;
  form.limits = {.max_tokens = 10, .max_requests = 4, .max_segments = 2, .max_groups = 7, .max_kv_len = 100, .max_qo_len = 4};
  return form;
}

class PlanErrors : public testing::TestWithParam<Case> {};

TEST_P(PlanErrors, NameTheArgumentAndChangeNothing) {
  attention::PlanState plan(plan_test::make_schedule(form_of()));
  Spoiled s;
  make_plan(plan, s.owner.batch());
  const std::byte* blob = reinterpret_cast<const std::byte*>(plan.view.header);
  const std::vector<std::byte> before(blob, blob + plan.view.header->blob_bytes);
  s.batch = s.owner.batch();
  GetParam().spoil(s);
  s.batch.segments = s.segments;
  try {
    make_plan(plan, s.batch);
    FAIL() << "accepted: " << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_EQ(std::string(error.what()).rfind("attention.plan: ", 0), 0U) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().text), std::string::npos) << error.what();
  }
  ASSERT_EQ(reinterpret_cast<const std::byte*>(plan.view.header), blob);
  EXPECT_EQ(0, std::memcmp(blob, before.data(), before.size()));
}

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

const Case kCases[] = {
    {"qo_indptr[0]=1",
     [](Spoiled& s) {
       s.batch.qo_indptr = s.a = {1, 2, 3, 6};
     }},
    {"qo_indptr[2]=1 < qo_indptr[1]=2",
     [](Spoiled& s) {
       s.batch.qo_indptr = s.a = {0, 2, 1, 6};
     }},
    {"max_requests is 4", [](Spoiled& s) { s.batch.qo_indptr = s.a = {0, 1, 2, 3, 4, 5}; }},
    {"max_tokens is 10",
     [](Spoiled& s) {
       s.batch.qo_indptr = s.a = {0, 4, 8, 11};
     }},
    {"qo_indptr[3]=4611686018427387904",
     [](Spoiled& s) {
       s.batch.qo_indptr = s.a = {0, 2, 3, kHuge};
     }},
    {"qo_indptr[3]=8 gives request 2 5 rows; the schedule's max_qo_len is 4",
     [](Spoiled& s) {
       s.batch.qo_indptr = s.a = {0, 2, 3, 8};
     }},
    {"segments[0].qo_indptr[3]=6 gives group 2 5 rows; the schedule's max_qo_len is 4",
     [](Spoiled& s) {
       s.segments[0].qo_indptr = s.a = {0, 0, 1, 6};
     }},
    {": kv_len has 2 entries",
     [](Spoiled& s) {
       s.batch.kv_len = s.a = {1, 2};
     }},
    {": kv_len[1]=-1",
     [](Spoiled& s) {
       s.batch.kv_len = s.a = {1, -1, 2};
     }},
    {": q_pos has 1 entries", [](Spoiled& s) { s.batch.q_pos = s.a = {1}; }},
    {": q_pos[2]=4611686018427387904",
     [](Spoiled& s) {
       s.batch.q_pos = s.a = {1, 0, kHuge};
     }},
    {"q_rope_pos has 4 entries",
     [](Spoiled& s) {
       s.batch.q_rope_pos = s.a = {1, 2, 3, 4};
     }},
    {"q_rope_pos[0]=-4611686018427387904",
     [](Spoiled& s) {
       s.batch.q_rope_pos = s.a = {-kHuge, 0, 0};
     }},
    {"max_segments is 2", [](Spoiled& s) { s.segments.resize(3, s.segments[0]); }},
    {"max_groups is 7",
     [](Spoiled& s) {
       s.segments.push_back(s.segments[0]);
       s.segments[1].qo_indptr = s.a = {0, 1, 2, 3, 4, 5};
     }},
    {"segments[0].page_size=-1", [](Spoiled& s) { s.segments[0].page_size = -1; }},
    {"segments[0].page_size=4611686018427387904", [](Spoiled& s) { s.segments[0].page_size = kHuge; }},
    {"segments[0].num_table_heads=3", [](Spoiled& s) { s.segments[0].num_table_heads = 3; }},
    {"segments[0].num_table_heads=0", [](Spoiled& s) { s.segments[0].num_table_heads = 0; }},
    {"segments[0].qo_indptr[0]=-1",
     [](Spoiled& s) {
       s.segments[0].qo_indptr = s.a = {-1, 2, 3, 6};
     }},
    {"segments[0].qo_indptr[2]=1 < [1]=2",
     [](Spoiled& s) {
       s.segments[0].qo_indptr = s.a = {0, 2, 1, 6};
     }},
    {"segments[0].qo_indptr[3]=7 exceeds the 6 query rows",
     [](Spoiled& s) {
       s.segments[0].qo_indptr = s.a = {0, 2, 3, 7};
     }},
    {"segments[0].kv_indptr has 3 entries; must have 4",
     [](Spoiled& s) {
       s.segments[0].kv_indptr = s.a = {0, 2, 2};
     }},
    {"segments[0].kv_indptr has 0 entries", [](Spoiled& s) { s.segments[0].kv_indptr = {}; }},
    {"segments[0].kv_indptr[0]=-2",
     [](Spoiled& s) {
       s.segments[0].kv_indptr = s.a = {-2, 2, 2, 5};
     }},
    {"segments[0].kv_indptr[2]=1 < [1]=2",
     [](Spoiled& s) {
       s.segments[0].kv_indptr = s.a = {0, 2, 1, 5};
     }},
    {"segments[0].kv_len has 2 entries",
     [](Spoiled& s) {
       s.segments[0].kv_len = s.a = {20, 0};
     }},
    {"segments[0].kv_len has 0 entries", [](Spoiled& s) { s.segments[0].kv_len = {}; }},
    {"segments[0].kv_len[1]=-1",
     [](Spoiled& s) {
       s.segments[0].kv_len = s.a = {20, -1, 35};
     }},
    {"segments[0].kv_len[2]=101",
     [](Spoiled& s) {
       s.segments[0].kv_len = s.a = {20, 0, 101};
     }},
    {"segments[0].kv_len[2]=4611686018427387904",
     [](Spoiled& s) {
       s.segments[0].kv_len = s.a = {20, 0, kHuge};
     }},
    {"segments[0].kv_len[0]=33 keys need 3 entries; kv_indptr gives 2",
     [](Spoiled& s) {
       s.segments[0].kv_len = s.a = {33, 0, 35};
     }},
    {"segments[0].kv_indptr excludes table_stride=5", [](Spoiled& s) { s.segments[0].table_stride = 5; }},
    {"segments[0].table_stride=-1", [](Spoiled& s) { s.segments[0].table_stride = -1; }},
    {"segments[0].table_stride=2 entries a row; kv_len[2]=35 keys need 3",
     [](Spoiled& s) {
       s.segments[0].kv_indptr = {};
       s.segments[0].table_stride = 2;
     }},
    {"segments[0].table_stride=4611686018427387904 x 3 table rows overflows",
     [](Spoiled& s) {
       s.segments[0].kv_indptr = {};
       s.segments[0].table_stride = kHuge;
     }},
    {"segments[0].table_stride=4 with an endless page",
     [](Spoiled& s) {
       s.segments[0].kv_indptr = {};
       s.segments[0].page_size = kEndlessPage;
       s.segments[0].table_stride = 4;
     }},
    {"segments[0].kv_indptr[2] extent=101 keys",
     [](Spoiled& s) {
       s.segments[0].page_size = kEndlessPage;
       s.segments[0].kv_len = {};
       s.segments[0].kv_indptr = s.a = {0, 5, 9, 110};
     }},
    {"segments[0].kv_pos has 1 entries", [](Spoiled& s) { s.segments[0].kv_pos = s.a = {0}; }},
    {"segments[0].kv_pos[1]=4611686018427387904",
     [](Spoiled& s) {
       s.segments[0].kv_pos = s.a = {0, kHuge, 0};
     }},
    {"segments[0].kv_rope_pos has 2 entries",
     [](Spoiled& s) {
       s.segments[0].kv_rope_pos = s.a = {0, 0};
     }},
    {"segments[0].kv_rope_pos[0]=4611686018427387904",
     [](Spoiled& s) {
       s.segments[0].kv_rope_pos = s.a = {kHuge, 0, 0};
     }},
    {"segments[0].page_pos excludes kv_pos",
     [](Spoiled& s) {
       s.segments[0].kv_pos = s.a = {0, 0, 0};
       s.segments[0].page_pos = s.b = {0, 16, 0, 16, 32};
     }},
    {"segments[0].page_pos has 4 entries; must have 5",
     [](Spoiled& s) {
       s.segments[0].page_pos = s.a = {0, 16, 0, 16};
     }},
    {"segments[0].page_pos[4]=4611686018427387904",
     [](Spoiled& s) {
       s.segments[0].page_pos = s.a = {0, 16, 0, 16, kHuge};
     }},
    {"segments[0].page_pos with an endless page",
     [](Spoiled& s) {
       s.segments[0].page_size = kEndlessPage;
       s.segments[0].kv_len = {};
       s.segments[0].page_pos = s.a = {0, 16, 0, 16, 32};
     }},
    {"nonsense",
     [](Spoiled& s) {
       s.params = {{.name = "nonsense", .integer = 3}};
       s.batch.params = s.params;
     }},
};

INSTANTIATE_TEST_SUITE_P(Rules, PlanErrors, testing::ValuesIn(kCases));

TEST(PlanErrors, ExtraPagesAreIgnored) {
  attention::PlanState plan(plan_test::make_schedule(form_of()));
  Spoiled s;
  s.batch = s.owner.batch();
  s.segments[0].kv_indptr = s.a = {0, 9, 12, 20};
  s.batch.segments = s.segments;
  make_plan(plan, s.batch);
  EXPECT_EQ(plan.view.segments[0].num_entries, 12 + 3);
}

TEST(PlanErrors, ParametersBeyondTheirLimit) {
  ScheduleForm form = form_of();
  form.limits.max_param_bytes = 64;
  form.variant.mask = variants::document(ParamTime::plan);
  attention::PlanState plan(plan_test::make_schedule(form));
  Spoiled s;
  s.small.resize(17);
  s.params = {{.name = "document_id", .array = TensorView(s.small.data(), DType::i32, {17})}};
  s.batch = s.owner.batch();
  EXPECT_THROW(make_plan(plan, s.batch), Error);  // missing
  s.batch.params = s.params;
  try {
    make_plan(plan, s.batch);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("max_param_bytes is 64"), std::string::npos) << error.what();
  }
  s.params[0].array.shape[0] = 16;
  make_plan(plan, s.batch);
}

TEST(PlanErrors, InvariantSegmentsMeetAtChunks) {
  ScheduleForm form = form_of();
  form.batch_invariant = true;
  attention::PlanState plan(plan_test::make_schedule(form));
  Spoiled s;
  s.batch = s.owner.batch();
  s.segments.push_back(s.segments[0]);
  s.segments[1].kv_pos = s.a = {32, 7, 64};  // request 1 has no keys
  s.batch.segments = s.segments;
  make_plan(plan, s.batch);
  s.segments[1].kv_pos = s.a = {32, 0, 63};
  try {
    make_plan(plan, s.batch);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("segments[1].kv_pos[2]=63"), std::string::npos) << error.what();
  }
}

/// A blob whose bytes were changed is refused or read, never trusted; each of these changes must be refused.
/// Limits that show only in the number of items, or in a class that the schedule has no units for.
TEST(PlanErrors, ItemsAndClassesBeyondTheLimits) {
  ScheduleForm form = form_of();
  form.limits.max_items = 9;
  attention::PlanState few(plan_test::make_schedule(form));
  make_plan(few, plan_test::simple_batch({1, 1, 1}, {5, 6, 7}).batch());  // two heads and three units: nine at most
  try {
    make_plan(few, plan_test::simple_batch({1, 1, 1, 1}, {5, 6, 7, 8}).batch());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("needs 11 work items; the schedule's limits.max_items is 9"), std::string::npos)
        << error.what();
  }
  form = form_of();
  form.batch_invariant = true;
  form.num_small_units = 3;
  attention::PlanState small(plan_test::make_schedule(form));
  PlanBatch b = plan_test::simple_batch({1, 1, 1}, {5, 6, 7});
  make_plan(small, b.batch());
  const std::vector<std::int64_t> groups = {0, 2, 3, 3};
  b.segments[0].qo_indptr = groups;
  try {
    make_plan(small, b.batch());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("limits.max_qo_len=4 rules out"), std::string::npos) << error.what();
  }
}

TEST(PlanErrors, SpoiledBlobs) {
  const auto state = plan_test::make_schedule(form_of());
  attention::PlanState plan(state);
  PlanBatch b = plan_test::simple_batch({2, 1, 3}, {90, 60, 95}, 16);
  make_plan(plan, b.batch());
  ASSERT_FALSE(plan.view.merges.empty());
  const std::size_t size = static_cast<std::size_t>(plan.view.header->blob_bytes);
  std::vector<std::byte> memory(size + 64);
  std::byte* blob = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  struct Spoil {
    const char* text;
    std::function<void(std::byte*, abi::PlanHeader&)> change;
  };
  const auto item = [](std::byte* at, abi::PlanHeader& h, std::int64_t i) -> abi::WorkItem& {
    return reinterpret_cast<abi::WorkItem*>(at + h.items.offset)[i];
  };
  const auto part = [&](std::byte* at, abi::PlanHeader& h) -> abi::WorkItem& {
    std::int64_t i = 0;
    while (item(at, h, i).part_row < 0 || (item(at, h, i).flags & abi::WorkItem::kLast) == 0) ++i;
    return item(at, h, i);
  };
  const Spoil spoils[] = {
      {"header.magic", [](std::byte*, abi::PlanHeader& h) { h.magic ^= 1; }},
      {"header.version", [](std::byte*, abi::PlanHeader& h) { h.version += 1; }},
      {"header.blob_bytes", [](std::byte*, abi::PlanHeader& h) { h.blob_bytes += 64; }},
      {"header.schedule_hash", [](std::byte*, abi::PlanHeader& h) { h.schedule_hash += 1; }},
      {"num_tokens", [](std::byte*, abi::PlanHeader& h) { h.num_tokens = 11; }},
      {"num_units", [](std::byte*, abi::PlanHeader& h) { h.num_units = 2; }},
      {"part_rows", [](std::byte*, abi::PlanHeader& h) { h.part_rows = std::int64_t{1} << 40; }},
      {"header.items.count", [](std::byte*, abi::PlanHeader& h) { h.items.count = INT64_MAX; }},
      {"header.items.offset", [](std::byte*, abi::PlanHeader& h) { h.items.offset = INT64_MAX & ~63; }},
      {"header.merges.offset", [](std::byte*, abi::PlanHeader& h) { h.merges.offset += 8; }},
      {"unit_begin[3]", [](std::byte*, abi::PlanHeader& h) { h.items.count -= 1; }},
      {"merge_begin", [&](std::byte* at, abi::PlanHeader& h) { part(at, h).merge_begin = static_cast<std::int32_t>(h.merges.count); }},
      {"class_unit_begin[1]", [](std::byte*, abi::PlanHeader& h) { h.class_unit_begin[1] = 1; }},
      {"num_empty_merges", [](std::byte*, abi::PlanHeader& h) { h.num_empty_merges = -1; }},
      {"merge_begin", [](std::byte*, abi::PlanHeader& h) { h.num_empty_merges = 1; }},
      {"unit_begin.offset", [](std::byte*, abi::PlanHeader& h) { h.unit_begin.offset += 64; }},
      {"items.offset", [](std::byte*, abi::PlanHeader& h) { h.items.offset += 64, h.items.count -= 2; }},
      {"announce", [&](std::byte* at, abi::PlanHeader& h) { part(at, h).merge_begin += 1; }},
      {"merge_count", [&](std::byte* at, abi::PlanHeader& h) { part(at, h).merge_count = 0; }},
      {"merge_count", [&](std::byte* at, abi::PlanHeader& h) { part(at, h).merge_count = INT32_MAX; }},
      {"items[0].merge_count", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).merge_count = 1; }},
      {"takes it twice",
       [](std::byte* at, abi::PlanHeader& h) {
         auto* parts = reinterpret_cast<abi::MergePart*>(at + h.merge_parts.offset);
         parts[1] = parts[0];
       }},
      {"unwritten",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::MergeItem*>(at + h.merges.offset)->row_count -= 1; }},
      {"items[0].segment", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).segment = 1; }},
      {"items[0].kv_head", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).kv_head = 2; }},
      {"items[0].tile_class", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).tile_class = 2; }},
      {"items[0].row_count", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).row_count = 0; }},
      {"items[0].row_begin", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).row_begin = -1; }},
      {"items[0].kv_row", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).kv_row = 3; }},
      {"items[0].kv_begin", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).kv_begin = item(at, h, 0).full_begin = 1; }},
      {"items[0].kv_end", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).kv_end = 101; }},
      {"items[0].full_end", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).full_end = item(at, h, 0).kv_end + 1; }},
      {"items[0].flags", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).flags = abi::WorkItem::kLast; }},
      {"items[0].flags", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).flags |= abi::WorkItem::kChunk; }},
      {"items[0].part_row", [&](std::byte* at, abi::PlanHeader& h) { item(at, h, 0).part_row = -2; }},
      {"merges[0].row_count",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::MergeItem*>(at + h.merges.offset)->row_count = 1000; }},
      {"merges[0].part_count",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::MergeItem*>(at + h.merges.offset)->part_count = 1000; }},
      {"merge_parts[0].part_row",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::MergePart*>(at + h.merge_parts.offset)->part_row = -1; }},
      {"requests[0].q_begin",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::RequestInfo*>(at + h.requests.offset)->q_begin = 1; }},
      {"segments[0].num_groups",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::SegmentInfo*>(at + h.segments.offset)->num_groups = 4; }},
      {"segments[0].num_entries",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::SegmentInfo*>(at + h.segments.offset)->num_entries = 1; }},
      {"kv_rows[0].table_begin",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::KvRow*>(at + h.kv_rows.offset)->table_begin = -1; }},
      {"kv_rows[0].kv_len", [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::KvRow*>(at + h.kv_rows.offset)->kv_len = 101; }},
      {"kv_rows[1].q_begin",
       [](std::byte* at, abi::PlanHeader& h) { reinterpret_cast<abi::KvRow*>(at + h.kv_rows.offset)[1].q_begin = 1; }},
  };
  for (const Spoil& spoil : spoils) {
    std::memcpy(blob, plan.view.header, size);
    spoil.change(blob, *reinterpret_cast<abi::PlanHeader*>(blob));
    try {
      attention::read_blob(*state, {blob, size});
      ADD_FAILURE() << "accepted: " << spoil.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(spoil.text), std::string::npos) << error.what();
    }
  }
  std::memcpy(blob, plan.view.header, size);
  EXPECT_THROW(attention::read_blob(*state, {blob, size - 1}), Error);
  EXPECT_THROW(attention::read_blob(*state, {blob, 10}), Error);
  EXPECT_THROW(attention::read_blob(*state, {}), Error);
}

}  // namespace
}  // namespace girih
