// NEON that multiplies bytes four at a time (ARMv8.2 with dotprod: Cortex-A76, Neoverse N1, Apple A11 and
// later). Read by isa.hpp, which lists the names.
#pragma once

#include "isa/neon_registers.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = true, kSignedDots = true;
// Vectors of columns of a tile with this many rows, where codes of quantized weights are multiplied: two sums for each.
constexpr int kCodeVectors[] = {0, 4, 4, 2, 2, 2, 2};
// Taking bytes apart costs little: codes are never widened before.
constexpr int64_t kWidenCodes = INT64_MAX, kWidenTwoPlanes = INT64_MAX;

}  // namespace simdformer::SF_ISA

#include "isa/lane_dots.hpp"

namespace simdformer::SF_ISA {

// sums + the products of four signed bytes in every lane
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  return vdotq_s32(sums, vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b));
}

}  // namespace simdformer::SF_ISA
