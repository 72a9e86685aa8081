// Numbers that are known when the program runs and wanted when it is compiled, and work dealt out evenly.
#pragma once

#include <type_traits>

#include "base/array.hpp"

namespace simdformer::SF_ISA {

template <int n>
using Count = std::integral_constant<int, n>;

// f(Count<n>()) for fewest <= n <= most
template <int most, int fewest = 1, class F>
SF_INLINE void with_count(int64_t n, F&& f) {
  if constexpr (most > fewest) {
    if (n < most) return with_count<most - 1, fewest>(n, f);
  }
  f(Count<most>());
}

// f(first, Count<n>()) for `most` of them at a time, then half as many, and so on: 4 + 4 + 2 + 1
template <int most, class F>
SF_INLINE void each_power(int64_t count, F&& f, int64_t first = 0) {
  for (; first + most <= count; first += most) f(first, Count<most>());
  if constexpr (most > 1) each_power<most / 2>(count, f, first);
}

// `count` in as few shares of at most `most` as there can be, as even as they can be: `larger` shares of n + 1, and
// then `others` of n. 4 + 3, never 6 + 1.
struct Shares {
  int64_t larger, others, n;
};

SF_INLINE Shares shares_of(int64_t count, int64_t most) {
  if (count == 0) return {0, 0, 0};
  const int64_t shares = (count + most - 1) / most, larger = count % shares;
  return {larger, shares - larger, count / shares};
}

// f(first, n) for each of these shares
template <class F>
SF_INLINE void each_share(int64_t count, int64_t most, F&& f) {
  const Shares shares = shares_of(count, most);
  for (int64_t i = 0, first = 0; first < count; ++i) {
    const int64_t n = shares.n + (i < shares.larger ? 1 : 0);
    f(first, n);
    first += n;
  }
}

}  // namespace simdformer::SF_ISA
