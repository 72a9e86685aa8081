// Sums of products of small integers where a register of 32-bit integers holds them. Read by the headers of such
// instruction sets, which say how products are added to them (add_dots).
#pragma once

namespace simdformer::SF_ISA {

// Exact while they fit 32 bits.
using DotSums = Vec<int32_t>;
SF_INLINE DotSums start_dots(int32_t x) { return DotSums(x); }
SF_INLINE Vec<float> finish_dots(DotSums sums) { return xsimd::to_float(sums); }

}  // namespace simdformer::SF_ISA
