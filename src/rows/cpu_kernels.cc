// See cpu_kernels.h. Conversions follow base/numeric.h, code for code; sums run over lanes, so that their last bits depend on the target.
#include "rows/cpu_kernels.h"

#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rows/cpu_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#include "rows/cpu_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::rows {
namespace HWY_NAMESPACE {

using abi::Act;
using abi::Elem;

/// f(vector loader) over whole vectors, and once more over a copy of the rest padded with zeros.
template <class L>
HWY_INLINE VF load_part(const std::byte* source, std::int64_t i, std::int64_t n) {
  if (i + kLanes <= n) return L::load(source + i * L::kBytes);
  alignas(64) std::byte rest[kLanes * 4] = {};
  __builtin_memcpy(rest, source + i * L::kBytes, static_cast<std::size_t>((n - i) * L::kBytes));
  return L::load(rest);
}

template <class L>
float load_as(const std::byte* source, std::int64_t n, float* out) {
  VF a = hn::Zero(df), b = hn::Zero(df);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const VF x = L::load(source + i * L::kBytes);
    const VF y = L::load(source + (i + kLanes) * L::kBytes);
    a = hn::MulAdd(x, x, a);
    b = hn::MulAdd(y, y, b);
    hn::StoreU(x, df, out + i);
    hn::StoreU(y, df, out + i + kLanes);
  }
  for (; i < n; i += kLanes) {
    const VF x = load_part<L>(source, i, n);
    a = hn::MulAdd(x, x, a);
    hn::StoreU(x, df, out + i);
  }
  return hn::GetLane(hn::SumOfLanes(df, hn::Add(a, b)));
}

/// Codes of two to a byte, as e2m1 values.
float load_e2m1(const std::byte* source, std::int64_t n, float* out) {
  VF squares = hn::Zero(df);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    alignas(64) std::byte rest[kLanes] = {};
    const std::int64_t left = n - i < kLanes ? n - i : kLanes;
    __builtin_memcpy(rest, source + i / 2, static_cast<std::size_t>((left + 1) / 2));
    if (left % 2 != 0) rest[left / 2] &= std::byte{0x0f};
    const VF x = E2m1::load(rest);
    squares = hn::MulAdd(x, x, squares);
    hn::StoreU(x, df, out + i);
  }
  return hn::GetLane(hn::SumOfLanes(df, squares));
}

float load(Elem type, const void* source, std::int64_t n, float* out) {
  const auto* p = static_cast<const std::byte*>(source);
  switch (type) {
    case Elem::f32: return load_as<F32>(p, n, out);
    case Elem::f16: return load_as<F16>(p, n, out);
    case Elem::bf16: return load_as<Bf16>(p, n, out);
    case Elem::e4m3: return load_as<E4m3>(p, n, out);
    case Elem::e5m2: return load_as<E5m2>(p, n, out);
    case Elem::i8: return load_as<I8>(p, n, out);
    default: return load_e2m1(p, n, out);
  }
}

template <class T>
float load_sum_as(const std::byte* x, const std::byte* residual, std::int64_t n, float* out, std::byte* sum) {
  VF squares = hn::Zero(df);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const VF y = hn::Add(load_part<T>(x, i, n), load_part<T>(residual, i, n));
    squares = hn::MulAdd(y, y, squares);
    hn::StoreU(y, df, out + i);
    if (sum != nullptr) store_part<T>(y, sum, i, n);
  }
  return hn::GetLane(hn::SumOfLanes(df, squares));
}

float load_sum(Elem type, const void* x, const void* residual, std::int64_t n, float* out, void* sum) {
  const auto* a = static_cast<const std::byte*>(x);
  const auto* b = static_cast<const std::byte*>(residual);
  auto* s = static_cast<std::byte*>(sum);
  switch (type) {
    case Elem::f32: return load_sum_as<F32>(a, b, n, out, s);
    case Elem::f16: return load_sum_as<F16>(a, b, n, out, s);
    default: return load_sum_as<Bf16>(a, b, n, out, s);
  }
}

