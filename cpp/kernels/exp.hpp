// exp(x), float32 and float64, on every lane.
//
// n = round(x log2 e), r = x - n ln 2 in two steps (Cody and Waite), exp(r) = 1 + r + r^2 q(r), scaled by
// 2^n. q is the minimax polynomial on [-ln2/2, ln2/2] (own Remez fits): degree 4 in float32, relative error
// 3.1e-9, degree 9 in float64, relative error 3.7e-18, so that the rounding of the arithmetic is what is
// left: at most 1 ulp. Domain: all floats; exp(-inf) = 0, results below the smallest normal number are
// subnormal, overflow gives inf, NaN stays NaN.
#pragma once

#include "kernels/vec.hpp"

namespace simdformer::SF_ISA {

// p * 2^n for 0.5 <= p <= 2 and integral n, |n| <= 252 in float32, 2044 in float64. With an n that is NaN the
// result is p or NaN.
template <class V>
SF_INLINE V scale_by_power(V p, V n) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<V>)
    return V(_mm512_scalef_ps(p, n));
  else
    return V(_mm512_scalef_pd(p, n));
#else
  using A = typename V::value_type;
  using I = xsimd::batch<std::conditional_t<kIsFloat<V>, int32_t, int64_t>, typename V::arch_type>;
  constexpr int kMantissa = kIsFloat<V> ? 23 : 52, kBias = kIsFloat<V> ? 127 : 1023;
  // Two factors, because 2^n alone leaves the exponent's range before the product does. Adding the shifter
  // puts an integer into the low bits of the mantissa, here with the exponent's bias on top.
  const V shifter(static_cast<A>(kIsFloat<V> ? 0x1.8p23 : 0x1.8p52)),
      biased = shifter + V(static_cast<A>(kBias));
  const V half = mul_add(n, V(A(0.5)), shifter) - shifter;
  const I low = lanes_as<I>(V(half + biased)) << kMantissa, high = lanes_as<I>(V((n - half) + biased))
                                                                   << kMantissa;
  return p * lanes_as<V>(low) * lanes_as<V>(high);
#endif
}

template <class Arch>
SF_INLINE Vec<Arch, float> vec_exp(Vec<Arch, float> x) {
  using V = Vec<Arch, float>;
  x = larger(V(-105.0f), smaller(V(89.0f), x));  // NaN goes through
  const V shifter(0x1.8p23f);  // adding it leaves the nearest integer in the low mantissa bits
  const V n = mul_add(x, V(0x1.715476p0f), shifter) - shifter;
  V r = neg_mul_add(n, V(0x1.62e400p-1f), x);
  r = neg_mul_add(n, V(0x1.7f7d1cp-20f), r);
  V q = mul_add(V(0x1.6a2434p-10f), r, V(0x1.1239e2p-7f));
  q = mul_add(q, r, V(0x1.5558f2p-5f));
  q = mul_add(q, r, V(0x1.555492p-3f));
  q = mul_add(q, r, V(0x1.fffffcp-2f));
  return scale_by_power(V(mul_add(r * r, q, r) + V(1.0f)), n);
}

template <class Arch>
SF_INLINE Vec<Arch, double> vec_exp(Vec<Arch, double> x) {
  using V = Vec<Arch, double>;
  x = larger(V(-746.0), smaller(V(710.0), x));
  const V shifter(0x1.8p52);
  const V n = mul_add(x, V(0x1.71547652b82fep0), shifter) - shifter;
  V r = neg_mul_add(n, V(0x1.62e42fefa3000p-1), x);
  r = neg_mul_add(n, V(0x1.3de6af278ece6p-42), r);
  V q = mul_add(V(0x1.ad7f79e40696cp-26), r, V(0x1.28ad68b016a59p-22));
  q = mul_add(q, r, V(0x1.71df253afd971p-19));
  q = mul_add(q, r, V(0x1.a0199a16d2cc3p-16));
  q = mul_add(q, r, V(0x1.a01a012a693c2p-13));
  q = mul_add(q, r, V(0x1.6c16c1842672bp-10));
  q = mul_add(q, r, V(0x1.1111111127b9dp-7));
  q = mul_add(q, r, V(0x1.555555555088cp-5));
  q = mul_add(q, r, V(0x1.55555555554fap-3));
  q = mul_add(q, r, V(0x1.000000000000ap-1));
  return scale_by_power(V(mul_add(r * r, q, r) + V(1.0)), n);
}

}  // namespace simdformer::SF_ISA
