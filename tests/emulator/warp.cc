// Tensor-core work of a warp and number formats, with the layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k16", "ldmatrix").
// Operands of a product are widened to f32, where all products are exact; sums are f32, in ascending k. Hardware adds the 16 products of a
// step in another order and with a little more or less precision; both are within the bounds that tests allow.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/numeric.h"
#include "emulator/emulator.h"

namespace girih::emulator {
namespace {

constexpr int kRows = 16, kCols = 8;

float decode_element(MmaType type, std::uint32_t code) {
  if (type == MmaType::e4m3) return decode_e4m3(static_cast<std::uint8_t>(code));
  return type == MmaType::f16 ? decode_f16(static_cast<std::uint16_t>(code)) : decode_bf16(static_cast<std::uint16_t>(code));
}

/// Elements of a register, and the inner elements of one product.
constexpr int per_word(MmaType type) { return type == MmaType::e4m3 ? 4 : 2; }
constexpr int depth_of(MmaType type) { return 8 * per_word(type); }
constexpr int kMaxDepth = 32;
/// Element `i` of a register.
float element(MmaType type, std::uint32_t word, int i) { return decode_element(type, word >> (32 / per_word(type) * i)); }

int exponent(float x) { return static_cast<int>(std::bit_cast<std::uint32_t>(x) >> 23 & 0xffU) - 127; }

/// What is left of `x` above bits of 2^bit.
double without_bits_below(double x, int bit) {
  const auto power = [](int e) { return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); };
  return std::trunc(x * power(-bit)) * power(bit);
}

/// Hopper's sum of e4m3 products: addends lose their bits below 2^-13 of the largest, a product's size being taken as the powers of two of
/// its factors multiplied; the sum loses its own below 2^-13 of itself. tests/cuda/ptx_cuda.cc compares the bits with the hardware's.
float add_products_of_bytes(float c, const float* a, const float* b, int depth) {
  constexpr int kBits = 13;
  int top = exponent(c);
  for (int k = 0; k < depth; ++k) {
    if (a[k] != 0 && b[k] != 0) top = std::max(top, exponent(a[k]) + exponent(b[k]));
  }
  double sum = without_bits_below(c, top - kBits);
  for (int k = 0; k < depth; ++k) sum += without_bits_below(static_cast<double>(a[k]) * static_cast<double>(b[k]), top - kBits);
  return static_cast<float>(without_bits_below(sum, exponent(static_cast<float>(sum)) - kBits));
}

template <MmaType kType>
void multiply(const std::array<MmaOperand*, kWarp>& lanes) {
  constexpr int kWord = per_word(kType);
  constexpr int kDepth = depth_of(kType);
  float a[kRows][kDepth];
  float b[kDepth][kCols];
  float c[kRows][kCols];
  for (int lane = 0; lane < kWarp; ++lane) {
    const MmaOperand& operand = *lanes[static_cast<std::size_t>(lane)];
    const int group = lane / 4;
    const int pair = lane % 4;
    for (int i = 0; i < 4; ++i) {
      c[group + (i / 2) * 8][2 * pair + i % 2] = operand.c[i];
      for (int j = 0; j < kWord; ++j) a[group + (i % 2) * 8][kWord * (pair + (i / 2) * 4) + j] = element(kType, operand.a[i], j);
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < kWord; ++j) b[kWord * (pair + 4 * i) + j][group] = element(kType, operand.b[i], j);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    if constexpr (kType == MmaType::e4m3) {
      for (int col = 0; col < kCols; ++col) {
        float column[kDepth];
        for (int k = 0; k < kDepth; ++k) column[k] = b[k][col];
        c[row][col] = add_products_of_bytes(c[row][col], a[row], column, kDepth);
      }
    } else {
      for (int k = 0; k < kDepth; ++k) {
        for (int col = 0; col < kCols; ++col) c[row][col] += a[row][k] * b[k][col];
      }
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < 4; ++i) lanes[static_cast<std::size_t>(lane)]->c[i] = c[lane / 4 + (i / 2) * 8][2 * (lane % 4) + i % 2];
  }
}

}  // namespace