/// e^x for x in [-87, 88]; NaN stays. The exponent is split exactly with the low part of log2 e, so that large arguments lose nothing.
HWY_INLINE VF exp_bounded(VF x) {
  const VF magic = hn::Set(df, 0x1.8p23F);
  const VF shifted = hn::MulAdd(x, hn::Set(df, 1.44269502F), magic);
  const VF n = hn::Sub(shifted, magic);
  const VF f = hn::MulAdd(x, hn::Set(df, 1.92596303e-8F), hn::MulSub(x, hn::Set(df, 1.44269502F), n));
  const VF f2 = hn::Mul(f, f);
  // 2^f, minimax on [-1/2, 1/2] with a relative error below 1.1e-8.
  const VF p45 = hn::MulAdd(hn::Set(df, 1.54035122e-4F), f, hn::Set(df, 1.33907353e-3F));
  const VF p23 = hn::MulAdd(hn::Set(df, 9.61823761e-3F), f, hn::Set(df, 5.55035733e-2F));
  const VF p01 = hn::MulAdd(hn::Set(df, 0.240226492F), f, hn::Set(df, 0.693147182F));
  const VF p = hn::MulAdd(hn::MulAdd(hn::MulAdd(p45, f2, p23), f2, p01), f, hn::Set(df, 1.0F));
  const VF scale = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, 127))));
  return hn::Mul(p, scale);
}

/// 1 / x within 2 units in the last place, for x in [1, 2^126).
HWY_INLINE VF reciprocal(VF x) {
#if HWY_TARGET == HWY_EMU128
  return hn::Div(hn::Set(df, 1.0F), x);
#else
  VF r = hn::ApproximateReciprocal(x);
  r = hn::MulAdd(r, hn::NegMulAdd(x, r, hn::Set(df, 1.0F)), r);
  return hn::MulAdd(r, hn::NegMulAdd(x, r, hn::Set(df, 1.0F)), r);
#endif
}

/// 1 / (1 + e^-x); 0 below -87, where it is less than 2e-38.
HWY_INLINE VF logistic(VF x) {
  const VF low = hn::Set(df, -87.0F);
  const auto tiny = hn::Lt(x, low);
  const VF bounded = hn::IfThenElse(hn::Gt(x, hn::Set(df, 87.0F)), hn::Set(df, 87.0F), hn::IfThenElse(tiny, low, x));
  const VF y = reciprocal(hn::Add(hn::Set(df, 1.0F), exp_bounded(hn::Neg(bounded))));
  return hn::IfThenElse(tiny, hn::Zero(df), y);
}

/// Phi(x) = erfc(-x / sqrt 2) / 2; erfc(z) = e^(-z z) t P(t), t = 1 / (1 + 0.3 z), z >= 0: P is interpolated at Chebyshev nodes with a
/// relative error of 6e-8.
HWY_INLINE VF normal_cdf(VF x) {
  const VF one = hn::Set(df, 1.0F);
  const VF z = hn::Mul(hn::Abs(x), hn::Set(df, 0.707106781F));
  const VF bounded = hn::IfThenElse(hn::Gt(z, hn::Set(df, 10.0F)), hn::Set(df, 10.0F), z);  // the tail is 0 from there on
  const VF t = reciprocal(hn::MulAdd(bounded, hn::Set(df, 0.3F), one));
  const VF u = hn::MulSub(t, hn::Set(df, 3.11111116F), hn::Set(df, 2.11111116F));
  VF p = hn::Set(df, -1.37610205e-5F);
  p = hn::MulAdd(p, u, hn::Set(df, -7.70050638e-5F));
  p = hn::MulAdd(p, u, hn::Set(df, 1.35011672e-4F));
  p = hn::MulAdd(p, u, hn::Set(df, 3.0565735e-3F));
  p = hn::MulAdd(p, u, hn::Set(df, 1.72207995e-2F));
  p = hn::MulAdd(p, u, hn::Set(df, 6.1054123e-2F));
  p = hn::MulAdd(p, u, hn::Set(df, 0.156989941F));
  p = hn::MulAdd(p, u, hn::Set(df, 0.306079107F));
  p = hn::MulAdd(p, u, hn::Set(df, 0.455555201F));
  const VF square = hn::Mul(z, z);
  const auto some = hn::Lt(square, hn::Set(df, 87.0F));
  const VF exponential = exp_bounded(hn::IfThenElse(some, hn::Neg(square), hn::Set(df, -87.0F)));
  VF tail = hn::Mul(hn::Mul(hn::Mul(hn::Set(df, 0.5F), t), p), exponential);
  tail = hn::IfThenElse(some, tail, hn::Sub(z, z));  // 0; NaN of NaN and infinities
  tail = hn::IfThenElse(hn::Gt(z, hn::Set(df, 1e30F)), hn::Zero(df), tail);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(df)), tail, hn::Sub(one, tail));
}

