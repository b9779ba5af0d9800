// See driver.h. Names with _v2 are those that the driver's own header gives the plain names to; a driver of CUDA 12.0 has them all.
// The library is never closed: the driver's threads outlive every object of ours.
#include "cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <utility>

#include "base/error.h"

namespace girih::cuda {
namespace {

constexpr int kMinVersion = 12000;
constexpr int kOutOfMemory = 2;  // CUDA_ERROR_*
constexpr int kStubLibrary = 34;
constexpr int kNoDevice = 100;
constexpr int kNotReady = 600;

struct LaunchAttribute {  // CUlaunchAttribute
  std::uint32_t id = 0;
  std::uint32_t pad = 0;
  union {
    std::uint32_t words[3];  // cluster dimensions
    int flag;
    std::array<std::uint64_t, 8> bytes;
  } value{.bytes = {}};
};
static_assert(sizeof(LaunchAttribute) == 72);
constexpr std::uint32_t kClusterDimension = 4;  // CU_LAUNCH_ATTRIBUTE_*
constexpr std::uint32_t kProgrammaticStreamSerialization = 6;

struct LaunchConfig {  // CUlaunchConfig
  std::uint32_t grid[3];
  std::uint32_t block[3];
  std::uint32_t shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  std::uint32_t num_attributes;
};
static_assert(sizeof(LaunchConfig) == 56);

}  // namespace

std::string nvrtc_arch(int arch) { return fmt::format("sm_{}{}", arch, arch >= 90 ? "a" : ""); }

struct Driver::Table {
  int version = 0;
  int num_devices = 0;

  int (*init)(unsigned);
  int (*driver_get_version)(int*);
  int (*get_error_name)(int, const char**);
  int (*get_error_string)(int, const char**);
  int (*device_get_count)(int*);
  int (*device_get)(int*, int);
  int (*device_get_name)(char*, int, int);
  int (*device_get_attribute)(int*, int, int);
  int (*device_total_mem)(std::size_t*, int);
  int (*primary_ctx_retain)(ContextHandle*, int);
  int (*primary_ctx_release)(int);
  int (*ctx_get_current)(ContextHandle*);
  int (*ctx_push_current)(ContextHandle);
  int (*ctx_pop_current)(ContextHandle*);
  int (*ctx_synchronize)();
  int (*module_load_data_ex)(Module*, const void*, unsigned, int*, void**);
  int (*module_unload)(Module);
  int (*module_get_function)(Function*, Module, const char*);
  int (*func_load)(Function);  // null before CUDA 12.4
  int (*func_get_attribute)(int*, int, Function);
  int (*func_set_attribute)(Function, int, int);
  int (*occupancy)(int*, Function, int, std::size_t);
  int (*launch_kernel_ex)(const LaunchConfig*, Function, void**, void**);
  int (*tensor_map_encode_tiled)(abi::TensorMap*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*,
                                 const std::uint32_t*, const std::uint32_t*, int, int, int, int);
  int (*mem_alloc)(Pointer*, std::size_t);
  int (*mem_free)(Pointer);
  int (*mem_host_alloc)(void**, std::size_t, unsigned);
  int (*mem_free_host)(void*);
  int (*memcpy_htod_async)(Pointer, const void*, std::size_t, Stream);
  int (*memcpy_dtoh_async)(void*, Pointer, std::size_t, Stream);
  int (*memcpy_dtod_async)(Pointer, Pointer, std::size_t, Stream);
  int (*memset_d8_async)(Pointer, unsigned char, std::size_t, Stream);
  int (*pointer_get_attribute)(void*, int, Pointer);
  int (*stream_create)(Stream*, unsigned);
  int (*stream_destroy)(Stream);
  int (*stream_synchronize)(Stream);
  int (*stream_wait_event)(Stream, Event, unsigned);
  int (*event_create)(Event*, unsigned);
  int (*event_destroy)(Event);
  int (*event_record)(Event, Stream);
  int (*event_query)(Event);
  int (*event_synchronize)(Event);
  int (*event_elapsed_time)(float*, Event, Event);
  int (*stream_is_capturing)(Stream, int*);
  int (*stream_begin_capture)(Stream, int);
  int (*stream_end_capture)(Stream, Graph*);
  int (*graph_instantiate)(GraphExec*, Graph, unsigned long long);
  int (*graph_launch)(GraphExec, Stream);
  int (*graph_destroy)(Graph);
  int (*graph_exec_destroy)(GraphExec);

