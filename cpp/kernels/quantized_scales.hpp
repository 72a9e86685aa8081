// Scales of quantized weights: from the encodings of base/quantized_args.hpp to floats, a span of a slice at a
// time.
#pragma once

#include "base/linear_args.hpp"
#include "kernels/dtypes.hpp"

namespace simdformer::SF_ISA {

using CodeWords = Vec<uint32_t>;  // of one column in every lane

SF_INLINE CodeWords load_words_at(const uint8_t* p) {
  return CodeWords::load_unaligned(reinterpret_cast<const uint32_t*>(p));
}

// Byte shift / 8 of every word.
SF_INLINE Vec<float> unsigned_bytes(CodeWords words, int shift) {
  return xsimd::to_float(lanes_as<Vec<int32_t>>(CodeWords((words >> shift) & CodeWords(255u))));
}
SF_INLINE Vec<float> signed_bytes(CodeWords words, int shift) {
  const auto high = lanes_as<Vec<int32_t>>(CodeWords(words << (24 - shift)));
  return xsimd::to_float(Vec<int32_t>(high >> 24));
}
// 2^(e - 128); the two smallest are subnormal.
SF_INLINE Vec<float> powers_of_two(CodeWords words, int shift) {
  const CodeWords e = (words >> shift) & CodeWords(255u);
  const CodeWords normal = (e - CodeWords(1u)) << 23;
  const CodeWords subnormal = CodeWords(0x00200000u) + e * CodeWords(0x00200000u);
  return lanes_as<Vec<float>>(CodeWords(xsimd::select(e > CodeWords(1u), normal, subnormal)));
}

// Columns [first, first + count) of a slice.
struct ColumnRange {
  int64_t first, count;
};

// Floats [groups][64], of any dtype, as rows of `out`, 64 apart, each for `units` of them.
template <class T>
SF_INLINE void spread_floats(const T* p, int64_t groups, int64_t units, ColumnRange columns, float* out) {
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t column = 0; column < columns.count; column += kLanes<float>) {
      const Vec<float> scale = load(p + group * kSliceColumns + columns.first + column);
      for (int64_t unit = 0; unit < units; ++unit)
        store(out + (group * units + unit) * kSliceColumns + column, scale);
    }
}

// Bytes [groups / 4][64][4], of which decode(words, 8 i) makes the scales of one group in four,
// times the factors [64], if there are any.
template <class Decode>
SF_INLINE void spread_bytes(const uint8_t* p, const uint8_t* factors, int64_t groups, ColumnRange columns,
                            float* out, Decode decode) {
  for (int64_t column = 0; column < columns.count; column += kLanes<float>) {
    const int64_t at = columns.first + column;
    const Vec<float> factor =
        factors == nullptr ? Vec<float>(1.0f) : load(reinterpret_cast<const float16*>(factors) + at);
    for (int64_t group = 0; group < groups; group += 4) {
      const CodeWords words = load_words_at(p + group * kSliceColumns + at * 4);
      SF_UNROLL for (int i = 0; i < 4; ++i) if (group + i < groups)
          store(out + (group + i) * kSliceColumns + column, Vec<float>(factor * decode(words, 8 * i)));
    }
  }
}

// The scales of some columns of a span as floats, a row of 64 for every `unit` inputs (16 or 32).
SF_INLINE void decode_scales(const QuantizedFormat& format, const uint8_t* span, int64_t inputs,
                             ColumnRange columns, float* scales, float* minimums) {
  constexpr int64_t kFactors = 2 * kSliceColumns;
  const int64_t groups = inputs / format.group, bytes = (groups + 3) / 4 * kWordRow;
  const int64_t units = format.group <= kBlockInputs ? 1 : format.group / kBlockInputs;
  const auto plain = [&](const auto* p) {
    spread_floats(p, groups, units, columns, scales);
    if (format.has_minimum) spread_floats(p + groups * kSliceColumns, groups, units, columns, minimums);
  };
  switch (format.scales) {
    case ScaleKind::f16:
      return plain(reinterpret_cast<const float16*>(span));
    case ScaleKind::f32:
      return plain(reinterpret_cast<const float*>(span));
    case ScaleKind::power_of_two:
      return spread_bytes(span, nullptr, groups, columns, scales, powers_of_two);
    case ScaleKind::f16_i8:
      return spread_bytes(span + kFactors, span, groups, columns, scales, signed_bytes);
    case ScaleKind::f16_u8: {
      const uint8_t* integers = span + (format.has_minimum ? 2 : 1) * kFactors;
      spread_bytes(integers, span, groups, columns, scales, unsigned_bytes);
      if (format.has_minimum)
        spread_bytes(integers + bytes, span + kFactors, groups, columns, minimums, unsigned_bytes);
      return;
    }
  }
}

}  // namespace simdformer::SF_ISA
