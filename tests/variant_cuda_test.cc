// Printed variants against the plain interpreter: conditions exactly, numbers within the errors of the functions. The text was printed and
// compiled (as kernel text, by the host's compiler) when the tests were built.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "abi/attention_params.h"
#include "variant/cuda.h"
#include "variant_cuda/cases.h"
#include "variant_cuda/functions.h"

namespace girih {
namespace {

using test::close;
using test::CudaRow;
using test::CudaVariant;
using test::Interpreter;
using test::TestParams;
using test::VariantCase;

const std::vector<VariantCase>& cases() {
  static const std::vector<VariantCase> all = test::variant_cuda_cases();
  return all;
}

/// What sample_params() gives, and values for the built-in variants' own parameters.
TestParams params_for(std::mt19937& rng) {
  TestParams p = test::sample_params(rng);
  const auto below = [&](unsigned n) { return static_cast<std::int64_t>(rng() % n); };
  for (int i = 0; i < 70; ++i) {
    p.i32["document_id"].push_back(static_cast<std::int32_t>(i / 9));
    p.i32["item_id"].push_back(static_cast<std::int32_t>(i / 7));
    p.i32["span_id"].push_back(static_cast<std::int32_t>(below(3)));
    p.bits["custom_mask"].push_back(static_cast<std::uint8_t>(rng()));
    p.bits["tree_mask"].push_back(static_cast<std::uint8_t>(rng()));
  }
  for (int i = 0; i < 4; ++i) {
    p.i32["prefix_len"].push_back(static_cast<std::int32_t>(below(60)));
    p.i64["custom_mask_start"].push_back(below(100));
    p.i64["tree_mask_start"].push_back(below(100));
    p.f32["alibi_slopes"].push_back(0.25F * static_cast<float>(i));
    p.f32["sinks"].push_back(static_cast<float>(i) - 1.5F);
    p.f32["level_of"].push_back(static_cast<float>(i));
  }
  return p;
}

/// A launch's arguments for a program: run-time parameters in `args`, plan-time ones in a blob as plan() lays it out.
struct Launch {
  Launch(const variant::Program& program, const TestParams& params) {
    variant::ParamTable table{};
    test::fill_table(program, params, table);
    blob.resize(sizeof(abi::PlanHeader) / 8 + 2 * program.params.size() + 1);
    std::vector<std::uint64_t> data;
    std::vector<abi::PlanParam> places(program.params.size());
    for (std::size_t i = 0; i < program.params.size(); ++i) {
      const variant::ParamInfo& info = program.params[i];
      if (info.time == ParamTime::run) {
        args.params[i] = {table[i].data, table[i].size, table[i].integer, table[i].number};
        continue;
      }
      const bool scalar = info.kind == variant::ParamInfo::Kind::scalar;
      places[i] = {static_cast<std::int64_t>(8 * data.size()), scalar ? 1 : table[i].size};
      const double number = table[i].number;
      const void* from = !scalar ? table[i].data : info.dtype == DType::i64 ? static_cast<const void*>(&table[i].integer) : &number;
      const std::int64_t size =
          scalar ? 8 : bytes(info.dtype, info.kind == variant::ParamInfo::Kind::bits ? table[i].size / 8 : table[i].size);
      const std::size_t begin = data.size();
      data.resize(begin + static_cast<std::size_t>(size + 7) / 8);
      if (size > 0) std::memcpy(data.data() + begin, from, static_cast<std::size_t>(size));
    }
    abi::PlanHeader header{};
    header.params = {sizeof(abi::PlanHeader), std::ssize(places)};
    header.param_data = {static_cast<std::int64_t>(sizeof(abi::PlanHeader) + places.size() * sizeof(abi::PlanParam)),
                         static_cast<std::int64_t>(8 * data.size())};
    blob.resize(static_cast<std::size_t>(header.param_data.offset + header.param_data.count) / 8);
    auto* at = reinterpret_cast<std::byte*>(blob.data());
    std::memcpy(at, &header, sizeof(header));
    if (!places.empty()) std::memcpy(at + header.params.offset, places.data(), places.size() * sizeof(abi::PlanParam));
    if (!data.empty()) std::memcpy(at + header.param_data.offset, data.data(), 8 * data.size());
    args.plan = reinterpret_cast<const abi::PlanHeader*>(blob.data());
  }
  std::vector<std::uint64_t> blob;
  abi::AttentionParams args{};
};

CudaRow row_of(const variant::RowVars& r) {
  return {.q_pos = r.q_pos,
          .q_idx = r.q_idx,
          .q_len = r.q_len,
          .kv_len = r.kv_len,
          .q_row = r.q_row,
          .request = static_cast<std::int32_t>(r.request),
          .q_head = static_cast<std::int32_t>(r.q_head),
          .kv_head = static_cast<std::int32_t>(r.kv_head)};
}

TEST(VariantCuda, MasksAndLogitsMatchTheInterpreter) {
  std::mt19937 rng(31);
  ASSERT_GT(cases().size(), 120U);
  for (std::size_t c = 0; c < cases().size(); ++c) {
    const VariantCase& test_case = cases()[c];
    const CudaVariant& printed = test::kCudaVariants[c];
    for (int repeat = 0; repeat < 8; ++repeat) {
      const TestParams params = params_for(rng);
      const Launch launch(test_case.program, params);
      const variant::RowVars row = test::sample_row(rng);
      const test::Lanes lanes = test::sample_lanes(rng, 100);
      const auto n = static_cast<int>(lanes.kv_pos.size());
      std::vector<float> out = lanes.score;
      std::vector<std::uint8_t> visible(lanes.kv_pos.size());
      ASSERT_EQ(printed.logits != nullptr, !test_case.program.logits.empty());
      ASSERT_EQ(printed.mask != nullptr, !test_case.program.mask.empty());
      if (printed.logits != nullptr) printed.logits(&launch.args, row_of(row), lanes.kv_pos.data(), n, out.data());
      if (printed.mask != nullptr) printed.mask(&launch.args, row_of(row), lanes.kv_pos.data(), n, visible.data());
      for (std::size_t i = 0; i < lanes.kv_pos.size(); ++i) {
        test::Point point = test::point_of(row);
        point.kv_pos = lanes.kv_pos[i];
        point.score = lanes.score[i];
        const Interpreter interpreter(params, point);
        if (printed.logits != nullptr) {
          const float expected = interpreter(test_case.variant.logits).number;
          ASSERT_TRUE(close(out[i], expected, 2e-6F))
              << test_case.name << " lane " << i << ": " << out[i] << " instead of " << expected << "\n"
              << test_case.program.key_text;
        }
        if (printed.mask != nullptr) {
          ASSERT_EQ(visible[i], interpreter(test_case.variant.mask).integer) << test_case.name << " lane " << i << "\n"
                                                                             << test_case.program.key_text;
        }
      }
    }
  }
}

TEST(VariantCuda, LogitsOfNeighbouringKeysMatchTheInterpreter) {
  std::mt19937 rng(41);
  for (std::size_t c = 0; c < cases().size(); ++c) {
    const VariantCase& test_case = cases()[c];
    if (test_case.program.logits.empty()) continue;
    for (int repeat = 0; repeat < 8; ++repeat) {
      const TestParams params = params_for(rng);
      const Launch launch(test_case.program, params);
      const variant::RowVars row = test::sample_row(rng);
      const test::Lanes lanes = test::sample_lanes(rng, 32);
      const std::int64_t first = lanes.kv_pos[0];
      const float factor = repeat % 2 == 0 ? 0.25F : -2.0F;
      std::vector<float> out;
      for (const float score : lanes.score) out.push_back(score / factor);
      test::kCudaVariants[c].near_logits(&launch.args, row_of(row), first, factor, 32, out.data());
      for (std::size_t i = 0; i < out.size(); ++i) {
        test::Point point = test::point_of(row);
        point.kv_pos = first + static_cast<std::int64_t>(i);
        point.score = lanes.score[i];
        const float expected = Interpreter(params, point)(test_case.variant.logits).number;
        // Sums in another order: errors are relative to what was added, which is at most a few hundred unless the sum is large, too; and
        // the sign of a zero, from which a division makes that of an infinity, may be another.
        const bool both_infinite = std::isinf(out[i]) && std::isinf(expected);
        const bool near = both_infinite || close(out[i], expected, 4e-6F) || std::fabs(out[i] - expected) < 2e-4F;
        ASSERT_TRUE(near) << test_case.name << " column " << i << ": " << out[i] << " instead of " << expected << "\n"
                          << test_case.program.key_text;
      }
    }
  }
}

TEST(VariantCuda, MaskWordsMatchTheInterpreter) {
  std::mt19937 rng(42);
  for (std::size_t c = 0; c < cases().size(); ++c) {
    const VariantCase& test_case = cases()[c];
    if (test_case.program.mask.empty()) continue;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const TestParams params = params_for(rng);
      const Launch launch(test_case.program, params);
      // A tile's rows are of one KV head and one batch.
      std::vector<variant::RowVars> rows;
      std::vector<CudaRow> given;
      for (int i = 0; i < 32; ++i) {
        rows.push_back(test::sample_row(rng));
        rows.back().q_head = 4 * (rows[0].q_head / 4) + rows.back().q_head % 4;
        rows.back().kv_head = rows[0].kv_head;
        given.push_back(row_of(rows.back()));
      }
      const std::int64_t first = test::sample_lanes(rng, 1).kv_pos[0];
      std::array<std::uint32_t, 32> words{};
      test::kCudaVariants[c].mask_words(&launch.args, given.data(), first, words.data());
      for (std::size_t r = 0; r < 32; ++r) {
        for (int i = 0; i < 32; ++i) {
          test::Point point = test::point_of(rows[r]);
          point.kv_pos = first + i;
          const std::int64_t expected = Interpreter(params, point)(test_case.variant.mask).integer;
          ASSERT_EQ((words[r] >> i) & 1U, static_cast<std::uint32_t>(expected)) << test_case.name << " row " << r << " key " << i << "\n"
                                                                                << test_case.program.key_text;
        }
      }
    }
  }
}

TEST(VariantCuda, TransformsAndSinksMatchTheInterpreter) {
  std::mt19937 rng(32);
  int transforms = 0;
  for (std::size_t c = 0; c < cases().size(); ++c) {
    const VariantCase& test_case = cases()[c];
    if (test_case.program.query.empty()) continue;
    ++transforms;
    const CudaVariant& printed = test::kCudaVariants[c];
    for (int n = 1; n <= 60; ++n) {
      const TestParams params = params_for(rng);
      const Launch launch(test_case.program, params);
      const variant::RowVars row = test::sample_row(rng);
      std::vector<float> in;
      for (int i = 0; i < n; ++i) in.push_back(static_cast<float>(static_cast<int>(rng() % 400) - 200) / 16);
      const float mean_square = 2.25F;
      const auto check = [&](const Expr& hook, const std::vector<float>& out, const char* what) {
        for (int i = 0; i < n; ++i) {
          test::Point point = test::point_of(row);
          point.kv_pos = 31;
          point.dim = i;
          point.x = in[static_cast<std::size_t>(i)];
          point.mean_square = mean_square;
          const float expected = Interpreter(params, point)(hook).number;
          ASSERT_TRUE(close(out[static_cast<std::size_t>(i)], expected, 4e-6F)) << what << " " << i << " of " << n;
        }
      };
      std::vector<float> x = in;
      printed.query(&launch.args, row_of(row), mean_square, n, x.data());
      check(test_case.variant.query, x, "query");
      x = in;
      printed.key(&launch.args, row.kv_head, 31, mean_square, n, x.data());
      check(test_case.variant.key, x, "key");
      x = in;
      printed.value(&launch.args, row.kv_head, 31, mean_square, n, x.data());
      check(test_case.variant.value, x, "value");
      x = in;
      printed.output(&launch.args, row_of(row), n, x.data());
      check(test_case.variant.output, x, "output");
      for (std::int64_t head = 0; head < 6; ++head) {
        test::Point point;
        point.q_head = head;
        EXPECT_EQ(printed.sink(&launch.args, head), Interpreter(params, point)(test_case.variant.sink).number);
      }
    }
  }
  EXPECT_GT(transforms, 0);
}

TEST(VariantCuda, RotationsAreExactToF32) {
  std::mt19937_64 rng(33);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    std::uint64_t turns = rng();
    if (i % 4 == 0) turns = static_cast<std::uint64_t>(i % 32) << 59;  // multiples of an eighth of a turn ...
    if (i % 4 == 1) turns = (static_cast<std::uint64_t>(i % 32) << 59) + (rng() >> 40) - (1U << 23);  // ... and their neighbours
    float cos = 0;
    float sin = 0;
    test::cuda_rotation(turns, &cos, &sin);
    const double angle = std::ldexp(static_cast<double>(static_cast<std::int64_t>(turns)), -63) * std::acos(-1.0);
    worst = std::max({worst, std::fabs(cos - std::cos(angle)), std::fabs(sin - std::sin(angle))});
  }
  EXPECT_LE(worst, 1.2e-7);
}

TEST(VariantCuda, EqualProgramsGiveEqualText) {
  Variant a;
  a.mask = variants::causal() & (q_pos() - kv_pos() < 5);
  Variant b;
  b.mask = variants::sliding_window(5);
  const auto text = [](const Variant& v) { return variant::print_cuda(variant::compile(v), {}, variant::CudaMath::exact); };
  EXPECT_EQ(text(a), text(b));
  b.mask = variants::sliding_window(6);
  EXPECT_NE(text(a), text(b));
  Variant cap;
  cap.logits = variants::soft_cap(30.0F);
  EXPECT_NE(variant::print_cuda(variant::compile(cap), {}, variant::CudaMath::approximate).find("tanh_approx("), std::string::npos);
  cap.mask = tanh(scalar("level")) < 0.5;
  const std::string text_of_cap = variant::print_cuda(variant::compile(cap), {}, variant::CudaMath::approximate);
  EXPECT_NE(text_of_cap.find("= tanh("), std::string::npos) << "what a condition depends on is exact";
}

}  // namespace
}  // namespace girih
