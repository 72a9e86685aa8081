// AVX-512 with AVX512-VNNI, which multiplies bytes four at a time. Read by avx512_vnni.hpp and avx512_bf16.hpp.
#pragma once

#include "isa/avx512_registers.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = true, kSignedDots = false;
// Vectors of columns of a tile with this many rows, where codes of quantized weights are multiplied: two sums for each.
constexpr int kCodeVectors[] = {0, 4, 4, 2, 2, 2, 2};
// Taking bytes apart costs little: codes are never widened before.
constexpr int64_t kWidenCodes = INT64_MAX, kWidenTwoPlanes = INT64_MAX;

// sums + the products of four bytes in every lane: those of a are unsigned, those of b signed. The compiler
// would copy sums from register to register, 12 times in a loop of 40 instructions (GCC 12): it may not look
// into one (q8_0 from cache 67 -> 110 GB/s, q4_0 66 -> 73, one row, Zen 5).
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  __m512i out = _mm512_dpbusd_epi32(sums, a, b);
  asm("" : "+v"(out));
  return out;
}

}  // namespace simdformer::SF_ISA
