// The cache operators on a CUDA device, for arguments that are checked: append() as parts of the row operators' pipeline, copy_pages() by a
// kernel of its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "abi/page_params.h"
#include "attention/device_plan.h"
#include "girih/page.h"
#include "page/batch.h"
#include "rows/rows.h"

namespace girih::page {

/// One plane of an append, checked.
struct PlaneSource {
  const KvPlane* plane = nullptr;
  const TensorView* tensor = nullptr;
};

/// The planes as the row operators' parts, without places.
rows::Launch describe_append(std::span<const PlaneSource> planes, std::int64_t num_rows);
/// Generated source of the kernel `copy_pages`, and threads of its blocks.
std::string copy_pages_source();
inline constexpr int kCopyThreads = 512;

void append_on_device(const Context& context, const KvStore& store, std::span<const PlaneSource> planes, std::span<const Piece> pieces,
                      std::int64_t num_rows, void* stream);
void append_planned(const Context& context, const attention::DevicePlanState& plan, const KvStore& store, std::int64_t segment,
                    std::span<const std::int32_t> kv_indices, std::span<const PlaneSource> planes, void* stream);
/// `table` holds pointers to the device and how they are read.
void append_by_table(const Context& context, const KvStore& store, const abi::AppendTable& table, const std::int32_t* kv_indices,
                     std::span<const PlaneSource> planes, std::int64_t num_rows, void* stream);
void copy_on_device(const Context& context, const abi::CopyParams& shapes, std::span<const PageCopy> copies, void* stream);

}  // namespace girih::page