void multiply_matrices(MmaOperand operand, MmaType type, const Site& site) {
  warp_collective(operand, site, [type](const std::array<MmaOperand*, kWarp>& lanes) {
    switch (type) {
      case MmaType::f16: return multiply<MmaType::f16>(lanes);
      case MmaType::bf16: return multiply<MmaType::bf16>(lanes);
      case MmaType::e4m3: return multiply<MmaType::e4m3>(lanes);
    }
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

void store_matrices(StoredMatrixOperand operand, const Site& site) {
  check_shared(operand.row, 16, 16, site);
  may_give_way();
  warp_collective(operand, site, [](const std::array<StoredMatrixOperand*, kWarp>& lanes) {
    for (std::size_t lane = 0; lane < kWarp; ++lane) {
      for (std::size_t i = 0; i < 4; ++i) {
        std::memcpy(static_cast<std::byte*>(lanes[8 * i + lane / 4]->row) + lane % 4 * 4, &lanes[lane]->r[i], 4);
      }
    }
  });
  may_give_way();
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

namespace {

/// A tile in shared memory as a descriptor has it.
struct Tile {
  std::int64_t address, lead, step;

  Tile(std::uint64_t descriptor, const Site& site)
      : address(static_cast<std::int64_t>(descriptor & 0x3fffU) << 4),
        lead(static_cast<std::int64_t>(descriptor >> 16 & 0x3fffU) << 4),
        step(static_cast<std::int64_t>(descriptor >> 32 & 0x3fffU) << 4) {
    if (descriptor >> 62 != 1) misuse("a tile that is not swizzled by 128 bytes", site);
  }
  /// `size` bytes.
  std::uint32_t at(std::int64_t offset, std::int64_t size, const Site& site) const {
    const std::int64_t place = address + offset;
    const std::byte* element = current().block->shared + (place ^ ((place >> 7 & 7) << 4));
    check_shared(element, size, static_cast<std::size_t>(size), site);
    std::uint32_t code = 0;
    std::memcpy(&code, element, static_cast<std::size_t>(size));
    return code;
  }
  /// Rows along M or N.
  std::uint32_t along_mn(std::int64_t mn, std::int64_t k, std::int64_t size, const Site& site) const {
    return at(mn / 8 * step + mn % 8 * 128 + size * k, size, site);
  }
  /// Rows along K, of elements of 16 bits.
  std::uint32_t along_k(std::int64_t mn, std::int64_t k, const Site& site) const {
    return at(mn / 64 * lead + k / 8 * step + k % 8 * 128 + mn % 64 * 2, 2, site);
  }
};

/// By the last lane to come to the wait.
void compute(const GroupProduct& p, int first_row, const Site& site) {
  const int in_word = per_word(p.type);
  const int size = 4 / in_word;  // bytes of an element
  const int depth = depth_of(p.type);
  const bool in_registers = p.a[0] != nullptr;
  float a[kRows][kMaxDepth];
  if (in_registers) {
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = p.a[static_cast<std::size_t>(lane)][i];
        float* at = &a[lane / 4 + i % 2 * 8][lane % 4 * in_word + i / 2 * depth / 2];
        for (int j = 0; j < in_word; ++j) at[j] = element(p.type, word, j);
      }
    }
  } else {
    const Tile tile(p.a_tile, site);
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < depth; ++k) a[row][k] = decode_element(p.type, tile.along_mn(first_row + row, k, size, site));
    }
  }
  const Tile tile(p.b_tile, site);
  for (int col = 0; col < 8 * p.num_tiles; ++col) {
    float b[kMaxDepth];
    for (int k = 0; k < depth; ++k) {
      const bool along_k = in_registers != p.other_way && size == 2;
      b[k] = decode_element(p.type, along_k ? tile.along_k(col, k, site) : tile.along_mn(col, k, size, site));
    }
    for (int row = 0; row < kRows; ++row) {
      float& c = p.c[static_cast<std::size_t>(row % 8 * 4 + col % 8 / 2)][col / 8 * 4 + row / 8 * 2 + col % 2];
      float sum = p.accumulate ? c : 0.0F;
      if (p.type == MmaType::e4m3) {
        sum = add_products_of_bytes(sum, a[row], b, depth);
      } else {
        for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k];
      }
      c = sum;
    }
  }
}

}  // namespace

void issue_product(GroupOperand operand, int num_tiles, MmaType type, const Site& site) {
  may_give_way();
  warp_collective(operand, site, [&](const std::array<GroupOperand*, kWarp>& lanes) {
    GroupProduct product{{}, {}, operand.a_tile, operand.b_tile, num_tiles, operand.accumulate, operand.other_way, type};
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const GroupOperand& own = *lanes[lane];
      if (own.a_tile != operand.a_tile || own.b_tile != operand.b_tile || own.accumulate != operand.accumulate)
        misuse("lanes of a warp differ in their operands", site);
      product.c[lane] = own.c;
      product.a[lane] = own.a;
    }
    current().warp->products.push_back(product);
  });
}

void commit_products(const Site& site) {
  char nothing = 0;
  warp_collective(nothing, site, [](const auto&) { current().warp->product_ends.push_back(current().warp->products.size()); });
}

void wait_products(int num_pending, const Site& site) {
  may_give_way();
  char nothing = 0;
  warp_collective(nothing, site, [&](const auto&) {
    Warp& warp = *current().warp;
    const auto ending = static_cast<std::ptrdiff_t>(warp.product_ends.size()) - num_pending;
    if (ending <= 0) return;
    const std::size_t count = warp.product_ends[static_cast<std::size_t>(ending) - 1];
    for (std::size_t i = 0; i < count; ++i) compute(warp.products[i], current().thread_idx / kWarp % 4 * kRows, site);
    warp.products.erase(warp.products.begin(), warp.products.begin() + static_cast<std::ptrdiff_t>(count));
    warp.product_ends.erase(warp.product_ends.begin(), warp.product_ends.begin() + ending);
    for (std::size_t& end : warp.product_ends) end -= count;
  });
}

float f16_value(std::uint32_t code) { return decode_f16(static_cast<std::uint16_t>(code)); }
std::uint16_t f16_code(float x) { return encode_f16(x); }
std::uint16_t bf16_code(float x) { return encode_bf16(x); }
float e4m3_value(std::uint32_t code) { return decode_e4m3(static_cast<std::uint8_t>(code)); }
std::uint8_t e4m3_code(float x) { return encode_e4m3(x); }
std::uint8_t e5m2_code(float x) { return encode_e5m2(x); }

}  // namespace girih::emulator
