// rope: every pair (a, b) of a row is turned by the angle position * inv_freq[i]
//   y_a = a cos - b sin     y_b = b cos + a sin
//   x, y: (rows, n), y may be x     table: (positions, 2, half)
// Pair i < half is (x[i], x[half + i]) in the layout "half", (x[2i], x[2i + 1]) in the layout "interleaved";
// elements from 2 half on stay as they are.
//
// rope_table: angles, their cos and sin and the attention factor in float64, one rounding to the type of the
// table: float32, or float64 for a float64 x. rope: float32 (float64) arithmetic, one rounding at the store.
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/loops.hpp"
#include "kernels/sincos.hpp"

namespace simdformer::SF_ISA {

// ---- the table --------------------------------------------------------------------------------------------

// The first n lanes of x, rounded once to the table's type
SF_INLINE void store_angles(float* p, int64_t n, Vec<double> x) {
  constexpr int64_t W = kLanes<double>;
  if (n == W) return store_rounded(p, x);
  alignas(64) float rounded[W];
  store_rounded(rounded, x);
  for (int64_t i = 0; i < n; ++i) p[i] = rounded[i];
}

SF_INLINE void store_angles(double* p, int64_t n, Vec<double> x) {
  if (n == kLanes<double>) return store(p, x);
  store_part(p, n, x);
}

template <class A>
void rope_table_rows(const RopeTableArgs& args, int64_t begin, int64_t end) noexcept {
  using V = Vec<double>;
  constexpr int64_t W = kLanes<double>;
  const V factor(args.attention_factor);
  for (int64_t p = begin; p < end; ++p) {
    A* cos = static_cast<A*>(args.table) + p * 2 * args.half;
    A* sin = cos + args.half;
    const V position(static_cast<double>(args.positions[p]));
    for (int64_t i = 0; i < args.half; i += W) {
      const int64_t n = args.half - i < W ? args.half - i : W;
      const V inv_freq = n == W ? load(args.inv_freq + i) : load_part(args.inv_freq + i, n);
      const auto turn = vec_sincos(V(position * inv_freq));
      store_angles(cos + i, n, V(turn.cos * factor));
      store_angles(sin + i, n, V(turn.sin * factor));
    }
  }
}

inline void rope_table(const RopeTableArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.dtype == DType::f64) return rope_table_rows<double>(args, begin, end);
  rope_table_rows<float>(args, begin, end);
}

// ---- the rotation -----------------------------------------------------------------------------------------

template <class V>
SF_INLINE Pair<V> rotate(Pair<V> x, V cos, V sin) {
  return {neg_mul_add(x.b, sin, V(x.a * cos)), mul_add(x.a, sin, V(x.b * cos))};
}

template <class T>
SF_INLINE void rotate_halves(const T* x, T* y, int64_t half, const Acc<T>* cos, const Acc<T>* sin) {
  using V = Vec<Acc<T>>;
  const auto turn = [](V a, V b, V cos, V sin) { return rotate<V>({a, b}, cos, sin); };
  map_row(Pair<T*>{y, y + half}, half, turn, x, x + half, cos, sin);
}

template <class T>
SF_INLINE void rotate_neighbours(const T* x, T* y, int64_t half, const Acc<T>* cos, const Acc<T>* sin) {
  using V = Vec<Acc<T>>;
  constexpr int64_t W = kLanes<Acc<T>>;
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const Pair<V> pairs = unzip(load(x + 2 * i), load(x + 2 * i + W));
    const Pair<V> out = zip(rotate(pairs, load(cos + i), load(sin + i)));
    store(y + 2 * i, out.a);
    store(y + 2 * i + W, out.b);
  }
  if (const int64_t n = half - i; n > 0) {
    const int64_t first = 2 * n < W ? 2 * n : W, second = 2 * n - first;  // of 2n numbers in two batches
    const Pair<V> pairs = unzip(load_part(x + 2 * i, first), load_part(x + 2 * i + first, second));
    const Pair<V> out = zip(rotate(pairs, load_part(cos + i, n), load_part(sin + i, n)));
    store_part(y + 2 * i, first, out.a);
    store_part(y + 2 * i + first, second, out.b);
  }
}

template <class T, RopeLayout layout>
void rope_rows(const RopeArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  const int64_t half = args.half, rest = args.x.length - 2 * half;
  // Where row `begin` stands, so that no row after it needs a division.
  int64_t row_of_sequence = begin % args.rows_per_sequence, position = begin % args.seq_len;
  const A* table =
      static_cast<const A*>(args.table) + begin / args.rows_per_sequence * args.sequence_stride * 2 * half;
  const int64_t bytes = args.x.length * static_cast<int64_t>(sizeof(T));
  RowCursor x(args.x, begin), out(args.out, begin);
  LineStream lines(out.get());
  for (int64_t row = begin; row < end; ++row, x.next(), out.next()) {
    const T* in = x.template as<const T>();
    T* y = args.past_caches ? reinterpret_cast<T*>(lines.place()) : out.template as<T>();
    if (args.past_caches)
      for (int64_t byte = 0; byte < bytes; byte += kLineBytes)
        prefetch_to(args.goal, x.get() + byte + kRopeBytesAhead);
    const A* cos = table + position * 2 * half;
    if constexpr (layout == RopeLayout::half)
      rotate_halves(in, y, half, cos, cos + half);
    else
      rotate_neighbours(in, y, half, cos, cos + half);
    if (rest > 0 && y != in) std::memcpy(y + 2 * half, in + 2 * half, static_cast<size_t>(rest) * sizeof(T));
    if (args.past_caches) lines.add(bytes);
    if (++position == args.seq_len) position = 0;
    if (++row_of_sequence == args.rows_per_sequence) {
      row_of_sequence = 0;
      table += args.sequence_stride * 2 * half;
    }
  }
  if (args.past_caches) lines.finish();
}

inline void rope(const RopeArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) {
    using T = decltype(x);
    if (args.layout == RopeLayout::half) return rope_rows<T, RopeLayout::half>(args, begin, end);
    rope_rows<T, RopeLayout::interleaved>(args, begin, end);
  });
}

}  // namespace simdformer::SF_ISA
