// The xsimd shim: everything that the kernels know of the machine, and the only loops that have tails.
//
// One object per ISA is compiled from these headers (table.cpp). Two objects must never share a weak symbol,
// or the linker may give the baseline a function that was compiled with AVX-512: our names live in a
// namespace called after the ISA, and xsimd's own namespace is renamed likewise.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/array.hpp"

#ifndef SF_ISA
#error \
    "SF_ISA names the instruction set that this file is compiled for: baseline, avx2, avx512, avx512_bf16, neon"
#endif
#define SF_JOIN_(a, b) a##b
#define SF_JOIN(a, b) SF_JOIN_(a, b)
#define xsimd SF_JOIN(xsimd_, SF_ISA)
#include <xsimd/xsimd.hpp>

namespace simdformer::SF_ISA {

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
using NativeArch = xsimd::avx512bw;
#elif defined(__AVX2__)
using NativeArch = xsimd::avx2;
#elif defined(__aarch64__)
using NativeArch = xsimd::neon64;
#else
using NativeArch = xsimd::sse2;
#endif

template <class T>
using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class Arch, class A>
using Vec = xsimd::batch<A, Arch>;

template <class Arch, class A>
constexpr int64_t kLanes = static_cast<int64_t>(Vec<Arch, A>::size);

template <class Arch, class A>
SF_INLINE Vec<Arch, A> splat(A value) {
  return Vec<Arch, A>(value);
}

template <class B>
constexpr bool kIsFloat = std::is_same_v<typename B::value_type, float>;

// The same bits as lanes of another type.
template <class To, class From>
SF_INLINE To lanes_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(static_cast<void*>(&out), static_cast<const void*>(&x), sizeof(To));
  return out;
}

// ---- arithmetic -------------------------------------------------------------------------------------------
// What xsimd lacks, or does otherwise, in one of the versions from 8.1 to 14. None of these names is one of
// xsimd's, which argument lookup would prefer.

// a * b + c, one rounding where the ISA has FMA (xsimd uses it on AVX-512 only from version 11 on).
template <class B>
SF_INLINE B mul_add(B a, B b, B c) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<B>)
    return B(_mm512_fmadd_ps(a, b, c));
  else
    return B(_mm512_fmadd_pd(a, b, c));
#elif defined(__FMA__)
  if constexpr (kIsFloat<B>)
    return B(_mm256_fmadd_ps(a, b, c));
  else
    return B(_mm256_fmadd_pd(a, b, c));
#elif defined(__aarch64__)
  if constexpr (kIsFloat<B>)
    return B(vfmaq_f32(c, a, b));
  else
    return B(vfmaq_f64(c, a, b));
#else
  return a * b + c;
#endif
}

// c - a * b, likewise
template <class B>
SF_INLINE B neg_mul_add(B a, B b, B c) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<B>)
    return B(_mm512_fnmadd_ps(a, b, c));
  else
    return B(_mm512_fnmadd_pd(a, b, c));
#elif defined(__FMA__)
  if constexpr (kIsFloat<B>)
    return B(_mm256_fnmadd_ps(a, b, c));
  else
    return B(_mm256_fnmadd_pd(a, b, c));
#elif defined(__aarch64__)
  if constexpr (kIsFloat<B>)
    return B(vfmsq_f32(c, a, b));
  else
    return B(vfmsq_f64(c, a, b));
#else
  return c - a * b;
#endif
}

// a * b - product, exactly, where `product` is a * b rounded. Without FMA both are cut in two (Dekker): |a|,
// |b| up to 2^100 in float32.
template <class B>
SF_INLINE B product_error(B a, B b, B product) {
#if defined(__FMA__) || defined(__aarch64__)
  return mul_add(a, b, B(typename B::value_type(0)) - product);
#else
  const B split(kIsFloat<B> ? 0x1.001p12 : 0x1.0000002p27);
  const B ca = a * split, cb = b * split;
  const B ah = ca - (ca - a), al = a - ah, bh = cb - (cb - b), bl = b - bh;
  return al * bl - (((product - ah * bh) - al * bh) - ah * bl);
#endif
}

// a > b ? a : b and a < b ? a : b, so b where one is NaN: one instruction on x86.
template <class B>
SF_INLINE B larger(B a, B b) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<B>)
    return B(_mm512_max_ps(a, b));
  else
    return B(_mm512_max_pd(a, b));
#elif defined(__AVX2__)
  if constexpr (kIsFloat<B>)
    return B(_mm256_max_ps(a, b));
  else
    return B(_mm256_max_pd(a, b));
#elif defined(__SSE2__)
  if constexpr (kIsFloat<B>)
    return B(_mm_max_ps(a, b));
  else
    return B(_mm_max_pd(a, b));