  void resolve(void* library);
};

void Driver::Table::resolve(void* library) {
  const auto find = [library](auto& slot, const char* name) {
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(dlsym(library, name));
    if (slot == nullptr) {
      fail(Code::unsupported, "cuda", "the NVIDIA driver lacks {}; needs one that supports CUDA 12.0 or later (525.60 or later)", name);
    }
  };
  find(init, "cuInit");
  find(driver_get_version, "cuDriverGetVersion");
  find(get_error_name, "cuGetErrorName");
  find(get_error_string, "cuGetErrorString");
  find(device_get_count, "cuDeviceGetCount");
  find(device_get, "cuDeviceGet");
  find(device_get_name, "cuDeviceGetName");
  find(device_get_attribute, "cuDeviceGetAttribute");
  find(device_total_mem, "cuDeviceTotalMem_v2");
  find(primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  find(primary_ctx_release, "cuDevicePrimaryCtxRelease_v2");
  find(ctx_get_current, "cuCtxGetCurrent");
  find(ctx_push_current, "cuCtxPushCurrent_v2");
  find(ctx_pop_current, "cuCtxPopCurrent_v2");
  find(ctx_synchronize, "cuCtxSynchronize");
  find(module_load_data_ex, "cuModuleLoadDataEx");
  find(module_unload, "cuModuleUnload");
  find(module_get_function, "cuModuleGetFunction");
  func_load = reinterpret_cast<int (*)(Function)>(dlsym(library, "cuFuncLoad"));
  find(func_get_attribute, "cuFuncGetAttribute");
  find(func_set_attribute, "cuFuncSetAttribute");
  find(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(launch_kernel_ex, "cuLaunchKernelEx");
  find(tensor_map_encode_tiled, "cuTensorMapEncodeTiled");
  find(mem_alloc, "cuMemAlloc_v2");
  find(mem_free, "cuMemFree_v2");
  find(mem_host_alloc, "cuMemHostAlloc");
  find(mem_free_host, "cuMemFreeHost");
  find(memcpy_htod_async, "cuMemcpyHtoDAsync_v2");
  find(memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2");
  find(memcpy_dtod_async, "cuMemcpyDtoDAsync_v2");
  find(memset_d8_async, "cuMemsetD8Async");
  find(pointer_get_attribute, "cuPointerGetAttribute");
  find(stream_create, "cuStreamCreate");
  find(stream_destroy, "cuStreamDestroy_v2");
  find(stream_synchronize, "cuStreamSynchronize");
  find(stream_wait_event, "cuStreamWaitEvent");
  find(event_create, "cuEventCreate");
  find(event_destroy, "cuEventDestroy_v2");
  find(event_record, "cuEventRecord");
  find(event_query, "cuEventQuery");
  find(event_synchronize, "cuEventSynchronize");
  find(event_elapsed_time, "cuEventElapsedTime");
  find(stream_is_capturing, "cuStreamIsCapturing");
  find(stream_begin_capture, "cuStreamBeginCapture_v2");
  find(stream_end_capture, "cuStreamEndCapture");
  find(graph_instantiate, "cuGraphInstantiateWithFlags");
  find(graph_launch, "cuGraphLaunch");
  find(graph_destroy, "cuGraphDestroy");
  find(graph_exec_destroy, "cuGraphExecDestroy");
}

// ---------------------------------------------------------------------------------------------------------------- loading, errors

Driver::Driver(std::unique_ptr<Table> table) : table_(std::move(table)) {}
Driver::~Driver() = default;

std::shared_ptr<const Driver> Driver::load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    fail(Code::unsupported, "cuda", "no NVIDIA driver: libcuda.so.1 cannot be loaded ({}); install the driver, or use the CPU backend",
         reason == nullptr ? "no reason given" : reason);
  }
  auto table = std::make_unique<Table>();
  table->resolve(library);
  const int result = table->init(0);
  if (result == kNoDevice || result == kStubLibrary) {
    fail(Code::unsupported, "cuda", "{}",
         result == kNoDevice ? "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES may hide it)"
                             : "libcuda.so.1 is a toolkit's stub, not a driver; install the driver");
  }
  std::shared_ptr<Driver> driver(new Driver(std::move(table)));
  if (result != 0) {
    const char* name = nullptr;
    driver->table_->get_error_name(result, &name);
    fail(Code::unsupported, "cuda", "the NVIDIA driver does not start: {}", name == nullptr ? "unknown error" : name);
  }
  driver->check(driver->table_->driver_get_version(&driver->table_->version), "cuDriverGetVersion");
  if (driver->table_->version < kMinVersion) {
    fail(Code::unsupported, "cuda", "the NVIDIA driver supports CUDA {}.{}; must be 12.0 or later", driver->table_->version / 1000,
         driver->table_->version % 1000 / 10);
  }
  driver->check(driver->table_->device_get_count(&driver->table_->num_devices), "cuDeviceGetCount");
  return driver;
}

void Driver::check(int result, std::string_view call) const {
  if (result == 0) return;
  const char* name = nullptr;
  const char* text = nullptr;
  table_->get_error_name(result, &name);
  table_->get_error_string(result, &text);
  fail(result == kOutOfMemory ? Code::out_of_memory : Code::internal, "cuda", "{} failed: {} ({})", call,
       name == nullptr ? fmt::format("error {}", result) : name, text == nullptr ? "no description" : text);
}

int Driver::version() const { return table_->version; }
int Driver::num_devices() const { return table_->num_devices; }

DeviceInfo Driver::device_info(int device) const {
  if (device < 0 || device >= table_->num_devices) {
    fail(Code::invalid_argument, "cuda", "device.index={}; must be in [0, {}) (GPUs that the driver shows)", device, table_->num_devices);
  }
  int handle = 0;
  check(table_->device_get(&handle, device), "cuDeviceGet");
  const auto attribute = [&](int number) {
    int value = 0;
    check(table_->device_get_attribute(&value, number, handle), "cuDeviceGetAttribute");
    return value;
  };
  std::array<char, 256> name{};
  check(table_->device_get_name(name.data(), static_cast<int>(name.size()) - 1, handle), "cuDeviceGetName");
  std::size_t memory = 0;
  check(table_->device_total_mem(&memory, handle), "cuDeviceTotalMem");
  DeviceInfo info;
  info.name = name.data();
  info.arch = attribute(75) * 10 + attribute(76);  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  info.num_sms = attribute(16);                    // MULTIPROCESSOR_COUNT
  info.shared_per_block = attribute(97);           // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
  info.shared_per_sm = attribute(81);              // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
  info.l2_bytes = attribute(38);                   // L2_CACHE_SIZE
  info.memory_bytes = static_cast<std::int64_t>(memory);
  return info;
}

// ---------------------------------------------------------------------------------------------------------------- contexts

ContextHandle Driver::retain_primary(int device) const {
  int handle = 0;
  check(table_->device_get(&handle, device), "cuDeviceGet");
  ContextHandle context = nullptr;
  check(table_->primary_ctx_retain(&context, handle), "cuDevicePrimaryCtxRetain");
  return context;
}
void Driver::release_primary(int device) const noexcept {
  int handle = 0;
  if (table_->device_get(&handle, device) == 0) table_->primary_ctx_release(handle);
}
ContextHandle Driver::current_context() const {
  ContextHandle context = nullptr;
  check(table_->ctx_get_current(&context), "cuCtxGetCurrent");
  return context;
}
void Driver::push_context(ContextHandle context) const { check(table_->ctx_push_current(context), "cuCtxPushCurrent"); }
void Driver::pop_context() const noexcept {
  ContextHandle context = nullptr;
  table_->ctx_pop_current(&context);
}
void Driver::synchronize_context() const { check(table_->ctx_synchronize(), "cuCtxSynchronize"); }

// ---------------------------------------------------------------------------------------------------------------- modules, launches

Module Driver::load_module(const void* image, std::string_view what) const {
  std::array<char, 4096> log{};         // of the assembler, where the image is PTX
  std::array<int, 2> options = {5, 6};  // CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes numbers as pointers here
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  Module module = nullptr;
  const int result = table_->module_load_data_ex(&module, image, static_cast<unsigned>(options.size()), options.data(), values.data());
  if (result != 0) {
    const std::string_view text(log.data());
    check(result, fmt::format("{}: cuModuleLoadData{}{}", what, text.empty() ? "" : " said: ", text));
  }
  return module;
}
void Driver::unload(Module module) const noexcept { table_->module_unload(module); }

Function Driver::function(Module module, const std::string& name) const {
  Function function = nullptr;
  check(table_->module_get_function(&function, module, name.c_str()), fmt::format("cuModuleGetFunction({})", name));
  // Otherwise the first launch would load it, which may wait for the device and is not allowed in a capture.
  if (table_->func_load != nullptr) check(table_->func_load(function), fmt::format("cuFuncLoad({})", name));
  return function;
}

FunctionInfo Driver::function_info(Function function) const {
  const auto attribute = [&](int number) {
    int value = 0;
    check(table_->func_get_attribute(&value, number, function), "cuFuncGetAttribute");
    return value;
  };
  FunctionInfo info;
  info.max_threads = attribute(0);    // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
  info.static_shared = attribute(1);  // SHARED_SIZE_BYTES
  info.constant_bytes = attribute(2);
  info.local_bytes = attribute(3);
  info.registers = attribute(4);
  return info;
}

void Driver::set_max_dynamic_shared(Function function, std::int64_t bytes) const {
  constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  check(table_->func_set_attribute(function, kMaxDynamicSharedBytes, static_cast<int>(bytes)),
        fmt::format("cuFuncSetAttribute(dynamic shared memory = {} bytes)", bytes));
}

int Driver::max_blocks_per_sm(Function function, int num_threads, std::int64_t shared_bytes) const {
  int blocks = 0;
  check(table_->occupancy(&blocks, function, num_threads, static_cast<std::size_t>(shared_bytes)),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

void Driver::launch(const Launch& launch, const void* params) const {
  std::array<LaunchAttribute, 2> attributes;
  std::uint32_t count = 0;
  if (launch.dependent) {
    attributes[count].id = kProgrammaticStreamSerialization;
    attributes[count++].value.flag = 1;
  }
  if (launch.cluster_size > 1) {
    attributes[count].id = kClusterDimension;
    attributes[count].value.words[0] = static_cast<std::uint32_t>(launch.cluster_size);
    attributes[count].value.words[1] = 1;
    attributes[count++].value.words[2] = 1;
  }
  const LaunchConfig config = {.grid = {static_cast<std::uint32_t>(launch.num_blocks), 1, 1},
                               .block = {static_cast<std::uint32_t>(launch.num_threads), 1, 1},
                               .shared_bytes = static_cast<std::uint32_t>(launch.shared_bytes),
                               .stream = launch.stream,
                               .attributes = count == 0 ? nullptr : attributes.data(),
                               .num_attributes = count};
  void* arguments = const_cast<void*>(params);
  const int result = table_->launch_kernel_ex(&config, launch.function, &arguments, nullptr);
  if (result != 0) {
    check(result, fmt::format("launch of {} blocks of {} threads with {} bytes of shared memory", launch.num_blocks, launch.num_threads,
                              launch.shared_bytes));
  }
}

// ---------------------------------------------------------------------------------------------------------------- memory

Pointer Driver::allocate(std::int64_t bytes) const {
  Pointer pointer = 0;
  const int result = table_->mem_alloc(&pointer, static_cast<std::size_t>(bytes));
  if (result != 0) check(result, fmt::format("cuMemAlloc({} bytes)", bytes));
  return pointer;
}
void Driver::release(Pointer pointer) const noexcept { table_->mem_free(pointer); }

void* Driver::allocate_host(std::int64_t bytes) const {
  constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: pinned for every device
  void* pointer = nullptr;
  const int result = table_->mem_host_alloc(&pointer, static_cast<std::size_t>(bytes), kPortable);
  if (result != 0) check(result, fmt::format("cuMemHostAlloc({} bytes)", bytes));
  return pointer;
}
void Driver::release_host(void* pointer) const noexcept { table_->mem_free_host(pointer); }

void Driver::copy_to_device(Pointer to, const void* from, std::int64_t bytes, Stream stream) const {
  check(table_->memcpy_htod_async(to, from, static_cast<std::size_t>(bytes), stream), "cuMemcpyHtoDAsync");
}
void Driver::copy_to_host(void* to, Pointer from, std::int64_t bytes, Stream stream) const {
  check(table_->memcpy_dtoh_async(to, from, static_cast<std::size_t>(bytes), stream), "cuMemcpyDtoHAsync");
}
void Driver::copy_on_device(Pointer to, Pointer from, std::int64_t bytes, Stream stream) const {
  check(table_->memcpy_dtod_async(to, from, static_cast<std::size_t>(bytes), stream), "cuMemcpyDtoDAsync");
}
void Driver::fill(Pointer to, std::uint8_t value, std::int64_t bytes, Stream stream) const {
  check(table_->memset_d8_async(to, value, static_cast<std::size_t>(bytes), stream), "cuMemsetD8Async");
}

int Driver::device_of(const void* pointer) const {
  constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_*
  constexpr int kDeviceOrdinal = 9;
  constexpr unsigned kHost = 1;  // CU_MEMORYTYPE_HOST
  const auto address = reinterpret_cast<Pointer>(pointer);
  unsigned type = 0;
  int device = -1;
  // Both fail for memory that the driver does not know.
  if (table_->pointer_get_attribute(&type, kMemoryType, address) != 0 || type == kHost) return -1;
  if (table_->pointer_get_attribute(&device, kDeviceOrdinal, address) != 0) return -1;
  return device;
}

// ---------------------------------------------------------------------------------------------------------------- streams, events

Stream Driver::create_stream() const {
  constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
  Stream stream = nullptr;
  check(table_->stream_create(&stream, kNonBlocking), "cuStreamCreate");
  return stream;
}
void Driver::destroy(Stream stream) const noexcept { table_->stream_destroy(stream); }
void Driver::synchronize(Stream stream) const { check(table_->stream_synchronize(stream), "cuStreamSynchronize"); }

Event Driver::create_event(bool timing) const {
  constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
  Event event = nullptr;
  check(table_->event_create(&event, timing ? 0 : kDisableTiming), "cuEventCreate");
  return event;
}
void Driver::destroy_event(Event event) const noexcept { table_->event_destroy(event); }
void Driver::record(Event event, Stream stream) const { check(table_->event_record(event, stream), "cuEventRecord"); }
void Driver::wait(Stream stream, Event event) const { check(table_->stream_wait_event(stream, event, 0), "cuStreamWaitEvent"); }
bool Driver::is_done(Event event) const {
  const int result = table_->event_query(event);
  if (result == kNotReady) return false;
  check(result, "cuEventQuery");
  return true;
}
void Driver::synchronize_event(Event event) const { check(table_->event_synchronize(event), "cuEventSynchronize"); }
double Driver::elapsed_seconds(Event begin, Event end) const {
  float milliseconds = 0;
  check(table_->event_elapsed_time(&milliseconds, begin, end), "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

// ---------------------------------------------------------------------------------------------------------------- graphs

bool Driver::is_capturing(Stream stream) const {
  int status = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  check(table_->stream_is_capturing(stream, &status), "cuStreamIsCapturing");
  return status != 0;
}
void Driver::begin_capture(Stream stream) const {
  constexpr int kThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
  check(table_->stream_begin_capture(stream, kThreadLocal), "cuStreamBeginCapture");
}
Graph Driver::end_capture(Stream stream) const {
  Graph graph = nullptr;
  check(table_->stream_end_capture(stream, &graph), "cuStreamEndCapture");
  return graph;
}
GraphExec Driver::instantiate(Graph graph) const {
  GraphExec exec = nullptr;
  check(table_->graph_instantiate(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  return exec;
}
void Driver::launch_graph(GraphExec graph, Stream stream) const { check(table_->graph_launch(graph, stream), "cuGraphLaunch"); }
void Driver::destroy_graph(Graph graph) const noexcept { table_->graph_destroy(graph); }
void Driver::destroy_graph_exec(GraphExec graph) const noexcept { table_->graph_exec_destroy(graph); }

abi::TensorMap Driver::encode(const abi::TensorBox& box) const {
  constexpr int kUint16 = 1;         // CU_TENSOR_MAP_DATA_TYPE_*
  constexpr int kNotInterleaved = 0;  // CU_TENSOR_MAP_*
  constexpr int kSwizzle128 = 3;
  constexpr int kPromoteToLine = 3;  // 256 bytes
  constexpr int kZeros = 0;
  std::array<std::uint64_t, abi::TensorBox::kDims> extents{};
  std::array<std::uint64_t, abi::TensorBox::kDims - 1> strides{};
  std::array<std::uint32_t, abi::TensorBox::kDims> boxes{};
  std::array<std::uint32_t, abi::TensorBox::kDims> steps{};
  for (std::size_t i = 0; i < extents.size(); ++i) {
    extents[i] = static_cast<std::uint64_t>(box.extent[i]);
    if (i > 0) strides[i - 1] = static_cast<std::uint64_t>(box.stride[i]);
    boxes[i] = static_cast<std::uint32_t>(box.box[i]);
    steps[i] = 1;
  }
  abi::TensorMap map{};
  check(table_->tensor_map_encode_tiled(&map, kUint16, abi::TensorBox::kDims, const_cast<void*>(box.data), extents.data(), strides.data(),
                                        boxes.data(), steps.data(), kNotInterleaved, kSwizzle128, kPromoteToLine, kZeros),
        "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace girih::cuda
