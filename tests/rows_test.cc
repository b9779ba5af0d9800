// The row operators on the CPU against their formulas in double: every case on every SIMD target, alone and with several workers; results
// that do not depend on workers; refusals.
// ctest: shards=2 timeout=600
#include <gtest/gtest.h>

#include <limits>

#include "cases/rope.h"
#include "cases/rows.h"
#include "girih/error.h"

namespace girih {
namespace {

using cases::RowsCase;
using cases::RowsProblem;

TEST(Rows, CasesMatchTheReference) {
  for (const CpuTarget target : available_cpu_targets()) {
    for (const int workers : {1, 3}) {
      const Context context(ContextOptions{.num_workers = workers, .target = target});
      for (const RowsCase& c : cases::rows_cases()) {
        RowsProblem p(c);
        p.run(context);
        EXPECT_TRUE(p.matches()) << name(target) << ", " << workers << " workers";
      }
    }
  }
}

TEST(Rows, RopeCasesMatchTheReference) {
  for (const CpuTarget target : available_cpu_targets()) {
    for (const int workers : {1, 3}) {
      const Context context(ContextOptions{.num_workers = workers, .target = target});
      for (const cases::RopeCase& c : cases::rope_cases()) {
        cases::RopeProblem p(c);
        p.run(context);
        EXPECT_TRUE(p.matches()) << name(target) << ", " << workers << " workers";
      }
    }
  }
}

/// Rows with vectors of blocks, and with what is left of such vectors and of lines.
TEST(Rows, LongRowsOfBlocksMatchTheReference) {
  for (const CpuTarget target : available_cpu_targets()) {
    const Context context(ContextOptions{.num_workers = 1, .target = target});
    for (const DType x : {DType::f32, DType::f16, DType::bf16}) {
      for (const DType out : {DType::nvfp4, DType::mxfp4, DType::e4m3}) {
        for (const std::int64_t dim : {1024, 1326}) {
          RowsProblem p({.name = "blocks",
                         .op = cases::RowsOp::quantize,
                         .x = x,
                         .out = out,
                         .rows = 5,
                         .dim = dim,
                         .scale = out == DType::e4m3 ? QuantScale::mx : QuantScale::block,
                         .global_scale = 0.03F,
                         .odd_values = true});
          p.run(context);
          EXPECT_TRUE(p.matches()) << name(target) << ", " << name(x) << " to " << name(out) << ", " << dim;
        }
      }
    }
  }
}

/// Quotients are exact whatever they are made of, so that codes and scales have the same bits on every target: of numbers whose scales have
/// usable reciprocals, and of some whose scales have none.
TEST(Rows, CodesAreTheSameOnEveryTarget) {
  using enum QuantScale;
  const std::pair<DType, QuantScale> kinds[] = {{DType::e4m3, tensor}, {DType::e5m2, tensor}, {DType::i8, tensor}, {DType::e4m3, token},
                                                {DType::e4m3, block},  {DType::i8, block},    {DType::e5m2, mx},   {DType::e4m3, tile},
                                                {DType::nvfp4, block}, {DType::mxfp4, block}, {DType::e5m2, token}};
  for (const DType x : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [out, scale] : kinds) {
      for (const float spread : {1.0F, 1e-28F, 1e28F}) {
        if (x == DType::f16 && spread != 1.0F) continue;
        RowsProblem p({.name = "codes",
                       .op = cases::RowsOp::quantize,
                       .x = x,
                       .out = out,
                       .rows = 33,
                       .dim = 2400,
                       .scale = scale,
                       .spread = spread});
        std::vector<std::byte> codes, scales;
        for (const CpuTarget target : available_cpu_targets()) {
          p.run(Context(ContextOptions{.num_workers = 1, .target = target}));
          if (codes.empty()) codes = p.out.block, scales = p.scales.block;
          EXPECT_TRUE(codes == p.out.block && scales == p.scales.block)
              << name(target) << ", " << name(x) << " to " << name(out) << ", scale " << static_cast<int>(scale) << ", " << spread;
        }
      }
    }
  }
}

/// Many rows, so that workers take part and stores go past the caches; the bits of one worker.
TEST(Rows, WorkersDoNotChangeBits) {
  for (const RowsCase& c : {RowsCase{.name = "rms", .rows = 4200, .dim = 1024, .residual = true, .residual_out = true},
                            RowsCase{.name = "silu", .op = cases::RowsOp::activate, .rows = 2800, .dim = 1536},
                            RowsCase{.name = "nvfp4", .out = DType::nvfp4, .rows = 1001, .dim = 512, .scale = QuantScale::block}}) {
    RowsProblem one(c), three = one;
    one.run(Context(ContextOptions{.num_workers = 1}));
    three.run(Context(ContextOptions{.num_workers = 3}));
    EXPECT_EQ(0, std::memcmp(one.out.aligned(), three.out.aligned(), static_cast<std::size_t>(one.out.size()))) << c.name;
  }
}

template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    return e.what();
  }
  return "no error";
}

