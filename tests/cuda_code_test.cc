// cuda_code(): what is refused as it is built, what the key and the generated text make of it, that the compiler's complaints come back
// with lines of the caller's text, that the CPU refuses it, and that the planner proves what surrounds it. Results are compared with
// expressions in emulated_attention_test and variant_cuda_test.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "attention/cuda.h"
#include "attention/spec.h"
#include "girih/attention.h"
#include "jit/jit.h"
#include "jit_kernels.h"
#include "variant/cuda.h"
#include "variant/interval.h"

namespace girih {
namespace {

using jit::message_of;

Expr doubled(std::string body = "return 2.0F * score;", std::string name = "cuda_code") {
  return cuda_code(ExprType::number, std::move(body), {score()}, std::move(name));
}

AttentionSpec spec_with(const Expr& logits) {
  AttentionSpec spec;
  spec.num_qo_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = 64;
  spec.variant.mask = variants::causal();
  spec.variant.logits = logits;
  return spec;
}

cuda::DeviceInfo device_of(int arch) {
  return {.name = "none",
          .arch = arch,
          .num_sms = 4,
          .shared_per_block = arch == 75 ? 64 * 1024 : 99 * 1024,
          .shared_per_sm = arch == 75 ? 64 * 1024 : 100 * 1024,
          .l2_bytes = 4 << 20,
          .memory_bytes = std::int64_t{8} << 30};
}

TEST(CudaCode, ArgumentsAreCheckedAsItIsBuilt) {
  const auto refusal = [](const std::function<void()>& f) { return message_of(Code::invalid_argument, f); };
  EXPECT_NE(refusal([] { CudaArg(score() + 1.0); }).find("without a name"), std::string::npos);
  EXPECT_NE(refusal([] { CudaArg{Expr()}; }).find("without a name"), std::string::npos);
  EXPECT_NE(refusal([] { cuda_code(ExprType::number, "return 1;", {CudaArg("a b", score())}); }).find("'a b'"), std::string::npos);
  EXPECT_NE(refusal([] { cuda_code(ExprType::number, "return 1;", {CudaArg("a", Expr())}); }).find("absent"), std::string::npos);
  EXPECT_NE(refusal([] {
              cuda_code(ExprType::number, "return 1;", {score(), CudaArg("score", q_pos())});
            }).find("two arguments 'score'"),
            std::string::npos);
  EXPECT_NE(refusal([] { cuda_code(ExprType::number, "", {}); }).find("0 bytes"), std::string::npos);
  EXPECT_NE(refusal([] { doubled("return 1;", "a\"b"); }).find("name of a CUDA text"), std::string::npos);
  EXPECT_NE(refusal([] { doubled("return 1;", "generated"); }).find("name of a CUDA text"), std::string::npos);
  const std::vector<CudaArg> nine = {score(), q_pos(), kv_pos(), q_idx(), q_len(), kv_len(), request(), q_head(), kv_head()};
  EXPECT_NE(refusal([&] { cuda_code(ExprType::number, "return 1;", nine); }).find("9 arguments"), std::string::npos);
  const std::string extra = refusal([] { doubled("// {\nif (score > 0) { return '}' + 1'0; }\n/* { */ }\nreturn \"{\"[0];", "mine.cu"); });
  EXPECT_NE(extra.find("\"mine.cu\", line 3: a } without its {"), std::string::npos) << extra;
  EXPECT_NE(refusal([] { doubled("if (score > 0) { return 1;"); }).find("1 { without }"), std::string::npos);
  EXPECT_NO_THROW(doubled("if (score > 0) { return 1'000; } // }\nreturn \"}\"[0] == '}' ? '\\'' : 0;"));
}

TEST(CudaCode, HooksRulesHoldForArguments) {
  Variant v;
  v.sink = cuda_code(ExprType::number, "return kv_pos;", {kv_pos()});
  EXPECT_NE(message_of(Code::invalid_argument, [&] { variant::compile(v); }).find("sink uses kv_pos"), std::string::npos);
  v = {};
  v.mask = cuda_code(ExprType::number, "return 1;", {});
  EXPECT_NE(message_of(Code::invalid_argument, [&] { variant::compile(v); }).find("mask is a number"), std::string::npos);
  v = {};
  v.logits = cuda_code(ExprType::number, "return a[0];", {ArrayParam("a", DType::f32)}) + scalar("a");
  EXPECT_NE(message_of(Code::invalid_argument, [&] { variant::compile(v); }).find("one name must be one parameter"), std::string::npos);
}

TEST(CudaCode, EverythingAboutATextIsInTheKey) {
  std::set<std::string> keys;
  const auto expect_new = [&](const Expr& logits) {
    Variant v;
    v.logits = logits;
    EXPECT_TRUE(keys.insert(variant::compile(v).key_text).second);
  };
  expect_new(score());
  expect_new(doubled());
  expect_new(doubled("return 2.0F *  score;"));
  expect_new(doubled("return 2.0F * score;", "other.cu"));
  expect_new(cuda_code(ExprType::number, "return 2.0F * score;", {CudaArg("score", score() + 1.0)}));
  expect_new(cuda_code(ExprType::number, "return 2.0F * score;", {CudaArg("score", q_pos())}));
  expect_new(cuda_code(ExprType::integer, "return 2.0F * score;", {score()}));
  Variant v;
  v.logits = doubled();
  EXPECT_FALSE(keys.insert(variant::compile(v).key_text).second);
  // A text that is written twice is one function; one that nothing needs is none.
  v.logits = doubled() + doubled() + Expr(0.0) * select(Expr::boolean(true), 1.0, doubled("return 3;"));
  EXPECT_EQ(variant::compile(v).texts.size(), 1U);
}

TEST(CudaCode, TheCpuRefuses) {
  const Context context;
  const std::string text = message_of(Code::unsupported, [&] { schedule(context, spec_with(doubled("return score;", "mine.cu")), {}); });
  EXPECT_NE(text.find("mine.cu"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA context"), std::string::npos) << text;
}

/// Both classes' kernels by both families.
void expect_compiles(const AttentionSpec& spec, std::initializer_list<int> archs) {
  JitOptions options;
  options.nvrtc = jit::test_nvrtc();
  jit::Jit compiler(options, "sm_80");
  for (const int arch : archs) {
    for (const std::string_view family : {"mma", "floor"}) {
      if (arch == 75 && family == "mma") continue;  // bf16
      for (attention::CudaKernel& kernel : attention::cuda_kernels_of(spec, device_of(arch), family)) {
        const std::string target = arch == 90 ? "sm_90a" : arch == 120 ? "sm_120a" : "sm_" + std::to_string(arch);
        EXPECT_NO_THROW(compiler.compile({kernel.name, kernel.source, target})) << kernel.name << " " << target;
      }
    }
  }
}

TEST(CudaCode, TheExampleOfTheDocumentationCompiles) {
  AttentionSpec spec = spec_with({});
  // [cuda_code]
  // T5's relative position bias: buckets of one position up to 16, then four to a doubling.
  spec.variant.logits = cuda_code(ExprType::number, R"(
    i64 bucket = distance;
    if (distance >= 16) {
      const float octaves = log2(static_cast<float>(distance) / 16.0F);
      bucket = min(i64{16} + static_cast<i64>(4.0F * octaves), i64{31});
    }
    return score + bias[32 * q_head + bucket];)",
                                  {score(), q_head(), {"distance", q_pos() - kv_pos()}, ArrayParam("bias", DType::f32)}, "t5_bias.cu");
  // Nothing is proven of a text. What is known goes around it: no key after the query (such tiles are skipped), and always the last 128
  // (such tiles run without mask code).
  const Expr same_topic = cuda_code(ExprType::boolean, "return (topics[q_pos] & topics[kv_pos]) != 0;",
                                    {q_pos(), kv_pos(), ArrayParam("topics", DType::i64)}, "topics.cu");
  spec.variant.mask = variants::causal() & ((q_pos() - kv_pos() < 128) | same_topic);
  // [/cuda_code]
  expect_compiles(spec, {90});
}

TEST(CudaCode, EveryKindOfArgumentCompilesInEveryFamily) {
  AttentionSpec spec =
      spec_with(cuda_code(ExprType::number,
                          "float biased = score + bias[kv_pos - q_pos];\n"
                          "return flags[kv_pos] ? biased : scale * tanhf(biased);",
                          {score(), q_pos(), kv_pos(), scalar("scale"), ArrayParam("bias", DType::f32), BitsParam("flags")}));
  spec.variant.mask = variants::causal() & cuda_code(ExprType::boolean, "return ids[q_pos] == ids[kv_pos];",
                                                     {q_pos(), kv_pos(), ArrayParam("ids", DType::i32, ParamTime::plan)});
  spec.variant.output =
      cuda_code(ExprType::number, "return x * (1.0F + gate[q_head] * (dim & 1));", {x(), dim(), q_head(), ArrayParam("gate", DType::f32)});
  expect_compiles(spec, {75, 80, 120});
}

TEST(CudaCode, ComplaintsNameLinesOfTheCallersText) {
  JitOptions options;
  options.nvrtc = jit::test_nvrtc();
  jit::Jit compiler(options, "sm_80");
  const auto complaint = [&](const std::string& body) {
    const attention::CudaKernel kernel = attention::cuda_kernels_of(spec_with(doubled(body, "my logits.cu")), device_of(80), "").back();
    return message_of(Code::invalid_argument, [&] { compiler.compile({kernel.name, kernel.source, "sm_80"}); });
  };
  const std::string unknown = complaint("const float twice = 2.0F * score;\n\nreturn twicee;");
  EXPECT_NE(unknown.find("variant: CUDA text \"my logits.cu\" does not compile, line 3: error: identifier \"twicee\" is undefined"),
            std::string::npos)
      << unknown;
  const std::string no_semicolon = complaint("const float twice = 2.0F * score\nreturn twice;");
  EXPECT_NE(no_semicolon.find("line 2: error: expected"), std::string::npos) << no_semicolon;
}

TEST(CudaCode, ThePlannerProvesWhatSurroundsIt) {
  const Expr text = cuda_code(ExprType::boolean, "return kv_pos % 3 == q_pos % 3;", {q_pos(), kv_pos()});
  const auto runs_of = [](const Expr& mask) {
    Variant v;
    v.mask = mask;
    const variant::Program program = variant::compile(v);
    variant::MaskProver prover(program);
    prover.bind({});
    const variant::Range row{100, 100};
    const variant::Box box{row, {0, 0}, {1, 1}, {200, 200}, {0, 0}, {0, 0}, {0, 0}, {0, 0}};
    std::vector<variant::MaskProver::Run> runs;
    prover.find_runs(box, 0, 200, 64, runs);
    std::string found;
    for (const auto& run : runs) found += fmt::format("[{},{}){}", run.begin, run.end, run.always ? " always " : " ");
    return found;
  };
  EXPECT_EQ(runs_of(text), "[0,200) ");
  EXPECT_EQ(runs_of(variants::causal() & text), "[0,101) ");
  EXPECT_EQ(runs_of(variants::causal() & ((kv_pos() < 40) | text)), "[0,40) always [40,101) ");
}

}  // namespace
}  // namespace girih
