// Products of the emulator's tensor cores: that fragments and tiles in shared memory lie where the PTX ISA says, for a warp's products
// (ptx/mma.cuh, ldmatrix and stmatrix) and for a warpgroup's (ptx/wgmma*.cuh), and that sums are exact where they can be.
#include "emulator/emulator.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/convert.cuh"
#include "core/types.cuh"
#include "emulator/error_of.h"
#include "ptx/launch.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/thread.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_forms.cuh"
#include "ptx/wgmma_fp8.cuh"

namespace girih {
namespace {

using emulator::contains;
using emulator::error_of;
using emulator::launch;

/// Small integers, so that every sum is exact.
std::vector<float> small_integers(int count, unsigned seed) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<int>(seed >> 20) % 17 - 8);
  }
  return x;
}

struct MmaParams {
  const float* a;  // [16, depth]
  const float* b;  // [depth, 8]
  float* c;        // [16, 8]
};

/// Elements of a register; a product's depth is eight of them.
template <typename T>
constexpr int kInWord = kSame<T, e4m3> ? 4 : 2;
template <typename T>
constexpr int kDepth = 8 * kInWord<T>;

template <typename T>
u32 word_of(const float* x) {
  if constexpr (kSame<T, e4m3>) {
    return pack_codes<e4m3>(x[0], x[1], x[2], x[3]);
  } else {
    return pack<T>(x[0], x[1]);
  }
}

/// Fragments element by element, as "Matrix Fragments for mma.m16n8k16 with floating point type" (of 8 bits: "for mma.m16n8k32") numbers
/// them: a0.., b0.., c0..c3.
template <typename T>
__global__ void multiply_fragments(const __grid_constant__ MmaParams p) {
  constexpr int kWord = kInWord<T>;
  const int group_id = ptx::lane_idx() >> 2;
  const int thread_in_group = ptx::lane_idx() % 4;
  float a_values[4 * kWord];
  float b_values[2 * kWord];
  float c[4];
  for (int i = 0; i < 4 * kWord; ++i) {
    const int row = (i >= 0 && i < kWord) || (i >= 2 * kWord && i < 3 * kWord) ? group_id : group_id + 8;
    const int col = thread_in_group * kWord + (i & (kWord - 1)) + (i < 2 * kWord ? 0 : 4 * kWord);
    a_values[i] = p.a[row * kDepth<T> + col];
  }
  for (int i = 0; i < 2 * kWord; ++i) {
    const int row = thread_in_group * kWord + (i & (kWord - 1)) + (i < kWord ? 0 : 4 * kWord);
    b_values[i] = p.b[row * 8 + group_id];
  }
  const auto c_at = [&](int i) -> float& { return p.c[(i < 2 ? group_id : group_id + 8) * 8 + thread_in_group * 2 + (i & 1)]; };
  for (int i = 0; i < 4; ++i) c[i] = c_at(i);
  const u32 a[4] = {word_of<T>(a_values), word_of<T>(a_values + kWord), word_of<T>(a_values + 2 * kWord), word_of<T>(a_values + 3 * kWord)};
  const u32 b[2] = {word_of<T>(b_values), word_of<T>(b_values + kWord)};
  if constexpr (kSame<T, e4m3>) {
    ptx::mma_16x8x32_e4m3(c, a, b);
  } else {
    ptx::mma_16x8x16<T>(c, a, b);
  }
  for (int i = 0; i < 4; ++i) c_at(i) = c[i];
}

template <typename T>
void check_product() {
  std::vector<float> a = small_integers(16 * kDepth<T>, 1);
  std::vector<float> b = small_integers(kDepth<T> * 8, 2);
  std::vector<float> c = small_integers(16 * 8, 3);
  if (!kSame<T, e4m3>) a[0] = 0x1p-16F;  // subnormal in f16; sums of e4m3 would lose it
  std::vector<float> expected = c;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < kDepth<T>; ++k) {
        expected[static_cast<std::size_t>(i * 8 + j)] +=
            a[static_cast<std::size_t>(i * kDepth<T> + k)] * b[static_cast<std::size_t>(k * 8 + j)];
      }
    }
  }
  launch(multiply_fragments<T>, {a.data(), b.data(), c.data()}, {});
  EXPECT_EQ(c, expected);
}

