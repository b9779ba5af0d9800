// The paged cache: what append() writes, read back one element at a time from the store's description (ref/page.h), over types, scales,
// layouts and page sizes; that nothing else is touched; copies of pages; positions; refusals.
#include "girih/page.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "ref/page.h"

namespace girih {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

Context& context() {
  static Context instance{ContextOptions{.num_workers = 3}};
  return instance;
}

enum class Layout { nhd, hnd, token_contiguous, spaced };
const Layout kLayouts[] = {Layout::nhd, Layout::hnd, Layout::token_contiguous, Layout::spaced};

struct Geometry {
  std::int64_t pages = 0, page_size = 0, heads = 0, dim = 0;
  std::int64_t tokens() const { return page_size == kEndlessPage ? pages : page_size; }  // of a page; ragged: of the store
  std::int64_t page_count() const { return page_size == kEndlessPage ? 1 : pages; }
};

bool is_computed(ScaleGranularity g) {
  return g == ScaleGranularity::token_head || g == ScaleGranularity::block || g == ScaleGranularity::token_group;
}
/// Bytes of a token and head's scales.
std::int64_t scale_bytes(DType t, ScaleGranularity g, std::int64_t dim) {
  if (g == ScaleGranularity::token_group) return dim / 128 * 4;
  return g == ScaleGranularity::block ? (dim + scale_block(t) - 1) / scale_block(t) : 4;
}

/// A plane that owns its memory and scales, filled with a pattern that no test writes.
struct OwnedPlane {
  Geometry g;
  std::vector<unsigned char> data, scales;
  KvPlane plane;

  OwnedPlane(const Geometry& geometry, DType t, ScaleGranularity granularity, Layout layout, float global = 1.0F) : g(geometry) {
    plane.dtype = t;
    if (bits(t) == 4 && layout == Layout::token_contiguous) layout = Layout::hnd;
    const std::int64_t row = bytes(t, g.dim), element = bits(t) / 8;
    std::int64_t page = g.tokens() * g.heads * row;
    switch (layout) {
      case Layout::nhd:
        plane.token_byte_stride = g.heads * row;
        plane.head_byte_stride = row;
        break;
      case Layout::hnd:
        plane.token_byte_stride = row;
        plane.head_byte_stride = g.tokens() * row;
        break;
      case Layout::token_contiguous:
        plane.dim_byte_stride = g.tokens() * element;
        plane.token_byte_stride = element;
        plane.head_byte_stride = g.tokens() * row;
        break;
      case Layout::spaced:  // rows with gaps, heads before tokens, at an odd distance
        plane.token_byte_stride = g.heads * (row + 5) + 3;
        plane.head_byte_stride = row + 5;
        page = g.tokens() * plane.token_byte_stride + 7;
    }
    plane.page_byte_stride = page;
    data.assign(static_cast<std::size_t>(g.page_count() * page), 0xa5);
    plane.data = data.data();
    KvScales& s = plane.scales;
    s.granularity = granularity;
    s.global_scale = global;
    const std::int64_t unit = scale_bytes(t, granularity, g.dim);
    if (granularity == ScaleGranularity::tensor || granularity == ScaleGranularity::head) {
      s.head_byte_stride = 4;
      scales.resize(static_cast<std::size_t>(4 * g.heads));
      for (std::int64_t h = 0; h < g.heads; ++h) store_element(DType::f32, scales.data(), h, 0.01F * static_cast<float>(h + 1));
    } else if (granularity != ScaleGranularity::none) {
      s.head_byte_stride = unit + 1;
      s.token_byte_stride = g.heads * s.head_byte_stride + 2;
      s.page_byte_stride = g.tokens() * s.token_byte_stride + 3;
      scales.assign(static_cast<std::size_t>(g.page_count() * s.page_byte_stride), 0xa5);
    }
    s.data = scales.data();
  }
  OwnedPlane(const OwnedPlane&) = delete;
  OwnedPlane& operator=(const OwnedPlane&) = delete;
};

/// Rows of random values [n, heads, dim].
struct Source {
  std::vector<unsigned char> memory;
  TensorView view;
  Source(DType t, std::int64_t n, std::int64_t heads, std::int64_t dim, unsigned seed, float spread = 1)
      : view(nullptr, t, {n, heads, dim}) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    memory.resize(static_cast<std::size_t>(bytes(t, view.numel())));
    view.data = memory.data();
    for (std::int64_t i = 0; i < view.numel(); ++i) store_element(t, memory.data(), i, normal(random));
  }
};

float source_at(const TensorView& t, std::int64_t row, std::int64_t head, std::int64_t d) {
  return load_element(t.dtype, t.data, row * t.strides[0] + head * t.strides[1] + d * t.strides[2]);
}

struct Place {
  std::int64_t page = 0, token = 0;
};

/// Where row `row` goes, by walking the batch.
Place place_of(const KvStore& store, const AppendBatch& batch, std::int64_t row) {
  std::int64_t r = 0;
  while (batch.append_indptr[r + 1] <= row) ++r;
  const std::int64_t at = batch.kv_len[r] - (batch.append_indptr[r + 1] - row);
  const std::int64_t first = batch.kv_indptr.empty() ? r * batch.table_stride : batch.kv_indptr[r];
  if (store.page_size == kEndlessPage) return {0, first + at};
  return {batch.kv_indices[static_cast<std::size_t>(first + at / store.page_size)], at % store.page_size};
}

/// The rule of each scale, in double.
double expected_scale(const KvPlane& plane, const TensorView& source, std::int64_t row, std::int64_t head, std::int64_t d, double given) {
  const ScaleGranularity g = plane.scales.granularity;
  if (!is_computed(g)) return given;
  const double global = static_cast<double>(plane.scales.global_scale);
  const std::int64_t block = g == ScaleGranularity::block         ? scale_block(plane.dtype)
                             : g == ScaleGranularity::token_group ? 128
                                                                  : source.shape[2];
  double most = 0;
  for (std::int64_t i = d / block * block; i < std::min(source.shape[2], d / block * block + block); ++i) {
    const double x = std::fabs(static_cast<double>(source_at(source, row, head, i)));
    if (std::isfinite(x)) most = std::max(most, x);
  }
  switch (plane.dtype) {
    case DType::e4m3: return most == 0 ? global : most / 448;
    case DType::e5m2: return most == 0 ? global : most / 57344;
    case DType::i8: return most == 0 ? global : most / 127;
    case DType::nvfp4: return global * ref::nearest_value(DType::e4m3, static_cast<double>(static_cast<float>(most / 6 / global)));
    default: return most == 0 ? global : global * std::exp2(std::floor(std::log2(most / global)) - 2);
  }
}

