// AVX2 with FMA and F16C: 16 registers of 256 bits. Read by avx2.hpp and avx2_vnni.hpp.
#pragma once

#include "isa/words_sse2.hpp"

namespace simdformer::SF_ISA {

template <class T>
using Vec = xsimd::batch<T, xsimd::avx2>;

// As many 16-bit numbers as a register has floats.
using Bits16 = __m128i;

// ---- sizes ------------------------------------------------------------------------------------------------

// Rows of a tile of the microkernel, and its vectors of columns for that many rows or fewer: 12 sums of 16
// registers. Few rows take more columns, because a chain of FMAs is bound by latency.
constexpr int kTileRows = 6;
constexpr int kTileVectors[] = {0, 8, 4, 2, 2, 2, 2};
// From this many rows on the microkernel prefetches the panels to come: 60 and 30 % at 4 and 16 rows.
constexpr int64_t kFewestRowsForNext = 1;
// Rows of x that pass a slice of panels of float32 or float64 together, at most: those for which it prefetches.
// 2 to 5 % faster than 256 or 512 rows (two threads of a Zen 3, 29 November 2026).
constexpr int64_t kPanelRows = kMostRowsForNext;
// From this many rows on 16-bit panels are widened before they are multiplied. A Zen 5 decodes them beside the
// multiply-adds, on other ports: 24 rows 1.5 times as fast as widened, 128 rows 1.05 times, 512 rows alike. Where
// they share ports many rows gain from it.
constexpr int64_t kWidenRows = 256;
// Rows that share the loads of four dot products.
constexpr int kDotRows = 2;
// Rows of x that share the loads of four rows of a plain weight.
constexpr int kDotTileRows = 3;
// ---- arithmetic -------------------------------------------------------------------------------------------

// a * b + c, one rounding
SF_INLINE Vec<float> mul_add(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm256_fmadd_ps(a, b, c); }
SF_INLINE Vec<double> mul_add(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}

// c - a * b, one rounding
SF_INLINE Vec<float> neg_mul_add(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm256_fnmadd_ps(a, b, c);
}
SF_INLINE Vec<double> neg_mul_add(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fnmadd_pd(a, b, c);
}

// x, into which the compiler may not look: it would rename the sums of a tile, which take 12 of 16 registers, and
// spill some of them at every step (GCC 12, bfloat16 panels by 12 rows: 66 instead of 90 % of the multiply-adds).
SF_INLINE Vec<float> settle(Vec<float> x) {
  __m256 sum = x;
  asm("" : "+x"(sum));
  return sum;
}
SF_INLINE Vec<double> settle(Vec<double> x) {
  __m256d sum = x;
  asm("" : "+x"(sum));
  return sum;
}

// a > b ? a : b and a < b ? a : b, so b where one is NaN
SF_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) { return _mm256_max_ps(a, b); }
SF_INLINE Vec<double> larger(Vec<double> a, Vec<double> b) { return _mm256_max_pd(a, b); }
SF_INLINE Vec<float> smaller(Vec<float> a, Vec<float> b) { return _mm256_min_ps(a, b); }
SF_INLINE Vec<double> smaller(Vec<double> a, Vec<double> b) { return _mm256_min_pd(a, b); }

// a where the sign of x is set, else b. Where x is zero or NaN either may come of it, whatever its sign.
SF_INLINE Vec<float> where_negative(Vec<float> x, Vec<float> a, Vec<float> b) {
  return _mm256_blendv_ps(b, a, x);
}
SF_INLINE Vec<double> where_negative(Vec<double> x, Vec<double> a, Vec<double> b) {
  return _mm256_blendv_pd(b, a, x);
}

// Looks up 8 numbers: every lane takes the one that the last three bits of its `index` name.
constexpr int kTableSize = 8;
template <class T>
SF_INLINE Vec<T> look_up(const T* table, Vec<float> index) {
  const __m256 numbers = _mm256_load_ps(reinterpret_cast<const float*>(table));
  return lanes_as<Vec<T>>(_mm256_permutevar8x32_ps(numbers, lanes_as<__m256i>(index)));
}

// ---- lanes ------------------------------------------------------------------------------------------------

SF_INLINE float first_lane(Vec<float> x) { return _mm256_cvtss_f32(x); }
SF_INLINE double first_lane(Vec<double> x) { return _mm256_cvtsd_f64(x); }

// Lane i takes lane i ^ distance: the halves, then the quarters ... trade places.
template <int distance, class V>
SF_INLINE V swap_lanes(V x) {
  constexpr size_t kBytes = distance * sizeof(typename V::value_type);
  const __m256 bits = lanes_as<__m256>(x);
  if constexpr (kBytes == 16)
    return lanes_as<V>(_mm256_permute2f128_ps(bits, bits, 1));
  else if constexpr (kBytes == 8)
    return lanes_as<V>(_mm256_permute_ps(bits, 0x4e));
  else
    return lanes_as<V>(_mm256_permute_ps(bits, 0xb1));
}

