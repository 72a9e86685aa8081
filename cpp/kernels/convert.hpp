// Storage dtypes and their arithmetic type Acc<T>: float64 for float64, float32 for all others.
//
//   load<Arch>(const T*)          one batch of Acc<T> from kLanes elements, any alignment
//   store<Arch>(T*, batch)        one rounding, to nearest even; NaN stays NaN; subnormals are kept
//   load_part, store_part         the first n <= kLanes of them; nothing beyond is touched
//
// xsimd has no 16-bit float batches. The hardware's own float32 -> bfloat16 conversion flushes subnormals, so
// the rounding is done on integers on every ISA. Included by vec.hpp, which holds what these functions need.
#pragma once

namespace simdformer::SF_ISA {

// ---- scalars ----------------------------------------------------------------------------------------------

SF_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

SF_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

SF_INLINE float widen(float value) { return value; }
SF_INLINE double widen(double value) { return value; }
SF_INLINE float widen(bfloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

// float16's exponent is moved to float32's bias; a subnormal is an integer times 2^-24.
SF_INLINE float widen(float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude < 0x400u) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
  const uint32_t bias = magnitude < 0x7c00u ? 0x38000000u : 0x70000000u;
  return float_of(sign | ((magnitude << 13) + bias));
}

template <class T>
SF_INLINE T narrow(Acc<T> value);

template <>
SF_INLINE float narrow<float>(float value) {
  return value;
}
template <>
SF_INLINE double narrow<double>(double value) {
  return value;
}
template <>
SF_INLINE bfloat16 narrow<bfloat16>(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
SF_INLINE float16 narrow<float16>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or beyond
  // below 2^-14: adding 0.5 leaves the subnormal's bits, rounded to even, at the end
  if (magnitude < 0x38800000u)
    return {static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u))};
  return {
      static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13))};
}

// ---- 16-bit lanes -----------------------------------------------------------------------------------------

// As many 16-bit numbers as a batch of float has lanes (SSE2: in the lower half).
#if defined(__AVX512F__)
using Bits16 = __m256i;
#elif defined(__SSE2__)
using Bits16 = __m128i;
#else
using Bits16 = uint16x4_t;
#endif

SF_INLINE Bits16 load_bits(const void* p) {
#if defined(__AVX512F__)
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
#elif defined(__AVX2__)
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
#elif defined(__SSE2__)
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
#else
  return vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(p)));
#endif
}

SF_INLINE void store_bits(void* p, Bits16 x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(static_cast<__m256i*>(p), x);
#elif defined(__AVX2__)
  _mm_storeu_si128(static_cast<__m128i*>(p), x);
#elif defined(__SSE2__)
  _mm_storel_epi64(static_cast<__m128i*>(p), x);
#else
  vst1_u8(static_cast<uint8_t*>(p), vreinterpret_u8_u16(x));
#endif
}

template <class Arch>
SF_INLINE Vec<Arch, float> widen_bits(bfloat16, Bits16 x) {
#if defined(__AVX512F__)
  return Vec<Arch, float>(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)));
#elif defined(__AVX2__)
  return Vec<Arch, float>(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)));
#elif defined(__SSE2__)
  return Vec<Arch, float>(_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), x)));
#else
  return Vec<Arch, float>(vreinterpretq_f32_u32(vshll_n_u16(x, 16)));
#endif
}

template <class Arch>
SF_INLINE Vec<Arch, float> widen_bits(float16, Bits16 x) {
#if defined(__AVX512F__)
  return Vec<Arch, float>(_mm512_cvtph_ps(x));
#elif defined(__F16C__)
  return Vec<Arch, float>(_mm256_cvtph_ps(x));
#elif defined(__aarch64__)
  return Vec<Arch, float>(vcvt_f32_f16(vreinterpret_f16_u16(x)));
#else  // widen(float16) on four lanes
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
  return Vec<Arch, float>(_mm_castsi128_ps(_mm_or_si128(sign, value)));
#endif
}