template <Act kAct>
HWY_INLINE VF activate_vector(VF gate, VF up, float alpha, float limit) {
  if constexpr (kAct == Act::silu) {
    return hn::Mul(hn::Mul(gate, logistic(gate)), up);
  } else if constexpr (kAct == Act::gelu) {
    return hn::Mul(hn::Mul(gate, normal_cdf(gate)), up);
  } else if constexpr (kAct == Act::gelu_tanh) {
    const VF inner = hn::MulAdd(hn::Mul(gate, gate), hn::Set(df, 0.044715F), hn::Set(df, 1.0F));
    return hn::Mul(hn::Mul(gate, logistic(hn::Mul(hn::Mul(gate, hn::Set(df, 1.59576912F)), inner))), up);
  } else if constexpr (kAct == Act::swigluoai) {
    const VF most = hn::Set(df, limit);
    const VF g = hn::IfThenElse(hn::Gt(gate, most), most, gate);
    VF u = hn::IfThenElse(hn::Gt(up, most), most, up);
    u = hn::IfThenElse(hn::Lt(u, hn::Neg(most)), hn::Neg(most), u);
    return hn::Mul(hn::Mul(g, logistic(hn::Mul(g, hn::Set(df, alpha)))), hn::Add(u, hn::Set(df, 1.0F)));
  } else {
    return hn::Mul(gate, up);
  }
}

/// Of operands that alternate.
template <class L, Act kAct>
HWY_INLINE VF activate_pairs(const std::byte* pairs, std::int64_t i, std::int64_t n, float alpha, float limit) {
  const VF low = load_part<L>(pairs, 2 * i, 2 * n);
  const VF high = 2 * i + kLanes < 2 * n ? load_part<L>(pairs, 2 * i + kLanes, 2 * n) : hn::Zero(df);
  return activate_vector<kAct>(hn::ConcatEven(df, high, low), hn::ConcatOdd(df, high, low), alpha, limit);
}

template <class L, Act kAct>
void activate_as(bool interleaved, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit, float* out) {
  if (!interleaved) {
    for (std::int64_t i = 0; i < n; i += kLanes)
      hn::StoreU(activate_vector<kAct>(load_part<L>(gate, i, n), load_part<L>(up, i, n), alpha, limit), df, out + i);
    return;
  }
  for (std::int64_t i = 0; i < n; i += kLanes) hn::StoreU(activate_pairs<L, kAct>(gate, i, n, alpha, limit), df, out + i);
}

/// The same, stored as the sources' type at once.
template <class T, Act kAct>
void activate_store_as(bool interleaved, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit, std::byte* out, bool stream) {
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const std::int64_t j = i + kLanes;
    const VF a = interleaved ? activate_pairs<T, kAct>(gate, i, n, alpha, limit)
                             : activate_vector<kAct>(T::load(gate + i * T::kBytes), T::load(up + i * T::kBytes), alpha, limit);
    const VF b = interleaved ? activate_pairs<T, kAct>(gate, j, n, alpha, limit)
                             : activate_vector<kAct>(T::load(gate + j * T::kBytes), T::load(up + j * T::kBytes), alpha, limit);
    store_two<T>(a, b, out, i, stream);
  }
  for (; i < n; i += kLanes) {
    const VF y = interleaved ? activate_pairs<T, kAct>(gate, i, n, alpha, limit) : activate_vector<kAct>(load_part<T>(gate, i, n), load_part<T>(up, i, n), alpha, limit);
    store_part<T>(y, out, i, n);
  }
}

