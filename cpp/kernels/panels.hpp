// panels: rows of k elements -> panels of 16 columns, k by k (their layout: gemm.hpp)
//
// Blocks of 4 x 4 floats or 2 x 2 doubles are transposed inside the 128-bit lanes of registers.
#pragma once

#include "kernels/vec.hpp"

#if defined(__clang__)
#define SF_UNROLL _Pragma("unroll")
#else
#define SF_UNROLL _Pragma("GCC unroll 16")
#endif

namespace simdformer::SF_ISA {

constexpr int64_t kPanelColumns = 16;

// a0 b0 a1 b1 ... of the lower or the upper half of every 128-bit lane.
template <class V>
SF_INLINE V zip_lower(V a, V b) {
  constexpr bool kFloat = std::is_same_v<typename V::value_type, float>;
#if defined(__AVX512F__)
  if constexpr (kFloat)
    return V(_mm512_unpacklo_ps(a, b));
  else
    return V(_mm512_unpacklo_pd(a, b));
#elif defined(__AVX2__)
  if constexpr (kFloat)
    return V(_mm256_unpacklo_ps(a, b));
  else
    return V(_mm256_unpacklo_pd(a, b));
#elif defined(__SSE2__)
  if constexpr (kFloat)
    return V(_mm_unpacklo_ps(a, b));
  else
    return V(_mm_unpacklo_pd(a, b));
#else
  if constexpr (kFloat)
    return V(vzip1q_f32(a, b));
  else
    return V(vzip1q_f64(a, b));
#endif
}

template <class V>
SF_INLINE V zip_upper(V a, V b) {
  constexpr bool kFloat = std::is_same_v<typename V::value_type, float>;
#if defined(__AVX512F__)
  if constexpr (kFloat)
    return V(_mm512_unpackhi_ps(a, b));
  else
    return V(_mm512_unpackhi_pd(a, b));
#elif defined(__AVX2__)
  if constexpr (kFloat)
    return V(_mm256_unpackhi_ps(a, b));
  else
    return V(_mm256_unpackhi_pd(a, b));
#elif defined(__SSE2__)
  if constexpr (kFloat)
    return V(_mm_unpackhi_ps(a, b));
  else
    return V(_mm_unpackhi_pd(a, b));
#else
  if constexpr (kFloat)
    return V(vzip2q_f32(a, b));
  else
    return V(vzip2q_f64(a, b));
#endif
}

// 128-bit lane l = the 16 bytes at p + l * stride elements.
template <class Arch, class A>
SF_INLINE Vec<Arch, A> load_lanes(const A* p, [[maybe_unused]] int64_t stride) {
#if defined(__AVX512F__)
  __m512i x = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  x = _mm512_inserti32x4(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + stride)), 1);
  x = _mm512_inserti32x4(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * stride)), 2);
  x = _mm512_inserti32x4(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 3 * stride)), 3);
  return lanes_as<Vec<Arch, A>>(x);
#elif defined(__AVX2__)
  const __m256i x = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return lanes_as<Vec<Arch, A>>(
      _mm256_inserti128_si256(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + stride)), 1));
#else
  return load<Arch>(p);
#endif
}

// panel[j][c] = rows[c][j] for 16 rows of k <= kStage elements, transposed inside 128-bit lanes: 4 x 4 floats
// or 2 x 2 doubles a lane, lane l holding rows (lane width) * l + j. Reads whole lanes, past k.
template <class Arch, class A>
SF_INLINE void transpose_panel(const A* rows, int64_t stride, int64_t k, A* panel) {
  using V = Vec<Arch, A>;
  constexpr int64_t W = kLanes<Arch, A>;
  constexpr int kLane = static_cast<int>(16 / sizeof(A));
  for (int64_t j = 0; j < k; j += kLane)
    for (int64_t column = 0; column < kPanelColumns; column += W) {
      const A* corner = rows + column * stride + j;
      V r[kLane];
      SF_UNROLL for (int i = 0; i < kLane; ++i) r[i] = load_lanes<Arch>(corner + i * stride, kLane * stride);
      if constexpr (kLane == 4) {
        using Pair = decltype(lanes_as<Vec<Arch, double>>(r[0]));
        const Pair t0 = lanes_as<Pair>(zip_lower(r[0], r[1])), t1 = lanes_as<Pair>(zip_upper(r[0], r[1]));
        const Pair t2 = lanes_as<Pair>(zip_lower(r[2], r[3])), t3 = lanes_as<Pair>(zip_upper(r[2], r[3]));
        r[0] = lanes_as<V>(zip_lower(t0, t2)), r[1] = lanes_as<V>(zip_upper(t0, t2));
        r[2] = lanes_as<V>(zip_lower(t1, t3)), r[3] = lanes_as<V>(zip_upper(t1, t3));
      } else {
        const V low = zip_lower(r[0], r[1]), high = zip_upper(r[0], r[1]);
        r[0] = low, r[1] = high;
      }
      SF_UNROLL for (int i = 0; i < kLane; ++i) {
        if (j + i < k) store<Arch>(panel + (j + i) * kPanelColumns + column, r[i]);
      }
    }
}

// Rows of k elements of T, any alignment, become one panel [k][16] of the accumulator's type. Missing columns
// are zero. The rows pass through a small stage, because 16 rows a power of two apart fall into one set of
// the cache.
template <class Arch, class T>
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
      map_row<Arch>(stage + c * kPitch, length, [](auto x) { return x; }, row);
    }
    transpose_panel<Arch>(static_cast<const A*>(stage), kPitch, length, panel + begin * kPanelColumns);
  }
}

// 16-bit rows are transposed two elements at a time, as 32-bit words that nothing but moves.
template <class Arch, class T>
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
    transpose_panel<Arch>(static_cast<const float*>(stage), kPitch, (length + 1) / 2,
                          static_cast<float*>(words));
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
