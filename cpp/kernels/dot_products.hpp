// dot_products: C = A B^T      A: (m, depth) row-major   B: (n, depth) row-major, of any storage dtype   C: (m, n)
//
// For weights as they lie and few rows of A: no panels are made of B, which passes once. As many inputs of all
// rows of A as kInputElements hold are copied to where they stay in the first cache while all rows of B pass,
// four at a time; the rows of B that come next are prefetched meanwhile. One row or two read B from its first byte to
// its last, which the hardware does best by itself.
//
// Lanes are summed apart for kDotDepth inputs, then added up in a tree and to C, in order. That depends on
// depth alone: an element has the same bits for every m and n and at every place.
#pragma once

#include "kernels/gemm.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

constexpr int kDotColumns = 4;      // rows of B whose dot products share the load of A
constexpr int64_t kDotDepth = 256;  // a whole number of registers of every type
constexpr int64_t kInputElements = 4096;

// A few rows of a weight, as they lie: `stride` bytes apart.
struct WeightRows {
  const char* p;
  int64_t stride;
  Cache goal;  // where several rows of A prefetch them to

  SF_INLINE WeightRows from(int64_t n, int64_t bytes) const { return {p + n * stride + bytes, stride, goal}; }
};

// c[n] += the sum of the lanes of x[n]. The last of them may be zeros, which change nothing.
template <int NR, class V>
SF_INLINE void add_lane_sums(const V (&x)[kDotColumns], typename V::value_type* c) {
  typename V::value_type sums[kDotColumns];
  static_assert(kDotColumns == 4);
  sum_four(x, sums);
  SF_UNROLL for (int n = 0; n < NR; ++n) c[n] += sums[n];
}

// MR rows of A against NR rows of B: C += A B^T for k inputs, where C has kSliceColumns columns. A is padded to
// whole registers.
template <class T, int MR, int NR, bool kAhead>
__attribute__((noinline)) void dot_tile(int64_t k, Matrix<Acc<T>> a, WeightRows b,
                                        [[maybe_unused]] Prefetch next, Acc<T>* c) noexcept {
  using V = Vec<Acc<T>>;
  constexpr int64_t W = kLanes<Acc<T>>;
  static_assert(kDotDepth % W == 0);
  const T* rows[NR];
  SF_UNROLL for (int n = 0; n < NR; ++n) rows[n] = reinterpret_cast<const T*>(b.p + n * b.stride);
  V sum[MR][kDotColumns];

  const auto step = [&](int64_t j, auto load_weight) __attribute__((always_inline)) {
    V lanes[MR];
    SF_UNROLL for (int i = 0; i < MR; ++i) lanes[i] = load(a.row(i) + j);
    SF_UNROLL for (int n = 0; n < NR; ++n) {
      const V w = load_weight(rows[n] + j);
      SF_UNROLL for (int i = 0; i < MR; ++i) sum[i][n] = mul_add(lanes[i], w, sum[i][n]);
    }
  };
  for (int64_t j = 0; j < k;) {
    SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int n = 0; n < kDotColumns; ++n) sum[i][n] =
        V(Acc<T>(0));
    const int64_t end = min_of(j + kDotDepth, k);
    for (; j + W <= end; j += W) {
      if constexpr (kAhead) {
        prefetch_lines<NR>(next.address, static_cast<uintptr_t>(b.stride), next.goal);
        next.address += next.step;
      }
      step(j, [](const T* p) { return load(p); });
    }
    if (j < end) {
      step(j, [&](const T* p) { return load_part(p, end - j); });
      j = end;
    }
    SF_UNROLL for (int i = 0; i < MR; ++i) add_lane_sums<NR>(sum[i], c + i * kSliceColumns);
  }
}

// All rows of A, dealt out evenly, against NR rows of B. They prefetch the NR rows at `next` together.
template <class T, int NR, bool kAhead>
SF_INLINE void dot_columns(int64_t m, int64_t k, Matrix<Acc<T>> a, WeightRows b, uintptr_t next, Acc<T>* c) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T)), kBytes = kLanes<Acc<T>> * kSize;
  each_share(m, kDotTileRows, [&](int64_t i, int64_t rows) __attribute__((always_inline)) {
    const Prefetch share{next + static_cast<uintptr_t>(k * kSize * i / m),
                         static_cast<uintptr_t>(kBytes * rows / m), b.goal};
    with_count<kDotTileRows>(rows, [&](auto count) __attribute__((always_inline)) {
      dot_tile<T, decltype(count)::value, NR, kAhead>(k, a.from(i), b, share, c + i * kSliceColumns);
    });
  });
}

// m <= kSliceColumns rows of A, padded with zeros to whole registers, and n <= kSliceColumns rows of B. C has
// kSliceColumns columns; `block` room for kSliceColumns * kDotDepth elements.
template <class T>
SF_INLINE void dot_products(int64_t m, int64_t n, int64_t depth, Matrix<Acc<T>> a, WeightRows b, Acc<T>* c,
                            Acc<T>* block) {
  using A = Acc<T>;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T)), W = kLanes<A>;
  static_assert(kInputElements <= kSliceColumns * kDotDepth);
  for (int64_t i = 0; i < m * kSliceColumns; ++i) c[i] = A(0);
  const int64_t most = max_of(kInputElements / m / kDotDepth, int64_t{1}) * kDotDepth;
  const int64_t columns_ahead =
      max_of(kDotBytesAhead / (most * kSize * kDotColumns), int64_t{1}) * kDotColumns;
  for (int64_t begin = 0; begin < depth; begin += most) {
    const int64_t k = min_of(depth - begin, most), pitch = (k + W - 1) / W * W;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < pitch; j += W) store(block + i * pitch + j, load(a.row(i) + begin + j));
    const Matrix<A> inputs{block, pitch};

    int64_t column = 0;
    for (; column + kDotColumns <= n; column += kDotColumns) {
      // The last rows of B are followed by the first ones, a block further, and in the end by those after them.
      const int64_t after = column + columns_ahead;
      const WeightRows next = after < n              ? b.from(after, begin * kSize)
                              : begin + most < depth ? b.from(after - n, (begin + most) * kSize)
                                                     : b.from(after, 0);
      const auto address = reinterpret_cast<uintptr_t>(next.p);
      const WeightRows rows = b.from(column, begin * kSize);
      if (m > 2)
        dot_columns<T, kDotColumns, true>(m, k, inputs, rows, address, c + column);
      else
        dot_columns<T, kDotColumns, false>(m, k, inputs, rows, address, c + column);
    }
    for (; column < n; ++column)
      dot_columns<T, 1, false>(m, k, inputs, b.from(column, begin * kSize), 0, c + column);
  }
}

}  // namespace simdformer::SF_ISA