template <class T>
void activate_store_of(Act act, bool interleaved, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit, std::byte* out, bool stream) {
  switch (act) {
    case Act::silu: return activate_store_as<T, Act::silu>(interleaved, gate, up, n, alpha, limit, out, stream);
    case Act::gelu: return activate_store_as<T, Act::gelu>(interleaved, gate, up, n, alpha, limit, out, stream);
    case Act::gelu_tanh: return activate_store_as<T, Act::gelu_tanh>(interleaved, gate, up, n, alpha, limit, out, stream);
    case Act::swigluoai: return activate_store_as<T, Act::swigluoai>(interleaved, gate, up, n, alpha, limit, out, stream);
    default: return activate_store_as<T, Act::multiply>(interleaved, gate, up, n, alpha, limit, out, stream);
  }
}

void activate_store(Elem type, Act act, bool interleaved, const void* gate, const void* up, std::int64_t n, float alpha, float limit, void* out, bool stream) {
  const auto* g = static_cast<const std::byte*>(gate);
  const auto* u = static_cast<const std::byte*>(up);
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  switch (type) {
    case Elem::f32: return activate_store_of<F32>(act, interleaved, g, u, n, alpha, limit, o, stream);
    case Elem::f16: return activate_store_of<F16>(act, interleaved, g, u, n, alpha, limit, o, stream);
    default: return activate_store_of<Bf16>(act, interleaved, g, u, n, alpha, limit, o, stream);
  }
}

template <class L>
void activate_from(Act act, bool interleaved, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit,
                   float* out) {
  switch (act) {
    case Act::silu: return activate_as<L, Act::silu>(interleaved, gate, up, n, alpha, limit, out);
    case Act::gelu: return activate_as<L, Act::gelu>(interleaved, gate, up, n, alpha, limit, out);
    case Act::gelu_tanh: return activate_as<L, Act::gelu_tanh>(interleaved, gate, up, n, alpha, limit, out);
    case Act::swigluoai: return activate_as<L, Act::swigluoai>(interleaved, gate, up, n, alpha, limit, out);
    default: return activate_as<L, Act::multiply>(interleaved, gate, up, n, alpha, limit, out);
  }
}

void activate(Elem type, Act act, bool interleaved, const void* gate, const void* up, std::int64_t n, float alpha, float limit,
              float* out) {
  const auto* g = static_cast<const std::byte*>(gate);
  const auto* u = static_cast<const std::byte*>(up);
  switch (type) {
    case Elem::f32: return activate_from<F32>(act, interleaved, g, u, n, alpha, limit, out);
    case Elem::f16: return activate_from<F16>(act, interleaved, g, u, n, alpha, limit, out);
    default: return activate_from<Bf16>(act, interleaved, g, u, n, alpha, limit, out);
  }
}

float centre(float* x, std::int64_t n) {
  VF sum = hn::Zero(df);
  for (std::int64_t i = 0; i < n; i += kLanes) sum = hn::Add(sum, load_part<F32>(reinterpret_cast<const std::byte*>(x), i, n));
  const VF mean = hn::Set(df, hn::GetLane(hn::SumOfLanes(df, sum)) / static_cast<float>(n));
  VF squares = hn::Zero(df);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF y = hn::Sub(hn::LoadU(df, x + i), mean);
    squares = hn::MulAdd(y, y, squares);
    hn::StoreU(y, df, x + i);
  }
  float rest = hn::GetLane(hn::SumOfLanes(df, squares));
  for (; i < n; ++i) {
    x[i] -= hn::GetLane(mean);
    rest += x[i] * x[i];
  }
  return rest;
}

template <bool kWeight, bool kBias>
HWY_INLINE VF scaled(const float* x, std::int64_t i, VF factor, const float* weight, const float* bias) {
  VF y = hn::Mul(hn::LoadU(df, x + i), factor);
  if constexpr (kWeight) y = hn::Mul(y, hn::LoadU(df, weight + i));
  if constexpr (kBias) y = hn::Add(y, hn::LoadU(df, bias + i));
  return y;
}

