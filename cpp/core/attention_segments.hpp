// attention over packed sequences: several texts one behind the other on the axes of positions.
#pragma once

#include <functional>

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

// The parts of arrays that belong to a segment: (..., H, L, D), (..., K, S, D), (..., H, L, S), (..., H, L) of a call.
View queries_of(const View& view, const Segment& segment);
View keys_of(const View& view, const Segment& segment);
View scores_of(const View& view, const Segment& segment);
View rows_of_queries(const View& view, const Segment& segment);

// body(the call that a segment is, segment): large ones one after the other, the small ones side by side.
void for_each_segment(const Attention& call, const Segment* segments, int64_t count,
                      const std::function<void(const Attention&, const Segment&)>& body);

}  // namespace simdformer