TEST(EmulatorProducts, ProductsTakeTheFragmentsOfThePtxIsa) {
  check_product<f16>();
  check_product<bf16>();
  check_product<e4m3>();
}

TEST(EmulatorProducts, ProductsKeepNanAndInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> a = small_integers(16 * 16, 4);
  std::vector<float> b(16 * 8, 1.0F);
  std::vector<float> c(16 * 8, 0.0F);
  a[3 * 16 + 5] = inf;
  a[9 * 16 + 2] = std::nanf("");
  b[5 * 8 + 6] = 0.0F;
  launch(multiply_fragments<bf16>, {a.data(), b.data(), c.data()}, {});
  for (int col = 0; col < 8; ++col) {
    EXPECT_TRUE(std::isnan(c[static_cast<std::size_t>(9 * 8 + col)]));
    const float x = c[static_cast<std::size_t>(3 * 8 + col)];
    EXPECT_TRUE(col == 6 ? std::isnan(x) : x == inf) << x;  // inf * 0
    EXPECT_TRUE(std::isfinite(c[static_cast<std::size_t>(col)]));
  }
}

TEST(EmulatorProducts, LdmatrixDealsOutRows) {
  int wrong = 0;
  launch(
      [&wrong] {
        auto* s = reinterpret_cast<u16*>(ptx::shared_memory());
        const int lane = ptx::lane_idx();
        // Matrix i, row r at row 8 i + r of a padded array; the element in column c is 256 i + 8 r + c.
        for (int c = 0; c < 8; ++c) s[lane * 24 + c] = static_cast<u16>(256 * (lane / 8) + 8 * (lane % 8) + c);
        ptx::sync_warp();
        u32 r[4];
        u32 transposed[4];
        ptx::ldmatrix_x4(r, s + lane * 24);
        ptx::ldmatrix_x4_trans(transposed, s + lane * 24);
        const u32 row = static_cast<u32>(lane) / 4;
        const u32 col = static_cast<u32>(lane) % 4 * 2;
        for (u32 i = 0; i < 4; ++i) {
          const u32 base = 256 * i;
          if (r[i] != ((base + 8 * row + col) | (base + 8 * row + col + 1) << 16)) ++wrong;
          if (transposed[i] != ((base + 8 * col + row) | (base + 8 * (col + 1) + row) << 16)) ++wrong;
          if (ptx::transpose_8x8(r[i]) != transposed[i]) ++wrong;
        }
      },
      {.num_threads = 32, .shared_bytes = 32 * 48});
  EXPECT_EQ(wrong, 0);
}

// ---------------------------------------------------------------------------------------------------------------- warpgroups

/// Codes of small integers, [rows, 64].
template <typename T>
std::vector<u16> integer_rows(int rows, unsigned seed) {
  std::vector<u16> codes;
  for (const float x : small_integers(rows * 64, seed)) codes.push_back(static_cast<u16>(pack<T>(x, 0.0F)));
  return codes;
}
float value_of(u16 code, bf16) { return low_of<bf16>(code); }
float value_of(u16 code, f16) { return low_of<f16>(code); }

