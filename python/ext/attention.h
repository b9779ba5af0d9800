// Attention's descriptions as Python objects: a Segment keeps the host arrays that it points to.
#pragma once

#include <string_view>
#include <vector>

#include "bind.h"
#include "girih/attention.h"
#include "indices.h"
#include "kv_store.h"

namespace girih::python {

struct PySegment {
  IndexArray qo_indptr, kv_indptr, kv_len, kv_pos, page_pos, kv_rope_pos;
  KvSegment segment{};  ///< points into the above, or into what `owner` holds
  nb::object owner{};
};

void bind_attention_spec(nb::module_& m);
void bind_kv_store(nb::module_& m);
void bind_block_sparse(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_attention_run(nb::module_& m);

}  // namespace girih::python
