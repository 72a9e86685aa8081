// Integers within bounds, and the line of a cache. Kernels may call these, unlike std::min and std::clamp (see base/array.hpp).
#pragma once

#include "base/array.hpp"

namespace simdformer {

constexpr int64_t kLineBytes = 64;  // of a cache, which memory comes in

SF_INLINE constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
SF_INLINE constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

SF_INLINE int64_t clamp_to(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

SF_INLINE int64_t add_saturated(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? INT64_MIN : INT64_MAX;
}

}  // namespace simdformer
