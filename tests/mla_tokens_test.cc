// MLA's fp8 tokens of 656 bytes: pools described as stores, lists of tokens out of an indexer's table, and the way of a token from append
// to attention, where every byte is checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "cases/check.h"
#include "girih/attention.h"
#include "girih/page.h"
#include "ref/page.h"

namespace girih {
namespace {

constexpr std::int64_t kPages = 5, kPageSize = 64, kLatent = 512, kRope = 64, kTokenBytes = 656;

struct Pool {
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kPages * kPageSize * kTokenBytes, 0xff);
  TensorView view{bytes.data(), DType::u8, {kPages, kPageSize, kTokenBytes}};
};

void expect_refused(const std::string& words, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(MlaTokens, APoolIsAStore) {
  Pool pool;
  const std::uint8_t* data = pool.bytes.data();
  const KvStore store = mla_token_kv_store(pool.view);
  EXPECT_EQ(store.page_size, 64);
  EXPECT_EQ(store.num_pages, 5);
  EXPECT_EQ(store.k.data, data);
  EXPECT_EQ(store.k.dtype, DType::e4m3);
  EXPECT_EQ(store.k.scales.granularity, ScaleGranularity::token_group);
  EXPECT_EQ(store.k.scales.data, data + 512);
  EXPECT_EQ(store.k_rope.data, data + 528);
  EXPECT_EQ(store.k_rope.dtype, DType::bf16);
  EXPECT_EQ(store.v.data, nullptr);
  const KvStore tokens = single_token_pages(store);
  EXPECT_EQ(tokens.page_size, 1);
  EXPECT_EQ(tokens.num_pages, 320);
  for (const KvStore* s : {&store, &tokens}) {
    const std::int64_t page = s == &store ? 64 * 656 : 656;
    for (const std::int64_t stride : {s->k.page_byte_stride, s->k.scales.page_byte_stride, s->k_rope.page_byte_stride})
      EXPECT_EQ(stride, page);
    for (const std::int64_t stride : {store.k.token_byte_stride, store.k.scales.token_byte_stride, store.k_rope.token_byte_stride})
      EXPECT_EQ(stride, 656);
  }
  // With the one head's dimension, and pages of a larger pool.
  const KvStore padded = mla_token_kv_store({pool.bytes.data(), DType::e4m3, {2, 64, 1, 656}, {100 * 656, 656, 656, 1}});
  EXPECT_EQ(padded.k.page_byte_stride, 100 * 656);
  expect_refused("store.k.page_byte_stride=65600 with 64 tokens of 656 bytes", [&] { single_token_pages(padded); });
  const KvStore other = mla_token_kv_store({pool.bytes.data(), DType::u8, {3, 16, 256 + 8 + 64}}, 256, 32);
  EXPECT_EQ(other.k_rope.data, data + 264);
}

TEST(MlaTokens, RefusesWhatIsNoPool) {
  Pool pool;
  std::uint8_t* data = pool.bytes.data();
  expect_refused("tokens has rank 2", [&] { mla_token_kv_store({data, DType::u8, {320, 656}}); });
  expect_refused("tokens is bf16", [&] { mla_token_kv_store({data, DType::bf16, {5, 64, 328}}); });
  expect_refused("tokens has 640 bytes a token", [&] { mla_token_kv_store({data, DType::u8, {5, 64, 640}}); });
  expect_refused("2 apart", [&] { mla_token_kv_store({data, DType::u8, {2, 64, 656}, {64 * 1312, 1312, 2}}); });
  expect_refused("latent_dim=500", [&] { mla_token_kv_store(pool.view, 500); });
  expect_refused("rope_dim=0", [&] { mla_token_kv_store(pool.view, 512, 0); });
  expect_refused("tokens.data is null", [&] { mla_token_kv_store({nullptr, DType::u8, {5, 64, 656}}); });
  expect_refused("page size must be >= 1", [&] { mla_token_kv_store({data, DType::u8, {5, 0, 656}}); });
  expect_refused("must be a paged store", [&] { single_token_pages({.page_size = kEndlessPage, .num_pages = 7}); });
  KvStore store = mla_token_kv_store(pool.view);
  store.has_partial_page = true;
  expect_refused("has_partial_page", [&] { single_token_pages(store); });
  store = mla_token_kv_store(pool.view);
  store.k.scales.page_byte_stride += 4;
  expect_refused("store.k.scales.page_byte_stride", [&] { single_token_pages(store); });
  store = mla_token_kv_store(pool.view);
  store.num_pages = std::int64_t{1} << 40;
  expect_refused("at most 2^31", [&] { single_token_pages(store); });
  const std::vector<std::int32_t> indices(7, -1);
  expect_refused("num_rows=2 with 7 indices", [&] { key_lists(indices, 2); });
  expect_refused("num_rows=-1", [&] { key_lists({}, -1); });
}

TEST(MlaTokens, ListsLeaveUnusedEntriesOut) {
  const std::vector<std::int32_t> indices{5, -1, 3, -1, -1, -1, -1, -1, 0, 1, 2, 7};
  const KeyLists lists = key_lists(indices, 3);
  EXPECT_EQ(lists.qo_indptr, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(lists.kv_indptr, (std::vector<std::int64_t>{0, 2, 2, 6}));
  EXPECT_EQ(lists.kv_len, (std::vector<std::int64_t>{2, 0, 4}));
  EXPECT_EQ(lists.kv_indices, (std::vector<std::int32_t>{5, 3, 0, 1, 2, 7}));
  const KvSegment segment = lists.segment();
  EXPECT_EQ(segment.page_size, 1);
  EXPECT_FALSE(segment.masked);
  EXPECT_TRUE(key_lists({}, 0).kv_indices.empty());
}

float drawn(std::mt19937& random) { return std::normal_distribution<float>()(random); }

/// Rows [n, 1, dim] of bf16.
struct Rows {
  std::vector<std::uint16_t> data;
  TensorView view;
  Rows(std::int64_t n, std::int64_t dim, float spread, std::mt19937& random)
      : data(static_cast<std::size_t>(n * dim)), view(data.data(), DType::bf16, {n, 1, dim}) {
    for (std::uint16_t& x : data) x = encode_bf16(spread * drawn(random));
  }
};

TEST(MlaTokens, PagesAreCopiedWhole) {
  Pool pool;
  std::mt19937 random(3);
  for (std::uint8_t& byte : pool.bytes) byte = static_cast<std::uint8_t>(random());
  std::vector<std::uint8_t> want = pool.bytes;
  std::copy_n(want.begin() + 3 * kPageSize * kTokenBytes, kPageSize * kTokenBytes, want.begin() + kPageSize * kTokenBytes);
  copy_pages(cases::context_for(CpuTarget::best, 2), mla_token_kv_store(pool.view), 1, kLatent, kRope, 0, std::vector<PageCopy>{{3, 1}});
  EXPECT_EQ(pool.bytes, want);
}

/// New tokens into scattered slots, then attention by a table with unused entries: the bytes are the layout's, and the result is that of
/// the values in them.
TEST(MlaTokens, FromAppendToAttention) {
  constexpr std::int64_t kNew = 200, kHeads = 16, kRows = 4, kTopK = 160;
  std::mt19937 random(5);
  Pool pool;
  const KvStore store = mla_token_kv_store(pool.view);
  Rows latent(kNew, kLatent, 3.0F, random), rope(kNew, kRope, 1.0F, random);
  for (std::int64_t d = 0; d < 128; ++d) latent.data[static_cast<std::size_t>(7 * kLatent + d)] = 0;  // a group of zeros
  std::vector<std::int32_t> slots(kPages * kPageSize);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  Context& context = cases::context_for(CpuTarget::best, 2);
  append(context, store, AppendTable{.slots = {slots.data(), DType::i32, {kNew}}}, latent.view, rope.view, {});

  std::vector<std::uint8_t> untouched(pool.bytes.size(), 1);
  for (std::int64_t i = 0; i < kNew; ++i) {
    const std::uint8_t* token = pool.bytes.data() + slots[static_cast<std::size_t>(i)] * kTokenBytes;
    std::memset(untouched.data() + slots[static_cast<std::size_t>(i)] * kTokenBytes, 0, kTokenBytes);
    ASSERT_EQ(std::memcmp(token + 528, rope.data.data() + i * kRope, 2 * kRope), 0);
    for (std::int64_t group = 0; group < 4; ++group) {
      const std::uint16_t* x = latent.data.data() + i * kLatent + group * 128;
      float most = 0;
      for (int d = 0; d < 128; ++d) most = std::max(most, std::fabs(decode_bf16(x[d])));
      float scale = 0;
      std::memcpy(&scale, token + 512 + 4 * group, 4);
      ASSERT_EQ(scale, most == 0 ? 1.0F : most / 448);
      for (int d = 0; d < 128; ++d) {
        ASSERT_EQ(static_cast<double>(decode_e4m3(token[group * 128 + d])),
                  ref::nearest_value(DType::e4m3, static_cast<double>(decode_bf16(x[d]) / scale)));
      }
    }
  }
  for (std::size_t i = 0; i < untouched.size(); ++i) ASSERT_TRUE(untouched[i] == 0 || pool.bytes[i] == 0xff) << i;

  // Row 2 has no token; in the others every third entry is unused.
  std::vector<std::int32_t> table(kRows * kTopK, -1);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t j = 0; row != 2 && j < kTopK; ++j) {
      if (j % 3 != 1) table[static_cast<std::size_t>(row * kTopK + j)] = slots[static_cast<std::size_t>((row * 31 + j) % kNew)];
    }
  }
  const KeyLists lists = key_lists(table, kRows);
  const KvSegment segment = lists.segment();
  const std::vector<std::int32_t> qo_indptr{0, kRows}, kv_len{1000};
  const AttentionSpec spec{.num_qo_heads = kHeads,
                           .head_dim_qk = 576,
                           .head_dim_vo = 512,
                           .head_dim_rope = 64,
                           .k_dtype = DType::e4m3,
                           .o_dtype = DType::f32,
                           .k_rope_dtype = DType::bf16,
                           .k_scale = ScaleGranularity::token_group,
                           .v_is_k = true,
                           .sm_scale = 0.05,
                           .lse = LseKind::natural};
  const Schedule schedule =
      girih::schedule(context, spec, {.max_tokens = kRows, .max_requests = 1, .max_groups = kRows, .max_kv_len = kTopK});
  Plan plan(schedule);
  plan.update({.qo_indptr = qo_indptr, .segments = {&segment, 1}, .kv_len = kv_len});
  Rows q(kRows * kHeads, kLatent, 1.0F, random), q_rope(kRows * kHeads, kRope, 1.0F, random);
  std::vector<float> o(kRows * kHeads * kLatent), lse(kRows * kHeads);
  cases::Workspace workspace(schedule.workspace_bytes(), cases::kNanPattern);
  const SegmentData data{.store = single_token_pages(store), .kv_indices = lists.kv_indices};
  run(context, schedule, plan,
      {.q = {q.data.data(), DType::bf16, {kRows, kHeads, kLatent}},
       .q_rope = {q_rope.data.data(), DType::bf16, {kRows, kHeads, kRope}},
       .segments = {&data, 1},
       .o = {o.data(), DType::f32, {kRows, kHeads, kLatent}},
       .lse = {lse.data(), DType::f32, {kRows, kHeads}},
       .workspace = workspace.span()});
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t at = row * kHeads + head;
      if (row == 2) {
        ASSERT_EQ(lse[static_cast<std::size_t>(at)], -std::numeric_limits<float>::infinity());
        for (std::int64_t d = 0; d < kLatent; ++d) ASSERT_EQ(o[static_cast<std::size_t>(at * kLatent + d)], 0.0F);
        continue;
      }
      double sum = 0;
      std::vector<double> want(kLatent, 0.0);
      for (std::int64_t j = lists.kv_indptr[static_cast<std::size_t>(row)]; j < lists.kv_indptr[static_cast<std::size_t>(row + 1)]; ++j) {
        const std::int64_t slot = lists.kv_indices[static_cast<std::size_t>(j)];
        const auto element = [&](const KvPlane& plane, std::int64_t d) {
          return ref::read_element(store, plane, slot / kPageSize, slot % kPageSize, 0, d);
        };
        double score = 0;
        for (std::int64_t d = 0; d < kLatent; ++d)
          score += decode_bf16(q.data[static_cast<std::size_t>(at * kLatent + d)]) * element(store.k, d);
        for (std::int64_t d = 0; d < kRope; ++d)
          score += decode_bf16(q_rope.data[static_cast<std::size_t>(at * kRope + d)]) * element(store.k_rope, d);
        const double weight = std::exp(score * spec.sm_scale);
        sum += weight;
        for (std::int64_t d = 0; d < kLatent; ++d) want[static_cast<std::size_t>(d)] += weight * element(store.k, d);
      }
      ASSERT_NEAR(lse[static_cast<std::size_t>(at)], std::log(sum), 2e-4);
      for (std::int64_t d = 0; d < kLatent; ++d)
        ASSERT_NEAR(o[static_cast<std::size_t>(at * kLatent + d)], want[static_cast<std::size_t>(d)] / sum, 2e-3);
    }
  }
}

}  // namespace
}  // namespace girih
