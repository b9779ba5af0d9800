// Bad input to schedule(), plan and run(): a typed error that names the argument, thrown before any output byte is written. Each row is
// one way to break a good problem.
#include <functional>

#include "attention/overlap.h"
#include "cases/attention.h"
#include "cases/check.h"

namespace girih::cases {
namespace {

AttentionCase good_case() {
  AttentionCase c = make_case("good", make_spec(4, 2, 64), {"", {1, 5}, {20, 33}});
  c.spec.variant.logits = scalar("cap") * tanh(score() / scalar("cap"));
  c.spec.variant.mask = variants::causal() & variants::prefix_lm(ParamTime::plan);
  c.params = {{"cap", ParamTime::run, 20.0}, {"prefix_len", ParamTime::plan, std::vector<std::int32_t>{3, 4}}};
  return c;
}

/// Runs `f`, which must throw an Error of any kind but internal whose text holds every word of `words`.
void expect_error(std::string_view name, const std::vector<std::string>& words, const std::function<void()>& f) {
  try {
    f();
    ADD_FAILURE() << name << ": nothing was thrown";
  } catch (const Error& e) {
    EXPECT_NE(e.code(), Code::internal) << name << ": " << e.what();
    for (const std::string& word : words) EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << name << ": " << e.what();
  }
}

// ------------------------------------------------------------------------------------------------ schedule

struct ScheduleFault {
  std::string name;
  std::vector<std::string> words;
  std::function<void(AttentionSpec&, AttentionLimits&)> apply;
};

TEST(AttentionErrors, ScheduleNamesWhatIsWrong) {
  using G = ScaleGranularity;
  const std::vector<ScheduleFault> faults{
      {"no kv heads", {"num_kv_heads"}, [](auto& s, auto&) { s.num_kv_heads = 0; }},
      {"negative heads", {"num_qo_heads"}, [](auto& s, auto&) { s.num_qo_heads = -4; }},
      {"heads not a multiple", {"num_qo_heads", "5"}, [](auto& s, auto&) { s.num_qo_heads = 5; }},
      {"head dim 0", {"head_dim_qk"}, [](auto& s, auto&) { s.head_dim_qk = 0; }},
      {"head dim 1025", {"head_dim_qk", "1025"}, [](auto& s, auto&) { s.head_dim_qk = 1025; }},
      {"head dim vo 1025", {"head_dim_vo", "1025"}, [](auto& s, auto&) { s.head_dim_vo = 1025; }},
      {"head dim vo negative", {"head_dim_vo"}, [](auto& s, auto&) { s.head_dim_vo = -1; }},
      {"rope part as large as the head", {"head_dim_rope"}, [](auto& s, auto&) { s.head_dim_rope = 64; }},
      {"q of 8 bits", {"q_dtype", "e4m3"}, [](auto& s, auto&) { s.q_dtype = DType::e4m3; }},
      {"o of integers", {"o_dtype", "i32"}, [](auto& s, auto&) { s.o_dtype = DType::i32; }},
      {"a partial state of codes",
       {"o_dtype", "e4m3", "partial_state"},
       [](auto& s, auto&) {
         s.o_dtype = DType::e4m3;
         s.partial_state = true;
       }},
      {"k of integers", {"k_dtype"}, [](auto& s, auto&) { s.k_dtype = DType::i64; }},
      {"v of bytes", {"v_dtype", "u8"}, [](auto& s, auto&) { s.v_dtype = DType::u8; }},
      {"quantised without scale", {"k_scale"}, [](auto& s, auto&) { s.k_dtype = DType::e4m3; }},
      {"scale without quantisation", {"v_scale"}, [](auto& s, auto&) { s.v_scale = G::tensor; }},
      {"tensor scale of 4 bits", {"k_scale", "block"}, [](auto& s, auto&) { set_kv(s, DType::nvfp4, G::tensor, DType::bf16, G::none); }},
      {"block scale of int8", {"v_scale"}, [](auto& s, auto&) { set_kv(s, DType::bf16, G::none, DType::i8, G::block); }},
      {"groups of part of a plane",
       {"k_scale=token_group", "64", "128"},
       [](auto& s, auto&) { set_kv(s, DType::e4m3, G::token_group, DType::bf16, G::none); }},
      {"groups of 16 bits", {"v_scale=token_group", "bf16"}, [](auto& s, auto&) { s.v_scale = G::token_group; }},
      {"groups of 4 bits",
       {"k_scale=token_group", "block"},
       [](auto& s, auto&) { set_kv(s, DType::nvfp4, G::token_group, DType::bf16, G::none); }},
      {"a rope type without a rope part", {"k_rope_dtype=f16", "head_dim_rope"}, [](auto& s, auto&) { s.k_rope_dtype = DType::f16; }},
      {"a rope part of another quantised type",
       {"k_rope_dtype=e5m2", "bf16"},
       [](auto& s, auto&) {
         s.head_dim_rope = 32;
         s.k_rope_dtype = DType::e5m2;
       }},
      {"groups of part of the rope part",
       {"k_scale=token_group", "64"},
       [](auto& s, auto&) {
         s.head_dim_qk = 192;
         s.head_dim_rope = 64;
         set_kv(s, DType::e4m3, G::token_group, DType::bf16, G::none);
       }},
      {"v is k but wider",
       {"head_dim_vo", "v_is_k"},
       [](auto& s, auto&) {
         s.v_is_k = true;
         s.head_dim_vo = 65;
       }},
      {"scale of NaN", {"sm_scale"}, [](auto& s, auto&) { s.sm_scale = std::numeric_limits<double>::quiet_NaN(); }},
      {"partial state without lse",
       {"partial_state"},
       [](auto& s, auto&) {
         s.partial_state = true;
         s.lse = LseKind::none;
       }},
      {"lse without softmax", {"lse", "softmax"}, [](auto& s, auto&) { s.variant.softmax = false; }},
      {"no softmax and no logits",
       {"logits"},
       [](auto& s, auto&) {
         s.variant.softmax = false;
         s.variant.logits = Expr();
         s.lse = LseKind::none;
       }},
      {"mask of numbers", {"mask"}, [](auto& s, auto&) { s.variant.mask = Expr(1.0); }},
      {"logits of booleans", {"logits"}, [](auto& s, auto&) { s.variant.logits = kv_pos() < q_pos(); }},
      {"mask by score", {"mask", "score"}, [](auto& s, auto&) { s.variant.mask = score() > 0.0; }},
      {"sink by key", {"sink", "score"}, [](auto& s, auto&) { s.variant.sink = score() * 0.0 + kv_pos(); }},
      {"odd rotary dim",
       {"rot"},
       [](auto& s, auto&) {
         s.variant.rope = Rope{};
         s.variant.rope->rotary_dim = 15;
       }},
      {"rotary dim past the head",
       {"rot"},
       [](auto& s, auto&) {
         s.variant.rope = Rope{};
         s.variant.rope->rotary_begin = 40;
         s.variant.rope->rotary_dim = 32;
       }},
      {"negative tokens", {"max_tokens"}, [](auto&, auto& l) { l.max_tokens = -1; }},
      {"negative requests", {"max_requests"}, [](auto&, auto& l) { l.max_requests = -1; }},
      {"negative kv_len", {"max_kv_len"}, [](auto&, auto& l) { l.max_kv_len = -5; }},
      {"no segments", {"max_segments"}, [](auto&, auto& l) { l.max_segments = -1; }},
  };
  const Problem p(good_case());
  Context& context = context_for(CpuTarget::best, 1);
  for (const ScheduleFault& fault : faults) {
    AttentionSpec spec = p.c.spec;
    AttentionLimits limits = p.limits;
    expect_error(fault.name, fault.words, [&] {
      fault.apply(spec, limits);
      girih::schedule(context, spec, limits);
    });
  }
}

// ------------------------------------------------------------------------------------------------ plan

struct PlanFault {
  std::string name;
  std::vector<std::string> words;
  std::function<void(Batch&, KvSegment&)> apply;
};

using I = std::vector<std::int64_t>;

TEST(AttentionErrors, PlanNamesWhatIsWrongAndKeepsTheOldPlan) {
  static const I kDown{0, 4, 2}, kNotFromZero{1, 3, 6}, kShort{6}, kTooMany{0, 1, 2, 6}, kTooLong{0, 1, 7}, kNegativeLen{20, -1},
      kOneLen{20}, kHugeLen{20, 1000}, kNegativeIndptr{-1, 2, 5}, kDownIndptr{0, 5, 3}, kPositions{1}, kFewPages{0, 1, 2}, kHole{0, 1, 3},
      kOverflow{INT64_MAX - 5, 0}, kHugeInt{0, 1, INT64_MAX};
  static const std::vector<std::int32_t> kPrefix{3, 4};
  static const std::vector<float> kWrongType{3, 4};
  const auto array = [](auto& a, DType t) { return TensorView(const_cast<void*>(static_cast<const void*>(a.data())), t, {2}); };
  static std::vector<ParamValue> one, twice, unknown, typed, scalar_given;
  one = {{.name = "prefix_len", .array = array(kPrefix, DType::i32)}};
  twice = {one[0], one[0]};
  unknown = {one[0], {.name = "no_such", .array = array(kPrefix, DType::i32)}};
  typed = {{.name = "prefix_len", .array = array(kWrongType, DType::f32)}};
  scalar_given = {{.name = "prefix_len", .number = 2}};
  const std::vector<PlanFault> faults{
      {"qo_indptr goes down", {"qo_indptr"}, [](auto& b, auto&) { b.qo_indptr = kDown; }},
      {"qo_indptr from 1", {"qo_indptr"}, [](auto& b, auto&) { b.qo_indptr = kNotFromZero; }},
      {"qo_indptr absent", {"indptr"}, [](auto& b, auto&) { b.qo_indptr = {}; }},
      {"too many requests", {"max_requests"}, [](auto& b, auto&) { b.qo_indptr = kTooMany; }},
      {"too many tokens", {"max_tokens"}, [](auto& b, auto&) { b.qo_indptr = kTooLong; }},
      {"tokens beyond 32 bits", {"max_tokens"}, [](auto& b, auto&) { b.qo_indptr = kHugeInt; }},
      {"too many segments",
       {"segments"},
       [](auto& b, auto&) {
         static std::vector<KvSegment> three;
         three.assign(3, b.segments[0]);
         b.segments = three;
       }},
      {"kv_len of the wrong size", {"kv_len"}, [](auto&, auto& s) { s.kv_len = kOneLen; }},
      {"negative kv_len", {"kv_len", "-1"}, [](auto&, auto& s) { s.kv_len = kNegativeLen; }},
      {"kv_len beyond the limit", {"kv_len", "1000"}, [](auto&, auto& s) { s.kv_len = kHugeLen; }},
      {"kv_len absent", {"kv_len"}, [](auto&, auto& s) { s.kv_len = {}; }},
      {"page table absent", {"kv_indptr"}, [](auto&, auto& s) { s.kv_indptr = {}; }},
      {"page table given twice", {"table_stride"}, [](auto&, auto& s) { s.table_stride = 4; }},
      {"negative kv_indptr", {"kv_indptr"}, [](auto&, auto& s) { s.kv_indptr = kNegativeIndptr; }},
      {"kv_indptr goes down", {"kv_indptr"}, [](auto&, auto& s) { s.kv_indptr = kDownIndptr; }},
      {"kv_indptr of the wrong size", {"kv_indptr"}, [](auto&, auto& s) { s.kv_indptr = kShort; }},
      {"fewer pages than the length needs", {"kv_indptr"}, [](auto&, auto& s) { s.kv_indptr = kFewPages; }},
      {"negative page size", {"page_size"}, [](auto&, auto& s) { s.page_size = -3; }},
      {"strange number of table heads", {"num_table_heads"}, [](auto&, auto& s) { s.num_table_heads = 3; }},
      {"kv_pos of the wrong size", {"kv_pos"}, [](auto&, auto& s) { s.kv_pos = kPositions; }},
      {"positions that overflow", {"kv_pos"}, [](auto&, auto& s) { s.kv_pos = kOverflow; }},
      {"q_pos of the wrong size", {"q_pos"}, [](auto& b, auto&) { b.q_pos = kPositions; }},
      {"groups that end too early", {"qo_indptr"}, [](auto&, auto& s) { s.qo_indptr = kHole; }},
      {"parameter missing", {"prefix_len"}, [](auto& b, auto&) { b.params = {}; }},
      {"parameter twice", {"prefix_len"}, [](auto& b, auto&) { b.params = twice; }},
      {"parameter unknown", {"no_such"}, [](auto& b, auto&) { b.params = unknown; }},
      {"parameter of the wrong type", {"prefix_len"}, [](auto& b, auto&) { b.params = typed; }},
      {"scalar for an array", {"prefix_len"}, [](auto& b, auto&) { b.params = scalar_given; }},
  };
  const Problem p(good_case());
  Context& context = context_for(CpuTarget::best, 1);
  const Schedule schedule = girih::schedule(context, p.c.spec, p.limits, {.num_units = 3});
  Plan plan(schedule);
  plan.update(p.batch);
  const std::vector<std::byte> before(plan.blob().begin(), plan.blob().end());
  for (const PlanFault& fault : faults) {
    Batch batch = p.batch;
    std::vector<KvSegment> segments = p.segments;
    batch.segments = segments;
    fault.apply(batch, segments[0]);
    // Positions may be any int64 a batch likes as long as they do not overflow, and groups may leave rows out: those two may also be
    // accepted, but then must give a plan.
    if (fault.name == "groups that end too early") {
      try {
        plan.update(batch);
      } catch (const Error& e) {
        EXPECT_NE(e.code(), Code::internal) << e.what();
      }
      plan.update(p.batch);
      continue;
    }
    expect_error(fault.name, fault.words, [&] { plan.update(batch); });
    EXPECT_TRUE(std::equal(before.begin(), before.end(), plan.blob().begin(), plan.blob().end())) << fault.name << ": the plan has changed";
  }
}

TEST(AttentionErrors, ForeignBlobsAreRefused) {
  const Problem p(good_case());
  Context& context = context_for(CpuTarget::best, 1);
  Plan plan(girih::schedule(context, p.c.spec, p.limits, {.num_units = 3}));
  plan.update(p.batch);
  const std::vector<std::byte> blob(plan.blob().begin(), plan.blob().end());
  AttentionSpec other = p.c.spec;
  other.num_qo_heads = 8;
  Plan wrong(girih::schedule(context, other, p.limits, {.num_units = 3}));
  expect_error("another schedule", {"schedule"}, [&] { wrong.load(blob); });
  Plan again(girih::schedule(context, p.c.spec, p.limits, {.num_units = 3}));
  expect_error("empty", {}, [&] { again.load({}); });
  expect_error("cut", {}, [&] { again.load(std::span(blob).first(blob.size() / 2)); });
  for (std::size_t at = 0; at < blob.size(); at += 13) {  // a torn byte is refused or harmless, never a crash or a write elsewhere
    std::vector<std::byte> torn = blob;
    torn[at] ^= std::byte{0x41};
    try {
      again.load(torn);
    } catch (const Error& e) {
      EXPECT_NE(e.code(), Code::internal) << e.what();
      continue;
    }
    try {
      Workspace workspace(again.info().workspace_bytes, kNanPattern);
      Outputs out(p);
      run(context, again.schedule(), again, make_args(p, out, workspace.span()));
      EXPECT_TRUE(out.canaries_intact()) << "byte " << at;
    } catch (const Error& e) {
      EXPECT_NE(e.code(), Code::internal) << e.what();
    }
  }
}

// ------------------------------------------------------------------------------------------------ run

/// What a run fault may change. `segments` is what args.segments points to.
struct RunState {
  AttentionArgs args;
  std::vector<SegmentData> segments;
  std::vector<std::int32_t> ids;
  std::vector<ParamValue> params;
};

struct RunFault {
  std::string name;
  std::vector<std::string> words;
  std::function<void(RunState&)> apply;
};

void expect_run_errors(const Problem& p, const std::vector<RunFault>& faults) {
  Context& context = context_for(CpuTarget::best, 1);
  const Schedule schedule = girih::schedule(context, p.c.spec, p.limits, {.num_units = 7});
  Plan plan(schedule);
  const std::int64_t needed = plan.update(p.batch).workspace_bytes;
  for (const RunFault& fault : faults) {
    Workspace workspace(needed + 64, kNanPattern);
    Outputs out(p);
    RunState state{.args = make_args(p, out, workspace.span().first(static_cast<std::size_t>(needed))),
                   .segments = p.segment_data,
                   .ids = p.memory[0].kv_indices,
                   .params = p.run_params};
    state.segments[0].kv_indices = state.ids;
    state.args.segments = state.segments;
    state.args.params = state.params;
    fault.apply(state);
    expect_error(fault.name, fault.words, [&] { run(context, schedule, plan, state.args); });
    EXPECT_TRUE(out.untouched()) << fault.name << ": outputs were written";
  }
}

TEST(AttentionErrors, RunNamesWhatIsWrongAndWritesNothing) {
  const std::vector<RunFault> faults{
      {"q of another type", {"q ", "f16"}, [](auto& s) { s.args.q.dtype = DType::f16; }},
      {"q of another rank", {"q "}, [](auto& s) { s.args.q.rank = 2; }},
      {"q with fewer tokens", {"q "}, [](auto& s) { s.args.q.shape[0] = 5; }},
      {"q with other heads", {"q "}, [](auto& s) { s.args.q.shape[1] = 2; }},
      {"q with another dim", {"q "}, [](auto& s) { s.args.q.shape[2] = 63; }},
      {"q with a strided last dim", {"q", "strides"}, [](auto& s) { s.args.q.strides[2] = 2; }},
      {"q null", {"q", "null"}, [](auto& s) { s.args.q.data = nullptr; }},
      {"q on a GPU", {"q "}, [](auto& s) { s.args.q.device.kind = DeviceKind::cuda; }},
      {"q_rope not asked for", {"q_rope"}, [](auto& s) { s.args.q_rope = s.args.q; }},
      {"o of another type", {"o ", "bf16"}, [](auto& s) { s.args.o.dtype = DType::bf16; }},
      {"o of another shape", {"o "}, [](auto& s) { s.args.o.shape[2] = 32; }},
      {"o with a strided last dim", {"o", "strides"}, [](auto& s) { s.args.o.strides[2] = 2; }},
      {"o null", {"o", "null"}, [](auto& s) { s.args.o.data = nullptr; }},
      {"lse missing", {"lse"}, [](auto& s) { s.args.lse = {}; }},
      {"lse of another type", {"lse", "f16"}, [](auto& s) { s.args.lse.dtype = DType::f16; }},
      {"lse of another shape", {"lse"}, [](auto& s) { s.args.lse.shape[1] = 3; }},
      {"lse null", {"lse", "null"}, [](auto& s) { s.args.lse.data = nullptr; }},
      {"no segments", {"segments"}, [](auto& s) { s.args.segments = {}; }},
      {"store of another page size", {"page_size"}, [](auto& s) { s.segments[0].store.page_size = 8; }},
      {"ragged store for a paged plan", {"page_size"}, [](auto& s) { s.segments[0].store.page_size = kEndlessPage; }},
      {"k of another type", {"k.dtype"}, [](auto& s) { s.segments[0].store.k.dtype = DType::f16; }},
      {"v of another type", {"v.dtype"}, [](auto& s) { s.segments[0].store.v.dtype = DType::e4m3; }},
      {"k null", {"store.k", "null"}, [](auto& s) { s.segments[0].store.k.data = nullptr; }},
      {"v null", {"store.v", "null"}, [](auto& s) { s.segments[0].store.v.data = nullptr; }},
      {"scales that the spec has not", {"scales"}, [](auto& s) { s.segments[0].store.k.scales.granularity = ScaleGranularity::tensor; }},
      {"too few table entries", {"kv_indices"}, [](auto& s) { s.segments[0].kv_indices = std::span(s.ids).first(1); }},
      {"no table entries", {"kv_indices"}, [](auto& s) { s.segments[0].kv_indices = {}; }},
      {"page id past the pool", {"kv_indices[0]"}, [](auto& s) { s.ids[0] = static_cast<std::int32_t>(s.segments[0].store.num_pages); }},
      {"page id negative", {"kv_indices[1]", "-1"}, [](auto& s) { s.ids[1] = -1; }},
      {"pool smaller than the ids", {"num_pages"}, [](auto& s) { s.segments[0].store.num_pages = 0; }},
      {"workspace missing", {"workspace"}, [](auto& s) { s.args.workspace = {}; }},
      {"workspace one byte short", {"workspace"}, [](auto& s) { s.args.workspace = s.args.workspace.first(s.args.workspace.size() - 1); }},
      {"workspace misaligned",
       {"workspace", "align"},
       [](auto& s) {
         s.args.workspace = {s.args.workspace.data() + 4, s.args.workspace.size()};
       }},
      {"o in q", {"o shares memory with q;"}, [](auto& s) { s.args.o.data = s.args.q.data; }},
      {"o in k",
       {"o shares memory with segments[0].store.k;"},
       [](auto& s) { s.args.o.data = const_cast<void*>(s.segments[0].store.k.data); }},
      {"lse in v",
       {"lse shares memory with segments[0].store.v;"},
       [](auto& s) { s.args.lse.data = const_cast<void*>(s.segments[0].store.v.data); }},
      {"lse in o", {"lse shares memory with o;"}, [](auto& s) { s.args.lse.data = s.args.o.data; }},
      {"o in the page table",
       {"o shares memory with segments[0].kv_indices;"},
       [](auto& s) {  // in room of its own, so that no other argument lies under it
         const std::size_t entries = s.ids.size();
         s.ids.resize(entries + static_cast<std::size_t>(s.args.o.numel()));
         s.segments[0].kv_indices = std::span(s.ids).first(entries);
         s.args.o.data = s.ids.data();
       }},
      {"lse in the workspace",
       {"lse shares memory with workspace;"},
       [](auto& s) {
         const std::size_t bytes = static_cast<std::size_t>(s.args.lse.numel()) * sizeof(float);
         ASSERT_GE(s.args.workspace.size(), bytes);
         s.args.lse.data = s.args.workspace.data() + s.args.workspace.size() - bytes;
       }},
      {"o expanded over tokens", {"o has elements that share memory"}, [](auto& s) { s.args.o.strides[0] = 0; }},
      {"heads of o in each other", {"o has elements that share memory"}, [](auto& s) { s.args.o.strides[1] = 63; }},
      {"lse expanded over heads", {"lse has elements that share memory"}, [](auto& s) { s.args.lse.strides[1] = 0; }},
      {"parameter missing", {"cap"}, [](auto& s) { s.args.params = {}; }},
      {"parameter unknown", {"other"}, [](auto& s) { s.params[0].name = "other"; }},
      {"plan-time parameter at run",
       {"prefix_len"},
       [](auto& s) {
         s.params.push_back({.name = "prefix_len", .number = 1});
         s.args.params = s.params;
       }},
  };
  expect_run_errors(Problem(good_case()), faults);
}

TEST(AttentionErrors, OutputScales) {
  static float scale = 1;
  const auto give = [](float value) {
    return [value](RunState& s) {
      scale = value;
      s.args.o_scale = TensorView(&scale, DType::f32, {1});
    };
  };
  expect_run_errors(Problem(good_case()), {{"a scale of f32", {"o_scale", "f32", "8 bits"}, give(1)}});
  AttentionCase c = good_case();
  c.spec.o_dtype = DType::e4m3;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  expect_run_errors(Problem(c),
                    {
                        {"zero", {"o_scale=0", "> 0"}, give(0)},
                        {"negative", {"o_scale=-1"}, give(-1)},
                        {"infinite", {"o_scale=inf"}, give(kInf)},
                        {"NaN", {"o_scale=nan"}, give(std::numeric_limits<float>::quiet_NaN())},
                        {"so small that its inverse is infinite", {"o_scale=1e-40", "inverse"}, give(1e-40F)},
                        {"of another type", {"o_scale is f16", "f32"}, [](auto& s) { s.args.o_scale.dtype = DType::f16; }},
                        {"two numbers", {"o_scale has 2"}, [](auto& s) { s.args.o_scale.shape[0] = 2; }},
                        {"null", {"o_scale.data is null"}, [](auto& s) { s.args.o_scale.data = nullptr; }},
                        {"on a GPU", {"o_scale"}, [](auto& s) { s.args.o_scale.device.kind = DeviceKind::cuda; }},
                        {"lse in it", {"lse shares memory with o_scale"}, [](auto& s) { s.args.lse.data = s.args.o_scale.data; }},
                    });
}

TEST(AttentionErrors, QuantisedStoresNeedTheirScales) {
  AttentionCase c = make_case("scales", make_spec(4, 2, 64), {"", {1, 5}, {20, 33}});
  set_kv(c.spec, DType::e4m3, ScaleGranularity::token_head, DType::nvfp4, ScaleGranularity::block);
  expect_run_errors(Problem(c), {
                                    {"k scales missing", {"store.k", "scales"}, [](auto& s) { s.segments[0].store.k.scales = {}; }},
                                    {"k scales null", {"store.k", "scales"}, [](auto& s) { s.segments[0].store.k.scales.data = nullptr; }},
                                    {"k scales of another kind",
                                     {"store.k", "scales"},
                                     [](auto& s) { s.segments[0].store.k.scales.granularity = ScaleGranularity::head; }},
                                    {"v scales null", {"store.v", "scales"}, [](auto& s) { s.segments[0].store.v.scales.data = nullptr; }},
                                    {"strided 4-bit data", {"dim_byte_stride"}, [](auto& s) { s.segments[0].store.v.dim_byte_stride = 1; }},
                                });
}

TEST(AttentionErrors, ARopePartOfItsOwnType) {
  AttentionCase c = make_case("parts", make_spec(4, 1, 160, 128), {"", {1, 2}, {20, 33}}, Layout::tokens);
  set_kv(c.spec, DType::e4m3, ScaleGranularity::token_group, DType::e4m3, ScaleGranularity::token_group);
  c.spec.v_is_k = true;
  c.spec.head_dim_rope = 32;
  c.spec.k_rope_dtype = DType::bf16;
  expect_run_errors(
      Problem(c),
      {
          {"k_rope of k's type", {"k_rope.dtype=e4m3", "bf16"}, [](auto& s) { s.segments[0].store.k_rope.dtype = DType::e4m3; }},
          {"k_rope with scales", {"k_rope.scales"}, [](auto& s) { s.segments[0].store.k_rope.scales = s.segments[0].store.k.scales; }},
          {"k scales null", {"store.k", "scales"}, [](auto& s) { s.segments[0].store.k.scales.data = nullptr; }},
          {"k scales of another kind",
           {"store.k", "scales"},
           [](auto& s) { s.segments[0].store.k.scales.granularity = ScaleGranularity::token_head; }},
      });
}

TEST(AttentionErrors, TwoPartKeysAndPagePositions) {
  AttentionCase c = make_case("parts", make_spec(4, 2, 96, 64), {"", {1, 2}, {20, 33}});
  c.spec.head_dim_rope = 32;
  c.segments[0].page_pos = {0, 16, 0, 32, 64};
  c.kv_len = {32, 96};
  expect_run_errors(Problem(c),
                    {
                        {"q_rope missing", {"q_rope"}, [](auto& s) { s.args.q_rope = {}; }},
                        {"q_rope of another dim", {"q_rope"}, [](auto& s) { s.args.q_rope.shape[2] = 16; }},
                        {"q not cut", {"q "}, [](auto& s) { s.args.q.shape[2] = 96; }},
                        {"k_rope null", {"k_rope"}, [](auto& s) { s.segments[0].store.k_rope.data = nullptr; }},
                        {"k_rope of another type", {"k_rope"}, [](auto& s) { s.segments[0].store.k_rope.dtype = DType::f32; }},
                        {"page_pos missing", {"page_pos"}, [](auto& s) { s.segments[0].page_pos = {}; }},
                        {"page_pos too short", {"page_pos"}, [](auto& s) { s.segments[0].page_pos = s.segments[0].page_pos.first(1); }},
                    });
}

TEST(AttentionErrors, RaggedStoresEndWhereTheirTokensEnd) {
  AttentionCase c = make_case("ragged", make_spec(4, 2, 64), {"", {1, 5}, {20, 33}}, Layout::ragged);
  Problem p(c);
  expect_run_errors(p, {{"fewer tokens than planned", {"num_pages"}, [](auto& s) { s.segments[0].store.num_pages = 52; }}});
}

TEST(AttentionErrors, MemoryPastAPartialPageIsNotTheStores) {
  std::vector<float> data(4 * 2 * 8);  // three tokens of two heads, then an output
  const TensorView tokens(data.data(), DType::f32, {3, 2, 8});
  const KvStore store = block_sparse_kv_store(tokens, tokens, 2);
  const attention::Region keys = attention::region_of(store, store.k, 2, 8);
  EXPECT_TRUE(attention::apart(attention::region_of(data.data() + 48, 64), keys));
  EXPECT_FALSE(attention::apart(attention::region_of(data.data() + 16, 64), keys));
}

TEST(AttentionErrors, RunBeforeUpdateAndWithAnotherSchedule) {
  const Problem p(good_case());
  Context& context = context_for(CpuTarget::best, 1);
  const Schedule schedule = girih::schedule(context, p.c.spec, p.limits, {.num_units = 3});
  AttentionSpec other = p.c.spec;
  other.sm_scale = 0.5;
  const Schedule second = girih::schedule(context, other, p.limits, {.num_units = 3});
  Plan plan(schedule);
  Workspace workspace(std::max(schedule.workspace_bytes(), second.workspace_bytes()), kNanPattern);
  Outputs out(p);
  expect_error("no batch yet", {"plan"}, [&] { run(context, schedule, plan, make_args(p, out, workspace.span())); });
  plan.update(p.batch);
  expect_error("another schedule", {"schedule"}, [&] { run(context, second, plan, make_args(p, out, workspace.span())); });
  EXPECT_TRUE(out.untouched());
}

TEST(AttentionErrors, OddScalesAreDataAndChangeOnlyTheirKeys) {
  // NaN, negative and zero scales are data: no error; a NaN scale of one request's key makes that request NaN and no other.
  AttentionCase c = make_case("scales", make_spec(4, 2, 64), {"", {1, 1}, {20, 20}});
  set_kv(c.spec, DType::e4m3, ScaleGranularity::token_head, DType::e4m3, ScaleGranularity::token_head);
  Problem p(c);
  Context& context = context_for(CpuTarget::best, 1);
  const Outputs before = execute(p, context);
  const KvScales& scales = p.segment_data[0].store.k.scales;
  const std::int64_t at = p.memory[0].kv_indices[0] * scales.page_byte_stride + 3 * scales.token_byte_stride;
  auto* value = reinterpret_cast<float*>(const_cast<std::byte*>(static_cast<const std::byte*>(scales.data) + at));
  for (float odd : {0.0F, -1.0F}) {
    *value = odd;
    EXPECT_TRUE(std::isfinite(execute(p, context).lse_at(0, 0)));
  }
  *value = std::numeric_limits<float>::quiet_NaN();
  const Outputs after = execute(p, context);
  EXPECT_TRUE(std::isnan(after.o_at(0, 0, 0)));
  EXPECT_EQ(before.row_bits(1), after.row_bits(1));
}

TEST(AttentionErrors, SingleAttentionNamesWhatIsWrong) {
  const AttentionCase c = make_case("single", make_spec(4, 2, 64), {"", {3}, {9}}, Layout::ragged);
  const Problem p(c);
  Outputs out(p);
  const TensorView k(const_cast<void*>(p.segment_data[0].store.k.data), DType::bf16, {9, 2, 64});
  const TensorView v(const_cast<void*>(p.segment_data[0].store.v.data), DType::bf16, {9, 2, 64});
  Context& context = context_for(CpuTarget::best, 1);
  TensorView bad = k;
  bad.rank = 2;
  expect_error("k of rank 2", {"k"}, [&] { single_attention(context, c.spec, p.q, bad, v, out.o, out.lse); });
  bad = v;
  bad.shape[0] = 8;
  expect_error("v shorter than k", {"v"}, [&] { single_attention(context, c.spec, p.q, k, bad, out.o, out.lse); });
  bad = k;
  bad.shape[2] = 32;
  expect_error("k of another dim", {"k"}, [&] { single_attention(context, c.spec, p.q, bad, v, out.o, out.lse); });
  expect_error("o missing", {"o"}, [&] { single_attention(context, c.spec, p.q, k, v, {}, out.lse); });
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace girih::cases
