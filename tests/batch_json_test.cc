// Batch files: what they mean, and that every fault is an Error(io) that says where and why.
#include <gtest/gtest.h>

#include <string>

#include "girih/error.h"
#include "tools/batch_json.h"

namespace girih::tools {
namespace {

OwnedBatch parse(const std::string& text) { return parse_batch_json(text, "b.json"); }

/// The message of the Error(io) that parsing `text` throws.
std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

void expect_refusal(const std::string& text, const std::string& position, const std::string& reason) {
  const std::string message = refusal(text);
  EXPECT_EQ(message.rfind(position, 0), 0U) << message << "\nshould start with " << position;
  EXPECT_NE(message.find(reason), std::string::npos) << message << "\nshould contain " << reason;
}

using Lens = std::vector<std::int64_t>;

TEST(BatchJson, TokensWithScalesOfGroups) {
  const OwnedBatch batch = parse(R"({"spec": {"head_dim_qk": 576, "head_dim_vo": 512, "head_dim_rope": 64, "k_dtype": "e4m3",
      "k_rope_dtype": "bf16", "k_scale": "token_group", "v_is_k": true}, "batch": {"qo_lens": [1], "kv_lens": [33]}})");
  EXPECT_EQ(batch.spec.k_rope_dtype, DType::bf16);
  EXPECT_EQ(batch.spec.k_scale, ScaleGranularity::token_group);
}

TEST(BatchJson, OneSegmentOverTheRequests) {
  const OwnedBatch batch =
      parse(R"({"spec": {"num_qo_heads": 6, "num_kv_heads": 2, "head_dim_qk": 192, "head_dim_vo": 128, "q_dtype": "f16",
      "k_dtype": "e4m3", "v_dtype": "i8", "o_dtype": "f32", "k_scale": "head", "v_scale": "token_head", "sm_scale": 0.25, "lse": "base2",
      "batch_invariant": true}, "batch": {"qo_lens": [1, 0, 5], "kv_lens": [33, 0, 16], "page_size": 16, "q_pos": [32, 0, 11]}})");
  EXPECT_EQ(batch.spec.num_qo_heads, 6);
  EXPECT_EQ(batch.spec.num_kv_heads, 2);
  EXPECT_EQ(batch.spec.head_dim_qk, 192);
  EXPECT_EQ(batch.spec.head_dim_vo, 128);
  EXPECT_EQ(batch.spec.q_dtype, DType::f16);
  EXPECT_EQ(batch.spec.k_dtype, DType::e4m3);
  EXPECT_EQ(batch.spec.v_dtype, DType::i8);
  EXPECT_EQ(batch.spec.o_dtype, DType::f32);
  EXPECT_EQ(batch.spec.k_scale, ScaleGranularity::head);
  EXPECT_EQ(batch.spec.v_scale, ScaleGranularity::token_head);
  EXPECT_EQ(batch.spec.sm_scale, 0.25);
  EXPECT_EQ(batch.spec.lse, LseKind::base2);
  EXPECT_TRUE(batch.spec.batch_invariant);
  EXPECT_EQ(batch.qo_indptr, (Lens{0, 1, 1, 6}));
  ASSERT_EQ(batch.segments.size(), 1U);
  EXPECT_EQ(batch.segments[0].kv_indptr, (Lens{0, 3, 3, 4}));
  EXPECT_EQ(batch.segments[0].kv_len, (Lens{33, 0, 16}));
  const AttentionLimits limits = batch.limits();
  EXPECT_EQ(limits.max_tokens, 6);
  EXPECT_EQ(limits.max_requests, 3);
  EXPECT_EQ(limits.max_groups, 3);
  EXPECT_EQ(limits.max_kv_len, 33);
  const BatchView view = batch.view();
  EXPECT_EQ(view.batch.q_pos[2], 11);
  ASSERT_EQ(view.batch.segments.size(), 1U);
  EXPECT_EQ(view.batch.segments[0].kv_len[0], 33);
}