struct GroupParams {
  const u16* a;  // [64, 64]
  const u16* b;  // [96, 64]
  float* s;      // [64, 96]
  float* o;      // [64, 64]
  bool waits;    // before what the products read changes
};
template <typename T>
__global__ void multiply_group(const __grid_constant__ GroupParams p) {
  u8* s_rows = ptx::shared_memory();
  const int t = ptx::thread_idx();
  const auto fill = [&](const u16* rows, int first, int count) {
    for (int i = t; i < count * 64; i += 128) {
      reinterpret_cast<u16*>(s_rows)[(first + i / 64) * 64 + ((i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8)] = rows[i];
    }
  };
  fill(p.a, 0, 64);
  fill(p.b, 64, 96);
  ptx::fence_async_proxy();
  ptx::sync_block();
  float s[12][4];
  for (auto& tile : s) {
    for (float& x : tile) x = 7.0F;  // is not added
  }
  ptx::wgmma_fence();
  for (int i = 0; i < 4; ++i) {
    ptx::wgmma_shared<T>(s, ptx::rows_along_mn(s_rows) + static_cast<u64>(2 * i),
                         ptx::rows_along_mn(s_rows + 64 * 128) + static_cast<u64>(2 * i), i > 0);
  }
  ptx::wgmma_commit();
  if (p.waits) ptx::wgmma_wait<0>();
  ptx::sync_block();
  if (t == 0) reinterpret_cast<u16*>(s_rows)[0] = static_cast<u16>(pack<T>(100.0F, 0.0F));  // of A
  ptx::sync_block();
  ptx::wgmma_wait<0>();
  u32 a[6][4];
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 4; ++j) a[i][j] = pack<T>(s[2 * i + j / 2][j % 2 * 2], s[2 * i + j / 2][j % 2 * 2 + 1]);
  }
  float o[8][4] = {};
  ptx::wgmma_fence();
  for (int i = 0; i < 6; ++i) {
    ptx::wgmma_registers<T>(o, a[i], ptx::rows_along_k(s_rows + 64 * 128, 96 * 128) + static_cast<u64>(128 * i), true);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();
  if (o[0][0] != 0.0F || o[3][1] != 0.0F) p.o[0] = 1e9F;  // it may be under way still
  ptx::wgmma_wait<0>();
  const int row = t / 32 * 16 + t % 32 / 4;
  for (int j = 0; j < 4; ++j) {
    for (int n = 0; n < 12; ++n) p.s[(row + j / 2 * 8) * 96 + n * 8 + t % 4 * 2 + j % 2] = s[n][j];
    for (int n = 0; n < 8; ++n) p.o[(row + j / 2 * 8) * 64 + n * 8 + t % 4 * 2 + j % 2] = o[n][j];
  }
}

template <typename T>
void check_group_products() {
  const std::vector<u16> a = integer_rows<T>(64, 5);
  const std::vector<u16> b = integer_rows<T>(96, 6);
  std::vector<float> want_s(64 * 96, 0.0F);
  std::vector<float> want_o(64 * 64, 0.0F);
  const auto at = [](auto row, auto width, auto col) { return static_cast<std::size_t>(row * width + col); };
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 96; ++j) {
      for (int k = 0; k < 64; ++k) want_s[at(i, 96, j)] += value_of(a[at(i, 64, k)], T{}) * value_of(b[at(j, 64, k)], T{});
      const float rounded = low_of<T>(pack<T>(want_s[at(i, 96, j)], 0.0F));
      for (int n = 0; n < 64; ++n) want_o[at(i, 64, n)] += rounded * value_of(b[at(j, 64, n)], T{});
    }
  }
  std::vector<float> s(64 * 96);
  std::vector<float> o(64 * 64);
  for (const std::uint64_t seed : {0, 1}) {
    launch(multiply_group<T>, {a.data(), b.data(), s.data(), o.data(), true},
           {.num_threads = 128, .shared_bytes = 160 * 128, .seed = seed});
    EXPECT_EQ(s, want_s) << seed;
    EXPECT_EQ(o, want_o) << seed;
  }
  launch(multiply_group<T>, {a.data(), b.data(), s.data(), o.data(), false}, {.num_threads = 128, .shared_bytes = 160 * 128});
  EXPECT_NE(s, want_s) << "shared memory is read when the products are waited for";
}

TEST(EmulatorProducts, ProductsOfAWarpgroup) {
  check_group_products<bf16>();
  check_group_products<f16>();
}

