// The cache operators' and the merge's kernels under the emulator, against the CPU backend on the same memory: appends and copies byte for
// byte, padding included; merges to the rounding of exp and log.
// ctest: emulated-arch=75
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/merge_states.cuh"
#include "emulator/emulator.h"
#include "girih/page.h"
#include "page/copy_pages.cuh"
#include "rows/pipeline.cuh"

namespace girih {
namespace {

using emulator::launch;

const Context& cpu() {
  static const Context context(ContextOptions{.device = {}, .num_workers = 1});
  return context;
}

/// Values of a type as a host of odd ones, too: zeros, infinities, NaN, tiny and huge.
float draw(std::mt19937_64& random) {
  switch (random() % 24) {
    case 0: return 0.0F;
    case 1: return INFINITY;
    case 2: return -INFINITY;
    case 3: return NAN;
    case 4: return 1e-30F;
    case 5: return -3e4F;
    default: return std::normal_distribution<float>()(random);
  }
}

std::vector<std::byte> draw_tensor(std::mt19937_64& random, DType type, std::int64_t n, bool with_nan = true) {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes(type, n)));
  for (std::int64_t i = 0; i < n; ++i) {
    float x = draw(random);
    if (std::isnan(x) && !with_nan) x = 0.5F;
    const auto b = __builtin_bit_cast(std::uint32_t, x);
    if (type == DType::f32) std::memcpy(out.data() + 4 * i, &x, 4);
    if (type == DType::bf16) std::memcpy(out.data() + 2 * i, reinterpret_cast<const char*>(&b) + 2, 2);
    if (type == DType::f16) {
      const f16 h = from_f32<f16>(x);
      std::memcpy(out.data() + 2 * i, &h, 2);
    }
  }
  return out;
}

constexpr std::int64_t kPages = 7, kPageSize = 4, kHeads = 3;

/// A plane with gaps after every row, and scales where its type has them.
struct PlaneMemory {
  PlaneMemory(DType type, ScaleGranularity granularity, std::int64_t dim) {
    const std::int64_t row = bytes(type, dim) + 3 * bytes(type, 2);
    data.assign(static_cast<std::size_t>(kPages * kPageSize * kHeads * row), std::byte{0xff});
    plane.dtype = type;
    plane.head_byte_stride = row;
    plane.token_byte_stride = row * kHeads;
    plane.page_byte_stride = row * kHeads * kPageSize;
    plane.scales.granularity = granularity;
    if (granularity == ScaleGranularity::none) return;
    plane.scales.global_scale = 0.75F;
    const std::int64_t item = granularity == ScaleGranularity::block         ? (dim + 15) / 16
                              : granularity == ScaleGranularity::token_group ? dim / 128 * 4
                                                                             : 4;
    scales.assign(static_cast<std::size_t>(kPages * kPageSize * kHeads * item), std::byte{0});
    plane.scales.head_byte_stride = item;
    plane.scales.token_byte_stride = item * kHeads;
    plane.scales.page_byte_stride = item * kHeads * kPageSize;
    if (granularity == ScaleGranularity::tensor || granularity == ScaleGranularity::head) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const float scale = 0.03F * static_cast<float>(h + 1);
        std::memcpy(scales.data() + 4 * h, &scale, 4);
      }
    }
  }
  KvPlane view() {
    KvPlane p = plane;
    p.data = data.data();
    if (!scales.empty()) p.scales.data = scales.data();
    return p;
  }
  KvPlane plane{};
  std::vector<std::byte> data, scales;
};

using abi::Elem;
using abi::PartConfig;
using abi::Scaling;

abi::RowsParams append_params(const KvPlane& p, const std::byte* source, DType type, std::int64_t dim) {
  const std::int64_t item = bits(type) / 8;
  abi::RowsParams params{};
  abi::RowPart& part = params.parts[0];
  part.heads = kHeads;
  part.x = {const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(source)), kHeads * dim * item, dim * item, item};
  part.out = {static_cast<unsigned char*>(const_cast<void*>(p.data)), p.token_byte_stride, p.head_byte_stride, bits(p.dtype) / 8};
  part.page_stride = p.page_byte_stride;
  part.scales = static_cast<unsigned char*>(const_cast<void*>(p.scales.data));
  part.scale_page_stride = p.scales.page_byte_stride;
  part.scale_row_stride = p.scales.token_byte_stride;
  part.scale_head_stride = p.scales.head_byte_stride;
  part.scale_block_stride = p.scales.granularity == ScaleGranularity::token_group ? 4 : 1;
  part.global_scale = p.scales.global_scale;
  return params;
}