TEST(BatchJson, SegmentsOfACascade) {
  const OwnedBatch batch = parse(R"({"mask": "causal", "batch": {"qo_lens": "1x4", "segments": [
      {"qo_lens": [4], "kv_lens": [4096], "page_size": 1, "kv_pos": [0], "masked": false},
      {"kv_lens": "7x4", "page_size": "endless"}]}})");
  ASSERT_EQ(batch.segments.size(), 2U);
  EXPECT_EQ(batch.segments[0].qo_indptr, (Lens{0, 4}));
  EXPECT_EQ(batch.segments[0].kv_indptr, (Lens{0, 4096}));
  EXPECT_FALSE(batch.segments[0].masked);
  EXPECT_EQ(batch.segments[1].page_size, kEndlessPage);
  EXPECT_EQ(batch.segments[1].kv_indptr, (Lens{0, 7, 14, 21, 28}));
  EXPECT_TRUE(batch.segments[1].masked);
  EXPECT_EQ(batch.limits().max_groups, 5);
  EXPECT_EQ(batch.limits().max_segments, 2);
}

TEST(BatchJson, MasksAndLogitsByName) {
  const auto has_mask = [](const std::string& mask) {
    return static_cast<bool>(parse("{" + mask + R"("batch": {"qo_lens": [], "kv_lens": []}})").spec.variant.mask);
  };
  EXPECT_TRUE(has_mask(R"("mask": "window:left=3",)"));
  EXPECT_FALSE(has_mask(R"("mask": "full",)"));
  EXPECT_FALSE(has_mask(""));
  const OwnedBatch prefix =
      parse(R"({"mask": {"name": "prefix_lm", "prefix_len": [3, 4]}, "batch": {"qo_lens": [5, 5], "kv_lens": [5, 5]}})");
  ASSERT_EQ(prefix.variant.plan_params.size(), 1U);
  EXPECT_EQ(prefix.variant.plan_params[0].name, "prefix_len");
  EXPECT_EQ(prefix.variant.i32, (std::vector<std::int32_t>{3, 4}));
  const OwnedBatch documents = parse(R"({"mask": {"name": "document", "lens": [2, 1, 9]}, "batch": {"qo_lens": [5], "kv_lens": [5]}})");
  EXPECT_EQ(documents.variant.i32, (std::vector<std::int32_t>{0, 0, 1, 2, 2}));
  const OwnedBatch alibi = parse(R"({"spec": {"num_qo_heads": 8}, "logits": "alibi", "batch": {"qo_lens": [1], "kv_lens": [9]}})");
  EXPECT_EQ(alibi.variant.f32.size(), 8U);
  EXPECT_FALSE(parse(R"({"logits": {"name": "sigmoid", "bias": -2}, "batch": {"qo_lens": [1], "kv_lens": [9]}})").spec.variant.softmax);
}

TEST(BatchJson, SyntaxErrorsHaveLineAndColumn) {
  expect_refusal("", "b.json:1:1:", "end of input");
  expect_refusal("{\n  \"batch\": {,\n", "b.json:2:13:", "");
  expect_refusal("{\"batch\": {\"qo_lens\": [1e999]}}", "b.json", "");
  expect_refusal("\xff", "b.json:1:1:", "");
}

