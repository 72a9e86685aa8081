// rope: rotary position embedding. Pair i of the token at position p is turned by the angle p * inv_freq[i].
#pragma once

#include "base/array.hpp"
#include "base/kernel_table.hpp"

namespace simdformer {

// One call on x (..., T, D).
struct Rope {
  RopeLayout layout = RopeLayout::half;
  int64_t rotary_dim = 0;  // even, 2 to D: the elements that are turned; the others are copied

  // (T), or (B, T) with B the first axis of x; null: offset, offset + 1 ...
  const int64_t* positions = nullptr;
  bool by_sequence = false;  // positions are (B, T)
  int64_t offset = 0;

  const double* inv_freq = nullptr;  // (rotary_dim / 2); null: theta^(-2 i / rotary_dim)
  double theta = 10000;
  double attention_factor = 1;  // multiplies cos and sin
  bool backward = false;        // pairs are turned back: x is the gradient of what was turned
};

// x and out: one shape of at least two axes, one dtype, unit last strides; out may be x itself. Angles and
// their cos and sin are float64, the rest float32 (float64 for float64), rounded once. Throws std::bad_alloc
// and Interrupted.
//
// The angles of the last call are kept for the next one, up to 1 MB: a model turns the queries and keys of
// all its layers by the same. Threads may call at the same time.
void rope(const View& x, const Rope& call, const View& out);

}  // namespace simdformer
