// 128 bits as two words, on every x86.
#pragma once

namespace simdformer::SF_ISA {

using Bits128 = __m128i;

SF_INLINE Bits128 from_words(uint64_t low, uint64_t high) {
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}
SF_INLINE uint64_t low_word(Bits128 x) { return static_cast<uint64_t>(_mm_cvtsi128_si64(x)); }
SF_INLINE uint64_t high_word(Bits128 x) { return low_word(_mm_unpackhi_epi64(x, x)); }

}  // namespace simdformer::SF_ISA

#include "isa/words.hpp"
