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

/// 1 / x of several vectors within 2 units in the last place, for x in [1, 2^126).
template <int kCount>
HWY_INLINE void reciprocal(VF (&x)[kCount]) {
#if HWY_TARGET == HWY_EMU128
  for (int k = 0; k < kCount; ++k) x[k] = hn::Div(hn::Set(df, 1.0F), x[k]);
#else
  const VF one = hn::Set(df, 1.0F);
  constexpr int kSteps = HWY_TARGET == HWY_AVX3 ? 1 : 2;  // its estimate is within 2^-14
  VF r[kCount], e[kCount];
  for (int k = 0; k < kCount; ++k) r[k] = hn::ApproximateReciprocal(x[k]);
  for (int i = 0; i < kSteps; ++i) {
    for (int k = 0; k < kCount; ++k) e[k] = hn::NegMulAdd(x[k], r[k], one);
    for (int k = 0; k < kCount; ++k) r[k] = hn::MulAdd(r[k], e[k], r[k]);
  }
  for (int k = 0; k < kCount; ++k) x[k] = r[k];
#endif
}

/// e^x, or e^-x, of several vectors, for exponents in [-87, 88]; NaN stays. The exponent is split exactly with the low part of log2 e, so
/// that large arguments lose nothing. Vectors take their steps in turns: each step waits for the one before, and a core does not look far
/// enough ahead to fill that time with the next vector.
template <bool kNegate, int kCount>
HWY_INLINE void exp_bounded(VF (&x)[kCount]) {
  const VF magic = hn::Set(df, 0x1.8p23F), one = hn::Set(df, 1.0F);
  const VF high = hn::Set(df, kNegate ? -1.44269502F : 1.44269502F), low = hn::Set(df, kNegate ? -1.92596303e-8F : 1.92596303e-8F);
  VF shifted[kCount], f[kCount], f2[kCount], p[kCount], q[kCount];
  for (int k = 0; k < kCount; ++k) shifted[k] = hn::MulAdd(x[k], high, magic);
  for (int k = 0; k < kCount; ++k) f[k] = hn::Sub(shifted[k], magic);
  for (int k = 0; k < kCount; ++k) f[k] = hn::MulSub(x[k], high, f[k]);
  for (int k = 0; k < kCount; ++k) f[k] = hn::MulAdd(x[k], low, f[k]);
  // 2^f, minimax on [-1/2, 1/2] with a relative error below 1.1e-8.
  for (int k = 0; k < kCount; ++k) f2[k] = hn::Mul(f[k], f[k]);
  for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(hn::Set(df, 1.54035122e-4F), f[k], hn::Set(df, 1.33907353e-3F));
  for (int k = 0; k < kCount; ++k) q[k] = hn::MulAdd(hn::Set(df, 9.61823761e-3F), f[k], hn::Set(df, 5.55035733e-2F));
  for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], f2[k], q[k]);
  for (int k = 0; k < kCount; ++k) q[k] = hn::MulAdd(hn::Set(df, 0.240226492F), f[k], hn::Set(df, 0.693147182F));
  for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], f2[k], q[k]);
  for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], f[k], one);
  for (int k = 0; k < kCount; ++k) {
    const VF scale = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, shifted[k]), hn::Set(di, 127))));
    x[k] = hn::Mul(p[k], scale);
  }
}

/// x, but within +-most; NaN stays.
HWY_INLINE VF clamp(VF x, float most) {
  const VF high = hn::Set(df, most), low = hn::Set(df, -most);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // these take the second operand where either is NaN
  return hn::Min(high, hn::Max(low, x));
#else
  return hn::IfThenElse(hn::Gt(x, high), high, hn::IfThenElse(hn::Lt(x, low), low, x));
#endif
}

/// 1 / (1 + e^-x); 0 below -87, where it is less than 2e-38.
template <int kCount>
HWY_INLINE void logistic(VF (&x)[kCount]) {
  VF y[kCount];
  for (int k = 0; k < kCount; ++k) y[k] = clamp(x[k], 87.0F);
  exp_bounded<true>(y);
  for (int k = 0; k < kCount; ++k) y[k] = hn::Add(hn::Set(df, 1.0F), y[k]);
  reciprocal(y);
  for (int k = 0; k < kCount; ++k) x[k] = hn::IfThenZeroElse(hn::Lt(x[k], hn::Set(df, -87.0F)), y[k]);
}

