// exp(x) for x <= 0, which is all that a softmax or a sigmoid asks for; float32 and float64, on every lane.
//
// n = round(x log2 e), r = x - n ln 2 in two steps (Cody and Waite), exp(r) = 1 + r + r^2 q(r), scaled by
// 2^n. q is the minimax polynomial on [-ln2/2, ln2/2] (own Remez fits): degree 4 in float32, relative error
// 3.1e-9, degree 9 in float64, relative error 3.7e-18, so that the rounding of the arithmetic is what is
// left: at most 1 ulp. Where the CPU looks up in a register n goes in sixteenths, whose powers of two are a
// table in a register; a polynomial of half the length is left (at most 0.7 ulp, and 30 % faster). exp(-inf)
// = 0, results below the smallest normal number are subnormal, NaN stays NaN.
#pragma once

#include "isa/isa.hpp"

namespace simdformer::SF_ISA {

// 2^(j/16) rounded to float32, and what ln of the rounded number lacks.
alignas(64) constexpr float kPowers[16] = {0x1p+0f,        0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f,
                                           0x1.306fe0p+0f, 0x1.3dea64p+0f, 0x1.4bfdaep+0f, 0x1.5ab07ep+0f,
                                           0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
                                           0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};
alignas(64) constexpr float kPowerErrors[16] = {
    0x0p+0f,          0x1.8d96d4p-25f,  -0x1.9c0c22p-27f, 0x1.964904p-25f,  0x1.125002p-25f, 0x1.370be4p-25f,
    -0x1.0a3550p-25f, -0x1.00d8acp-27f, 0x1.26055cp-26f,  -0x1.05cb44p-25f, 0x1.67a1cap-28f, 0x1.a3b5e4p-28f,
    -0x1.f9c304p-27f, -0x1.6961b4p-28f, -0x1.a5217cp-28f, 0x1.61428ep-28f};

SF_INLINE Vec<float> exp_by_table(Vec<float> x) {
  using V = Vec<float>;
  x = larger(V(-105.0f), x);   // NaN goes through
  const V shifter(0x1.8p19f);  // adding it leaves the nearest sixteenth in the low mantissa bits
  const V sixteenth = mul_add(x, V(0x1.715476p0f), shifter), n = sixteenth - shifter;
  V r = neg_mul_add(n, V(0x1.62e400p-1f), x);
  r = neg_mul_add(n, V(0x1.7f7d1cp-20f), r) + look_up(kPowerErrors, sixteenth);
  const V power = look_up(kPowers, sixteenth);
  const V rest = mul_add(r * r, mul_add(r, V(0x1.5555cep-3f), V(0.5f)), r);
  return scale_by_power(V(mul_add(power, rest, power)), n);
}

SF_INLINE Vec<float> exp_by_polynomial(Vec<float> x) {
  using V = Vec<float>;
  x = larger(V(-105.0f), x);         // NaN goes through
  const V shifter(kShifter<float>);  // adding it leaves the nearest integer in the low mantissa bits
  const V shifted = mul_add(x, V(0x1.715476p0f), shifter), n = shifted - shifter;
  V r = neg_mul_add(n, V(0x1.62e400p-1f), x);
  r = neg_mul_add(n, V(0x1.7f7d1cp-20f), r);
  V q = mul_add(V(0x1.6a2434p-10f), r, V(0x1.1239e2p-7f));
  q = mul_add(q, r, V(0x1.5558f2p-5f));
  q = mul_add(q, r, V(0x1.555492p-3f));
  q = mul_add(q, r, V(0x1.fffffcp-2f));
  return scale_one_plus(mul_add(r * r, q, r), shifted);
}

SF_INLINE Vec<float> vec_exp(Vec<float> x) {
  if constexpr (kLooksUp)
    return exp_by_table(x);
  else
    return exp_by_polynomial(x);
}

SF_INLINE Vec<double> vec_exp(Vec<double> x) {
  using V = Vec<double>;
  x = larger(V(-746.0), x);
  const V shifter(kShifter<double>);
  const V shifted = mul_add(x, V(0x1.71547652b82fep0), shifter), n = shifted - shifter;
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
  return scale_one_plus(mul_add(r * r, q, r), shifted);
}

}  // namespace simdformer::SF_ISA
