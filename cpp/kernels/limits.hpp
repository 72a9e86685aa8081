// limits: what the machine can do at most, for the benchmark to compare with.
//
//   fma_chains: chains of x = x * a + b in registers, as many as hide the latency     2 FLOP a lane and step
//   read_memory: the sum of n floats, four loads in flight at a time                  4 n bytes read
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

// Two FMA units with a latency of 4 or 5 cycles want 8 to 10 chains; 12 leave room, and fit beside a and b
// into the 16 registers of SSE and AVX2.
constexpr int kChains = 12;
constexpr int64_t kFlopsPerStep = 2 * kChains * kLanes<float>;

// Work items are steps; the sum of all lanes, so that no compiler can drop the work, is added to *sink.
inline void fma_chains(float* sink, int64_t begin, int64_t end) noexcept {
  using V = Vec<float>;
  const V a(0.5f), b(0.25f);  // x stays near 0.5: neither infinities nor subnormals, which would be slower
  V x[kChains];
  for (int chain = 0; chain < kChains; ++chain) x[chain] = V(static_cast<float>(chain) / kChains);
  for (int64_t step = begin; step < end; ++step)
    for (int chain = 0; chain < kChains; ++chain) x[chain] = mul_add(x[chain], a, b);
  for (int chain = 1; chain < kChains; ++chain) x[0] = x[0] + x[chain];
  *sink += sum_lanes(x[0]);
}

// Work items are floats; their sum is added to *sink.
inline void read_memory(const float* data, float* sink, int64_t begin, int64_t end) noexcept {
  using V = Vec<float>;
  const V sum = fold_row(
      data + begin, end - begin, V(0.0f), [](V sum, V x) { return V(sum + x); },
      [](V a, V b) { return V(a + b); });
  *sink += sum_lanes(sum);
}

}  // namespace simdformer::SF_ISA