template <class T, bool kWeight, bool kBias>
void scale_store_as(const float* x, std::int64_t n, float factor, const float* weight, const float* bias, std::byte* out, bool stream) {
  const VF f = hn::Set(df, factor);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes)
    store_two<T>(scaled<kWeight, kBias>(x, i, f, weight, bias), scaled<kWeight, kBias>(x, i + kLanes, f, weight, bias), out, i, stream);
  for (; i < n; i += kLanes) store_part<T>(scaled<kWeight, kBias>(x, i, f, weight, bias), out, i, n);
}

template <class T>
void scale_store_to(const float* x, std::int64_t n, float factor, const float* weight, const float* bias, std::byte* out, bool stream) {
  if (weight != nullptr && bias != nullptr) return scale_store_as<T, true, true>(x, n, factor, weight, bias, out, stream);
  if (weight != nullptr) return scale_store_as<T, true, false>(x, n, factor, weight, bias, out, stream);
  if (bias != nullptr) return scale_store_as<T, false, true>(x, n, factor, weight, bias, out, stream);
  return scale_store_as<T, false, false>(x, n, factor, weight, bias, out, stream);
}

void scale_store(Elem type, const float* x, std::int64_t n, float factor, const float* weight, const float* bias, void* out, bool stream) {
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  switch (type) {
    case Elem::f32: return scale_store_to<F32>(x, n, factor, weight, bias, o, stream);
    case Elem::f16: return scale_store_to<F16>(x, n, factor, weight, bias, o, stream);
    default: return scale_store_to<Bf16>(x, n, factor, weight, bias, o, stream);
  }
}

/// One pass over two rows: the next one is brought in while the one before it is scaled and stored, so that memory is never idle. Without a
/// residual rows are read once more from the cache, in their own type, and no buffers are needed.
template <class T, bool kResidual>
float norm_step_as(const NormStep& s, std::int64_t n) {
  const auto* next = static_cast<const std::byte*>(s.next);
  const auto* residual = static_cast<const std::byte*>(s.residual);
  const auto* source = static_cast<const std::byte*>(s.source);
  auto* sum = static_cast<std::byte*>(s.sum);
  auto* out = static_cast<std::byte*>(s.out);
  const bool stream = s.stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  const VF f = hn::Set(df, s.factor);
  VF squares = hn::Zero(df);
  const auto bring = [&](std::int64_t i) HWY_ATTR {
    VF y = load_part<T>(next, i, n);
    if constexpr (kResidual) {
      y = hn::Add(y, load_part<T>(residual, i, n));
      if (sum != nullptr) store_part<T>(y, sum, i, n);
    }
    squares = hn::MulAdd(y, y, squares);
    return y;
  };
  const auto value = [&](std::int64_t i, VF brought) HWY_ATTR {
    VF x;
    if constexpr (kResidual) {
      hn::StoreU(brought, df, s.next_row + i);
      x = hn::LoadU(df, s.row + i);
    } else {
      x = load_part<T>(source, i, n);
    }
    return hn::Mul(hn::Mul(x, f), hn::LoadU(df, s.weight + i));
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const VF a = value(i, bring(i));
    const VF b = value(i + kLanes, bring(i + kLanes));
    store_two<T>(a, b, out, i, stream);
  }
  for (; i < n; i += kLanes) store_part<T>(value(i, bring(i)), out, i, n);
  return hn::GetLane(hn::SumOfLanes(df, squares));
}

float norm_step(Elem type, const NormStep& step, std::int64_t n) {
  const bool residual = step.residual != nullptr;
  switch (type) {
    case Elem::f32: return residual ? norm_step_as<F32, true>(step, n) : norm_step_as<F32, false>(step, n);
    case Elem::f16: return residual ? norm_step_as<F16, true>(step, n) : norm_step_as<F16, false>(step, n);
    default: return residual ? norm_step_as<Bf16, true>(step, n) : norm_step_as<Bf16, false>(step, n);
  }
}

void scale(float* x, std::int64_t n, float factor, const float* weight, const float* bias) {
  scale_store_to<F32>(x, n, factor, weight, bias, reinterpret_cast<std::byte*>(x), false);
}

