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

// a0 b0 a1 b1 ... as bfloat16
SF_INLINE Vec<uint32_t> narrow_two(Vec<float> a, Vec<float> b) {
  using Words = Vec<uint32_t>;
  if (__builtin_expect(int{has_subnormals(a)} | int{has_subnormals(b)}, 0)) {
    const Bits16 low = narrow_bits(bfloat16{}, a), high = narrow_bits(bfloat16{}, b);
    return Words(_mm512_cvtepu16_epi32(low)) | Words(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i in_turns =
      _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(0x10001)), _mm512_set1_epi32(16 << 16));
  return Words(_mm512_permutexvar_epi16(in_turns, lanes_as<__m512i>(_mm512_cvtne2ps_pbh(b, a))));
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
