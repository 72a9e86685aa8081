// Which keys a query of attention sees, apart from the mask: causality, windows, chunks and where a sequence
// begins and ends, in one rule.
#pragma once

#include "base/attention_call.hpp"
#include "base/bounds.hpp"

namespace simdformer {

// The keys [begin, end).
struct KeyRange {
  int64_t begin, end;

  SF_INLINE bool empty() const { return begin >= end; }
};

// Query i of a sequence sees the keys [i + first, i + last) of [start, keys), and of those only the ones that
// lie in the chunk of its own position, i + position. Chunks begin at `start`. Both ends grow with i.
struct VisibleKeys {
  int64_t first, last;
  int64_t start, keys;
  int64_t chunk, position;  // chunk 0: there are none

  SF_INLINE int64_t begin(int64_t i) const {
    const int64_t j = i + first;
    return clamp_to(chunk > 0 ? max_of(j, chunk_begin(i)) : j, start, keys);
  }
  SF_INLINE int64_t end(int64_t i) const {
    const int64_t j = i + last;
    return clamp_to(chunk > 0 ? min_of(j, chunk_begin(i) + chunk) : j, start, keys);
  }

  // What query i sees of the keys first_key + [0, count), counted from first_key.
  SF_INLINE KeyRange of_block(int64_t i, int64_t first_key, int64_t count) const {
    return {clamp_to(begin(i) - first_key, 0, count), clamp_to(end(i) - first_key, 0, count)};
  }

 private:
  SF_INLINE int64_t chunk_begin(int64_t i) const {
    const int64_t before = (i + position - start) % chunk;  // negative before the start
    return i + position - (before < 0 ? before + chunk : before);
  }
};

// For `queries` queries and `keys` keys of a sequence. Any offset, window and length will do.
SF_INLINE VisibleKeys visible_keys(const Attention& call, int64_t sequence, int64_t queries, int64_t keys) {
  // Beyond these bounds a query sees nothing, or all.
  const int64_t low = -queries, high = keys;
  const int64_t offset = call.causal_offsets ? call.causal_offsets[sequence] : call.causal_offset;
  VisibleKeys seen{low, high, 0, keys, call.chunk, offset};
  if (call.left != kUnbounded) seen.first = clamp_to(add_saturated(offset, -call.left), low, high);
  if (call.right != kUnbounded)
    seen.last = clamp_to(add_saturated(add_saturated(offset, call.right), 1), low, high);
  if (call.key_lengths != nullptr) seen.keys = clamp_to(call.key_lengths[sequence], 0, keys);
  if (call.key_starts != nullptr) seen.start = clamp_to(call.key_starts[sequence], 0, seen.keys);
  return seen;
}

}  // namespace simdformer
