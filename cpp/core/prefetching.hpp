// How this machine prefetches best what comes from memory. That differs between processors, instruction sets, formats and
// numbers of threads, and no measurement on memory of its own shows it. So the first calls of a kind try all choices by
// turns and are timed, and the choice with the best lower quartile stays, until the instruction set changes. No result
// depends on it.
//
// (A Zen 4 drops what the few places for misses of its first cache do not take: from memory softmax takes 20 % less time
// and attention of one query a third less when they prefetch to the second. A Zen 5 was faster with the first.)
#pragma once

#include <chrono>

#include "base/cache.hpp"
#include "base/quantized_args.hpp"
#include "core/dispatch.hpp"

namespace simdformer {

// What is prefetched while something like it is read.
enum class Prefetched : uint8_t { keys, softmax_rows, rope_rows, panels, weight_rows };

class PrefetchTrials;
struct TrialsOfKind;

// One call that reads so many bytes, from its beginning to its end: from memory in a forward pass, in which all layers
// pass through the caches, or if they are more than the last cache holds. Few bytes are no trial.
class Prefetching {
 public:
  Prefetching(const KernelTable& table, double bytes);
  Prefetching(const Prefetching&) = delete;
  Prefetching& operator=(const Prefetching&) = delete;
  ~Prefetching();

  Cache goal(Prefetched what, DType dtype);
  // How far ahead a slice in this format is prefetched, and where to, by its rows of x.
  SliceAhead slice_ahead(const QuantizedFormat& format, int64_t rows);

 private:
  int choice(TrialsOfKind& kind, int choices);

  double bytes_;
  bool far_, tries_;
  PrefetchTrials* trials_ = nullptr;  // to which the time of this call belongs, if any
  int trial_ = 0, choices_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace simdformer
