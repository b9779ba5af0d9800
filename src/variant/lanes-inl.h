// Lane loops of evaluate.cc: one plain loop per operation and operand form, which the compiler turns into vector code for the target. An
// operand is a buffer of lanes or one value for all of them; no lanes in any operand means a single result. Over a tile the loop runs once
// a key: lanes may then be the same for all keys or move on, and a value may differ from key to key.

#if defined(GIRIH_VARIANT_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_VARIANT_LANES_INL
#undef GIRIH_VARIANT_LANES_INL
#else
#define GIRIH_VARIANT_LANES_INL
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "variant/math-inl.h"

// An output buffer may be an input buffer of the same element type: lane i only reads lane i.
#undef GIRIH_LANE_LOOP
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"  // 64-bit division has no vector form, and that is all right
#define GIRIH_LANE_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define GIRIH_LANE_LOOP _Pragma("GCC ivdep")
#endif

HWY_BEFORE_NAMESPACE();
namespace girih::variant {
namespace HWY_NAMESPACE {

template <typename T>
struct Lanes {
  const T* data = nullptr;  // null: `value` everywhere
  T value{};
  int step = 0;       // elements from one key to the next
  bool wide = false;  // an element a lane, not one a key

  HWY_INLINE HWY_ATTR const T* values() const { return data != nullptr ? data : &value; }
};

/// Keys times lanes of a result, whose rows are `step` elements apart.
struct Extent {
  int keys, lanes, step;
};

/// Whether the lanes of all keys lie one after another, so that one loop serves.
template <typename T>
HWY_INLINE HWY_ATTR bool runs_on(const Lanes<T>& a, const Extent& e) {
  return a.wide ? a.step == e.lanes : a.step == 0;
}
HWY_INLINE HWY_ATTR Extent flattened(const Extent& e) { return {1, e.keys * e.lanes, 0}; }

// ------------------------------------------------------------------------------------------------------------- lane operations
// Integers wrap: they are computed unsigned.

template <typename T>
struct Unsigned {
  using Type = std::uint32_t;
};
template <>
struct Unsigned<std::int64_t> {
  using Type = std::uint64_t;
};

struct Add {
  static HWY_INLINE HWY_ATTR float f(float a, float b) { return a + b; }
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a, T b) {
    using U = typename Unsigned<T>::Type;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct Sub {
  static HWY_INLINE HWY_ATTR float f(float a, float b) { return a - b; }
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a, T b) {
    using U = typename Unsigned<T>::Type;
    return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
  }
};
struct Mul {
  static HWY_INLINE HWY_ATTR float f(float a, float b) { return a * b; }
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a, T b) {
    using U = typename Unsigned<T>::Type;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
/// Floor division. 32 bits: a double quotient is off from an integer by more than its rounding unless it is one. Its range is checked
/// before.
struct Div {
  static HWY_INLINE HWY_ATTR float f(float a, float b) { return a / b; }
  static HWY_INLINE HWY_ATTR std::int32_t f(std::int32_t a, std::int32_t b) {
    const double q = static_cast<double>(a) / static_cast<double>(b == 0 ? 1 : b);
    const auto truncated = static_cast<std::int32_t>(q);
    const std::int32_t floored = truncated - (static_cast<double>(truncated) > q ? 1 : 0);
    return b == 0 ? 0 : floored;
  }
  static HWY_INLINE HWY_ATTR std::int64_t f(std::int64_t a, std::int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a));  // INT64_MIN / -1 would trap
    const std::int64_t q = a / b;
    return q - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
  }
};
struct Mod {
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a, T b) {
    return b == 0 ? T{0} : Sub::f(a, Mul::f(b, Div::f(a, b)));
  }
};
/// As C's fmin: of a NaN and a number, the number.
struct Min {
  static HWY_INLINE HWY_ATTR float f(float a, float b) {
    const float lesser = a < b ? a : b;
    return b != b ? a : lesser;
  }
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a, T b) {
    return a < b ? a : b;
  }
};
struct Max {
  static HWY_INLINE HWY_ATTR float f(float a, float b) {
    const float greater = a > b ? a : b;
    return b != b ? a : greater;
  }
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a, T b) {
    return a > b ? a : b;
  }
};
struct Lt {
  template <typename T>
  static HWY_INLINE HWY_ATTR std::uint8_t f(T a, T b) {
    return a < b ? 1 : 0;
  }
};
struct Le {
  template <typename T>
  static HWY_INLINE HWY_ATTR std::uint8_t f(T a, T b) {
    return a <= b ? 1 : 0;
  }
};
struct Eq {
  template <typename T>
  static HWY_INLINE HWY_ATTR std::uint8_t f(T a, T b) {
    return a == b ? 1 : 0;
  }
};
struct Ne {
  template <typename T>
  static HWY_INLINE HWY_ATTR std::uint8_t f(T a, T b) {
    return a != b ? 1 : 0;
  }
};
struct And {
  static HWY_INLINE HWY_ATTR std::uint8_t f(std::uint8_t a, std::uint8_t b) { return a & b; }
};
struct Or {
  static HWY_INLINE HWY_ATTR std::uint8_t f(std::uint8_t a, std::uint8_t b) { return a | b; }
};
struct Not {
  static HWY_INLINE HWY_ATTR std::uint8_t f(std::uint8_t a) { return a ^ 1; }
};
struct Neg {
  static HWY_INLINE HWY_ATTR float f(float a) { return -a; }
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a) {
    return Sub::f(T{0}, a);
  }
};
struct Abs {
  static HWY_INLINE HWY_ATTR float f(float a) { return __builtin_fabsf(a); }
  template <typename T>
  static HWY_INLINE HWY_ATTR T f(T a) {
    return a < 0 ? Sub::f(T{0}, a) : a;
  }
};
struct ToNumber {
  template <typename T>
  static HWY_INLINE HWY_ATTR float f(T a) {
    return static_cast<float>(a);
  }
};
struct Exp {
  static HWY_INLINE HWY_ATTR float f(float a) { return exp_f32(a); }
};
struct Log {
  static HWY_INLINE HWY_ATTR float f(float a) { return log_f32(a); }
};
struct Sigmoid {
  static HWY_INLINE HWY_ATTR float f(float a) { return sigmoid_f32(a); }
};

