// The C ABI's plain structs as the types of the C++ API and back. Numbers that no enumerator has, extents that overflow and arrays without
// memory are refused here, since the operators cannot be given such values from C++.
#pragma once

#include "c_api/call.h"
#include "girih/attention.h"
#include "girih/page.h"
#include "girih/quantize.h"
#include "variant/program.h"

namespace girih::c_api {

DType dtype(const Call& call, girih_dtype value, const Field& field);
Device device(const Call& call, const girih_device& value, const Field& field);
TensorView tensor(const Call& call, const girih_tensor& value, const Field& field);
/// NULL: not given.
TensorView tensor(const Call& call, const girih_tensor* value, const Field& field);
Indices indices(const Call& call, const girih_indices& value, const Field& field);
Indices indices(const Call& call, const girih_indices* value, const Field& field);
/// A host vector for the caller to read.
girih_indices view_of(const std::vector<std::int64_t>& values);

KvStore kv_store(const Call& call, const girih_kv_store& value, const Field& field);
KvStore kv_store(const Call& call, const girih_kv_store* value, const Field& field);
girih_kv_store to_c(const KvStore& store);
AppendBatch append_batch(const Call& call, const girih_append_batch* value, const Field& field);

Quantization quantization(const Call& call, const girih_quantization& value, const Field& field);
Rope::Llama31 llama31(const girih_llama31& value);

using ParamList = List<ParamValue, variant::Program::kMaxParams>;
ParamList params(const Call& call, const girih_param_value* values, std::int64_t count, const Field& field);

AttentionSpec spec(const Call& call, const girih_attention_spec& value, const Field& field);

}  // namespace girih::c_api
