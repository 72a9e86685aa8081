// SSE2, which every x86-64 has: 16 registers of 128 bits, no FMA. Read by isa.hpp, which lists the names.
#pragma once

#include "isa/words_sse2.hpp"

namespace simdformer::SF_ISA {

template <class T>
using Vec = xsimd::batch<T, xsimd::sse2>;

// As many 16-bit numbers as a register has floats, in the lower half.
using Bits16 = __m128i;

// ---- sizes ------------------------------------------------------------------------------------------------

// Rows of a tile of the microkernel, and its vectors of columns for that many rows or fewer: 8 sums of 16
// registers, because a product needs one of its own.
constexpr int kTileRows = 4;
constexpr int kTileVectors[] = {0, 8, 4, 2, 2};
// From this many rows on the microkernel prefetches the panels to come.
constexpr int64_t kFewestRowsForNext = 1;
// Rows of x that pass a slice of panels of float32 or float64 together, at most.
constexpr int64_t kPanelRows = kItemRows;
// From this many rows on 16-bit panels are widened before they are multiplied: no register is left to decode
// in.
constexpr int64_t kWidenRows = 24;
// Rows that share the loads of four dot products.
constexpr int kDotRows = 2;
// Rows of x that share the loads of four rows of a plain weight.
constexpr int kDotTileRows = 2;
// ---- arithmetic -------------------------------------------------------------------------------------------

// a * b + c, one rounding where there is FMA
template <class V>
SF_INLINE V mul_add(V a, V b, V c) {
  return a * b + c;
}

// c - a * b, likewise
template <class V>
SF_INLINE V neg_mul_add(V a, V b, V c) {
  return c - a * b;
}

// a * b - product, exactly, where `product` is a * b rounded. Both are cut in two (Dekker): |a|, |b| up to
// 2^100 in float32.
template <class V>
SF_INLINE V product_error_in_parts(V a, V b, V product) {
  const V split(kIsFloat<V> ? 0x1.001p12 : 0x1.0000002p27);
  const V ca = a * split, cb = b * split;
  const V ah = ca - (ca - a), al = a - ah, bh = cb - (cb - b), bl = b - bh;
  return al * bl - (((product - ah * bh) - al * bh) - ah * bl);
}
SF_INLINE Vec<float> product_error(Vec<float> a, Vec<float> b, Vec<float> product) {
  return product_error_in_parts(a, b, product);
}
SF_INLINE Vec<double> product_error(Vec<double> a, Vec<double> b, Vec<double> product) {
  return product_error_in_parts(a, b, product);
}

// a > b ? a : b and a < b ? a : b, so b where one is NaN
SF_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) { return _mm_max_ps(a, b); }
SF_INLINE Vec<double> larger(Vec<double> a, Vec<double> b) { return _mm_max_pd(a, b); }
SF_INLINE Vec<float> smaller(Vec<float> a, Vec<float> b) { return _mm_min_ps(a, b); }
SF_INLINE Vec<double> smaller(Vec<double> a, Vec<double> b) { return _mm_min_pd(a, b); }

// ---- lanes ------------------------------------------------------------------------------------------------

SF_INLINE float first_lane(Vec<float> x) { return _mm_cvtss_f32(x); }
SF_INLINE double first_lane(Vec<double> x) { return _mm_cvtsd_f64(x); }

// Lane i takes lane i ^ distance: the halves, then the quarters ... trade places.
template <int distance, class V>
SF_INLINE V swap_lanes(V x) {
  constexpr size_t kBytes = distance * sizeof(typename V::value_type);
  const __m128 bits = lanes_as<__m128>(x);
  if constexpr (kBytes == 8)
    return lanes_as<V>(_mm_shuffle_ps(bits, bits, 0x4e));
  else
    return lanes_as<V>(_mm_shuffle_ps(bits, bits, 0xb1));
}

// a0 b0 a1 b1 ... of the lower or the upper half of every quarter
SF_INLINE Vec<float> zip_lower(Vec<float> a, Vec<float> b) { return _mm_unpacklo_ps(a, b); }
SF_INLINE Vec<double> zip_lower(Vec<double> a, Vec<double> b) { return _mm_unpacklo_pd(a, b); }
SF_INLINE Vec<float> zip_upper(Vec<float> a, Vec<float> b) { return _mm_unpackhi_ps(a, b); }
SF_INLINE Vec<double> zip_upper(Vec<double> a, Vec<double> b) { return _mm_unpackhi_pd(a, b); }

// The way back from zip
SF_INLINE Pair<Vec<float>> unzip(Vec<float> first, Vec<float> second) {
  return {_mm_shuffle_ps(first, second, 0x88), _mm_shuffle_ps(first, second, 0xdd)};
}
SF_INLINE Pair<Vec<double>> unzip(Vec<double> first, Vec<double> second) {
  return {_mm_unpacklo_pd(first, second), _mm_unpackhi_pd(first, second)};
}

// ---- memory -----------------------------------------------------------------------------------------------

// All of x as float32
SF_INLINE void store_rounded(float* p, Vec<double> x) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_castps_si128(_mm_cvtpd_ps(x)));
}

// ---- small integers ---------------------------------------------------------------------------------------

// Looks up 16 bytes: every byte of `index` (0 to 15) becomes the one that it names. One by one, because the
// instruction for it came with SSSE3.
SF_INLINE Vec<uint32_t> look_up_bytes(const uint8_t* table, Vec<uint32_t> index) {
  const auto word = [&](uint64_t places) {
    uint64_t found = 0;
    for (int shift = 0; shift < 64; shift += 8) found |= uint64_t{table[places >> shift & 15]} << shift;
    return found;
  };
  return from_words(word(low_word(index)), word(high_word(index)));
}