template <PartConfig kC>
void append_kernel(abi::RowsParams p) {
  rows::run<rows::Parts{kC, 1}>(p);
}

/// A part that takes elements one at a time: sources and planes are not aligned.
constexpr PartConfig append_part(Elem source, Elem target, Scaling scaling, int dim, int heads, bool listed = false) {
  PartConfig c{.x = source, .weight = source, .out = target, .dim = dim};
  const int round = (source == Elem::f32 ? 4 : 8) * c.threads;
  c.vectors = (dim + round - 1) / round;
  c.heads = heads;
  c.paged = true;
  c.listed = listed;
  c.scaling = scaling;
  return c;
}

/// Requests of 1, 5 and 2 new tokens whose keys end at 6, 9 and 2.
struct Batch3 {
  std::vector<std::int64_t> append_indptr{0, 1, 6, 8}, kv_len{6, 9, 2}, kv_indptr{0, 2, 5, 6};
  std::vector<std::int32_t> kv_indices{4, 1, 0, 6, 2, 5, 3};
  AppendBatch view() const {
    AppendBatch batch;
    batch.append_indptr = append_indptr;
    batch.kv_len = kv_len;
    batch.kv_indices = kv_indices;
    batch.kv_indptr = kv_indptr;
    return batch;
  }
  std::vector<abi::TokenPlace> places() const {
    std::vector<abi::TokenPlace> out;
    for (std::size_t r = 0; r < kv_len.size(); ++r) {
      const std::int64_t added = append_indptr[r + 1] - append_indptr[r];
      for (std::int64_t key = kv_len[r] - added; key < kv_len[r]; ++key)
        out.push_back({kv_indices[static_cast<std::size_t>(kv_indptr[r] + key / kPageSize)], key % kPageSize});
    }
    return out;
  }
};

template <Elem kSource, Elem kTarget, Scaling kScaling, int kDim>
void check_append(DType source, DType target, ScaleGranularity granularity) {
  constexpr std::int64_t dim = kDim;
  SCOPED_TRACE(testing::Message() << name(source) << " to " << name(target) << " scale " << static_cast<int>(granularity) << " dim "
                                  << dim);
  std::mt19937_64 random(static_cast<std::uint64_t>(dim));
  const Batch3 batch;
  const std::vector<abi::TokenPlace> places = batch.places();
  // A NaN's payload is not part of any promise: where one 16-bit type becomes another, none is drawn.
  const bool with_nan = source == target || granularity != ScaleGranularity::none;
  std::vector<std::byte> k = draw_tensor(random, source, 8 * kHeads * dim, with_nan);
  PlaneMemory expected(target, granularity, dim);
  PlaneMemory got = expected;
  KvStore store;
  store.page_size = kPageSize;
  store.num_pages = kPages;
  store.k = expected.view();
  append(cpu(), store, batch.view(), TensorView(k.data(), source, {8, kHeads, dim}), {}, {});
  abi::RowsParams p = append_params(got.view(), k.data(), source, dim);
  p.rows = 8;
  p.places = places.data();
  constexpr PartConfig kPart = append_part(kSource, kTarget, kScaling, kDim, kDim > 32 ? kHeads : 1);
  launch(append_kernel<kPart>, p, {.num_blocks = 8 * kHeads / kPart.heads / 4, .num_threads = 128, .shared_bytes = 256, .seed = 3});
  EXPECT_EQ(expected.scales, got.scales);
  EXPECT_EQ(expected.data, got.data);
}
template <Elem kSource, Elem kTarget, Scaling kScaling>
void check_append(DType source, DType target, ScaleGranularity granularity) {
  check_append<kSource, kTarget, kScaling, 8>(source, target, granularity);
  check_append<kSource, kTarget, kScaling, 64>(source, target, granularity);
  check_append<kSource, kTarget, kScaling, 21>(source, target, granularity);
  check_append<kSource, kTarget, kScaling, 130>(source, target, granularity);
}

