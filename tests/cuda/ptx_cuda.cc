// The emulator's model of the PTX wrappers against the hardware: fragments, shuffles and conversions bit for bit (any NaN for a NaN in
// f32), functions and approximations within the errors that core/math.cuh states.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "cuda/ptx/emulated.h"
#include "device.h"
#include "ptx_kernels_text.h"

namespace girih::cuda_test {
namespace {

using ptx_check::Check;
using Words = std::vector<std::uint32_t>;

struct Params {
  const std::uint32_t* in;
  std::uint32_t* out;
  int n;
};

Words run_on_gpu(Check check, const Words& in, int num_threads) {
  cuda::Runtime& runtime = gpu().context->cuda();
  const cuda::CurrentDevice current(*runtime.device);
  const cuda::Driver& driver = gpu().driver();
  const jit::KernelSource source{.name = std::string(ptx_check::entry(check)), .source = ptx_check::kKernelsText, .target = ""};
  const std::int64_t shared_bytes = 512;
  const jit::Kernel& kernel = *runtime.load({&source, 1}, {&shared_bytes, 1})[0];
  Words out(static_cast<std::size_t>(num_threads * ptx_check::words(check)));
  const auto bytes = [](const Words& w) { return static_cast<std::int64_t>(w.size() * 4); };
  const cuda::DeviceBuffer device_in(runtime.device, bytes(in));
  const cuda::DeviceBuffer device_out(runtime.device, bytes(out));
  driver.copy_to_device(device_in.pointer(), in.data(), bytes(in), nullptr);
  const Params params{static_cast<const std::uint32_t*>(device_in.data()), static_cast<std::uint32_t*>(device_out.data()), num_threads};
  driver.launch({.function = kernel.function, .num_blocks = (num_threads + 31) / 32, .num_threads = 32, .shared_bytes = shared_bytes},
                &params);
  driver.copy_to_host(out.data(), device_out.pointer(), bytes(out), nullptr);
  driver.synchronize(nullptr);
  return out;
}

/// All upper halves, with lower halves that differ.
Words all_upper_halves() {
  Words in;
  for (std::uint32_t top = 0; top < 0x10000; ++top) {
    for (const std::uint32_t low : {0U, 0x8000U, top * 0x9e37U & 0xffffU}) in.push_back(top << 16 | low);
  }
  return in;
}

TEST(Ptx, FragmentsLieWhereTheEmulatorHasThem) {
  GIRIH_NEEDS_GPU();
  std::uint32_t state = 12345;
  const auto draw = [&state] { return (state = state * 1664525U + 1013904223U) >> 8; };
  Words in;
  for (int i = 0; i < 128; ++i) in.push_back(draw() << 12 ^ draw());
  for (const bool half : {false, true}) {
    const auto small = [&] {  // sums of products of such numbers are exact in f32
      const auto x = static_cast<float>(static_cast<int>(draw() % 33) - 16);
      return static_cast<std::uint32_t>(half ? encode_f16(x) : encode_bf16(x));
    };
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 6; ++i) {
        const std::uint32_t low = small();
        in.push_back(low | small() << 16);
      }
      for (int i = 0; i < 4; ++i) in.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(draw() % 200) - 100)));
    }
  }
  EXPECT_EQ(run_on_gpu(Check::fragments, in, 32), ptx_check::run_emulated(Check::fragments, in, 32));
}

/// Small integers, whose products and sums are exact in any order; and e4m3 of all magnitudes, whose sums lose the same bits in both.
TEST(Ptx, BoxesAndWarpgroupProductsLieWhereTheEmulatorHasThem) {
  GIRIH_NEEDS_GPU();
  cuda::Runtime& runtime = gpu().context->cuda();
  if (runtime.device->info().arch != 90) GTEST_SKIP() << "the GPU is not of sm_90";
  const cuda::CurrentDevice current(*runtime.device);
  const cuda::Driver& driver = gpu().driver();
  constexpr std::array<const char*, 3> kTypes{"bf16", "f16", "e4m3"};
  constexpr std::size_t kDraws = 5;  // of e4m3: small integers, all normal numbers, all finite ones
  for (std::size_t draw = 0; draw < kDraws; ++draw) {
    const std::size_t type = std::min<std::size_t>(draw, 2);
    std::uint32_t state = 4711;
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(ptx_check::kProductRows) * 64);
    for (std::uint16_t& code : rows) {
      state = state * 1664525U + 1013904223U;
      const auto x = static_cast<float>(static_cast<int>(state >> 24) % 5 - 2);
      const auto byte = [draw](std::uint32_t bits) -> std::uint32_t {
        if (draw == 2) return encode_e4m3(static_cast<float>(static_cast<int>(bits % 3) - 1));
        const std::uint32_t least = draw == 3 ? 8 : 0;  // codes below are subnormal, 0x7f is NaN
        return bits % 2 << 7 | (least + bits / 2 % (0x7f - least));
      };
      code = type == 0   ? encode_bf16(x)
             : type == 1 ? encode_f16(x)
                         : static_cast<std::uint16_t>(byte(state >> 20) | byte(state >> 8 & 0xfffU) << 8);
    }
    const auto bytes = static_cast<std::int64_t>(rows.size() * 2);
    const auto box = [&](const void* data) {
      return abi::TensorBox{.data = data,
                            .extent = {64, 1, ptx_check::kProductRows, 1},
                            .stride = {2, 16, 128, 16},
                            .box = {64, 1, ptx_check::kProductBoxRows, 1}};
    };
    abi::TensorMap neutral{};
    const abi::TensorBox host = box(rows.data());
    std::memcpy(&neutral, &host, sizeof(host));
    const Words want = ptx_check::run_products(neutral);

    const jit::KernelSource source{.name = "ptx_check_products", .source = ptx_check::kHopperText, .target = ""};
    const std::int64_t shared_bytes = ptx_check::kProductSharedBytes;
    const jit::Kernel& kernel = *runtime.load({&source, 1}, {&shared_bytes, 1})[0];
    const cuda::DeviceBuffer device_in(runtime.device, bytes);
    const cuda::DeviceBuffer device_out(runtime.device, std::ssize(want) * 4);
    driver.copy_to_device(device_in.pointer(), rows.data(), bytes, nullptr);
    struct {
      abi::TensorMap map;
      std::uint32_t* out;
    } const params{driver.encode(box(device_in.data())), static_cast<std::uint32_t*>(device_out.data())};
    driver.launch({.function = kernel.function, .num_blocks = 1, .num_threads = 128, .shared_bytes = shared_bytes}, &params);
    Words got(want.size());
    driver.copy_to_host(got.data(), device_out.pointer(), std::ssize(want) * 4, nullptr);
    driver.synchronize(nullptr);
    const auto products = static_cast<std::size_t>(ptx_check::product_words());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t words = products / (128 * kTypes.size());
      if (draw > 2 && i >= products + ptx_check::kStoredWords / 2)
        continue;  // a warp's product of bytes: sm_90 widens it, and loses nothing
      if (i < products ? i / words % kTypes.size() != type : type != 2) continue;  // the other types' reading of these codes
      ASSERT_EQ(got[i], want[i]) << kTypes[type] << ", draw " << draw << ", thread " << i / (kTypes.size() * words) << ", word "
                                 << i % words;
    }
  }
}

