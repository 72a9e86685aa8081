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

// p * 2^n for 0.5 <= p <= 2 and integral n from -200 to 20, in float64 from -1900 to 100. With an n that is NaN
// the result is p or NaN.
template <class V>
SF_INLINE V scale_by_power(V p, V n) {
  using A = typename V::value_type;
  using Integers = Vec<std::conditional_t<kIsFloat<V>, int32_t, int64_t>>;
  // 2^n itself may leave the exponent's range: p is first made 2^100 or 2^900 times as large, exactly. Adding the
  // shifter puts an integer into the low bits of the mantissa, here with the exponent's bias on top.
  constexpr int kMantissa = kIsFloat<V> ? 23 : 52, kBias = kIsFloat<V> ? 127 + 100 : 1023 + 900;
  const V shifter(static_cast<A>((kIsFloat<V> ? 0x1.8p23 : 0x1.8p52) + kBias));
  const V factor = lanes_as<V>(Integers(lanes_as<Integers>(V(n + shifter)) << kMantissa));
  return p * factor * V(static_cast<A>(kIsFloat<V> ? 0x1p-100 : 0x1p-900));
}

// No table of 16 floats fits a register: who looks up asks kLooksUp before.
constexpr bool kLooksUp = false;
Vec<float> look_up(const float* table, Vec<float> index);

}  // namespace simdformer::SF_ISA

#include "isa/no_bf16_pairs.hpp"