void rotate(abi::Rotation rotation, float* x, std::int64_t pairs, const float* cos, const float* sin) {
  if (rotation == abi::Rotation::interleaved) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
    return;
  }
  float* y = x + pairs;
  std::int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const VF a = hn::LoadU(df, x + i), b = hn::LoadU(df, y + i), c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), df, x + i);
    hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), df, y + i);
  }
  for (; i < pairs; ++i) {
    const float a = x[i], b = y[i];
    x[i] = a * cos[i] - b * sin[i];
    y[i] = a * sin[i] + b * cos[i];
  }
}

float largest(const float* x, std::int64_t n) {
  const auto infinity = hn::Set(di, 0x7f800000);
  auto most = hn::Zero(di);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const VF y = load_part<F32>(reinterpret_cast<const std::byte*>(x), i, n);
    const auto magnitude = hn::BitCast(di, hn::Abs(y));
    most = hn::Max(most, hn::IfThenElseZero(hn::Lt(magnitude, infinity), magnitude));
  }
  return hn::GetLane(hn::MaxOfLanes(df, hn::BitCast(df, most)));
}

/// Divides where there is something to divide by: x / 1 is x, but NaN payloads and time are saved.
template <class T>
void store_as(const float* x, std::int64_t n, float scale, std::byte* out, bool stream) {
  const VF divisor = hn::Set(df, scale);
  const bool one = scale == 1.0F;
  const auto value = [&](std::int64_t i) HWY_ATTR {
    const VF y = hn::LoadU(df, x + i);
    return one ? y : hn::Div(y, divisor);
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) store_two<T>(value(i), value(i + kLanes), out, i, stream);
  for (; i < n; i += kLanes) store_part<T>(value(i), out, i, n);
}

/// Two codes to a byte; an odd end leaves its high nibble 0.
HWY_INLINE void store_e2m1_part(VF x, std::int64_t i, std::int64_t n, std::uint8_t* out) {
  if (i + kLanes <= n) return E2m1::store(x, out + i / 2);
  std::uint8_t rest[kLanes / 2];
  E2m1::store(x, rest);
  const std::int64_t count = n - i;
  if (count % 2 != 0) rest[count / 2] &= 0x0f;
  __builtin_memcpy(out + i / 2, rest, static_cast<std::size_t>((count + 1) / 2));
}

void store_e2m1(const float* x, std::int64_t n, float scale, std::uint8_t* out) {
  const VF divisor = hn::Set(df, scale);
  for (std::int64_t i = 0; i < n; i += kLanes) store_e2m1_part(hn::Div(hn::LoadU(df, x + i), divisor), i, n, out);
}

/// The largest finite magnitude of each block; elements from n on do not count.
template <int kBlock>
void largest_of_blocks(const float* x, std::int64_t n, float* most) {
  const auto infinity = hn::Set(di, 0x7f800000);
  for (std::int64_t first = 0; first < n; first += kBlock) {
    auto largest = hn::Zero(di);
    for (std::int64_t i = first; i < first + kBlock && i < n; i += kLanes) {
      const auto magnitude = hn::BitCast(di, hn::Abs(load_part<F32>(reinterpret_cast<const std::byte*>(x), i, n)));
      largest = hn::Max(largest, hn::IfThenElseZero(hn::Lt(magnitude, infinity), magnitude));
    }
    *most++ = hn::GetLane(hn::MaxOfLanes(df, hn::BitCast(df, largest)));
  }
}

