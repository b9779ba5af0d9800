// Every operation and hook on every SIMD target that this CPU runs, against the plain interpreter; the f32 functions against double.

#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "variant_evaluate_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "variant/evaluate-inl.h"
#include "variant/lanes-inl.h"
#include "variant/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih {
namespace HWY_NAMESPACE {
inline void apply_function(int function, const float* in, float* out, int n) {
  namespace v = variant::HWY_NAMESPACE;
  if (function == 2) return v::tanh_lanes({in, 0, n, true}, 1.0F, 1.0F, out, {1, n, n});
  for (int i = 0; i < n; ++i) {
    out[i] = function == 0 ? v::exp_f32(in[i]) : function == 1 ? v::log_f32(in[i]) : v::sigmoid_f32(in[i]);
  }
}
}  // namespace HWY_NAMESPACE
}  // namespace girih
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "girih/error.h"
#include "variant_interpreter.h"
#include "variant_samples.h"

namespace girih {
namespace {

using test::close;
using test::Interpreter;
using test::Lanes;
using test::pair_expressions;
using test::Point;
using test::point_of;
using test::sample_lanes;
using test::sample_params;
using test::sample_row;
using test::TestParams;
using variant::ParamTable;
using variant::Program;
using variant::RowVars;

struct Target {
  const char* name;
  decltype(&variant::N_EMU128::evaluate_logits) logits;
  decltype(&variant::N_EMU128::evaluate_mask) mask;
  decltype(&variant::N_EMU128::evaluate_transform) transform;
  decltype(&variant::N_EMU128::evaluate_sink) sink;
  decltype(&variant::N_EMU128::begin_tile_hook) begin_tile;
  decltype(&variant::N_EMU128::evaluate_tile_logits) tile_logits;
  decltype(&variant::N_EMU128::evaluate_tile_mask) tile_mask;
  decltype(&N_EMU128::apply_function) function;
};

std::vector<Target> targets() {
  std::vector<Target> result;
#if GIRIH_HAVE_AVX3
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    using namespace variant::N_AVX3;
    result.push_back({"avx3", evaluate_logits, evaluate_mask, evaluate_transform, evaluate_sink, begin_tile_hook, evaluate_tile_logits,
                      evaluate_tile_mask, N_AVX3::apply_function});
  }
#endif
#if GIRIH_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    using namespace variant::N_AVX2;
    result.push_back({"avx2", evaluate_logits, evaluate_mask, evaluate_transform, evaluate_sink, begin_tile_hook, evaluate_tile_logits,
                      evaluate_tile_mask, N_AVX2::apply_function});
  }
#endif
#if GIRIH_HAVE_NEON
  {
    using namespace variant::N_NEON;
    result.push_back({"neon", evaluate_logits, evaluate_mask, evaluate_transform, evaluate_sink, begin_tile_hook, evaluate_tile_logits,
                      evaluate_tile_mask, N_NEON::apply_function});
  }
#endif
  using namespace variant::N_EMU128;
  result.push_back({"scalar", evaluate_logits, evaluate_mask, evaluate_transform, evaluate_sink, begin_tile_hook, evaluate_tile_logits,
                    evaluate_tile_mask, N_EMU128::apply_function});
  return result;
}

/// Distance of `value` from `exact` in units of the last place of an f32 of that size.
double ulps(float value, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (std::isnan(exact) || std::isnan(value)) return std::isnan(exact) && std::isnan(value) ? 0 : 1e9;
  if (std::isinf(rounded) || std::isinf(value)) return value == rounded ? 0 : 1e9;
  const int exponent = std::max(std::ilogb(exact == 0 ? 1e-45 : exact), -126);
  return std::fabs(value - exact) / std::ldexp(1.0, exponent - 23);
}

TEST(VariantMath, FunctionsAreAccurate) {
  const double limit[] = {2, 3, 4, 4};
  std::vector<float> in;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099)
    in.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (int i = -200000; i < 200000; ++i) in.push_back(static_cast<float>(i) * 5.3e-4F);
  for (const float x :
       {0.0F, -0.0F, 88.7228F, 88.73F, 89.0F, -87.3F, -103.9F, -104.1F, -1000.0F, 1000.0F, 1.0F, 0.70710678F, 1.17549435e-38F, 1e-45F})
    in.push_back(x);
  in.push_back(std::numeric_limits<float>::infinity());
  in.push_back(-std::numeric_limits<float>::infinity());
  in.push_back(std::numeric_limits<float>::quiet_NaN());
  std::vector<float> out(in.size());
  for (const Target& target : targets()) {
    for (int f = 0; f < 4; ++f) {
      target.function(f, in.data(), out.data(), static_cast<int>(in.size()));
      double worst = 0;
      float where = 0;
      for (std::size_t i = 0; i < in.size(); ++i) {
        const double x = in[i];
        const double exact = f == 0 ? std::exp(x) : f == 1 ? std::log(x) : f == 2 ? std::tanh(x) : 1 / (1 + std::exp(-x));
        const double error = ulps(out[i], exact);
        if (error > worst) worst = error, where = in[i];
      }
      EXPECT_LE(worst, limit[f]) << target.name << " function " << f << " at " << where;
    }
    const float zeros[] = {0.0F, -0.0F};
    float results[2];
    target.function(2, zeros, results, 2);
    EXPECT_FALSE(std::signbit(results[0]));
    EXPECT_TRUE(std::signbit(results[1]));
  }
}

