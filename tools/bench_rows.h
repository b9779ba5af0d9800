// The cases of `girih bench norm | activation | rope | quant | page`: shapes of decode and prefill steps of served models, on either
// backend.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "girih/context.h"
#include "girih/page.h"
#include "girih/quantize.h"

namespace girih::tools {

/// Memory of a case on the context's device, filled with normally distributed numbers.
class BenchMemory {
 public:
  explicit BenchMemory(const Context& context) : context_(context) {}
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;

  /// A dense tensor; quantised types and scales start as zeros.
  TensorView tensor(DType type, std::initializer_list<std::int64_t> shape);
  TensorView indices(const std::vector<std::int64_t>& values);  ///< i64
  const Context& context() const { return context_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  const Context& context_;
  std::vector<std::unique_ptr<std::byte, Free>> host_;
  std::vector<cuda::DeviceBuffer> device_;
};

/// What is measured: call it with a stream (null on the CPU). Its memory lives as long as it does.
using BenchCall = std::function<void(void* stream)>;

struct RowsBenchCase {
  std::string op, name;
  std::int64_t rows = 0;
  double bytes = 0;  // read and written once
  std::function<BenchCall(BenchMemory& memory)> prepare;
  bool captures = true;  // on a GPU the call may be captured in a graph
};

/// A tensor's scales for a quantisation.
Quantization make_quantization(BenchMemory& m, DType out, QuantScale scale, std::int64_t rows, std::int64_t dim);

/// Appends of equal shares of `rows` new tokens to requests whose lists hold nothing else; by a plan on a GPU and by a batch on the CPU.
class AppendSetup {
 public:
  static constexpr std::int64_t kPageSize = 16;
  AppendSetup(BenchMemory& m, std::int64_t rows, std::int64_t requests);

  AppendBatch batch() const;
  KvStore store() const;  ///< without planes
  /// Dense, [pages, tokens, heads, dim]; 8-bit types with a scale for the tensor, 4-bit with one for each block.
  KvPlane plane(BenchMemory& m, DType type, std::int64_t heads, std::int64_t dim) const;
  std::span<const std::int32_t> pages_on_device() const;

  std::unique_ptr<DevicePlan> on_device;  // on a GPU

 private:
  std::vector<std::int64_t> indptr_, kv_len_, kv_indptr_;
  std::vector<std::int32_t> pages_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<Plan> plan_;
  TensorView pages_view_{};
};

void add_page_cases(std::vector<RowsBenchCase>& all);

/// Of one subcommand ("norm", "activation", "rope", "quant", "page").
std::vector<RowsBenchCase> rows_bench_cases(const std::string& op);

}  // namespace girih::tools
