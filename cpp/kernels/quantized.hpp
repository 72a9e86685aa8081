// quantized: tile = x W^T      x: (rows, depth) in blocks of integers      W: 64 columns, quantized
//
// x is rounded once, to 16-bit integers in blocks of 32: x = s q, s = max |x| / 32512, q = nearest. A sum of
// products of integers is exact; each block adds to a float, in the order of the blocks,
//
//   tile += scale * s * sum (q * (code - offset)) - minimum * s * sum q
//
// as one multiply-add, or two. So a value depends on nothing but its row of x and its column of W, and is the
// same on every instruction set that has FMA. A block of x that holds NaN or infinity has the scale NaN.
//
// Many rows of x first take a span of codes apart, which then lie as the microkernel eats them.
#pragma once

#include "base/bounds.hpp"
#include "base/linear_args.hpp"
#include "base/tuning.hpp"
#include "kernels/convert.hpp"
#include "kernels/counts.hpp"
#include "kernels/loops.hpp"
#include "kernels/quantized_codes.hpp"

namespace simdformer::SF_ISA {

// ---- x ----------------------------------------------------------------------------------------------------

// 32 integers as codes are multiplied by them: as they are, or, where bytes are multiplied, first their high
// and then their low bytes, x = 256 high + low, both signed; of four successive ones 0, 2, 1, 3.
SF_INLINE void store_codes(const int16_t* codes, int16_t* out) {
  if constexpr (!kByteDots) {
    std::memcpy(out, codes, 64);
  } else {
    uint64_t fours[8], rounded[8];
    uint32_t planes[16];
    int16_t up[32];
    for (int i = 0; i < 32; ++i) up[i] = static_cast<int16_t>(codes[i] + 128);  // the low byte is signed
    std::memcpy(fours, codes, 64);
    std::memcpy(rounded, up, 64);
    for (int i = 0; i < 8; ++i) {
      planes[i] = static_cast<uint32_t>((rounded[i] >> 8 & 0x00ff00ffu) | (rounded[i] >> 32 & 0xff00ff00u));
      planes[8 + i] = static_cast<uint32_t>((fours[i] & 0x00ff00ffu) | (fours[i] >> 24 & 0xff00ff00u));
    }
    std::memcpy(out, planes, 64);
  }
}

// 32 numbers as integers. Below 2^-112, where 1 / s would overflow, all of them count as zero.
template <class T>
SF_INLINE void quantize_block(const T* x, ActivationBlock* out) {
  constexpr int W = static_cast<int>(kLanes<float>), kParts = 32 / W;
  using V = Vec<float>;
  V parts[kParts], most(0.0f), not_finite(0.0f);
  SF_UNROLL for (int i = 0; i < kParts; ++i) {
    parts[i] = load(x + i * W);
    most = larger(V(V(0.0f) - minus_abs(parts[i])), most);
    not_finite = not_finite + parts[i] * V(0.0f);
  }
  const float largest = max_lanes(most);
  const bool is_zero = largest < 0x1p-112f;
  const V inverse(is_zero ? 0.0f : 32512.0f / largest);
  int16_t codes[32];
  SF_UNROLL for (int i = 0; i < kParts; ++i) store_rounded(codes + i * W, V(parts[i] * inverse));
  store_codes(codes, out->codes);
  out->scale = (is_zero ? 0.0f : largest / 32512.0f) + sum_lanes(not_finite);
  for (int half = 0; half < 2; ++half) {
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += codes[half * 16 + i];
    out->sums[half] = sum;
  }
}

// An entry of the table.
inline void quantize_rows(const PackRowsArgs& args, int64_t begin, int64_t end) noexcept {
  with_storage_of<float>(args.x.dtype, [&](auto type) {
    RowCursor row(args.x, args.first + begin);
    for (int64_t i = begin; i < end; ++i, row.next()) {
      auto* out = static_cast<ActivationBlock*>(args.out) + i * args.stride;
      for (int64_t k = 0; k < args.x.length; k += kBlockInputs, ++out)
        quantize_block(row.template as<const decltype(type)>() + k, out);
    }
  });
}

// ---- microkernel ------------------------------------------------------------------------------------------

// A span of W: codes, scales and minimums (null: none) [units][64].
struct QuantizedSpan {
  const uint8_t* codes;
  const float *scales, *minimums;
  int64_t blocks;
  int offset;
  const uint8_t* table;
  SliceAhead ahead;
};

// Prefetches what comes so far behind `bytes` of whole rows of words, some columns of them.
template <int bytes, int columns = kWordRow>
SF_INLINE void prefetch_words(const uint8_t* p, SliceAhead ahead) {
  SF_UNROLL for (int row = 0; row < bytes; row += kWordRow)
      SF_UNROLL for (int line = row; line < row + columns; line += kLineBytes)
          prefetch_to(ahead.goal, p + ahead.bytes + line);
}

// A sum of products of codes of a column with a row of x: by pairs one sum, by bytes those of the high and of
// the low bytes of x.
struct ProductSums {
  DotSums of[kByteDots ? 2 : 1];
};
constexpr int kLastSum = kByteDots ? 1 : 0;

SF_INLINE ProductSums start_products(int32_t x) {
  ProductSums sums;
  sums.of[0] = start_dots(0);
  sums.of[kLastSum] = start_dots(x);
  return sums;
}
SF_INLINE ProductSums add_products(ProductSums sums, const FourCodes& codes, CodeWords x0, CodeWords x1) {
  sums.of[0] = add_dots(sums.of[0], codes.words[0], x0);
  sums.of[kLastSum] = add_dots(sums.of[kLastSum], codes.words[kFourWords - 1], x1);
  return sums;
}
template <class Sums>
SF_INLINE Vec<float> finish_products(const Sums& sums) {
  if constexpr (kByteDots)
    return finish_dots((sums.of[0] << 8) + sums.of[1]);
  else
    return finish_dots(sums.of[0]);
}

// Numbers from one four of x to the next, and from the first to the second of the two words that meet it.
constexpr int kFourOfX = kByteDots ? 2 : 4, kSecondWord = kByteDots ? 16 : 2;
constexpr int64_t kBlockOfX = sizeof(ActivationBlock) / sizeof(int16_t);

// The word at p in every lane
SF_INLINE CodeWords word_of(const int16_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, 4);
  return CodeWords(bits);
}