/// Phi(x) = erfc(-x / sqrt 2) / 2; erfc(z) = e^(-z z) t P(t), t = 1 / (1 + 0.3 z), z >= 0: P is interpolated at Chebyshev nodes with a
/// relative error of 6e-8.
template <int kCount>
HWY_INLINE void normal_cdf(VF (&x)[kCount]) {
  constexpr float kCoefficients[] = {-7.70050638e-5F, 1.35011672e-4F, 3.0565735e-3F, 1.72207995e-2F,
                                     6.1054123e-2F,   0.156989941F,   0.306079107F,  0.455555201F};
  const VF one = hn::Set(df, 1.0F);
  VF z[kCount], t[kCount], u[kCount], p[kCount], e[kCount];
  for (int k = 0; k < kCount; ++k) {
    z[k] = hn::Mul(hn::Abs(x[k]), hn::Set(df, 0.707106781F));
    const VF bounded = hn::IfThenElse(hn::Gt(z[k], hn::Set(df, 10.0F)), hn::Set(df, 10.0F), z[k]);  // the tail is 0 from there on
    t[k] = hn::MulAdd(bounded, hn::Set(df, 0.3F), one);
  }
  reciprocal(t);
  for (int k = 0; k < kCount; ++k) {
    u[k] = hn::MulSub(t[k], hn::Set(df, 3.11111116F), hn::Set(df, 2.11111116F));
    p[k] = hn::Set(df, -1.37610205e-5F);
  }
  for (const float c : kCoefficients) {
    for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], u[k], hn::Set(df, c));
  }
  for (int k = 0; k < kCount; ++k) {
    const VF square = hn::Mul(z[k], z[k]);
    e[k] = hn::IfThenElse(hn::Lt(square, hn::Set(df, 87.0F)), hn::Neg(square), hn::Set(df, -87.0F));
  }
  exp_bounded<false>(e);
  for (int k = 0; k < kCount; ++k) {
    const auto some = hn::Lt(hn::Mul(z[k], z[k]), hn::Set(df, 87.0F));
    VF tail = hn::Mul(hn::Mul(hn::Mul(hn::Set(df, 0.5F), t[k]), p[k]), e[k]);
    tail = hn::IfThenElse(some, tail, hn::Sub(z[k], z[k]));  // 0; NaN of NaN and infinities
    tail = hn::IfThenElse(hn::Gt(z[k], hn::Set(df, 1e30F)), hn::Zero(df), tail);
    x[k] = hn::IfThenElse(hn::Lt(x[k], hn::Zero(df)), tail, hn::Sub(one, tail));
  }
}

/// Over `gate`.
template <Act kAct, int kCount>
HWY_INLINE void activate_vectors(VF (&gate)[kCount], const VF (&up)[kCount], float alpha, float limit) {
  VF y[kCount];
  for (int k = 0; k < kCount; ++k) {
    if constexpr (kAct == Act::gelu_tanh) {
      const VF inner = hn::MulAdd(hn::Mul(gate[k], gate[k]), hn::Set(df, 0.044715F), hn::Set(df, 1.0F));
      y[k] = hn::Mul(hn::Mul(gate[k], hn::Set(df, 1.59576912F)), inner);
    } else if constexpr (kAct == Act::swigluoai) {
      const VF most = hn::Set(df, limit);
      gate[k] = hn::IfThenElse(hn::Gt(gate[k], most), most, gate[k]);
      y[k] = hn::Mul(gate[k], hn::Set(df, alpha));
    } else {
      y[k] = gate[k];
    }
  }
  if constexpr (kAct == Act::gelu) {
    normal_cdf(y);
  } else if constexpr (kAct != Act::multiply) {
    logistic(y);
  }
  for (int k = 0; k < kCount; ++k) {
    if constexpr (kAct != Act::multiply) gate[k] = hn::Mul(gate[k], y[k]);
    if constexpr (kAct == Act::swigluoai) {
      const VF most = hn::Set(df, limit);
      VF u = hn::IfThenElse(hn::Gt(up[k], most), most, up[k]);
      u = hn::IfThenElse(hn::Lt(u, hn::Neg(most)), hn::Neg(most), u);
      gate[k] = hn::Mul(gate[k], hn::Add(u, hn::Set(df, 1.0F)));
    } else {
      gate[k] = hn::Mul(gate[k], up[k]);
    }
  }
}

