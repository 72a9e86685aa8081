// One column of a slice: from and to the rows of words.
#pragma once

#include <cstring>

#include "core/quantized_blocks.hpp"

namespace simdformer {

// Bytes 0, 1, 2, 3 -> 0, 2, 1, 3, and back.
inline uint32_t swap_middle(uint32_t word) {
  return (word & 0xff0000ffu) | (word >> 8 & 0x0000ff00u) | (word << 8 & 0x00ff0000u);
}

// Bits [shift, shift + bits) of so many codes -> one column of a plane.
template <int bits, int inputs = kBlockInputs>
inline uint8_t* put_plane(const uint8_t* codes, int shift, uint8_t* plane) {
  constexpr int kFours = 8 / bits;  // to a word
  constexpr uint32_t kMask = 0x01010101u * ((1u << bits) - 1);
  constexpr int kWords = bits * inputs / 32;
  for (int w = 0; w < kWords; ++w) {
    uint32_t word = 0;
    for (int r = 0; r < kFours; ++r) {
      uint32_t four;
      std::memcpy(&four, codes + (w * kFours + r) * 4, 4);
      word |= (four >> shift & kMask) << bits * r;
    }
    word = swap_middle(word);
    std::memcpy(plane + w * kWordRow, &word, 4);
  }
  return plane + kWordRow * kWords;
}

// One column of a plane -> the same bits of so many codes, which are 0 before.
template <int bits, int inputs = kBlockInputs>
inline const uint8_t* get_plane(const uint8_t* plane, int shift, uint8_t* codes) {
  constexpr int kFours = 8 / bits;
  constexpr uint32_t kMask = 0x01010101u * ((1u << bits) - 1);
  constexpr int kWords = bits * inputs / 32;
  for (int w = 0; w < kWords; ++w) {
    uint32_t word;
    std::memcpy(&word, plane + w * kWordRow, 4);
    word = swap_middle(word);
    for (int r = 0; r < kFours; ++r) {
      uint32_t four;
      std::memcpy(&four, codes + (w * kFours + r) * 4, 4);
      four |= (word >> bits * r & kMask) << shift;
      std::memcpy(codes + (w * kFours + r) * 4, &four, 4);
    }
  }
  return plane + kWordRow * kWords;
}

// 32 codes <-> one column of a block of a slice.
inline void put_codes(int bits, const uint8_t* codes, uint8_t* p) {
  if (bits == 6) {
    for (int half = 0; half < 32; half += 16) {
      p = put_plane<4, 16>(codes + half, 0, p);
      p = put_plane<2, 16>(codes + half, 4, p);
    }
    return;
  }
  if (bits == 8) put_plane<8>(codes, 0, p);
  if (bits == 4 || bits == 5) p = put_plane<4>(codes, 0, p);
  if (bits < 4) p = put_plane<2>(codes, 0, p);
  if (bits == 5 || bits == 3) put_plane<1>(codes, bits - 1, p);
}
inline void get_codes(int bits, const uint8_t* p, uint8_t* codes) {
  std::memset(codes, 0, kBlockInputs);
  if (bits == 6) {
    for (int half = 0; half < 32; half += 16) {
      p = get_plane<4, 16>(p, 0, codes + half);
      p = get_plane<2, 16>(p, 4, codes + half);
    }
    return;
  }
  if (bits == 8) get_plane<8>(p, 0, codes);
  if (bits == 4 || bits == 5) p = get_plane<4>(p, 0, codes);
  if (bits < 4) p = get_plane<2>(p, 0, codes);
  if (bits == 5 || bits == 3) get_plane<1>(p, bits - 1, codes);
}

// Where the scales of a column lie in a span: visit(minimum?, field, group or -1, place, bytes), with `field`
// the number in the ColumnSpan.
template <class Span, class Visit>
inline void for_each_scale(const QuantizedFormat& format, int64_t inputs, int64_t column, Span& span,
                           Visit visit) {
  const int64_t groups = inputs / format.group, quads = (groups + 3) / 4 * kWordRow;
  const int kinds = format.has_minimum ? 2 : 1;
  for (int kind = 0; kind < kinds; ++kind) {
    auto& numbers = kind == 0 ? span.scales : span.minimums;
    switch (format.scales) {
      case ScaleKind::f16:
        for (int64_t g = 0; g < groups; ++g)
          visit(numbers[g], ((kind * groups + g) * kSliceColumns + column) * 2, 2);
        break;
      case ScaleKind::f32:
        for (int64_t g = 0; g < groups; ++g)
          visit(numbers[g], ((kind * groups + g) * kSliceColumns + column) * 4, 4);
        break;
      default: {
        const bool has_factors = format.scales != ScaleKind::power_of_two;
        constexpr int64_t kFactors = 2 * kSliceColumns;
        if (has_factors)
          visit(kind == 0 ? span.factor : span.minimum_factor, kind * kFactors + column * 2, 2);
        const int64_t at = (has_factors ? kinds * kFactors : 0) + kind * quads + column * 4;
        for (int64_t g = 0; g < groups; ++g) visit(numbers[g], at + g / 4 * kWordRow + g % 4, 1);
      }
    }
  }
}

// Column `column` of a span of a slice, from and to the numbers it holds.
inline void put_span(const QuantizedFormat& format, const ColumnSpan& span, int64_t inputs, int64_t column,
                     uint8_t* p) {
  for_each_scale(format, inputs, column, span, [&](auto number, int64_t at, int64_t bytes) {
    std::memcpy(p + at, &number, static_cast<size_t>(bytes));
  });
  p += scale_bytes(format, inputs) + column * 4;
  for (int64_t k = 0; k < inputs; k += kBlockInputs, p += kWordRow * format.bits)
    put_codes(format.bits, span.codes + k, p);
}
inline void get_span(const QuantizedFormat& format, const uint8_t* p, int64_t inputs, int64_t column,
                     ColumnSpan& span) {
  for_each_scale(format, inputs, column, span, [&](auto& number, int64_t at, int64_t bytes) {
    number = 0;
    std::memcpy(&number, p + at, static_cast<size_t>(bytes));
  });
  p += scale_bytes(format, inputs) + column * 4;
  for (int64_t k = 0; k < inputs; k += kBlockInputs, p += kWordRow * format.bits)
    get_codes(format.bits, p, span.codes + k);
}

}  // namespace simdformer