/// Checks every appended element and scale against the rules, and that no other byte changed since `data` and `scales` were taken.
void expect_appended(const KvStore& store, const OwnedPlane& owned, const TensorView& source, const AppendBatch& batch, std::int64_t rows,
                     std::vector<unsigned char> data, std::vector<unsigned char> scales, const std::string& what) {
  const KvPlane& plane = owned.plane;
  const std::int64_t dim = source.shape[2];
  for (std::int64_t row = 0; row < rows; ++row) {
    const Place place = place_of(store, batch, row);
    for (std::int64_t head = 0; head < source.shape[1]; ++head) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const float x = source_at(source, row, head, d);
        const double code = ref::code_value(store, plane, place.page, place.token, head, d);
        if (plane.scales.granularity == ScaleGranularity::none) {
          ASSERT_EQ(code, static_cast<double>(decode(plane.dtype, encode(plane.dtype, x)))) << what;
        } else {
          const double scale = ref::scale_of(store, plane, place.page, place.token, head, d);
          const double rule = expected_scale(plane, source, row, head, d, scale);
          ASSERT_NEAR(scale, rule, 1e-6 * rule) << what << " row " << row << " head " << head << " dim " << d;
          const double nearest = scale == 0 ? 0.0 : ref::nearest_value(plane.dtype, static_cast<double>(x / static_cast<float>(scale)));
          ASSERT_EQ(code, nearest) << what << " row " << row << " head " << head << " dim " << d << " x " << x << " scale " << scale;
        }
      }
      // What was written is put into the old copy, which must then equal the whole.
      const unsigned char* out = ref::row_address(store, plane, place.page, place.token, head);
      const std::int64_t at = out - owned.data.data();
      if (plane.dim_byte_stride == 0) {
        std::memcpy(data.data() + at, out, static_cast<std::size_t>(bytes(plane.dtype, dim)));
      } else {
        for (std::int64_t d = 0; d < dim; ++d) {
          std::memcpy(data.data() + at + d * plane.dim_byte_stride, out + d * plane.dim_byte_stride,
                      static_cast<std::size_t>(bits(plane.dtype) / 8));
        }
      }
      const ScaleGranularity g = plane.scales.granularity;
      if (!is_computed(g)) continue;
      const unsigned char* scale = ref::row_address(store, plane.scales, place.page, place.token, head);
      const std::int64_t size = scale_bytes(plane.dtype, g, dim);
      std::memcpy(scales.data() + (scale - owned.scales.data()), scale, static_cast<std::size_t>(size));
    }
  }
  ASSERT_TRUE(data == owned.data) << what << ": bytes outside the appended rows changed";
  ASSERT_TRUE(scales == owned.scales) << what << ": scales outside the appended rows changed";
}

/// Three requests, the second without new tokens; pages out of order, wild ids where nothing is appended.
struct Table {
  std::vector<std::int32_t> append_indptr{0, 7, 7, 10};
  std::vector<std::int64_t> kv_len;
  std::vector<std::int32_t> indices, indptr{0};
  AppendBatch batch;
  Table(std::int64_t page_size, std::int64_t pages, bool strided) {
    kv_len = {11, 3, 3};
    std::int32_t next = static_cast<std::int32_t>(pages) - 1;
    const std::int64_t width = (11 + page_size - 1) / page_size + 1;
    for (std::size_t r = 0; r < 3; ++r) {
      const std::int64_t first = kv_len[r] - (append_indptr[r + 1] - append_indptr[r]);
      const std::int64_t needed = (kv_len[r] + page_size - 1) / page_size;
      for (std::int64_t i = 0; i < (strided ? width : needed + 1); ++i) {
        const bool touched = r != 1 && i >= first / page_size && i < needed;
        indices.push_back(touched ? next-- : (i % 2 == 0 ? -1 : 0x7fffffff));
      }
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
    }
    batch.append_indptr = append_indptr;
    batch.kv_len = kv_len;
    batch.kv_indices = indices;
    if (strided) {
      batch.table_stride = width;
    } else {
      batch.kv_indptr = indptr;
    }
  }
};

struct Case {
  DType t;
  ScaleGranularity g;
};
const Case kCases[] = {
    {DType::f32, ScaleGranularity::none},      {DType::f16, ScaleGranularity::none},        {DType::bf16, ScaleGranularity::none},
    {DType::e4m3, ScaleGranularity::tensor},   {DType::e4m3, ScaleGranularity::head},       {DType::e4m3, ScaleGranularity::token_head},
    {DType::e5m2, ScaleGranularity::tensor},   {DType::e5m2, ScaleGranularity::token_head}, {DType::i8, ScaleGranularity::head},
    {DType::i8, ScaleGranularity::token_head}, {DType::nvfp4, ScaleGranularity::block},     {DType::mxfp4, ScaleGranularity::block}};

TEST(Append, EveryTypeScaleLayoutAndPageSize) {
  unsigned seed = 1;
  for (const DType source_type : {DType::f32, DType::f16, DType::bf16}) {
    for (const Case& c : kCases) {
      for (const Layout layout : kLayouts) {
        for (const std::int64_t page_size : {1, 5, 16}) {
          const std::int64_t dim = seed % 3 == 0 ? 33 : 40;  // odd, and not a multiple of a block
          const Geometry g{16, page_size, 2, dim};
          OwnedPlane k(g, c.t, c.g, layout), v(g, c.t, c.g, layout, c.g == ScaleGranularity::none ? 1.0F : 0.375F);
          KvStore store{.page_size = page_size, .num_pages = g.pages, .k = k.plane, .v = v.plane};
          const Table table(page_size, g.pages, seed % 2 == 0);
          const Source k_new(source_type, 10, 2, dim, seed), v_new(source_type, 12, 2, dim, seed + 1000, 20);
          const auto k_data = k.data, k_scales = k.scales, v_data = v.data, v_scales = v.scales;
          append(context(), store, table.batch, k_new.view, {}, v_new.view);
          const std::string what = std::string(name(source_type)) + " -> " + std::string(name(c.t)) + " granularity " +
                                   std::to_string(static_cast<int>(c.g)) + " layout " + std::to_string(static_cast<int>(layout)) +
                                   " page size " + std::to_string(page_size);
          expect_appended(store, k, k_new.view, table.batch, 10, k_data, k_scales, "k " + what);
          expect_appended(store, v, v_new.view, table.batch, 10, v_data, v_scales, "v " + what);
          if (HasFatalFailure()) return;
          ++seed;
        }
      }
    }
  }
}

