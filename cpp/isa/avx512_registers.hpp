// AVX-512 with its parts F, BW, CD, DQ and VL, on top of AVX2: 32 registers of 512 bits, masks. Read by
// avx512.hpp, avx512_vnni.hpp and avx512_bf16.hpp.
#pragma once

namespace simdformer::SF_ISA {

template <class T>
using Vec = xsimd::batch<T, xsimd::avx512bw>;

// As many 16-bit numbers as a register has floats.
using Bits16 = __m256i;

// ---- sizes ------------------------------------------------------------------------------------------------

// Rows of a tile of the microkernel, and its vectors of columns for that many rows or fewer: 24 sums of 32
// registers.
constexpr int kTileRows = 6;
constexpr int kTileVectors[] = {0, 4, 4, 4, 4, 4, 4};
// From this many rows on the microkernel prefetches the panels to come: a tile is four panels wide, and the
// hardware fetches four streams of up to one tile of rows by itself. 14 % at 16 rows.
constexpr int64_t kFewestRowsForNext = kTileRows + 1;
// Rows of x that pass a slice of panels of float32 or float64 together, at most.
constexpr int64_t kPanelRows = kItemRows;
// From this many rows on 16-bit panels are widened before they are multiplied: decoding costs 4 instructions
// beside 24 FMAs, and none where the CPU has other ports for them, so that little is gained.
constexpr int64_t kWidenRows = 1024;
// Rows that share the loads of four dot products.
constexpr int kDotRows = 4;
// Rows of x that share the loads of four rows of a plain weight.
constexpr int kDotTileRows = 4;
// ---- arithmetic -------------------------------------------------------------------------------------------

// a * b + c, one rounding (xsimd has it from version 11 on)
SF_INLINE Vec<float> mul_add(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm512_fmadd_ps(a, b, c); }
SF_INLINE Vec<double> mul_add(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}

// c - a * b, one rounding
SF_INLINE Vec<float> neg_mul_add(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm512_fnmadd_ps(a, b, c);
}
SF_INLINE Vec<double> neg_mul_add(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fnmadd_pd(a, b, c);
}

// a > b ? a : b and a < b ? a : b, so b where one is NaN
SF_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) { return _mm512_max_ps(a, b); }
SF_INLINE Vec<double> larger(Vec<double> a, Vec<double> b) { return _mm512_max_pd(a, b); }
SF_INLINE Vec<float> smaller(Vec<float> a, Vec<float> b) { return _mm512_min_ps(a, b); }
SF_INLINE Vec<double> smaller(Vec<double> a, Vec<double> b) { return _mm512_min_pd(a, b); }

// a where the sign of x is set, else b. Where x is zero or NaN either may come of it, whatever its sign.
SF_INLINE Vec<float> where_negative(Vec<float> x, Vec<float> a, Vec<float> b) {
  return _mm512_mask_mov_ps(b, _mm512_movepi32_mask(lanes_as<__m512i>(x)), a);
}
SF_INLINE Vec<double> where_negative(Vec<double> x, Vec<double> a, Vec<double> b) {
  return _mm512_mask_mov_pd(b, _mm512_movepi64_mask(lanes_as<__m512i>(x)), a);
}

// (1 + rest) 2^n, where adding kShifter has left n in the low bits of `shifted`.
constexpr double kShifter = 0x1.8p52;
SF_INLINE Vec<double> scale_one_plus(Vec<double> rest, Vec<double> shifted) {
  return _mm512_scalef_pd(rest + Vec<double>(1.0), shifted - Vec<double>(kShifter));
}

// Looks up 16 numbers: every lane takes the one that the last four bits of its `index` name.
constexpr int kTableSize = 16;
template <class T>
SF_INLINE Vec<T> look_up(const T* table, Vec<float> index) {
  return lanes_as<Vec<T>>(
      _mm512_permutexvar_ps(lanes_as<__m512i>(index), _mm512_load_ps(reinterpret_cast<const float*>(table))));
}

// ---- lanes ------------------------------------------------------------------------------------------------

SF_INLINE float first_lane(Vec<float> x) { return _mm512_cvtss_f32(x); }
SF_INLINE double first_lane(Vec<double> x) { return _mm512_cvtsd_f64(x); }

// The first n lanes of x, and the rest of `other`.
SF_INLINE Vec<float> first_lanes(int64_t n, Vec<float> x, Vec<float> other) {
  return _mm512_mask_mov_ps(other, static_cast<__mmask16>((1u << n) - 1), x);
}
SF_INLINE Vec<double> first_lanes(int64_t n, Vec<double> x, Vec<double> other) {
  return _mm512_mask_mov_pd(other, static_cast<__mmask8>((1u << n) - 1), x);
}

// Lane i takes lane i ^ distance: the halves, then the quarters ... trade places.
template <int distance, class V>
SF_INLINE V swap_lanes(V x) {
  constexpr size_t kBytes = distance * sizeof(typename V::value_type);
  const __m512 bits = lanes_as<__m512>(x);
  if constexpr (kBytes == 32)
    return lanes_as<V>(_mm512_shuffle_f32x4(bits, bits, 0x4e));
  else if constexpr (kBytes == 16)
    return lanes_as<V>(_mm512_shuffle_f32x4(bits, bits, 0xb1));
  else if constexpr (kBytes == 8)
    return lanes_as<V>(_mm512_permute_ps(bits, 0x4e));
  else
    return lanes_as<V>(_mm512_permute_ps(bits, 0xb1));
}

