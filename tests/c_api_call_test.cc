// What the C ABI is built from: every exception becomes a status with a text of its own thread, structs of older and newer callers are
// read and filled as far as they go, callbacks reach C, and planning and running through it allocate nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "c_api/call.h"
#include "c_api/handles.h"
#include "girih/girih_c.h"

namespace {
std::atomic<long> num_allocations{0};
}  // namespace

// Not inlined: GCC would see new paired with free and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size != 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

/// A struct whose second version added `later`.
struct Grown {
  std::uint64_t struct_size;
  std::int64_t first;
  double later;
};
struct FirstVersion {
  std::uint64_t struct_size;
  std::int64_t first;
};

namespace girih::c_api {

template <>
inline constexpr StructInfo kStruct<Grown>{"Grown", sizeof(FirstVersion)};
template <>
Grown defaults() {
  return {.struct_size = sizeof(Grown), .first = 3, .later = 7};
}

namespace {

template <typename Body>
void expect_failure(girih_status status, const std::string& text, Body&& body) {
  EXPECT_EQ(guarded("test", [&](const Call& call) { body(call); }), status);
  EXPECT_EQ(girih_last_error(), text);
}

TEST(CApiCallTest, EveryExceptionHasItsStatusAndText) {
  EXPECT_EQ(guarded("test", [](const Call&) {}), GIRIH_OK);
  expect_failure(GIRIH_INVALID_ARGUMENT, "op: a=1", [](const Call&) { fail(Code::invalid_argument, "op", "a={}", 1); });
  expect_failure(GIRIH_UNSUPPORTED, "op: b", [](const Call&) { fail(Code::unsupported, "op", "b"); });
  expect_failure(GIRIH_OUT_OF_MEMORY, "op: c", [](const Call&) { fail(Code::out_of_memory, "op", "c"); });
  expect_failure(GIRIH_IO, "op: d", [](const Call&) { fail(Code::io, "op", "d"); });
  expect_failure(GIRIH_INTERNAL, "girih bug: e (please report it)", [](const Call&) { bug("e"); });
  expect_failure(GIRIH_CANCELLED, "test: f", [](const Call&) { throw Cancelled("f"); });
  expect_failure(GIRIH_OUT_OF_MEMORY, "test: an allocation failed", [](const Call&) { throw std::bad_alloc(); });
  expect_failure(GIRIH_OUT_OF_MEMORY, "test: an array would be larger than memory can be",
                 [](const Call&) { List<int, 2> list(std::int64_t{1} << 62); });
  expect_failure(GIRIH_INTERNAL, "test: g", [](const Call&) { throw std::runtime_error("g"); });
  expect_failure(GIRIH_INTERNAL, "test: something was thrown that is not an exception", [](const Call&) { throw 1; });
  expect_failure(GIRIH_INVALID_ARGUMENT, "test: h", [](const Call& call) { call.refuse("h"); });
  EXPECT_EQ(guarded("test", [](const Call&) {}), GIRIH_OK);
  EXPECT_STREQ(girih_last_error(), "test: h");  // a success leaves it
}

TEST(CApiCallTest, AThreadHasAnErrorOfItsOwn) {
  guarded("here", [](const Call& call) { call.refuse("mine"); });
  std::string there_before = "unset", there_after;
  std::thread([&] {
    there_before = girih_last_error();
    guarded("there", [](const Call& call) { call.refuse("theirs"); });
    there_after = girih_last_error();
  }).join();
  EXPECT_EQ(there_before, "");
  EXPECT_EQ(there_after, "there: theirs");
  EXPECT_STREQ(girih_last_error(), "here: mine");
}

TEST(CApiCallTest, StructsOfOtherVersionsAreReadAsFarAsTheyGo) {
  const Call call("test");
  const FirstVersion old{sizeof(FirstVersion), 5};
  const Grown read = call.read(reinterpret_cast<const Grown*>(&old), "args");
  EXPECT_EQ(read.first, 5);
  EXPECT_EQ(read.later, 7);  // its default
  EXPECT_EQ(read.struct_size, sizeof(Grown));
  EXPECT_EQ(call.read_or_defaults<Grown>(nullptr, "args").first, 3);

  struct {
    Grown known;
    double unknown;
  } next{{sizeof next, 6, 8}, 0};
  EXPECT_EQ(call.read(&next.known, "args").later, 8);
  next.unknown = -0.0;  // not a zero byte
  expect_failure(
      GIRIH_INVALID_ARGUMENT,
      "test: args.struct_size=32: sets fields of a later version of Grown, which has 24 bytes in girih " + std::string(girih_version()),
      [&](const Call& c) { c.read(&next.known, "args"); });
  next.known.struct_size = sizeof(FirstVersion) - 1;
  expect_failure(GIRIH_INVALID_ARGUMENT, "test: args.struct_size=15; must be sizeof(Grown), at least 16: begin with Grown_init",
                 [&](const Call& c) { c.read(&next.known, "args"); });

  // An array of a caller of the first version: its elements lie 16 bytes apart.
  const FirstVersion elements[] = {{sizeof(FirstVersion), 1}, {sizeof(FirstVersion), 2}, {sizeof(Grown), 3}};
  const auto* array = reinterpret_cast<const Grown*>(elements);
  EXPECT_EQ(call.read_element(array, 1, "list").first, 2);
  EXPECT_EQ(call.read_element(array, 1, "list").later, 7);
  expect_failure(GIRIH_INVALID_ARGUMENT, "test: list[2].struct_size=24 differs from the first element's 16",
                 [&](const Call& c) { c.read_element(array, 2, "list"); });
}

TEST(CApiCallTest, StructsOfOtherVersionsAreFilledAsFarAsTheyGo) {
  const Call call("test");
  struct {
    FirstVersion old{sizeof(FirstVersion), 0};
    double beyond = 9;
  } smaller;
  call.write(reinterpret_cast<Grown*>(&smaller.old), Grown{.struct_size = 0, .first = 4, .later = 5}, "info");
  EXPECT_EQ(smaller.old.struct_size, sizeof(FirstVersion));
  EXPECT_EQ(smaller.old.first, 4);
  EXPECT_EQ(smaller.beyond, 9);

  struct {
    Grown known{sizeof(Grown) + 8, 0, 0};
    double unknown = 9;
  } larger;
  call.write(&larger.known, Grown{.struct_size = 0, .first = 4, .later = 5}, "info");
  EXPECT_EQ(larger.known.struct_size, sizeof larger);
  EXPECT_EQ(larger.known.later, 5);
  EXPECT_EQ(larger.unknown, 0);
}

TEST(CApiCallTest, DefaultsAreThoseOfCpp) {
  const Call call("test");
  girih_attention_spec spec;
  ASSERT_EQ(girih_attention_spec_init(&spec, sizeof spec), GIRIH_OK);
  const AttentionSpec cpp;
  EXPECT_EQ(spec.head_dim_qk, cpp.head_dim_qk);
  EXPECT_EQ(spec.q_dtype, GIRIH_BF16);
  girih_kv_segment segment;
  ASSERT_EQ(girih_kv_segment_init(&segment, sizeof segment), GIRIH_OK);
  EXPECT_EQ(segment.page_size, 16);
  EXPECT_EQ(segment.num_table_heads, 1);
  EXPECT_EQ(segment.masked, 1);
  girih_variant_options options;
  ASSERT_EQ(girih_variant_options_init(&options, sizeof options), GIRIH_OK);
  EXPECT_EQ(options.softmax, 1);
}

struct Heard {
  girih_log_level level = -1;
  std::string text;
};

TEST(CApiCallTest, ALogFunctionIsCalledWithItsPointer) {
  Heard heard;
  girih_context_options options;
  ASSERT_EQ(girih_context_options_init(&options, sizeof options), GIRIH_OK);
  options.num_workers = 1;
  options.log_user = &heard;
  options.log = [](void* user, girih_log_level level, const char* text) { *static_cast<Heard*>(user) = {level, text}; };
  girih_context* context = nullptr;
  ASSERT_EQ(girih_context_create(&options, &context), GIRIH_OK) << girih_last_error();
  context->value.log(LogLevel::warning, std::string_view("heed this!").substr(0, 4));
  EXPECT_EQ(heard.level, GIRIH_LOG_WARNING);
  EXPECT_EQ(heard.text, "heed");
  girih_context_destroy(context);
}

TEST(CApiCallTest, PlanningAndRunningAllocateNothing) {
  girih_context_options options;
  ASSERT_EQ(girih_context_options_init(&options, sizeof options), GIRIH_OK);
  options.num_workers = 2;
  girih_context* context = nullptr;
  ASSERT_EQ(girih_context_create(&options, &context), GIRIH_OK) << girih_last_error();
  girih_attention_spec spec;
  ASSERT_EQ(girih_attention_spec_init(&spec, sizeof spec), GIRIH_OK);
  spec.head_dim_qk = 16;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.o_dtype = GIRIH_F32;
  girih_attention_limits limits;
  ASSERT_EQ(girih_attention_limits_init(&limits, sizeof limits), GIRIH_OK);
  limits.max_tokens = limits.max_requests = 1;
  limits.max_kv_len = 64;
  girih_schedule* schedule = nullptr;
  ASSERT_EQ(girih_schedule_create(context, &spec, &limits, nullptr, &schedule), GIRIH_OK) << girih_last_error();
  girih_plan* plan = nullptr;
  ASSERT_EQ(girih_plan_create(schedule, &plan), GIRIH_OK);

  const std::vector<std::int32_t> qo_indptr{0, 1}, kv_indptr{0, 64};
  girih_kv_segment segment;
  ASSERT_EQ(girih_kv_segment_init(&segment, sizeof segment), GIRIH_OK);
  segment.page_size = GIRIH_ENDLESS_PAGE;
  segment.kv_indptr = {.data = kv_indptr.data(), .size = 2, .bits = 32, .reserved = 0};
  girih_batch batch;
  ASSERT_EQ(girih_batch_init(&batch, sizeof batch), GIRIH_OK);
  batch.qo_indptr = {.data = qo_indptr.data(), .size = 2, .bits = 32, .reserved = 0};
  batch.segments = &segment;
  batch.num_segments = 1;

  std::vector<float> q(16, 1), kv(64 * 16, 1), o(16);
  const std::int64_t row_shape[] = {1, 1, 16}, kv_shape[] = {64, 1, 16};
  girih_tensor kv_all;
  ASSERT_EQ(girih_tensor_dense(&kv_all, kv.data(), GIRIH_F32, {}, 3, kv_shape), GIRIH_OK);
  girih_segment_data data;
  ASSERT_EQ(girih_segment_data_init(&data, sizeof data), GIRIH_OK);
  ASSERT_EQ(girih_ragged_kv_store(&kv_all, &kv_all, GIRIH_NHD, &data.store), GIRIH_OK);
  girih_schedule_info info;
  ASSERT_EQ(girih_schedule_info_init(&info, sizeof info), GIRIH_OK);
  ASSERT_EQ(girih_schedule_get_info(schedule, &info), GIRIH_OK);
  std::vector<std::byte> workspace(static_cast<std::size_t>(info.workspace_bytes) + 64);
  girih_attention_args args;
  ASSERT_EQ(girih_attention_args_init(&args, sizeof args), GIRIH_OK);
  ASSERT_EQ(girih_tensor_dense(&args.q, q.data(), GIRIH_F32, {}, 3, row_shape), GIRIH_OK);
  ASSERT_EQ(girih_tensor_dense(&args.o, o.data(), GIRIH_F32, {}, 3, row_shape), GIRIH_OK);
  args.segments = &data;
  args.num_segments = 1;
  args.workspace = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
  args.workspace_bytes = info.workspace_bytes;
  const auto step = [&] {
    return girih_plan_update(plan, &batch, nullptr) == GIRIH_OK && girih_run(context, schedule, plan, &args) == GIRIH_OK;
  };
  ASSERT_TRUE(step() && step()) << girih_last_error();
  const long before = num_allocations.load();
  const bool fine = step();
  const long allocations = num_allocations.load() - before;
  EXPECT_TRUE(fine) << girih_last_error();
  EXPECT_EQ(allocations, 0);
  EXPECT_NEAR(o[0], 1, 1e-6);
  girih_plan_destroy(plan);
  girih_schedule_destroy(schedule);
  girih_context_destroy(context);
}

}  // namespace
}  // namespace girih::c_api
