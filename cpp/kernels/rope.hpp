// rope: every pair (a, b) of a row is turned by the angle position * inv_freq[i]
//   y_a = a cos - b sin     y_b = b cos + a sin
//   x, y: (rows, n), y may be x     table: (positions, 2, half)
// Pair i < half is (x[i], x[half + i]) in the layout "half", (x[2i], x[2i + 1]) in the layout "interleaved";
// elements from 2 half on stay as they are.
//
// rope_table: angles, their cos and sin and the attention factor in float64, one rounding to the type of the
// table: float32, or float64 for a float64 x. rope: float32 (float64) arithmetic, one rounding at the store.
#pragma once

#include "core/dispatch.hpp"
#include "kernels/dtypes.hpp"
#include "kernels/sincos.hpp"

namespace simdformer::SF_ISA {

// ---- the table --------------------------------------------------------------------------------------------

// A batch of float64, or its first n lanes, as float32.
template <class Arch>
SF_INLINE void store_rounded(float* p, int64_t n, Vec<Arch, double> x) {
  constexpr int64_t W = kLanes<Arch, double>;
#if defined(__AVX512F__)
  if (n == W) return _mm256_storeu_ps(p, _mm512_cvtpd_ps(x));
#elif defined(__AVX2__)
  if (n == W) return _mm_storeu_ps(p, _mm256_cvtpd_ps(x));
#endif
  alignas(64) double lane[W];
  x.store_aligned(lane);
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<float>(lane[i]);
}

template <class Arch>
SF_INLINE void store_rounded(double* p, int64_t n, Vec<Arch, double> x) {
  if (n == kLanes<Arch, double>) return store<Arch>(p, x);
  store_part<Arch>(p, n, x);
}

template <class Arch, class A>
void rope_table_rows(const RopeTableArgs& args, int64_t begin, int64_t end) noexcept {
  using V = Vec<Arch, double>;
  constexpr int64_t W = kLanes<Arch, double>;
  const V factor(args.attention_factor);
  for (int64_t p = begin; p < end; ++p) {
    A* cos = static_cast<A*>(args.table) + p * 2 * args.half;
    A* sin = cos + args.half;
    const V position(static_cast<double>(args.positions[p]));
    for (int64_t i = 0; i < args.half; i += W) {
      const int64_t n = args.half - i < W ? args.half - i : W;
      const V inv_freq = n == W ? load<Arch>(args.inv_freq + i) : load_part<Arch>(args.inv_freq + i, n);
      const auto turn = vec_sincos<Arch>(V(position * inv_freq));
      store_rounded<Arch>(cos + i, n, V(turn.cos * factor));
      store_rounded<Arch>(sin + i, n, V(turn.sin * factor));
    }
  }
}

template <class Arch>
void rope_table(const RopeTableArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.dtype == DType::f64) return rope_table_rows<Arch, double>(args, begin, end);
  rope_table_rows<Arch, float>(args, begin, end);
}

// ---- the rotation -----------------------------------------------------------------------------------------

template <class V>
struct Pair {
  V a, b;
};

template <class V>
SF_INLINE Pair<V> rotate(Pair<V> x, V cos, V sin) {
  return {neg_mul_add(x.b, sin, V(x.a * cos)), mul_add(x.a, sin, V(x.b * cos))};
}

// a0 b0 a1 b1 ... in two batches -> all a, all b.
template <class V>
SF_INLINE Pair<V> unzip(V first, V second) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<V>) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    return {V(_mm512_permutex2var_ps(first, even, second)), V(_mm512_permutex2var_ps(first, odd, second))};
  } else {
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi64(1));
    return {V(_mm512_permutex2var_pd(first, even, second)), V(_mm512_permutex2var_pd(first, odd, second))};
  }
#elif defined(__AVX2__)
  // The shuffles work inside 128-bit lanes: first bring each half of the result into its own lane.
  const __m256 x = lanes_as<__m256>(first), y = lanes_as<__m256>(second);
  const __m256 low = _mm256_permute2f128_ps(x, y, 0x20), high = _mm256_permute2f128_ps(x, y, 0x31);
  if constexpr (kIsFloat<V>) {
    return {V(_mm256_shuffle_ps(low, high, 0x88)), V(_mm256_shuffle_ps(low, high, 0xdd))};
  } else {
    const __m256d l = _mm256_castps_pd(low), h = _mm256_castps_pd(high);
    return {V(_mm256_unpacklo_pd(l, h)), V(_mm256_unpackhi_pd(l, h))};
  }
#elif defined(__SSE2__)
  if constexpr (kIsFloat<V>)
    return {V(_mm_shuffle_ps(first, second, 0x88)), V(_mm_shuffle_ps(first, second, 0xdd))};
  else
    return {V(_mm_unpacklo_pd(first, second)), V(_mm_unpackhi_pd(first, second))};
#else
  if constexpr (kIsFloat<V>)
    return {V(vuzp1q_f32(first, second)), V(vuzp2q_f32(first, second))};
  else
    return {V(vuzp1q_f64(first, second)), V(vuzp2q_f64(first, second))};
#endif
}

// The way back: all a, all b -> a0 b0 a1 b1 ... in two batches.
template <class V>
SF_INLINE Pair<V> zip(Pair<V> x) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<V>) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    return {V(_mm512_permutex2var_ps(x.a, low, x.b)), V(_mm512_permutex2var_ps(x.a, high, x.b))};
  } else {
    const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(4));
    return {V(_mm512_permutex2var_pd(x.a, low, x.b)), V(_mm512_permutex2var_pd(x.a, high, x.b))};
  }
