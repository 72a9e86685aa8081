// attention: out = softmax(query key^T * scale + mask) value, with the variations that transformers use.
#pragma once

#include <cstdint>

#include "base/array.hpp"

namespace simdformer {

constexpr int64_t kUnbounded = INT64_MAX;

// One call. Letters: H query heads, K key/value heads (H % K == 0), L queries, S keys, D and Dv head sizes;
// "..." are the leading axes, the same in all arrays (zero strides where one is broadcast). A sequence is one
// index of them.
//
// Query i of sequence b stands at the position p = i + causal_offset of the keys, and sees key j when
// key_starts[b] <= j < key_lengths[b], p - left <= j <= p + right, and j and p lie in one chunk; chunks are
// counted from key_starts[b]. Causality is right = 0. The order is scale, softcap, mask, softmax. What is not
// seen is never looked at: NaN there does no harm. A query that sees nothing, or only what the mask sets to
// -inf, gives 0.
struct Attention {
  View query;  // (..., H, L, D), rank >= 3
  View key;    // (..., K, S, D): 16-bit or float32 beside any of these; float64 beside float64
  View value;  // (..., K, S, Dv), key's dtype; Dv may be 0
  View out;    // (..., H, L, Dv), query's dtype
  // All four: unit stride on the last axis, any other strides.

  // Paged: key (P, K, page, D) and value (P, K, page, Dv) are pools of pages that all sequences share. Position j
  // of sequence b lies in the page block_table[b * pages + j / page], and S = pages * page. Entries behind
  // key_lengths[b] are page numbers too, though nothing of such a page is looked at.
  const int64_t* block_table = nullptr;
  int64_t pages = 0;

  const View* mask = nullptr;  // (..., H, L, S): boolean (true = seen) or added to the scores; any strides

  const int64_t* causal_offsets = nullptr;  // one a sequence; else causal_offset holds for all
  int64_t causal_offset = 0;
  int64_t left = kUnbounded, right = kUnbounded;  // >= 0
  int64_t chunk = 0;                              // 0 = none; at most 2^62, with offsets within 2^61
  const int64_t* key_starts = nullptr;            // one a sequence, and so key_lengths
  const int64_t* key_lengths = nullptr;

  double scale = 1;
  double softcap = 0;           // 0 = none, else scores become softcap * tanh(scores / softcap)
  const void* sinks = nullptr;  // (H), contiguous: one more score a head, without a value
  DType sinks_dtype = DType::f32;

  // Further results, or null: the accumulator's dtype, unit stride on the last axis (lse: any strides).
  const View* weights = nullptr;  // (..., H, L, S)
  const View* scores = nullptr;   // (..., H, L, S), scaled and masked, -inf where not seen
  const View* lse = nullptr;      // (..., H, L), log of the sum of exp(scores)
};

}  // namespace simdformer
