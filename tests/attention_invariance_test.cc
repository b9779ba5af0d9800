// Bit equality: repeats, placement of pages, order of requests, unused memory, workspace contents; and batch_invariant, where a
// request's rows have the same bits alone or in any batch, whatever the units and workers.
// ctest: shards=2 threads
#include <numeric>

#include "cases/attention.h"
#include "cases/check.h"

namespace girih::cases {
namespace {

/// One case of each kind that takes a path of its own.
std::vector<AttentionCase> core_cases() {
  std::vector<AttentionCase> out;
  for (std::string_view l : {"mixed", "single_decode", "single_prefill"}) {
    for (DType t : {DType::bf16, DType::f16, DType::f32}) {
      out.push_back(make_case(fmt::format("{}_{}", girih::name(t), l), make_spec(6, 2, 64), lengths(l)));
      set_kv(out.back().spec, t, ScaleGranularity::none, t, ScaleGranularity::none);
      out.back().spec.q_dtype = t;
      out.back().spec.o_dtype = t;
    }
  }
  for (const AttentionCase& c : dtype_cases()) {
    if (c.name.ends_with("_padded") || c.name.ends_with("token_head_nhd") || c.name.ends_with("block_hnd") || c.name.starts_with("mla_i8"))
      out.push_back(c);
  }
  for (const AttentionCase& c : segment_cases()) {
    if (c.name.starts_with("cascade3_nhd") || c.name.starts_with("pages_per_head") || c.name.starts_with("sparse") ||
        c.name == "mla_two_append_ps64")
      out.push_back(c);
  }
  for (const AttentionCase& c : variant_cases()) {
    if (c.name.ends_with("_mixed") && (c.name.starts_with("rope") || c.name.starts_with("sinks") || c.name.starts_with("custom_mask")))
      out.push_back(c);
  }
  return out;
}

/// A case whose request r has length 1..4 queries and 3..700 keys: something to split, something not.
AttentionCase batch_of(const std::vector<std::int64_t>& ids, bool batch_invariant) {
  constexpr std::array<std::int64_t, 6> kQ{1, 4, 1, 60, 2, 1};
  constexpr std::array<std::int64_t, 6> kKv{700, 90, 3, 130, 1500, 64};
  Lengths l{"batch", {}, {}};
  for (std::int64_t id : ids) {
    l.q.push_back(kQ[static_cast<std::size_t>(id)]);
    l.kv.push_back(kKv[static_cast<std::size_t>(id)]);
  }
  AttentionCase c = make_case("batch", make_spec(6, 2, 64), l);
  c.spec.batch_invariant = batch_invariant;
  c.data_id = ids;
  return c;
}

class Invariance : public testing::TestWithParam<AttentionCase> {};

TEST_P(Invariance, RepeatPlacementPoisonAndWorkspaceChangeNoBit) {
  const Problem p(GetParam());
  for (CpuTarget target : available_cpu_targets()) {
    SCOPED_TRACE(girih::name(target));
    const auto bits = execute(p, context_for(target, 1)).all_bits();
    EXPECT_EQ(bits, execute(p, context_for(target, 1)).all_bits()) << "repeated";
    EXPECT_EQ(bits, execute(p, context_for(target, 2)).all_bits()) << "two workers on the same units";
    EXPECT_EQ(bits, execute(p, context_for(target, 1), {.units = 7, .workspace_pattern = 0}).all_bits()) << "workspace of zeros";
    EXPECT_EQ(bits, execute(p, context_for(target, 1), {.units = 7, .workspace_pattern = kInfPattern}).all_bits()) << "workspace of +inf";
    const Problem moved(GetParam(), {.poison = std::byte{0xff}, .placement = 99});
    EXPECT_EQ(bits, execute(moved, context_for(target, 1)).all_bits()) << "other pages";
    const Problem zeros(GetParam(), {.poison = std::byte{0}, .placement = 1});
    EXPECT_EQ(bits, execute(zeros, context_for(target, 1)).all_bits()) << "unused memory of zeros";
  }
}

INSTANTIATE_TEST_SUITE_P(Core, Invariance, testing::ValuesIn(core_cases()),
                         [](const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; });

TEST(AttentionInvariance, OneScheduleServesManyBatchesOnOneWorkspace) {
  const Problem large(batch_of({0, 1, 2, 3, 4, 5}, false));
  const Problem small(batch_of({2, 5}, false));
  Context& context = context_for(CpuTarget::best, 2);
  const Schedule schedule = girih::schedule(context, large.c.spec, large.limits, {.num_units = 7});
  Workspace workspace(schedule.workspace_bytes(), kNanPattern);
  Plan plan(schedule);
  for (const Problem* p : {&large, &small, &large}) {
    EXPECT_LE(plan.update(p->batch).workspace_bytes, schedule.workspace_bytes());
    Outputs out(*p);
    run(context, schedule, plan, make_args(*p, out, workspace.span()));
    EXPECT_TRUE(matches(*p, reference(*p), out));
  }
}

TEST(AttentionInvariance, ABlobLoadedElsewhereRunsTheSame) {
  const Problem p(batch_of({0, 1, 2, 3}, false));
  Context& context = context_for(CpuTarget::best, 1);
  const Schedule schedule = girih::schedule(context, p.c.spec, p.limits, {.num_units = 7});
  Plan plan(schedule);
  plan.update(p.batch);
  Plan loaded(girih::schedule(context, p.c.spec, p.limits, {.num_units = 7}));
  loaded.load(plan.blob());
  Workspace workspace(schedule.workspace_bytes(), kNanPattern);
  Outputs first(p);
  Outputs second(p);
  run(context, schedule, plan, make_args(p, first, workspace.span()));
  run(context, loaded.schedule(), loaded, make_args(p, second, workspace.span()));
  EXPECT_EQ(first.all_bits(), second.all_bits());
}

TEST(AttentionInvariance, OrderOfRequestsChangesOnlyRounding) {
  const std::vector<std::int64_t> order{4, 2, 0, 5, 3, 1};
  const Problem straight(batch_of({0, 1, 2, 3, 4, 5}, false));
  const Problem permuted(batch_of(order, false));
  EXPECT_TRUE(matches(straight, reference(straight), execute(straight, context_for(CpuTarget::best, 1))));
  EXPECT_TRUE(matches(permuted, reference(permuted), execute(permuted, context_for(CpuTarget::best, 1))));
}

TEST(AttentionInvariance, BatchInvariantRowsHaveTheSameBitsEverywhere) {
  const std::vector<std::vector<std::int64_t>> batches{{0},          {1},   {2}, {3}, {4}, {5}, {0, 1, 2, 3, 4, 5}, {4, 2, 0, 5, 3, 1},
                                                       {3, 3, 3, 0}, {5, 4}};
  for (CpuTarget target : available_cpu_targets()) {
    std::array<std::vector<std::vector<std::byte>>, 6> seen;  // per request id, its rows' bits
    for (const std::vector<std::int64_t>& ids : batches) {
      const Problem p(batch_of(ids, true));
      for (const auto& [workers, units] : {std::pair{1, 1}, {1, 7}, {2, 2}}) {
        const Outputs out = execute(p, context_for(target, workers), {.units = units});
        if (units == 7) {
          EXPECT_TRUE(matches(p, reference(p), out));
        }
        for (std::size_t r = 0; r < ids.size(); ++r) {
          std::vector<std::vector<std::byte>> rows;
          for (std::int64_t t = p.qo_indptr[r]; t < p.qo_indptr[r + 1]; ++t) rows.push_back(out.row_bits(t));
          auto& known = seen[static_cast<std::size_t>(ids[r])];
          if (known.empty()) known = rows;
          EXPECT_EQ(known, rows) << "request " << ids[r] << " in a batch of " << ids.size() << ", " << units << " units, " << workers
                                 << " workers, " << girih::name(target);
        }
      }
    }
  }
}

TEST(AttentionInvariance, BatchInvariantCascadeIsTheSameForAnyUnits) {
  for (const AttentionCase& c : segment_cases()) {
    if (!c.name.starts_with("cascade2_nhd_decode")) continue;
    AttentionCase invariant = c;
    invariant.spec.batch_invariant = true;
    const Problem p(invariant);
    try {
      const auto bits = execute(p, context_for(CpuTarget::best, 1), {.units = 1}).all_bits();
      EXPECT_EQ(bits, execute(p, context_for(CpuTarget::best, 2), {.units = 7}).all_bits());
    } catch (const Error& e) {  // levels that do not meet at chunk borders are refused, by name
      EXPECT_NE(e.code(), Code::internal) << e.what();
      EXPECT_NE(std::string(e.what()).find("batch_invariant"), std::string::npos) << e.what();
    }
  }
}

TEST(AttentionInvariance, PartialStatesMergeToTheWhole) {
  // Keys [0, 300) and [300, 420) of each request apart, as two runs with partial states, then merge_state.
  AttentionCase whole = make_case("whole", make_spec(6, 2, 64), {"", {1, 5, 1}, {420, 420, 420}});
  const Problem p(whole);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    AttentionCase c = whole;
    c.spec.partial_state = true;
    c.segments[0].kv_len.assign(3, end - begin);
    c.segments[0].kv_pos.assign(3, begin);
    c.kv_len.assign(3, 420);
    for (std::int64_t n : c.q_len) c.q_pos.push_back(420 - n);
    // The whole's keys: a site's value is a function of its index, so shift it.
    c.edit = [&p, begin](const Site& site, double drawn) {
      if (site.plane == Plane::q) return drawn;
      Site at = site;
      at.index += begin;
      return p.value(at);
    };
    return c;
  };
  const Problem a(part(0, 300));
  const Problem b(part(300, 420));
  for (CpuTarget target : available_cpu_targets()) {
    Context& context = context_for(target, 1);
    const Outputs out_a = execute(a, context);
    const Outputs out_b = execute(b, context);
    EXPECT_TRUE(matches(a, reference(a), out_a));
    Outputs merged(p);
    merge_state(context, out_a.o, out_a.lse, out_b.o, out_b.lse, merged.o, merged.lse);
    EXPECT_TRUE(matches(p, reference(p), merged));
  }
}

}  // namespace
}  // namespace girih::cases
