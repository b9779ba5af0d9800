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

/// e^x, or e^-x, of several vectors, times `factor` plus `summand`, for exponents in [-87, 87]; NaN stays. The exponent is split exactly
/// with the low part of log2 e, so that large arguments lose nothing; kShort (rows of 16 bits) is within 5e-6. Vectors take their steps in
/// turns: each step waits for the one before, and a core does not look far enough ahead to fill that time with the next vector.
template <bool kShort, bool kNegate, int kCount>
HWY_INLINE void exp_bounded(VF (&x)[kCount], float summand) {
  const VF magic = hn::Set(df, 0x1.8p23F + 127);  // the sum's last bits are the exponent field
  const VF high = hn::Set(df, kNegate ? -1.44269502F : 1.44269502F), low = hn::Set(df, kNegate ? -1.92596303e-8F : 1.92596303e-8F);
  VF shifted[kCount], f[kCount], p[kCount];
  for (int k = 0; k < kCount; ++k) shifted[k] = hn::MulAdd(x[k], high, magic);
  for (int k = 0; k < kCount; ++k) f[k] = hn::Sub(shifted[k], magic);
  for (int k = 0; k < kCount; ++k) f[k] = hn::MulSub(x[k], high, f[k]);
  // 2^f, minimax on [-1/2, 1/2] with a relative error below 2.6e-6 (kShort) or 1.1e-8.
  if constexpr (kShort) {
    for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(hn::Set(df, 9.570102891e-3F), f[k], hn::Set(df, 5.591786013e-2F));
    for (const float c : {0.2402474482F, 0.6931218149F, 0.9999992614F}) {
      for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], f[k], hn::Set(df, c));
    }
  } else {
    VF f2[kCount], q[kCount];
    for (int k = 0; k < kCount; ++k) f[k] = hn::MulAdd(x[k], low, f[k]);
    for (int k = 0; k < kCount; ++k) f2[k] = hn::Mul(f[k], f[k]);
    for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(hn::Set(df, 1.54035122e-4F), f[k], hn::Set(df, 1.33907353e-3F));
    for (int k = 0; k < kCount; ++k) q[k] = hn::MulAdd(hn::Set(df, 9.61823761e-3F), f[k], hn::Set(df, 5.55035733e-2F));
    for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], f2[k], q[k]);
    for (int k = 0; k < kCount; ++k) q[k] = hn::MulAdd(hn::Set(df, 0.240226492F), f[k], hn::Set(df, 0.693147182F));
    for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], f2[k], q[k]);
    for (int k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], f[k], hn::Set(df, 1.0F));
  }
  for (int k = 0; k < kCount; ++k) {
    const VF scale = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, shifted[k])));
    x[k] = hn::MulAdd(p[k], scale, hn::Set(df, summand));
  }
}

/// x, but at most (least) that; NaN stays.
HWY_INLINE VF at_most(VF x, float most) {
  const VF high = hn::Set(df, most);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // these take the second operand where either is NaN
  return hn::Min(high, x);
#else
  return hn::IfThenElse(hn::Gt(x, high), high, x);
#endif
}
HWY_INLINE VF at_least(VF x, float least) {
  const VF low = hn::Set(df, least);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::Max(low, x);
#else
  return hn::IfThenElse(hn::Lt(x, low), low, x);
#endif
}

/// 1 / (1 + e^-x); 0 below -87, where it is less than 2e-38.
template <bool kShort, int kCount>
HWY_INLINE void logistic(VF (&x)[kCount]) {
  VF y[kCount];
  for (int k = 0; k < kCount; ++k) y[k] = at_most(at_least(x[k], -87.0F), 87.0F);
  exp_bounded<kShort, true>(y, 1.0F);
  reciprocal(y);
  for (int k = 0; k < kCount; ++k) x[k] = hn::IfThenZeroElse(hn::Lt(x[k], hn::Set(df, -87.0F)), y[k]);
}

/// Phi(x) = erfc(-x / sqrt 2) / 2; erfc(z) / 2 = e^(-z z) t P(t), t = 1 / (1 + 0.3 z), z >= 0: P is minimax with a relative error of 5.5e-6
/// (kShort) or 2e-8. Of NaN any number: what it is multiplied with is NaN.
template <bool kShort, int kCount>
HWY_INLINE void normal_cdf(VF (&x)[kCount]) {
  constexpr float kLong[] = {-0.06476149958F, 0.2427818298F,  -0.2561395023F, 0.2738605367F, -0.04732572795F,
                             0.1074631894F,   0.07416954207F, 0.08535761995F, 0.08459400219F};
  constexpr float kBrief[] = {0.08811182967F, 0.06984521876F, -0.04422504878F, 0.1677425227F, 0.04221949654F, 0.092272007F, 0.08403670846F};
  constexpr float kMost = 87.0F;  // of z z: the tail is 0 from there on
  VF t[kCount], p[kCount], square[kCount], e[kCount];
  for (int k = 0; k < kCount; ++k) {
    square[k] = hn::Mul(hn::Mul(x[k], hn::Set(df, 0.5F)), x[k]);
    e[k] = at_most(square[k], kMost);
    t[k] = hn::MulAdd(at_most(hn::Abs(x[k]), 14.0F), hn::Set(df, 0.212132034F), hn::Set(df, 1.0F));
  }
  reciprocal(t);
  const auto polynomial = [&](const auto& coefficients) HWY_ATTR {
    bool first = true;
    for (const float c : coefficients) {
      for (int k = 0; k < kCount; ++k) p[k] = first ? hn::Set(df, c) : hn::MulAdd(p[k], t[k], hn::Set(df, c));
      first = false;
    }
  };
  if constexpr (kShort) {
    polynomial(kBrief);
  } else {
    polynomial(kLong);
  }
  exp_bounded<kShort, true>(e, 0.0F);
  for (int k = 0; k < kCount; ++k) {
    const VF tail = hn::IfThenElseZero(hn::Lt(square[k], hn::Set(df, kMost)), hn::Mul(hn::Mul(t[k], p[k]), e[k]));
    x[k] = hn::IfThenElse(hn::Lt(x[k], hn::Zero(df)), tail, hn::Sub(hn::Set(df, 1.0F), tail));
  }
}