// a0 b0 a1 b1 ... of the lower or the upper half of every quarter
SF_INLINE Vec<float> zip_lower(Vec<float> a, Vec<float> b) { return _mm256_unpacklo_ps(a, b); }
SF_INLINE Vec<double> zip_lower(Vec<double> a, Vec<double> b) { return _mm256_unpacklo_pd(a, b); }
SF_INLINE Vec<float> zip_upper(Vec<float> a, Vec<float> b) { return _mm256_unpackhi_ps(a, b); }
SF_INLINE Vec<double> zip_upper(Vec<double> a, Vec<double> b) { return _mm256_unpackhi_pd(a, b); }

// The lower quarters of x and y, and the upper ones.
template <class V>
SF_INLINE Pair<V> sort_quarters(V x, V y) {
  const __m256 a = lanes_as<__m256>(x), b = lanes_as<__m256>(y);
  return {lanes_as<V>(_mm256_permute2f128_ps(a, b, 0x20)), lanes_as<V>(_mm256_permute2f128_ps(a, b, 0x31))};
}

// all a, all b -> a0 b0 a1 b1 ... in two registers, and the way back. Shuffles work inside a quarter, so that
// the quarters move before or after them.
template <class V>
SF_INLINE Pair<V> zip(Pair<V> x) {
  return sort_quarters(zip_lower(x.a, x.b), zip_upper(x.a, x.b));
}
SF_INLINE Pair<Vec<float>> unzip(Vec<float> first, Vec<float> second) {
  const auto [low, high] = sort_quarters(first, second);
  return {_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd)};
}
SF_INLINE Pair<Vec<double>> unzip(Vec<double> first, Vec<double> second) {
  const auto [low, high] = sort_quarters(first, second);
  return {zip_lower(low, high), zip_upper(low, high)};
}

// Quarter q = the 16 bytes at p + q * stride.
template <class A>
SF_INLINE Vec<A> load_quarters(const A* p, int64_t stride) {
  const __m256i x = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return lanes_as<Vec<A>>(
      _mm256_inserti128_si256(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + stride)), 1));
}

// out = the sum of the quarters of x
SF_INLINE void add_quarters(Vec<float> x, float* out) {
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
SF_INLINE void add_quarters(Vec<double> x, double* out) {
  _mm_storeu_pd(out, _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1)));
}

// ---- memory -----------------------------------------------------------------------------------------------

// The mask of the first n numbers of `size` bytes.
SF_INLINE __m256i first_elements(int64_t n, int64_t size) {
  static constexpr int32_t kMask[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + 8 - n * (size / 4)));
}

// The first n <= kLanes numbers at p, the other lanes zero, and the way back: nothing beyond is touched.
SF_INLINE Vec<float> load_part(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, first_elements(n, 4));
}
SF_INLINE Vec<double> load_part(const double* p, int64_t n) {
  return _mm256_maskload_pd(p, first_elements(n, 8));
}
SF_INLINE void store_part(float* p, int64_t n, Vec<float> x) {
  _mm256_maskstore_ps(p, first_elements(n, 4), x);
}
SF_INLINE void store_part(double* p, int64_t n, Vec<double> x) {
  _mm256_maskstore_pd(p, first_elements(n, 8), x);
}

SF_INLINE void stream(float* p, Vec<float> x) { _mm256_stream_ps(p, x); }
SF_INLINE void stream(double* p, Vec<double> x) { _mm256_stream_pd(p, x); }
SF_INLINE void finish_streams() { _mm_sfence(); }

// All of x as float32
SF_INLINE void store_rounded(float* p, Vec<double> x) { _mm_storeu_ps(p, _mm256_cvtpd_ps(x)); }

// ---- small integers ---------------------------------------------------------------------------------------

// Looks up 16 bytes: every byte of `index` (0 to 15) becomes the one that it names.
SF_INLINE Vec<uint32_t> look_up_bytes(const uint8_t* table, Vec<uint32_t> index) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), index);
}

// To the nearest integer, which fits 16 bits.
SF_INLINE void store_rounded(int16_t* p, Vec<float> x) {
  const __m256i whole = _mm256_cvtps_epi32(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}

// ---- 16 bits ----------------------------------------------------------------------------------------------

SF_INLINE Bits16 load_bits(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
SF_INLINE void store_bits(void* p, Bits16 x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
SF_INLINE void stream_bits(void* p, Bits16 x) { _mm_stream_si128(static_cast<__m128i*>(p), x); }
SF_INLINE Bits16 load_bits_part(const void* p, int64_t n) { return load_words(p, 2 * n); }
SF_INLINE void store_bits_part(void* p, int64_t n, Bits16 x) { store_words(p, 2 * n, x); }

// Exact.
SF_INLINE Vec<float> widen_bits(bfloat16, Bits16 x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
SF_INLINE Vec<float> widen_bits(float16, Bits16 x) { return _mm256_cvtph_ps(x); }

// One rounding, to nearest even. NaN stays NaN, subnormals are kept.
SF_INLINE Bits16 narrow_bits(bfloat16, Vec<float> x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
SF_INLINE Bits16 narrow_bits(float16, Vec<float> x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace simdformer::SF_ISA

#include "isa/lane_dots.hpp"
#include "isa/portable.hpp"
