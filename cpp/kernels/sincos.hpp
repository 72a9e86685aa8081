// sin(x) and cos(x), float64, on every lane.
//
// n = round(2 x / pi), r = x - n pi / 2 as a sum of two doubles, with pi / 2 in two parts whose products with
// n are taken exactly; then polynomials on [-pi/4, pi/4] (own Remez fits: sin r = r + r^3 S(r^2), relative
// error 3.4e-18, cos r = 1 - r^2 / 2 + r^4 C(r^2), 4.7e-20) and the quadrant n mod 4. Below 1 ulp for |x| <=
// 2^40. Larger angles, inf and NaN go lane by lane through the C library.
#pragma once

#include "kernels/dtypes.hpp"

namespace simdformer::SF_ISA {

template <class V>
struct SinCos {
  V sin, cos;
};

SF_INLINE SinCos<Vec<double>> vec_sincos(Vec<double> x) {
  using V = Vec<double>;
  using I = Vec<int64_t>;
  constexpr double kEnd = 0x1p40;
  if (!xsimd::all(xsimd::abs(x) <= V(kEnd))) {
    constexpr int64_t W = kLanes<double>;
    alignas(64) double angle[W], sin[W], cos[W];
    x.store_aligned(angle);
    for (int64_t i = 0; i < W; ++i) {
      sin[i] = ::sin(angle[i]);
      cos[i] = ::cos(angle[i]);
    }
    return {V::load_aligned(sin), V::load_aligned(cos)};
  }

  const V shifter(0x1.8p52);  // adding it leaves the nearest integer in the low mantissa bits
  const V shifted = mul_add(x, V(0x1.45f306dc9c883p-1), shifter), n = shifted - shifter;
  const V pi_2(0x1.921fb54442d18p+0), pi_2_rest(0x1.1a62633145c07p-54);
  const V whole = n * pi_2;
  const V near = (x - whole) - product_error(n, pi_2, whole);  // exact
  const V little = n * pi_2_rest;
  const V r = near - little, rest = (near - r) - little;

  const V z = r * r;
  V s = mul_add(V(0x1.5d93184c75e77p-33), z, V(-0x1.ae5e66884e01bp-26));
  s = mul_add(s, z, V(0x1.71de3578163eep-19));
  s = mul_add(s, z, V(-0x1.a01a019c12031p-13));
  s = mul_add(s, z, V(0x1.111111110f87dp-7));
  s = mul_add(s, z, V(-0x1.5555555555549p-3));
  V c = mul_add(V(-0x1.8faeb5dfe0cc7p-37), z, V(0x1.1ee9ec1888c51p-29));
  c = mul_add(c, z, V(-0x1.27e4f80a33a2dp-22));
  c = mul_add(c, z, V(0x1.a01a019cb2169p-16));
  c = mul_add(c, z, V(-0x1.6c16c16c15181p-10));
  c = mul_add(c, z, V(0x1.555555555554cp-5));

  const V sin_r = r + mul_add(r * z, s, rest);  // sin(r + rest) = sin r + rest cos r, and so on
  const V half_z = z * V(0.5), one_less = V(1.0) - half_z;
  const V cos_r = one_less + (((V(1.0) - one_less) - half_z) + neg_mul_add(r, rest, V(z * z * c)));

  // n mod 4 = 0: (sin, cos)   1: (cos, -sin)   2: (-sin, -cos)   3: (-cos, sin)
  const I quadrant = lanes_as<I>(shifted);
  const V half_n = n * V(0.5);
  const auto odd = (half_n + shifter) - shifter != half_n;
  const V sin_sign = lanes_as<V>(I((quadrant & I(2)) << 62));
  const V cos_sign = lanes_as<V>(I(((quadrant + I(1)) & I(2)) << 62));
  return {xsimd::select(odd, cos_r, sin_r) ^ sin_sign, xsimd::select(odd, sin_r, cos_r) ^ cos_sign};
}

}  // namespace simdformer::SF_ISA