/// Scales of `count` blocks, by the rules of base/scales.h: stored ones to `scales`, what codes are relative to over `most`.
void choose_nvfp4(float* most, std::int64_t count, float global, std::byte* scales) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    std::byte codes[kLanes];
    E4m3::store(hn::Div(hn::Div(hn::LoadU(df, most + i), hn::Set(df, 6.0F)), hn::Set(df, global)), codes);
    hn::StoreU(hn::Mul(E4m3::load(codes), hn::Set(df, global)), df, most + i);
    __builtin_memcpy(scales + i, codes, static_cast<std::size_t>(count - i < kLanes ? count - i : kLanes));
  }
}
void choose_mx(float* most, std::int64_t count, int exponent, float global, std::byte* scales) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const VF relative = hn::Min(hn::Div(hn::LoadU(df, most + i), hn::Set(df, global)), hn::Set(df, 0x1.fffffep127F));
    // Below the smallest normal number the exponent field is 0, and the code is 0 whatever the exponent.
    const VI field = hn::Sub(hn::ShiftRight<23>(hn::BitCast(di, relative)), hn::Set(di, exponent));
    const VI bounded = hn::Max(hn::Min(field, hn::Set(di, 254)), hn::Zero(di));
    const VI code = hn::IfThenElse(hn::RebindMask(di, hn::Gt(relative, hn::Zero(df))), bounded, hn::Set(di, 127));
    const VF power = hn::BitCast(df, hn::IfThenElse(hn::Eq(code, hn::Zero(di)), hn::Set(di, 0x00400000), hn::ShiftLeft<23>(code)));
    hn::StoreU(hn::Mul(power, hn::Set(df, global)), df, most + i);
    const hn::Rebind<std::uint8_t, DF> d8;
    std::uint8_t codes[kLanes];
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes);
    __builtin_memcpy(scales + i, codes, static_cast<std::size_t>(count - i < kLanes ? count - i : kLanes));
  }
}
void choose_f32(float* most, std::int64_t count, float largest_code, float global, std::byte* scales) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const VF g = hn::Set(df, global);
    VF stored = hn::Min(hn::Div(hn::Div(hn::LoadU(df, most + i), hn::Set(df, largest_code)), g), hn::Set(df, 0x1.fffffep127F));
    stored = hn::IfThenElse(hn::Gt(hn::Mul(stored, g), hn::Zero(df)), stored, hn::Set(df, 1.0F));
    hn::StoreU(hn::Mul(stored, g), df, most + i);
    store_part<F32>(stored, scales, i, count);
  }
}

/// Codes relative to their block's scale; 0 where that is 0.
template <class T, int kBlock>
void encode_blocks(const float* x, std::int64_t n, const float* scales, std::byte* out) {
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const VF scale = hn::Set(df, scales[first / kBlock]);
    const auto some = hn::Gt(scale, hn::Zero(df));
    for (std::int64_t i = first; i < first + kBlock && i < n; i += kLanes) {
      const VF y = hn::IfThenElseZero(some, hn::Div(hn::LoadU(df, x + i), scale));
      if constexpr (T::kBytes == 0) {
        store_e2m1_part(y, i, n, reinterpret_cast<std::uint8_t*>(out));
      } else {
        store_part<T>(y, out, i, n);
      }
    }
  }
}

void store_blocks(Elem type, abi::Scaling scaling, const float* x, std::int64_t n, float global, void* out, void* scales, float* scratch) {
  auto* o = static_cast<std::byte*>(out);
  auto* s = static_cast<std::byte*>(scales);
  const bool mx = scaling == abi::Scaling::mx;
  if (type == Elem::nvfp4) {
    largest_of_blocks<16>(x, n, scratch);
    choose_nvfp4(scratch, (n + 15) / 16, global, s);
    return encode_blocks<E2m1, 16>(x, n, scratch, o);
  }
  if (type == Elem::mxfp4 || mx) {
    largest_of_blocks<32>(x, n, scratch);
    choose_mx(scratch, (n + 31) / 32, type == Elem::e4m3 ? 8 : (type == Elem::e5m2 ? 15 : 2), global, s);
    if (type == Elem::mxfp4) return encode_blocks<E2m1, 32>(x, n, scratch, o);
    return type == Elem::e4m3 ? encode_blocks<E4m3, 32>(x, n, scratch, o) : encode_blocks<E5m2, 32>(x, n, scratch, o);
  }
  largest_of_blocks<128>(x, n, scratch);
  choose_f32(scratch, (n + 127) / 128, type == Elem::e4m3 ? 448.0F : (type == Elem::e5m2 ? 57344.0F : 127.0F), global, s);
  if (type == Elem::e4m3) return encode_blocks<E4m3, 128>(x, n, scratch, o);
  if (type == Elem::e5m2) return encode_blocks<E5m2, 128>(x, n, scratch, o);
  encode_blocks<I8, 128>(x, n, scratch, o);
}

