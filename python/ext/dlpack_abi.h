// The parts of DLPack 1.x (https://dmlc.github.io/dlpack) that crossing tensors needs, as its ABI lays them out: the tensor, the two
// managed forms that `__dlpack__` capsules hold, and the exchange table that a tensor class offers as `__dlpack_c_exchange_api__`.
#pragma once

#include <cstdint>

namespace girih::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E4m3 = 8,
  kFloat8E4m3Fn = 10,
  kFloat8E5m2 = 12,
  kFloat8E8m0 = 14,
  kFloat4E2m1 = 17,
};

struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // elements; null = row-major
  std::uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* manager;
  void (*deleter)(Managed*);
};

struct Version {
  std::uint32_t major, minor;
};

inline constexpr std::uint64_t kReadOnly = 1;

struct ManagedVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

// Functions return 0, or another number with a Python error set. None of them waits for a device.
struct Exchange {
  Version version;
  Exchange* previous;
  // A tensor of the prototype's dtype, device and shape; on failure calls set_error with the name of a Python exception and its text.
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* text));
  int (*managed_from_object)(void* object, ManagedVersioned** out);
  int (*object_from_managed)(ManagedVersioned* tensor, void** object);
  int (*tensor_from_object)(void* object, Tensor* out);  // what `out` points to lives as long as the object does; may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

}  // namespace girih::python::dlpack