/// Vectors that go together.
inline constexpr int kTogether = HWY_TARGET == HWY_EMU128 ? 2 : 4;

/// kCount vectors of operands from element i on, all of which exist where kWhole; interleaved: those of `gate` alternate.
template <class L, bool kWhole, int kCount>
HWY_INLINE void load_operands(bool interleaved, const std::byte* gate, const std::byte* up, std::int64_t i, std::int64_t n, VF (&g)[kCount],
                              VF (&u)[kCount]) {
  const auto vector = [&](const std::byte* from, std::int64_t j, std::int64_t end) HWY_ATTR {
    if constexpr (kWhole) return L::load(from + j * L::kBytes);
    return j < end ? load_part<L>(from, j, end) : hn::Zero(df);
  };
  for (int k = 0; k < kCount; ++k) {
    const std::int64_t j = i + k * kLanes;
    if (interleaved) {
      const VF low = vector(gate, 2 * j, 2 * n), high = vector(gate, 2 * j + kLanes, 2 * n);
      g[k] = hn::ConcatEven(df, high, low);
      u[k] = hn::ConcatOdd(df, high, low);
    } else {
      g[k] = vector(gate, j, n);
      u[k] = vector(up, j, n);
    }
  }
}

/// Stored as the sources' type, or f32. One body for whole and last vectors: these files take long enough to compile.
template <class L, Act kAct>
void activate_row(bool interleaved, bool as_f32, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit,
                  std::byte* out, bool stream) {
  for (std::int64_t i = 0; i < n; i += kTogether * kLanes) {
    const bool whole = i + kTogether * kLanes <= n;
    VF g[kTogether], u[kTogether];
    if (whole) {
      load_operands<L, true>(interleaved, gate, up, i, n, g, u);
    } else {
      load_operands<L, false>(interleaved, gate, up, i, n, g, u);
    }
    activate_vectors<kAct>(g, u, alpha, limit);
    const auto value = [&](std::int64_t j) HWY_ATTR { return g[(j - i) / kLanes]; };
    for (int k = 0; k < kTogether; ++k) {
      const std::int64_t j = i + k * kLanes;
      if (whole && k % 2 == 0) {
        if (as_f32) {
          store_line<F32>(value, out, j, stream);
        } else {
          store_line<L>(value, out, j, stream);
        }
      } else if (!whole && j < n) {
        if (as_f32) {
          store_part<F32>(g[k], out, j, n);
        } else {
          store_part<L>(g[k], out, j, n);
        }
      }
    }
  }
}

template <class L>
void activate_of(Act act, bool interleaved, bool as_f32, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha,
                 float limit, std::byte* out, bool stream) {
  switch (act) {
    case Act::silu: return activate_row<L, Act::silu>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    case Act::gelu: return activate_row<L, Act::gelu>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    case Act::gelu_tanh: return activate_row<L, Act::gelu_tanh>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    case Act::swigluoai: return activate_row<L, Act::swigluoai>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    default: return activate_row<L, Act::multiply>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
  }
}

void activate(Elem type, Elem to, Act act, bool interleaved, const void* gate, const void* up, std::int64_t n, float alpha, float limit,
              void* out, bool stream) {
  const auto* g = static_cast<const std::byte*>(gate);
  const auto* u = static_cast<const std::byte*>(up);
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  const bool as_f32 = to == Elem::f32;
  switch (type) {
    case Elem::f32: return activate_of<F32>(act, interleaved, as_f32, g, u, n, alpha, limit, o, stream);
    case Elem::f16: return activate_of<F16>(act, interleaved, as_f32, g, u, n, alpha, limit, o, stream);
    default: return activate_of<Bf16>(act, interleaved, as_f32, g, u, n, alpha, limit, o, stream);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ROWS_CPU_ACTIVATION_INL_H_