// a0 b0 a1 b1 ... of the lower or the upper half of every quarter
SF_INLINE Vec<float> zip_lower(Vec<float> a, Vec<float> b) { return _mm512_unpacklo_ps(a, b); }
SF_INLINE Vec<double> zip_lower(Vec<double> a, Vec<double> b) { return _mm512_unpacklo_pd(a, b); }
SF_INLINE Vec<float> zip_upper(Vec<float> a, Vec<float> b) { return _mm512_unpackhi_ps(a, b); }
SF_INLINE Vec<double> zip_upper(Vec<double> a, Vec<double> b) { return _mm512_unpackhi_pd(a, b); }

// all a, all b -> a0 b0 a1 b1 ... in two registers, and the way back
SF_INLINE Pair<Vec<float>> zip(Pair<Vec<float>> x) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutex2var_ps(x.a, low, x.b), _mm512_permutex2var_ps(x.a, high, x.b)};
}
SF_INLINE Pair<Vec<double>> zip(Pair<Vec<double>> x) {
  const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(4));
  return {_mm512_permutex2var_pd(x.a, low, x.b), _mm512_permutex2var_pd(x.a, high, x.b)};
}
SF_INLINE Pair<Vec<float>> unzip(Vec<float> first, Vec<float> second) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(first, even, second), _mm512_permutex2var_ps(first, odd, second)};
}
SF_INLINE Pair<Vec<double>> unzip(Vec<double> first, Vec<double> second) {
  const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi64(1));
  return {_mm512_permutex2var_pd(first, even, second), _mm512_permutex2var_pd(first, odd, second)};
}

// Quarter q = the 16 bytes at p + q * stride.
template <class A>
SF_INLINE Vec<A> load_quarters(const A* p, int64_t stride) {
  __m512i x = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  x = _mm512_inserti32x4(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + stride)), 1);
  x = _mm512_inserti32x4(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * stride)), 2);
  x = _mm512_inserti32x4(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 3 * stride)), 3);
  return lanes_as<Vec<A>>(x);
}

// out = the sum of the quarters of x: first of the halves
SF_INLINE void add_quarters(Vec<float> x, float* out) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
SF_INLINE void add_quarters(Vec<double> x, double* out) {
  const __m256d half = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
  _mm_storeu_pd(out, _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1)));
}

// ---- memory -----------------------------------------------------------------------------------------------

// The first n <= kLanes numbers at p, the other lanes zero, and the way back: nothing beyond is touched.
SF_INLINE Vec<float> load_part(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
SF_INLINE Vec<double> load_part(const double* p, int64_t n) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
SF_INLINE void store_part(float* p, int64_t n, Vec<float> x) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x);
}
SF_INLINE void store_part(double* p, int64_t n, Vec<double> x) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1), x);
}

SF_INLINE void stream(float* p, Vec<float> x) { _mm512_stream_ps(p, x); }
SF_INLINE void stream(double* p, Vec<double> x) { _mm512_stream_pd(p, x); }
SF_INLINE void finish_streams() { _mm_sfence(); }

// All of x as float32
SF_INLINE void store_rounded(float* p, Vec<double> x) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(x)); }

// ---- small integers ---------------------------------------------------------------------------------------

// Looks up 16 bytes: every byte of `index` (0 to 15) becomes the one that it names.
SF_INLINE Vec<uint32_t> look_up_bytes(const uint8_t* table, Vec<uint32_t> index) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), index);
}

// To the nearest integer, which fits 16 bits.
SF_INLINE void store_rounded(int16_t* p, Vec<float> x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

// ---- 16 bits ----------------------------------------------------------------------------------------------

SF_INLINE Bits16 load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SF_INLINE void store_bits(void* p, Bits16 x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
SF_INLINE void stream_bits(void* p, Bits16 x) { _mm256_stream_si256(static_cast<__m256i*>(p), x); }
SF_INLINE Bits16 load_bits_part(const void* p, int64_t n) {
  return _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p);
}
SF_INLINE void store_bits_part(void* p, int64_t n, Bits16 x) {
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), x);
}

// Exact.
SF_INLINE Vec<float> widen_bits(bfloat16, Bits16 x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
SF_INLINE Vec<float> widen_bits(float16, Bits16 x) { return _mm512_cvtph_ps(x); }

SF_INLINE bool has_subnormals(Vec<float> x) { return _mm512_fpclass_ps_mask(x, 0x20) != 0; }

// One rounding, to nearest even. NaN stays NaN, subnormals are kept: the hardware's own conversion to bfloat16, which
// some have, takes them for zero.
SF_INLINE Bits16 narrow_bits(bfloat16, Vec<float> x) {
#ifdef __AVX512BF16__
  if (__builtin_expect(!has_subnormals(x), 1)) return lanes_as<Bits16>(_mm512_cvtneps_pbh(x));
#endif
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
SF_INLINE Bits16 narrow_bits(float16, Vec<float> x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace simdformer::SF_ISA

#include "isa/lane_dots.hpp"