// tile (MR, 64) += x W^T over a span, NV vectors of columns of a block at a time. x: the blocks of MR rows.
template <class Kind, int MR, int NV>
__attribute__((noinline)) void multiply_codes(const ActivationBlock* x, int64_t x_stride,
                                              const QuantizedSpan& w, float* tile) noexcept {
  constexpr int W = static_cast<int>(kLanes<float>), kUnits = 32 / Kind::kUnit, kFours = Kind::kUnit / 4;
  constexpr bool kShared = Kind::kTurn > kFours;  // a turn, by two units
  constexpr int kTurns = kShared ? 1 : kFours / Kind::kTurn, kEach = kFours / kTurns;
  const uint8_t* codes = w.codes;
  const float *scales = w.scales, *minimums = w.minimums;
  const SliceAhead ahead = w.ahead;
  const int offset = offset_of<Kind>(w.offset);
  for (int64_t block = 0; block < w.blocks; ++block, ++x, codes += kWordRow * Kind::kBits) {
    for (int64_t column = 0; column < kSliceColumns; column += NV * W) {
      SF_UNROLL for (int unit = 0; unit < kUnits; ++unit) {
        ProductSums sum[MR][NV];
        int32_t total[MR];  // of the codes of x
        SF_UNROLL for (int i = 0; i < MR; ++i) {
          const ActivationBlock& row = x[i * x_stride];
          total[i] = kUnits == 2 ? row.sums[unit] : row.sums[0] + row.sums[1];
          const ProductSums start = start_products(-offset * total[i]);
          SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = start;
        }
        const int first = kShared ? unit * kFours : 0;
        const uint8_t* words = codes + column * 4 + (kShared ? 0 : unit * kTurns * kTurnBytes<Kind>);
        const int16_t* fours_of_x = x->codes + unit * kFours * kFourOfX;
        const auto take_turn = [&]() __attribute__((always_inline)) {
          if (!Kind::kWidened && first == 0) prefetch_words<kTurnBytes<Kind>, NV * W * 4>(words, ahead);
          // Pairs one word of a four after the other: GCC 12 would read both from memory again for every row.
          constexpr int kAtOnce = kByteDots || !Kind::kWidened ? kFourWords : 1;
          SF_UNROLL for (int step = 0; step < kEach * kFourWords; step += kAtOnce) {
            const int four = step / kFourWords, word = step % kFourWords;
            FourCodes taken[NV];
            SF_UNROLL for (int v = 0; v < NV; ++v) taken[v] =
                four_codes<Kind>(words + v * W * 4, first + four, w.table);
            SF_UNROLL for (int i = 0; i < MR; ++i) {
              const int16_t* of_x = fours_of_x + i * x_stride * kBlockOfX + four * kFourOfX + word * 2;
              if constexpr (kAtOnce == kFourWords) {
                const CodeWords x0 = word_of(of_x), x1 = word_of(of_x + kSecondWord);
                SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = add_products(sum[i][v], taken[v], x0, x1);
              } else {
                const CodeWords x0 = word_of(of_x);
                SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v].of[0] =
                    add_dots(sum[i][v].of[0], taken[v].words[word], x0);
              }
            }
          }
          words += kTurnBytes<Kind>, fours_of_x += kEach * kFourOfX;
        };
        if constexpr (MR == 1) {
          SF_ROLLED for (int turn = 0; turn < kTurns; ++turn) take_turn();
        } else {
          SF_UNROLL for (int turn = 0; turn < kTurns; ++turn) take_turn();
        }
        SF_UNROLL for (int i = 0; i < MR; ++i) {
          const float scale = x[i * x_stride].scale;
          float* const out = tile + i * kSliceColumns + column;
          const Vec<float> shift(scale * static_cast<float>(total[i]));
          SF_UNROLL for (int v = 0; v < NV; ++v) {
            const int64_t at = unit * kSliceColumns + column + v * W;
            const Vec<float> step = load(scales + at) * Vec<float>(scale);
            Vec<float> value = load(static_cast<const float*>(out) + v * W);
            value = mul_add(finish_products(sum[i][v]), step, value);
            if (minimums != nullptr) value = neg_mul_add(load(minimums + at), shift, value);
            store(out + v * W, value);
          }
        }
      }
    }
    scales += kUnits * kSliceColumns;
    if (minimums != nullptr) minimums += kUnits * kSliceColumns;
  }
}

