// AVX-512 with AVX512-VNNI, which multiplies bytes four at a time. Read by avx512_vnni.hpp and avx512_bf16.hpp.
#pragma once

#include "isa/avx512_registers.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = true, kSignedDots = false;
// Vectors of columns of a tile of so many rows, where codes of quantised weights are multiplied: two sums for each.
constexpr int kCodeVectors[] = {0, 4, 4, 2, 2, 2, 2};
// Taking bytes apart costs little: codes are never widened before.
constexpr int64_t kWidenCodes = INT64_MAX, kWidenTwoPlanes = INT64_MAX;

// sums + the products of four bytes in every lane: those of a are unsigned, those of b signed
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  return _mm512_dpbusd_epi32(sums, a, b);
}

}  // namespace simdformer::SF_ISA
