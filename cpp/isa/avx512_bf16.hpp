// AVX-512 that multiplies pairs of bfloat16, and bytes (Cooper Lake, Sapphire Rapids, Zen 4).
// Read by isa.hpp, which lists the names.
#pragma once

#include "isa/avx512_bytes.hpp"

namespace simdformer::SF_ISA {

// Two bfloat16 in every lane of a register of float.
constexpr bool kBf16Pairs = true;
using Bf16Pairs = __m512bh;

SF_INLINE Bf16Pairs load_pairs(const bfloat16* p) { return lanes_as<Bf16Pairs>(_mm512_loadu_si512(p)); }

// The first n <= 32 bfloat16, then zeros.
SF_INLINE Bf16Pairs load_pairs_part(const bfloat16* p, int64_t n) {
  return lanes_as<Bf16Pairs>(_mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1, p));
}

// The pair at p in every lane.
SF_INLINE Bf16Pairs splat_pair(const bfloat16* p) {
  int pair;
  std::memcpy(&pair, p, 4);
  return lanes_as<Bf16Pairs>(_mm512_set1_epi32(pair));
}

// sum + a[0] b[0] + a[1] b[1] in every lane. Subnormal factors count as zero.
SF_INLINE Vec<float> mul_add(Bf16Pairs a, Bf16Pairs b, Vec<float> sum) { return _mm512_dpbf16_ps(sum, a, b); }

}  // namespace simdformer::SF_ISA