// ---- rows and columns -------------------------------------------------------------------------------------

// Rows are dealt out evenly, to tiles of at most `most`.
template <class Kind, int most, int fewest>
SF_INLINE void code_rows(int64_t rows, const ActivationBlock* x, int64_t x_stride, const QuantizedSpan& w,
                         float* tile) {
  each_share(rows, most, [&](int64_t first, int64_t share) __attribute__((always_inline)) {
    with_count<most, fewest>(share, [&](auto count) __attribute__((always_inline)) {
      constexpr int MR = decltype(count)::value;
      multiply_codes<Kind, MR, kCodeVectors[MR]>(x + first * x_stride, x_stride, w,
                                                 tile + first * kSliceColumns);
    });
  });
}

// The codes of a span, taken apart.
template <class Kind>
SF_INLINE void widen_codes(const QuantizedSpan& w, uint8_t* out) {
  const uint8_t* codes = w.codes;
  for (int64_t turn = 0; turn < w.blocks * 8 / Kind::kTurn; ++turn, codes += kTurnBytes<Kind>) {
    prefetch_words<kTurnBytes<Kind>>(codes, w.ahead);
    SF_UNROLL for (int four = 0; four < Kind::kTurn;
                   ++four, out += kWordRow * kFourWords) for (int64_t column = 0; column < kSliceColumns;
                                                              column += kLanes<float>) {
      const FourCodes taken = four_codes<Kind>(codes + column * 4, four, w.table);
      for (int i = 0; i < kFourWords; ++i)
        taken.words[i].store_unaligned(reinterpret_cast<uint32_t*>(out + i * kWordRow + column * 4));
    }
  }
}

// From this many rows on codes are widened first: planes are then taken apart once, and not once for every tile
// of rows, which pays for a store and a load. Two planes are more work than one.
template <class Kind>
constexpr int64_t kWidenCodeRows = Kind::kPlanes == 1 ? kWidenCodes : kWidenTwoPlanes;

constexpr int kFewCodeRows = 4, kManyCodeRows = 6;  // of a tile, as codes lie and widened
constexpr int kFewestOfMany = 3;                    // that 5 rows or more make
constexpr int64_t kWidenedBytes = kSpanInputs / 4 * kWordRow * kFourWords;

// The scales and minimums of a span, 64 a unit.
struct SpanScales {
  alignas(64) float scales[kSpanInputs / 16 * kSliceColumns];
  alignas(64) float minimums[kSpanInputs / 16 * kSliceColumns];
};

