// For the C tests of the C ABI: checks that print where and why they failed and count it, numbers that look random, dense tensors.
#pragma once

#include <girih/girih_c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int failures;

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      ++failures;                                                      \
      printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                  \
  } while (0)

// The call succeeds.
#define OK(call)                                                                                                 \
  do {                                                                                                           \
    const girih_status got_ = (call);                                                                            \
    if (got_ != GIRIH_OK) {                                                                                      \
      ++failures;                                                                                                \
      printf("%s:%d: %s gave %s: %s\n", __FILE__, __LINE__, #call, girih_status_name(got_), girih_last_error()); \
    }                                                                                                            \
  } while (0)

// The call fails with this status, and its text has this part.
#define FAILS(wanted, part, call)                                                                                                          \
  do {                                                                                                                                     \
    const girih_status got_ = (call);                                                                                                      \
    if (got_ != (wanted) || strstr(girih_last_error(), part) == NULL) {                                                                    \
      ++failures;                                                                                                                          \
      printf("%s:%d: %s gave %s, \"%s\"; wanted %s with \"%s\"\n", __FILE__, __LINE__, #call, girih_status_name(got_), girih_last_error(), \
             girih_status_name(wanted), part);                                                                                             \
    }                                                                                                                                      \
  } while (0)

#define NEAR(got, wanted, tolerance)                                                       \
  do {                                                                                     \
    const double got_ = (got), wanted_ = (wanted);                                         \
    if (!(fabs(got_ - wanted_) <= (tolerance))) {                                          \
      ++failures;                                                                          \
      printf("%s:%d: %s is %.9g; wanted %.9g\n", __FILE__, __LINE__, #got, got_, wanted_); \
    }                                                                                      \
  } while (0)

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

// In [-1, 1), the same for the same seed and index.
static inline float noise(uint32_t seed, uint32_t i) {
  uint32_t h = (seed * 0x9E3779B1u) ^ (i * 0x85EBCA77u + 0x165667B1u);
  h ^= h >> 15;
  h *= 0x2C1B3C6Du;
  h ^= h >> 12;
  h *= 0x297A2D39u;
  h ^= h >> 15;
  return (float)(h >> 8) / 8388608.0F - 1.0F;
}

static inline void fill(float* data, int64_t size, uint32_t seed) {
  for (int64_t i = 0; i < size; ++i) data[i] = noise(seed, (uint32_t)i);
}

static inline girih_tensor dense(void* data, girih_dtype dtype, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t shape[4] = {a, b, c, d};
  const girih_device cpu = {GIRIH_CPU, 0};
  girih_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  OK(girih_tensor_dense(&tensor, data, dtype, cpu, rank, shape));
  return tensor;
}

static inline girih_indices indices32(const int32_t* data, int64_t size) {
  const girih_indices indices = {data, size, 32, 0};
  return indices;
}

static inline girih_indices indices64(const int64_t* data, int64_t size) {
  const girih_indices indices = {data, size, 64, 0};
  return indices;
}

void test_attention(girih_context* context);
void test_variants(girih_context* context);
void test_errors(girih_context* context);
void test_operators(girih_context* context);
void test_sampling(girih_context* context);
