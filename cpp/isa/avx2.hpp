// AVX2 with FMA and F16C, which multiplies pairs of 16-bit integers (Haswell, Zen). Read by isa.hpp, which
// lists the names.
#pragma once

#include "isa/avx2_registers.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = false, kSignedDots = false;
// Vectors of columns of a tile with this many rows, where codes of quantized weights are multiplied: 12 sums at most.
constexpr int kCodeVectors[] = {0, 4, 2, 2, 2, 2, 2};
// From this many rows on codes of one plane, and of two, are widened before they are multiplied.
constexpr int64_t kWidenCodes = 16, kWidenTwoPlanes = 5;

// sums + the products of both halves. The compiler would gather the additions of a loop at its end, and run
// out of registers: it may not look into a sum (GCC 12: 2.2 ms instead of 1.07).
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  __m256i out = _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
  asm("" : "+x"(out));
  return out;
}

}  // namespace simdformer::SF_ISA
