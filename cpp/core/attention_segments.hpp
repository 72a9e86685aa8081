// attention over packed sequences: several texts one behind the other on the axes of positions.
#pragma once

#include "core/attention.hpp"

namespace simdformer {

// Some queries of a sequence, and the keys that they see: none but these.
struct Segment {
  int64_t sequence;
  int64_t first_query, queries;
  int64_t first_key, keys;
  int64_t causal_offset;  // where its first query stands among its keys
};

// Each segment is a call of its own on its part of the arrays, with the bits of that call; positions and chunks
// are counted from its first key. Segments lie in no pages (`call.block_table`), and each query of a sequence
// lies in exactly one. Throws as attention does.
void attention(const Attention& call, const Segment* segments, int64_t count);

}  // namespace simdformer