template <class Arch>
SF_INLINE Bits16 narrow_bits(bfloat16, Vec<Arch, float> x) {
#if defined(__AVX512F__)
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#elif defined(__AVX2__)
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
#elif defined(__SSE2__)
  const __m128i bits = _mm_castps_si128(x);
  const __m128i even = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(bits, _mm_add_epi32(even, _mm_set1_epi32(0x7fff)));
  const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
  const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x00400000));
  const __m128i value = _mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, rounded));
  const __m128i high =
      _mm_srai_epi32(value, 16);  // signed, so that the signed saturation below changes nothing
  return _mm_packs_epi32(high, high);
#else
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t even = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(even, vdupq_n_u32(0x7fff)));
  const uint32x4_t number = vceqq_f32(x, x);
  return vshrn_n_u32(vbslq_u32(number, rounded, vorrq_u32(bits, vdupq_n_u32(0x00400000))), 16);
#endif
}

template <class Arch>
SF_INLINE Bits16 narrow_bits(float16, Vec<Arch, float> x) {
#if defined(__AVX512F__)
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  return vreinterpret_u16_f16(vcvt_f16_f32(x));
#else  // narrow<float16> on four lanes
  const __m128i bits = _mm_castps_si128(x), magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fffffff));
  const __m128i sign = _mm_and_si128(_mm_srai_epi32(bits, 16), _mm_set1_epi32(-0x8000));
  const __m128i is_nan = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000));
  const __m128i is_infinite = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x477fefff));
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
#endif
}

// ---- batches ----------------------------------------------------------------------------------------------

template <class Arch, class T>
SF_INLINE Vec<Arch, Acc<T>> load(const T* p) {
  if constexpr (sizeof(T) == 2)
    return widen_bits<Arch>(T{}, load_bits(p));
  else
    return Vec<Arch, T>::load_unaligned(p);
}

// One overload a dtype: argument lookup also finds xsimd::store, which asks for alignment, and prefers it to
// a template over T.
template <class Arch>
SF_INLINE void store(float* p, Vec<Arch, float> x) {
  x.store_unaligned(p);
}
template <class Arch>
SF_INLINE void store(double* p, Vec<Arch, double> x) {
  x.store_unaligned(p);
}
template <class Arch>
SF_INLINE void store(float16* p, Vec<Arch, float> x) {
  store_bits(p, narrow_bits<Arch>(float16{}, x));
}
template <class Arch>
SF_INLINE void store(bfloat16* p, Vec<Arch, float> x) {
  store_bits(p, narrow_bits<Arch>(bfloat16{}, x));
}

// ---- parts of batches -------------------------------------------------------------------------------------

#if !defined(__AVX512F__)
// The first 0, 2, 4, 6 or 8 bytes at p, then zeros. A copy through memory would wait for its own stores.
SF_INLINE uint64_t load_word(const char* p, int64_t bytes) {
  uint64_t word = 0;
  if (bytes >= 8) {
    std::memcpy(&word, p, 8);
    return word;
  }
  if (bytes & 2) {
    uint16_t last;
    std::memcpy(&last, p + bytes - 2, 2);
    word = static_cast<uint64_t>(last) << (bytes & 4 ? 32 : 0);
  }
  if (bytes & 4) {
    uint32_t first;
    std::memcpy(&first, p, 4);
    word |= first;
  }
  return word;
}

SF_INLINE void store_word(char* p, int64_t bytes, uint64_t word) {
  if (bytes >= 8) {
    std::memcpy(p, &word, 8);
    return;
  }
  if (bytes & 4) {
    std::memcpy(p, &word, 4);
    p += 4;
    word >>= 32;
  }
  if (bytes & 2) std::memcpy(p, &word, 2);
}

