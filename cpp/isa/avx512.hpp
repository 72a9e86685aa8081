// AVX-512 as Intel has it since Skylake-X and AMD since Zen 4. Read by isa.hpp, which lists the names.
#pragma once

#include "isa/avx512_registers.hpp"
#include "isa/no_bf16_pairs.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = false, kSignedDots = false;
// Vectors of columns of a tile with this many rows, where codes of quantized weights are multiplied.
constexpr int kCodeVectors[] = {0, 4, 4, 4, 4, 4, 4};
// From this many rows on codes of one plane, and of two, are widened before they are multiplied. One plane never:
// taking it apart in registers, four rows at a time, costs less than loading twice as many bytes (150 % of the
// FMA peak beside 105 %, Zen 5).
constexpr int64_t kWidenCodes = INT64_MAX, kWidenTwoPlanes = 5;

// sums + the products of both halves. The compiler would gather the additions of a loop at its end, and run
// out of registers: it may not look into a sum (GCC 12: 2.2 ms instead of 1.07).
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  __m512i out = _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
  asm("" : "+v"(out));
  return out;
}

}  // namespace simdformer::SF_ISA
