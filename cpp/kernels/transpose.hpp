// What the products of gradients are made of: matrices whose depth runs down their columns.
//
//   pack_columns   (depth, columns) -> panels of 16 columns, k by k: as pack makes them of the transpose
//   transpose      (depth, rows) -> rows as linear multiplies them: as pack_rows makes them of the transpose
//
// A panel's row is 16 neighbours of a row of the matrix; the pairs of bfloat16 are two of them zipped. Both read some
// rows of the matrix side by side from one end to the other, because a walk down a column waits for memory.
#pragma once

#include "base/gradient_args.hpp"
#include "base/linear_args.hpp"
#include "kernels/pack.hpp"

namespace simdformer::SF_ISA {

// Two rows of bfloat16 in pairs; `second` is null behind the last row.
SF_INLINE void zip_pairs(const char* first, const char* second, int64_t columns, char* to) {
  uint16_t rows[2][kPanelColumns] = {};
  std::memcpy(rows[0], first, static_cast<size_t>(columns) * 2);
  if (second != nullptr) std::memcpy(rows[1], second, static_cast<size_t>(columns) * 2);
  uint32_t pairs[kPanelColumns];
  for (int64_t c = 0; c < kPanelColumns; ++c) pairs[c] = rows[0][c] | static_cast<uint32_t>(rows[1][c]) << 16;
  std::memcpy(to, pairs, sizeof(pairs));
}

template <int64_t size>
SF_INLINE void copy_panel_row(const char* from, int64_t columns, char* to) {
  constexpr int64_t kWhole = kPanelColumns * size;
  if (columns == kPanelColumns) return static_cast<void>(std::memcpy(to, from, kWhole));
  std::memcpy(to, from, static_cast<size_t>(columns * size));
  std::memset(to + columns * size, 0, static_cast<size_t>(kWhole - columns * size));
}

template <class T>
SF_INLINE void pack_columns_of(const PackArgs& args, int64_t begin, int64_t end) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const int64_t panel_bytes = panel_elements(args.depth, args.dtype) * kSize;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * kPackedDepth, last = min_of(first + kPackedDepth, args.depth);
    char* to = args.panels + first * kPanelColumns * kSize;
    for (int64_t column = 0; column < args.columns; column += kPanelColumns, to += panel_bytes) {
      const int64_t columns = min_of(args.columns - column, kPanelColumns);
      const char* from = args.weight + first * args.row_stride + column * kSize;
      char* row = to;
      if constexpr (std::is_same_v<T, bfloat16>) {
        for (int64_t k = first; k < last; k += 2, from += 2 * args.row_stride, row += 4 * kPanelColumns)
          zip_pairs(from, k + 1 < last ? from + args.row_stride : nullptr, columns, row);
      } else {
        for (int64_t k = first; k < last; ++k, from += args.row_stride, row += kPanelColumns * kSize)
          copy_panel_row<kSize>(from, columns, row);
      }
    }
  }
}

inline void pack_columns(const PackArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.dtype, [&](auto type) { pack_columns_of<decltype(type)>(args, begin, end); });
}

// A band of the rows to be made, 16 inputs at a time.
template <class T, class Out>
SF_INLINE void transpose_bands(const TransposeArgs& args, int64_t begin, int64_t end) {
  using A = Acc<T>;
  alignas(64) A panel[kTransposedRows * kPanelColumns];
  for (int64_t band = begin; band < end; ++band) {
    const int64_t first = band * kTransposedRows, rows = min_of(args.rows - first, kTransposedRows);
    const char* from = args.in + first * static_cast<int64_t>(sizeof(T));
    Out* const out = static_cast<Out*>(args.out) + first * args.stride;
    for (int64_t k = 0; k < args.stride; k += kPanelColumns, from += kPanelColumns * args.row_stride) {
      const int64_t left = args.depth > k ? min_of(args.depth - k, kPanelColumns) : 0;
      pack_panel<T>(from, args.row_stride, left, rows, panel);
      for (int64_t row = 0; row < rows; ++row)
        map_row(
            out + row * args.stride + k, kPanelColumns, [](auto x) { return x; },
            static_cast<const A*>(panel + row * kPanelColumns));
    }
  }
}

inline void transpose(const TransposeArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.pairs) return transpose_bands<bfloat16, bfloat16>(args, begin, end);
  with_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    transpose_bands<T, Acc<T>>(args, begin, end);
  });
}

}  // namespace simdformer::SF_ISA
