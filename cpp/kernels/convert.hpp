// Storage dtypes and their arithmetic type: float32 -> float32, float64 -> float64, float16 and bfloat16 -> float32.
//
//   load<Arch>(const T*)     one batch of Acc<T> from kLanes elements, any alignment
//   store<Arch>(T*, batch)   one rounding, to nearest even; NaN stays NaN; subnormals are kept
//
// xsimd has no 16-bit float batches. The hardware's own float32 -> bfloat16 conversion flushes subnormals, so the
// rounding is done on integers on every ISA. Included by vec.hpp, which holds what these functions need.
#pragma once

namespace simdformer::SF_ISA {

// ---- scalars ----------------------------------------------------------------------------------------------------

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

// Scaling by 2^112 moves float16's exponent and its subnormals where float32 has them; inf and NaN are patched.
SF_INLINE float widen(float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
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
  if (magnitude < 0x38800000u)  // below 2^-14: adding 0.5 leaves the subnormal's bits, rounded to even, at the end
    return {static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u))};
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13))};
}

// ---- batches ----------------------------------------------------------------------------------------------------

template <class Arch>
SF_INLINE Vec<Arch, float> load(const float* p) {
  return Vec<Arch, float>::load_unaligned(p);
}
template <class Arch>
SF_INLINE Vec<Arch, double> load(const double* p) {
  return Vec<Arch, double>::load_unaligned(p);
}

template <class Arch>
SF_INLINE void store(float* p, Vec<Arch, float> x) {
  x.store_unaligned(p);
}
template <class Arch>
SF_INLINE void store(double* p, Vec<Arch, double> x) {
  x.store_unaligned(p);
}

template <class Arch>
SF_INLINE Vec<Arch, float> load(const bfloat16* p) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return Vec<Arch, float>(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return Vec<Arch, float>(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
#elif defined(__SSE2__)
  const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return Vec<Arch, float>(_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), half)));
#else
  return Vec<Arch, float>(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16)));
#endif
}

template <class Arch>
SF_INLINE Vec<Arch, float> load(const float16* p) {
#if defined(__AVX512F__)
  return Vec<Arch, float>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return Vec<Arch, float>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  return Vec<Arch, float>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)))));
#else  // widen(float16) on four lanes
  const __m128i half = _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_setzero_si128());
  const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi32(0x7fff));
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x8000)), 16);
  const __m128i shifted = _mm_slli_epi32(magnitude, 13);
  const __m128 scaled = _mm_mul_ps(_mm_castsi128_ps(shifted), _mm_set1_ps(0x1p112f));
  const __m128i special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
  const __m128i patched = _mm_or_si128(shifted, _mm_set1_epi32(0x7f800000));
  const __m128i value = _mm_or_si128(_mm_and_si128(special, patched), _mm_andnot_si128(special, _mm_castps_si128(scaled)));
  return Vec<Arch, float>(_mm_castsi128_ps(_mm_or_si128(sign, value)));
#endif
}

template <class Arch>
SF_INLINE void store(bfloat16* p, Vec<Arch, float> x) {
#if defined(__AVX512F__)
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#elif defined(__AVX2__)
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
#else
  alignas(16) float lane[4];
  x.store_aligned(lane);
  for (int i = 0; i < 4; ++i) {
    const bfloat16 rounded = narrow<bfloat16>(lane[i]);
    std::memcpy(p + i, &rounded, 2);
  }
#endif
}

template <class Arch>
SF_INLINE void store(float16* p, Vec<Arch, float> x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
  vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x)));
#else
  alignas(16) float lane[4];
  x.store_aligned(lane);
  for (int i = 0; i < 4; ++i) {
    const float16 rounded = narrow<float16>(lane[i]);
    std::memcpy(p + i, &rounded, 2);
  }
#endif
}

}  // namespace simdformer::SF_ISA
