// The inner loops of append, one instance per source and target type. A row is first f32 (in place, or in a small buffer of the caller),
// then divided by its scale and encoded: an exact division, so that a code is the one nearest to value / scale.
// How scales are chosen: base/scales.h.
#include "page/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/numeric.h"
#include "base/scales.h"

namespace girih::page {
namespace {

template <DType kType>
void load_row(const char* source, std::int64_t byte_stride, std::int64_t dim, float* out) {
  if (byte_stride == bits(kType) / 8) {
    for (std::int64_t d = 0; d < dim; ++d) out[d] = load_element<kType>(source, d);
  } else {
    for (std::int64_t d = 0; d < dim; ++d) out[d] = load_element<kType>(source + d * byte_stride, 0);
  }
}

template <typename Code>
void move_row(const char* source, std::int64_t source_byte_stride, std::int64_t dim, char* out, std::int64_t byte_stride) {
  constexpr std::int64_t kSize = sizeof(Code);
  if (source_byte_stride == kSize && byte_stride == kSize) {
    std::memcpy(out, source, static_cast<std::size_t>(dim * kSize));
    return;
  }
  for (std::int64_t d = 0; d < dim; ++d) std::memcpy(out + d * byte_stride, source + d * source_byte_stride, sizeof(Code));
}

/// The largest finite |x|; 0 where there is none. Compares bits: f32 magnitudes order as integers.
float largest_finite(const float* row, std::int64_t dim) {
  std::int32_t largest_bits = 0;  // signed: SSE2 compares only such
  for (std::int64_t d = 0; d < dim; ++d) {
    const std::int32_t b = std::bit_cast<std::int32_t>(row[d]) & 0x7fffffff;
    largest_bits = std::max(largest_bits, b < 0x7f800000 ? b : 0);
  }
  return std::bit_cast<float>(largest_bits);
}

/// Types without scales.
template <DType kType>
void store_plain(const float* row, std::int64_t dim, float, char* out, std::int64_t byte_stride, char*) {
  if (byte_stride == bits(kType) / 8) {
    for (std::int64_t d = 0; d < dim; ++d) store_element<kType>(out, d, row[d]);
  } else {
    for (std::int64_t d = 0; d < dim; ++d) store_element<kType>(out + d * byte_stride, 0, row[d]);
  }
}

/// 8-bit types with a scale that is given.
template <DType kType>
void store_scaled(const float* row, std::int64_t dim, float scale, char* out, std::int64_t byte_stride, char*) {
  if (byte_stride == 1) {
    for (std::int64_t d = 0; d < dim; ++d) store_element<kType>(out, d, row[d] / scale);
  } else {
    for (std::int64_t d = 0; d < dim; ++d) store_element<kType>(out + d * byte_stride, 0, row[d] / scale);
  }
}

/// 8-bit types whose scale is computed from the row and stored at `scale_out`.
template <DType kType>
void store_row_scaled(const float* row, std::int64_t dim, float global, char* out, std::int64_t byte_stride, char* scale_out) {
  const ChosenScale chosen = f32_scale(largest_finite(row, dim), largest(kType), global);
  store_element<DType::f32>(scale_out, 0, chosen.stored);
  store_scaled<kType>(row, dim, chosen.scale, out, byte_stride, nullptr);
}

/// 8-bit types whose scales are computed, one for each kScaleGroup elements.
template <DType kType>
void store_group_scaled(const float* row, std::int64_t dim, float global, char* out, std::int64_t byte_stride, char* scale_out) {
  for (std::int64_t begin = 0; begin < dim; begin += kScaleGroup) {
    store_row_scaled<kType>(row + begin, kScaleGroup, global, out + begin * byte_stride, byte_stride,
                            scale_out + begin / kScaleGroup * static_cast<std::int64_t>(sizeof(float)));
  }
}

/// Packs codes of a block that starts at an even element; an odd end leaves the high nibble 0.
void store_e2m1(const float* block, std::int64_t count, float scale, std::uint8_t* out) {
  std::array<std::uint8_t, 32> codes{};
  for (std::int64_t d = 0; d < count; ++d) codes[static_cast<std::size_t>(d)] = encode_e2m1(block[d] / scale);
  for (std::int64_t d = 0; d < count; d += 2) {
    const auto at = static_cast<std::size_t>(d);
    out[d / 2] = static_cast<std::uint8_t>(codes[at] | (codes[at + 1] << 4));
  }
}

template <DType kType>
void store_blocks(const float* row, std::int64_t dim, float global, char* out, std::int64_t, char* scale_out) {
  constexpr std::int64_t kBlock = scale_block(kType);
  auto* codes = reinterpret_cast<std::uint8_t*>(out);
  for (std::int64_t begin = 0; begin < dim; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, dim - begin);
    const float most = largest_finite(row + begin, count);
    const ChosenScale chosen = kType == DType::nvfp4 ? nvfp4_scale(most, global) : mx_scale(most, largest_exponent(kType), global);
    std::memcpy(scale_out + begin / kBlock, &chosen.code, 1);
    if (chosen.scale > 0) {
      store_e2m1(row + begin, count, chosen.scale, codes + begin / 2);
    } else {
      std::memset(codes + begin / 2, 0, static_cast<std::size_t>((count + 1) / 2));
    }
  }
}

}  // namespace

RowWriter row_writer(DType source, bool in_place, DType target, ScaleGranularity scale) {
  RowWriter writer;
  if (source == target) {
    writer.move = bits(target) == 32 ? move_row<std::uint32_t> : move_row<std::uint16_t>;
    return writer;
  }
  if (!(source == DType::f32 && in_place)) {
    writer.load = with_format(source, []<DType kType>() {
      if constexpr (bits(kType) == 4) {
        return decltype(RowWriter::load){};
      } else {
        return decltype(RowWriter::load){load_row<kType>};
      }
    });
  }
  writer.store = with_format(target, [scale]<DType kType>() -> decltype(RowWriter::store) {
    if constexpr (bits(kType) == 4) {
      return store_blocks<kType>;
    } else if constexpr (bits(kType) == 8) {
      if (scale == ScaleGranularity::token_group) return store_group_scaled<kType>;
      return scale == ScaleGranularity::token_head ? store_row_scaled<kType> : store_scaled<kType>;
    } else {
      return store_plain<kType>;
    }
  });
  return writer;
}

}  // namespace girih::page
