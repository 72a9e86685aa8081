// NEON of AArch64: 32 registers of 128 bits, FMA, conversions of float16. Read by neon.hpp and
// neon_dotprod.hpp.
#pragma once

namespace simdformer::SF_ISA {

template <class T>
using Vec = xsimd::batch<T, xsimd::neon64>;

// As many 16-bit numbers as a register has floats.
using Bits16 = uint16x4_t;

// 128 bits as two words
using Bits128 = uint64x2_t;
SF_INLINE Bits128 from_words(uint64_t low, uint64_t high) {
  return vcombine_u64(vcreate_u64(low), vcreate_u64(high));
}
SF_INLINE uint64_t low_word(Bits128 x) { return vgetq_lane_u64(x, 0); }
SF_INLINE uint64_t high_word(Bits128 x) { return vgetq_lane_u64(x, 1); }

}  // namespace simdformer::SF_ISA

#include "isa/words.hpp"

namespace simdformer::SF_ISA {

// ---- sizes ------------------------------------------------------------------------------------------------

// Rows of a tile of the microkernel, and its vectors of columns for that many rows or fewer: 24 sums of 32
// registers.
constexpr int kTileRows = 6;
constexpr int kTileVectors[] = {0, 4, 4, 4, 4, 4, 4};
// From this many rows on the microkernel prefetches the panels to come.
constexpr int64_t kFewestRowsForNext = kTileRows + 1;
// Rows of x that pass a slice of panels of float32 or float64 together, at most.
constexpr int64_t kPanelRows = kItemRows;
// From this many rows on 16-bit panels are widened before they are multiplied.
constexpr int64_t kWidenRows = 128;
// Rows that share the loads of four dot products.
constexpr int kDotRows = 4;
// Rows of x that share the loads of four rows of a plain weight.
constexpr int kDotTileRows = 4;
// ---- arithmetic -------------------------------------------------------------------------------------------

// a * b + c, one rounding
SF_INLINE Vec<float> mul_add(Vec<float> a, Vec<float> b, Vec<float> c) { return vfmaq_f32(c, a, b); }
SF_INLINE Vec<double> mul_add(Vec<double> a, Vec<double> b, Vec<double> c) { return vfmaq_f64(c, a, b); }

// c - a * b, one rounding
SF_INLINE Vec<float> neg_mul_add(Vec<float> a, Vec<float> b, Vec<float> c) { return vfmsq_f32(c, a, b); }
SF_INLINE Vec<double> neg_mul_add(Vec<double> a, Vec<double> b, Vec<double> c) { return vfmsq_f64(c, a, b); }

// a / b, one rounding (xsimd 8 refines an estimate)
SF_INLINE Vec<float> divide(Vec<float> a, Vec<float> b) { return vdivq_f32(a, b); }
SF_INLINE Vec<double> divide(Vec<double> a, Vec<double> b) { return vdivq_f64(a, b); }

// a > b ? a : b and a < b ? a : b, so b where one is NaN
template <class V>
SF_INLINE V larger(V a, V b) {
  return xsimd::select(a > b, a, b);
}
template <class V>
SF_INLINE V smaller(V a, V b) {
  return xsimd::select(a < b, a, b);
}

// ---- lanes ------------------------------------------------------------------------------------------------

SF_INLINE float first_lane(Vec<float> x) { return vgetq_lane_f32(x, 0); }
SF_INLINE double first_lane(Vec<double> x) { return vgetq_lane_f64(x, 0); }

// Lane i takes lane i ^ distance: the halves, then the quarters ... trade places.
template <int distance, class V>
SF_INLINE V swap_lanes(V x) {
  constexpr size_t kBytes = distance * sizeof(typename V::value_type);
  const float32x4_t bits = lanes_as<float32x4_t>(x);
  if constexpr (kBytes == 8)
    return lanes_as<V>(vextq_f32(bits, bits, 2));
  else
    return lanes_as<V>(vrev64q_f32(bits));
}

// a0 b0 a1 b1 ... of the lower or the upper half of every quarter
SF_INLINE Vec<float> zip_lower(Vec<float> a, Vec<float> b) { return vzip1q_f32(a, b); }
SF_INLINE Vec<double> zip_lower(Vec<double> a, Vec<double> b) { return vzip1q_f64(a, b); }
SF_INLINE Vec<float> zip_upper(Vec<float> a, Vec<float> b) { return vzip2q_f32(a, b); }
SF_INLINE Vec<double> zip_upper(Vec<double> a, Vec<double> b) { return vzip2q_f64(a, b); }

// The way back from zip
SF_INLINE Pair<Vec<float>> unzip(Vec<float> first, Vec<float> second) {
  return {vuzp1q_f32(first, second), vuzp2q_f32(first, second)};
}
SF_INLINE Pair<Vec<double>> unzip(Vec<double> first, Vec<double> second) {
  return {vuzp1q_f64(first, second), vuzp2q_f64(first, second)};
}

// ---- memory -----------------------------------------------------------------------------------------------

// All of x as float32
SF_INLINE void store_rounded(float* p, Vec<double> x) { vst1_f32(p, vcvt_f32_f64(x)); }

// ---- small integers ---------------------------------------------------------------------------------------
// How products of them are added up: neon.hpp, neon_dotprod.hpp.

// Looks up 16 bytes: every byte of `index` (0 to 15) becomes the one that it names.
SF_INLINE Vec<uint32_t> look_up_bytes(const uint8_t* table, Vec<uint32_t> index) {
  return vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_u32(index)));
}

// To the nearest integer, which fits 16 bits.
SF_INLINE void store_rounded(int16_t* p, Vec<float> x) { vst1_s16(p, vqmovn_s32(vcvtnq_s32_f32(x))); }

// There is no store past the caches that the compilers know of.
SF_INLINE void stream(float* p, Vec<float> x) { x.store_unaligned(p); }
SF_INLINE void stream(double* p, Vec<double> x) { x.store_unaligned(p); }
SF_INLINE void finish_streams() {}

// ---- 16 bits ----------------------------------------------------------------------------------------------

SF_INLINE Bits16 load_bits(const void* p) {
  return vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(p)));
}
SF_INLINE void store_bits(void* p, Bits16 x) { vst1_u8(static_cast<uint8_t*>(p), vreinterpret_u8_u16(x)); }
SF_INLINE void stream_bits(void* p, Bits16 x) { store_bits(p, x); }
SF_INLINE Bits16 load_bits_part(const void* p, int64_t n) {
  return vcreate_u16(load_word(static_cast<const char*>(p), 2 * n));
}
SF_INLINE void store_bits_part(void* p, int64_t n, Bits16 x) {
  store_word(static_cast<char*>(p), 2 * n, vget_lane_u64(vreinterpret_u64_u16(x), 0));
}

// Exact.
SF_INLINE Vec<float> widen_bits(bfloat16, Bits16 x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
SF_INLINE Vec<float> widen_bits(float16, Bits16 x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }

// One rounding, to nearest even. NaN stays NaN, subnormals are kept.
SF_INLINE Bits16 narrow_bits(bfloat16, Vec<float> x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t even = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(even, vdupq_n_u32(0x7fff)));
  const uint32x4_t number = vceqq_f32(x, x);
  return vshrn_n_u32(vbslq_u32(number, rounded, vorrq_u32(bits, vdupq_n_u32(0x00400000))), 16);
}
SF_INLINE Bits16 narrow_bits(float16, Vec<float> x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }

}  // namespace simdformer::SF_ISA

#include "isa/one_quarter.hpp"
#include "isa/portable.hpp"
