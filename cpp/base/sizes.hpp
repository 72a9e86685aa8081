// Arithmetic of sizes, which may come from anywhere and be of any size.
#pragma once

#include <new>

#include "base/array.hpp"

namespace simdformer {

// product *= factor; false beyond 64 bits.
[[nodiscard]] SF_INLINE bool multiply(int64_t& product, int64_t factor) {
  return !__builtin_mul_overflow(product, factor, &product);
}

// The product of sizes, as a number of bytes. Throws std::bad_alloc beyond 64 bits, as memory itself would.
template <class... Sizes>
SF_INLINE int64_t bytes_of(Sizes... sizes) {
  int64_t product = 1;
  if (!(multiply(product, sizes) && ...)) throw std::bad_alloc();
  return product;
}

SF_INLINE int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace simdformer
