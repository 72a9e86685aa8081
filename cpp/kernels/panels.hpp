// panels: rows of k elements -> panels of 16 columns, k by k (their layout: gemm.hpp)
//
// Blocks of 4 x 4 floats or 2 x 2 doubles are transposed inside the quarters of registers.
#pragma once

#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

constexpr int64_t kPanelColumns = 16;

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

}  // namespace simdformer::SF_ISA
