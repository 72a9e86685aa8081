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
#include "base/tuning.hpp"
#include "kernels/pack.hpp"

namespace simdformer::SF_ISA {

// Two rows of bfloat16 in pairs, with zeros behind `columns`. A row behind the last is null, and zero.
SF_INLINE void zip_pairs(const char* first, const char* second, int64_t columns, float* to) {
  using Words = Vec<uint32_t>;
  alignas(64) bfloat16 rows[2][kPanelColumns];
  if (columns < kPanelColumns || second == nullptr) {
    std::memset(rows, 0, sizeof(rows));
    if (first != nullptr) std::memcpy(rows[0], first, static_cast<size_t>(columns) * 2);
    if (second != nullptr) std::memcpy(rows[1], second, static_cast<size_t>(columns) * 2);
    first = reinterpret_cast<const char*>(rows[0]), second = reinterpret_cast<const char*>(rows[1]);
  }
  for (int64_t c = 0; c < kPanelColumns; c += kLanes<float>) {
    const auto upper_half = [c](const char* row) {
      return lanes_as<Words>(load(reinterpret_cast<const bfloat16*>(row) + c));
    };
    store(to + c, lanes_as<Vec<float>>(Words((upper_half(first) >> 16) | upper_half(second))));
  }
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
          zip_pairs(from, k + 1 < last ? from + args.row_stride : nullptr, columns,
                    reinterpret_cast<float*>(row));
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
template <class T>
SF_INLINE void transpose_bands(const TransposeArgs& args, int64_t begin, int64_t end) {
  using A = Acc<T>;
  alignas(64) A panel[kTransposedRows * kPanelColumns];
  for (int64_t band = begin; band < end; ++band) {
    const int64_t first = band * kTransposedRows, rows = min_of(args.rows - first, kTransposedRows);
    const char* from = args.in + first * static_cast<int64_t>(sizeof(T));
    A* const out = static_cast<A*>(args.out) + first * args.stride;
    for (int64_t k = 0; k < args.stride; k += kPanelColumns, from += kPanelColumns * args.row_stride) {
      const int64_t left = args.depth > k ? min_of(args.depth - k, kPanelColumns) : 0;
      pack_panel<T>(from, args.row_stride, left, rows, panel);
      for (int64_t row = 0; row < rows; ++row)
        std::memcpy(out + row * args.stride + k, panel + row * kPanelColumns, kPanelColumns * sizeof(A));
    }
  }
}

// The same for pairs, which move as one word.
SF_INLINE void transpose_pairs(const TransposeArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kPitch = kTransposedRows + kPanelColumns, kInputs = 2 * kPanelColumns;
  alignas(64) float words[kPanelColumns * kPitch], turned[kTransposedRows * kPanelColumns];
  for (int64_t band = begin; band < end; ++band) {
    const int64_t first = band * kTransposedRows, rows = min_of(args.rows - first, kTransposedRows);
    const char* from = args.in + first * 2;
    char* const out = static_cast<char*>(args.out) + first * args.stride * 2;
    for (int64_t k = 0; k < args.stride; k += kInputs, from += kInputs * args.row_stride) {
      for (int64_t pair = 0; pair < kPanelColumns; ++pair) {
        const auto row_of = [&](int64_t i, int64_t column) {
          return k + i < args.depth ? from + i * args.row_stride + column * 2 : nullptr;
        };
        for (int64_t row = 0; row < rows; row += kPanelColumns)
          zip_pairs(row_of(2 * pair, row), row_of(2 * pair + 1, row), min_of(rows - row, kPanelColumns),
                    words + pair * kPitch + row);
      }
      transpose_panel(static_cast<const float*>(words), kPitch, rows, static_cast<float*>(turned));
      const int64_t inputs = min_of(args.stride - k, kInputs);
      for (int64_t row = 0; row < rows; ++row)
        std::memcpy(out + (row * args.stride + k) * 2, turned + row * kPanelColumns,
                    static_cast<size_t>(inputs) * 2);
    }
  }
}

inline void transpose(const TransposeArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.pairs) return transpose_pairs(args, begin, end);
  with_type(args.dtype, [&](auto type) { transpose_bands<decltype(type)>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
