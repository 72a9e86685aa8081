// pack: rows of k elements -> panels of 16 columns, k by k (base/panels.hpp)     unpack: the way back
// pack_rows: rows of x as linear multiplies them, with zeros up to the stride
//
// Blocks of 4 x 4 floats or 2 x 2 doubles are transposed inside the quarters of registers. Packing and
// unpacking move bits and change none.
#pragma once

#include "base/linear_args.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

// ---- one panel --------------------------------------------------------------------------------------------

// panel[j][c] = rows[c][j] for 16 rows of k <= kStage elements, transposed inside quarters: 4 x 4 floats or 2
// x 2 doubles each, quarter q holding the rows from kQuarter * q on. Reads whole quarters, past k.
template <class A>
SF_INLINE void transpose_panel(const A* rows, int64_t stride, int64_t k, A* panel) {
  using V = Vec<A>;
  constexpr int64_t W = kLanes<A>;
  constexpr int kQuarter = static_cast<int>(16 / sizeof(A));
  for (int64_t j = 0; j < k; j += kQuarter)
    for (int64_t column = 0; column < kPanelColumns; column += W) {
      const A* corner = rows + column * stride + j;
      V r[kQuarter];
      SF_UNROLL for (int i = 0; i < kQuarter; ++i) r[i] =
          load_quarters(corner + i * stride, kQuarter * stride);
      if constexpr (kQuarter == 4) {
        using Twos = Vec<double>;  // two floats move as one
        const Twos t0 = lanes_as<Twos>(zip_lower(r[0], r[1])), t1 = lanes_as<Twos>(zip_upper(r[0], r[1]));
        const Twos t2 = lanes_as<Twos>(zip_lower(r[2], r[3])), t3 = lanes_as<Twos>(zip_upper(r[2], r[3]));
        r[0] = lanes_as<V>(zip_lower(t0, t2)), r[1] = lanes_as<V>(zip_upper(t0, t2));
        r[2] = lanes_as<V>(zip_lower(t1, t3)), r[3] = lanes_as<V>(zip_upper(t1, t3));
      } else {
        const V low = zip_lower(r[0], r[1]), high = zip_upper(r[0], r[1]);
        r[0] = low, r[1] = high;
      }
      SF_UNROLL for (int i = 0; i < kQuarter; ++i) {
        if (j + i < k) store(panel + (j + i) * kPanelColumns + column, r[i]);
      }
    }
}

// Rows of k elements of T, any alignment, become one panel [k][16] of the accumulator's type. Missing columns
// are zero. The rows pass through a small stage, because 16 rows a power of two apart fall into one set of
// the cache.
template <class T>
void pack_panel(const char* rows, int64_t row_stride_bytes, int64_t columns, int64_t k,
                Acc<T>* panel) noexcept {
  using A = Acc<T>;
  constexpr int64_t kStage = 64, kPitch = kStage + 16;
  alignas(64) A stage[kPanelColumns * kPitch];
  for (int64_t c = columns; c < kPanelColumns; ++c)
    for (int64_t j = 0; j < kStage; ++j) stage[c * kPitch + j] = A(0);
  for (int64_t begin = 0; begin < k; begin += kStage) {
    const int64_t length = k - begin < kStage ? k - begin : kStage;
    for (int64_t c = 0; c < columns; ++c) {
      const T* row = reinterpret_cast<const T*>(rows + c * row_stride_bytes) + begin;
      map_row(stage + c * kPitch, length, [](auto x) { return x; }, row);
    }
    transpose_panel(static_cast<const A*>(stage), kPitch, length, panel + begin * kPanelColumns);
  }
}

