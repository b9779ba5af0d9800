// Refusals of the sampling operators: the message names the argument, and nothing is written.
#include "girih/sampling.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "girih/error.h"
#include "sampling_samples.h"

namespace girih {
namespace {

using namespace testing;

/// The call throws with this text in its message, and leaves the outputs as they were.
void expect_refused(const std::function<void()>& call, const std::string& text, Code code = Code::invalid_argument) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string::npos, std::string(error.what()).find(text)) << error.what();
    EXPECT_EQ(code, error.code()) << error.what();
  }
}

TEST(SamplingErrors, NameTheArgument) {
  Rows input = random_rows(DType::f32, 3, 40, 1);
  std::vector<std::int32_t> tokens(3, 77);
  const auto refused = [&](const std::function<void(SampleArgs&)>& change, const std::string& text, Code code = Code::invalid_argument) {
    SampleArgs args;
    args.input = input.view();
    args.tokens = vector_view(tokens);
    change(args);
    expect_refused([&] { sample(context(), args); }, text, code);
    EXPECT_EQ((std::vector<std::int32_t>{77, 77, 77}), tokens) << text;
  };
  std::vector<float> three{1, 0.5F, 2}, two{1, 1}, bad{1, -1, 1}, nan{1, 1, kNan};
  std::vector<std::int32_t> indptr{0, 1, 1, 2}, wild{0, 40}, twice{5, 5}, fine{5, 6}, backwards{0, 2, 1, 2}, index{0, 1, 3};
  std::vector<std::int32_t> counts{1, -1}, twice_indptr{0, 2, 2, 2};
  std::vector<float> bias{1, kNan};
  refused([](SampleArgs& a) { a.input = {}; }, "input has shape []; must be [n, vocab]");
  refused([](SampleArgs& a) { a.input.dtype = DType::i8; }, "input is i8; must be f32 or f16 or bf16");
  refused([](SampleArgs& a) { a.input.device = {DeviceKind::cuda, 0}; }, "input.device=cuda:0; the context is for cpu");
  refused([](SampleArgs& a) { a.input.data = nullptr; }, "input.data is null");
  refused([](SampleArgs& a) { a.input.shape[1] = (1 << 20) + 1; }, "must be 1 to 1048576");
  refused([](SampleArgs& a) { a.temperature = -1.0F; }, "temperature=-1; must be finite and >= 0");
  refused([&](SampleArgs& a) { a.temperature = vector_view(nan); }, "temperature[2]=nan");
  refused([&](SampleArgs& a) { a.temperature = vector_view(two); }, "temperature has shape [2]; must be [rows]");
  refused([](SampleArgs& a) { a.top_p = -0.1F; }, "top_p=-0.1; must be >= 0");
  refused([](SampleArgs& a) { a.min_p = 1.5F; }, "min_p=1.5; must be at most 1");
  refused([](SampleArgs& a) { a.repetition_penalty = 0.0F; }, "repetition_penalty=0; must be finite and > 0");
  refused([](SampleArgs& a) { a.presence_penalty = kInf; }, "presence_penalty=inf; must be finite");
  refused([&](SampleArgs& a) { a.indices = vector_view(index); }, "indices[2]=3; must be in [0, input.shape[0]=3)");
  refused([&](SampleArgs& a) { a.history = {vector_view(indptr), vector_view(wild)}; }, "history.tokens[1]=40; must be in [0, vocab=40)");
  refused([&](SampleArgs& a) { a.history = {vector_view(twice_indptr), vector_view(twice)}; }, "history.tokens[1]=5 is in row 0 twice");
  refused(
      [&](SampleArgs& a) {
        a.history = {vector_view(backwards), vector_view(fine)};
      },
      "history.indptr[1..2]=2, 1; must be non-decreasing");
  refused([&](SampleArgs& a) { a.history = {{}, vector_view(fine)}; }, "history.indptr is not given");
  refused(
      [&](SampleArgs& a) {
        a.history = {vector_view(indptr), vector_view(fine)};
        a.history_counts = vector_view(counts);
      },
      "history_counts[1]=-1; must be >= 0");
  refused([&](SampleArgs& a) { a.bias_tokens = {vector_view(indptr), vector_view(fine)}; }, "bias is not given");
  refused(
      [&](SampleArgs& a) {
        a.bias_tokens = {vector_view(indptr), vector_view(fine)};
        a.bias = vector_view(bias);
      },
      "bias[1]=nan; must be finite, or -inf");
  refused(
      [&](SampleArgs& a) {
        a.kind = SampleInput::probs;
        a.history = {vector_view(indptr), vector_view(fine)};
      },
      "history is given for probabilities", Code::unsupported);
  refused(
      [](SampleArgs& a) {
        a.kind = SampleInput::probs;
        a.temperature = 0.7F;
      },
      "temperature=0.7; probabilities take 1", Code::unsupported);
  refused([&](SampleArgs& a) { a.allowed = matrix_view(indptr, 2); }, "allowed has shape [2, 2]; must be [rows, ceil(vocab / 32)]");
  refused([](SampleArgs& a) { a.tokens = {}; }, "tokens has shape []; must be [rows]");
  refused([](SampleArgs& a) { a.tokens.dtype = DType::f32; }, "tokens is f32; must be i32 or i64");
  refused([](SampleArgs& a) { a.tokens.strides[0] = 0; }, "tokens.strides[0]=0");
  refused([&](SampleArgs& a) { a.top_tokens = matrix_view(index, 1); }, "top_tokens is given without top_logprobs");
  refused([&](SampleArgs& a) { a.logprobs = TensorView(input.memory.data(), DType::f32, {3}); }, "logprobs overlaps input");
  refused([&](SampleArgs& a) { a.logprobs = TensorView(tokens.data(), DType::f32, {3}); }, "logprobs overlaps tokens");
  refused([&](SampleArgs& a) { a.stream = &a; }, "stream is given; the context is for the CPU");
  refused([&](SampleArgs& a) { a.random.seed = vector_view(index); }, "random.seed is i32; must be i64");

  Rows out(DType::f32, 3, 40);
  expect_refused([&] { softmax(context(), input.view(), kNan, out.view()); }, "softmax: temperature=nan");
  expect_refused(
      [&] {
        softmax(context(), input.view(), 1.0F, TensorView(out.memory.data(), DType::f32, {3, 41}));
      },
      "out has shape [3, 41]");
  expect_refused(
      [&] {
        TensorView shifted = input.view();
        shifted.shape[0] = 2;
        TensorView other = shifted;
        other.data = input.memory.data() + 160;
        softmax(context(), shifted, 1.0F, other);
      },
      "out overlaps logits without being it");
  expect_refused([&] { top_p_renorm_probs(context(), input.view(), -1.0F, out.view()); }, "top_p_renorm_probs: top_p=-1");
  Rows half(DType::f16, 3, 40);
  expect_refused([&] { top_k_mask_logits(context(), input.view(), 3, half.view()); }, "top_k_mask_logits: out is f16; must be f32");

  std::vector<std::int32_t> indices(3 * 4);
  const auto top_k_refused = [&](const std::function<void(TopKArgs&)>& change, const std::string& text,
                                 Code code = Code::invalid_argument) {
    TopKArgs args;
    args.input = input.view();
    args.k = 4;
    args.indices = matrix_view(indices, 4);
    change(args);
    expect_refused([&] { top_k(context(), args); }, text, code);
  };
  std::vector<std::int32_t> lengths{1, 41, 2};
  top_k_refused([](TopKArgs& a) { a.k = 0; }, "k=0; must be 1 to 4096");
  top_k_refused([](TopKArgs& a) { a.k = 5; }, "indices has shape [3, 4]; must be [rows, k]");
  top_k_refused([&](TopKArgs& a) { a.row_lengths = vector_view(lengths); }, "row_lengths[1]=41; must be in [0, 40]");
  top_k_refused([&](TopKArgs& a) { a.pages.row_requests = vector_view(lengths); }, "pages.row_requests is given without pages.table");
  top_k_refused([&](TopKArgs& a) { a.pages.table = matrix_view(indices, 4); }, "pages.table.shape[1]=4 pages of 1 hold fewer");

  Chains c(1, 2, 4);
  c.tokens = {1, 9};
  expect_refused([&] { c.run(); }, "draft_tokens[0, 1]=9; must be in [0, vocab=4)");
  c.tokens = {1, 2};
  std::vector<std::int32_t> three_drafts{3};
  c.args.draft_lengths = vector_view(three_drafts);
  expect_refused([&] { c.run(); }, "draft_lengths[0]=3; must be in [0, n=2]");
  c.args.draft_lengths = {};
  c.args.greedy = true;
  expect_refused([&] { c.run(); }, "draft_probs is given with greedy=true", Code::unsupported);
}

}  // namespace
}  // namespace girih
