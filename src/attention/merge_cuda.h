// Merging states on a CUDA device (kernels/attention/merge_states.cuh). merge.cc has checked everything but aliasing.
#pragma once

#include <string>
#include <string_view>

#include "girih/attention.h"

namespace girih::attention {

/// Values and LSEs of states. `state_axis`: 1 = v is [row, state, head, dim], 0 = [state, head, dim], -1 = [row, head, dim], one state.
struct StatesView {
  const TensorView* v;
  const TensorView* s;
  int state_axis;
};

/// Generated source of the kernel that merges states of these types; `name` receives its entry. Blocks have kMergeThreads.
std::string merge_source(DType first, DType second, DType out, std::string& name);
inline constexpr int kMergeThreads = 128;

/// Merges `a` and, where given, `b` (one state each); or all states of `a`, by `indptr` where it has states along axis 0.
void merge_on_device(const Context& context, std::string_view op, const StatesView& a, const StatesView* b, Indices indptr,
                     const TensorView& v_out, const TensorView& s_out, bool base2, void* stream);

}  // namespace girih::attention
