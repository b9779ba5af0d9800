// See fake_driver.h. One device, an H100 by its numbers. A capture collects the operations of its stream and of streams that have waited
// for an event of the capture; the rules whose breach a real driver reports are checked, and reported by the same codes.
#include "fake_driver.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "abi/tensor_map.h"

namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureUnjoined = 904;
constexpr int kCaptureIsolation = 905;

using Operation = std::function<void()>;

struct GraphData {
  std::vector<Operation> operations;
};
struct StreamData {
  GraphData* capture = nullptr;
  bool origin = false;
  bool joined = true;  // to the origin, since its last operation
};
struct EventData {
  std::int64_t done_after = 0;  // operations of the queue
  GraphData* capture = nullptr;
  StreamData* recorded_on = nullptr;
};
struct FunctionData {
  std::string name;
};
struct ModuleData {
  std::vector<FunctionData*> functions;
};

struct State {
  girih::fake_cuda::Hooks hooks{};
  std::deque<Operation> queue;
  std::int64_t num_queued = 0;  // ever
  std::int64_t num_done = 0;
  std::set<void*> alive;
  std::set<void*> device_memory;
  std::int64_t num_allocations = 0;
  std::int64_t num_waits = 0;
  StreamData default_stream;
  std::vector<StreamData*> streams;
  std::vector<void*> contexts;
};

State& state() {
  static State s;
  return s;
}

void run_until(std::int64_t count) {
  State& s = state();
  while (s.num_done < count) {
    const Operation next = std::move(s.queue.front());
    s.queue.pop_front();
    ++s.num_done;
    next();
  }
}

StreamData& stream_of(void* handle) { return handle == nullptr ? state().default_stream : *static_cast<StreamData*>(handle); }

int add(void* stream, Operation operation) {
  StreamData& s = stream_of(stream);
  if (s.capture != nullptr) {
    s.capture->operations.push_back(std::move(operation));
    if (!s.origin) s.joined = false;
    return 0;
  }
  state().queue.push_back(std::move(operation));
  ++state().num_queued;
  return 0;
}

template <typename T>
int make(void** out) {
  *out = new T;
  state().alive.insert(*out);
  return 0;
}
template <typename T>
int destroy(void* handle) {
  if (state().alive.erase(handle) == 0) return kInvalidHandle;
  delete static_cast<T*>(handle);
  return 0;
}

/// In a capture of this kind nothing that may allocate is allowed.
bool capturing() {
  for (const StreamData* stream : state().streams) {
    if (stream->capture != nullptr) return true;
  }
  return false;
}

struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    char bytes[64];
    int flag;
    std::uint32_t words[3];
  } value;
};
struct LaunchConfig {
  std::uint32_t grid[3];
  std::uint32_t block[3];
  std::uint32_t shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  std::uint32_t num_attributes;
};

}  // namespace

#define GIRIH_FAKE extern "C" __attribute__((visibility("default"))) int

extern "C" {
__attribute__((visibility("default"))) void fake_cuda_set_hooks(const girih::fake_cuda::Hooks* hooks) { state().hooks = *hooks; }
__attribute__((visibility("default"))) std::int64_t fake_cuda_num_alive() { return static_cast<std::int64_t>(state().alive.size()); }
__attribute__((visibility("default"))) std::int64_t fake_cuda_num_queued() { return static_cast<std::int64_t>(state().queue.size()); }
__attribute__((visibility("default"))) std::int64_t fake_cuda_num_allocations() { return state().num_allocations; }
__attribute__((visibility("default"))) std::int64_t fake_cuda_num_waits() { return state().num_waits; }
}

GIRIH_FAKE cuInit(unsigned) { return 0; }
/// NVRTC looks a driver over that it finds, and takes no for an answer.
GIRIH_FAKE cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return 801;
}
GIRIH_FAKE cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
GIRIH_FAKE cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE_DRIVER";
  return 0;
}
GIRIH_FAKE cuGetErrorString(int, const char** text) {
  *text = "a rule of the fake driver";
  return 0;
}
GIRIH_FAKE cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
GIRIH_FAKE cuDeviceGet(int* device, int index) {
  *device = index;
  return index == 0 ? 0 : 101;
}
GIRIH_FAKE cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Fake H100", static_cast<std::size_t>(size));
  return 0;
}
GIRIH_FAKE cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: *value = 9; break;  // compute capability
    case 76: *value = 0; break;
    case 16: *value = 6; break;           // multiprocessors: few, so that small batches are split
    case 97: *value = 227 * 1024; break;  // shared memory of a block
    case 81: *value = 228 * 1024; break;  // of a multiprocessor
    case 38: *value = 50 << 20; break;    // L2
    default: *value = 0; return kInvalidValue;
  }
  return 0;
}
GIRIH_FAKE cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{80} << 30;
  return 0;
}
GIRIH_FAKE cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &state().default_stream;
  return 0;
}
GIRIH_FAKE cuDevicePrimaryCtxRelease_v2(int) { return 0; }
GIRIH_FAKE cuCtxGetCurrent(void** context) {
  *context = state().contexts.empty() ? nullptr : state().contexts.back();
  return 0;
}
GIRIH_FAKE cuCtxPushCurrent_v2(void* context) {
  state().contexts.push_back(context);
  return 0;
}
GIRIH_FAKE cuCtxPopCurrent_v2(void** context) {
  if (state().contexts.empty()) return kInvalidHandle;
  *context = state().contexts.back();
  state().contexts.pop_back();
  return 0;
}
GIRIH_FAKE cuCtxSynchronize() {
  ++state().num_waits;
  run_until(state().num_queued);
  return 0;
}

