// How row-wise work is cut for the threads. Bounds depend on sizes alone, never on the number of threads.
#pragma once

#include <cstdint>

namespace simdformer {

constexpr int64_t kChunk = 32768;    // elements a thread takes at once: 5 to 50 us, whatever the operation
constexpr int64_t kSegment = 16384;  // elements of a work item, where a row may be cut

// Rows of `length` elements to a chunk.
inline int64_t grain_of(int64_t length) { return length < kChunk ? kChunk / (length > 0 ? length : 1) : 1; }

// Pieces of kSegment elements in a row.
inline int64_t segments_of(int64_t length) { return (length + kSegment - 1) / kSegment; }

}  // namespace simdformer