// ------------------------------------------------------------------------------------------------------------- loops

template <typename F, typename Out, typename In>
HWY_ATTR void map_lanes(Lanes<In> a, Out* out, Extent e) {
  if (!a.wide) {
    out[0] = F::f(*a.values());
    return;
  }
  if (e.step == e.lanes && runs_on(a, e)) e = flattened(e);
  const In* x = a.data;
  for (int k = 0; k < e.keys; ++k, x += a.step, out += e.step) {
    GIRIH_LANE_LOOP
    for (int i = 0; i < e.lanes; ++i) out[i] = F::f(x[i]);
  }
}

template <typename F, typename Out, typename In>
HWY_ATTR void map_lanes(Lanes<In> a, Lanes<In> b, Out* out, Extent e) {
  if (e.step == e.lanes && runs_on(a, e) && runs_on(b, e)) e = flattened(e);
  const In* x = a.values();
  const In* y = b.values();
  if (a.wide && b.wide) {
    for (int k = 0; k < e.keys; ++k, x += a.step, y += b.step, out += e.step) {
      GIRIH_LANE_LOOP
      for (int i = 0; i < e.lanes; ++i) out[i] = F::f(x[i], y[i]);
    }
  } else if (a.wide) {
    for (int k = 0; k < e.keys; ++k, x += a.step, y += b.step, out += e.step) {
      const In v = *y;
      GIRIH_LANE_LOOP
      for (int i = 0; i < e.lanes; ++i) out[i] = F::f(x[i], v);
    }
  } else if (b.wide) {
    for (int k = 0; k < e.keys; ++k, x += a.step, y += b.step, out += e.step) {
      const In u = *x;
      GIRIH_LANE_LOOP
      for (int i = 0; i < e.lanes; ++i) out[i] = F::f(u, y[i]);
    }
  } else {
    out[0] = F::f(*x, *y);
  }
}

template <typename T>
HWY_ATTR void fill_lanes(T value, T* out, int n) {
  for (int i = 0; i < n; ++i) out[i] = value;
}

