// C ABI: version, element types, dense tensors and the context. Callbacks of C get texts that end with a zero byte.
#include "girih/context.h"

#include <algorithm>
#include <utility>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "girih/version.h"

namespace girih::c_api {
namespace {

static_assert(static_cast<int>(CpuTarget::neon) == GIRIH_CPU_NEON && static_cast<int>(CpuTarget::scalar) == GIRIH_CPU_SCALAR);
static_assert(static_cast<int>(LogLevel::warning) == GIRIH_LOG_WARNING);
static_assert(static_cast<int>(JitPolicy::pack_only) + 1 == GIRIH_JIT_PACK_ONLY &&
              static_cast<int>(JitPolicy::allow) + 1 == GIRIH_JIT_ALLOW);

std::vector<std::string> texts(const Call& call, const char* const* given, std::int64_t count, const Field& field) {
  call.check_array(given, count, field);
  std::vector<std::string> list;
  list.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) list.emplace_back(call.text(given[i], Field(field, i)));
  return list;
}

JitOptions jit_options(const Call& call, const girih_jit_options& given, const Field& field) {
  JitOptions jit;
  const auto policy = call.enumerator<int>(given.policy, GIRIH_JIT_PACK_ONLY + 1, Field(field, "policy"));
  if (policy != GIRIH_JIT_DEFAULT) jit.policy = static_cast<JitPolicy>(policy - 1);
  if (given.nvrtc != nullptr) jit.nvrtc = given.nvrtc;
  if (given.cache_dir != nullptr) jit.cache_dir = given.cache_dir;
  if (given.packs != nullptr || given.num_packs != 0) jit.packs = texts(call, given.packs, given.num_packs, Field(field, "packs"));
  jit.nvrtc_options = texts(call, given.nvrtc_options, given.num_nvrtc_options, Field(field, "nvrtc_options"));
  jit.max_threads = given.max_threads;
  return jit;
}

ContextOptions context_options(const Call& call, const girih_context_options& given) {
  const Field field("options");
  ContextOptions options;
  options.device = device(call, given.device, Field(field, "device"));
  options.num_workers = given.num_workers;
  options.target = call.enumerator<CpuTarget>(given.target, GIRIH_CPU_NEON + 1, Field(field, "target"));
  const auto cpus = call.array(given.cpus, given.num_cpus, Field(field, "cpus"));
  options.cpus.assign(cpus.begin(), cpus.end());
  if (given.log != nullptr) {
    options.log = [log = given.log, user = given.log_user](LogLevel level, std::string_view text) {
      log(user, static_cast<girih_log_level>(level), std::string(text).c_str());
    };
  }
  const Field jit(field, "jit");
  options.jit = jit_options(call, call.read_or_defaults(given.jit, jit), jit);
  return options;
}

}  // namespace
}  // namespace girih::c_api

using girih::c_api::Call;
using girih::c_api::guarded;

const char* girih_version(void) { return girih::kVersion; }

void girih_version_numbers(int32_t* major, int32_t* minor, int32_t* patch) {
  if (major != nullptr) *major = girih::kVersionMajor;
  if (minor != nullptr) *minor = girih::kVersionMinor;
  if (patch != nullptr) *patch = girih::kVersionPatch;
}

// The names are literals, which end with a zero byte.
const char* girih_dtype_name(girih_dtype dtype) {
  if (dtype < 0 || dtype > GIRIH_U8) return "invalid dtype";
  return girih::name(static_cast<girih::DType>(dtype)).data();  // NOLINT(bugprone-suspicious-stringview-data-usage)
}

const char* girih_cpu_target_name(girih_cpu_target target) {
  if (target < 0 || target > GIRIH_CPU_NEON) return "invalid target";
  return girih::name(static_cast<girih::CpuTarget>(target)).data();  // NOLINT(bugprone-suspicious-stringview-data-usage)
}

girih_status girih_dtype_from_name(const char* text, girih_dtype* out) {
  return guarded("girih_dtype_from_name", [&](const Call& call) {
    call.out(out, "out") = static_cast<girih_dtype>(girih::dtype_from_name(call.text(text, "text")));
  });
}

girih_status girih_dtype_bits(girih_dtype dtype, int32_t* out) {
  return guarded("girih_dtype_bits",
                 [&](const Call& call) { call.out(out, "out") = girih::bits(girih::c_api::dtype(call, dtype, "dtype")); });
}

girih_status girih_tensor_dense(girih_tensor* out, void* data, girih_dtype dtype, girih_device device, int32_t rank, const int64_t* shape) {
  return guarded("girih_tensor_dense", [&](const Call& call) {
    girih_tensor tensor{};
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.device = device;
    tensor.rank = rank;
    call.check_array(shape, rank, "shape");
    if (rank > GIRIH_MAX_RANK) call.refuse("rank={}; must be in 0..{}", rank, GIRIH_MAX_RANK);
    std::copy_n(shape, rank, tensor.shape);
    girih::c_api::tensor(call, tensor, "tensor");  // so that the strides cannot overflow
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      tensor.strides[i] = stride;
      stride *= std::max<std::int64_t>(shape[i], 1);
    }
    call.out(out, "out") = tensor;
  });
}

girih_status girih_available_cpu_targets(girih_cpu_target* out, int64_t capacity, int64_t* count) {
  return guarded("girih_available_cpu_targets", [&](const Call& call) {
    call.check_array(out, capacity, "out");
    const std::vector<girih::CpuTarget> targets = girih::available_cpu_targets();
    call.out(count, "count") = std::ssize(targets);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(capacity, std::ssize(targets)); ++i) {
      out[i] = static_cast<girih_cpu_target>(targets[static_cast<std::size_t>(i)]);
    }
  });
}

girih_status girih_context_create(const girih_context_options* options, girih_context** out) {
  return guarded("girih_context_create", [&](const Call& call) {
    girih_context*& handle = call.new_handle(out);
    const girih_context_options given = call.read_or_defaults(options, "options");
    handle = new girih_context{.value = girih::Context(girih::c_api::context_options(call, given))};
  });
}

void girih_context_destroy(girih_context* context) { girih::c_api::destroy("girih_context_destroy", context); }

girih_status girih_context_get_info(const girih_context* context, girih_context_info* info) {
  return guarded("girih_context_get_info", [&](const Call& call) {
    const girih::Context& value = call.handle(context, "context").value;
    const girih::Device device = value.device();
    girih_context_info filled{};
    filled.device = {.kind = static_cast<girih_device_kind>(device.kind), .index = device.index};
    filled.num_workers = value.num_workers();
    filled.cpu_target = static_cast<girih_cpu_target>(value.cpu_target());
    call.write(info, filled, "info");
  });
}
