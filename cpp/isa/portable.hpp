// What instruction sets before AVX-512 do in several steps. Read at the end of their headers.
#pragma once

namespace simdformer::SF_ISA {

// The first n lanes of x, and the rest of `other`.
template <class V>
SF_INLINE V first_lanes(int64_t n, V x, V other) {
  using A = typename V::value_type;
  static constexpr A kIndex[] = {0, 1, 2, 3, 4, 5, 6, 7};
  return xsimd::select(V::load_unaligned(kIndex) < V(static_cast<A>(n)), x, other);
}

// 2^n itself may leave the exponent's range: (1 + rest) is first taken 2^100 or 2^900 times as large, exactly. The
// shifter puts n into the low bits of the mantissa, with the bias of that exponent on top.
template <class A>
constexpr int kRaised = std::is_same_v<A, float> ? 100 : 900;
template <class A>
constexpr A kShifter = std::is_same_v<A, float> ? 0x1.8p23 + 127 + kRaised<A> : 0x1.8p52 + 1023 + kRaised<A>;

template <class V>
SF_INLINE V scale_one_plus(V rest, V shifted) {
  using A = typename V::value_type;
  using Integers = Vec<std::conditional_t<kIsFloat<V>, int32_t, int64_t>>;
  const V factor = lanes_as<V>(Integers(lanes_as<Integers>(shifted) << (kIsFloat<V> ? 23 : 52)));
  return mul_add(factor, rest, factor) * V(kIsFloat<V> ? A(0x1p-100) : A(0x1p-900));
}

// No table of 16 floats fits a register: who looks up asks kLooksUp before.
constexpr bool kLooksUp = false;
Vec<float> look_up(const float* table, Vec<float> index);
Vec<float> scale_by_power(Vec<float> p, Vec<float> n);

}  // namespace simdformer::SF_ISA

#include "isa/no_bf16_pairs.hpp"