struct Scratch {
  explicit Scratch(std::int64_t size) : bytes(static_cast<std::size_t>(size)), memory(bytes + 128, std::byte{0x5a}) {}
  Scratch(const Program& program, int lanes) : Scratch(variant::evaluate_scratch_bytes(program, lanes)) {}
  std::byte* data() {
    auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (64 - address % 64) % 64;
  }
  /// Whether what lies behind the scratch is untouched.
  bool intact() { return data()[bytes] == std::byte{0x5a} && data()[bytes + 63] == std::byte{0x5a}; }
  std::size_t bytes;
  std::vector<std::byte> memory;
};

/// A random mask and logits hook.
Variant sample_variant(std::mt19937& rng) {
  test::RandomExpr make = pair_expressions(rng, true);
  test::RandomExpr make_mask = pair_expressions(rng, false);
  Variant v;
  v.mask = make_mask.boolean(3);
  Expr logits = make.exact(3);
  switch (rng() % 8) {
    case 0: logits = tanh(logits); break;
    case 1: logits = exp(logits * 0.125F); break;
    case 2: logits = log(abs(logits)); break;
    case 3: logits = sigmoid(logits); break;
    case 4: logits = sqrt(logits); break;
    case 5: logits = rsqrt(logits); break;
    default: break;
  }
  v.logits = logits;
  return v;
}

TEST(VariantEvaluate, MasksAndLogitsMatchTheInterpreter) {
  std::mt19937 rng(11);
  int compiled = 0;
  for (int repeat = 0; repeat < 1500; ++repeat) {
    const Variant v = sample_variant(rng);
    Program program;
    try {
      program = variant::compile(v);
    } catch (const Error&) {
      continue;  // constants that overflow when folded
    }
    ++compiled;
    const TestParams params = sample_params(rng);
    ParamTable table{};
    test::fill_table(program, params, table);
    const int n = repeat < 200 ? repeat + 1 : 1 + static_cast<int>(rng() % 200);
    const RowVars row = sample_row(rng);
    const Lanes lanes = sample_lanes(rng, n);
    for (const Target& target : targets()) {
      Scratch scratch(program, n);
      std::vector<float> out = lanes.score;
      out.push_back(777.0F);
      target.logits(program, table, row, lanes.kv_pos.data(), n, out.data(), scratch.data());
      std::vector<std::uint8_t> visible(static_cast<std::size_t>(n) + 1, 77);
      target.mask(program, table, row, lanes.kv_pos.data(), n, visible.data(), scratch.data());
      ASSERT_TRUE(scratch.intact());
      ASSERT_EQ(out.back(), 777.0F);
      ASSERT_EQ(visible.back(), 77);
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        Point point = point_of(row);
        point.kv_pos = lanes.kv_pos[i];
        point.score = lanes.score[i];
        const Interpreter interpreter(params, point);
        const float expected = interpreter(v.logits).number;
        ASSERT_TRUE(close(out[i], expected, 2e-6F))
            << target.name << " lane " << i << " of " << n << ": " << out[i] << " instead of " << expected << "\n"
            << program.key_text;
        ASSERT_EQ(visible[i], interpreter(v.mask).integer) << target.name << " lane " << i << " of " << n << "\n" << program.key_text;
      }
    }
  }
  EXPECT_GT(compiled, 1000);
}

/// Rows of one tile: they follow each other, several heads of a token beside each other, and may go over to the next request.
std::vector<RowVars> sample_tile_rows(std::mt19937& rng, int count) {
  const int heads = 1 + static_cast<int>(rng() % 3);
  RowVars row = sample_row(rng);
  row.kv_head = 1;
  std::vector<RowVars> rows;
  for (int i = 0; i < count; ++i) {
    row.q_head = heads + static_cast<int>(rng() % 3);
    if (i % heads == 0) {
      ++row.q_pos, ++row.q_idx, ++row.q_row;
      if (rng() % 20 == 0) {
        row.q_pos = static_cast<std::int64_t>(rng() % 100), row.q_idx = 0;
        row.q_len = 3, row.kv_len = 40;
        ++row.request;
      }
    }
    rows.push_back(row);
  }
  return rows;
}