#if defined(__SSE2__)
using Bits128 = __m128i;
SF_INLINE Bits128 from_words(uint64_t low, uint64_t high) {
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}
SF_INLINE uint64_t low_word(Bits128 x) { return static_cast<uint64_t>(_mm_cvtsi128_si64(x)); }
SF_INLINE uint64_t high_word(Bits128 x) { return low_word(_mm_unpackhi_epi64(x, x)); }
#else
using Bits128 = uint64x2_t;
SF_INLINE Bits128 from_words(uint64_t low, uint64_t high) {
  return vcombine_u64(vcreate_u64(low), vcreate_u64(high));
}
SF_INLINE uint64_t low_word(Bits128 x) { return vgetq_lane_u64(x, 0); }
SF_INLINE uint64_t high_word(Bits128 x) { return vgetq_lane_u64(x, 1); }
SF_INLINE uint64_t low_word(Bits16 x) { return vget_lane_u64(vreinterpret_u64_u16(x), 0); }
#endif

SF_INLINE Bits128 load_words(const void* p, int64_t bytes) {
  const char* from = static_cast<const char*>(p);
  if (bytes <= 8) return from_words(load_word(from, bytes), 0);
  return from_words(load_word(from, 8), load_word(from + 8, bytes - 8));
}

SF_INLINE void store_words(void* p, int64_t bytes, Bits128 x) {
  char* to = static_cast<char*>(p);
  store_word(to, bytes, low_word(x));
  if (bytes > 8) store_word(to + 8, bytes - 8, high_word(x));
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
template <class T>
SF_INLINE __m256i first_elements(int64_t n) {
  static constexpr int32_t kMask[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
  const int64_t skipped = 8 - n * static_cast<int64_t>(sizeof(T) / 4);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + skipped));
}
#endif

// The first n <= kLanes elements at p; the other lanes are zero.
template <class Arch, class T>
SF_INLINE Vec<Arch, Acc<T>> load_part(const T* p, int64_t n) {
#if defined(__AVX512F__)
  const uint32_t mask = (1u << n) - 1;
  if constexpr (sizeof(T) == 2)
    return widen_bits<Arch>(T{}, _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), p));
  else if constexpr (sizeof(T) == 4)
    return Vec<Arch, T>(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p));
  else
    return Vec<Arch, T>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p));
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 2)
    return widen_bits<Arch>(T{}, load_words(p, 2 * n));
  else if constexpr (sizeof(T) == 4)
    return Vec<Arch, T>(_mm256_maskload_ps(p, first_elements<T>(n)));
  else
    return Vec<Arch, T>(_mm256_maskload_pd(p, first_elements<T>(n)));
#elif defined(__SSE2__)
  const Bits128 bits = load_words(p, n * static_cast<int64_t>(sizeof(T)));
  if constexpr (sizeof(T) == 2)
    return widen_bits<Arch>(T{}, bits);
  else
    return lanes_as<Vec<Arch, T>>(bits);
#else
  if constexpr (sizeof(T) == 2)
    return widen_bits<Arch>(T{}, vcreate_u16(load_word(reinterpret_cast<const char*>(p), 2 * n)));
  else
    return lanes_as<Vec<Arch, T>>(load_words(p, n * static_cast<int64_t>(sizeof(T))));
#endif
}

template <class Arch, class T>
SF_INLINE void store_part(T* p, int64_t n, Vec<Arch, Acc<T>> x) {
#if defined(__AVX512F__)
  const uint32_t mask = (1u << n) - 1;
  if constexpr (sizeof(T) == 2)
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>(mask), narrow_bits<Arch>(T{}, x));
  else if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>(mask), x);
  else
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), x);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 2)
    store_words(p, 2 * n, narrow_bits<Arch>(T{}, x));
  else if constexpr (sizeof(T) == 4)
    _mm256_maskstore_ps(p, first_elements<T>(n), x);
  else
    _mm256_maskstore_pd(p, first_elements<T>(n), x);
#else
  if constexpr (sizeof(T) == 2)
    store_word(reinterpret_cast<char*>(p), 2 * n, low_word(narrow_bits<Arch>(T{}, x)));
  else
    store_words(p, n * static_cast<int64_t>(sizeof(T)), lanes_as<Bits128>(x));
#endif
}

}  // namespace simdformer::SF_ISA