void expect_mentions(const std::string& text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) EXPECT_NE(text.find(word), std::string::npos) << '"' << text << "\" lacks " << word;
}

TEST(Rows, PackBits) {
  std::mt19937_64 random(1);
  std::vector<std::uint8_t> x(1003);
  for (std::uint8_t& b : x) b = static_cast<std::uint8_t>(random() % 3 == 0 ? 0 : random());
  const auto bit = [](const std::uint8_t* packed, std::int64_t i, BitOrder order) {
    return (packed[i / 8] >> (order == BitOrder::little ? i % 8 : 7 - i % 8)) & 1;
  };
  for (const int workers : {1, 3}) {
    const Context context(ContextOptions{.num_workers = workers});
    for (const BitOrder order : {BitOrder::little, BitOrder::big}) {
      for (const std::int64_t n : {0, 1, 7, 8, 9, 64, 1003}) {
        std::vector<std::uint8_t> out(static_cast<std::size_t>((n + 7) / 8) + 1, 0xaa);
        packbits(context, TensorView(x.data(), DType::u8, {n}), TensorView(out.data(), DType::u8, {(n + 7) / 8}), order);
        for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(bit(out.data(), i, order), x[static_cast<std::size_t>(i)] != 0) << n << ' ' << i;
        for (std::int64_t i = n; i < (n + 7) / 8 * 8; ++i) ASSERT_EQ(bit(out.data(), i, order), 0);
        ASSERT_EQ(out.back(), 0xaa);
      }
      const std::vector<std::int64_t> indptr{0, 5, 5, 21, 1003};
      std::vector<std::uint8_t> out(200, 0xaa);
      const std::vector<std::int64_t> at =
          segment_packbits(context, TensorView(x.data(), DType::u8, {1003}), indptr, TensorView(out.data(), DType::u8, {200}), order);
      ASSERT_EQ(at, (std::vector<std::int64_t>{0, 1, 1, 3, 126}));
      for (std::size_t s = 0; s + 1 < indptr.size(); ++s) {
        for (std::int64_t i = indptr[s]; i < indptr[s + 1]; ++i)
          ASSERT_EQ(bit(out.data() + at[s], i - indptr[s], order), x[static_cast<std::size_t>(i)] != 0);
      }
      ASSERT_EQ(out[126], 0xaa);
    }
  }
}

TEST(Rows, PackBitsRefusals) {
  const Context context(ContextOptions{.num_workers = 1});
  std::vector<std::uint8_t> x(64), out(8);
  const TensorView all(x.data(), DType::u8, {64}), packed(out.data(), DType::u8, {8});
  expect_mentions(error_of([&] { packbits(context, TensorView(x.data(), DType::f16, {8}), packed); }), {"packbits: x is f16", "u8"});
  expect_mentions(error_of([&] { packbits(context, all, TensorView(out.data(), DType::u8, {7})); }), {"out.shape[0]=7", "8"});
  expect_mentions(error_of([&] { packbits(context, all, TensorView(x.data() + 3, DType::u8, {8})); }), {"out shares memory with x"});
  expect_mentions(error_of([&] {
                    segment_packbits(context, all, std::vector<std::int64_t>{0, 9, 8}, packed);
                  }),
                  {"indptr[2]=8 < indptr[1]=9"});
  expect_mentions(error_of([&] { segment_packbits(context, all, std::vector<std::int64_t>{1, 9}, packed); }), {"indptr[0]=1"});
  expect_mentions(error_of([&] { segment_packbits(context, all, std::vector<std::int64_t>{0, 65}, packed); }), {"x.shape[0]=64", "65"});
}

