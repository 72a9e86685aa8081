// Weights in few bits, as the kernels of kernels/quantized.hpp read them: integers (codes) and, for every
// `group` of inputs, a scale and perhaps a minimum. value = scale * (code - offset) - minimum
//
// 64 columns make a slice, on every instruction set, which is read from its first byte to its last by whoever
// multiplies it: memory gives that most. Along the inputs it is cut into spans of 256 (the last may be
// shorter), and a span holds first its scales, then its codes:
//
//   scales     one of
//     f16, f32       [groups][64], then the minimums alike
//     power_of_two   bytes e: 2^(e - 128)
//     f16_u8 f16_i8  [64] factors f16, then those of the minimums; then small integers, as bytes, that
//                    multiply them, for the scales and for the minimums
//   bytes of four successive groups of one column lie side by side: [groups / 4][64][4]
//
//   codes      blocks of 32 inputs, each in planes of bits. A 32-bit word has something of four successive
//              inputs k, k + 1, k + 2, k + 3 of one column in its bytes 0, 2, 1, 3; words of the 64 columns
//              lie side by side, a row of them. So the even bytes and the odd bytes, widened, are pairs of
//              neighbours.
//     8 bits   [8][64] words of four inputs
//     4 bits   [4][64] words of eight: low nibbles are the first four
//     2 bits   [2][64] words of sixteen: bits 2r, 2r + 1 of a byte belong to the r-th four
//     1 bit    [1][64] words of thirty-two: bit r of a byte belongs to the r-th four
//   5 bits are 4 bits and then the high ones, 3 bits are 2 and 1; 6 bits are 4 and 2 of the first 16 inputs,
//   then of the others.
#pragma once

#include "base/cache.hpp"
#include "base/panels.hpp"

namespace simdformer {

constexpr int64_t kBlockInputs = 32;  // that share a scale of x, and of most weights
constexpr int64_t kSpanInputs = 256;
constexpr int64_t kWordRow = 4 * kSliceColumns;  // bytes of a word of every column of a slice

enum class ScaleKind : uint8_t { f16, f32, power_of_two, f16_u8, f16_i8 };

struct QuantizedFormat {
  ScaleKind scales;
  bool has_minimum;
  int group;             // inputs that share a scale: 16, 32, 64 or 128
  int bits;              // of a code: 2, 3, 4, 5, 6 or 8
  int offset;            // what is added to codes, so that none is negative
  const uint8_t* table;  // the 16 numbers that codes of 4 bits stand for, offset added, or null
};

// How far ahead of their use slices are prefetched, in bytes, and where to. 0 leaves it to the hardware, but touches
// a turn's lines in their order.
struct SliceAhead {
  int64_t bytes = 0;
  Cache goal = Cache::first;
};

// Bytes that the scales of so many inputs of a slice take, at the start of a span.
SF_INLINE int64_t scale_bytes(const QuantizedFormat& format, int64_t inputs) {
  const int64_t groups = inputs / format.group, times = format.has_minimum ? 2 : 1;
  switch (format.scales) {
    case ScaleKind::f16:
      return times * groups * 2 * kSliceColumns;
    case ScaleKind::f32:
      return times * groups * 4 * kSliceColumns;
    case ScaleKind::power_of_two:
      return (groups + 3) / 4 * kWordRow;
    default:
      return times * (2 * kSliceColumns + (groups + 3) / 4 * kWordRow);
  }
}

SF_INLINE int64_t code_bytes(const QuantizedFormat& format, int64_t inputs) {
  return inputs * format.bits * kSliceColumns / 8;
}

SF_INLINE int64_t span_bytes(const QuantizedFormat& format, int64_t inputs) {
  return scale_bytes(format, inputs) + code_bytes(format, inputs);
}

SF_INLINE int64_t slice_bytes(const QuantizedFormat& format, int64_t depth) {
  const int64_t rest = depth % kSpanInputs;
  return depth / kSpanInputs * span_bytes(format, kSpanInputs) + (rest > 0 ? span_bytes(format, rest) : 0);
}

// What quantizing some columns lost.
struct QuantizingLoss {
  double missed, squares;  // sums of (value - number)^2 and of number^2; NaN where a number is not finite
  float largest;           // magnitude of a number
};

// 32 inputs of a row of x as integers: x = scale * code, scale = max |x| / 32512.
struct ActivationBlock {
  int16_t codes[kBlockInputs];
  float scale;
  int32_t sums[2];  // of the first and the last 16 codes
};

}  // namespace simdformer