template <typename T>
HWY_ATTR void copy_lanes(const T* x, T* out, int n) {
  GIRIH_LANE_LOOP
  for (int i = 0; i < n; ++i) out[i] = x[i];
}

/// An operand as it is, spread over keys and lanes.
template <typename T>
HWY_ATTR void spread_lanes(Lanes<T> a, T* out, Extent e) {
  const T* x = a.values();
  for (int k = 0; k < e.keys; ++k, x += a.step, out += e.step) {
    if (a.wide) {
      copy_lanes(x, out, e.lanes);
    } else {
      fill_lanes(*x, out, e.lanes);
    }
  }
}

/// One key's lanes of a condition that differs from lane to lane.
template <typename T>
HWY_INLINE HWY_ATTR void choose_lanes(const std::uint8_t* c, const T* x, bool x_wide, const T* y, bool y_wide, T* out, int n) {
  const T u = *x;
  const T v = *y;
  if (x_wide && y_wide) {
    GIRIH_LANE_LOOP
    for (int i = 0; i < n; ++i) {
      const T p = x[i], q = y[i];
      out[i] = c[i] != 0 ? p : q;
    }
  } else if (x_wide) {
    GIRIH_LANE_LOOP
    for (int i = 0; i < n; ++i) {
      const T p = x[i];
      out[i] = c[i] != 0 ? p : v;
    }
  } else if (y_wide) {
    GIRIH_LANE_LOOP
    for (int i = 0; i < n; ++i) {
      const T q = y[i];
      out[i] = c[i] != 0 ? u : q;
    }
  } else {
    GIRIH_LANE_LOOP
    for (int i = 0; i < n; ++i) out[i] = c[i] != 0 ? u : v;
  }
}

template <typename T>
HWY_ATTR void select_lanes(Lanes<std::uint8_t> condition, Lanes<T> a, Lanes<T> b, T* out, Extent e) {
  const std::uint8_t* c = condition.values();
  const T* x = a.values();
  const T* y = b.values();
  if (!condition.wide && !a.wide && !b.wide) {
    out[0] = *c != 0 ? *x : *y;
    return;
  }
  for (int k = 0; k < e.keys; ++k, c += condition.step, x += a.step, y += b.step, out += e.step) {
    if (condition.wide) {
      choose_lanes(c, x, a.wide, y, b.wide, out, e.lanes);
    } else if (*c != 0 ? a.wide : b.wide) {
      copy_lanes(*c != 0 ? x : y, out, e.lanes);
    } else {
      fill_lanes(*c != 0 ? *x : *y, out, e.lanes);
    }
  }
}

/// out[i] = after * tanh(before * x[i]) for kVectors vectors.
template <int kVectors>
HWY_INLINE HWY_ATTR void tanh_block(const float* x, float before, float after, float* out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(d));
  hn::Vec<decltype(d)> v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = hn::Mul(hn::LoadU(d, x + i * kWidth), hn::Set(d, before));
  tanh_each(d, v);
  for (int i = 0; i < kVectors; ++i) hn::StoreU(hn::Mul(hn::Set(d, after), v[i]), d, out + i * kWidth);
}

/// after * tanh(before * a).
HWY_ATTR inline void tanh_lanes(Lanes<float> a, float before, float after, float* out, Extent e) {
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>()));
  if (!a.wide) e = {1, 1, 0};
  if (e.step == e.lanes && runs_on(a, e)) e = flattened(e);
  const float* x = a.values();
  for (int k = 0; k < e.keys; ++k, x += a.step, out += e.step) {
    int i = 0;
    for (; i + 4 * kWidth <= e.lanes; i += 4 * kWidth) tanh_block<4>(x + i, before, after, out + i);
    for (; i + kWidth <= e.lanes; i += kWidth) tanh_block<1>(x + i, before, after, out + i);
    if (i == e.lanes) continue;
    float tail[kWidth] = {};
    for (int j = 0; i + j < e.lanes; ++j) tail[j] = x[i + j];
    tanh_block<1>(tail, before, after, tail);
    for (int j = 0; i + j < e.lanes; ++j) out[i + j] = tail[j];
  }
}