#else
  return xsimd::select(a > b, a, b);
#endif
}

template <class B>
SF_INLINE B smaller(B a, B b) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<B>)
    return B(_mm512_min_ps(a, b));
  else
    return B(_mm512_min_pd(a, b));
#elif defined(__AVX2__)
  if constexpr (kIsFloat<B>)
    return B(_mm256_min_ps(a, b));
  else
    return B(_mm256_min_pd(a, b));
#elif defined(__SSE2__)
  if constexpr (kIsFloat<B>)
    return B(_mm_min_ps(a, b));
  else
    return B(_mm_min_pd(a, b));
#else
  return xsimd::select(a < b, a, b);
#endif
}

// -|x|: one instruction, where two would be obvious.
template <class B>
SF_INLINE B minus_abs(B x) {
  return x | B(typename B::value_type(-0.0));
}

// a where the sign of x is set, else b. Where x is zero or NaN either may come of it, whatever its sign.
template <class B>
SF_INLINE B where_negative(B x, B a, B b) {
#if defined(__AVX512DQ__)
  if constexpr (kIsFloat<B>)
    return B(_mm512_mask_mov_ps(b, _mm512_movepi32_mask(lanes_as<__m512i>(x)), a));
  else
    return B(_mm512_mask_mov_pd(b, _mm512_movepi64_mask(lanes_as<__m512i>(x)), a));
#elif defined(__AVX2__)
  if constexpr (kIsFloat<B>)
    return B(_mm256_blendv_ps(b, a, x));
  else
    return B(_mm256_blendv_pd(b, a, x));
#else
  return xsimd::select(x < B(typename B::value_type(0)), a, b);
#endif
}

// ---- lanes ------------------------------------------------------------------------------------------------

// Lane i takes lane i ^ distance: the halves, then the quarters ... trade places.
template <int distance, class B>
SF_INLINE B swap_lanes(B x) {
  constexpr int kBytes = distance * static_cast<int>(sizeof(typename B::value_type));
#if defined(__AVX512F__)
  const __m512 bits = lanes_as<__m512>(x);
  if constexpr (kBytes == 32)
    return lanes_as<B>(_mm512_shuffle_f32x4(bits, bits, 0x4e));
  else if constexpr (kBytes == 16)
    return lanes_as<B>(_mm512_shuffle_f32x4(bits, bits, 0xb1));
  else if constexpr (kBytes == 8)
    return lanes_as<B>(_mm512_permute_ps(bits, 0x4e));
  else
    return lanes_as<B>(_mm512_permute_ps(bits, 0xb1));
#elif defined(__AVX2__)
  const __m256 bits = lanes_as<__m256>(x);
  if constexpr (kBytes == 16)
    return lanes_as<B>(_mm256_permute2f128_ps(bits, bits, 1));
  else if constexpr (kBytes == 8)
    return lanes_as<B>(_mm256_permute_ps(bits, 0x4e));
  else
    return lanes_as<B>(_mm256_permute_ps(bits, 0xb1));
#elif defined(__SSE2__)
  const __m128 bits = lanes_as<__m128>(x);
  if constexpr (kBytes == 8)
    return lanes_as<B>(_mm_shuffle_ps(bits, bits, 0x4e));
  else
    return lanes_as<B>(_mm_shuffle_ps(bits, bits, 0xb1));
#else
  const float32x4_t bits = lanes_as<float32x4_t>(x);
  if constexpr (kBytes == 8)
    return lanes_as<B>(vextq_f32(bits, bits, 2));
  else
    return lanes_as<B>(vrev64q_f32(bits));
#endif
}

template <class B>
SF_INLINE typename B::value_type first_lane(B x) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<B>)
    return _mm512_cvtss_f32(x);
  else
    return _mm512_cvtsd_f64(x);
#elif defined(__AVX2__)
  if constexpr (kIsFloat<B>)
    return _mm256_cvtss_f32(x);
  else
    return _mm256_cvtsd_f64(x);
#elif defined(__SSE2__)
  if constexpr (kIsFloat<B>)
    return _mm_cvtss_f32(x);
  else
    return _mm_cvtsd_f64(x);
#else
  if constexpr (kIsFloat<B>)
    return vgetq_lane_f32(x, 0);
  else
    return vgetq_lane_f64(x, 0);
#endif
}

template <int distance, class B, class Combine>
SF_INLINE B fold_lanes(B x, Combine combine) {
  x = combine(x, swap_lanes<distance>(x));
  if constexpr (distance > 1)
    return fold_lanes<distance / 2>(x, combine);
  else
    return x;
}

