// C ABI: status codes and error text, element types, tensors, index arrays and the context.
//
// Rules of all parts:
// - A function that can fail returns a girih_status; girih_last_error() has the text. Nothing throws, prints or aborts.
// - Structs of options begin with `struct_size`. Start from X_init(&x, sizeof x), which sets it and every default (the C++ defaults, often
//   not zero). Later versions of the library only add fields at the end: a smaller struct is taken, with defaults for what it lacks; a
//   larger one where what the library does not know is zero.
// - Structs without struct_size (tensors, stores, ...) never change; zeroed they mean "not given". Flags are 0 or 1. `reserved` is 0.
// - A text is UTF-8 and ends with a zero byte. Pointers that are given are read during the call only, unless a comment says otherwise.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): C reads this

#if defined(_WIN32)
#define GIRIH_API
#else
#define GIRIH_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------------------------------- status

typedef int32_t girih_status;
enum {
  GIRIH_OK = 0,
  GIRIH_INVALID_ARGUMENT = 1,  ///< the caller broke a rule that the documentation states
  GIRIH_UNSUPPORTED = 2,       ///< a valid request that this backend or device does not do
  GIRIH_OUT_OF_MEMORY = 3,     ///< a workspace or pool is too small, or an allocation failed
  GIRIH_IO = 4,                ///< a file cannot be read, written or parsed
  GIRIH_INTERNAL = 5,          ///< a fault of the library: please report it
  GIRIH_CANCELLED = 6,         ///< a callback of the caller asked to stop
};

/// "ok", "invalid_argument", ...; "unknown status" for other numbers. Static memory.
GIRIH_API const char* girih_status_name(girih_status status);
/// What went wrong in the last call of this thread that failed: operator, argument, value, rule, remedy. "" before the first. Valid until
/// the thread's next call that fails; calls that succeed leave it.
GIRIH_API const char* girih_last_error(void);

/// "0.1.0". Static memory.
GIRIH_API const char* girih_version(void);
/// The three numbers of the version; each may be NULL.
GIRIH_API void girih_version_numbers(int32_t* major, int32_t* minor, int32_t* patch);

// ---------------------------------------------------------------------------------------------------------------- tensors

typedef int32_t girih_dtype;
enum {
  GIRIH_F32 = 0,
  GIRIH_F16 = 1,
  GIRIH_BF16 = 2,
  GIRIH_E4M3 = 3,
  GIRIH_E5M2 = 4,
  GIRIH_I8 = 5,
  GIRIH_NVFP4 = 6,  ///< e2m1 codes in blocks of 16 with e4m3 scales; two codes to a byte, the even element in the low nibble
  GIRIH_MXFP4 = 7,  ///< e2m1 codes in blocks of 32 with e8m0 scales (OCP MX 1.0)
  GIRIH_I32 = 8,
  GIRIH_I64 = 9,
  GIRIH_U8 = 10,
};
/// "f32", "bf16", ...; "invalid dtype" for other numbers. Static memory.
GIRIH_API const char* girih_dtype_name(girih_dtype dtype);
/// The inverse. invalid_argument lists the names.
GIRIH_API girih_status girih_dtype_from_name(const char* text, girih_dtype* out);
/// Bits of one element: 32, 16, 8, 4 or 64.
GIRIH_API girih_status girih_dtype_bits(girih_dtype dtype, int32_t* out);

typedef int32_t girih_device_kind;
enum { GIRIH_CPU = 0, GIRIH_CUDA = 1 };

typedef struct girih_device {
  girih_device_kind kind;
  int32_t index;  ///< 0 on the CPU
} girih_device;

enum { GIRIH_MAX_RANK = 6 };

/// A view of memory that the caller owns. Extents are >= 0 and their product fits 64 bits.
typedef struct girih_tensor {
  void* data;
  girih_dtype dtype;
  int32_t rank;  ///< 0 (and data NULL): not given
  girih_device device;
  int64_t shape[GIRIH_MAX_RANK];
  int64_t strides[GIRIH_MAX_RANK];  ///< in elements; of a dimension of extent 1: any
} girih_tensor;

/// A dense row-major view of `shape` [rank].
GIRIH_API girih_status girih_tensor_dense(girih_tensor* out, void* data, girih_dtype dtype, girih_device device, int32_t rank,
                                          const int64_t* shape);

/// An array of host integers: offsets, lengths, positions.
typedef struct girih_indices {
  const void* data;  ///< int32_t or int64_t [size]
  int64_t size;
  int32_t bits;  ///< 32 or 64; 0 (and data NULL): not given
  int32_t reserved;
} girih_indices;