TEST(Append, ScalesOfGroupsOfDims) {
  unsigned seed = 1;
  for (const DType t : {DType::e4m3, DType::e5m2, DType::i8}) {
    for (const Layout layout : kLayouts) {
      for (const DType source_type : {DType::f32, DType::bf16}) {
        const Geometry g{16, 5, 2, 384};
        OwnedPlane k(g, t, ScaleGranularity::token_group, layout, 0.375F);
        KvStore store{.page_size = 5, .num_pages = 16, .k = k.plane};
        const Table table(5, 16, seed % 2 == 0);
        const Source k_new(source_type, 10, 2, 384, seed++, 20);
        auto* zeros = static_cast<char*>(k_new.view.data) + 3 * 2 * 384 * bits(source_type) / 8;  // of a token, a group
        std::fill_n(zeros + 128 * bits(source_type) / 8, 128 * bits(source_type) / 8, '\0');
        const auto data = k.data, scales = k.scales;
        append(context(), store, table.batch, k_new.view, {}, {});
        expect_appended(store, k, k_new.view, table.batch, 10, data, scales, std::string(name(t)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Append, RaggedStoreTakesTokenOffsets) {
  for (const bool strided : {false, true}) {
    for (const Case& c : kCases) {
      const Geometry g{24, kEndlessPage, 3, 24};
      OwnedPlane k(g, c.t, c.g, Layout::nhd), v(g, c.t, c.g, Layout::hnd);
      KvStore store{.page_size = kEndlessPage, .num_pages = g.pages, .k = k.plane, .v = v.plane};
      const std::vector<std::int32_t> append_indptr{0, 2, 5}, kv_len{9, 3};
      const std::vector<std::int64_t> offsets{4, 14, 24};
      AppendBatch batch{.append_indptr = append_indptr, .kv_len = kv_len};
      if (strided) {
        batch.table_stride = 12;
      } else {
        batch.kv_indptr = offsets;
      }
      const Source k_new(DType::f32, 5, 3, 24, 5), v_new(DType::bf16, 5, 3, 24, 6);
      const auto k_data = k.data, k_scales = k.scales, v_data = v.data, v_scales = v.scales;
      append(context(), store, batch, k_new.view, {}, v_new.view);
      expect_appended(store, k, k_new.view, batch, 5, k_data, k_scales, "ragged k");
      expect_appended(store, v, v_new.view, batch, 5, v_data, v_scales, "ragged v");
    }
  }
}

TEST(Append, MlaLatentAndRopeWithoutV) {
  const std::int64_t page_size = 4;
  OwnedPlane latent({16, page_size, 1, 512}, DType::e4m3, ScaleGranularity::token_head, Layout::nhd);
  OwnedPlane rope({16, page_size, 1, 64}, DType::bf16, ScaleGranularity::none, Layout::spaced);
  KvStore store{.page_size = page_size, .num_pages = 16, .k = latent.plane, .k_rope = rope.plane};
  const Table table(page_size, 16, false);
  const Source k(DType::bf16, 10, 1, 512, 1), k_rope(DType::bf16, 10, 1, 64, 2);
  const auto data = latent.data, scales = latent.scales, rope_data = rope.data;
  append(context(), store, table.batch, k.view, k_rope.view, {});
  expect_appended(store, latent, k.view, table.batch, 10, data, scales, "latent");
  expect_appended(store, rope, k_rope.view, table.batch, 10, rope_data, {}, "rope");
}

TEST(Append, K02_SlicesOfPackedQkv) {
  // 4 tokens, rows of (32 + 2 x 4) heads of 128: K and V are views with strides 5120, 128, 1.
  const Source packed(DType::bf16, 4, 40, 128, 3);
  auto* base = static_cast<std::uint16_t*>(packed.view.data);
  const TensorView k(base + 32 * 128, DType::bf16, {4, 4, 128}, {5120, 128, 1});
  const TensorView v(base + 36 * 128, DType::bf16, {4, 4, 128}, {5120, 128, 1});
  const std::vector<std::int32_t> append_indptr{0, 1, 2, 3, 4}, kv_len{1, 16, 17, 128}, indptr{0, 1, 2, 4, 12};
  const std::vector<std::int32_t> indices{3, 11, 0, 9, 5, 8, 2, 10, 6, 1, 7, 4};
  const AppendBatch batch{.append_indptr = append_indptr, .kv_len = kv_len, .kv_indices = indices, .kv_indptr = indptr};
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    for (const DType t : {DType::bf16, DType::f32}) {
      OwnedPlane k_plane({12, 16, 4, 128}, t, ScaleGranularity::none, layout), v_plane({12, 16, 4, 128}, t, ScaleGranularity::none, layout);
      const KvStore store{.page_size = 16, .num_pages = 12, .k = k_plane.plane, .v = v_plane.plane};
      const auto k_data = k_plane.data, v_data = v_plane.data;
      append(context(), store, batch, k, {}, v);
      expect_appended(store, k_plane, k, batch, 4, k_data, {}, "k");
      expect_appended(store, v_plane, v, batch, 4, v_data, {}, "v");
    }
  }
}

TEST(Append, K04_AllLayersInsideAPage) {
  // [page, layer, K or V, token, head, dim]: a page of 3 layers; the middle layer is written.
  const std::int64_t page_size = 4, heads = 2, dim = 16, plane_elements = page_size * heads * dim, page_elements = 6 * plane_elements;
  std::vector<std::uint16_t> pool(static_cast<std::size_t>(16 * page_elements), 0xa5a5);
  KvPlane k{.data = pool.data() + 2 * plane_elements,
            .dtype = DType::f16,
            .page_byte_stride = 2 * page_elements,
            .token_byte_stride = 2 * heads * dim,
            .head_byte_stride = 2 * dim};
  KvPlane v = k;
  v.data = pool.data() + 3 * plane_elements;
  const KvStore store{.page_size = page_size, .num_pages = 16, .k = k, .v = v};
  const Table table(page_size, 16, false);
  const Source k_new(DType::f16, 10, heads, dim, 8), v_new(DType::f16, 10, heads, dim, 9);
  auto expected = pool;
  append(context(), store, table.batch, k_new.view, {}, v_new.view);
  for (std::int64_t row = 0; row < 10; ++row) {
    const Place place = place_of(store, table.batch, row);
    const std::int64_t at = place.page * page_elements + 2 * plane_elements + place.token * heads * dim;
    std::memcpy(expected.data() + at, static_cast<std::uint16_t*>(k_new.view.data) + row * heads * dim, 2 * heads * dim);
    std::memcpy(expected.data() + at + plane_elements, static_cast<std::uint16_t*>(v_new.view.data) + row * heads * dim, 2 * heads * dim);
  }
  EXPECT_TRUE(pool == expected);
}

TEST(Append, K05_UnalignedBasesAndOddSourceStrides) {
  const std::int64_t dim = 24;
  const Source wide(DType::f32, 20, 2, 2 * dim, 12);
  std::vector<unsigned char> shifted(wide.memory.size() + 2);
  std::memcpy(shifted.data() + 2, wide.memory.data(), wide.memory.size());
  // Every second row, heads swapped, every second dim backwards; and the same from a base 2 bytes off.
  const std::int64_t row = 4 * dim;
  for (const unsigned char* base : {wide.memory.data(), static_cast<const unsigned char*>(shifted.data() + 2)}) {
    auto* start = const_cast<unsigned char*>(base);
    const TensorView dense(start, DType::f32, {10, 2, 2 * dim}, {row, 2 * dim, 1});
    const TensorView odd(start + 4 * (2 * dim + 2 * dim - 1), DType::f32, {10, 2, dim}, {2 * row, -2 * dim, -2});
    for (const Case& c : kCases) {
      OwnedPlane k({16, 4, 2, dim}, c.t, c.g, Layout::spaced), v({16, 4, 2, 2 * dim}, c.t, c.g, Layout::spaced);
      const KvStore store{.page_size = 4, .num_pages = 16, .k = k.plane, .v = v.plane};
      const Table table(4, 16, true);
      const auto k_data = k.data, k_scales = k.scales, v_data = v.data, v_scales = v.scales;
      append(context(), store, table.batch, odd, {}, dense);
      expect_appended(store, k, odd, table.batch, 10, k_data, k_scales, "odd strides");
      expect_appended(store, v, dense, table.batch, 10, v_data, v_scales, "dense, base maybe unaligned");
    }
  }
}

TEST(Append, SameTypeKeepsBits) {
  const std::int64_t dim = 16;
  Source k(DType::f16, 10, 2, dim, 4);
  const std::uint16_t special[] = {0x7c01, 0xfe00, 0x8000, 0x0001, 0x7c00};  // signalling NaN, NaN, -0, subnormal, infinity
  std::memcpy(k.memory.data(), special, sizeof(special));
  for (const Layout layout : kLayouts) {
    OwnedPlane plane({16, 4, 2, dim}, DType::f16, ScaleGranularity::none, layout);
    const KvStore store{.page_size = 4, .num_pages = 16, .k = plane.plane};
    const Table table(4, 16, true);
    append(context(), store, table.batch, k.view, {}, {});
    const Place place = place_of(store, table.batch, 0);
    const unsigned char* row = ref::row_address(store, plane.plane, place.page, place.token, 0);
    const std::int64_t step = plane.plane.dim_byte_stride == 0 ? 2 : plane.plane.dim_byte_stride;
    for (int i = 0; i < 5; ++i) EXPECT_EQ(std::memcmp(row + i * step, special + i, 2), 0) << static_cast<int>(layout) << ' ' << i;
  }
}

TEST(Append, E20_PlacementDoesNotChangeBits) {
  // The same tokens on different pages, by one worker and by three: every row's codes and scales are the same bytes.
  for (const Case& c : kCases) {
    const Geometry g{40, 4, 2, 48};
    const Source k_new(DType::bf16, 10, 2, 48, 21);
    std::vector<std::vector<unsigned char>> results;
    for (const std::int64_t pages : {16, 23, 40}) {
      OwnedPlane k(g, c.t, c.g, Layout::hnd);
      const KvStore store{.page_size = 4, .num_pages = g.pages, .k = k.plane};
      const Table table(4, pages, pages == 23);
      const Context one(ContextOptions{.num_workers = 1});
      append(pages == 40 ? one : context(), store, table.batch, k_new.view, {}, {});
      std::vector<unsigned char> rows;
      for (std::int64_t row = 0; row < 10; ++row) {
        const Place place = place_of(store, table.batch, row);
        for (std::int64_t head = 0; head < 2; ++head) {
          const unsigned char* codes = ref::row_address(store, k.plane, place.page, place.token, head);
          rows.insert(rows.end(), codes, codes + bytes(c.t, 48));
          if (c.g != ScaleGranularity::token_head && c.g != ScaleGranularity::block) continue;
          const unsigned char* scale = ref::row_address(store, k.plane.scales, place.page, place.token, head);
          rows.insert(rows.end(), scale,
                      scale + (c.g == ScaleGranularity::token_head ? 4 : (48 + scale_block(c.t) - 1) / scale_block(c.t)));
        }
      }
      results.push_back(rows);
    }
    EXPECT_TRUE(results[0] == results[1] && results[0] == results[2]) << name(c.t);
  }
}

TEST(Append, F04_TokenHeadScalesDecodeToTheSource) {
  // Rows of very different magnitudes: one scale per token and head must serve each. Scales beside the codes (inline) and apart.
  for (const DType t : {DType::e4m3, DType::e5m2, DType::i8}) {
    for (const bool inline_scales : {false, true}) {
      const std::int64_t dim = 128, heads = 4, page_size = 4, row = dim + (inline_scales ? 4 : 0);
      std::vector<unsigned char> codes(static_cast<std::size_t>(16 * page_size * heads * row), 0xff), scales(codes.size(), 0xff);
      KvPlane k{.data = codes.data(),
                .dtype = t,
                .page_byte_stride = page_size * heads * row,
                .token_byte_stride = heads * row,
                .head_byte_stride = row};
      k.scales.granularity = ScaleGranularity::token_head;
      k.scales.data = inline_scales ? codes.data() + dim : scales.data();
      k.scales.page_byte_stride = inline_scales ? k.page_byte_stride : page_size * heads * 4;
      k.scales.token_byte_stride = inline_scales ? k.token_byte_stride : heads * 4;
      k.scales.head_byte_stride = inline_scales ? k.head_byte_stride : 4;
      const KvStore store{.page_size = page_size, .num_pages = 16, .k = k};
      const Table table(page_size, 16, false);
      Source k_new(DType::f32, 10, heads, dim, 31);
      for (std::int64_t i = 0; i < k_new.view.numel(); ++i) {
        const float magnitude = std::ldexp(1.0F, static_cast<int>(i / dim % 40) * 2 - 40);
        store_element(DType::f32, k_new.memory.data(), i, magnitude * load_element(DType::f32, k_new.memory.data(), i));
      }
      append(context(), store, table.batch, k_new.view, {}, {});
      for (std::int64_t token = 0; token < 10; ++token) {
        const Place place = place_of(store, table.batch, token);
        for (std::int64_t head = 0; head < heads; ++head) {
          for (std::int64_t d = 0; d < dim; ++d) {
            const double x = static_cast<double>(source_at(k_new.view, token, head, d));
            const double scale = ref::scale_of(store, k, place.page, place.token, head, d);
            const double step = t == DType::i8 ? scale / 2 : std::fabs(x) * (t == DType::e4m3 ? 1.0 / 16 : 1.0 / 8) + scale * 1e-3;
            ASSERT_NEAR(ref::read_element(store, k, place.page, place.token, head, d), x, step * (1 + 1e-5)) << name(t);
          }
        }
      }
    }
  }
}

TEST(Append, QuantisedEdgeValues) {
  // Row 0 zeros, row 1 tiny (scales underflow), row 2 huge, row 3 with infinities and a NaN, the rest ordinary.
  const std::int64_t dim = 64;
  for (const Case& c : kCases) {
    if (c.g == ScaleGranularity::none) continue;
    Source k_new(DType::f32, 10, 1, dim, 41);
    for (std::int64_t d = 0; d < dim; ++d) {
      store_element(DType::f32, k_new.memory.data(), d, d % 2 == 0 ? 0.0F : -0.0F);
      store_element(DType::f32, k_new.memory.data(), dim + d, d == 3 ? 1e-45F : 0.0F);
      store_element(DType::f32, k_new.memory.data(), 2 * dim + d, d % 2 == 0 ? 3e38F : -3e38F);
    }
    store_element(DType::f32, k_new.memory.data(), 3 * dim + 5, kInf);
    store_element(DType::f32, k_new.memory.data(), 3 * dim + 6, -kInf);
    store_element(DType::f32, k_new.memory.data(), 3 * dim + 7, kNan);
    OwnedPlane k({16, 4, 1, dim}, c.t, c.g, Layout::nhd);
    const KvStore store{.page_size = 4, .num_pages = 16, .k = k.plane};
    const Table table(4, 16, false);
    append(context(), store, table.batch, k_new.view, {}, {});
    const std::string what = std::string(name(c.t)) + " granularity " + std::to_string(static_cast<int>(c.g));
    for (std::int64_t row = 0; row < 4; ++row) {
      const Place place = place_of(store, table.batch, row);
      const auto code = [&](std::int64_t d) { return ref::code_value(store, k.plane, place.page, place.token, 0, d); };
      const auto value = [&](std::int64_t d) { return ref::read_element(store, k.plane, place.page, place.token, 0, d); };
      for (std::int64_t d = 0; d < dim; ++d) {
        if (row == 0) {
          ASSERT_EQ(value(d), 0.0) << what;
        }
        if (row == 1) {
          ASSERT_NEAR(value(d), d == 3 ? 1e-45 : 0.0, 2e-45) << what;
        }
        if (row == 2 && (c.g == ScaleGranularity::token_head || c.t == DType::mxfp4)) {
          ASSERT_NEAR(value(d), d % 2 == 0 ? 3e38 : -3e38, 0.3 * 3e38) << what;
        }
        if (row == 3 && d != 7) {
          ASSERT_TRUE(std::isfinite(value(d))) << what;
        }
      }
      if (row == 3) {
        EXPECT_EQ(code(5), static_cast<double>(largest(c.t))) << what;
        EXPECT_EQ(code(6), -static_cast<double>(largest(c.t))) << what;
        if (c.t == DType::e4m3 || c.t == DType::e5m2) {
          EXPECT_TRUE(std::isnan(code(7))) << what;
        } else {
          EXPECT_EQ(code(7), 0.0) << what;
        }
      }
    }
  }
}

/// Address space of `size` bytes, of which only what is touched takes memory.
class Reservation {
 public:
  explicit Reservation(std::int64_t size) : size_(static_cast<std::size_t>(size)) {
    data_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reservation() {
    if (ok()) munmap(data_, size_);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  std::size_t size_;
  void* data_;
};

TEST(Append, C01_C04_PageIdTimesStrideBeyond32Bits) {
  struct Wide {
    std::int64_t page_byte_stride;
    std::vector<std::int32_t> ids;  // around 2^31 and 2^32 bytes, and far beyond
  };
  const Wide wides[] = {{1002240, {1, 2142, 2143, 4285, 4286, 9000}}, {32768, {1, 65535, 65536, 131071, 131072, 300000}}};
  for (const Wide& wide : wides) {
    const std::int64_t pages = wide.ids.back() + 1;
    const Reservation memory(pages * wide.page_byte_stride);
    if (!memory.ok()) GTEST_SKIP() << "cannot reserve " << pages * wide.page_byte_stride << " bytes of address space";
    const std::int64_t heads = 2, dim = 64, page_size = 16;
    const KvPlane k{.data = memory.data(),
                    .dtype = DType::bf16,
                    .page_byte_stride = wide.page_byte_stride,
                    .token_byte_stride = 2 * heads * dim,
                    .head_byte_stride = 2 * dim};
    const KvStore store{.page_size = page_size, .num_pages = pages, .k = k};
    const Source k_new(DType::bf16, 6, heads, dim, 51);
    const std::vector<std::int32_t> append_indptr{0, 1, 2, 3, 4, 5, 6}, kv_len(6, 16), indptr{0, 1, 2, 3, 4, 5, 6};
    const AppendBatch batch{.append_indptr = append_indptr, .kv_len = kv_len, .kv_indices = wide.ids, .kv_indptr = indptr};
    append(context(), store, batch, k_new.view, {}, {});
    for (std::size_t i = 0; i < wide.ids.size(); ++i) {
      const char* row = memory.data() + static_cast<std::int64_t>(wide.ids[i]) * wide.page_byte_stride + 15 * 2 * heads * dim;
      EXPECT_EQ(std::memcmp(row, k_new.memory.data() + i * 2 * heads * dim, 2 * heads * dim), 0) << wide.ids[i];
    }
    const std::vector<PageCopy> copies{{wide.ids[4], 0}, {wide.ids[1], wide.ids[5] - 1}};
    copy_pages(context(), store, heads, dim, 0, 0, copies);
    for (const PageCopy& copy : copies) {
      EXPECT_EQ(std::memcmp(memory.data() + copy.source * wide.page_byte_stride, memory.data() + copy.destination * wide.page_byte_stride,
                            page_size * 2 * heads * dim),
                0);
    }
    EXPECT_EQ(std::memcmp(memory.data() + 15 * 2 * heads * dim, k_new.memory.data() + 4 * 2 * heads * dim, 2 * heads * dim), 0);
  }
}

TEST(CopyPages, CopiesElementsAndScalesAndNothingElse) {
  for (const Case& c : kCases) {
    for (const Layout layout : kLayouts) {
      const Geometry g{9, 5, 3, 36};
      OwnedPlane k(g, c.t, c.g, layout), rope({9, 5, 3, 8}, DType::bf16, ScaleGranularity::none, Layout::spaced), v(g, c.t, c.g, layout);
      std::mt19937 random(61);
      for (OwnedPlane* plane : {&k, &rope, &v}) {
        for (unsigned char& b : plane->data) b = static_cast<unsigned char>(random());
        if (c.g == ScaleGranularity::token_head || c.g == ScaleGranularity::block) {
          for (unsigned char& b : plane->scales) b = static_cast<unsigned char>(random());
        }
      }
      const KvStore store{.page_size = 5, .num_pages = 9, .k = k.plane, .k_rope = rope.plane, .v = v.plane};
      const std::vector<PageCopy> copies{{2, 0}, {2, 8}, {5, 5}, {4, 3}};
      std::vector<std::vector<unsigned char>> data, scales;
      for (const OwnedPlane* plane : {&k, &rope, &v}) data.push_back(plane->data), scales.push_back(plane->scales);
      copy_pages(context(), store, 3, 36, 8, 36, copies);
      std::size_t i = 0;
      for (const OwnedPlane* plane : {&k, &rope, &v}) {
        const std::int64_t element = bits(plane->plane.dtype) == 4 ? 1 : bits(plane->plane.dtype) / 8;
        const bool four_bit = bits(plane->plane.dtype) == 4;
        const ScaleGranularity granularity = plane->plane.scales.granularity;
        for (const PageCopy& copy : copies) {
          for (std::int64_t token = 0; token < 5; ++token) {
            for (std::int64_t head = 0; head < 3; ++head) {
              const std::int64_t from = ref::row_address(store, plane->plane, copy.source, token, head) - plane->data.data();
              const std::int64_t to = ref::row_address(store, plane->plane, copy.destination, token, head) - plane->data.data();
              const std::int64_t step = plane->plane.dim_byte_stride != 0 ? plane->plane.dim_byte_stride : element;
              for (std::int64_t d = 0; d < (four_bit ? bytes(plane->plane.dtype, plane->g.dim) : plane->g.dim); ++d) {
                std::copy_n(data[i].begin() + from + d * step, element, data[i].begin() + to + d * step);
              }
              if (granularity != ScaleGranularity::token_head && granularity != ScaleGranularity::block) continue;
              const std::int64_t size = four_bit ? (36 + scale_block(c.t) - 1) / scale_block(c.t) : 4;
              const std::int64_t scale_from = ref::row_address(store, plane->plane.scales, copy.source, token, head) - plane->scales.data();
              const std::int64_t scale_to =
                  ref::row_address(store, plane->plane.scales, copy.destination, token, head) - plane->scales.data();
              std::copy_n(scales[i].begin() + scale_from, size, scales[i].begin() + scale_to);
            }
          }
        }
        ASSERT_TRUE(plane->data == data[i]) << name(plane->plane.dtype) << " layout " << static_cast<int>(layout);
        ASSERT_TRUE(plane->scales == scales[i]) << name(plane->plane.dtype) << " layout " << static_cast<int>(layout);
        ++i;
      }
    }
  }
}

TEST(AppendPositions, EveryTokenHasItsRequestAndPosition) {
  const AppendPositions got = append_positions(std::vector<std::int32_t>{0, 2, 2, 5}, std::vector<std::int64_t>{7, 4, 3});
  EXPECT_EQ(got.batch_indices, (std::vector<std::int32_t>{0, 0, 2, 2, 2}));
  EXPECT_EQ(got.positions, (std::vector<std::int64_t>{5, 6, 0, 1, 2}));
  EXPECT_TRUE(append_positions(std::vector<std::int32_t>{0}, {}).positions.empty());
}

TEST(Append, EmptyBatchesWriteNothing) {
  OwnedPlane k({4, 4, 1, 8}, DType::f32, ScaleGranularity::none, Layout::nhd);
  const KvStore store{.page_size = 4, .num_pages = 4, .k = k.plane};
  const auto before = k.data;
  const std::vector<std::int32_t> none{0}, two{0, 0, 0}, lens{100, 0}, wild{-1};
  append(context(), store, {.append_indptr = none}, TensorView(nullptr, DType::f32, {0, 1, 8}), {}, {});
  append(context(), store, {.append_indptr = two, .kv_len = lens, .kv_indices = wild, .kv_indptr = two},
         TensorView(nullptr, DType::f32, {0, 1, 8}), {}, {});
  copy_pages(context(), store, 1, 8, 0, 0, {});
  EXPECT_TRUE(k.data == before);
}

/// Rows that a table sends to places, and one of it that goes nowhere, against the batch that means the same; then every fault of a table.
TEST(Append, TablesSendRowsToTheirPlaces) {
  const Geometry g{5, 4, 2, 8};
  const Source rows{DType::f32, 6, g.heads, g.dim, 3};
  const std::vector<std::int32_t> indptr{0, 2, 5}, lens{5, 3}, pages{3, 0, 4}, table_begin{0, 2, 3};
  OwnedPlane want(g, DType::f32, ScaleGranularity::none, Layout::nhd);
  KvStore store{.page_size = 4, .num_pages = 5, .k = want.plane};
  append(context(), store, {.append_indptr = indptr, .kv_len = lens, .kv_indices = pages, .kv_indptr = table_begin}, rows.view, {}, {});

  std::vector<std::int32_t> requests{0, 0, 1, 1, 1, -1}, positions{3, 4, 0, 1, 2, 9}, ids = pages;
  std::vector<std::int64_t> begin{0, 2, 3}, slots{15, 0, 16, 17, 18, -1};
  const auto ints = [](auto& v) { return TensorView(v.data(), sizeof(v[0]) == 4 ? DType::i32 : DType::i64, {std::ssize(v)}); };
  const auto by_requests = [&] {
    return AppendTable{.batch_indices = ints(requests), .positions = ints(positions), .kv_indptr = ints(begin), .kv_indices = ints(ids)};
  };
  OwnedPlane got(g, DType::f32, ScaleGranularity::none, Layout::nhd);
  const auto empty = got.data;
  store.k = got.plane;
  append(context(), store, by_requests(), rows.view, {}, {});
  EXPECT_TRUE(got.data == want.data);
  got.data = empty;
  append(context(), store, AppendTable{.slots = ints(slots)}, rows.view, {}, {});
  EXPECT_TRUE(got.data == want.data);

  got.data = empty;
  const auto refused = [&](const AppendTable& table, const std::string& part) {
    try {
      append(context(), store, table, rows.view, {}, {});
      ADD_FAILURE() << "no error; expected one about " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_TRUE(got.data == empty) << part;
  };
  const auto with = [&](auto& where, std::size_t i, std::int64_t value, const std::string& part) {
    const auto kept = where;
    where[i] = static_cast<typename std::decay_t<decltype(where)>::value_type>(value);
    refused(&where == static_cast<void*>(&slots) ? AppendTable{.slots = ints(slots)} : by_requests(), part);
    where = kept;
  };
  with(requests, 1, 2, "batch_indices[1]=2; kv_indptr is of 2 requests");
  with(positions, 1, 8, "positions[1]=8 of request 0, whose list has 2 pages");
  with(positions, 0, -1, "positions[0]=-1");
  with(begin, 2, 4, "kv_indptr[1..2]=2, 4");
  with(begin, 0, -1, "kv_indptr[0..1]=-1, 2");
  with(ids, 2, 5, "kv_indices[2]=5 (request 1)");
  with(positions, 1, 3, "rows 0 and 1 go to the same place");
  with(slots, 0, 20, "slots[0]=20 lies outside");
  with(slots, 0, 16, "go to the same place");
  refused({.slots = ints(slots), .positions = ints(positions)}, "positions is given beside slots");
  refused({.batch_indices = ints(requests)}, "positions has rank 0");
  AppendTable table = by_requests();
  table.positions.shape[0] = 5;
  refused(table, "positions has 5 entries; must have 6");
  table = by_requests();
  table.kv_indices = ints(slots);
  refused(table, "kv_indices is i64; must be i32");
  table = by_requests();
  table.positions.strides[0] = 2;
  refused(table, "positions has stride 2");
  table = {.slots = ints(slots)};
  table.slots.dtype = DType::f32;
  refused(table, "slots is f32");
}

/// A good call that each test spoils in one place.
struct Good {
  OwnedPlane k{{16, 4, 2, 32}, DType::e4m3, ScaleGranularity::token_head, Layout::nhd};
  OwnedPlane v{{16, 4, 2, 32}, DType::bf16, ScaleGranularity::none, Layout::hnd};
  Table table{4, 16, false};
  Source k_new{DType::f32, 10, 2, 32, 1}, v_new{DType::f32, 10, 2, 32, 2};
  KvStore store{.page_size = 4, .num_pages = 16, .k = k.plane, .v = v.plane};
  AppendBatch batch = table.batch;
  TensorView k_view = k_new.view, k_rope{}, v_view = v_new.view;
  std::vector<PageCopy> copies{{1, 2}};
};

void expect_refused(Code code, const std::string& op, const std::string& part, const std::function<void(Good&)>& spoil) {
  Good good;
  spoil(good);
  const auto k_data = good.k.data, k_scales = good.k.scales, v_data = good.v.data;
  try {
    if (op == "append") {
      append(context(), good.store, good.batch, good.k_view, good.k_rope, good.v_view);
    } else {
      copy_pages(context(), good.store, 2, 32, 0, 32, good.copies);
    }
    ADD_FAILURE() << "no error; expected one about " << part;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), code) << text;
    EXPECT_EQ(text.rfind(op + ": ", 0), 0U) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_TRUE(good.k.data == k_data && good.k.scales == k_scales && good.v.data == v_data) << "written before the refusal: " << part;
}

TEST(Append, GoodCallIsAccepted) {
  Good good;
  EXPECT_NO_THROW(append(context(), good.store, good.batch, good.k_view, good.k_rope, good.v_view));
  EXPECT_NO_THROW(copy_pages(context(), good.store, 2, 32, 0, 32, good.copies));
}

TEST(Append, BadBatchesAreRefused) {
  const Code bad = Code::invalid_argument;
  static const std::vector<std::int32_t> from_one{1, 7, 7, 10}, falls{0, 7, 6, 10}, two{0, 7}, fewer{0, 3, 4}, lens{11, 3, 2},
      short_table{0, 2, 3, 5};
  static const std::vector<std::int32_t> past{0, 4, 6, 400}, backwards{0, 4, 2, 8};
  static const std::vector<std::int64_t> huge{std::int64_t{1} << 62, 3, 3};
  const auto refused = [&](const std::string& part, const std::function<void(Good&)>& spoil) {
    expect_refused(bad, "append", part, spoil);
  };
  refused("append_indptr is empty", [](Good& g) { g.batch.append_indptr = {}; });
  refused("append_indptr[0]=1", [](Good& g) { g.batch.append_indptr = from_one; });
  refused("append_indptr[2]=6 < append_indptr[1]=7", [](Good& g) { g.batch.append_indptr = falls; });
  refused("kv_len has 3 entries", [](Good& g) { g.batch.append_indptr = two; });
  refused("kv_len[2]=2 < 3", [](Good& g) { g.batch.kv_len = lens; });
  refused("kv_len[0]=4611686018427387904 needs", [](Good& g) { g.batch.kv_len = huge; });
  refused("kv_len[0]=11 needs 3 table entries; the table gives 2", [](Good& g) { g.batch.kv_indptr = short_table; });
  refused("kv_indptr has 3 entries", [](Good& g) { g.batch.kv_indptr = fewer; });
  refused("kv_indptr[3]=400", [](Good& g) { g.batch.kv_indptr = past; });
  refused("kv_indptr[2]=2 < 4", [](Good& g) { g.batch.kv_indptr = backwards; });
  refused("neither kv_indptr nor table_stride", [](Good& g) { g.batch.kv_indptr = {}; });
  refused("both given", [](Good& g) { g.batch.table_stride = 4; });
  refused("table_stride=-4", [](Good& g) { g.batch.kv_indptr = {}, g.batch.table_stride = -4; });
  refused("the table gives 2", [](Good& g) { g.batch.kv_indptr = {}, g.batch.table_stride = 2; });
  refused("table row 2", [](Good& g) { g.batch.kv_indptr = {}, g.batch.table_stride = std::int64_t{1} << 62; });
  refused("kv_indices[2]=16", [](Good& g) { g.table.indices[2] = 16; });
  refused("kv_indices[1]=-1", [](Good& g) { g.table.indices[1] = -1; });
  refused("same place", [](Good& g) { g.table.indices[6] = g.table.indices[1]; });
  refused("same place", [](Good& g) { g.table.indices[2] = g.table.indices[1]; });
}

TEST(Append, BadTensorsAndPlanesAreRefused) {
  const Code bad = Code::invalid_argument;
  const auto refused = [&](const std::string& part, const std::function<void(Good&)>& spoil) {
    expect_refused(bad, "append", part, spoil);
  };
  refused("k has rank 0", [](Good& g) { g.k_view = {}; });
  refused("k is i8", [](Good& g) { g.k_view.dtype = DType::i8; });
  refused("k.shape[0]=9", [](Good& g) { g.k_view.shape[0] = 9; });
  refused("k.data is null", [](Good& g) { g.k_view.data = nullptr; });
  refused("v.shape[1]=1; must be 2", [](Good& g) { g.v_view.shape[1] = 1; });
  refused("v is not given but store.v has memory", [](Good& g) { g.v_view = {}; });
  refused("store.k_rope.data is null", [](Good& g) { g.k_rope = g.v_view, g.store.k_rope.dtype = DType::bf16; });
  refused("store.v has 1025 dims", [](Good& g) { g.v_view.shape[2] = 1025; });
  refused("store.page_size=-1", [](Good& g) { g.store.page_size = -1; });
  refused("store.num_pages=-1", [](Good& g) { g.store.num_pages = -1; });
  refused("store.v.dtype=i64", [](Good& g) { g.store.v.dtype = DType::i64; });
  refused("store.v.scales.granularity=none with dtype e4m3", [](Good& g) { g.store.v.dtype = DType::e4m3; });
  refused("store.k.scales.granularity=token_head with dtype bf16", [](Good& g) { g.store.k.dtype = DType::bf16; });
  refused("store.k.scales.granularity=token_head with dtype nvfp4; must be block", [](Good& g) { g.store.k.dtype = DType::nvfp4; });
  refused("store.k.scales.data is null", [](Good& g) { g.store.k.scales.data = nullptr; });
  refused("store.k.scales.global_scale=0", [](Good& g) { g.store.k.scales.global_scale = 0; });
  refused("store.k.scales.global_scale=nan", [](Good& g) { g.store.k.scales.global_scale = kNan; });
  refused("store.v.scales.global_scale=2", [](Good& g) { g.store.v.scales.global_scale = 2; });
  refused("store.k.head_byte_stride=0", [](Good& g) { g.store.k.head_byte_stride = 0; });
  refused("store.k.token_byte_stride=31", [](Good& g) { g.store.k.token_byte_stride = 31; });
  refused("store.k.page_byte_stride=0", [](Good& g) { g.store.k.page_byte_stride = 0; });
  refused("store.v.dim_byte_stride=1", [](Good& g) { g.store.v.dim_byte_stride = 1; });
  refused("store.k.scales.head_byte_stride=0", [](Good& g) { g.store.k.scales.head_byte_stride = 0; });
  refused("store.k.scales.token_byte_stride=3", [](Good& g) { g.store.k.scales.token_byte_stride = 3; });
  static const float scales[2] = {1.0F, 0.0F};
  refused("store.k.scales[1]=0",
          [](Good& g) { g.store.k.scales = KvScales{.granularity = ScaleGranularity::head, .data = scales, .head_byte_stride = 4}; });
  refused("store.k.dim_byte_stride=1 with dtype mxfp4", [](Good& g) {
    g.store.k.dtype = DType::mxfp4;
    g.store.k.scales.granularity = ScaleGranularity::block;
    g.store.k.dim_byte_stride = 1;
  });
  expect_refused(Code::invalid_argument, "append", "v.device=cuda:0; the context is for cpu",
                 [](Good& g) { g.v_view.device.kind = DeviceKind::cuda; });
}

TEST(CopyPages, BadCopiesAreRefused) {
  const Code bad = Code::invalid_argument;
  const auto refused = [&](const std::string& part, const std::function<void(Good&)>& spoil) {
    expect_refused(bad, "copy_pages", part, spoil);
  };
  refused("copies[0].source=-1", [](Good& g) { g.copies = {{-1, 2}}; });
  refused("copies[1].destination=16", [](Good& g) { g.copies = {{1, 2}, {1, 16}}; });
  refused("page 2 is the destination of two copies", [](Good& g) { g.copies = {{1, 2}, {3, 2}}; });
  refused("page 2 is the destination of one copy and the source of another", [](Good& g) { g.copies = {{1, 2}, {2, 3}}; });
  refused("page 2 is the destination of two copies", [](Good& g) { g.copies = {{1, 2}, {2, 2}}; });
  refused("store.page_size=0", [](Good& g) { g.store.page_size = kEndlessPage; });
  refused("store.v.data is null", [](Good& g) { g.store.v.data = nullptr; });
  refused("store.k_rope has memory but 0 dims", [](Good& g) { g.store.k_rope = g.store.v; });
}

TEST(AppendPositions, BadLengthsAreRefused) {
  const std::vector<std::int64_t> far{0, std::int64_t{1} << 62}, far_len{std::int64_t{1} << 62};
  EXPECT_THROW(append_positions({}, {}), Error);
  EXPECT_THROW(append_positions(std::vector<std::int32_t>{0, 2}, std::vector<std::int32_t>{1}), Error);
  EXPECT_THROW(append_positions(std::vector<std::int32_t>{0, 2}, std::vector<std::int32_t>{2, 2}), Error);
  EXPECT_THROW(append_positions(far, far_len), Error);
}

}  // namespace
}  // namespace girih