TEST(PageKernels, AppendWritesTheBytesOfTheCpu) {
  check_append<Elem::bf16, Elem::bf16, Scaling::none>(DType::bf16, DType::bf16, ScaleGranularity::none);
  check_append<Elem::f32, Elem::f32, Scaling::none>(DType::f32, DType::f32, ScaleGranularity::none);
  check_append<Elem::f32, Elem::bf16, Scaling::none>(DType::f32, DType::bf16, ScaleGranularity::none);
  check_append<Elem::bf16, Elem::f16, Scaling::none>(DType::bf16, DType::f16, ScaleGranularity::none);
  check_append<Elem::f16, Elem::e4m3, Scaling::tensor>(DType::f16, DType::e4m3, ScaleGranularity::tensor);
  check_append<Elem::bf16, Elem::e5m2, Scaling::head>(DType::bf16, DType::e5m2, ScaleGranularity::head);
  check_append<Elem::bf16, Elem::i8, Scaling::head>(DType::bf16, DType::i8, ScaleGranularity::head);
  check_append<Elem::bf16, Elem::e4m3, Scaling::row>(DType::bf16, DType::e4m3, ScaleGranularity::token_head);
  check_append<Elem::f32, Elem::e5m2, Scaling::row>(DType::f32, DType::e5m2, ScaleGranularity::token_head);
  check_append<Elem::f16, Elem::i8, Scaling::row>(DType::f16, DType::i8, ScaleGranularity::token_head);
  check_append<Elem::bf16, Elem::nvfp4, Scaling::block>(DType::bf16, DType::nvfp4, ScaleGranularity::block);
  check_append<Elem::f32, Elem::mxfp4, Scaling::block>(DType::f32, DType::mxfp4, ScaleGranularity::block);
  check_append<Elem::bf16, Elem::e4m3, Scaling::block, 512>(DType::bf16, DType::e4m3, ScaleGranularity::token_group);
  check_append<Elem::f32, Elem::i8, Scaling::block, 128>(DType::f32, DType::i8, ScaleGranularity::token_group);
}

/// Places from arrays on the device: by requests and positions, and by slots; what lies outside of a list or of the store goes nowhere.
TEST(PageKernels, AppendByTableFollowsItsArrays) {
  const Batch3 batch;
  constexpr std::int64_t kDim = 16;
  std::mt19937_64 random(4);
  std::vector<std::byte> k = draw_tensor(random, DType::bf16, 16 * kHeads * kDim);
  const std::vector<abi::TokenPlace> places = batch.places();
  PlaneMemory expected(DType::bf16, ScaleGranularity::none, kDim);
  const PlaneMemory before = expected;
  KvStore store;
  store.page_size = kPageSize;
  store.num_pages = kPages;
  store.k = expected.view();
  append(cpu(), store, batch.view(), TensorView(k.data(), DType::bf16, {8, kHeads, kDim}), {}, {});

  // Rows 8 to 13: padding, a request too many, past a list, before one, wild page ids.
  std::vector<std::int32_t> requests{0, 1, 1, 1, 1, 1, 2, 2, -1, 5, 1, 0, 3, 4};
  std::vector<std::int64_t> positions{5, 4, 5, 6, 7, 8, 0, 1, 0, 0, 12, -1, 0, 0};
  std::vector<std::int32_t> kv_indptr{0, 2, 5, 6, 7, 9};
  std::vector<std::int32_t> kv_indices{4, 1, 0, 6, 2, 5, 1 << 30, -3, 0};
  std::vector<std::int64_t> slots;
  for (const abi::TokenPlace& place : places) slots.push_back(place.page * kPageSize + place.token);
  slots.insert(slots.end(), {-1, kPages * kPageSize, std::int64_t{1} << 40});

  abi::RowsParams table{};
  table.page_size = {static_cast<std::uint32_t>(kPageSize), 0x80000000U, 33};
  table.kv_indices = kv_indices.data();
  table.table.num_pages = kPages;
  table.table.num_entries = std::ssize(kv_indices);
  const auto bytes_of = [](const auto& v) { return reinterpret_cast<const unsigned char*>(v.data()); };
  for (const bool by_slots : {false, true}) {
    PlaneMemory got = before;
    abi::RowsParams p = table;
    p.parts[0] = append_params(got.view(), k.data(), DType::bf16, kDim).parts[0];
    if (by_slots) {
      p.table.slots = bytes_of(slots);
      p.table.wide = 1;
      p.rows = std::ssize(slots);
    } else {
      p.table.batch_indices = bytes_of(requests);
      p.table.positions = bytes_of(positions);
      p.table.kv_indptr = bytes_of(kv_indptr);
      p.table.num_requests = 5;
      p.table.wide = 4;
      p.rows = std::ssize(requests);
    }
    constexpr PartConfig kPart = append_part(Elem::bf16, Elem::bf16, Scaling::none, kDim, 1, true);
    const int blocks = static_cast<int>((p.rows * kHeads + 1) / 2);
    launch(append_kernel<kPart>, p, {.num_blocks = blocks, .num_threads = 64, .shared_bytes = 256, .seed = 5});
    EXPECT_EQ(expected.data, got.data) << by_slots;
  }
}

