// Which CUDA kernel is chosen, what its text says, and that its tiles fit the device. What kernels cost on it: kernel_resources_test.cc.
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "attention/cuda.h"
#include "attention/spec.h"
#include "cases/regressions.h"
#include "girih/error.h"

namespace girih {
namespace {

struct Target {
  int arch;
  std::int64_t shared_per_block, shared_per_sm;  // KiB
};

constexpr Target kTargets[] = {{75, 64, 64},    {80, 163, 164},  {86, 99, 100},   {87, 163, 164}, {89, 99, 100}, {90, 227, 228},
                               {100, 227, 228}, {103, 227, 228}, {110, 227, 228}, {120, 99, 100}, {121, 99, 100}};

cuda::DeviceInfo device_of(const Target& t) {
  return {.name = "test",
          .arch = t.arch,
          .num_sms = 100,
          .shared_per_block = t.shared_per_block << 10,
          .shared_per_sm = t.shared_per_sm << 10,
          .l2_bytes = 32 << 20,
          .memory_bytes = std::int64_t{16} << 30};
}

AttentionSpec llama() {
  AttentionSpec s{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim_qk = 128, .lse = LseKind::natural};
  s.variant.mask = variants::causal();
  return s;
}

void set_kv(AttentionSpec& s, DType k, ScaleGranularity k_scale, DType v, ScaleGranularity v_scale) {
  s.k_dtype = k;
  s.k_scale = k_scale;
  s.v_dtype = v;
  s.v_scale = v_scale;
}

struct Named {
  const char* name;
  AttentionSpec spec;
};

std::vector<Named> specs() {
  std::vector<Named> all;
  const auto add = [&](const char* name) -> AttentionSpec& {
    all.push_back({name, llama()});
    return all.back().spec;
  };
  add("llama");
  AttentionSpec& mla = add("mla");
  mla = {.num_qo_heads = 128, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .head_dim_rope = 64, .v_is_k = true};
  mla.variant.mask = variants::causal();
  AttentionSpec& sinks = add("sinks");
  sinks.num_qo_heads = 64;
  sinks.head_dim_qk = 64;
  sinks.variant.mask = variants::sliding_window(128);
  sinks.variant.sink = variants::sinks();
  AttentionSpec& f32 = add("f32");
  f32.q_dtype = f32.o_dtype = DType::f32;
  set_kv(f32, DType::f32, ScaleGranularity::none, DType::f32, ScaleGranularity::none);
  set_kv(add("fp8"), DType::e4m3, ScaleGranularity::head, DType::e5m2, ScaleGranularity::tensor);
  set_kv(add("i8_nvfp4"), DType::i8, ScaleGranularity::token_head, DType::nvfp4, ScaleGranularity::block);
  AttentionSpec& rope = add("rope");
  rope.variant.rope.emplace().theta = 500000.0;
  rope.variant.query = variants::rms_norm("q_norm", 1e-6F);
  rope.variant.key = variants::rms_norm("k_norm", 1e-6F);
  add("soft_cap").variant.logits = variants::soft_cap(50.0F);
  AttentionSpec& sigmoid = add("sigmoid");
  sigmoid.lse = LseKind::none;
  sigmoid.variant.softmax = false;
  sigmoid.variant.logits = variants::sigmoid_logits(-3.0F);
  add("invariant").batch_invariant = true;
  add("wide").head_dim_qk = 1024;
  AttentionSpec& custom = add("custom");
  custom.head_dim_qk = 80;
  custom.num_qo_heads = 40;
  custom.variant.mask = variants::custom_mask();
  custom.variant.output = x() * 2.0;
  return all;
}

attention::CudaKernels choose(const AttentionSpec& given, const Target& target, std::string_view family = "floor") {
  const variant::Program program = variant::compile(given.variant);
  const AttentionSpec spec = attention::normalise(given, program, DeviceKind::cuda);
  return attention::choose_cuda_kernels(spec, program, device_of(target), family);
}

/// The message of the error that f throws.
template <typename F>
std::string refusal(Code code, const F& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(AttentionKernels, FloorFitsEveryDeviceAtEveryHeadDim) {
  for (const Target& target : kTargets) {
    for (const int qk : {1, 7, 40, 64, 100, 128, 130, 192, 256, 300, 512, 576, 640, 641, 800, 1023, 1024}) {
      for (const int vo : {1, 64, 129, 512, 1024}) {
        AttentionSpec s = llama();
        s.head_dim_qk = qk;
        s.head_dim_vo = vo;
        for (const attention::CudaKernel& kernel : choose(s, target).classes) {
          ASSERT_LE(kernel.shared_bytes, target.shared_per_block << 10) << qk << ' ' << vo << ' ' << target.arch;
          ASSERT_LE(kernel.blocks_per_sm * (kernel.shared_bytes + 1024), target.shared_per_sm << 10)
              << qk << ' ' << vo << ' ' << target.arch;
        }
      }
    }
  }
}

/// B08: the table has a kernel within the limits of every chip for whatever the CPU takes, and "floor" is one (no case reads CUDA's text
/// alone).
TEST(AttentionKernels, EverySpecOfTheCasesHasKernelsThatFit) {
  std::map<std::string, AttentionSpec> by_key;
  for (auto list : {cases::layout_cases(), cases::segment_cases(), cases::dtype_cases(), cases::token_group_cases(), cases::variant_cases(),
                    cases::regression_cases()}) {
    for (const cases::AttentionCase& c : list) {
      const variant::Program program = variant::compile(c.spec.variant);
      by_key.emplace(attention::spec_key(attention::normalise(c.spec, program, DeviceKind::cuda), program), c.spec);
    }
  }
  EXPECT_GT(by_key.size(), 200U);
  for (const auto& [key, spec] : by_key) {
    for (const Target& target : kTargets) {
      for (const char* family : {"", "floor"}) {
        const attention::CudaKernels kernels = choose(spec, target, family);
        for (const attention::CudaKernel& kernel : kernels.classes) {
          ASSERT_LE(kernel.shared_bytes, target.shared_per_block << 10) << kernel.name << ' ' << target.arch;
          ASSERT_LE(kernel.blocks_per_sm * (kernel.shared_bytes + 1024), target.shared_per_sm << 10) << kernel.name << ' ' << target.arch;
          ASSERT_TRUE(*family == '\0' || kernel.family == family) << kernel.name << ' ' << target.arch;
        }
      }
    }
  }
}

/// Large mma tiles stage the sums of eight rows in the place of a warp's rows of Q.
/// Which are staged where Q lay, or in more room where V has more dims.
TEST(AttentionKernels, LargeTilesHaveRoomForTheSumsOfV) {
  AttentionSpec s = llama();
  s.head_dim_qk = 64;
  s.head_dim_vo = 128;
  EXPECT_EQ(choose(s, kTargets[6], "").classes[1].family, "mma");
  s.head_dim_vo = 256;
  EXPECT_EQ(choose(s, kTargets[6], "").classes[0].family, "mma");
  EXPECT_EQ(choose(s, kTargets[6], "").classes[1].family, "mma");
  s.head_dim_qk = s.head_dim_vo = 40;
  s.q_dtype = s.k_dtype = s.v_dtype = DType::f16;
  EXPECT_EQ(choose(s, kTargets[0], "").classes[1].family, "mma");
  EXPECT_EQ(choose(s, kTargets[0], "").classes[1].num_threads, 128) << "warps of 32 rows";
}

TEST(AttentionKernels, HopperHasLargeTilesOfItsOwn) {
  const Target& hopper = kTargets[5];
  for (const int qk : {64, 96, 112, 128, 192, 256}) {
    for (const int vo : {64, 96, 128, 192, 256}) {
      for (const bool invariant : {false, true}) {
        AttentionSpec s = llama();
        s.head_dim_qk = qk;
        s.head_dim_vo = vo;
        s.batch_invariant = invariant;
        const attention::CudaKernels kernels = choose(s, hopper, "");
        EXPECT_EQ(kernels.classes[0].family, "mma");
        EXPECT_EQ(kernels.classes[1].family, "wgmma") << qk << ' ' << vo;
        EXPECT_LE(kernels.classes[1].shared_bytes, hopper.shared_per_block << 10) << qk << ' ' << vo;
        if (invariant) {
          EXPECT_EQ(kernels.tune.invariant_chunk % kernels.tune.classes[1].kv_block, 0) << qk << ' ' << vo;
        }
        for (const Target& other : kTargets) {
          if (other.arch == 90 || vo > qk) continue;
          EXPECT_NE(choose(s, other, "").classes[1].family, "wgmma") << other.arch;
        }
      }
    }
  }
  EXPECT_EQ(choose(llama(), hopper, "wgmma").classes[1].family, "wgmma");
  EXPECT_EQ(choose(llama(), hopper, "wgmma").classes[0].family, "mma") << "small tiles go to the next";
  EXPECT_NE(refusal(Code::unsupported, [] { choose(llama(), kTargets[1], "wgmma"); }).find("needs sm_90"), std::string::npos);
  const auto falls_back = [&](const AttentionSpec& s, const char* why) {
    EXPECT_NE(choose(s, hopper, "").classes[1].family, "wgmma") << why;
    EXPECT_NE(refusal(Code::unsupported, [&] { choose(s, hopper, "wgmma"); }).find(why), std::string::npos) << why;
  };
  AttentionSpec s = llama();
  s.k_dtype = s.v_dtype = DType::e4m3;
  s.k_scale = s.v_scale = ScaleGranularity::tensor;
  EXPECT_EQ(choose(s, hopper, "").classes[1].family, "mma") << "not measured";
  EXPECT_EQ(choose(s, hopper, "wgmma").classes[1].family, "wgmma");
  EXPECT_EQ(choose(s, hopper, "wgmma").classes[0].family, "mma");
  EXPECT_LE(choose(s, hopper, "wgmma").classes[1].shared_bytes, hopper.shared_per_block << 10);
  s.head_dim_qk = s.head_dim_vo = 256;
  falls_back(s, "no tile fits");
  s.head_dim_qk = s.head_dim_vo = 128;
  s.k_scale = ScaleGranularity::token_head;
  falls_back(s, "token_head");
  s.k_scale = ScaleGranularity::tensor;
  s.v_dtype = DType::bf16;
  s.v_scale = ScaleGranularity::none;
  falls_back(s, "K and V must have Q's type");
  s = llama();
  s.head_dim_qk = s.head_dim_vo = 80;
  falls_back(s, "head_dim_vo must be");
  s = llama();
  s.variant.rope.emplace();
  falls_back(s, "transforms and RoPE");
}

/// Hopper takes large tiles of Q of 8 bits with K and V of its kind in products of such; all else is mma's, which multiplies bytes where
/// the chip has it by warps and widens them elsewhere.
TEST(AttentionKernels, QueriesOf8BitsMeetKeysOfTheirKindOnHopper) {
  const Target& hopper = kTargets[5];
  AttentionSpec s = llama();
  s.q_dtype = DType::e4m3;
  set_kv(s, DType::e4m3, ScaleGranularity::head, DType::e4m3, ScaleGranularity::tensor);
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const bool invariant : {false, true}) {
      s.head_dim_qk = s.head_dim_vo = dim;
      s.batch_invariant = invariant;
      const attention::CudaKernels kernels = choose(s, hopper, "");
      EXPECT_EQ(kernels.classes[0].family, "mma");
      EXPECT_EQ(kernels.classes[1].family, "wgmma");
      EXPECT_LE(kernels.classes[1].shared_bytes, hopper.shared_per_block << 10) << dim;
      if (invariant) {
        EXPECT_EQ(kernels.tune.invariant_chunk % kernels.tune.classes[1].kv_block, 0) << dim;
      }
      for (const Target& target : kTargets) {
        EXPECT_EQ(choose(s, target, "floor").classes[1].family, "floor");
        const attention::CudaKernels chosen = choose(s, target, "");
        if (target.arch == 90) continue;
        if (dim <= 128) {
          EXPECT_EQ(chosen.classes[1].family, "mma") << target.arch << ' ' << dim;
        }
        for (const attention::CudaKernel& kernel : chosen.classes) {
          const bool multiplies = kernel.source.find(".byte_products = true") != std::string::npos;
          EXPECT_EQ(multiplies, kernel.family == "mma" && (target.arch == 89 || target.arch == 120 || target.arch == 121)) << target.arch;
        }
      }
    }
  }
  const auto refuses = [&](const AttentionSpec& spec, const char* why, const char* other) {
    const std::string text = refusal(Code::unsupported, [&] { choose(spec, hopper, "wgmma"); });
    EXPECT_NE(text.find(why), std::string::npos) << text;
    EXPECT_EQ(choose(spec, hopper, "").classes[1].family, other) << why;
  };
  s = llama();
  s.q_dtype = DType::e4m3;
  refuses(s, "Q of e4m3 needs K and V of e4m3", "floor");
  set_kv(s, DType::e4m3, ScaleGranularity::head, DType::e5m2, ScaleGranularity::head);
  refuses(s, "Q of e4m3 needs K and V of e4m3", "mma");
  set_kv(s, DType::e4m3, ScaleGranularity::token_head, DType::e4m3, ScaleGranularity::head);
  refuses(s, "token_head", "mma");
  set_kv(s, DType::e4m3, ScaleGranularity::head, DType::e4m3, ScaleGranularity::head);
  s.head_dim_qk = 80;
  s.head_dim_vo = 64;
  refuses(s, "multiple of 32", "mma");
  s.head_dim_qk = 128;
  s.lse = LseKind::none;
  s.variant.softmax = false;
  s.variant.logits = variants::sigmoid_logits(-3.0F);
  refuses(s, "no softmax", "floor");
  s.q_dtype = DType::e5m2;
  EXPECT_NE(refusal(Code::unsupported, [&] { choose(s, hopper, "wgmma"); }).find("spec.q_dtype=e5m2"), std::string::npos);
}

/// MLA's tokens of 656 bytes are mma's from sm_80 on where Q is bf16; other scales of parts of a row, and other pairs of types, the
/// floor's.
TEST(AttentionKernels, TokensWithScalesOfGroups) {
  AttentionSpec tokens{.num_qo_heads = 128, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .head_dim_rope = 64, .v_is_k = true};
  set_kv(tokens, DType::e4m3, ScaleGranularity::token_group, DType::e4m3, ScaleGranularity::token_group);
  tokens.k_rope_dtype = DType::bf16;
  for (const Target& target : kTargets) {
    for (const attention::CudaKernel& kernel : choose(tokens, target, "").classes) {
      EXPECT_EQ(kernel.family, target.arch < 80 ? "floor" : "mma") << target.arch;
      EXPECT_LE(kernel.shared_bytes, target.shared_per_block << 10) << target.arch;
    }
  }
  const Target& hopper = kTargets[5];
  const auto refuses = [&](const AttentionSpec& s, const char* why) {
    EXPECT_EQ(choose(s, hopper, "").classes[1].family, "floor") << why;
    const std::string text = refusal(Code::unsupported, [&] { choose(s, hopper, "mma"); });
    EXPECT_NE(text.find(why), std::string::npos) << text;
  };
  AttentionSpec s = tokens;
  s.q_dtype = DType::f16;
  refuses(s, "exceed f16");
  s = tokens;
  s.k_rope_dtype = DType::f16;
  refuses(s, "must have Q's type");
  s = llama();
  set_kv(s, DType::e4m3, ScaleGranularity::token_group, DType::e4m3, ScaleGranularity::token_group);
  refuses(s, "but MLA's");
  EXPECT_NE(refusal(Code::unsupported, [&] { choose(s, hopper, "wgmma"); }).find("token_group"), std::string::npos);
  s = llama();
  s.head_dim_rope = 64;
  s.k_rope_dtype = DType::f32;
  refuses(s, "different types");
}

/// MLA has tiles for both classes there; what they do not take is the next family's.
TEST(AttentionKernels, HopperHasMlaOfItsOwn) {
  const Target& hopper = kTargets[5];
  for (const int rope : {0, 64}) {
    AttentionSpec s{.num_qo_heads = 128, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .head_dim_rope = rope, .v_is_k = true};
    s.variant.mask = variants::causal();
    const attention::CudaKernels chosen = choose(s, hopper, "");
    for (const attention::CudaKernel& kernel : chosen.classes) {
      EXPECT_EQ(kernel.family, "wgmma");
      EXPECT_LE(kernel.shared_bytes, hopper.shared_per_block << 10);
    }
    EXPECT_EQ(chosen.tune.small_rows, 64);
    EXPECT_EQ(chosen.tune.classes[1].gang, 2);
    EXPECT_EQ(chosen.tune.invariant_chunk % chosen.tune.classes[1].kv_block, 0);
    const auto refused = [&](const AttentionSpec& spec, const Target& target, const char* why) {
      EXPECT_NE(refusal(Code::unsupported, [&] { choose(spec, target, "wgmma"); }).find(why), std::string::npos) << why;
      for (const attention::CudaKernel& kernel : choose(spec, target, "").classes) EXPECT_EQ(kernel.family, "mma") << why;
    };
    refused(s, kTargets[1], "needs sm_90");
    AttentionSpec other = s;
    other.variant.logits = variants::soft_cap(30.0F);
    refused(other, hopper, "MLA with a logits hook");
    other = s;
    other.k_dtype = other.v_dtype = DType::e4m3;
    if (rope == 0) {
      other.k_scale = other.v_scale = ScaleGranularity::token_head;
      refused(other, hopper, "token_head");
      other = s;
      other.head_dim_qk = 544;
      refused(other, hopper, "MLA must have 576 dims of K");
    }
  }
}

/// MLA with K of 8 bits has, too, which no GPU has timed.
TEST(AttentionKernels, HopperWidensKeysOfMlaIfAskedTo) {
  const Target& hopper = kTargets[5];
  AttentionSpec all{.num_qo_heads = 128, .num_kv_heads = 1, .head_dim_qk = 576, .head_dim_vo = 512, .v_is_k = true};
  set_kv(all, DType::e4m3, ScaleGranularity::tensor, DType::e4m3, ScaleGranularity::tensor);
  AttentionSpec tokens = all;
  tokens.head_dim_rope = 64;
  AttentionSpec two = tokens;
  set_kv(two, DType::i8, ScaleGranularity::head, DType::i8, ScaleGranularity::head);
  set_kv(tokens, DType::e4m3, ScaleGranularity::token_group, DType::e4m3, ScaleGranularity::token_group);
  tokens.k_rope_dtype = DType::bf16;
  for (const AttentionSpec& s : {all, two, tokens}) {
    const bool in_two = s.k_dtype == DType::i8;
    for (const attention::CudaKernel& kernel : choose(s, hopper, "").classes) EXPECT_EQ(kernel.family, in_two ? "floor" : "mma");
    for (const attention::CudaKernel& kernel : choose(s, hopper, "wgmma").classes) {
      EXPECT_EQ(kernel.family, "wgmma");
      EXPECT_LE(kernel.shared_bytes, hopper.shared_per_block << 10);
    }
  }
  const auto refused = [&](const AttentionSpec& s, const char* why) {
    EXPECT_NE(refusal(Code::unsupported, [&] { choose(s, hopper, "wgmma"); }).find(why), std::string::npos) << why;
  };
  AttentionSpec s = tokens;
  s.q_dtype = DType::f16;
  s.k_rope_dtype = DType::f16;
  refused(s, "may exceed f16");
  s = tokens;
  s.k_rope_dtype = DType::f32;
  refused(s, "a second tensor of K must have Q's type");
  s = two;
  s.k_rope_dtype = DType::bf16;
  refused(s, "else the first's");
  s = all;
  set_kv(s, DType::f16, ScaleGranularity::none, DType::f16, ScaleGranularity::none);
  refused(s, "K and V must have Q's type, or one of 8 bits");
}

/// Where no group has more than eight packed rows, decode has a kernel for as many; a group of more query heads never has so few.
TEST(AttentionKernels, FewRowsHaveAKernelOfTheirOwn) {
  const auto choose_rows = [](const AttentionSpec& given, std::int64_t max_rows) {
    const variant::Program program = variant::compile(given.variant);
    return attention::choose_cuda_kernels(attention::normalise(given, program, DeviceKind::cuda), program, device_of(kTargets[5]), "",
                                          max_rows);
  };
  const attention::CudaKernels few = choose_rows(llama(), 8);
  const attention::CudaKernels more = choose_rows(llama(), 9);
  EXPECT_TRUE(few.classes[0].name.ends_with("_mma_decode8")) << few.classes[0].name;
  EXPECT_EQ(few.tune.small_rows, 8);
  EXPECT_EQ(few.classes[0].tile_rows, 8);
  EXPECT_GT(few.classes[1].tile_rows, more.classes[0].tile_rows) << "by which a warm-up knows what takes longest";
  EXPECT_TRUE(more.classes[0].name.ends_with("_mma_decode")) << more.classes[0].name;
  EXPECT_EQ(more.tune.small_rows, 16);
  EXPECT_EQ(few.classes[1].source, more.classes[1].source);
  EXPECT_EQ(attention::cuda_kernels_of(llama(), device_of(kTargets[1])).size(), 3U);

  AttentionSpec wide = llama();
  wide.num_kv_heads = 2;
  EXPECT_EQ(choose_rows(wide, 8).classes[0].source, choose_rows(wide, 16).classes[0].source);
  EXPECT_EQ(attention::cuda_kernels_of(wide, device_of(kTargets[1])).size(), 2U);
}

/// On Hopper a level that some requests share has a kernel for tiles of half a block's rows: two of its blocks fit a multiprocessor, or one
/// beside one of decode.
TEST(AttentionKernels, CascadesHaveHalfTilesOnHopper) {
  const Target& hopper = kTargets[5];
  const auto choose_rows = [&](const AttentionSpec& given, std::int64_t max_rows, bool cascades) {
    const variant::Program program = variant::compile(given.variant);
    return attention::choose_cuda_kernels(attention::normalise(given, program, DeviceKind::cuda), program, device_of(hopper), "", max_rows,
                                          cascades);
  };
  const auto is_half = [&](const AttentionSpec& spec, std::int64_t max_rows, bool cascades) {
    const attention::CudaKernels kernels = choose_rows(spec, max_rows, cascades);
    const attention::CudaKernel& large = kernels.classes[1];
    const bool half = large.name.ends_with("_wgmma_cascade");
    EXPECT_EQ(half, large.shares_sms);
    EXPECT_EQ(large.blocks_per_sm, half ? 2 : 1);
    EXPECT_EQ(large.num_threads, half ? 256 : 384);
    EXPECT_EQ(kernels.tune.classes[1].tile_rows, half ? 64 : 128);
    if (half) {
      const std::int64_t others = kernels.classes[0].shared_bytes;
      EXPECT_LE(large.shared_bytes + std::max(large.shared_bytes, others) + 2048, device_of(hopper).shared_per_sm) << spec.head_dim_qk;
      EXPECT_EQ(kernels.classes[0].num_threads * 2, large.num_threads) << "of 255 registers, and the others of half as many";
    }
    return half;
  };
  EXPECT_FALSE(is_half(llama(), 256, false));
  EXPECT_FALSE(is_half(llama(), 64, true));
  EXPECT_TRUE(is_half(llama(), 65, true));
  EXPECT_TRUE(is_half(llama(), 256, true));
  EXPECT_FALSE(is_half(llama(), 257, true));
  AttentionSpec s = llama();
  s.batch_invariant = true;
  EXPECT_FALSE(is_half(s, 256, true)) << "which kernel computes a row must not depend on limits";
  s = llama();
  s.head_dim_qk = s.head_dim_vo = 64;
  EXPECT_TRUE(is_half(s, 256, true));
  s.head_dim_qk = s.head_dim_vo = 256;
  EXPECT_FALSE(is_half(s, 256, true)) << "no room";
  EXPECT_EQ(attention::cuda_kernels_of(llama(), device_of(hopper)).size(), 4U);
}

TEST(AttentionKernels, TextSaysWhatDiffersAndNothingElse) {
  const Target& target = kTargets[5];
  const attention::CudaKernels a = choose(llama(), target);
  for (const attention::CudaKernel& kernel : a.classes) {
    for (const char c : kernel.name) ASSERT_TRUE(std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') << kernel.name;
    EXPECT_NE(kernel.source.find("extern \"C\" __global__ void __launch_bounds__"), std::string::npos);
    EXPECT_NE(kernel.source.find(kernel.name + "(const __grid_constant__"), std::string::npos);
  }
  EXPECT_NE(a.classes[0].source, a.classes[1].source);
  AttentionSpec scaled = llama();
  scaled.sm_scale = 0.125;
  scaled.variant.name = "renamed";
  EXPECT_EQ(choose(scaled, target).classes[0].source, a.classes[0].source) << "an argument of the launch";
  for (const Named& named : specs()) {
    if (std::string(named.name) != "llama") {
      EXPECT_NE(choose(named.spec, target).classes[0].source, a.classes[0].source) << named.name;
    }
  }
}

TEST(AttentionKernels, TunesAgreeWithThePlanner) {
  for (const Named& named : specs()) {
    for (const Target& target : kTargets) {
      const attention::Tune tune = choose(named.spec, target).tune;
      for (const attention::ClassTune& c : tune.classes) {
        EXPECT_EQ(tune.invariant_chunk % c.kv_block, 0) << named.name;
        EXPECT_GT(c.cost_piece, 0) << named.name;
        EXPECT_GT(c.cost_block + c.cost_block_row, 0) << named.name;
      }
      EXPECT_GE(tune.classes[0].tile_rows, tune.small_rows) << named.name;
    }
  }
}

TEST(AttentionKernels, RefusalsNameTheReason) {
  EXPECT_NE(refusal(Code::unsupported, [] { choose(llama(), {70, 96, 96}); }).find("sm_70"), std::string::npos);
  EXPECT_NE(refusal(Code::invalid_argument, [] { choose(llama(), kTargets[0], "fast"); }).find("floor"), std::string::npos);
  EXPECT_NE(refusal(Code::unsupported, [] { choose(llama(), {90, 8, 8}); }).find("shared memory"), std::string::npos);
  AttentionLimits limits{.max_segments = abi::kMaxCudaSegments};
  EXPECT_NO_THROW(attention::check_cuda_limits(limits));
  ++limits.max_segments;
  EXPECT_NE(refusal(Code::unsupported, [&] { attention::check_cuda_limits(limits); }).find("max_segments=7"), std::string::npos);
  limits = {.max_kv_len = INT32_MAX - 1024};
  EXPECT_NO_THROW(attention::check_cuda_limits(limits));
  ++limits.max_kv_len;
  EXPECT_NE(refusal(Code::unsupported, [&] { attention::check_cuda_limits(limits); }).find("max_kv_len=2147482624"), std::string::npos);
}

}  // namespace
}  // namespace girih