/// One tile through `target` in steps of keys: logits of a part of the lanes, and masks. `steps`: where each begins, and the end.
struct TileResult {
  std::vector<float> logits;
  std::vector<std::uint8_t> visible;
};
TileResult run_tile(const Target& target, const Program& program, const ParamTable& table, const std::vector<RowVars>& rows,
                    const Lanes& keys, int first, int width, const std::vector<int>& steps) {
  const int lanes = (static_cast<int>(rows.size()) + 15) / 16 * 16;
  const auto all = static_cast<std::size_t>(lanes) * keys.kv_pos.size();
  TileResult result{keys.score, std::vector<std::uint8_t>(all + 1, 77)};
  result.logits.push_back(777.0F);
  int longest = 0;
  for (std::size_t s = 0; s + 1 < steps.size(); ++s) longest = std::max(longest, steps[s + 1] - steps[s]);
  Scratch logits(variant::evaluate_tile_bytes(program.logits, lanes, longest));
  Scratch mask(variant::evaluate_tile_bytes(program.mask, lanes, longest));
  target.begin_tile(program.logits, table, rows.data(), static_cast<int>(rows.size()), lanes, logits.data());
  target.begin_tile(program.mask, table, rows.data(), static_cast<int>(rows.size()), lanes, mask.data());
  for (std::size_t s = 0; s + 1 < steps.size(); ++s) {
    const int begin = steps[s];
    const int n = steps[s + 1] - begin;
    const std::int64_t* kv_pos = keys.kv_pos.data() + begin;
    target.tile_logits(logits.data(), kv_pos, n, first, width, result.logits.data() + begin * lanes, lanes);
    target.tile_mask(mask.data(), kv_pos, n, result.visible.data() + begin * lanes);
  }
  EXPECT_TRUE(logits.intact() && mask.intact());
  EXPECT_EQ(result.logits.back(), 777.0F);
  EXPECT_EQ(result.visible.back(), 77);
  return result;
}

TEST(VariantEvaluate, TilesMatchTheInterpreter) {
  std::mt19937 rng(14);
  int compiled = 0;
  for (int repeat = 0; repeat < 400; ++repeat) {
    Variant v = sample_variant(rng);
    if (repeat % 10 == 0) v.logits = test::RandomExpr(pair_expressions(rng, false)).exact(2);
    if (repeat % 10 == 1) v.mask = kv_pos() < 40;
    if (repeat % 10 == 2) v.mask = q_pos() % 3 == 1;
    if (repeat % 10 == 3) v.logits = score();
    if (repeat % 10 == 4) v.logits = variants::soft_cap(8.0F) * (repeat % 20 == 4 ? Expr(0.5F) : kv_pos() - q_pos());
    if (repeat % 10 == 5) v.logits = variants::soft_cap(8.0F);
    if (repeat % 10 == 6) v.logits = tanh(score() * 0.25F) * 2.0F * (score() * 0.25F);
    Program program;
    try {
      program = variant::compile(v);
    } catch (const Error&) {
      continue;  // constants that overflow when folded
    }
    ++compiled;
    const TestParams params = sample_params(rng);
    ParamTable table{};
    test::fill_table(program, params, table);
    const int num_rows = 1 + static_cast<int>(rng() % 70);
    const int lanes = (num_rows + 15) / 16 * 16;
    const std::vector<RowVars> rows = sample_tile_rows(rng, num_rows);
    const int num_keys = 1 + static_cast<int>(rng() % 100);
    Lanes keys = sample_lanes(rng, num_keys);
    if (rng() % 4 == 0) {  // the second step leaves 32 bits
      for (int i = num_keys / 2; i < num_keys; ++i) keys.kv_pos[static_cast<std::size_t>(i)] += std::int64_t{1} << 36;
    }
    keys.score = sample_lanes(rng, num_keys * lanes).score;
    const int first = static_cast<int>(rng() % static_cast<unsigned>(lanes / 16)) * 16;
    const int width = 16 + static_cast<int>(rng() % static_cast<unsigned>((lanes - first) / 16)) * 16;
    for (const Target& target : targets()) {
      const TileResult got = run_tile(target, program, table, rows, keys, first, width, {0, num_keys / 2, num_keys});
      for (int k = 0; k < num_keys; ++k) {
        for (int r = 0; r < lanes; ++r) {
          const auto at = static_cast<std::size_t>(k * lanes + r);
          if (r < first || r >= first + width) {
            ASSERT_EQ(got.logits[at], keys.score[at]) << "outside the lanes asked for";
          }
          if (r >= num_rows) continue;
          Point point = point_of(rows[static_cast<std::size_t>(r)]);
          point.kv_pos = keys.kv_pos[static_cast<std::size_t>(k)];
          point.score = keys.score[at];
          const Interpreter interpreter(params, point);
          ASSERT_EQ(got.visible[at], interpreter(v.mask).integer)
              << target.name << " row " << r << " of " << num_rows << " key " << k << "\n"
              << program.key_text;
          if (r < first || r >= first + width) continue;
          const float expected = interpreter(v.logits).number;
          ASSERT_TRUE(close(got.logits[at], expected, 2e-6F)) << target.name << " row " << r << " of " << num_rows << " key " << k << ": "
                                                              << got.logits[at] << " instead of " << expected << "\n"
                                                              << program.key_text;
        }
      }
    }
  }
  EXPECT_GT(compiled, 250);
}