/// Places from a plan's blob: the query tokens are the last keys of their groups.
TEST(PageKernels, AppendByPlanPutsQueryTokensAtTheEndOfTheirLists) {
  const Batch3 batch;
  constexpr std::int64_t kDim = 16;
  struct Blob {
    alignas(64) abi::PlanHeader header{};
    abi::SegmentInfo segment{};
    abi::KvRow rows[4]{};
  } blob;
  blob.header.num_tokens = 10;
  blob.header.segments = {reinterpret_cast<const char*>(&blob.segment) - reinterpret_cast<const char*>(&blob), 1};
  blob.header.kv_rows = {reinterpret_cast<const char*>(blob.rows) - reinterpret_cast<const char*>(&blob), 4};
  blob.segment = {
      .page_size = kPageSize, .num_groups = 4, .num_entries = 6, .kv_row_begin = 0, .num_table_heads = 1, .has_page_pos = 0, .masked = 1};
  for (std::size_t r = 0; r < 3; ++r) {
    blob.rows[r].table_begin = batch.kv_indptr[r];
    blob.rows[r].kv_len = batch.kv_len[r];
    blob.rows[r].q_begin = batch.append_indptr[r];
    blob.rows[r].q_end = batch.append_indptr[r + 1];
  }
  // Two query tokens and one key: the first has no place.
  blob.rows[3] = {.table_begin = 6, .kv_len = 1, .kv_pos = 0, .kv_rope_pos = 0, .q_begin = 8, .q_end = 10};
  std::mt19937_64 random(1);
  std::vector<std::byte> k = draw_tensor(random, DType::bf16, 12 * kHeads * kDim);
  PlaneMemory expected(DType::bf16, ScaleGranularity::none, kDim);
  PlaneMemory got = expected;
  Batch3 four = batch;
  four.append_indptr = {0, 1, 6, 8};
  KvStore store;
  store.page_size = kPageSize;
  store.num_pages = kPages;
  store.k = expected.view();
  append(cpu(), store, four.view(), TensorView(k.data(), DType::bf16, {8, kHeads, kDim}), {}, {});
  const std::size_t row = static_cast<std::size_t>(kHeads * kDim * 2);  // token 9 goes to page 3, place 0
  for (std::int64_t h = 0; h < kHeads; ++h) {
    std::memcpy(expected.data.data() + 3 * expected.plane.page_byte_stride + h * expected.plane.head_byte_stride,
                k.data() + 9 * row + static_cast<std::size_t>(h * kDim * 2), kDim * 2);
  }
  abi::RowsParams p = append_params(got.view(), k.data(), DType::bf16, kDim);
  p.rows = 12;  // two more than the plan has
  p.plan = &blob.header;
  p.kv_indices = batch.kv_indices.data();
  p.page_size = {static_cast<std::uint32_t>(kPageSize), 0x80000000U, 33};
  constexpr PartConfig kPart = append_part(Elem::bf16, Elem::bf16, Scaling::none, kDim, 1);
  launch(append_kernel<kPart>, p, {.num_blocks = 12 * kHeads / 2, .num_threads = 64, .shared_bytes = 256, .seed = 5});
  EXPECT_EQ(expected.data, got.data);
}

void copy_kernel(abi::CopyParams p) { page::run_copy_pages(p); }

