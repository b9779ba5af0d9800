// read_blob() on plans whose bytes were changed. The input is a list of changes to a valid blob: 5 bytes each, a place and what to put
// there. Whatever comes out is refused by a typed error, or was accepted and then every index in it must be in range (ASan sees reads
// beyond the arrays; the walk below touches what run() would).
#include <cstdint>
#include <cstring>
#include <vector>

#include "girih/error.h"
#include "plan_batches.h"

namespace {

struct Original {
  std::shared_ptr<girih::attention::ScheduleState> schedule;
  std::vector<std::byte> blob;
};

Original make_original(bool invariant, bool separate) {
  girih::plan_test::ScheduleForm form;
  form.num_kv_heads = 2;
  form.group = 2;
  form.num_units = 3;
  if (separate) form.num_small_units = 1;
  form.batch_invariant = invariant;
  form.variant.mask = girih::variants::prefix_lm(girih::ParamTime::plan);
  form.limits = {.max_tokens = 64, .max_requests = 8, .max_segments = 2, .max_groups = 16, .max_kv_len = 200};
  Original original;
  original.schedule = girih::plan_test::make_schedule(form);
  girih::attention::PlanState plan(original.schedule);
  girih::plan_test::PlanBatch b = girih::plan_test::simple_batch({12, 1, 3}, {96, 64, 0});
  std::vector<std::int32_t> prefix = {10, 20, 30};
  b.params = {{.name = "prefix_len", .array = girih::TensorView(prefix.data(), girih::DType::i32, {3})}};
  b.segments.push_back(b.segments[0]);
  make_plan(plan, b.batch());
  const auto* bytes = reinterpret_cast<const std::byte*>(plan.view.header);
  original.blob.assign(bytes, bytes + plan.view.header->blob_bytes);
  return original;
}

/// Reads what run() would read by index.
std::int64_t walk(const girih::attention::ScheduleState& schedule, const girih::attention::PlanView& view) {
  std::int64_t sum = 0;
  for (const auto& item : view.items) {
    sum += view.segments[item.segment].page_size + view.kv_rows[static_cast<std::size_t>(item.kv_row)].kv_len;
    if (item.part_row >= 0 && item.part_row + item.row_count > schedule.max_part_rows) __builtin_trap();
  }
  // A GPU's blocks: each part is announced to its merges, and a merge is done when its last part has come.
  std::vector<std::int32_t> waiting;
  for (const auto& merge : view.merges) {
    waiting.push_back(merge.part_count);
    for (std::int32_t i = 0; i < merge.part_count; ++i) {
      const std::int64_t row = view.merge_parts[static_cast<std::size_t>(merge.part_begin + i)].part_row;
      if (row < 0 || row + merge.row_count > schedule.max_part_rows) __builtin_trap();
    }
  }
  for (const auto& item : view.items) {
    if ((item.flags & girih::abi::WorkItem::kLast) == 0 || item.part_row < 0) continue;
    for (std::int32_t m = 0; m < item.merge_count; ++m) --waiting.at(static_cast<std::size_t>(item.merge_begin + m));
  }
  for (const std::int32_t left : waiting) {
    if (left != 0) __builtin_trap();
  }
  const girih::variant::ParamTable params = blob_params(schedule, view);
  for (std::int64_t i = 0; i < params[0].size; ++i) sum += static_cast<const std::int32_t*>(params[0].data)[i];
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Original originals[4] = {make_original(false, false), make_original(true, false), make_original(false, true),
                                        make_original(true, true)};
  if (size == 0) return 0;
  const Original& original = originals[data[0] & 3];
  ++data, --size;
  const std::size_t n = original.blob.size();
  std::vector<std::byte> memory(n + 64);
  std::byte* blob = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  std::memcpy(blob, original.blob.data(), n);
  for (; size >= 5; data += 5, size -= 5) {
    const std::size_t at = (data[0] | data[1] << 8) % n;
    // A byte, or a whole 32-bit number grown or shrunk a little, which gets further than noise does.
    if (data[2] % 2 == 0) {
      blob[at] = static_cast<std::byte>(data[3]);
    } else {
      std::int32_t value = 0;
      const std::size_t word = at / 4 * 4;
      std::memcpy(&value, blob + word, 4);
      value = static_cast<std::int32_t>(static_cast<std::uint32_t>(value) + data[3] - 128U);
      std::memcpy(blob + word, &value, 4);
    }
  }
  try {
    walk(*original.schedule, girih::attention::read_blob(*original.schedule, {blob, n}));
  } catch (const girih::Error&) {}
  return 0;
}
