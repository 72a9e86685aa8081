// How work is cut for the threads: by what an item costs. Bounds depend on sizes alone, never on the number
// of threads.
#pragma once

#include <algorithm>

#include "base/array.hpp"
#include "base/kernel_table.hpp"
#include "base/sizes.hpp"
#include "base/tuning.hpp"

namespace simdformer {

inline int64_t bytes_in(const Rows& rows) { return rows.count * rows.length * itemsize(rows.dtype); }

// Whether to store an output past the caches: whoever reads it would not find it there, and what it overwrites
// need not be read before (measured from memory: 1.2 to 2.1 times as fast).
template <class... In>
bool past_caches(const Rows& out, const In&... in) {
  return bytes_in(out) >= kFarthestBytes && out.length * itemsize(out.dtype) >= kLongRow &&
         ((in.data != out.data) && ...);
}

// The same for short rows, if they lie side by side: they are put together to whole lines.
inline bool lines_past_caches(const Rows& out, const Rows& in) {
  const int64_t bytes = out.length * itemsize(out.dtype);
  return bytes_in(out) >= kFarthestBytes && in.data != out.data && bytes <= kShortRow && out.rank == 1 &&
         out.strides[0] == bytes;
}

// Items to a chunk.
inline int64_t grain_of(double nanoseconds_per_item) {
  return std::max<int64_t>(
      1, static_cast<int64_t>(kChunkNanoseconds / std::max(nanoseconds_per_item, cost::element)));
}

// The same for long loops at whose end no thread should wait for another's chunk: a quarter of it, but all in
// one where that wakes nobody.
inline int64_t fine_grain_of(double nanoseconds_per_item, int64_t items) {
  const int64_t grain = grain_of(nanoseconds_per_item);
  return items <= grain ? grain : std::max<int64_t>(1, grain / 4);
}

// The same where the other threads are awake and wait for nothing else.
inline int64_t short_grain_of(double nanoseconds_per_item) {
  return std::max<int64_t>(1, grain_of(nanoseconds_per_item) / 8);
}

// The same for rows of `length` elements.
inline int64_t grain_of_rows(int64_t length) { return grain_of(cost::element * static_cast<double>(length)); }

// Where a row may be cut, work items are its pieces of kSegment elements.
inline int64_t pieces_of(const Rows& rows) { return rows.count * ceil_div(rows.length, kSegment); }
inline int64_t grain_of_pieces(const Rows& rows) { return grain_of_rows(std::min(rows.length, kSegment)); }

}  // namespace simdformer