TEST(Rows, ConversionRefusals) {
  const Context context(ContextOptions{.num_workers = 1});
  RowsProblem p(RowsCase{.name = "", .op = cases::RowsOp::quantize, .out = DType::e4m3, .rows = 130, .dim = 64, .scale = QuantScale::tile});
  expect_mentions(error_of([&] { quantize(context, p.out.view, p.out.view, p.quantization()); }), {"quantize: x is e4m3"});
  Quantization q = p.quantization();
  q.scales.shape[0] = 1;
  expect_mentions(error_of([&] { quantize(context, p.x.view, p.out.view, q); }), {"quantization.scales.shape[0]=1", "2"});
  expect_mentions(error_of([&] { dequantize(context, p.out.view, p.out.view, p.quantization()); }), {"dequantize: out is e4m3"});
  q = p.quantization();
  q.scale = QuantScale::none;
  expect_mentions(error_of([&] { dequantize(context, p.out.view, p.x.view, q); }), {"scale=none with x of e4m3"});
}

TEST(Rows, RopeRefusals) {
  const Context context(ContextOptions{.num_workers = 1});
  cases::RopeProblem p({.name = "", .rows = 8});
  const RopeArgs good = p.args();
  const auto with = [&](auto change) {
    RopeArgs a = good;
    change(a);
    return error_of([&] { rope(context, a); });
  };
  expect_mentions(with([](RopeArgs& a) { a.cos_sin.dtype = DType::f16; }), {"rope: cos_sin is f16", "f32"});
  expect_mentions(with([](RopeArgs& a) { a.cos_sin.shape[1] = 127; }), {"cos_sin.shape[1]=127", "even"});
  expect_mentions(with([](RopeArgs& a) { a.rotary_begin = 2; }), {"cos_sin.shape[1]=128 with rotary_begin=2", "128 elements"});
  expect_mentions(with([](RopeArgs& a) { a.cos_sin.shape[0] = 3; }), {"positions[", "the table has positions 0..2"});
  expect_mentions(with([](RopeArgs& a) { a.positions = {}; }), {"neither positions nor indptr"});
  expect_mentions(with([](RopeArgs& a) { a.positions.shape[0] = 7; }), {"positions.shape[0]=7", "8"});
  expect_mentions(with([](RopeArgs& a) { a.positions.dtype = DType::f32; }), {"positions is f32", "i32 or i64"});
  expect_mentions(with([](RopeArgs& a) { a.k.shape[0] = 7; }), {"k.shape[0]=7", "8"});
  expect_mentions(with([](RopeArgs& a) { a.q_out = a.k; }), {"q_out"});
  expect_mentions(with([](RopeArgs& a) { a.q = {}, a.q_out = {}, a.k = {}, a.k_out = {}; }), {"neither q nor k"});
  cases::RopeProblem appended({.name = "", .append = true});
  const auto append_with = [&](auto change) {
    RopeAppendArgs a = appended.append_args();
    KvStore store = appended.store();
    change(a, store);
    return error_of([&] { rope_append(context, store, appended.batch.view(), a); });
  };
  expect_mentions(append_with([](RopeAppendArgs& a, KvStore&) { a.v = {}; }), {"rope_append: v is not given"});
  expect_mentions(append_with([](RopeAppendArgs& a, KvStore&) { a.rope.k_out = a.rope.k; }), {"rope.k_out"});
  expect_mentions(append_with([](RopeAppendArgs&, KvStore& s) { s.k.data = nullptr; }), {"store.k.data is null"});
  expect_mentions(append_with([](RopeAppendArgs& a, KvStore&) { a.rope.k.shape[0] = 3; }), {"k.shape[0]=3", "9"});
  expect_mentions(append_with([](RopeAppendArgs& a, KvStore&) { a.rope.cos_sin.shape[0] = 4; }), {"row ", "cos_sin has positions 0..3"});
}

