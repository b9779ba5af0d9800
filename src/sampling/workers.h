// Rows over the workers of a Context: each takes a contiguous share, with memory of its own. Rows are whole, so that the number of workers
// changes no result.
#pragma once

#include <cstdint>

#include "cpu/thread_pool.h"
#include "girih/context.h"

namespace girih::sampling {

/// Calls f(state, row) for every row; make() gives a worker its state.
template <typename Make, typename F>
void for_each_row(const Context& context, std::int64_t rows, const Make& make, const F& f) {
  cpu::ThreadPool& pool = context.pool();
  const std::int64_t workers = pool.num_workers();
  pool.parallel([&](int worker) {
    const std::int64_t begin = rows * worker / workers, end = rows * (worker + 1) / workers;
    if (begin == end) return;
    auto state = make();
    for (std::int64_t r = begin; r < end; ++r) f(state, r);
  });
}

}  // namespace girih::sampling
