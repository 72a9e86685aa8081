#include "core/copy.hpp"

#include <algorithm>
#include <cstring>

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {

namespace {

// A transposition reads one side with large steps whatever the order: in tiles, so that the lines it touches
// are still in cache when their neighbours are wanted.
constexpr int64_t kTile = 32;

template <int bytes>
void copy_tile(const char* from, int64_t from_row, int64_t from_column, char* to, int64_t to_row,
               int64_t to_column, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      std::memcpy(to + i * to_row + j * to_column, from + i * from_row + j * from_column, bytes);
}

using CopyTile = decltype(&copy_tile<1>);

CopyTile copy_tile_of(int64_t bytes) {
  switch (bytes) {
    case 1:
      return copy_tile<1>;
    case 2:
      return copy_tile<2>;
    case 4:
      return copy_tile<4>;
  }
  return copy_tile<8>;
}

void copy_rows(const View& from, const View& to) {
  const Rows source = rows_of(from), target = rows_of(to);
  const size_t bytes = static_cast<size_t>(source.length * itemsize(source.dtype));
  parallel_for(source.count, grain_of_rows(source.length), [&](int64_t begin, int64_t end) {
    RowCursor in(source, begin), out(target, begin);
    for (int64_t row = begin; row < end; ++row, in.next(), out.next())
      std::memcpy(out.get(), in.get(), bytes);
  });
}

void copy_tiles(const View& from, const View& to) {
  // Planes (rows, columns) of the last two axes; the cursors walk over the axes before.
  const int last = from.rank - 1;
  const int64_t columns = from.shape[last], rows = last > 0 ? from.shape[last - 1] : 1;
  const int64_t from_row = last > 0 ? from.strides[last - 1] : 0,
                to_row = last > 0 ? to.strides[last - 1] : 0;
  View outer_from = from, outer_to = to;
  outer_from.rank = outer_to.rank = std::max(last, 1);
  outer_from.shape[outer_from.rank - 1] = outer_to.shape[outer_to.rank - 1] = 1;  // taken off by rows_of
  const Rows sources = rows_of(outer_from), targets = rows_of(outer_to);
  const int64_t bands = ceil_div(rows, kTile);
  const CopyTile copy = copy_tile_of(itemsize(from.dtype));

  parallel_for(sources.count * bands, grain_of_rows(kTile * columns), [&](int64_t begin, int64_t end) {
    RowCursor in(sources, begin / bands), out(targets, begin / bands);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item % bands * kTile, height = std::min(kTile, rows - row);
      for (int64_t column = 0; column < columns; column += kTile)
        copy(in.get() + row * from_row + column * from.strides[last], from_row, from.strides[last],
             out.get() + row * to_row + column * to.strides[last], to_row, to.strides[last], height,
             std::min(kTile, columns - column));
      if (item % bands == bands - 1) in.next(), out.next();
    }
  });
}

}  // namespace

void copy_elements(const View& from, const View& to) {
  if (from.size() == 0) return;
  View source = from, target = to;
  View* const both[] = {&source, &target};
  merge_last_axes(both, 2);
  if (has_unit_last_axis(source) && has_unit_last_axis(target))
    copy_rows(source, target);
  else
    copy_tiles(source, target);
}

void convert_elements(const View& from, const View& to) {
  if (from.size() == 0) return;
  if (from.dtype == to.dtype) return copy_elements(from, to);
  View source = from, target = to;
  View* const both[] = {&source, &target};
  merge_last_axes(both, 2);
  const ConvertArgs args{rows_of(source), rows_of(target), kSegment};
  const KernelTable& table = kernels();
  parallel_for(pieces_of(args.x), grain_of_pieces(args.x),
               [&](int64_t begin, int64_t end) { table.convert(args, begin, end); });
}

}  // namespace simdformer