// Sum and maximum of the lanes in a fixed tree: the same bits on every call.
template <class B>
SF_INLINE typename B::value_type sum_lanes(B x) {
  return first_lane(fold_lanes<B::size / 2>(x, [](B a, B b) { return B(a + b); }));
}

// For lanes that are numbers: what comes of a NaN is left open.
template <class B>
SF_INLINE typename B::value_type max_lanes(B x) {
  return first_lane(fold_lanes<B::size / 2>(x, [](B a, B b) { return larger(a, b); }));
}

// The first n lanes of x, and the rest of `other`.
template <class B>
SF_INLINE B first_lanes(int64_t n, B x, B other) {
#if defined(__AVX512F__)
  if constexpr (kIsFloat<B>)
    return B(_mm512_mask_mov_ps(other, static_cast<__mmask16>((1u << n) - 1), x));
  else
    return B(_mm512_mask_mov_pd(other, static_cast<__mmask8>((1u << n) - 1), x));
#else
  using A = typename B::value_type;
  static constexpr A kIndex[] = {0, 1, 2, 3, 4, 5, 6, 7};
  return xsimd::select(B::load_unaligned(kIndex) < B(static_cast<A>(n)), x, other);
#endif
}

}  // namespace simdformer::SF_ISA

#include "kernels/convert.hpp"

namespace simdformer::SF_ISA {

// ---- the loops --------------------------------------------------------------------------------------------

// out[i] = f(in[i]...) over a row. Body and tail are the same expression f, so that a value does not depend
// on where it stands. out may be one of the inputs.
template <class Arch, class Out, class F, class... In>
SF_INLINE void map_row(Out* out, int64_t n, F f, const In*... in) {
  constexpr int64_t W = kLanes<Arch, Acc<Out>>;
  int64_t i = 0;
  for (; i + W <= n; i += W) store<Arch>(out + i, f(load<Arch>(in + i)...));
  if (i < n) store_part<Arch>(out + i, n - i, f(load_part<Arch>(in + i, n - i)...));
}

// Folds a row: acc = step(acc, in[i]...), then combine over the accumulators. Four of them, because one chain
// of FMAs is bound by latency. The result is still a batch; lanes that a short row does not reach hold
// `init`.
template <class Arch, class T, class Step, class Combine>
SF_INLINE Vec<Arch, Acc<T>> fold_row(const T* in, int64_t n, Acc<T> init, Step step, Combine combine) {
  using V = Vec<Arch, Acc<T>>;
  constexpr int64_t W = kLanes<Arch, Acc<T>>;
  V a0(init), a1(init), a2(init), a3(init);
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    a0 = step(a0, load<Arch>(in + i));
    a1 = step(a1, load<Arch>(in + i + W));
    a2 = step(a2, load<Arch>(in + i + 2 * W));
    a3 = step(a3, load<Arch>(in + i + 3 * W));
  }
  for (; i + W <= n; i += W) a0 = step(a0, load<Arch>(in + i));
  if (i < n) a1 = first_lanes(n - i, step(a1, load_part<Arch>(in + i, n - i)), a1);
  return combine(combine(a0, a1), combine(a2, a3));
}

// Partial sums that are added in pairs, the pairs in pairs and so on, because the rounding error of a chain
// of additions grows with its length and that of a tree with its height.
template <class V>
class TreeSum {
 public:
  SF_INLINE void add(V x) {
    int height = 0;
    for (int64_t n = count_++; n % 2 != 0; n /= 2) x = V(waiting_[height++] + x);
    waiting_[height] = x;
  }

  SF_INLINE V total() const {
    V sum(typename V::value_type(0));
    int height = 0;
    for (int64_t n = count_; n > 0; n /= 2, ++height)
      if (n % 2 != 0) sum = waiting_[height] + sum;
    return sum;
  }

 private:
  V waiting_[56];  // one a height: the sum of 2^height blocks that has no partner yet
  int64_t count_ = 0;
};

constexpr int64_t kSumBlock = 1024;  // elements to a leaf of the tree

// The sum over a row of what step(sum, x) adds to sum.
template <class Arch, class T, class Step>
SF_INLINE Acc<T> sum_row(const T* in, int64_t n, Step step) {
  using V = Vec<Arch, Acc<T>>;
  const auto add = [](V a, V b) { return V(a + b); };
  if (n <= kSumBlock) return sum_lanes(fold_row<Arch>(in, n, Acc<T>(0), step, add));
  TreeSum<V> sum;
  for (int64_t i = 0; i < n; i += kSumBlock)
    sum.add(fold_row<Arch>(in + i, n - i < kSumBlock ? n - i : kSumBlock, Acc<T>(0), step, add));
  return sum_lanes(sum.total());
}

}  // namespace simdformer::SF_ISA