GIRIH_FAKE cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  if (capturing()) return kCaptureUnsupported;
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return 200;
  return make<ModuleData>(module);
}
GIRIH_FAKE cuModuleUnload(void* module) {
  for (FunctionData* function : static_cast<ModuleData*>(module)->functions) delete function;
  return destroy<ModuleData>(module);
}
GIRIH_FAKE cuModuleGetFunction(void** function, void* module, const char* name) {
  auto* data = new FunctionData{name};
  static_cast<ModuleData*>(module)->functions.push_back(data);
  *function = data;
  return 0;
}
GIRIH_FAKE cuFuncGetAttribute(int* value, int, void*) {
  *value = 0;
  return 0;
}
GIRIH_FAKE cuFuncSetAttribute(void*, int, int) { return 0; }
GIRIH_FAKE cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  *blocks = 1;
  return 0;
}
GIRIH_FAKE cuLaunchKernelEx(const LaunchConfig* config, void* function, void** params, void**) {
  if (state().contexts.empty()) return 201;
  if (config->grid[0] == 0 || config->block[0] == 0 || config->block[0] > 1024 || config->shared_bytes > 227 * 1024) return kInvalidValue;
  if (state().hooks.prepare == nullptr) return add(config->stream, [] {});  // no kernel is known
  constexpr int kClusterDimension = 4;                                      // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
  constexpr int kProgrammaticStreamSerialization = 6;
  int cluster_size = 1;
  bool dependent = false;
  for (std::uint32_t i = 0; i < config->num_attributes; ++i) {
    if (config->attributes[i].id == kClusterDimension) cluster_size = static_cast<int>(config->attributes[i].value.words[0]);
    if (config->attributes[i].id == kProgrammaticStreamSerialization) dependent = config->attributes[i].value.flag != 0;
  }
  void* prepared = state().hooks.prepare({static_cast<FunctionData*>(function)->name.c_str(), params[0], static_cast<int>(config->grid[0]),
                                          static_cast<int>(config->block[0]), config->shared_bytes, cluster_size, dependent});
  return add(config->stream, [prepared] { state().hooks.execute(prepared); });
}

/// The map is the neutral one, which the emulator's kernels read.
GIRIH_FAKE cuTensorMapEncodeTiled(girih::abi::TensorMap* map, int type, std::uint32_t rank, void* data, const std::uint64_t* extents,
                                  const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* steps, int interleave,
                                  int swizzle, int promotion, int fill) {
  girih::abi::TensorBox tensor{.data = data, .extent = {}, .stride = {2}, .box = {}};
  if (type != 1 || rank != 4 || interleave != 0 || swizzle != 3 || promotion < 0 || promotion > 3 || fill != 0) return kInvalidValue;
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0) return kInvalidValue;
  for (std::uint32_t i = 0; i < rank; ++i) {
    if (extents[i] == 0 || extents[i] > (std::uint64_t{1} << 32) || box[i] == 0 || box[i] > 256 || steps[i] != 1) return kInvalidValue;
    if (i > 0 && (strides[i - 1] % 16 != 0 || strides[i - 1] >= (std::uint64_t{1} << 40))) return kInvalidValue;
    tensor.extent[i] = static_cast<std::int64_t>(extents[i]);
    if (i > 0) tensor.stride[i] = static_cast<std::int64_t>(strides[i - 1]);
    tensor.box[i] = static_cast<std::int32_t>(box[i]);
  }
  if (box[0] * 2 > 128) return kInvalidValue;
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &tensor, sizeof(tensor));
  return 0;
}

