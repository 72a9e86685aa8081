// How this machine prefetches best what comes from memory: found by measuring, once a process and again when the
// instruction set changes, where calls read so much that it counts. That is more than a second cache holds in a forward
// pass, and else more than the last one. No result depends on it.
#pragma once

#include <chrono>

#include "base/cache.hpp"
#include "base/quantized_args.hpp"
#include "core/dispatch.hpp"

namespace simdformer {

// To which cache a call that reads so many bytes prefetches; as long as nothing was measured, to the first. (A Zen 4
// drops what the few places for misses of its first cache do not take: from memory softmax takes 20 % less time and
// attention of one query a third less when they prefetch to the second. A Zen 5 is faster with the first.)
Cache cache_goal(const KernelTable& table, double bytes);

class SliceTrials;

// How a product prefetches slices of quantized weights. By one row from memory that differs between formats and machines:
// the first products try every choice in turn and are timed, the later ones have the best.
class SlicePrefetching {
 public:
  SlicePrefetching() = default;
  SlicePrefetching(const SlicePrefetching&) = delete;
  SlicePrefetching& operator=(const SlicePrefetching&) = delete;
  ~SlicePrefetching();  // the product is done

  // Of a weight of this format and its rows of x, in a call that reads so many bytes of weights.
  SliceAhead ahead(const KernelTable& table, const QuantizedFormat& format, int64_t rows, double bytes);

 private:
  SliceTrials* trials_ = nullptr;  // to which the time of this product belongs, if any
  int trial_ = 0;
  double bytes_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace simdformer
