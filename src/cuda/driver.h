// The NVIDIA driver as found at run time: a typed table of the functions used, loaded by dlopen("libcuda.so.1"). No CUDA headers: handles
// are opaque pointers, enumerations are the driver's documented numbers. A machine without a driver gets a typed error that says what was
// looked for; nothing else of the library needs it. Every call that fails throws: out_of_memory where the driver says so, otherwise
// internal with the driver's name of the error. Calls act on the calling thread's current context: hold a CurrentDevice around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "abi/tensor_map.h"

namespace girih::cuda {

using Stream = void*;           // CUstream; null = the default stream of the context
using Event = void*;            // CUevent
using Module = void*;           // CUmodule
using Function = void*;         // CUfunction
using Graph = void*;            // CUgraph
using GraphExec = void*;        // CUgraphExec
using ContextHandle = void*;    // CUcontext
using Pointer = std::uint64_t;  // CUdeviceptr

/// What kernels and plans are chosen by. Also made by hand, so that schedules and kernels can be prepared for a GPU that is not here.
struct DeviceInfo {
  std::string name;
  int arch = 0;  // compute capability: 75, 80, 86, 89, 90, 100, 120
  int num_sms = 0;
  std::int64_t shared_per_block = 0;  // opt-in limit, bytes
  std::int64_t shared_per_sm = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
};

/// A GPU of that compute capability, for preparing kernels where there is none. Throws invalid_argument, listing example_archs().
DeviceInfo example_device(int arch);
/// 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121: what kernels are compiled for and checked on.
std::vector<int> example_archs();

/// NVRTC's name of the target: 90 -> "sm_90a", 80 -> "sm_80". The architecture-specific one where kernels use its instructions.
std::string nvrtc_arch(int arch);

/// What the driver says of a loaded kernel.
struct FunctionInfo {
  int registers = 0;               // a thread
  int max_threads = 0;             // a block, as compiled
  std::int64_t local_bytes = 0;    // a thread: spills and stack
  std::int64_t static_shared = 0;  // a block
  std::int64_t constant_bytes = 0;
};

/// One launch; grids and blocks are one-dimensional.
struct Launch {
  Function function = nullptr;
  int num_blocks = 0;
  int num_threads = 0;
  std::int64_t shared_bytes = 0;  // dynamic; beyond 48 KiB only after set_max_dynamic_shared()
  Stream stream = nullptr;
  int cluster_size = 1;    // blocks of a cluster (sm_90 and later)
  bool dependent = false;  // programmatic stream serialization: may start while the launch before it drains (sm_90 and later)
};

/// Stateless but for the table itself; shared by everything that uses the driver, from any thread.
class Driver {
 public:
  /// Throws unsupported where there is no driver, or one older than CUDA 12.0, or no device is visible.
  static std::shared_ptr<const Driver> load();
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  int version() const;  // 13000 = supports CUDA 13.0
  int num_devices() const;
  DeviceInfo device_info(int device) const;  // needs no context

  // ---- contexts; see DeviceContext and CurrentDevice
  ContextHandle retain_primary(int device) const;
  void release_primary(int device) const noexcept;
  ContextHandle current_context() const;  // null where the thread has none
  void push_context(ContextHandle context) const;
  void pop_context() const noexcept;
  void synchronize_context() const;

  // ---- modules: `image` is a cubin, or PTX ending in NUL
  Module load_module(const void* image, std::string_view what) const;  // `what` opens the message of an error
  void unload(Module module) const noexcept;
  Function function(Module module, const std::string& name) const;
  FunctionInfo function_info(Function function) const;
  void set_max_dynamic_shared(Function function, std::int64_t bytes) const;
  int max_blocks_per_sm(Function function, int num_threads, std::int64_t shared_bytes) const;
  /// The kernel takes one struct by value: `params` points to it and is read before launch() returns.
  void launch(const Launch& launch, const void* params) const;

  /// The device's form of a tensor: rows of 128 bytes, swizzled so. A pure computation.
  abi::TensorMap encode(const abi::TensorBox& box) const;

  // ---- memory
  Pointer allocate(std::int64_t bytes) const;
  void release(Pointer pointer) const noexcept;
  void* allocate_host(std::int64_t bytes) const;  // pinned
  void release_host(void* pointer) const noexcept;
  void copy_to_device(Pointer to, const void* from, std::int64_t bytes, Stream stream) const;
  void copy_to_host(void* to, Pointer from, std::int64_t bytes, Stream stream) const;
  void copy_on_device(Pointer to, Pointer from, std::int64_t bytes, Stream stream) const;
  void fill(Pointer to, std::uint8_t value, std::int64_t bytes, Stream stream) const;
  /// The device that `pointer` belongs to, or -1 where it is not device (or managed) memory.
  int device_of(const void* pointer) const;

  // ---- streams and events
  Stream create_stream() const;  // does not wait for the default stream
  void destroy(Stream stream) const noexcept;
  void synchronize(Stream stream) const;
  Event create_event(bool timing = false) const;
  void destroy_event(Event event) const noexcept;
  void record(Event event, Stream stream) const;
  void wait(Stream stream, Event event) const;  // the stream waits, not the host
  bool is_done(Event event) const;
  void synchronize_event(Event event) const;
  double elapsed_seconds(Event begin, Event end) const;  // both with timing, both done

  // ---- graphs
  bool is_capturing(Stream stream) const;
  void begin_capture(Stream stream) const;  // thread-local: other threads' calls do not disturb it
  Graph end_capture(Stream stream) const;
  GraphExec instantiate(Graph graph) const;
  void launch_graph(GraphExec graph, Stream stream) const;
  void destroy_graph(Graph graph) const noexcept;
  void destroy_graph_exec(GraphExec graph) const noexcept;

 private:
  struct Table;
  explicit Driver(std::unique_ptr<Table> table);
  void check(int result, std::string_view call) const;
  std::unique_ptr<Table> table_;
};

/// A device's primary context, retained: the one that other libraries of the process (PyTorch) use as well.
class DeviceContext {
 public:
  DeviceContext(std::shared_ptr<const Driver> driver, int device);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const Driver& driver() const { return *driver_; }
  int device() const { return device_; }
  const DeviceInfo& info() const { return info_; }
  ContextHandle handle() const { return handle_; }

 private:
  std::shared_ptr<const Driver> driver_;
  int device_;
  DeviceInfo info_;
  ContextHandle handle_;
};

/// Makes a device current for this thread until the end of the scope, and then the one that was.
class CurrentDevice {
 public:
  explicit CurrentDevice(const DeviceContext& context);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const Driver* driver_;  // null: it was current already
};

/// Device memory that frees itself. Made and freed from any thread.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::shared_ptr<const DeviceContext> context, std::int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  Pointer pointer() const { return pointer_; }
  void* data() const { return reinterpret_cast<void*>(pointer_); }  // NOLINT(performance-no-int-to-ptr): the driver's addresses are numbers
  std::int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const DeviceContext> context_;
  Pointer pointer_ = 0;
  std::int64_t bytes_ = 0;
};

/// Pinned host memory that frees itself.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(std::shared_ptr<const DeviceContext> context, std::int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const DeviceContext> context_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace girih::cuda