GIRIH_FAKE cuMemAlloc_v2(std::uint64_t* pointer, std::size_t bytes) {
  if (capturing()) return kCaptureUnsupported;
  if (bytes == 0) return kInvalidValue;
  if (bytes > (std::size_t{1} << 32)) return kOutOfMemory;
  ++state().num_allocations;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xff, bytes);
  state().alive.insert(memory);
  state().device_memory.insert(memory);
  *pointer = reinterpret_cast<std::uint64_t>(memory);
  return 0;
}
GIRIH_FAKE cuMemFree_v2(std::uint64_t pointer) {
  run_until(state().num_queued);  // as the driver's does
  void* memory = reinterpret_cast<void*>(pointer);
  if (state().alive.erase(memory) == 0 || state().device_memory.erase(memory) == 0) return kInvalidValue;
  std::free(memory);
  return 0;
}
GIRIH_FAKE cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  if (capturing()) return kCaptureUnsupported;
  ++state().num_allocations;
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*pointer, 0xff, bytes);
  state().alive.insert(*pointer);
  return 0;
}
GIRIH_FAKE cuMemFreeHost(void* pointer) {
  if (state().alive.erase(pointer) == 0) return kInvalidValue;
  run_until(state().num_queued);
  std::free(pointer);
  return 0;
}
GIRIH_FAKE cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  return add(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}
GIRIH_FAKE cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return add(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
}
GIRIH_FAKE cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
  return add(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
}
GIRIH_FAKE cuMemsetD8Async(std::uint64_t to, unsigned char value, std::size_t bytes, void* stream) {
  return add(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}
GIRIH_FAKE cuPointerGetAttribute(void*, int, std::uint64_t) { return kInvalidValue; }

GIRIH_FAKE cuStreamCreate(void** stream, unsigned) {
  make<StreamData>(stream);
  state().streams.push_back(static_cast<StreamData*>(*stream));
  return 0;
}
GIRIH_FAKE cuStreamDestroy_v2(void* stream) {
  run_until(state().num_queued);
  std::erase(state().streams, static_cast<StreamData*>(stream));
  return destroy<StreamData>(stream);
}
GIRIH_FAKE cuStreamSynchronize(void* stream) {
  if (stream_of(stream).capture != nullptr) return kCaptureUnsupported;
  ++state().num_waits;
  run_until(state().num_queued);
  return 0;
}
GIRIH_FAKE cuStreamWaitEvent(void* stream, void* event, unsigned) {
  StreamData& s = stream_of(stream);
  const EventData& e = *static_cast<EventData*>(event);
  if (s.capture != nullptr && e.capture != s.capture) return kCaptureIsolation;
  if (s.capture == nullptr && e.capture != nullptr) {
    s.capture = e.capture;
    s.origin = false;
  }
  if (s.capture != nullptr && s.origin && e.recorded_on != nullptr) e.recorded_on->joined = true;
  return 0;
}
GIRIH_FAKE cuEventCreate(void** event, unsigned) { return make<EventData>(event); }
GIRIH_FAKE cuEventDestroy_v2(void* event) { return destroy<EventData>(event); }
GIRIH_FAKE cuEventRecord(void* event, void* stream) {
  EventData& e = *static_cast<EventData*>(event);
  e.capture = stream_of(stream).capture;
  e.recorded_on = &stream_of(stream);
  e.done_after = state().num_queued;
  return 0;
}
GIRIH_FAKE cuEventQuery(void* event) {
  const EventData& e = *static_cast<EventData*>(event);
  if (e.capture != nullptr) return kCaptureUnsupported;
  return e.done_after <= state().num_done ? 0 : kNotReady;
}
GIRIH_FAKE cuEventSynchronize(void* event) {
  const EventData& e = *static_cast<EventData*>(event);
  if (e.capture != nullptr) return kCaptureUnsupported;
  ++state().num_waits;
  run_until(e.done_after);
  return 0;
}
GIRIH_FAKE cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1.0F;
  return 0;
}

GIRIH_FAKE cuStreamIsCapturing(void* stream, int* status) {
  *status = stream_of(stream).capture != nullptr ? 1 : 0;
  return 0;
}
GIRIH_FAKE cuStreamBeginCapture_v2(void* stream, int) {
  StreamData& s = stream_of(stream);
  if (stream == nullptr || s.capture != nullptr) return kCaptureUnsupported;
  void* graph = nullptr;
  make<GraphData>(&graph);
  s.capture = static_cast<GraphData*>(graph);
  s.origin = true;
  return 0;
}
GIRIH_FAKE cuStreamEndCapture(void* stream, void** graph) {
  StreamData& s = stream_of(stream);
  if (s.capture == nullptr || !s.origin) return kCaptureUnsupported;
  int result = 0;
  for (StreamData* other : state().streams) {
    if (other->capture != s.capture || other == &s) continue;
    if (!other->joined) result = kCaptureUnjoined;
    other->capture = nullptr;
    other->joined = true;
  }
  *graph = s.capture;
  s.capture = nullptr;
  s.origin = false;
  return result;
}
GIRIH_FAKE cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  make<GraphData>(exec);
  *static_cast<GraphData*>(*exec) = *static_cast<GraphData*>(graph);
  return 0;
}
GIRIH_FAKE cuGraphLaunch(void* exec, void* stream) {
  for (const Operation& operation : static_cast<GraphData*>(exec)->operations) add(stream, operation);
  return 0;
}
GIRIH_FAKE cuGraphDestroy(void* graph) { return destroy<GraphData>(graph); }
GIRIH_FAKE cuGraphExecDestroy(void* graph) { return destroy<GraphData>(graph); }