TEST(VariantEvaluate, TransformsAndSinks) {
  std::mt19937 rng(12);
  const ArrayParam weights("weights", DType::f32), sinks("sinks", DType::f32);
  for (int n = 1; n <= 200; ++n) {
    TestParams params;
    for (int i = 0; i < n; ++i) params.f32["weights"].push_back(static_cast<float>(static_cast<int>(rng() % 64) - 32) / 4);
    params.f32["sinks"] = {0.5F, -1.0F, 2.0F};
    Variant v;
    v.query = variants::rms_norm("weights", 1e-5F);
    v.key = x() * weights[dim()] + dim() * 2 - kv_pos() + kv_head();
    v.value = select(dim() % 3 == 1, -x(), x() * 0.5);
    v.output = x() * sigmoid(weights[q_head()]) * weights[dim() - q_row()];
    v.sink = sinks[q_head()] + q_head();
    const Program program = variant::compile(v);
    ParamTable table{};
    test::fill_table(program, params, table);
    const RowVars row = sample_row(rng);
    std::vector<float> in;
    double squares = 0;
    for (int i = 0; i < n; ++i) {
      in.push_back(static_cast<float>(static_cast<int>(rng() % 400) - 200) / 16);
      squares += static_cast<double>(in.back()) * in.back();
    }
    for (const Target& target : targets()) {
      Scratch scratch(program, n);
      const std::pair<const Expr*, const variant::Code*> hooks[] = {
          {&v.query, &program.query}, {&v.key, &program.key}, {&v.value, &program.value}, {&v.output, &program.output}};
      for (const auto& hook : hooks) {
        std::vector<float> out = in;
        target.transform(*hook.second, table, row, 31, n, out.data(), scratch.data());
        for (int i = 0; i < n; ++i) {
          Point point = point_of(row);
          point.kv_pos = 31;
          point.dim = i;
          point.x = in[static_cast<std::size_t>(i)];
          point.mean_square = static_cast<float>(squares / n);
          const float expected = Interpreter(params, point)(*hook.first).number;
          ASSERT_TRUE(close(out[static_cast<std::size_t>(i)], expected, 4e-6F)) << target.name << " " << i << " of " << n;
        }
      }
      ASSERT_TRUE(scratch.intact());
      for (std::int64_t head = 0; head < 4; ++head) {
        const float expected = (head < 3 ? params.f32["sinks"][static_cast<std::size_t>(head)] : 0.0F) + static_cast<float>(head);
        ASSERT_EQ(target.sink(program, table, head, scratch.data()), expected) << target.name;
      }
    }
  }
}

TEST(VariantEvaluate, UniformAndAbsentHooks) {
  std::mt19937 rng(13);
  Variant v;
  v.mask = q_head() < 2;
  v.logits = score();
  const Program program = variant::compile(v);
  ParamTable table{};
  for (const Target& target : targets()) {
    Scratch scratch(program, 9);
    Lanes lanes = sample_lanes(rng, 9);
    RowVars row;
    for (row.q_head = 1; row.q_head < 3; ++row.q_head) {
      std::vector<std::uint8_t> visible(9, 7);
      target.mask(program, table, row, lanes.kv_pos.data(), 9, visible.data(), scratch.data());
      EXPECT_EQ(visible, std::vector<std::uint8_t>(9, row.q_head < 2 ? 1 : 0));
      std::vector<float> out = lanes.score;
      target.logits(program, table, row, lanes.kv_pos.data(), 9, out.data(), scratch.data());
      EXPECT_EQ(out, lanes.score);
      target.transform(program.query, table, row, 0, 9, out.data(), scratch.data());
      EXPECT_EQ(out, lanes.score);
    }
  }
}

}  // namespace
}  // namespace girih

#endif  // HWY_ONCE
