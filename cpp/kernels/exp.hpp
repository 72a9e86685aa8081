// exp(x) for x <= 0, which is all that a softmax or a sigmoid needs; float32 and float64, on every lane.
//
// n = round(x log2 e), r = x - n ln 2 in two steps (Cody and Waite), exp(r) = 1 + r + r^2 q(r), scaled by 2^n.
// q is the minimax polynomial on [-ln2/2, ln2/2] (own fits): degree 4 in float32, relative error 3.1e-9, degree
// 9 in float64, relative error 3.7e-18. Where the CPU looks up in a register n goes in sixteenths or eighths,
// whose powers of two are a table there, and q has degree 1: relative error 9e-9 and 2.6e-8, in three quarters
// of the time. With the rounding of the arithmetic all are within 1 ulp. NaN stays NaN.
//
// Powers of two are no float32, and what they lack is looked up too. A softmax takes exponentials times any number:
// of c 2^(j/8) all are float32 but for 2.8e-9 when c is 1.0877, of c 2^(j/16) but for 1.6e-8 when it is 1.0324 (own
// search). c times 1 / c is rounded to 1, so that one number alone has the weight 1.
#pragma once

#include "isa/isa.hpp"

namespace simdformer::SF_ISA {

// The bits of 2^(j/16) rounded to float32, less j << 19: adding n with four bits behind the point, << 19,
// gives those of 2^n. And what ln of the rounded numbers lacks.
constexpr uint32_t kPowers[16] = {0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532,
                                  0x3f75fed7, 0x3f75583f, 0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c,
                                  0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};
constexpr float kPowerErrors[16] = {0x0p+0f,          0x1.8d96d4p-25f,  -0x1.9c0c22p-27f, 0x1.964904p-25f,
                                    0x1.125002p-25f,  0x1.370be4p-25f,  -0x1.0a3550p-25f, -0x1.00d8acp-27f,
                                    0x1.26055cp-26f,  -0x1.05cb44p-25f, 0x1.67a1cap-28f,  0x1.a3b5e4p-28f,
                                    -0x1.f9c304p-27f, -0x1.6961b4p-28f, -0x1.a5217cp-28f, 0x1.61428ep-28f};

// The bits of c 2^(j/8) and c 2^(j/16), as they are.
constexpr uint32_t kEighths[8] = {0x3f8b3a3e, 0x3f97d424, 0x3fa59202, 0x3fb48e45,
                                  0x3fc4e5be, 0x3fd6b7da, 0x3fea26de, 0x3fff5829};
constexpr uint32_t kSixteenths[16] = {0x3f842491, 0x3f89fe49, 0x3f901a50, 0x3f967b96, 0x3f9d252c, 0x3fa41a45,
                                      0x3fab5e39, 0x3fb2f486, 0x3fbae0d1, 0x3fc326e9, 0x3fcbcac8, 0x3fd4d094,
                                      0x3fde3ca4, 0x3fe8137e, 0x3ff259dd, 0x3ffd14b1};

// As many of them as fit a register: where n goes in steps of less than one.
constexpr int kSteps = kTableSize != 0 ? kTableSize : 1;
template <class T>
struct Table {
  alignas(64) T entries[16] = {};

  template <int size>
  explicit constexpr Table(const T (&all)[size], T less = 0) {
    for (int j = 0; j < kSteps; ++j) entries[j] = all[j * (size / kSteps) % size] - static_cast<T>(j) * less;
  }
};
constexpr Table<uint32_t> kPowerTable(kPowers);
constexpr Table<float> kPowerErrorTable(kPowerErrors);
constexpr Table<uint32_t> kFactorTable =
    kSteps == 8 ? Table<uint32_t>(kEighths, (1u << 23) / 8) : Table<uint32_t>(kSixteenths, (1u << 23) / 16);

enum class Times { one, c };

// e^x 2^raised, or c times that, without a subnormal number on the way. What is less than kLowest is taken for it,
// so that -inf meets no arithmetic: there the exponent's bits are 0, and so is the result, or it is once 2^raised is
// taken back.
template <int raised, Times times>
SF_INLINE Vec<float> raised_exp(Vec<float> x) {
  using V = Vec<float>;
  using Words = Vec<uint32_t>;
  constexpr float kLowest = raised < 24 ? -0x1.62e430p-1f * (127 + raised) : -105.0f;
  constexpr int kBias = kSteps == 1 ? 127 : 0;  // of the exponent, which the table has too
  constexpr int kPointBits = kSteps == 16 ? 4 : kSteps == 8 ? 3 : 0;
  x = larger(V(kLowest), x);                             // NaN goes through
  const V shifter(0x1.8p23f / kSteps + raised + kBias);  // adding it leaves n in the low mantissa bits
  const V shifted = mul_add(x, V(0x1.715476p0f), shifter), n = shifted - shifter;
  constexpr bool kOneStep = raised == 0 && kSteps > 1;
  V r = neg_mul_add(n, V(kOneStep ? 0x1.62e430p-1f : 0x1.62e400p-1f), x), q;
  if constexpr (!kOneStep) r = neg_mul_add(n, V(0x1.7f7d1cp-20f), r);
  Words power = lanes_as<Words>(shifted) << (23 - kPointBits);
  if constexpr (kSteps == 1) {
    q = mul_add(V(0x1.6a2434p-10f), r, V(0x1.1239e2p-7f));
    q = mul_add(q, r, V(0x1.5558f2p-5f));
    q = mul_add(q, r, V(0x1.555492p-3f));
    q = mul_add(q, r, V(0x1.fffffcp-2f));
  } else {
    power = power + look_up(times == Times::c ? kFactorTable.entries : kPowerTable.entries, shifted);
    if constexpr (times == Times::one) r = r + look_up(kPowerErrorTable.entries, shifted);
    q = mul_add(V(kSteps == 16 ? 0x1.5555cep-3f : 0x1.555656p-3f), r,
                V(kSteps == 16 ? 0.5f : 0x1.000874p-1f));
  }
  const V rest = mul_add(r * r, q, r), scale = lanes_as<V>(power);
  return mul_add(scale, rest, scale);
}

// exp(-inf) = 0, results below the smallest normal number are subnormal.
SF_INLINE Vec<float> vec_exp(Vec<float> x) { return raised_exp<30, Times::one>(x) * Vec<float>(0x1p-30f); }

SF_INLINE Vec<double> vec_exp(Vec<double> x) {
  using V = Vec<double>;
  x = larger(V(-746.0), x);
  const V shifter(kShifter);
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

// What a softmax needs: e^x times a number that falls out when the sum divides it, so that nothing below
// the smallest normal number is lost, and slow, on the way.
SF_INLINE Vec<float> softmax_exp(Vec<float> x) { return raised_exp<30, Times::c>(x); }
SF_INLINE Vec<double> softmax_exp(Vec<double> x) { return vec_exp(x); }

// What attention needs: weights before they are divided, 0 where they were subnormal. Where the table is, so
// is FMA: n ln 2 is subtracted in one step, which lacks 2e-9 n and stays within an ulp down to weights of 2^-20.
SF_INLINE Vec<float> weight_exp(Vec<float> x) { return raised_exp<0, Times::one>(x); }
SF_INLINE Vec<double> weight_exp(Vec<double> x) { return vec_exp(x); }

}  // namespace simdformer::SF_ISA