// 16-bit rows are transposed two elements at a time, as 32-bit words that nothing but moves.
template <class T>
SF_INLINE void pack_panel_16(const char* rows, int64_t row_stride, int64_t columns, int64_t depth, T* panel) {
  constexpr int64_t kWords = 64, kPitch = kWords + 16;
  alignas(64) float stage[kPanelColumns * kPitch], words[kWords * kPanelColumns];
  std::memset(stage, 0, sizeof(stage));
  for (int64_t begin = 0; begin < depth; begin += 2 * kWords) {
    const int64_t length = depth - begin < 2 * kWords ? depth - begin : 2 * kWords;
    for (int64_t c = 0; c < columns; ++c) {
      if (length % 2 != 0) stage[c * kPitch + length / 2] = 0.0f;
      std::memcpy(stage + c * kPitch, rows + c * row_stride + begin * 2, static_cast<size_t>(length) * 2);
    }
    transpose_panel(static_cast<const float*>(stage), kPitch, (length + 1) / 2, static_cast<float*>(words));
    T* out = panel + begin * kPanelColumns;
    if constexpr (std::is_same_v<T, bfloat16>) {
      std::memcpy(out, words, static_cast<size_t>((length + 1) / 2 * kPanelColumns) * 4);
    } else {
      for (int64_t k = 0; k < length; ++k)
        for (int64_t c = 0; c < kPanelColumns; ++c)
          out[k * kPanelColumns + c].bits =
              static_cast<uint16_t>(bits_of(words[k / 2 * kPanelColumns + c]) >> (k % 2 * 16));
    }
  }
}

// ---- entries of the table ---------------------------------------------------------------------------------

inline void pack(const PackArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = p * kPanelColumns, columns = min_of(args.columns - column, kPanelColumns);
      const char* rows = args.weight + column * args.row_stride;
      T* panel = reinterpret_cast<T*>(args.panels) + p * panel_elements(args.depth, args.dtype);
      if constexpr (sizeof(T) == 2)
        pack_panel_16(rows, args.row_stride, columns, args.depth, panel);
      else
        pack_panel<T>(rows, args.row_stride, columns, args.depth, panel);
    }
  });
}

// No hot path: a plain loop over blocks that stay in cache.
inline void unpack(const UnpackArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int64_t kDepth = std::is_same_v<T, bfloat16> ? 2 : 1, kBlock = 64;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = p * kPanelColumns, columns = min_of(args.columns - column, kPanelColumns);
      const T* panel = reinterpret_cast<const T*>(args.panels) + p * panel_elements(args.depth, args.dtype);
      for (int64_t block = 0; block < args.depth; block += kBlock) {
        const int64_t last = min_of(args.depth, block + kBlock);
        for (int64_t c = 0; c < columns; ++c) {
          char* row = args.weight + (column + c) * args.row_stride;
          for (int64_t k = block; k < last; ++k)
            std::memcpy(row + k * static_cast<int64_t>(sizeof(T)),
                        panel + (k / kDepth * kPanelColumns + c) * kDepth + k % kDepth, sizeof(T));
        }
      }
    }
  });
}

// As the bfloat16 that they are.
SF_INLINE void copy_rows(const PackRowsArgs& args, int64_t begin, int64_t end) {
  RowCursor row(args.x, args.first + begin);
  for (int64_t i = begin; i < end; ++i, row.next()) {
    bfloat16* out = static_cast<bfloat16*>(args.out) + i * args.stride;
    std::memcpy(out, row.template as<const bfloat16>(), static_cast<size_t>(args.x.length) * 2);
    std::memset(out + args.x.length, 0, static_cast<size_t>(args.stride - args.x.length) * 2);
  }
}

inline void pack_rows(const PackRowsArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.pairs) return copy_rows(args, begin, end);
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using A = Acc<T>;
    RowCursor row(args.x, args.first + begin);
    for (int64_t i = begin; i < end; ++i, row.next()) {
      A* out = static_cast<A*>(args.out) + i * args.stride;
      map_row(out, args.x.length, [](auto x) { return x; }, row.template as<const T>());
      for (int64_t k = args.x.length; k < args.stride; ++k) out[k] = A(0);
    }
  });
}

}  // namespace simdformer::SF_ISA
