// Where the memory of attention lies and what it holds before, on the emulated GPU: pages, and bits of a mask, beyond 2^31 and 2^32
// elements and bytes; workspaces as other plans leave them; limits larger than the batch. Of memory that far only what is read exists
// (cases/far_memory.h).
// ctest: emulated-kernels emulated-arch=75 timeout=600
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cases/check.h"
#include "cases/far_memory.h"
#include "cases/regressions.h"
#include "emulator/cuda_run.h"
#include "emulator/emulator.h"

namespace girih::emulator {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31;
constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;

cases::AttentionCase case_of(std::string_view name) {
  for (cases::AttentionCase& c : all_cases(kSm)) {
    if (c.name == name) return c;
  }
  throw std::logic_error("no such case: " + std::string(name));
}

/// Families whose kernels for the problem are built in.
std::vector<std::string> families_for(const cases::Problem& p) {
  const variant::Program program = variant::compile(p.c.spec.variant);
  std::vector<std::string> families;
  for (const std::string_view family : families_of(attention::normalise(p.c.spec, program, DeviceKind::cuda), program, kSm)) {
    const auto state = make_schedule(p, family);
    const auto& classes = state->cuda->kernels.classes;
    if (std::all_of(classes.begin(), classes.end(), [](const auto& kernel) { return find_kernel(kernel) != nullptr; }))
      families.emplace_back(family);
  }
  return families;
}

/// The problem's pages at ids from `first` on in a pool whose pages are `stride` bytes apart, K and V one after the other.
class FarPages {
 public:
  FarPages(cases::Problem& p, std::int64_t first, std::int64_t stride) : first_(first) {
    KvStore& store = p.segment_data[0].store;
    const std::byte* near_end = p.memory[0].data.data() + p.memory[0].data.size();
    std::byte* base = reserve(stride, store.num_pages);
    std::int64_t offset = 0;
    for (KvPlane* plane : {&store.k, &store.k_rope, &store.v}) {
      if (plane->data == nullptr) continue;
      const auto* from = static_cast<const std::byte*>(plane->data);
      const std::int64_t last_page = near_end - from - (store.num_pages - 1) * plane->page_byte_stride;
      const std::int64_t bytes = std::min(plane->page_byte_stride, last_page);
      move(from, plane->page_byte_stride, base + offset, stride, bytes, store.num_pages);
      KvScales& scales = plane->scales;
      const auto* scales_from = static_cast<const std::byte*>(scales.data);
      if (scales_from >= from && scales_from < near_end) {  // in the rows
        scales.data = base + offset + (scales_from - from);
        scales.page_byte_stride = stride;
      } else if (scales.page_byte_stride != 0) {
        std::byte* far = reserve(scales.page_byte_stride, store.num_pages);
        move(scales_from, scales.page_byte_stride, far, scales.page_byte_stride, scales.page_byte_stride, store.num_pages);
        scales.data = far;
      }
      plane->data = base + offset;
      plane->page_byte_stride = stride;
      offset += (bytes + 15) / 16 * 16;
    }
    EXPECT_LE(offset, stride);
    ids_.assign(p.segment_data[0].kv_indices.begin(), p.segment_data[0].kv_indices.end());
    for (std::int32_t& id : ids_) id += id >= 0 && id < store.num_pages ? static_cast<std::int32_t>(first) : 0;
    p.segment_data[0].kv_indices = ids_;
    store.num_pages += first;
  }

 private:
  /// Page 0's address.
  std::byte* reserve(std::int64_t stride, std::int64_t num_pages) {
    const auto& memory = memory_.emplace_back(std::make_unique<cases::FarMemory>(first_ * stride, num_pages * stride));
    std::memset(memory->data(), 0xff, static_cast<std::size_t>(num_pages * stride));
    return memory->base();
  }
  void move(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride, std::int64_t bytes,
            std::int64_t num_pages) const {
    for (std::int64_t page = 0; page < num_pages; ++page) std::copy_n(from + page * from_stride, bytes, to + (first_ + page) * to_stride);
  }