TEST(BatchJson, FaultsNameTheirPlace) {
  const auto batch = [](const std::string& inner) { return "{\"batch\": {" + inner + "}}"; };
  expect_refusal("[]", "b.json: /:", "object");
  expect_refusal("{}", "b.json: /:", "'batch' is missing");
  expect_refusal(batch(""), "b.json: /batch:", "'qo_lens' is missing");
  expect_refusal(batch(R"("qo_lens": [1], "kv_lens": [1], "page": 3)"), "b.json: /batch:", "unknown key 'page'");
  expect_refusal(R"({"batch": {"qo_lens": [1], "kv_lens": [1]}, "extra": 1})", "b.json: /:", "unknown key 'extra'");
  expect_refusal(R"({"spec": {"heads": 1}, "batch": {"qo_lens": [1], "kv_lens": [1]}})", "b.json: /spec:", "unknown key 'heads'");
  expect_refusal(batch(R"("qo_lens": [1], "qo_lens": [2], "kv_lens": [1])"), "b.json:", "'qo_lens' is given twice");
  expect_refusal(batch(R"("qo_lens": [1, -1], "kv_lens": [1, 1])"), "b.json: /batch/qo_lens/1:", "[0, 2147483647]");
  expect_refusal(batch(R"("qo_lens": [1], "kv_lens": [18446744073709551615])"), "b.json: /batch/kv_lens/0:", "whole number");
  expect_refusal(batch(R"("qo_lens": [1.5], "kv_lens": [1])"), "b.json: /batch/qo_lens/0:", "whole number");
  expect_refusal(batch(R"("qo_lens": [1, 2], "kv_lens": [1])"), "b.json: /batch/kv_lens:", "has 1 entries; must be 2");
  expect_refusal(batch(R"("qo_lens": "2147483647x2", "kv_lens": [1, 1])"), "b.json: /batch/qo_lens:", "exceeds");
  expect_refusal(batch(R"("qo_lens": [1], "segments": [{"kv_lens": [1], "masked": 0}])"),
                 "b.json: /batch/segments/0/masked:", "true or false");
  expect_refusal(batch(R"("qo_lens": [1], "kv_lens": [1], "segments": [])"), "b.json: /batch:", "unknown key 'kv_lens'");
  expect_refusal(batch(R"("qo_lens": [1], "kv_lens": [1], "page_size": -1)"), "b.json: /batch/page_size:", "[0,");
  expect_refusal(batch(R"("qo_lens": [1], "kv_lens": [1], "q_pos": [])"), "b.json: /batch/q_pos:", "one per request");
  expect_refusal(R"({"spec": {"q_dtype": "bf17"}, "batch": {"qo_lens": [1], "kv_lens": [1]}})", "b.json: /spec/q_dtype:", "bf17");
  expect_refusal(R"({"spec": {"lse": "log10"}, "batch": {"qo_lens": [1], "kv_lens": [1]}})", "b.json: /spec/lse:", "none, natural, base2");
  expect_refusal(R"({"mask": "windw", "batch": {"qo_lens": [1], "kv_lens": [1]}})", "b.json: /mask:", "no mask 'windw'");
  expect_refusal(R"({"mask": {"name": "window", "left": 1, "up": 2}, "batch": {"qo_lens": [1], "kv_lens": [1]}})",
                 "b.json: /mask:", "'up'");
  expect_refusal(R"({"mask": {"name": "prefix_lm", "prefix_len": [1, 2]}, "batch": {"qo_lens": [1], "kv_lens": [1]}})",
                 "b.json: /mask:", "one per request");
  expect_refusal(R"({"logits": "soft_cap:cap=0", "batch": {"qo_lens": [1], "kv_lens": [1]}})", "b.json: /logits:", "cap=0");
}

TEST(BatchJson, SizesAreBoundedBeforeMemoryIsTaken) {
  expect_refusal(R"({"batch": {"qo_lens": "1x1048577", "kv_lens": []}})", "b.json: /batch/qo_lens:", "1048576");
  expect_refusal(R"({"batch": {"qo_lens": "zipf:mean=1,n=1e15", "kv_lens": []}})", "b.json: /batch/qo_lens:", "n=");
  expect_refusal(R"({"mask": "document:size=1", "batch": {"qo_lens": [1], "kv_lens": [2147483647]}})", "b.json: /mask:", "positions");
  expect_refusal(std::string(100000, '['), "b.json:", "nested deeper");
  expect_refusal(R"({"batch": {"qo_lens": [1], "segments": [)" +
                     [] {
                       std::string many;
                       for (int i = 0; i < 65; ++i) many += std::string(i > 0 ? "," : "") + R"({"kv_lens": [1]})";
                       return many;
                     }() +
                     "]}}",
                 "b.json: /batch/segments:", "at most 64");
}

TEST(BatchJson, MissingFile) {
  try {
    read_batch_json("/nonexistent/batch.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/batch.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace girih::tools