// ---------------------------------------------------------------------------------------------------------------- context

typedef int32_t girih_cpu_target;
enum {
  GIRIH_CPU_BEST = 0,  ///< the widest that this CPU has
  GIRIH_CPU_SCALAR = 1,
  GIRIH_CPU_AVX2 = 2,
  GIRIH_CPU_AVX3 = 3,       ///< AVX-512 (F, BW, CD, DQ, VL)
  GIRIH_CPU_AVX3_BF16 = 4,  ///< and the dot product of AVX512-BF16
  GIRIH_CPU_NEON = 5,
};
/// "best", "avx2", ...; "invalid target" for other numbers. Static memory.
GIRIH_API const char* girih_cpu_target_name(girih_cpu_target target);
/// Targets that this CPU can run, widest first: up to `capacity` of them go to `out` (which may be NULL with 0), how many there are to
/// `count`.
GIRIH_API girih_status girih_available_cpu_targets(girih_cpu_target* out, int64_t capacity, int64_t* count);

typedef int32_t girih_log_level;
enum { GIRIH_LOG_DEBUG = 0, GIRIH_LOG_INFO = 1, GIRIH_LOG_WARNING = 2 };
/// `text` is valid during the call. May be called from a thread that compiles kernels.
typedef void (*girih_log_fn)(void* user, girih_log_level level, const char* text);

typedef int32_t girih_jit_policy;
enum {
  GIRIH_JIT_DEFAULT = 0,    ///< GIRIH_JIT of the environment, or else allow
  GIRIH_JIT_ALLOW = 1,      ///< packs, cache, and else NVRTC compiles
  GIRIH_JIT_DENY = 2,       ///< packs and cache; a kernel that neither has is an error
  GIRIH_JIT_PACK_ONLY = 3,  ///< packs; neither NVRTC nor the cache is touched
};

/// How CUDA kernels are compiled and kept (docs/jit.md). What is NULL comes from the environment, or else is the default.
typedef struct girih_jit_options {
  uint64_t struct_size;
  const char* nvrtc;                 ///< NVRTC: the library's file or a directory that holds it; default: search
  const char* cache_dir;             ///< "" = no disk cache
  const char* const* packs;          ///< [num_packs] directories of prebuilt kernels, searched in order; not NULL with 0: none
  const char* const* nvrtc_options;  ///< [num_nvrtc_options], for all kernels, e.g. "--generate-line-info"
  int64_t num_packs;
  int64_t num_nvrtc_options;
  girih_jit_policy policy;
  int32_t max_threads;  ///< of a warm-up; 0 = one per CPU, as far as memory allows
} girih_jit_options;
GIRIH_API girih_status girih_jit_options_init(girih_jit_options* out, uint64_t struct_size);

typedef struct girih_context_options {
  uint64_t struct_size;
  girih_device device;
  int32_t num_workers;  ///< CPU worker threads including the caller; 0 = the CPUs this process may use
  girih_cpu_target target;
  const int32_t* cpus;  ///< [num_cpus] that workers are bound to (Linux): worker w to cpus[w % num_cpus]; worker 0 is never bound
  int64_t num_cpus;
  girih_log_fn log;              ///< for what a user should know; NULL = silent
  void* log_user;                ///< given to `log`; must be valid as long as the context
  const girih_jit_options* jit;  ///< NULL = defaults
} girih_context_options;
GIRIH_API girih_status girih_context_options_init(girih_context_options* out, uint64_t struct_size);

/// What operators run on and with. One context serves one thread at a time; make one per thread.
typedef struct girih_context girih_context;
/// `options` may be NULL: the CPU with defaults. On failure *out is NULL, as in all functions that make a handle.
/// Errors: invalid_argument, unsupported (a target that this CPU lacks, a device that is not there).
GIRIH_API girih_status girih_context_create(const girih_context_options* options, girih_context** out);
/// NULL does nothing, as in all functions that destroy a handle.
GIRIH_API void girih_context_destroy(girih_context* context);

typedef struct girih_context_info {
  uint64_t struct_size;
  girih_device device;
  int32_t num_workers;
  girih_cpu_target cpu_target;  ///< never GIRIH_CPU_BEST: the one chosen
} girih_context_info;
GIRIH_API girih_status girih_context_info_init(girih_context_info* out, uint64_t struct_size);
/// info->struct_size says how much is written, as in all functions that fill a struct with one.
GIRIH_API girih_status girih_context_get_info(const girih_context* context, girih_context_info* info);

#ifdef __cplusplus
}
#endif
