// Work that may be cut inside a row: rows are split into pieces, so that one long row keeps all threads busy.
#pragma once

#include "base/array.hpp"

namespace simdformer::SF_ISA {

// piece(offset, length, row of each operand ...) for the work items [begin, end): item i is the piece
// i % pieces of row i / pieces.
template <class Piece, class... Operands>
SF_INLINE void for_each_piece(int64_t begin, int64_t end, int64_t length, int64_t segment, Piece piece,
                              const Operands&... operands) {
  const int64_t pieces = (length + segment - 1) / segment;
  if (pieces == 0) return;
  int64_t offset = begin % pieces * segment;
  const auto walk = [&](auto... cursor) {
    for (int64_t item = begin; item < end; ++item) {
      piece(offset, length - offset < segment ? length - offset : segment, cursor.get()...);
      offset += segment;
      if (offset < length) continue;
      offset = 0;
      (cursor.next(), ...);
    }
  };
  walk(RowCursor(operands, begin / pieces)...);
}

}  // namespace simdformer::SF_ISA
