// The xsimd shim: everything that the kernels know of the machine, and the only loops that have tails.
//
// One object per ISA is compiled from these headers (table.cpp). Two objects must never share a weak symbol, or the
// linker may give the baseline a function that was compiled with AVX-512: our names live in a namespace called
// after the ISA, and xsimd's own namespace is renamed likewise.
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
#error "SF_ISA names the instruction set that this file is compiled for: baseline, avx2, avx512, avx512_bf16, neon"
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

// ---- arithmetic that xsimd lacks in one of the versions from 8.1 to 14 ------------------------------------------

// a * b + c, one rounding where the ISA has FMA (xsimd uses it on AVX-512 only from version 11 on).
template <class Arch, class A>
SF_INLINE Vec<Arch, A> mul_add_(Vec<Arch, A> a, Vec<Arch, A> b, Vec<Arch, A> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Vec<Arch, A>) == 64) {
    if constexpr (std::is_same_v<A, float>)
      return Vec<Arch, A>(_mm512_fmadd_ps(a, b, c));
    else
      return Vec<Arch, A>(_mm512_fmadd_pd(a, b, c));
  }
#elif defined(__FMA__)
  if constexpr (sizeof(Vec<Arch, A>) == 32) {
    if constexpr (std::is_same_v<A, float>)
      return Vec<Arch, A>(_mm256_fmadd_ps(a, b, c));
    else
      return Vec<Arch, A>(_mm256_fmadd_pd(a, b, c));
  }
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<A, float>)
    return Vec<Arch, A>(vfmaq_f32(c, a, b));
  else
    return Vec<Arch, A>(vfmaq_f64(c, a, b));
#endif
  return a * b + c;
}

// The spelling that kernels use. None of these names is one of xsimd's, which argument lookup would prefer.
template <class B>
SF_INLINE B mul_add(B a, B b, B c) {
  return mul_add_<typename B::arch_type, typename B::value_type>(a, b, c);
}

// c - a * b
template <class B>
SF_INLINE B neg_mul_add(B a, B b, B c) {
  return mul_add(-a, b, c);
}

// The same bits as lanes of another type.
template <class To, class From>
SF_INLINE To lanes_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(static_cast<void*>(&out), static_cast<const void*>(&x), sizeof(To));
  return out;
}

// Lane sums and maxima in a fixed tree: the same bits on every call.
template <class B>
SF_INLINE typename B::value_type sum_lanes(B x) {
  using A = typename B::value_type;
#if defined(__AVX512F__)
  if constexpr (sizeof(B) == 64) {
    if constexpr (std::is_same_v<A, float>)
      return _mm512_reduce_add_ps(x);
    else
      return _mm512_reduce_add_pd(x);
  }
#endif
  alignas(64) A lane[B::size];
  x.store_aligned(lane);
  for (size_t half = B::size / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

template <class B>
SF_INLINE typename B::value_type max_lanes(B x) {
  using A = typename B::value_type;
  alignas(64) A lane[B::size];
  x.store_aligned(lane);
  for (size_t half = B::size / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  return lane[0];
}

}  // namespace simdformer::SF_ISA

#include "kernels/convert.hpp"

namespace simdformer::SF_ISA {

// ---- loads and stores of any storage dtype, as batches of its accumulator ---------------------------------------

// The first n < kLanes elements at p; the other lanes hold `fill`.
template <class Arch, class T>
SF_INLINE Vec<Arch, Acc<T>> load_part(const T* p, int64_t n, T fill = T{}) {
  constexpr int64_t W = kLanes<Arch, Acc<T>>;
  alignas(64) T lane[W];
  for (int64_t i = 0; i < W; ++i) lane[i] = fill;
  std::memcpy(lane, p, static_cast<size_t>(n) * sizeof(T));
  return load<Arch>(static_cast<const T*>(lane));
}

template <class Arch, class T>
SF_INLINE void store_part(T* p, int64_t n, Vec<Arch, Acc<T>> x) {
  alignas(64) T lane[kLanes<Arch, Acc<T>>];
  store<Arch>(lane, x);
  std::memcpy(p, lane, static_cast<size_t>(n) * sizeof(T));
}

// ---- the loops --------------------------------------------------------------------------------------------------

// out[i] = f(in[i]...) over a row. Body and tail are the same expression f, so that a value does not depend on where
// it stands. out may be one of the inputs.
template <class Arch, class Out, class F, class... In>
SF_INLINE void map_row(Out* out, int64_t n, F f, const In*... in) {
  constexpr int64_t W = kLanes<Arch, Acc<Out>>;
  int64_t i = 0;
  for (; i + W <= n; i += W) store<Arch>(out + i, f(load<Arch>(in + i)...));
  if (i < n) store_part<Arch>(out + i, n - i, f(load_part<Arch>(in + i, n - i)...));
}

// Folds a row: acc = step(acc, in[i]...), then combine over the accumulators. Four of them, because one chain of
// FMAs is bound by latency. Lanes past the end hold `fill`, which step must ignore. The result is still a batch.
template <class Arch, class T, class Step, class Combine>
SF_INLINE Vec<Arch, Acc<T>> fold_row(const T* in, int64_t n, Acc<T> init, T fill, Step step, Combine combine) {
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
  if (i < n) a1 = step(a1, load_part<Arch>(in + i, n - i, fill));
  return combine(combine(a0, a1), combine(a2, a3));
}

}  // namespace simdformer::SF_ISA