TEST(PageKernels, CopyTouchesChunksOnly) {
  std::mt19937_64 random(2);
  // Three pages of [2, 3] chunks of 32 or 5 bytes, with gaps.
  for (const std::int64_t chunk : {32, 5}) {
    std::vector<std::byte> memory(3 * 512);
    for (std::byte& b : memory) b = static_cast<std::byte>(random());
    alignas(16) static std::byte aligned[3 * 512];
    std::memcpy(aligned, memory.data(), memory.size());
    abi::CopyParams p{};
    p.shapes[0] = {reinterpret_cast<unsigned char*>(aligned), 512, chunk, {1, 2, 3}, {0, 256, 48}};
    p.num_shapes = 1;
    p.slices = 1;
    const abi::PagePair pairs[] = {{2, 0}, {1, 1}};
    p.pairs = pairs;
    p.num_pairs = 2;
    launch(copy_kernel, p, {.num_blocks = 2, .num_threads = 64});
    for (std::int64_t a = 0; a < 2; ++a) {
      for (std::int64_t b = 0; b < 3; ++b) {
        const std::int64_t at = a * 256 + b * 48;
        std::memcpy(memory.data() + at, memory.data() + 2 * 512 + at, static_cast<std::size_t>(chunk));
      }
    }
    EXPECT_EQ(0, std::memcmp(memory.data(), aligned, memory.size())) << chunk;
  }
}

template <typename A, typename B, typename Out>
void merge_kernel(abi::MergeParams p) {
  attention::run_merge_states<A, B, Out>(p);
}

/// merge_states of f32: [rows, states, heads, dim].
TEST(PageKernels, MergesAreThoseOfTheCpu) {
  constexpr std::int64_t kRows = 9, kStates = 4, kDim = 40;
  for (const bool base2 : {false, true}) {
    std::mt19937_64 random(7);
    std::vector<float> v(kRows * kStates * kHeads * kDim);
    std::vector<float> s(kRows * kStates * kHeads);
    for (float& x : v) x = std::normal_distribution<float>()(random);
    for (std::size_t i = 0; i < s.size(); ++i) {
      const std::uint64_t kind = random() % 8;
      s[i] = kind == 0 ? -INFINITY : kind == 1 ? -1e30F : 8 * std::normal_distribution<float>()(random);
      if (s[i] == -INFINITY)
        std::fill_n(v.begin() + static_cast<std::ptrdiff_t>(i) * kDim, kDim, NAN);  // an empty state's values count for nothing
    }
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kStates; ++i) {
        s[static_cast<std::size_t>((0 * kStates + i) * kHeads + h)] = -INFINITY;                   // nothing at all
        s[static_cast<std::size_t>((1 * kStates + i) * kHeads + h)] = i == 2 ? 1.25F : -INFINITY;  // one alone
        s[static_cast<std::size_t>((2 * kStates + i) * kHeads + h)] = i < 2 ? INFINITY : 0.0F;     // two with all weight
        s[static_cast<std::size_t>((3 * kStates + i) * kHeads + h)] = i == 3 ? NAN : 0.0F;
      }
    }
    for (float& x : v) {
      if (std::isnan(x) && random() % 2 == 0) x = 0.5F;
    }
    std::vector<float> v_want(kRows * kHeads * kDim), s_want(kRows * kHeads), v_got(v_want.size()), s_got(s_want.size());
    // NaN may only come from where it belongs: give rows 1 to 3 finite values.
    for (std::int64_t i = kStates * kHeads * kDim; i < 4 * kStates * kHeads * kDim; ++i)
      v[static_cast<std::size_t>(i)] = 0.1F * static_cast<float>(i % 17);
    merge_states(cpu(), TensorView(v.data(), DType::f32, {kRows, kStates, kHeads, kDim}),
                 TensorView(s.data(), DType::f32, {kRows, kStates, kHeads}), TensorView(v_want.data(), DType::f32, {kRows, kHeads, kDim}),
                 TensorView(s_want.data(), DType::f32, {kRows, kHeads}), base2);
    abi::MergeParams p{};
    p.states[0] = {.v = reinterpret_cast<const unsigned char*>(v.data()),
                   .s = reinterpret_cast<const unsigned char*>(s.data()),
                   .v_row_stride = kStates * kHeads * kDim * 4,
                   .v_state_stride = kHeads * kDim * 4,
                   .v_head_stride = kDim * 4,
                   .v_dim_stride = 4,
                   .s_row_stride = kStates * kHeads * 4,
                   .s_state_stride = kHeads * 4,
                   .s_head_stride = 4};
    p.v_out = reinterpret_cast<unsigned char*>(v_got.data());
    p.s_out = reinterpret_cast<unsigned char*>(s_got.data());
    p.v_row_stride = kHeads * kDim * 4;
    p.v_head_stride = kDim * 4;
    p.v_dim_stride = 4;
    p.s_row_stride = kHeads * 4;
    p.s_head_stride = 4;
    p.rows = kRows;
    p.num_states = kStates;
    p.heads = kHeads;
    p.dim = kDim;
    p.base2 = base2 ? 1 : 0;
    const auto compare = [&](const char* what) {
      const auto near = [](float a, float b) {
        return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= 2e-6F * (1 + std::fabs(b));
      };
      for (std::size_t i = 0; i < v_want.size(); ++i)
        ASSERT_TRUE(near(v_got[i], v_want[i])) << what << " v " << i << ": " << v_got[i] << ", want " << v_want[i];
      for (std::size_t i = 0; i < s_want.size(); ++i)
        ASSERT_TRUE(near(s_got[i], s_want[i])) << what << " s " << i << ": " << s_got[i] << ", want " << s_want[i];
    };
    launch(merge_kernel<float, float, float>, p, {.num_blocks = 2, .num_threads = 96, .shared_bytes = 0, .seed = 9});
    compare("states");
    // The same by indptr: row i's states are [4 i, 4 i + 4).
    std::vector<std::int64_t> indptr;
    for (std::int64_t i = 0; i <= kRows; ++i) indptr.push_back(i * kStates);
    std::fill(v_got.begin(), v_got.end(), 0.0F);
    p.indptr = indptr.data();
    launch(merge_kernel<float, float, float>, p, {.num_blocks = 1, .num_threads = 32});
    compare("varlen");
  }
}