template <class T>
void scale_blocks_as(const float* x, std::int64_t n, const float* scales, std::int64_t block, std::byte* out, bool stream) {
  for (std::int64_t first = 0; first < n; first += block) {
    const VF scale = hn::Set(df, scales[first / block]);
    const std::int64_t end = first + block < n ? first + block : n;
    std::int64_t i = first;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes)
      store_two<T>(hn::Mul(hn::LoadU(df, x + i), scale), hn::Mul(hn::LoadU(df, x + i + kLanes), scale), out, i, stream && block % (2 * kLanes) == 0);
    for (; i < end; i += kLanes) store_part<T>(hn::Mul(hn::LoadU(df, x + i), scale), out, i, end);
  }
}

void scale_blocks(Elem type, const float* x, std::int64_t n, const float* scales, std::int64_t block, void* out, bool stream) {
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  switch (type) {
    case Elem::f32: return scale_blocks_as<F32>(x, n, scales, block, o, stream);
    case Elem::f16: return scale_blocks_as<F16>(x, n, scales, block, o, stream);
    default: return scale_blocks_as<Bf16>(x, n, scales, block, o, stream);
  }
}

void pack_bits(const std::uint8_t* bytes, std::int64_t n, bool big, std::uint8_t* out) {
  std::int64_t i = 0;
  // Eight bytes at once: each becomes 0 or 1, and a product gathers the eight bits in its top byte.
  const std::uint64_t gather = big ? 0x8040201008040201U : 0x0102040810204080U;
  for (; i + 8 <= n; i += 8) {
    std::uint64_t word;
    __builtin_memcpy(&word, bytes + i, 8);
    word |= word >> 4;
    word |= word >> 2;
    word |= word >> 1;
    out[i / 8] = static_cast<std::uint8_t>(((word & 0x0101010101010101U) * gather) >> 56);
  }
  if (i == n) return;
  unsigned last = 0;
  for (std::int64_t j = i; j < n; ++j) last |= (bytes[j] != 0 ? 1U : 0U) << (big ? 7 - (j - i) : j - i);
  out[i / 8] = static_cast<std::uint8_t>(last);
}

void store(Elem type, const float* x, std::int64_t n, float scale, void* out, bool stream) {
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  switch (type) {
    case Elem::f32: return store_as<F32>(x, n, scale, o, stream);
    case Elem::f16: return store_as<F16>(x, n, scale, o, stream);
    case Elem::bf16: return store_as<Bf16>(x, n, scale, o, stream);
    case Elem::e4m3: return store_as<E4m3>(x, n, scale, o, stream);
    case Elem::e5m2: return store_as<E5m2>(x, n, scale, o, stream);
    case Elem::i8: return store_as<I8>(x, n, scale, o, stream);
    default: return store_e2m1(x, n, scale, static_cast<std::uint8_t*>(out));
  }
}

void flush() { hwy::FlushStream(); }

Kernels table() {
  return {.load = load,
          .load_sum = load_sum,
          .activate = activate,
          .activate_store = activate_store,
          .centre = centre,
          .scale = scale,
          .scale_store = scale_store,
          .norm_step = norm_step,
          .rotate = rotate,
          .largest = largest,
          .store = store,
          .store_blocks = store_blocks,
          .scale_blocks = scale_blocks,
          .pack_bits = pack_bits,
          .flush = flush};
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace girih::rows {

Kernels kernels(CpuTarget target) {
#if GIRIH_HAVE_AVX3
  if (target == CpuTarget::avx3 || target == CpuTarget::avx3_bf16) return N_AVX3::table();
#endif
#if GIRIH_HAVE_AVX2
  if (target == CpuTarget::avx2) return N_AVX2::table();
#endif
#if GIRIH_HAVE_NEON
  if (target == CpuTarget::neon) return N_NEON::table();
#endif
  return N_EMU128::table();
}

}  // namespace girih::rows
#endif