// To the nearest integer, which fits 16 bits.
SF_INLINE void store_rounded(int16_t* p, Vec<float> x) {
  const __m128i whole = _mm_cvtps_epi32(x);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(whole, whole));
}

SF_INLINE void stream(float* p, Vec<float> x) { _mm_stream_ps(p, x); }
SF_INLINE void stream(double* p, Vec<double> x) { _mm_stream_pd(p, x); }
SF_INLINE void finish_streams() { _mm_sfence(); }

// ---- 16 bits ----------------------------------------------------------------------------------------------

SF_INLINE Bits16 load_bits(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
SF_INLINE void store_bits(void* p, Bits16 x) { _mm_storel_epi64(static_cast<__m128i*>(p), x); }
SF_INLINE void stream_bits(void* p, Bits16 x) {
  _mm_stream_si64(static_cast<long long*>(p), static_cast<long long>(low_word(x)));
}
SF_INLINE Bits16 load_bits_part(const void* p, int64_t n) { return load_words(p, 2 * n); }
SF_INLINE void store_bits_part(void* p, int64_t n, Bits16 x) {
  store_word(static_cast<char*>(p), 2 * n, low_word(x));
}

// Exact.
SF_INLINE Vec<float> widen_bits(bfloat16, Bits16 x) {
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), x));
}

// float16's exponent is moved to float32's bias; a subnormal is an integer times 2^-24.
SF_INLINE Vec<float> widen_bits(float16, Bits16 x) {
  const __m128i half = _mm_unpacklo_epi16(x, _mm_setzero_si128());
  const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi32(0x7fff));
  const __m128i sign = _mm_slli_epi32(_mm_andnot_si128(_mm_set1_epi32(0x7fff), half), 16);
  const __m128i is_subnormal = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x400));
  const __m128i is_special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
  const __m128i subnormal = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(magnitude), _mm_set1_ps(0x1p-24f)));
  const __m128i bias = _mm_set1_epi32(0x38000000);
  __m128i value = _mm_add_epi32(_mm_slli_epi32(magnitude, 13), bias);
  value = _mm_add_epi32(value, _mm_and_si128(is_special, bias));
  value = _mm_or_si128(_mm_and_si128(is_subnormal, subnormal), _mm_andnot_si128(is_subnormal, value));
  return _mm_castsi128_ps(_mm_or_si128(sign, value));
}

// One rounding, to nearest even. NaN stays NaN, subnormals are kept.
SF_INLINE Bits16 narrow_bits(bfloat16, Vec<float> x) {
  const __m128i bits = _mm_castps_si128(x);
  const __m128i even = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(bits, _mm_add_epi32(even, _mm_set1_epi32(0x7fff)));
  const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
  const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x00400000));
  const __m128i value = _mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, rounded));
  // signed, so that the signed saturation of the last step changes nothing
  const __m128i high = _mm_srai_epi32(value, 16);
  return _mm_packs_epi32(high, high);
}

// Below 2^-14 adding 0.5 leaves the subnormal's bits, rounded to even, at the end.
SF_INLINE Bits16 narrow_bits(float16, Vec<float> x) {
  const __m128i bits = _mm_castps_si128(x), magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fffffff));
  const __m128i sign = _mm_and_si128(_mm_srai_epi32(bits, 16), _mm_set1_epi32(-0x8000));
  const __m128i is_nan = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000));
  const __m128i is_infinite = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x477fefff));  // rounds beyond 65504
  const __m128i is_subnormal = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x38800000));
  const __m128 half = _mm_set1_ps(0.5f);
  const __m128i subnormal =
      _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(magnitude), half)), _mm_castps_si128(half));
  const __m128i even = _mm_and_si128(_mm_srli_epi32(magnitude, 13), _mm_set1_epi32(1));
  __m128i value = _mm_add_epi32(_mm_add_epi32(magnitude, even), _mm_set1_epi32(0xfff - 0x38000000));
  value = _mm_srli_epi32(value, 13);
  value = _mm_or_si128(_mm_and_si128(is_subnormal, subnormal), _mm_andnot_si128(is_subnormal, value));
  const __m128i beyond = _mm_or_si128(_mm_set1_epi32(0x7c00), _mm_and_si128(is_nan, _mm_set1_epi32(0x200)));
  value = _mm_or_si128(_mm_and_si128(is_infinite, beyond), _mm_andnot_si128(is_infinite, value));
  value = _mm_or_si128(sign, value);
  return _mm_packs_epi32(value, value);
}

}  // namespace simdformer::SF_ISA

#include "isa/lane_dots.hpp"
#include "isa/one_quarter.hpp"
#include "isa/portable.hpp"

namespace simdformer::SF_ISA {

constexpr bool kByteDots = false, kSignedDots = false;
// Vectors of columns of a tile with this many rows, where codes of quantized weights are multiplied.
constexpr int kCodeVectors[] = {0, 4, 2, 2, 2, 2, 2};
// From this many rows on codes of one plane, and of two, are widened before they are multiplied.
constexpr int64_t kWidenCodes = 16, kWidenTwoPlanes = 5;

// sums + the products of both halves. The compiler would gather the additions of a loop at its end, and run
// out of registers: it may not look into a sum (GCC 12: 2.2 ms instead of 1.07).
SF_INLINE DotSums add_dots(DotSums sums, Vec<uint32_t> a, Vec<uint32_t> b) {
  __m128i out = _mm_add_epi32(sums, _mm_madd_epi16(a, b));
  asm("" : "+x"(out));
  return out;
}

}  // namespace simdformer::SF_ISA
