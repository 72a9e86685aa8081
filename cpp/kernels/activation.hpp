// Element by element, x and y of any shape:
//   silu        y = x / (1 + e^-x)
//   gelu        y = x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2
//   gelu_tanh   y = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3), which is x (1 + tanh u) / 2
//   relu        y = max(x, 0), NaN stays NaN
//   swiglu      y = silu(gate) up
//   add         y = x + x'
//
// Arithmetic in float32 (float64 for float64), one rounding at the store. Nothing overflows on the way: only
// e^-|x| is taken. As in PyTorch f(-inf) is NaN, except relu's. silu and gelu keep their relative accuracy
// far out on the negative side, where 1 + erf would cancel.
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/exp.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

// x / (1 + e^-s) for s of x's sign
template <class V>
SF_INLINE V times_sigmoid(V x, V s) {
  using A = typename V::value_type;
  const V z = vec_exp(minus_abs(s));
  return divide(V(where_negative(x, V(x * z), x)), V(V(A(1)) + z));
}

// The upper tail of the normal distribution, Q(t) = 1 - Phi(t) for t >= 0, with a relative error of a few
// ulp, and e^(-t^2 / 2). Q(t) e^(t^2 / 2) = v P(w), v = k / (t + k), w = v stretched to [-1, 1]; P interpolates at Chebyshev
// nodes (own fit). float32: t <= 15, k = 3.3, degree 9, error 6.2e-9. float64: t <= 39, k = 5, degree 22,
// error 1.2e-17. Beyond, Q is 0.
template <class A>
struct NormalTail;

template <>
struct NormalTail<float> {
  static constexpr float kEnd = 15.0f, kPole = 3.3f, kStretch = 0x1.3851ecp+1f, kShift = -0x1.70a3d8p+0f;
  static constexpr float kP[] = {-0x1.c77936p-18f, -0x1.5f7bc6p-23f, 0x1.69250cp-14f, -0x1.660de8p-16f,
                                 -0x1.0f2f4ap-10f, -0x1.1c46bcp-11f, 0x1.e0eb84p-7f,  0x1.13d106p-4f,
                                 0x1.4d88a2p-3f,   0x1.06ce3cp-2f};
};

template <>
struct NormalTail<double> {
  static constexpr double kEnd = 39.0, kPole = 5.0, kStretch = 0x1.20d20d20d20d2p+1,
                          kShift = -0x1.41a41a41a41a4p+0;
  static constexpr double kP[] = {
      -0x1.3a8ba88d39a70p-39, -0x1.2c55bc29a9aa1p-35, 0x1.d9c13b3cdb625p-35,  0x1.e0740136a91cap-32,
      -0x1.803d577f3dc30p-31, -0x1.0170991329c01p-28, 0x1.de996300a607bp-28,  0x1.1369524a0355fp-25,
      -0x1.fb0546984632cp-25, -0x1.5437a016d3fbep-22, 0x1.8ead13680c679p-22,  0x1.de145d0d8288fp-19,
      0x1.e015056cc408ep-21,  -0x1.442e9b87456f4p-15, -0x1.b7db9ef8e97e7p-14, 0x1.69dced7d4991ep-13,
      0x1.22127ea2650b7p-9,   0x1.2d49c85cf4dbep-7,   0x1.a5a0461627d45p-6,   0x1.c631dac9cf35ap-5,
      0x1.8c7c09ac49959p-4,   0x1.1f38e056e8adfp-3,   0x1.5cda21cf8e289p-3};
};

template <class V>
SF_INLINE Pair<V> normal_tail(V t) {
  using A = typename V::value_type;
  using Fit = NormalTail<A>;
  t = smaller(V(Fit::kEnd), t);  // NaN goes through
  const V v = divide(V(Fit::kPole), V(t + V(Fit::kPole)));
  const V w = mul_add(v, V(Fit::kStretch), V(Fit::kShift));
  V p(Fit::kP[0]);
  for (size_t i = 1; i < sizeof(Fit::kP) / sizeof(A); ++i) p = mul_add(p, w, V(Fit::kP[i]));
  // t^2 in two parts, because exp turns an error of t^2 into a relative one
  const V square = t * t, rest = product_error(t, t, square);
  const V e = vec_exp(V(square * V(A(-0.5))));
  const V exact = neg_mul_add(e * V(A(0.5)), rest, e);
  return {V(v * p * exact), exact};
}

template <Activation kind>
struct ActivationOf {
  template <class V>
  SF_INLINE V operator()(V x) const {
    using A = typename V::value_type;
    if constexpr (kind == Activation::silu) {
      return times_sigmoid(x, x);
    } else if constexpr (kind == Activation::gelu) {
      const V q = normal_tail(V(xsimd::abs(x))).a;
      return x * xsimd::select(x < V(A(0)), q, V(V(A(1)) - q));
    } else if constexpr (kind == Activation::gelu_tanh) {
      const V twice_u = x * mul_add(x * x, V(A(0.0713548162726002487763)), V(A(1.59576912160573071175978)));
      return times_sigmoid(x, twice_u);
    } else {
      return xsimd::select(x <= V(A(0)), V(A(0)), x);
    }
  }
};

struct Swiglu {
  template <class V>
  SF_INLINE V operator()(V gate, V up) const {
    return times_sigmoid(gate, gate) * up;
  }
};

struct Sum {
  template <class V>
  SF_INLINE V operator()(V x, V y) const {
    return x + y;
  }
};

// ---- entries of the table ---------------------------------------------------------------------------------

template <class T, Activation kind>
void activate(const ActivationArgs& args, int64_t begin, int64_t end) noexcept {
  map_rows<T>(args, begin, end, ActivationOf<kind>(), args.x);
}

inline void activation(const ActivationArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) {
    using T = decltype(x);
    switch (args.kind) {
      case Activation::silu:
        return activate<T, Activation::silu>(args, begin, end);
      case Activation::gelu:
        return activate<T, Activation::gelu>(args, begin, end);
      case Activation::gelu_tanh:
        return activate<T, Activation::gelu_tanh>(args, begin, end);
      case Activation::relu:
        return activate<T, Activation::relu>(args, begin, end);
    }
  });
}

inline void swiglu(const PairArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.out.dtype,
            [&](auto type) { map_rows<decltype(type)>(args, begin, end, Swiglu(), args.x, args.y); });
}

inline void add(const PairArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.out.dtype,
            [&](auto type) { map_rows<decltype(type)>(args, begin, end, Sum(), args.x, args.y); });
}

}  // namespace simdformer::SF_ISA
