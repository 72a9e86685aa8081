// What the tests of the pool share.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parallel.hpp"

namespace simdformer::tests {

// num_threads() for a scope.
class Threads {
 public:
  explicit Threads(int n) : before_(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before_); }

 private:
  int before_;
};

// The sum of [0, count), with plain memory that two chunks must not share.
inline int64_t sum_in_pool(int64_t count, int64_t grain) {
  std::vector<int64_t> chunk_sums(static_cast<std::size_t>((count + grain - 1) / grain), 0);
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) chunk_sums[static_cast<std::size_t>(begin / grain)] += i;
  });
  int64_t sum = 0;
  for (const int64_t part : chunk_sums) sum += part;
  return sum;
}

inline bool sums_are_right() { return sum_in_pool(5000, 7) == 12497500; }

}  // namespace simdformer::tests