/// merge_state of two types, in place.
TEST(PageKernels, MergeOfTwoStatesInPlace) {
  constexpr std::int64_t kRows = 3, kDim = 33;
  std::mt19937_64 random(4);
  std::vector<float> a(kRows * kHeads * kDim), s_a(kRows * kHeads), s_b(kRows * kHeads);
  std::vector<std::uint16_t> b(a.size());
  for (float& x : a) x = std::normal_distribution<float>()(random);
  for (std::uint16_t& x : b) x = from_f32<bf16>(std::normal_distribution<float>()(random)).bits;
  for (float& x : s_a) x = std::normal_distribution<float>()(random);
  for (float& x : s_b) x = std::normal_distribution<float>()(random);
  std::vector<float> v_want(a.size()), s_want(s_a.size());
  merge_state(cpu(), TensorView(a.data(), DType::f32, {kRows, kHeads, kDim}), TensorView(s_a.data(), DType::f32, {kRows, kHeads}),
              TensorView(b.data(), DType::bf16, {kRows, kHeads, kDim}), TensorView(s_b.data(), DType::f32, {kRows, kHeads}),
              TensorView(v_want.data(), DType::f32, {kRows, kHeads, kDim}), TensorView(s_want.data(), DType::f32, {kRows, kHeads}));
  abi::MergeParams p{};
  p.states[0] = {reinterpret_cast<const unsigned char*>(a.data()),
                 reinterpret_cast<const unsigned char*>(s_a.data()),
                 kHeads * kDim * 4,
                 0,
                 kDim * 4,
                 4,
                 kHeads * 4,
                 0,
                 4};
  p.states[1] = {reinterpret_cast<const unsigned char*>(b.data()),
                 reinterpret_cast<const unsigned char*>(s_b.data()),
                 kHeads * kDim * 2,
                 0,
                 kDim * 2,
                 2,
                 kHeads * 4,
                 0,
                 4};
  p.v_out = reinterpret_cast<unsigned char*>(a.data());
  p.s_out = reinterpret_cast<unsigned char*>(s_a.data());
  p.v_row_stride = kHeads * kDim * 4;
  p.v_head_stride = kDim * 4;
  p.v_dim_stride = 4;
  p.s_row_stride = kHeads * 4;
  p.s_head_stride = 4;
  p.rows = kRows;
  p.num_states = 1;
  p.heads = kHeads;
  p.dim = kDim;
  p.pair = 1;
  launch(merge_kernel<float, bf16, float>, p, {.num_blocks = 2, .num_threads = 64, .shared_bytes = 0, .seed = 11});
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], v_want[i], 2e-6F * (1 + std::fabs(v_want[i])));
  for (std::size_t i = 0; i < s_a.size(); ++i) ASSERT_NEAR(s_a[i], s_want[i], 2e-6F * (1 + std::fabs(s_want[i])));
}

}  // namespace
}  // namespace girih
