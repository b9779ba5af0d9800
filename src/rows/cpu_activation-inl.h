// Gated activations of vectors of rows: the formulas of include/girih/activation.h in f32.
#if defined(GIRIH_ROWS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ROWS_CPU_ACTIVATION_INL_H_
#undef GIRIH_ROWS_CPU_ACTIVATION_INL_H_
#else
#define GIRIH_ROWS_CPU_ACTIVATION_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "abi/rows_params.h"
#include "hwy/highway.h"
#include "rows/cpu_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::rows {
namespace HWY_NAMESPACE {

using abi::Act;
using abi::Elem;

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
void activate_store_as(bool interleaved, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit,
                       std::byte* out, bool stream) {
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
    const VF y = interleaved ? activate_pairs<T, kAct>(gate, i, n, alpha, limit)
                             : activate_vector<kAct>(load_part<T>(gate, i, n), load_part<T>(up, i, n), alpha, limit);
    store_part<T>(y, out, i, n);
  }
}

template <class T>
void activate_store_of(Act act, bool interleaved, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit,
                       std::byte* out, bool stream) {
  switch (act) {
    case Act::silu: return activate_store_as<T, Act::silu>(interleaved, gate, up, n, alpha, limit, out, stream);
    case Act::gelu: return activate_store_as<T, Act::gelu>(interleaved, gate, up, n, alpha, limit, out, stream);
    case Act::gelu_tanh: return activate_store_as<T, Act::gelu_tanh>(interleaved, gate, up, n, alpha, limit, out, stream);
    case Act::swigluoai: return activate_store_as<T, Act::swigluoai>(interleaved, gate, up, n, alpha, limit, out, stream);
    default: return activate_store_as<T, Act::multiply>(interleaved, gate, up, n, alpha, limit, out, stream);
  }
}

void activate_store(Elem type, Act act, bool interleaved, const void* gate, const void* up, std::int64_t n, float alpha, float limit,
                    void* out, bool stream) {
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

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ROWS_CPU_ACTIVATION_INL_H_