// tile (rows, 64) = x W^T for a slice; widened: kWidenedBytes of scratch.
inline void multiply_quantized(const QuantizedFormat& format, const uint8_t* slice, int64_t depth,
                               const ActivationBlock* x, int64_t rows, SliceAhead ahead, float* tile,
                               uint8_t* widened) noexcept {
  SpanScales scratch;
  const int64_t x_stride = depth / kBlockInputs;
  std::memset(tile, 0, static_cast<size_t>(rows * kSliceColumns) * sizeof(float));
  for (int64_t k = 0; k < depth; k += kSpanInputs) {
    const int64_t inputs = min_of(depth - k, kSpanInputs), scales = scale_bytes(format, inputs);
    for (int64_t row = 0; row < scales; row += kWordRow) prefetch_words<kWordRow>(slice + row, ahead);
    decode_scales(format, slice, inputs, {0, kSliceColumns}, scratch.scales, scratch.minimums);
    QuantizedSpan w;
    w.codes = slice + scales;
    w.scales = scratch.scales;
    w.minimums = format.has_minimum ? scratch.minimums : nullptr;
    w.blocks = inputs / kBlockInputs;
    w.offset = format.offset;
    w.table = format.table;
    w.ahead = ahead;
    with_codes(format, [&](auto codes) __attribute__((always_inline)) {
      using Kind = decltype(codes);
      constexpr bool kWidens = kWidenCodeRows<Kind> < INT64_MAX;
      if (!kWidens || rows < kWidenCodeRows<Kind>)
        return code_rows<Kind, kFewCodeRows, 1>(rows, x, x_stride, w, tile);
      if constexpr (kWidens) {
        widen_codes<Kind>(w, widened);
        w.codes = widened;
        code_rows<WideCodes<Kind::kUnit>, kManyCodeRows, kFewestOfMany>(rows, x, x_stride, w, tile);
      }
    });
    slice += span_bytes(format, inputs);
    x += kSpanInputs / kBlockInputs;
  }
}

// ---- values -----------------------------------------------------------------------------------------------

// Whole registers of columns of a span, up to 16, as floats [inputs][16]: exactly the values that it holds.
inline void dequantize_span(const QuantizedFormat& format, const uint8_t* span, int64_t inputs,
                            ColumnRange columns, float* out) noexcept {
  SpanScales scratch;
  decode_scales(format, span, inputs, columns, scratch.scales, scratch.minimums);
  const uint8_t* codes = span + scale_bytes(format, inputs) + columns.first * 4;
  with_codes(format, [&](auto kind) __attribute__((always_inline)) {
    using Kind = decltype(kind);
    const Vec<float> offset(static_cast<float>(format.offset));
    for (int64_t k = 0; k < inputs; k += 2) {
      const int64_t unit = k / Kind::kUnit, turn = k / (4 * Kind::kTurn), in_turn = k % (4 * Kind::kTurn);
      for (int64_t column = 0; column < columns.count; column += kLanes<float>) {
        const CodeWords pair =
            Kind::pair(codes + turn * kTurnBytes<Kind> + column * 4, static_cast<int>(in_turn / 4),
                       static_cast<int>(in_turn % 4 / 2), format.table);
        const Vec<float> scale = load(scratch.scales + unit * kSliceColumns + column);
        const auto value = [&](CodeWords code) __attribute__((always_inline)) {
          const Vec<float> number = xsimd::to_float(lanes_as<Vec<int32_t>>(code)) - offset;
          const Vec<float> scaled = number * scale;
          if (!format.has_minimum) return scaled;
          return Vec<float>(scaled - load(scratch.minimums + unit * kSliceColumns + column));
        };
        store(out + k * 16 + column, value(CodeWords(pair & CodeWords(0xffffu))));
        store(out + (k + 1) * 16 + column, value(CodeWords(pair >> 16)));
      }
    }
  });
}

