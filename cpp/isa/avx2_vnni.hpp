// AVX2 with AVX-VNNI, which multiplies bytes four at a time (Alder Lake, Sierra Forest, Zen 5). Read by isa.hpp,
// which lists the names.
#pragma once

#include "isa/avx2_registers.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = true, kSignedDots = false;
// Vectors of columns of a tile with this many rows, where codes of quantized weights are multiplied: two sums for each.
constexpr int kCodeVectors[] = {0, 4, 2, 2, 1, 1, 1};
// Taking bytes apart costs little: codes are never widened before.
constexpr int64_t kWidenCodes = INT64_MAX, kWidenTwoPlanes = INT64_MAX;

// sums + the products of four bytes in every lane: those of a are unsigned, those of b signed. The compiler may
// not look into a sum: it would copy it from register to register (GCC 12, one row from cache: a sixth to twice
// the speed).
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  __m256i out = _mm256_dpbusd_avx_epi32(sums, a, b);
  asm("" : "+x"(out));
  return out;
}

}  // namespace simdformer::SF_ISA
