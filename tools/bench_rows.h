// The cases of `girih bench norm | activation | rope | quant`: shapes of decode and prefill steps of served models, on either backend.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "girih/context.h"

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
};

/// Of one subcommand ("norm", "activation", "rope", "quant").
std::vector<RowsBenchCase> rows_bench_cases(const std::string& op);

}  // namespace girih::tools
