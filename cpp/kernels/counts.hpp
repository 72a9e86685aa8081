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

// f(first, n) for shares of at most `most`, as even as they can be: 4 + 3, never 6 + 1
template <class F>
SF_INLINE void each_share(int64_t count, int64_t most, F&& f) {
  int64_t shares = (count + most - 1) / most;
  for (int64_t first = 0; shares > 0; --shares) {
    const int64_t n = (count - first + shares - 1) / shares;
    f(first, n);
    first += n;
  }
}

}  // namespace simdformer::SF_ISA