/// Over `gate`.
template <Act kAct, bool kShort, int kCount>
HWY_INLINE void activate_vectors(VF (&gate)[kCount], const VF (&up)[kCount], float alpha, float limit) {
  VF y[kCount];
  for (int k = 0; k < kCount; ++k) {
    if constexpr (kAct == Act::gelu_tanh) {
      const VF inner = hn::MulAdd(hn::Mul(gate[k], gate[k]), hn::Set(df, 0.044715F), hn::Set(df, 1.0F));
      y[k] = hn::Mul(hn::Mul(gate[k], hn::Set(df, 1.59576912F)), inner);
    } else if constexpr (kAct == Act::swigluoai) {
      gate[k] = at_most(gate[k], limit);
      y[k] = hn::Mul(gate[k], hn::Set(df, alpha));
    } else {
      y[k] = gate[k];
    }
  }
  if constexpr (kAct == Act::gelu) {
    normal_cdf<kShort>(y);
  } else if constexpr (kAct != Act::multiply) {
    logistic<kShort>(y);
  }
  for (int k = 0; k < kCount; ++k) {
    if constexpr (kAct != Act::multiply) gate[k] = hn::Mul(gate[k], y[k]);
    if constexpr (kAct == Act::swigluoai) {
      const VF u = at_least(at_most(up[k], limit), -limit);
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
      if constexpr (kWhole && L::kWoven) {
        L::load_both(gate + 2 * j * L::kBytes, g[k], u[k]);
      } else {
        const VF low = vector(gate, 2 * j, 2 * n), high = vector(gate, 2 * j + kLanes, 2 * n);
        g[k] = hn::ConcatEven(df, high, low);
        u[k] = hn::ConcatOdd(df, high, low);
      }
    } else {
      g[k] = vector(gate, j, n);
      u[k] = vector(up, j, n);
    }
  }
}

/// Stored as the sources' type, or f32. One body for whole and last vectors: these files take long enough to compile. Rows of bf16 that
/// stay such go through as pairs of even and odd elements, which take an instruction each to widen and to join.
template <class L, Act kAct, bool kWoven>
void activate_row(bool interleaved, bool as_f32, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit,
                  std::byte* out, bool stream) {
  for (std::int64_t i = 0; i < n; i += kTogether * kLanes) {
    const bool whole = i + kTogether * kLanes <= n;
    VF g[kTogether], u[kTogether];
    if (kWoven && whole) {
      if constexpr (kWoven) {
        for (int k = 0; k < kTogether; k += 2) {
          L::load_both(gate + (i + k * kLanes) * L::kBytes, g[k], g[k + 1]);
          L::load_both(up + (i + k * kLanes) * L::kBytes, u[k], u[k + 1]);
        }
      }
    } else if (whole) {
      load_operands<L, true>(interleaved, gate, up, i, n, g, u);
    } else {
      load_operands<L, false>(interleaved, gate, up, i, n, g, u);
    }
    activate_vectors<kAct, L::kBytes == 2>(g, u, alpha, limit);
    const auto value = [&](std::int64_t j) HWY_ATTR { return g[(j - i) / kLanes]; };
    for (int k = 0; k < kTogether; ++k) {
      const std::int64_t j = i + k * kLanes;
      if (whole && k % 2 == 0) {
        if constexpr (kWoven) {
          put_vector(du16, L::weave_both(g[k], g[k + 1]), out + j * L::kBytes, stream);
        } else if (as_f32) {
          store_line<F32>(value, out, j, stream);
        } else if constexpr (L::kWoven) {
          put_vector(du16, L::join_numbers(g[k], g[k + 1]), out + j * L::kBytes, stream);
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

template <class L, Act kAct>
void activate_as(bool interleaved, bool as_f32, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha, float limit,
                 std::byte* out, bool stream) {
  if constexpr (L::kWoven) {
    if (!interleaved && !as_f32) return activate_row<L, kAct, true>(false, false, gate, up, n, alpha, limit, out, stream);
  }
  activate_row<L, kAct, false>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
}

template <class L>
void activate_of(Act act, bool interleaved, bool as_f32, const std::byte* gate, const std::byte* up, std::int64_t n, float alpha,
                 float limit, std::byte* out, bool stream) {
  switch (act) {
    case Act::silu: return activate_as<L, Act::silu>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    case Act::gelu: return activate_as<L, Act::gelu>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    case Act::gelu_tanh: return activate_as<L, Act::gelu_tanh>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    case Act::swigluoai: return activate_as<L, Act::swigluoai>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
    default: return activate_as<L, Act::multiply>(interleaved, as_f32, gate, up, n, alpha, limit, out, stream);
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
