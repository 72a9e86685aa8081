// Gradients of what is done element by element, dy = the gradient of y:
//   silu        dx = dy s (1 + x (1 - s)), s = 1 / (1 + e^-x)
//   gelu        dx = dy (Phi(x) + x phi(x))
//   gelu_tanh   dx = dy (s + x s (1 - s) 2 u'), s = 1 / (1 + e^-2u), u as in activation.hpp
//   relu        dx = dy where x > 0, 0 elsewhere; NaN passes dy
//   swiglu      d gate = dy up s (1 + gate (1 - s)), d up = dy gate s
//
// Arithmetic in float32 (float64 for float64), one rounding at the store. s and 1 - s come from one e^-|x|, so
// that neither loses digits where the other is near 1. An output may be an input.
#pragma once

#include "base/gradient_args.hpp"
#include "kernels/activation.hpp"

namespace simdformer::SF_ISA {

// s = 1 / (1 + e^-x), and 1 - s
template <class V>
struct Sigmoid {
  V s, rest;

  SF_INLINE explicit Sigmoid(V x) {
    using A = typename V::value_type;
    const V z = vec_exp(minus_abs(x)), large = divide(V(A(1)), V(V(A(1)) + z)), small = V(z * large);
    s = where_negative(x, small, large);
    rest = where_negative(x, large, small);
  }
};

template <Activation kind>
struct SlopeOf {
  template <class V>
  SF_INLINE V operator()(V dy, V x) const {
    using A = typename V::value_type;
    if constexpr (kind == Activation::silu) {
      const Sigmoid<V> of(x);
      return dy * (of.s * mul_add(x, of.rest, V(A(1))));
    } else if constexpr (kind == Activation::gelu) {
      const auto [q, e] = normal_tail(V(xsimd::abs(x)));
      const V cdf = xsimd::select(x < V(A(0)), q, V(V(A(1)) - q));
      const V density = e * V(A(0.398942280401432677940));
      return dy * mul_add(x, density, cdf);
    } else if constexpr (kind == Activation::gelu_tanh) {
      const V square = x * x;
      const V twice_u = x * mul_add(square, V(A(0.0713548162726002487763)), V(A(1.59576912160573071175978)));
      const V twice_slope =
          mul_add(square, V(A(3 * 0.0713548162726002487763)), V(A(1.59576912160573071175978)));
      const Sigmoid<V> of(twice_u);
      return dy * (of.s * mul_add(V(x * of.rest), twice_slope, V(A(1))));
    } else {
      return xsimd::select(x <= V(A(0)), V(A(0)), dy);
    }
  }
};

template <class T, Activation kind>
void activate_backward(const ActivationBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  map_rows<T>(args, begin, end, SlopeOf<kind>(), args.grad, args.x);
}

inline void activation_backward(const ActivationBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) {
    using T = decltype(x);
    switch (args.kind) {
      case Activation::silu:
        return activate_backward<T, Activation::silu>(args, begin, end);
      case Activation::gelu:
        return activate_backward<T, Activation::gelu>(args, begin, end);
      case Activation::gelu_tanh:
        return activate_backward<T, Activation::gelu_tanh>(args, begin, end);
      case Activation::relu:
        return activate_backward<T, Activation::relu>(args, begin, end);
    }
  });
}

inline void swiglu_backward(const SwigluBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.grad.dtype, [&](auto type) {
    using T = decltype(type);
    const auto slope = [](auto dy, auto gate, auto up) __attribute__((always_inline)) {
      using V = decltype(dy);
      const Sigmoid<V> of(gate);
      const V through = dy * of.s;
      return Pair<V>{V(through * up * mul_add(gate, of.rest, V(typename V::value_type(1)))),
                     V(through * gate)};
    };
    each_piece(
        begin, end, args.grad.length, args.segment,
        [&](int64_t offset, int64_t n, const char* dy, const char* gate, const char* up, char* d_gate,
            char* d_up) {
          const auto in = [&](const char* row) { return reinterpret_cast<const T*>(row) + offset; };
          const auto to = [&](char* row) { return reinterpret_cast<T*>(row) + offset; };
          map_row<2>(Pair<T*>{to(d_gate), to(d_up)}, n, slope, in(dy), in(gate), in(up));
        },
        args.grad, args.gate, args.up, args.d_gate, args.d_up);
  });
}

}  // namespace simdformer::SF_ISA
