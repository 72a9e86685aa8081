// To which cache kernels prefetch what comes from memory. Which one is better is measured (core/prefetching.hpp).
#pragma once

#include <cstdint>

#include "base/array.hpp"

namespace simdformer {

enum class Cache : uint8_t { first, second };

SF_INLINE void prefetch_to(Cache cache, const void* p) {
  if (cache == Cache::second)
    __builtin_prefetch(p, 0, 2);
  else
    __builtin_prefetch(p);
}

}  // namespace simdformer