#elif defined(__AVX2__)
  __m256 even, odd;  // 128-bit lanes 0 and 2, 1 and 3 of the result
  if constexpr (kIsFloat<V>) {
    even = _mm256_unpacklo_ps(x.a, x.b), odd = _mm256_unpackhi_ps(x.a, x.b);
  } else {
    even = _mm256_castpd_ps(_mm256_unpacklo_pd(x.a, x.b)),
    odd = _mm256_castpd_ps(_mm256_unpackhi_pd(x.a, x.b));
  }
  return {lanes_as<V>(_mm256_permute2f128_ps(even, odd, 0x20)),
          lanes_as<V>(_mm256_permute2f128_ps(even, odd, 0x31))};
#elif defined(__SSE2__)
  if constexpr (kIsFloat<V>)
    return {V(_mm_unpacklo_ps(x.a, x.b)), V(_mm_unpackhi_ps(x.a, x.b))};
  else
    return {V(_mm_unpacklo_pd(x.a, x.b)), V(_mm_unpackhi_pd(x.a, x.b))};
#else
  if constexpr (kIsFloat<V>)
    return {V(vzip1q_f32(x.a, x.b)), V(vzip2q_f32(x.a, x.b))};
  else
    return {V(vzip1q_f64(x.a, x.b)), V(vzip2q_f64(x.a, x.b))};
#endif
}

template <class Arch, class T>
SF_INLINE void rotate_halves(const T* x, T* y, int64_t half, const Acc<T>* cos, const Acc<T>* sin) {
  using V = Vec<Arch, Acc<T>>;
  constexpr int64_t W = kLanes<Arch, Acc<T>>;
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const Pair<V> turned =
        rotate<V>({load<Arch>(x + i), load<Arch>(x + half + i)}, load<Arch>(cos + i), load<Arch>(sin + i));
    store<Arch>(y + i, turned.a);
    store<Arch>(y + half + i, turned.b);
  }
  if (const int64_t n = half - i; n > 0) {
    const Pair<V> turned = rotate<V>({load_part<Arch>(x + i, n), load_part<Arch>(x + half + i, n)},
                                     load_part<Arch>(cos + i, n), load_part<Arch>(sin + i, n));
    store_part<Arch>(y + i, n, turned.a);
    store_part<Arch>(y + half + i, n, turned.b);
  }
}

template <class Arch, class T>
SF_INLINE void rotate_neighbours(const T* x, T* y, int64_t half, const Acc<T>* cos, const Acc<T>* sin) {
  using V = Vec<Arch, Acc<T>>;
  constexpr int64_t W = kLanes<Arch, Acc<T>>;
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const Pair<V> pairs = unzip(load<Arch>(x + 2 * i), load<Arch>(x + 2 * i + W));
    const Pair<V> out = zip(rotate(pairs, load<Arch>(cos + i), load<Arch>(sin + i)));
    store<Arch>(y + 2 * i, out.a);
    store<Arch>(y + 2 * i + W, out.b);
  }
  if (const int64_t n = half - i; n > 0) {
    const int64_t first = 2 * n < W ? 2 * n : W, second = 2 * n - first;  // of 2n numbers in two batches
    const Pair<V> pairs =
        unzip(load_part<Arch>(x + 2 * i, first), load_part<Arch>(x + 2 * i + first, second));
    const Pair<V> out = zip(rotate(pairs, load_part<Arch>(cos + i, n), load_part<Arch>(sin + i, n)));
    store_part<Arch>(y + 2 * i, first, out.a);
    store_part<Arch>(y + 2 * i + first, second, out.b);
  }
}

template <class Arch, class T, RopeLayout layout>
void rope_rows(const RopeArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  const int64_t half = args.half, rest = args.x.length - 2 * half;
  // Where row `begin` stands, so that no row after it needs a division.
  int64_t row_of_sequence = begin % args.rows_per_sequence, position = begin % args.seq_len;
  const A* table =
      static_cast<const A*>(args.table) + begin / args.rows_per_sequence * args.sequence_stride * 2 * half;
  RowCursor x(args.x, begin), out(args.out, begin);
  for (int64_t row = begin; row < end; ++row, x.next(), out.next()) {
    const T* in = x.template as<const T>();
    T* y = out.template as<T>();
    const A* cos = table + position * 2 * half;
    if constexpr (layout == RopeLayout::half)
      rotate_halves<Arch>(in, y, half, cos, cos + half);
    else
      rotate_neighbours<Arch>(in, y, half, cos, cos + half);
    if (rest > 0 && y != in) std::memcpy(y + 2 * half, in + 2 * half, static_cast<size_t>(rest) * sizeof(T));
    if (++position == args.seq_len) position = 0;
    if (++row_of_sequence == args.rows_per_sequence) {
      row_of_sequence = 0;
      table += args.sequence_stride * 2 * half;
    }
  }
}

template <class Arch>
void rope(const RopeArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) {
    using T = decltype(x);
    if (args.layout == RopeLayout::half) return rope_rows<Arch, T, RopeLayout::half>(args, begin, end);
    rope_rows<Arch, T, RopeLayout::interleaved>(args, begin, end);
  });
}

}  // namespace simdformer::SF_ISA
