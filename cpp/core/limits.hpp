// What the machine can do at most, run on all threads of the pool, for a benchmark to time.
#pragma once

#include <cstdint>

namespace simdformer {

double fma_chains(int64_t steps);                      // the number of floating-point operations done
double read_memory(const float* data, int64_t count);  // the sum of the numbers

}  // namespace simdformer