TEST(Rows, RopeTables) {
  expect_mentions(error_of([] { rope_cos_sin({.rotary_dim = 3}, 4); }), {"rope_cos_sin: rotary_dim=3", "even"});
  expect_mentions(error_of([] { rope_cos_sin({.rotary_dim = 4, .linear = 2, .ntk = 2}, 4); }), {"2 of linear", "use one"});
  expect_mentions(error_of([] { rope_cos_sin({.rotary_dim = 4}, 0); }), {"num_positions=0"});
  // Angles at position 100,000 to the last place of f32: in double, whatever the table's size.
  RopeTable plain{.rotary_dim = 8};
  const std::vector<float> table = rope_cos_sin(plain, 100001);
  for (int i = 0; i < 4; ++i) {
    const double angle = 100000 * std::pow(10000.0, -i / 4.0);
    EXPECT_FLOAT_EQ(table[100000 * 8 + static_cast<std::size_t>(i)], static_cast<float>(std::cos(angle)));
    EXPECT_FLOAT_EQ(table[100000 * 8 + 4 + static_cast<std::size_t>(i)], static_cast<float>(std::sin(angle)));
  }
  // Llama 3.1 8B: the fastest pair keeps its frequency, the slowest is divided by 8.
  RopeTable llama{.rotary_dim = 128, .theta = 500000, .llama31 = Rope::Llama31{}};
  const std::vector<double> l = rope_frequencies(llama);
  EXPECT_DOUBLE_EQ(l[0], 1.0);
  EXPECT_DOUBLE_EQ(l[63], std::pow(500000.0, -126.0 / 128) / 8);
  // NTK: the slowest pair is that of the longer context exactly, the fastest stays.
  const std::vector<double> n = rope_frequencies({.rotary_dim = 64, .ntk = 4});
  EXPECT_DOUBLE_EQ(n[0], 1.0);
  EXPECT_NEAR(n[31], std::pow(10000.0, -62.0 / 64) / 4, 1e-15);
  // YaRN with the numbers of DeepSeek-V3 (factor 40, context 4096): the blend runs from pair 10 to pair 23 of 32.
  RopeTable yarn{.rotary_dim = 64, .yarn = RopeTable::Yarn{.factor = 40}};
  const std::vector<double> y = rope_frequencies(yarn);
  EXPECT_DOUBLE_EQ(y[10], std::pow(10000.0, -20.0 / 64));
  EXPECT_DOUBLE_EQ(y[23], std::pow(10000.0, -46.0 / 64) / 40);
  EXPECT_NEAR(y[15], std::pow(10000.0, -30.0 / 64) * (1 - 5.0 / 13 + 5.0 / 13 / 40), 1e-15);
  EXPECT_FLOAT_EQ(rope_cos_sin(yarn, 1)[0], static_cast<float>(0.1 * std::log(40.0) + 1));
}

TEST(Rows, NormRefusals) {
  const Context context(ContextOptions{.num_workers = 1});
  RowsProblem p(RowsCase{.name = "", .rows = 4, .dim = 64, .residual = true, .residual_out = true});
  const NormArgs good = p.norm_args();
  const auto with = [&](auto change) {
    NormArgs a = good;
    change(a);
    return error_of([&] { rms_norm(context, a); });
  };
  expect_mentions(with([](NormArgs& a) { a.x.rank = 1; }), {"rms_norm: x has rank 1", "2: [rows, dim]"});
  expect_mentions(with([](NormArgs& a) { a.x.dtype = DType::e4m3; }), {"x is e4m3", "f32, f16 or bf16"});
  expect_mentions(with([](NormArgs& a) { a.x.shape[1] = 0; }), {"x.shape[1]=0"});
  expect_mentions(with([](NormArgs& a) { a.x.shape[0] = -1; }), {"x.shape[0]=-1"});
  expect_mentions(with([](NormArgs& a) { a.x.data = nullptr; }), {"x.data is null"});
  expect_mentions(with([](NormArgs& a) { a.x.device = {DeviceKind::cuda, 0}; }), {"x.device=cuda:0", "context is for cpu"});
  expect_mentions(with([](NormArgs& a) { a.weight.shape[0] = 63; }), {"weight.shape[0]=63", "64"});
  expect_mentions(with([](NormArgs& a) { a.weight.strides[0] = 2; }), {"weight.strides[0]=2", "dense"});
  expect_mentions(with([](NormArgs& a) { a.weight.dtype = DType::f16; }), {"weight is f16", "f32 or x's bf16"});
  expect_mentions(with([&](NormArgs& a) { a.bias = a.weight; }), {"bias is given", "layer_norm"});
  expect_mentions(with([](NormArgs& a) { a.residual = {}; }), {"residual_out is given without residual"});
  expect_mentions(with([](NormArgs& a) { a.residual.dtype = DType::f16; }), {"residual is f16", "x's bf16"});
  expect_mentions(with([](NormArgs& a) { a.residual_out = a.out; }), {"residual_out and out are the same memory"});
  expect_mentions(with([](NormArgs& a) { a.out.strides[0] = 1; }), {"out.strides", "share memory"});
  expect_mentions(with([](NormArgs& a) { a.out.data = static_cast<std::byte*>(a.x.data) + 2; }), {"out shares memory with x"});
  expect_mentions(with([](NormArgs& a) { a.out.shape[0] = 3; }), {"out.shape[0]=3", "4"});
  expect_mentions(with([](NormArgs& a) { a.out.dtype = DType::i32; }), {"out is i32"});
  expect_mentions(with([](NormArgs& a) { a.out.dtype = DType::e4m3; }),
                  {"quantization.scale=none with out of e4m3", "tensor, token, block, mx"});
  expect_mentions(with([](NormArgs& a) { a.eps = -1; }), {"eps=-1"});
  expect_mentions(with([](NormArgs& a) { a.eps = std::numeric_limits<float>::quiet_NaN(); }), {"eps=nan"});
  expect_mentions(with([](NormArgs& a) { a.weight = {}, a.weight_offset = 1; }), {"weight_offset=1 without weight"});
  expect_mentions(with([](NormArgs& a) { a.quantization.global_scale = 2; }), {"scale=none"});
  expect_mentions(error_of([&] { rms_norm(context, good, &p); }), {"stream is given"});
}