// One column of a span as floats [inputs]: the bits that dequantize_span gives for it. Its words lie kWordRow apart; put
// side by side, a turn to a lane, they are taken apart as those of many columns are.
inline void dequantize_column(const QuantizedFormat& format, const uint8_t* span, int64_t inputs,
                              int64_t column, float* out) noexcept {
  constexpr int64_t W = kLanes<float>, kWords = kWordRow / 4, kMostRows = 5;
  SpanScales scratch;
  alignas(64) uint32_t words[kMostRows * kWords] = {}, fours[kSpanInputs / 4];
  alignas(64) int32_t codes[kSpanInputs];
  const int64_t in_register = column % W;
  decode_scales(format, span, inputs, {column - in_register, W}, scratch.scales, scratch.minimums);
  const uint8_t* from = span + scale_bytes(format, inputs) + column * 4;
  with_codes(format, [&](auto kind) __attribute__((always_inline)) {
    using Kind = decltype(kind);
    constexpr int64_t kRows = kTurnBytes<Kind> / kWordRow;
    static_assert(kRows <= kMostRows);
    const int64_t turns = inputs / (4 * Kind::kTurn);
    for (int64_t turn = 0; turn < turns; ++turn)
      for (int64_t row = 0; row < kRows; ++row, from += kWordRow)
        std::memcpy(words + row * kWords + turn, from, 4);
    for (int64_t turn = 0; turn < turns; turn += W) {
      const int64_t count = min_of(turns - turn, W);
      SF_UNROLL for (int four = 0; four < Kind::kTurn; ++four) {
        alignas(64) uint32_t lanes[W];
        Kind::bytes(reinterpret_cast<const uint8_t*>(words + turn), four, format.table).store_aligned(lanes);
        for (int64_t i = 0; i < count; ++i) fours[(turn + i) * Kind::kTurn + four] = lanes[i];
      }
    }
    for (int64_t i = 0; i < inputs / 4; ++i) {  // bytes 0, 2, 1, 3
      codes[4 * i] = static_cast<int32_t>(fours[i] & 255u);
      codes[4 * i + 1] = static_cast<int32_t>(fours[i] >> 16 & 255u);
      codes[4 * i + 2] = static_cast<int32_t>(fours[i] >> 8 & 255u);
      codes[4 * i + 3] = static_cast<int32_t>(fours[i] >> 24);
    }
    const Vec<float> offset(static_cast<float>(format.offset));
    for (int64_t unit = 0; unit < inputs / Kind::kUnit; ++unit) {
      const Vec<float> scale(scratch.scales[unit * kSliceColumns + in_register]);
      const Vec<float> minimum(format.has_minimum ? scratch.minimums[unit * kSliceColumns + in_register]
                                                  : 0.0f);
      SF_UNROLL for (int64_t i = 0; i < Kind::kUnit; i += W) {
        const int64_t k = unit * Kind::kUnit + i;
        const Vec<float> scaled = (xsimd::to_float(Vec<int32_t>::load_aligned(codes + k)) - offset) * scale;
        store(out + k, format.has_minimum ? Vec<float>(scaled - minimum) : scaled);
      }
    }
  });
}

// Rows [begin, end) of the result. An entry of the table. Rows that lie side by side are taken apart together: those of
// one piece of 16; chosen rows alone.
inline void dequantize(const DequantizeArgs& args, int64_t begin, int64_t end) noexcept {
  alignas(64) float values[kSpanInputs * kPanelColumns], one[kSpanInputs];
  const QuantizedFormat& format = *args.format;
  const int64_t size = itemsize(args.out.dtype);
  for (int64_t i = begin, count; i < end; i += count) {
    const int64_t row = args.rows != nullptr ? args.rows[i] : i, column = row % kSliceColumns;
    count = args.rows != nullptr ? 1 : min_of(kPanelColumns - row % kPanelColumns, end - i);
    const int64_t first = column / kLanes<float> * kLanes<float>;
    const int64_t lanes = (column + count - first + kLanes<float> - 1) / kLanes<float> * kLanes<float>;
    const uint8_t* span = args.slices + row / kSliceColumns * slice_bytes(format, args.depth);
    for (int64_t k = 0; k < args.depth; k += kSpanInputs) {
      const int64_t inputs = min_of(args.depth - k, kSpanInputs);
      if (count == 1)
        dequantize_column(format, span, inputs, column, one);
      else
        dequantize_span(format, span, inputs, {first, lanes}, values);
      RowCursor out(args.out, i);
      for (int64_t r = 0; r < count; ++r, out.next()) {
        for (int64_t j = 0; count > 1 && j < inputs; ++j)
          one[j] = values[j * kPanelColumns + column - first + r];
        with_type(args.out.dtype, [&](auto type) {
          using T = decltype(type);
          convert_piece(static_cast<const float*>(one), reinterpret_cast<T*>(out.get() + k * size), inputs);
        });
      }
      span += span_bytes(format, inputs);
    }
  }
}

// The scales, and minimums, of 16 columns of a span. An entry of the table.
inline void quantized_scales(const QuantizedFormat& format, const uint8_t* span, int64_t inputs,
                             int64_t first, float* scales, float* minimums) noexcept {
  decode_scales(format, span, inputs, {first, kPanelColumns}, scales, minimums);
}

}  // namespace simdformer::SF_ISA