  std::int64_t first_;
  std::vector<std::unique_ptr<cases::FarMemory>> memory_;
  std::vector<std::int32_t> ids_;
};

/// The same bits at ids around those whose offset passes 2^31 and 2^32, counted in elements and in bytes, as at the lowest ids.
void expect_same_bits_far_away(const cases::AttentionCase& c, std::int64_t stride, const std::vector<std::int64_t>& more_ids) {
  const cases::Problem near(c);
  const std::vector<ref::RowResult> expected = cases::reference(near);
  const std::vector<std::string> families = families_for(near);
  EXPECT_FALSE(families.empty()) << c.name;
  const std::int64_t item = bits(c.spec.k_dtype) / 8;
  std::vector<std::int64_t> ids = more_ids;
  for (const std::int64_t border : {kTwo31, kTwo32}) {
    for (const std::int64_t size : {stride, stride / item}) ids.push_back(border / size - near.segment_data[0].store.num_pages / 2);
  }
  ids.push_back((std::int64_t{1} << 20) - 7);
  for (const std::string& family : families) {
    const cases::Outputs want = run_family(near, family);
    ASSERT_TRUE(cases::matches(near, expected, want)) << c.name << ' ' << family;
    for (const std::int64_t first : ids) {
      cases::Problem far(c);
      const FarPages pages(far, first, stride);
      EXPECT_EQ(run_family(far, family).all_bits(), want.all_bits()) << c.name << ' ' << family << ", pages from " << first << " on";
    }
  }
}

TEST(EmulatedAddresses, C01_MlaPagesBeyondTwoAndFourBillionElements) {
  cases::AttentionCase c = case_of("mla_one_decode_ps1");
  c.segments[0].page_size = 32;
  c.q_len = {1, 3, 40};
  c.segments[0].kv_len = {90, 33, 64};
  // Pages of 32 rows of 512 and the 64 of RoPE, in 2^16 bytes.
  expect_same_bits_far_away(c, 1 << 16, {131072, 262144 - 1});
}

TEST(EmulatedAddresses, C02_KeysAndValuesOfABlockInOneBuffer) {
  cases::AttentionCase c = case_of("one_tensor_mixed");
  expect_same_bits_far_away(c, 2 * 32768, {65535 - 4});
}

TEST(EmulatedAddresses, C04_PagesOfAllLayers) {
  cases::AttentionCase c = case_of("interleaved_mixed");
  expect_same_bits_far_away(c, 1002240, {2142 - 3});
  expect_same_bits_far_away(c, 2 * 1039680, {2065 - 3});
}

TEST(EmulatedAddresses, C04_ScalesOfFarPages) {
  expect_same_bits_far_away(case_of("kv_i8_token_head_nhd"), 1002240, {2142 - 3});
  if (kSm >= 80) expect_same_bits_far_away(case_of("kv_e5m2_token_head_padded"), 1002240, {2142 - 3});  // in the rows
}

TEST(EmulatedAddresses, C08_BitsOfAMaskBeyondThirtyTwoBits) {
  const cases::Problem near(case_of("custom_mask_run_mixed"));
  const std::vector<std::string> families = families_for(near);
  EXPECT_FALSE(families.empty());
  for (const std::string& family : families) {
    const cases::Outputs want = run_family(near, family);
    ASSERT_TRUE(cases::matches(near, cases::reference(near), want)) << family;
    for (const std::int64_t bits_before : {kTwo31, kTwo32, std::int64_t{1} << 36}) {
      cases::Problem far(near.c);
      std::vector<std::int64_t> starts;
      std::unique_ptr<cases::FarMemory> memory;
      for (ParamValue& value : far.run_params) {
        if (value.name == "custom_mask") {
          memory = std::make_unique<cases::FarMemory>(bits_before / 8, value.array.numel());
          std::memcpy(memory->data(), value.array.data, static_cast<std::size_t>(value.array.numel()));
          value.array.data = memory->base();
          value.array.shape[0] += bits_before / 8;
        } else {
          const auto* first = static_cast<const std::int64_t*>(value.array.data);
          starts.assign(first, first + value.array.numel());
          for (std::int64_t& start : starts) start += bits_before;
          value.array.data = starts.data();
        }
      }
      ASSERT_FALSE(starts.empty());
      EXPECT_EQ(run_family(far, family).all_bits(), want.all_bits()) << family << ", bits from " << bits_before << " on";
    }
  }
}

/// A22, D01: a plan that splits keys between all blocks, then a small one of the same schedule; and infinities instead of NaN.
TEST(EmulatedWorkspace, WhatAnotherPlanLeftDoesNotCount) {
  const cases::Problem large(on_arch(long_decode_case(), kSm));
  const cases::Problem small(on_arch(cases::make_case("small", cases::make_spec(6, 2, 64), {"", {1, 1}, {700, 33}}), kSm));
  for (const std::string& family : families_for(large)) {
    const auto state = make_schedule(large, family);
    const Entries entries = entries_of(*state);
    const auto want = run_emulated(small, state, entries, 0);
    ASSERT_TRUE(cases::matches(small, cases::reference(small), want)) << family;
    DeviceMemory workspace(state->workspace_bytes);
    run_emulated(large, state, entries, 0, workspace.bytes());
    EXPECT_EQ(run_emulated(small, state, entries, 0, workspace.bytes()).all_bits(), want.all_bits()) << family;
    const std::span<std::byte> bytes = workspace.bytes();
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) std::memcpy(bytes.data() + i, &cases::kInfPattern, 4);
    EXPECT_EQ(run_emulated(small, state, entries, 0, workspace.bytes()).all_bits(), want.all_bits()) << family << ", +inf";
  }
}

