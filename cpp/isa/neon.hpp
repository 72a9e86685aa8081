// NEON as every AArch64 has it. Read by isa.hpp, which lists the names.
#pragma once

#include "isa/neon_registers.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = false, kSignedDots = false;
// Vectors of columns of a tile with this many rows, where codes of quantized weights are multiplied: each sum takes two registers.
constexpr int kCodeVectors[] = {0, 4, 4, 2, 2, 2, 2};
// From this many rows on codes of one plane, and of two, are widened before they are multiplied.
constexpr int64_t kWidenCodes = 16, kWidenTwoPlanes = 5;

// Sums of products of 16-bit integers, two products to a lane; exact while they fit 32 bits. Products of
// neighbours meet in the end.
using DotSums = Pair<int32x4_t>;
SF_INLINE DotSums start_dots(int32_t x) {
  const int32x4_t even = vreinterpretq_s32_u64(vdupq_n_u64(static_cast<uint32_t>(x)));
  return {even, even};
}
SF_INLINE Vec<float> finish_dots(DotSums sums) { return vcvtq_f32_s32(vpaddq_s32(sums.a, sums.b)); }
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  const int16x8_t x = vreinterpretq_s16_u32(a), y = vreinterpretq_s16_u32(b);
  return {vmlal_s16(sums.a, vget_low_s16(x), vget_low_s16(y)), vmlal_high_s16(sums.b, x, y)};
}

}  // namespace simdformer::SF_ISA
