// The cache operators on a CUDA device: their arguments are checked as on the CPU, then a kernel of kernels/page is compiled for the types
// at hand (once a Context) and launched.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "abi/page_params.h"
#include "attention/device_plan.h"
#include "girih/page.h"
#include "page/batch.h"

namespace girih::page {

/// One plane of an append, checked.
struct PlaneSource {
  const KvPlane* plane = nullptr;
  const TensorView* tensor = nullptr;
};

/// Generated source of the kernel that appends planes of these types; `name` receives its entry.
std::string append_source(std::span<const PlaneSource> planes, std::string& name);
/// Of the kernel `copy_pages`.
std::string copy_pages_source();
/// Threads of a block of either kernel.
inline constexpr int kAppendThreads = 128;
inline constexpr int kCopyThreads = 512;

void append_on_device(const Context& context, const KvStore& store, std::span<const PlaneSource> planes, std::span<const Piece> pieces,
                      std::int64_t rows, void* stream);
void append_planned(const Context& context, const attention::DevicePlanState& plan, const KvStore& store, std::int64_t segment,
                    std::span<const std::int32_t> kv_indices, std::span<const PlaneSource> planes, void* stream);
/// `table` holds pointers to the device and how they are read.
void append_by_table(const Context& context, const KvStore& store, const abi::AppendTable& table, const std::int32_t* kv_indices,
                     std::span<const PlaneSource> planes, std::int64_t rows, void* stream);
void copy_on_device(const Context& context, const abi::CopyParams& shapes, std::span<const PageCopy> copies, void* stream);

}  // namespace girih::page