TEST(EmulatedWorkspace, D14_LimitsOfLengthsChangeNoBit) {
  const cases::Problem p(on_arch(cases::make_case("limits", cases::make_spec(6, 2, 64), {"", {1, 1, 1}, {1300, 700, 33}}), kSm));
  for (const std::string& family : families_for(p)) {
    std::vector<std::vector<std::byte>> want;
    for (const std::int64_t factor : {1, 2, 8}) {
      AttentionLimits limits = p.limits;
      limits.max_kv_len *= factor;
      const auto state = attention::make_cuda_state(emulated_device(kSm), kEmulated.index, p.c.spec, limits, {.family = family});
      const cases::Outputs out = run_emulated(p, state, entries_of(*state), 0);
      if (want.empty()) want = out.all_bits();
      EXPECT_EQ(out.all_bits(), want) << family << ", " << factor << " times as long";
    }
  }
}

TEST(EmulatedWorkspace, D13_LseCostsNoWorkspace) {
  AttentionSpec spec = cases::make_spec(64, 8, 128);
  const AttentionLimits limits{.max_tokens = 16384, .max_requests = 16384, .max_kv_len = 1024};
  const auto bytes = [&] { return attention::make_cuda_state(cuda::example_device(90), 0, spec, limits)->workspace_bytes; };
  const std::int64_t with = bytes();
  spec.lse = LseKind::none;
  EXPECT_LE(with - bytes(), std::int64_t{64} * 16384 * 4);
  EXPECT_LT(with, std::int64_t{1} << 30);
}

/// A25: lengths at multiples of the page size, and a page more than they need, which is a real one that holds NaN.
TEST(EmulatedPages, A25_PageListLongerThanTheLengthNeeds) {
  for (const std::int64_t len : {16, 48}) {
    cases::Problem p(on_arch(cases::make_case("longer", cases::make_spec(6, 2, 64), {"", {1}, {len}}), kSm));
    std::vector<std::int32_t> ids(p.memory[0].kv_indices.begin(), p.memory[0].kv_indices.begin() + len / 16);
    std::int32_t spare = 0;
    while (std::find(ids.begin(), ids.end(), spare) != ids.end()) ++spare;
    ids.push_back(spare);
    const std::vector<std::int64_t> indptr{0, len / 16 + 1};
    p.segments[0].kv_indptr = indptr;
    p.segment_data[0].kv_indices = ids;
    for (const std::string& family : families_for(p))
      EXPECT_TRUE(cases::matches(p, cases::reference(p), run_family(p, family))) << family << ' ' << len;
  }
}

}  // namespace
}  // namespace girih::emulator
