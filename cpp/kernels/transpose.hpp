// What the products of gradients are made of: matrices whose depth runs down their columns.
//
//   pack_columns   (depth, columns) -> panels of 16 columns, k by k: as pack makes them of the transpose
//   transpose      (rows, columns) -> (columns, rows)
//
// Both move bits and change none. A panel's row is 16 neighbours of a row of the matrix; the pairs of bfloat16 are
// two of them zipped.
#pragma once

#include "base/gradient_args.hpp"
#include "base/linear_args.hpp"
#include "kernels/pack.hpp"

namespace simdformer::SF_ISA {

inline void pack_columns(const PackArgs& args, int64_t begin, int64_t end) noexcept {
  constexpr int64_t kColumns = kPanelColumns;
  const int64_t size = itemsize(args.dtype);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t column = p * kColumns, columns = min_of(args.columns - column, kColumns);
    const char* from = args.weight + column * size;
    char* to = args.panels + p * panel_elements(args.depth, args.dtype) * size;
    if (args.dtype == DType::bf16) {
      for (int64_t k = 0; k < args.depth; k += 2, from += 2 * args.row_stride) {
        uint16_t rows[2][kColumns] = {};
        std::memcpy(rows[0], from, static_cast<size_t>(columns) * 2);
        if (k + 1 < args.depth)
          std::memcpy(rows[1], from + args.row_stride, static_cast<size_t>(columns) * 2);
        uint32_t pairs[kColumns];
        for (int64_t c = 0; c < kColumns; ++c)
          pairs[c] = rows[0][c] | static_cast<uint32_t>(rows[1][c]) << 16;
        std::memcpy(to, pairs, sizeof(pairs));
        to += sizeof(pairs);
      }
      continue;
    }
    const int64_t bytes = columns * size, whole = kColumns * size;
    for (int64_t k = 0; k < args.depth; ++k, from += args.row_stride, to += whole) {
      if (columns == kColumns && size == 4) {
        std::memcpy(to, from, kColumns * 4);
      } else {
        std::memcpy(to, from, static_cast<size_t>(bytes));
        std::memset(to + bytes, 0, static_cast<size_t>(whole - bytes));
      }
    }
  }
}

// Bands of 16 rows, 16 columns at a time; bands of float32 in registers.
template <class T>
SF_INLINE void transpose_band(const TransposeArgs& args, const char* rows, int64_t count, T* out) {
  constexpr int64_t kSide = kPanelColumns;
  if constexpr (std::is_same_v<T, float>) {
    constexpr int64_t kStage = 64;
    alignas(64) float panel[kStage * kSide];
    for (int64_t begin = 0; begin < args.columns; begin += kStage) {
      const int64_t columns = min_of(args.columns - begin, kStage);
      pack_panel<float>(rows + begin * 4, args.row_stride, count, columns, panel);
      for (int64_t j = 0; j < columns; ++j)
        std::memcpy(out + (begin + j) * args.rows, panel + j * kSide, static_cast<size_t>(count) * 4);
    }
  } else {
    for (int64_t begin = 0; begin < args.columns; begin += kSide) {
      const int64_t columns = min_of(args.columns - begin, kSide);
      T tile[kSide][kSide];
      for (int64_t i = 0; i < count; ++i) {
        T row[kSide];
        std::memcpy(row, rows + i * args.row_stride + begin * static_cast<int64_t>(sizeof(T)),
                    static_cast<size_t>(columns) * sizeof(T));
        for (int64_t j = 0; j < columns; ++j) tile[j][i] = row[j];
      }
      for (int64_t j = 0; j < columns; ++j)
        std::memcpy(out + (begin + j) * args.rows, tile[j], static_cast<size_t>(count) * sizeof(T));
    }
  }
}

inline void transpose(const TransposeArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t band = begin; band < end; ++band) {
      const int64_t row = band * kPanelColumns;
      transpose_band<T>(args, args.in + row * args.row_stride, min_of(args.rows - row, kPanelColumns),
                        static_cast<T*>(args.out) + row);
    }
  });
}

}  // namespace simdformer::SF_ISA
