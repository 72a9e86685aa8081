// Which keys a query of attention sees, apart from the mask: causality, window and length in one rule.
#pragma once

#include "core/attention.hpp"
#include "core/bounds.hpp"

namespace simdformer {

// The keys [begin, end).
struct KeyRange {
  int64_t begin, end;

  SF_INLINE bool empty() const { return begin >= end; }
};

// Query i of a sequence sees the keys [i + first, i + last) of [0, keys). Both ends grow with i.
struct VisibleKeys {
  int64_t first, last, keys;

  SF_INLINE int64_t begin(int64_t i) const { return clamp_to(i + first, 0, keys); }
  SF_INLINE int64_t end(int64_t i) const { return clamp_to(i + last, 0, keys); }

  // What query i sees of the keys first_key + [0, count), counted from first_key.
  SF_INLINE KeyRange of_block(int64_t i, int64_t first_key, int64_t count) const {
    return {clamp_to(begin(i) - first_key, 0, count), clamp_to(end(i) - first_key, 0, count)};
  }
};

// Of `queries` queries and `keys` keys of a sequence. Any offset, window and length will do.
SF_INLINE VisibleKeys visible_keys(const Attention& call, int64_t sequence, int64_t queries, int64_t keys) {
  // Beyond these bounds a query sees nothing, or all.
  const int64_t low = -queries, high = keys;
  VisibleKeys seen{low, high, call.key_lengths ? clamp_to(call.key_lengths[sequence], 0, keys) : keys};
  if (!call.is_causal) return seen;
  const int64_t offset = call.causal_offsets ? call.causal_offsets[sequence] : call.causal_offset;
  seen.last = clamp_to(add_saturated(offset, 1), low, high);
  if (call.window > 0) seen.first = clamp_to(add_saturated(offset, 1 - call.window), low, high);
  return seen;
}

}  // namespace simdformer
