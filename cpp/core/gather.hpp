// Rows picked, heads repeated, positions compared: embedding, repeat_kv, causal_mask.
#pragma once

#include "base/array.hpp"

namespace simdformer {

// out[i] = weight[ids[i]], in out's dtype. weight (V, E), out (..., E): unit last strides. ids: one for each
// row of out, 0 to V - 1.
void embedding(const View& weight, const int64_t* ids, const View& out);

// Each entry of `axis` n times, one after the other: x (..., K, ...) -> out (..., K n, ...), one dtype, any
// strides, at most kMaxRank - 1 axes.
void repeat(const View& x, int axis, int64_t n, const View& out);

// out (L, S), contiguous: true, or 0, where key j <= i + offset, else false, or -inf.
void causal_mask(int64_t offset, const View& out);

}  // namespace simdformer
