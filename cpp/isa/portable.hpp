// What instruction sets before AVX-512 do in several steps. Read at the end of their headers.
#pragma once

namespace simdformer::SF_ISA {

// (1 + rest) 2^n, where adding kShifter has left n in the low bits of `shifted`. 2^n itself may leave the
// exponent's range: 1 + rest is first taken 2^900 times as large, exactly. The shifter has the bias of that
// exponent on top.
constexpr double kShifter = 0x1.8p52 + 1023 + 900;
SF_INLINE Vec<double> scale_one_plus(Vec<double> rest, Vec<double> shifted) {
  using Integers = Vec<int64_t>;
  const Vec<double> factor = lanes_as<Vec<double>>(Integers(lanes_as<Integers>(shifted) << 52));
  return mul_add(factor, rest, factor) * Vec<double>(0x1p-900);
}

}  // namespace simdformer::SF_ISA

#include "isa/no_bf16_pairs.hpp"
