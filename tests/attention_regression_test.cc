// Inputs under which other libraries of this job have been reported to fail, named after their rows' ids: all of cases/regressions.h on the
// CPU, and what is to be seen beside a case's values. Merge rows are in merge_test.cc, those of the kernel cache in jit_cache_test.cc.
// ctest: shards=2
#include <algorithm>
#include <numeric>

#include "cases/attention.h"
#include "cases/check.h"
#include "cases/far_memory.h"
#include "cases/regressions.h"

namespace girih::cases {
namespace {

using regressions::typed;

class RegressionCase : public testing::TestWithParam<AttentionCase> {};

TEST_P(RegressionCase, MatchesReference) { check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Cases, RegressionCase, testing::ValuesIn(regression_cases()), [](const auto& info) { return info.param.name; });

TEST(Regression, F05_E4m3HoldsNormalDataCloserThanE5m2) {
  double error[2] = {};
  for (const int i : {0, 1}) {
    const DType type = i == 0 ? DType::e4m3 : DType::e5m2;
    AttentionCase exact = regression_case(fmt::format("F05_{}", girih::name(type)));
    set_kv(exact.spec, DType::f32, ScaleGranularity::none, DType::f32, ScaleGranularity::none);
    const Problem want(exact);
    AttentionCase coded = exact;
    set_kv(coded.spec, type, ScaleGranularity::head, type, ScaleGranularity::head);
    coded.edit = [&want](const Site& s, double drawn) { return s.plane == Plane::q ? drawn : want.value(s); };  // the same data, rounded
    const Problem got(coded);
    const auto rows = reference(want);
    const Outputs out = execute(got, context_for(CpuTarget::best, 1));
    for (std::int64_t t = 0; t < want.num_tokens(); ++t) {
      for (std::int64_t h = 0; h < 32; ++h) {
        for (std::int64_t d = 0; d < 128; ++d)
          error[i] += std::fabs(out.o_at(t, h, d) - rows[static_cast<std::size_t>(t * 32 + h)].o[static_cast<std::size_t>(d)]);
      }
    }
  }
  EXPECT_LT(2 * error[0], 1.2 * error[1]);  // a mantissa bit more halves the error
}

AttentionCase simple(AttentionSpec spec, std::vector<std::int64_t> q, std::vector<std::int64_t> kv, Layout layout = Layout::nhd,
                     std::int64_t page_size = 16) {
  return make_case("regression", spec, {"", std::move(q), std::move(kv)}, layout, page_size);
}

/// The same case with other data memory gives the same bits on every target.
void expect_same_bits(const Problem& a, const Problem& b) {
  for (CpuTarget target : available_cpu_targets()) {
    EXPECT_EQ(execute(a, context_for(target, 1)).all_bits(), execute(b, context_for(target, 1)).all_bits()) << girih::name(target);
  }
}

TEST(Regression, A05_RequestWithoutKeysHasLseMinusInfinity) {
  const Problem p(regression_case("A05_request_without_keys"));
  const Outputs out = execute(p, context_for(CpuTarget::best, 1));
  EXPECT_TRUE(matches(p, reference(p), out));
  for (std::int64_t t = 5; t < 8; ++t) EXPECT_EQ(out.lse_at(t, 0), -std::numeric_limits<double>::infinity());
}

TEST(Regression, A10_OneKeyWithAHugeNegativeScore) {
  AttentionCase c = regression_case("A10_one_key_with_a_huge_negative_score");  // q . k = -524288
  const Problem p(c);
  for (CpuTarget target : available_cpu_targets()) {
    const Outputs out = execute(p, context_for(target, 1));
    for (std::int64_t t = 0; t < 3; ++t) {
      for (std::int64_t h = 0; h < 32; ++h) {
        EXPECT_NEAR(out.lse_at(t, h), -46340.95, 0.01);
        for (std::int64_t d = 0; d < 128; ++d) {
          ASSERT_EQ(out.o_at(t, h, d), p.value({.plane = Plane::v, .segment = 0, .group = t, .head = h, .index = 0, .dim = d}));
        }
      }
    }
  }
  c.spec.lse = LseKind::base2;
  const Problem base2(c);
  EXPECT_NEAR(execute(base2, context_for(CpuTarget::best, 1)).lse_at(0, 0), -66855.86, 0.02);
}

TEST(Regression, A11_AllLogitsFarBelowZero) {
  for (const ref::RowResult& row : reference(Problem(regression_case("A11_all_logits_far_below_zero_f32")))) ASSERT_LT(row.lse, -5e4);
}

TEST(Regression, A14_SinksWithFullyMaskedRows) {
  for (const int first : {0, 20}) {
    const Problem p(regression_case(fmt::format("A14_sinks_with_masked_rows_from_{}", first)));
    const Outputs out = execute(p, context_for(CpuTarget::best, 1));
    for (std::int64_t t = first; t < first + 14; ++t) {
      for (std::int64_t h = 0; h < 8; ++h) {
        EXPECT_EQ(out.lse_at(t, h), -3.5 + static_cast<double>(h));  // the sink
        for (std::int64_t d = 0; d < 512; ++d) ASSERT_EQ(out.o_at(t, h, d), 0);
      }
    }
  }
}

TEST(Regression, A16_NanInAMaskedKey) {
  const AttentionCase dirty = regression_case("A16_nan_in_a_masked_key_f32");
  AttentionCase clean = dirty;
  clean.edit = {};
  expect_same_bits(Problem(clean), Problem(dirty));
}

TEST(Attention, ANanKeyReachesTheRowsThatSeeItAndNoOther) {
  const AttentionCase clean = simple(typed(make_spec(4, 2, 64), DType::f32), {1, 20}, {30, 20});
  AttentionCase dirty = clean;
  dirty.edit = [](const Site& s, double drawn) {
    return s.plane == Plane::k && s.index == 7 ? std::numeric_limits<double>::quiet_NaN() : drawn;
  };
  const Problem before(clean);
  const Problem after(dirty);
  for (CpuTarget target : available_cpu_targets()) {
    const Outputs a = execute(before, context_for(target, 1));
    const Outputs b = execute(after, context_for(target, 1));
    for (std::int64_t t = 0; t < before.num_tokens(); ++t) {
      const bool seen = t == 0 || t - 1 >= 7;  // causal: the second request's row i sees keys 0..i
      if (!seen) {
        EXPECT_EQ(a.row_bits(t), b.row_bits(t)) << "row " << t << ", " << girih::name(target);
        continue;
      }
      for (std::int64_t h = 0; h < 4; ++h) {
        EXPECT_TRUE(std::isnan(b.lse_at(t, h))) << "row " << t << ", " << girih::name(target);
        for (std::int64_t d = 0; d < 64; ++d) EXPECT_TRUE(std::isnan(b.o_at(t, h, d))) << "row " << t << ", " << girih::name(target);
      }
    }
  }
}

TEST(Regression, A17_MlaWithNanInTheLastPagesUnusedSlots) {
  const AttentionCase c = regression_case("A17_mla_unused_slots_of_the_last_page");
  expect_same_bits(Problem(c), Problem(c, {.poison = std::byte{0}, .placement = 1}));
}

TEST(Regression, A19_ManyStepsOnAPoolOfNan) {
  for (DType t : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    const ScaleGranularity g = bits(t) == 8 ? ScaleGranularity::tensor : ScaleGranularity::none;
    for (std::int64_t step = 0; step < 20; step += 1 + step / 3) {
      AttentionCase c = simple(make_spec(4, 2, 64), {1, 1, 2}, {1 + step, 15 + step, 30 + 2 * step});
      set_kv(c.spec, t, g, t, g);
      expect_same_bits(Problem(c), Problem(c, {.poison = std::byte{0}, .placement = 1}));
    }
  }
}

TEST(Regression, A25_PageListLongerThanTheLengthNeeds) {
  // Lengths at multiples of the page size, and one page more than needed which is a real page that holds NaN.
  for (std::int64_t len : {16, 48}) {
    Problem p(simple(make_spec(4, 2, 32), {1}, {len}));
    std::vector<std::int32_t> ids(p.memory[0].kv_indices.begin(), p.memory[0].kv_indices.begin() + len / 16);
    for (std::int32_t page = 0; page < p.memory[0].run.store.num_pages; ++page) {
      if (std::find(ids.begin(), ids.end(), page) == ids.end()) {
        ids.push_back(page);
        break;
      }
    }
    const std::vector<std::int64_t> indptr{0, len / 16 + 1};
    p.segments[0].kv_indptr = indptr;
    p.segment_data[0].kv_indices = ids;
    EXPECT_TRUE(matches(p, reference(p), execute(p, context_for(CpuTarget::best, 1))));
  }
}

TEST(Regression, A26_TwoRequestsOfOnePartialPage) {
  const Outputs out = execute(Problem(regression_case("A26_two_requests_of_one_partial_page")), context_for(CpuTarget::best, 1));
  EXPECT_EQ(out.row_bits(0), out.row_bits(1));
}

TEST(Regression, B05_SinglePrefillWithUncommonHeadDims) {
  for (int d : {40, 72, 80, 88, 96, 112}) {
    const AttentionCase c = regression_case(fmt::format("B05_single_prefill_dim{}", d));
    const Problem p(c);
    Outputs out(p);
    // Through the one-call entry.
    Context& context = context_for(CpuTarget::best, 2);
    const KvStore& store = p.segment_data[0].store;
    const TensorView k(const_cast<void*>(store.k.data), DType::f16, {256, 8, d});
    const TensorView v(const_cast<void*>(store.v.data), DType::f16, {256, 8, d});
    single_attention(context, c.spec, p.q, k, v, out.o, out.lse);
    EXPECT_TRUE(matches(p, reference(p), out));
  }
}

TEST(Regression, C08_StridesBeyond32BitsAreKept) {
  // A pool of 2^33 bytes of which only the last pages exist: page ids 2^20 + i with pages of 2^13 bytes. Any product or sum kept in 32 bits
  // misses them.
  Problem p(simple(typed(make_spec(2, 1, 16), DType::f32), {1}, {40}, Layout::nhd, 16));
  KvStore& store = p.segment_data[0].store;
  constexpr std::int64_t kStride = 1 << 13;
  constexpr std::int64_t kFirst = 1 << 20;
  const FarMemory k(kFirst * kStride, store.num_pages * kStride);
  const FarMemory v(kFirst * kStride, store.num_pages * kStride);
  const auto widen = [&](KvPlane& plane, const FarMemory& wide) {
    std::memset(wide.data(), 0xff, static_cast<std::size_t>(store.num_pages * kStride));
    for (std::int64_t page = 0; page < store.num_pages; ++page) {
      std::copy_n(static_cast<const std::byte*>(plane.data) + page * plane.page_byte_stride, plane.page_byte_stride,
                  wide.data() + page * kStride);
    }
    plane.page_byte_stride = kStride;
    plane.data = wide.base();
  };
  widen(store.k, k);
  widen(store.v, v);
  std::vector<std::int32_t> ids(p.segment_data[0].kv_indices.begin(), p.segment_data[0].kv_indices.begin() + 3);
  for (std::int32_t& id : ids) id += kFirst;
  const std::vector<std::int64_t> indptr{0, 3};
  p.segments[0].kv_indptr = indptr;
  p.segment_data[0].kv_indices = ids;
  store.num_pages += kFirst;
  for (CpuTarget target : available_cpu_targets()) EXPECT_TRUE(matches(p, reference(p), execute(p, context_for(target, 1))));
}

TEST(Regression, D11_LayoutsAndTypesOfOneShapeInTurns) {
  const auto of = [](Layout layout, bool strided, DType kv) {
    AttentionCase c = simple(make_spec(4, 2, 64), {1, 20}, {90, 40}, layout);
    c.segments[0].strided_table = strided;
    if (kv != DType::bf16) set_kv(c.spec, kv, ScaleGranularity::tensor, kv, ScaleGranularity::tensor);
    return Problem(c);
  };
  const Problem in_turns[] = {of(Layout::hnd, false, DType::bf16), of(Layout::nhd, true, DType::bf16), of(Layout::nhd, true, DType::e4m3),
                              of(Layout::hnd, false, DType::i8)};
  for (CpuTarget target : available_cpu_targets()) {
    for (int round = 0; round < 2; ++round) {
      for (const Problem& p : in_turns) EXPECT_TRUE(matches(p, reference(p), execute(p, context_for(target, 1))));
    }
  }
}

TEST(Regression, D13_LseCostsNoWorkspace) {
  AttentionSpec spec = make_spec(64, 8, 128);
  const AttentionLimits limits{.max_tokens = 16384, .max_requests = 16384, .max_kv_len = 1024};
  Context& context = context_for(CpuTarget::best, 2);
  const std::int64_t with = girih::schedule(context, spec, limits).workspace_bytes();
  spec.lse = LseKind::none;
  const std::int64_t without = girih::schedule(context, spec, limits).workspace_bytes();
  EXPECT_LE(with - without, std::int64_t{64} * 16384 * 4);
  EXPECT_LT(with, std::int64_t{1} << 30);
}

TEST(Regression, E07_CasesTellCappedLogitsFromOthers) {
  for (const int cap : {30, 50}) {
    AttentionCase c = regression_case(fmt::format("E07_cap_{}_causal", cap));
    const auto capped = reference(Problem(c));
    c.logits = [](double s, const ref::Vars&) { return s; };
    const auto uncapped = reference(Problem(c));
    EXPECT_GT(std::fabs(capped[0].lse - uncapped[0].lse), 1);
  }
}

TEST(Regression, E10_SinksCountInPrefillAndDecode) {
  AttentionCase c = regression_case("E10_sinks_with_a_window");
  const auto with = reference(Problem(c));
  c.spec.variant.sink = Expr();
  const auto without = reference(Problem(c));
  for (std::size_t row : {std::size_t{0}, std::size_t{8 * 100}}) EXPECT_GT(with[row].lse, without[row].lse);
}

/// K, V and Q of a block-sparse case as dense tensors, with the dense reference under `sees(head, row, column)`.
void check_block_sparse(const BlockSparse& pattern, std::int64_t rows, std::int64_t columns, int heads, int dim, DType type,
                        const std::function<bool(std::int64_t head, std::int64_t row, std::int64_t column)>& sees) {
  AttentionCase c = simple(typed(make_spec(heads, heads, dim), type), {rows}, {columns}, Layout::ragged);
  c.spec.o_dtype = DType::f32;
  c.spec.variant.mask = Expr();
  c.mask = [sees](const ref::Vars& v) { return sees(v.i(Var::kv_head), v.i(Var::q_idx), v.i(Var::kv_pos)); };
  Problem p(c);
  const KvStore dense = p.segment_data[0].store;
  const TensorView k(const_cast<void*>(dense.k.data), type, {columns, heads, dim});
  const TensorView v(const_cast<void*>(dense.v.data), type, {columns, heads, dim});
  p.segments[0] = pattern.segment();
  p.segment_data[0] =
      SegmentData{.store = block_sparse_kv_store(k, v, pattern.page_size), .kv_indices = pattern.kv_indices, .page_pos = pattern.page_pos};
  const std::vector<std::int64_t> kv_len{columns};
  p.batch.kv_len = kv_len;
  p.limits.max_groups = static_cast<std::int64_t>(pattern.qo_indptr.size()) - 1;
  p.limits.max_kv_len = columns;
  const auto expected = reference(p);
  for (CpuTarget target : available_cpu_targets()) EXPECT_TRUE(matches(p, expected, execute(p, context_for(target, 1))));
}

TEST(Regression, E11_EveryQueryBlockAttendsOnlyTheFirstKeyBlock) {
  const std::vector<std::int32_t> indptr{0, 1, 2, 3, 4};
  const std::vector<std::int32_t> indices{0, 0, 0, 0};
  const BlockSparse pattern = block_sparse(512, 512, 128, 64, indptr, indices);
  check_block_sparse(pattern, 512, 512, 2, 64, DType::f16, [](std::int64_t, std::int64_t, std::int64_t column) { return column < 64; });
}

TEST(BlockSparse, PatternsCutByTheEndsAndPerHead) {
  const std::vector<std::int64_t> indptr{0, 2, 2, 3, 5};  // 4 block rows of 30 rows, the last of 10; columns in blocks of 16, the last of 6
  const std::vector<std::int32_t> indices{0, 4, 1, 2, 4};
  const BlockSparse pattern = block_sparse(100, 70, 30, 16, indptr, indices);
  check_block_sparse(pattern, 100, 70, 2, 40, DType::f32, [&](std::int64_t, std::int64_t row, std::int64_t column) {
    const auto r = static_cast<std::size_t>(row / 30);
    return std::find(indices.begin() + indptr[r], indices.begin() + indptr[r + 1], column / 16) != indices.begin() + indptr[r + 1];
  });
  const std::vector<std::int64_t> per_head{0, 1, 2, 2, 2, 4};  // [2 heads, 2 block rows + 1]
  const std::vector<std::int32_t> head_indices{1, 0, 0, 2};
  const BlockSparse two = block_sparse(40, 48, 20, 16, per_head, head_indices, 2);
  check_block_sparse(two, 40, 48, 2, 16, DType::bf16, [&](std::int64_t head, std::int64_t row, std::int64_t column) {
    const auto at = static_cast<std::size_t>(head * 3 + row / 20);
    return std::find(head_indices.begin() + per_head[at], head_indices.begin() + per_head[at + 1], column / 16) !=
           head_indices.begin() + per_head[at + 1];
  });
}

TEST(BlockSparse, BlocksOfAnySizes) {
  const std::vector<std::int64_t> row_sizes{5, 1, 30, 14};
  const std::vector<std::int64_t> column_sizes{16, 3, 40, 1, 20};
  for (int heads : {1, 2}) {
    std::vector<std::uint8_t> mask;
    for (int i = 0; i < heads * 20; ++i) mask.push_back(mix(static_cast<std::uint64_t>(i)) % 3 == 0);
    const BlockSparse pattern = variable_block_sparse(row_sizes, column_sizes, mask, heads);
    const auto block_of = [](const std::vector<std::int64_t>& sizes, std::int64_t i) {
      std::int64_t b = 0;
      while (i >= sizes[static_cast<std::size_t>(b)]) i -= sizes[static_cast<std::size_t>(b++)];
      return b;
    };
    check_block_sparse(pattern, 50, 80, 2, 32, DType::f32, [&](std::int64_t head, std::int64_t row, std::int64_t column) {
      const std::int64_t h = heads == 1 ? 0 : head;
      return mask[static_cast<std::size_t>((h * 4 + block_of(row_sizes, row)) * 5 + block_of(column_sizes, column))] != 0;
    });
  }
}

TEST(Regression, E14_IndexLanesPastTheCountAreIgnored) {
  for (std::int64_t rows : {64, 65, 200}) {
    const AttentionCase c = regression_case(fmt::format("E14_index_lanes_past_the_count_{}", rows));
    const Problem p(c);
    const Outputs padded = execute(p, context_for(CpuTarget::best, 1));
    // The same with a spare page, all NaN, in every lane past the count.
    Problem valid(c);
    std::vector<std::int32_t> ids(valid.memory[0].kv_indices);
    std::int32_t spare = 0;
    while (std::find(ids.begin(), ids.end(), spare) != ids.end()) ++spare;
    for (std::int32_t& id : ids) {
      if (id < 0 || id == 0x7fffffff) id = spare;
    }
    valid.segment_data[0].kv_indices = ids;
    EXPECT_EQ(padded.all_bits(), execute(valid, context_for(CpuTarget::best, 1)).all_bits());
  }
}

TEST(Regression, E20_PhysicalPlacementChangesNoBit) {
  for (std::int64_t page_size : {1, 16, 64}) {
    const AttentionCase c = simple(make_spec(4, 2, 64), {1, 30, 2}, {300, 30, 77}, Layout::nhd, page_size);
    for (std::uint64_t placement : {2, 3, 4}) expect_same_bits(Problem(c), Problem(c, {.poison = std::byte{0xff}, .placement = placement}));
  }
}

TEST(Regression, F01_TensorScalesAreAppliedInPagedPrefill) {
  Problem p(regression_case("F01_paged_prefill_with_tensor_scales"));
  const Outputs base = execute(p, context_for(CpuTarget::best, 2));
  KvStore& store = p.segment_data[0].store;
  float half_v = 0;
  std::memcpy(&half_v, store.v.scales.data, 4);
  half_v /= 2;
  store.v.scales.data = &half_v;
  const Outputs halved = execute(p, context_for(CpuTarget::best, 2));
  for (std::int64_t d = 0; d < 128; ++d) EXPECT_EQ(halved.o_at(50, 7, d), base.o_at(50, 7, d) / 2);
  const float other_k = 0.002F;
  store.k.scales.data = &other_k;
  EXPECT_NE(execute(p, context_for(CpuTarget::best, 2)).lse_at(50, 7), base.lse_at(50, 7));
}

TEST(Regression, F02_RaggedPrefillWithTensorScales) {
  // Codes of e4m3 with scales 0.25 and 0.5 against a 16-bit cache that holds the products.
  const AttentionCase c = regression_case("F02_ragged_prefill_with_tensor_scales");
  Problem p(c);
  const float scale_k = 0.25F;
  const float scale_v = 0.5F;
  const auto rescale = [](KvPlane& plane, const float* scale) {
    plane.scales.data = scale;
    plane.scales.global_scale = 1;
  };
  rescale(p.segment_data[0].store.k, &scale_k);
  rescale(p.segment_data[0].store.v, &scale_v);
  AttentionCase dense = c;
  set_kv(dense.spec, DType::f16, ScaleGranularity::none, DType::f16, ScaleGranularity::none);
  dense.edit = [&](const Site& s, double drawn) {
    if (s.plane == Plane::q) return drawn;
    return ref::decode(DType::e4m3, palette(DType::e4m3)[hash(s) & 4095]) * (s.plane == Plane::k ? 0.25 : 0.5);
  };
  const Problem d(dense);
  const auto expected = reference(d);
  for (CpuTarget target : available_cpu_targets()) EXPECT_TRUE(matches(d, expected, execute(p, context_for(target, 1))));
}

TEST(Regression, K02_QuerySlicedFromPackedQkv) {
  for (const std::string_view layout : {"nhd", "hnd"}) {
    AttentionCase packed = regression_case(fmt::format("K02_packed_qkv_{}", layout));
    const Problem p(packed);
    EXPECT_EQ(p.q.strides[0], 5120);
    packed.packed_q = false;
    expect_same_bits(p, Problem(packed));
  }
}

TEST(Regression, E08_SplitPrefixAndExtensionMergeToTheWhole) {
  // 4096 keys of prefix and 64 of extension, bf16: attention over each part, merged, against attention over all keys.
  AttentionSpec spec;
  spec.num_qo_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = 64;
  spec.head_dim_vo = 64;
  spec.lse = LseKind::natural;
  AttentionCase whole;
  whole.name = "whole";
  whole.spec = spec;
  whole.q_len = {64};
  whole.segments.push_back({.qo_indptr = {}, .kv_len = {4160}});
  whole.spec.variant.mask = variants::causal();
  const Problem p(whole);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    AttentionCase c = whole;
    c.spec.partial_state = true;
    c.segments[0].kv_len = {end - begin};
    c.segments[0].kv_pos = {begin};
    c.kv_len = {4160};
    c.edit = [&p, begin](const Site& site, double drawn) {
      Site at = site;
      at.index += begin;
      return site.plane == Plane::q ? drawn : p.value(at);
    };
    return c;
  };
  const Problem prefix(part(0, 4096));
  const Problem extension(part(4096, 4160));
  Context& context = context_for(CpuTarget::best, 2);
  const Outputs a = execute(prefix, context);
  const Outputs b = execute(extension, context);
  Outputs merged(p);
  merge_state(context, a.o, a.lse, b.o, b.lse, merged.o, merged.lse);
  const std::vector<ref::RowResult> want = reference(p);
  for (std::int64_t t = 0; t < 64; ++t) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const ref::RowResult& row = want[static_cast<std::size_t>(t * 4 + h)];
      EXPECT_NEAR(merged.lse_at(t, h), row.lse, 1e-4);
      for (std::int64_t d = 0; d < 64; ++d) ASSERT_NEAR(merged.o_at(t, h, d), row.o[static_cast<std::size_t>(d)], 1e-3);
    }
  }
}

}  // namespace
}  // namespace girih::cases