/// By Highway: the C function would keep loops scalar because it may set errno.
template <bool kReciprocal>
HWY_ATTR void sqrt_lanes(Lanes<float> a, float* out, Extent e) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const auto width = static_cast<int>(hn::Lanes(d));
  if (!a.wide) e = {1, 1, 0};
  const float* x = a.values();
  for (int k = 0; k < e.keys; ++k, x += a.step, out += e.step) {
    int i = 0;
    for (; i + width <= e.lanes; i += width) {
      const auto root = hn::Sqrt(hn::LoadU(d, x + i));
      hn::StoreU(kReciprocal ? hn::Div(hn::Set(d, 1.0F), root) : root, d, out + i);
    }
    for (; i < e.lanes; ++i) {
      const float root = hn::GetLane(hn::Sqrt(hn::Set(d1, x[i])));
      out[i] = kReciprocal ? 1.0F / root : root;
    }
  }
}

/// out[i] = data[index[i]], 0 outside [0, size).
template <typename Out, typename In, typename Index>
HWY_ATTR void gather_lanes(const In* data, std::int64_t size, Lanes<Index> index, Out* out, Extent e) {
  if (!index.wide) e = {1, 1, 0};
  const Index* x = index.values();
  for (int k = 0; k < e.keys; ++k, x += index.step, out += e.step) {
    if (size <= 0) {
      fill_lanes(Out{}, out, e.lanes);
      continue;
    }
    for (int i = 0; i < e.lanes; ++i) {
      const auto position = static_cast<std::int64_t>(x[i]);
      const bool inside = static_cast<std::uint64_t>(position) < static_cast<std::uint64_t>(size);
      const In value = data[inside ? position : 0];
      out[i] = inside ? static_cast<Out>(value) : Out{};
    }
  }
}

/// out[i] = bit index[i] of little-endian packed `data`, 0 outside [0, size).
template <typename Index>
HWY_ATTR void gather_bits(const std::uint8_t* data, std::int64_t size, Lanes<Index> index, std::uint8_t* out, Extent e) {
  if (!index.wide) e = {1, 1, 0};
  const Index* x = index.values();
  for (int k = 0; k < e.keys; ++k, x += index.step, out += e.step) {
    if (size <= 0) {
      fill_lanes(std::uint8_t{0}, out, e.lanes);
      continue;
    }
    for (int i = 0; i < e.lanes; ++i) {
      const auto position = static_cast<std::int64_t>(x[i]);
      const bool inside = static_cast<std::uint64_t>(position) < static_cast<std::uint64_t>(size);
      const std::int64_t safe = inside ? position : 0;
      out[i] = static_cast<std::uint8_t>((data[safe >> 3] >> (safe & 7)) & (inside ? 1 : 0));
    }
  }
}

/// Positions as 32 bits; false if one is outside [-2^30, 2^30).
HWY_INLINE HWY_ATTR bool narrow_positions(const std::int64_t* x, std::int32_t* out, int n) {
  std::uint64_t outside = 0;
  GIRIH_LANE_LOOP
  for (int i = 0; i < n; ++i) {
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): positions are given to hooks that may use them
    outside |= (static_cast<std::uint64_t>(x[i]) + (std::uint64_t{1} << 30)) >> 31;
    out[i] = static_cast<std::int32_t>(x[i]);
  }
  return outside == 0;
}

/// Mean of x * x, summed in 16 interleaved parts: fixed order, vector code without reassociation by the compiler.
HWY_INLINE HWY_ATTR float mean_square_of(const float* x, int n) {
  constexpr int kParts = 16;
  float parts[kParts] = {};
  int i = 0;
  for (; i + kParts <= n; i += kParts) {
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): values are given to hooks that may use them
    for (int j = 0; j < kParts; ++j) parts[j] += x[i + j] * x[i + j];
  }
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): as above
  for (int j = 0; i + j < n; ++j) parts[j] += x[i + j] * x[i + j];
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) parts[j] += parts[j + width];
  }
  return parts[0] / static_cast<float>(n);
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::variant
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_VARIANT_LANES_INL