TEST(Rows, QuantizationRefusals) {
  const Context context(ContextOptions{.num_workers = 1});
  RowsProblem p(RowsCase{.name = "", .out = DType::nvfp4, .rows = 4, .dim = 64, .scale = QuantScale::block});
  const NormArgs good = p.norm_args();
  const auto with = [&](auto change) {
    NormArgs a = good;
    change(a);
    return error_of([&] { rms_norm(context, a); });
  };
  expect_mentions(with([](NormArgs& a) { a.quantization.scale = QuantScale::token; }), {"scale=token with out of nvfp4", "must be block"});
  expect_mentions(with([](NormArgs& a) { a.quantization.scales.dtype = DType::f32; }), {"quantization.scales is f32", "e4m3 or u8"});
  expect_mentions(with([](NormArgs& a) { a.quantization.scales.shape[1] = 3; }), {"quantization.scales.shape[1]=3", "4"});
  expect_mentions(with([](NormArgs& a) { a.quantization.scales.strides[0] = 0; }), {"quantization.scales.strides"});
  expect_mentions(with([](NormArgs& a) { a.quantization.scales.data = nullptr; }), {"quantization.scales.data is null"});
  expect_mentions(with([](NormArgs& a) { a.quantization.global_scale = 0; }), {"global_scale=0"});
  expect_mentions(with([](NormArgs& a) { a.quantization.swizzled = true; }), {"quantization.scales has 16 elements", "512"});
  expect_mentions(with([](NormArgs& a) { a.out.strides[0] = 65; }), {"out.strides[0]=65", "even"});
  float zero = 0;
  expect_mentions(with([&](NormArgs& a) {
                    a.out.dtype = DType::i8;
                    a.quantization = {.scale = QuantScale::tensor, .scales = TensorView(&zero, DType::f32, {1})};
                  }),
                  {"quantization.scales[0]", "finite and > 0"});
}

TEST(Rows, ActivationRefusals) {
  const Context context(ContextOptions{.num_workers = 1});
  RowsProblem p(RowsCase{.name = "", .op = cases::RowsOp::activate, .rows = 4, .dim = 64});
  const ActivationArgs good = p.activation_args();
  const auto with = [&](auto change, Activation activation = Activation::silu) {
    ActivationArgs a = good;
    change(a);
    return error_of([&] { activate(context, activation, a); });
  };
  expect_mentions(with([](ActivationArgs& a) { a.x.shape[1] = 127; }), {"activate: x.shape[1]=127", "even"});
  expect_mentions(with([](ActivationArgs& a) { a.up = a.out; }), {"up.shape[1]=64", "128"});
  expect_mentions(with([](ActivationArgs& a) { a.up = a.x, a.interleaved = true; }), {"up is given and interleaved"});
  expect_mentions(with([](ActivationArgs& a) { a.out.shape[1] = 128; }), {"out.shape[1]=128", "64"});
  expect_mentions(with([](ActivationArgs& a) { a.limit = 0; }, Activation::swigluoai), {"limit=0"});
  expect_mentions(with([](ActivationArgs& a) { a.limit = 0; }, static_cast<Activation>(9)), {"activation=9"});
  expect_mentions(with([](ActivationArgs& a) {
                    a.interleaved = true;
                    a.out.data = a.x.data;
                    a.out.strides[0] = a.x.strides[0];
                  }),
                  {"out shares memory with x"});
}

}  // namespace
}  // namespace girih
