// The row operators on the CPU against their formulas in double: every case on every SIMD target, alone and with several workers; results
// that do not depend on workers; refusals.
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
  expect_mentions(with([](NormArgs& a) { a.out.dtype = DType::e4m3; }), {"quantization.scale=none with out of e4m3", "tensor, token, block or mx"});
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