TEST(Ptx, ConversionsAreThoseOfTheEmulator) {
  GIRIH_NEEDS_GPU();
  const Words in = all_upper_halves();
  const int n = static_cast<int>(in.size());
  const Words got = run_on_gpu(Check::conversions, in, n);
  const Words want = ptx_check::run_emulated(Check::conversions, in, n);
  const int words = ptx_check::words(Check::conversions);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const int word = static_cast<int>(i) % words;
    const bool is_f32 = word == 0 || word == 12;
    if (is_f32 && std::isnan(std::bit_cast<float>(got[i])) && std::isnan(std::bit_cast<float>(want[i]))) continue;
    ASSERT_EQ(got[i], want[i]) << std::hex << "output " << word << " of " << in[i / static_cast<std::size_t>(words)];
  }
}

/// Distance to the exact value in units of the last place, subnormals in steps of 2^-149.
double ulps(float a, double exact) {
  const double magnitude = std::max(std::fabs(exact), 0x1p-126);
  return std::fabs(static_cast<double>(a) - exact) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

TEST(Ptx, FunctionsKeepTheirErrors) {
  GIRIH_NEEDS_GPU();
  const Words in = all_upper_halves();
  const int n = static_cast<int>(in.size());
  const Words got = run_on_gpu(Check::functions, in, n);
  const auto words = static_cast<std::size_t>(ptx_check::words(Check::functions));
  struct Function {
    const char* name;
    double ulps;  // or:
    double relative, absolute;
    double (*exact)(double);
  };
  const Function kFunctions[] = {
      {"exp", 2, 0, 0, [](double x) { return std::exp(x); }},
      {"exp2", 2, 0, 0, [](double x) { return std::exp2(x); }},
      {"log", 3, 0, 0, [](double x) { return std::log(x); }},
      {"tanh", 4, 0, 0, [](double x) { return std::tanh(x); }},
      {"sigmoid", 4, 0, 0, [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"sqrt", 0.5, 0, 0, [](double x) { return std::sqrt(x); }},
      {"exp2_approx", 0, 0x1p-22, 0x1p-126, [](double x) { return std::exp2(x); }},
      {"log2_approx", 0, 0x1p-22, 0x1p-22, [](double x) { return std::log2(x); }},
      {"rcp_approx", 0, 0x1p-23, 0x1p-126, [](double x) { return 1 / x; }},
      {"rsqrt_approx", 0, 0x1.2p-23, 0, [](double x) { return 1 / std::sqrt(x); }},
      {"tanh_approx", 0, 0, 0x1p-21, [](double x) { return std::tanh(x); }},
      {"tanh_fast", 0, 0x1p-11, 0x1p-126, [](double x) { return std::tanh(x); }},
      {"logistic_approx", 0, 0, 0x1.2p-21, [](double x) { return 1 / (std::exp2(x) + 1); }},
  };
  ASSERT_EQ(words, std::size(kFunctions));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Function& f = kFunctions[i % words];
    const float x = std::bit_cast<float>(in[i / words]);
    if (f.ulps == 0 && std::fabs(x) < 0x1p-126F) continue;  // approximations flush subnormals
    const float y = std::bit_cast<float>(got[i]);
    const double exact = f.exact(x);
    if (std::isnan(exact)) {
      ASSERT_TRUE(std::isnan(y)) << f.name << ' ' << x;
    } else if (std::fabs(exact) >= static_cast<double>(std::numeric_limits<float>::max())) {
      ASSERT_TRUE(std::isinf(y) || ulps(y, exact) <= 4) << f.name << ' ' << x << " gave " << y;
    } else if (f.ulps > 0) {
      ASSERT_LE(ulps(y, exact), f.ulps) << f.name << ' ' << x << " gave " << y;
    } else {
      ASSERT_LE(std::fabs(y - exact), std::max(f.absolute, f.relative * std::fabs(exact))) << f.name << ' ' << x << " gave " << y;
    }
  }
}

}  // namespace
}  // namespace girih::cuda_test
