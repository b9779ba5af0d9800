// Tensor-core work of a warp and number formats, with the layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k16", "ldmatrix").
// Operands of a product are widened to f32, where all products are exact; sums are f32, in ascending k. Hardware adds the 16 products of a
// step in another order and with a little more or less precision; both are within the bounds that tests allow.
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/numeric.h"
#include "emulator/emulator.h"

namespace girih::emulator {
namespace {

constexpr int kRows = 16, kCols = 8, kDepth = 16;

template <MmaType kType>
void decode_all(const std::uint16_t* codes, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = kType == MmaType::f16 ? decode_f16(codes[i]) : decode_bf16(codes[i]);
}

template <MmaType kType>
void multiply(const std::array<MmaOperand*, kWarp>& lanes) {
  std::uint16_t a_codes[kRows][kDepth];
  std::uint16_t b_codes[kDepth][kCols];
  float c[kRows][kCols];
  for (int lane = 0; lane < kWarp; ++lane) {
    const MmaOperand& operand = *lanes[static_cast<std::size_t>(lane)];
    const int group = lane / 4;
    const int pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const int row = group + (i % 2) * 8;
      const int col = pair + (i / 2) * 8;
      a_codes[row][col] = static_cast<std::uint16_t>(operand.a[i]);
      a_codes[row][col + 1] = static_cast<std::uint16_t>(operand.a[i] >> 16);
      c[group + (i / 2) * 8][pair + i % 2] = operand.c[i];
    }
    for (int i = 0; i < 2; ++i) {
      b_codes[pair + 8 * i][group] = static_cast<std::uint16_t>(operand.b[i]);
      b_codes[pair + 8 * i + 1][group] = static_cast<std::uint16_t>(operand.b[i] >> 16);
    }
  }
  float a[kRows][kDepth];
  float b[kDepth][kCols];
  decode_all<kType>(&a_codes[0][0], kRows * kDepth, &a[0][0]);
  decode_all<kType>(&b_codes[0][0], kDepth * kCols, &b[0][0]);
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      for (int col = 0; col < kCols; ++col) c[row][col] += a[row][k] * b[k][col];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < 4; ++i) lanes[static_cast<std::size_t>(lane)]->c[i] = c[lane / 4 + (i / 2) * 8][2 * (lane % 4) + i % 2];
  }
}

}  // namespace

void multiply_matrices(MmaOperand operand, MmaType type, const Site& site) {
  warp_collective(operand, site, [type](const std::array<MmaOperand*, kWarp>& lanes) {
    type == MmaType::f16 ? multiply<MmaType::f16>(lanes) : multiply<MmaType::bf16>(lanes);
  });
}

void load_matrices(MatrixOperand operand, bool transposed, const Site& site) {
  check_shared(operand.row, 16, 16, site);
  may_give_way();
  warp_collective(operand, site, [transposed](const std::array<MatrixOperand*, kWarp>& lanes) {
    const auto row_of = [&lanes](int matrix, int row) {
      return static_cast<const std::uint16_t*>(lanes[static_cast<std::size_t>(8 * matrix + row)]->row);
    };
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int major = lane / 4;
        const int minor = 2 * (lane % 4);
        const std::uint32_t low = transposed ? row_of(i, minor)[major] : row_of(i, major)[minor];
        const std::uint32_t high = transposed ? row_of(i, minor + 1)[major] : row_of(i, major)[minor + 1];
        lanes[static_cast<std::size_t>(lane)]->r[i] = low | high << 16;
      }
    }
  });
}

void transpose_matrix(std::uint32_t& pair, const Site& site) {
  warp_collective(pair, site, [](const std::array<std::uint32_t*, kWarp>& lanes) {
    std::uint16_t m[8][8];
    const auto row_col = [](int lane) { return std::pair{lane / 4, 2 * (lane % 4)}; };
    for (int lane = 0; lane < kWarp; ++lane) {
      const auto [row, col] = row_col(lane);
      m[row][col] = static_cast<std::uint16_t>(*lanes[static_cast<std::size_t>(lane)]);
      m[row][col + 1] = static_cast<std::uint16_t>(*lanes[static_cast<std::size_t>(lane)] >> 16);
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      const auto [row, col] = row_col(lane);
      *lanes[static_cast<std::size_t>(lane)] = m[col][row] | static_cast<std::uint32_t>(m[col + 1][row]) << 16;
    }
  });
}

float f16_value(std::uint32_t code) { return decode_f16(static_cast<std::uint16_t>(code)); }
std::uint16_t f16_code(float x) { return encode_f16(x); }
std::uint16_t bf16_code(float x) { return encode_bf16(x); }
float e4m3_value(std::uint32_t code) { return decode_e4m3(static_cast<std::uint8_t>(code)); }
std::uint8_t e4m3_code(float x) { return encode_e4m3(x); }
std::uint8_t e5m2_code(float x) { return encode_e5m2(x); }

}  // namespace girih::emulator