struct ByteGroupParams {
  const u8* a;  // [64, 128] e4m3
  const u8* b;  // [96, 128]
  float* s;     // [64, 96]
  float* o;     // [64, 96]
};
/// A B by A in shared memory, and by A in registers as lanes have it; rows of 128 codes.
__global__ void multiply_bytes(const __grid_constant__ ByteGroupParams p) {
  u8* s_rows = ptx::shared_memory();
  const int t = ptx::thread_idx();
  const auto fill = [&](const u8* rows, int first, int count) {
    for (int i = t; i < count * 128; i += 128) s_rows[(first + i / 128) * 128 + ((i % 128 / 16 ^ i / 128 % 8) * 16 + i % 16)] = rows[i];
  };
  fill(p.a, 0, 64);
  fill(p.b, 64, 96);
  ptx::fence_async_proxy();
  ptx::sync_block();
  const u64 b = ptx::rows_along_mn(s_rows + 64 * 128);
  float s[12][4];
  float o[12][4] = {};
  ptx::wgmma_fence();
  for (int i = 0; i < 4; ++i)
    ptx::wgmma_shared_e4m3(s, ptx::rows_along_mn(s_rows) + static_cast<u64>(2 * i), b + static_cast<u64>(2 * i), i > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  const int row = t / 32 * 16 + t % 32 / 4;
  u32 a[4][4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) std::memcpy(&a[i][j], p.a + (row + j % 2 * 8) * 128 + 32 * i + j / 2 * 16 + t % 4 * 4, 4);
  }
  ptx::wgmma_fence();
  for (int i = 0; i < 4; ++i) ptx::wgmma_registers_e4m3(o, a[i], b + static_cast<u64>(2 * i), true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (int j = 0; j < 4; ++j) {
    for (int n = 0; n < 12; ++n) {
      const int at = (row + j / 2 * 8) * 96 + n * 8 + t % 4 * 2 + j % 2;
      p.s[at] = s[n][j];
      p.o[at] = o[n][j];
    }
  }
}

TEST(EmulatorProducts, ProductsOfAWarpgroupOnBytes) {
  const auto codes_of = [](int rows, unsigned seed) {
    std::vector<u8> codes;
    for (const float x : small_integers(rows * 128, seed)) codes.push_back(emulator::e4m3_code(x));
    return codes;
  };
  const std::vector<u8> a = codes_of(64, 7);
  const std::vector<u8> b = codes_of(96, 8);
  std::vector<float> want(64 * 96, 0.0F);
  for (std::size_t i = 0; i < want.size(); ++i) {
    for (std::size_t k = 0; k < 128; ++k) want[i] += emulator::e4m3_value(a[i / 96 * 128 + k]) * emulator::e4m3_value(b[i % 96 * 128 + k]);
  }
  for (const std::uint64_t seed : {0, 1}) {
    std::vector<float> s(want.size());
    std::vector<float> o(want.size());
    launch(multiply_bytes, {a.data(), b.data(), s.data(), o.data()}, {.num_threads = 128, .shared_bytes = 160 * 128, .seed = seed});
    EXPECT_EQ(s, want) << seed;
    EXPECT_EQ(o, want) << seed;
  }
}

TEST(EmulatorProducts, StmatrixIsLdmatrixTurnedRound) {
  std::vector<u32> words(128);
  launch(
      [&words] {
        u8* s = ptx::shared_memory();
        const int lane = ptx::lane_idx();
        u32 r[4];
        for (int i = 0; i < 4; ++i) r[i] = static_cast<u32>(1000 * i + lane);
        ptx::stmatrix_x4(s + lane * 16, r);
        ptx::sync_warp();
        std::memcpy(&words[static_cast<std::size_t>(4 * lane)], s + 16 * lane, 16);
        u32 back[4];
        ptx::ldmatrix_x4(back, s + lane * 16);
        for (int i = 0; i < 4; ++i) EXPECT_EQ(back[i], r[i]) << i << ", lane " << lane;
      },
      {.num_threads = 32, .shared_bytes = 512});
  // Row r of matrix i is what lanes 4 r .. 4 r + 3 had in r[i].
  for (u32 i = 0; i < 128; ++i) ASSERT_EQ(words[i], 1000 * (i / 32) + i % 32) << i;
  const std::string error = error_of(
      [] {
        const u32 r[4] = {};
        ptx::stmatrix_x4(ptx::shared_memory() + 8 * ptx::lane_idx(), r);
      },
      {.num_threads = 32, .shared_bytes = 512});
  EXPECT_TRUE(contains(error, "stmatrix_x4") && contains(error, "not a multiple of 16")) << error;
}

struct FormsParams {
  const u16* a;  // [64, 64]
  const u16* b;  // [64, 256]
  float* s;      // [64, 64]: A times the first 64 columns of B, transposed
  float* o;      // [64, 256]: 1 + A B
};
/// A in registers with B's rows along N, and A in shared memory with B's along K.
template <typename T>
__global__ void multiply_group_other_way(const __grid_constant__ FormsParams p) {
  u8* s_rows = ptx::shared_memory();
  const int t = ptx::thread_idx();
  const auto fill = [&](const u16* rows, int stride, int first) {
    for (int i = t; i < 64 * 64; i += 128) {
      reinterpret_cast<u16*>(s_rows)[(first + i / 64) * 64 + ((i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8)] = rows[i / 64 * stride + i % 64];
    }
  };
  fill(p.a, 64, 0);
  for (int stack = 0; stack < 4; ++stack) fill(p.b + 64 * stack, 256, 64 + 64 * stack);
  ptx::fence_async_proxy();
  ptx::sync_block();
  const int row = t / 32 * 16 + t % 32 / 4;
  u32 a[4][4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const u16* pair = p.a + (row + j % 2 * 8) * 64 + 16 * i + j / 2 * 8 + t % 4 * 2;
      a[i][j] = pair[0] | static_cast<u32>(pair[1]) << 16;
    }
  }
  float s[8][4];
  float o[32][4];
  for (auto& tile : o) {
    for (float& x : tile) x = 1.0F;
  }
  ptx::wgmma_fence();
  for (int i = 0; i < 4; ++i) {
    ptx::wgmma_registers_mn<T>(s, a[i], ptx::rows_along_mn(s_rows + 64 * 128) + static_cast<u64>(2 * i), i > 0);
    ptx::wgmma_shared_k<T>(o, ptx::rows_along_mn(s_rows) + static_cast<u64>(2 * i),
                           ptx::rows_along_k(s_rows + 64 * 128, 64 * 128) + static_cast<u64>(128 * i), true);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (int j = 0; j < 4; ++j) {
    for (int n = 0; n < 8; ++n) p.s[(row + j / 2 * 8) * 64 + n * 8 + t % 4 * 2 + j % 2] = s[n][j];
    for (int n = 0; n < 32; ++n) p.o[(row + j / 2 * 8) * 256 + n * 8 + t % 4 * 2 + j % 2] = o[n][j];
  }
}
template <typename T>
void check_other_way() {
  const std::vector<u16> a = integer_rows<T>(64, 7);
  const std::vector<u16> b = integer_rows<T>(4 * 64, 8);
  const auto at = [](auto row, auto width, auto col) { return static_cast<std::size_t>(row * width + col); };
  std::vector<float> want_s(64 * 64, 0.0F);
  std::vector<float> want_o(64 * 256, 1.0F);
  for (int i = 0; i < 64; ++i) {
    for (int k = 0; k < 64; ++k) {
      const float x = value_of(a[at(i, 64, k)], T{});
      for (int j = 0; j < 64; ++j) want_s[at(i, 64, j)] += x * value_of(b[at(j, 256, k)], T{});
      for (int j = 0; j < 256; ++j) want_o[at(i, 256, j)] += x * value_of(b[at(k, 256, j)], T{});
    }
  }
  std::vector<float> s(64 * 64);
  std::vector<float> o(64 * 256);
  for (const std::uint64_t seed : {0, 1}) {
    launch(multiply_group_other_way<T>, {a.data(), b.data(), s.data(), o.data()},
           {.num_threads = 128, .shared_bytes = 5 * 64 * 128, .seed = seed});
    EXPECT_EQ(s, want_s) << seed;
    EXPECT_EQ(o, want_o) << seed;
  }
}
TEST(EmulatorProducts, ProductsOfAWarpgroupTheOtherWay) {
  check_other_way<bf16>();
  check_other_way<f16>();
}

}  // namespace
}  // namespace girih
