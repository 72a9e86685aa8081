// exp(x), float32 and float64, on every lane.
//
// float32: n = round(x log2 e), r = x - n ln 2 in two steps (Cody and Waite), exp(r) = 1 + r + r^2 q(r), scaled by 2^n.
// q is the minimax polynomial of degree 4 on [-ln2/2, ln2/2] (own Remez fit, relative error 3.1e-9), so that the
// rounding of the arithmetic is what is left: at most 1 ulp. Domain: all floats; exp(-inf) = 0, results below 2^-126
// are subnormal, overflow gives inf, NaN stays NaN. float64 is xsimd's (below 1 ulp).
#pragma once

#include "kernels/vec.hpp"

namespace simdformer::SF_ISA {

// p * 2^n for integral n in [-300, 300]
template <class Arch>
SF_INLINE Vec<Arch, float> scale_by_power(Vec<Arch, float> p, Vec<Arch, float> n) {
  using V = Vec<Arch, float>;
#if defined(__AVX512F__)
  return V(_mm512_scalef_ps(p, n));
#else
  using I = xsimd::batch<int32_t, Arch>;
  // Two factors, because 2^n alone leaves the exponent's range before the product does.
  const I whole = xsimd::to_int(n);
  const I half = whole >> 1;
  const I bias(127);
  const V low = lanes_as<V>((half + bias) << 23);
  const V high = lanes_as<V>((whole - half + bias) << 23);
  return p * low * high;
#endif
}

template <class Arch>
SF_INLINE Vec<Arch, float> vec_exp(Vec<Arch, float> x) {
  using V = Vec<Arch, float>;
  // Comparisons with NaN are false, so that a NaN goes through both clamps.
  x = xsimd::select(x > V(89.0f), V(89.0f), x);
  x = xsimd::select(x < V(-105.0f), V(-105.0f), x);
  const V shifter(0x1.8p23f);  // adding it leaves the nearest integer in the low mantissa bits
  const V n = mul_add(x, V(0x1.715476p0f), shifter) - shifter;
  V r = neg_mul_add(n, V(0x1.62e400p-1f), x);
  r = neg_mul_add(n, V(0x1.7f7d1cp-20f), r);
  V q = mul_add(V(0x1.6a2434p-10f), r, V(0x1.1239e2p-7f));
  q = mul_add(q, r, V(0x1.5558f2p-5f));
  q = mul_add(q, r, V(0x1.555492p-3f));
  q = mul_add(q, r, V(0x1.fffffcp-2f));
  return scale_by_power<Arch>(mul_add(r * r, q, r) + V(1.0f), n);
}

template <class Arch>
SF_INLINE Vec<Arch, double> vec_exp(Vec<Arch, double> x) {
  return xsimd::exp(x);
}

}  // namespace simdformer::SF_ISA
