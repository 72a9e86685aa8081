// quantised: tile = x W^T      x: (rows, depth) in blocks of integers      W: 64 columns, quantised
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

#include "core/bounds.hpp"
#include "core/linear_args.hpp"
#include "kernels/loops.hpp"
#include "kernels/quantised_codes.hpp"

namespace simdformer::SF_ISA {

constexpr int64_t kSlicePanels = kSliceColumns / kPanelColumns;

// ---- x ----------------------------------------------------------------------------------------------------

// 32 integers as codes are multiplied by them: as they are, or, where bytes are multiplied, first their high
// and then their low bytes, x = 256 high + low, both signed; of four successive ones 0, 2, 1, 3.
SF_INLINE void store_codes(const int16_t* codes, int16_t* out) {
  if constexpr (!kByteDots) {
    std::memcpy(out, codes, 64);
  } else {
    uint32_t words[16], rounded[16];
    int16_t up[32];
    for (int i = 0; i < 32; ++i) up[i] = static_cast<int16_t>(codes[i] + 128);  // the low byte is signed
    std::memcpy(words, codes, 64);
    std::memcpy(rounded, up, 64);
    uint32_t planes[16];
    for (int four = 0; four < 8; ++four) {
      const uint32_t a = words[2 * four], b = words[2 * four + 1];
      const uint32_t c = rounded[2 * four], d = rounded[2 * four + 1];
      planes[four] = (c >> 8 & 0x00ff00ffu) | (d & 0xff00ff00u);
      planes[8 + four] = (a & 0x00ff00ffu) | (b & 0x00ff00ffu) << 8;
    }
    std::memcpy(out, planes, 64);
  }
}

// 32 numbers as integers. Below 2^-112, where 1 / s would overflow, all of them count as zero.
template <class T>
SF_INLINE void quantise_block(const T* x, ActivationBlock* out) {
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
inline void quantise_rows(const PackRowsArgs& args, int64_t begin, int64_t end) noexcept {
  with_storage_of<float>(args.x.dtype, [&](auto type) {
    RowCursor row(args.x, args.first + begin);
    for (int64_t i = begin; i < end; ++i, row.next()) {
      auto* out = static_cast<ActivationBlock*>(args.out) + i * args.stride;
      for (int64_t k = 0; k < args.x.length; k += kBlockInputs, ++out)
        quantise_block(row.template as<const decltype(type)>() + k, out);
    }
  });
}

// ---- microkernel ------------------------------------------------------------------------------------------

// A span of W: where the codes of its first panel and of the others lie, scales and minimums (null: none)
// [units][64].
struct QuantisedSpan {
  const uint8_t* codes;
  int64_t panel_stride;
  const uint8_t* next;  // as many bytes as the codes of four panels, which are wanted later
  const float *scales, *minimums;
  int64_t blocks;
  int offset;
  const uint8_t* table;
};

// Four panels are read side by side, which no hardware prefetches as well as what lies in a row. So the slice
// that comes after this one is asked for meanwhile, byte after byte (Zen 5: memory gives a sixth more).
template <int bytes>
SF_INLINE void ask_for(const uint8_t* p) {
  SF_UNROLL for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + line, 0, 3);
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

// The two words of x that meet four codes, in every lane.
SF_INLINE CodeWords word_of(const ActivationBlock& x, int word) {
  uint32_t bits;
  std::memcpy(&bits, x.codes + 2 * word, 4);
  return CodeWords(bits);
}
constexpr int word_of_four(int four, int which) { return kByteDots ? four + 8 * which : 2 * four + which; }

// tile (MR, NV vectors) += x W^T over a span. x: the blocks of MR rows.
template <class Kind, int MR, int NV>
__attribute__((noinline)) void multiply_codes(const ActivationBlock* x, int64_t x_stride,
                                              const QuantisedSpan& w, int64_t column, float* tile) noexcept {
  constexpr int W = static_cast<int>(kLanes<float>), kUnits = 32 / Kind::kUnit, kEights = 4 / kUnits;
  constexpr int kBytes = 64 * Kind::kBits;  // of a block of a panel
  constexpr int kPanels = (NV * W + 15) / 16;
  const uint8_t* codes = w.codes + column / 16 * w.panel_stride + column % 16 * 4;
  const uint8_t* next = w.next + column / 16 * w.blocks * kBytes;
  const float *scales = w.scales + column, *minimums = w.minimums == nullptr ? nullptr : w.minimums + column;
  const int offset = offset_of<Kind>(w.offset);
  for (int64_t block = 0; block < w.blocks; ++block, ++x, codes += kBytes, next += kPanels * kBytes) {
    SF_UNROLL for (int unit = 0; unit < kUnits; ++unit) {
      ProductSums sum[MR][NV];
      int32_t total[MR];  // of the codes of x
      SF_UNROLL for (int i = 0; i < MR; ++i) {
        const ActivationBlock& row = x[i * x_stride];
        total[i] = kUnits == 2 ? row.sums[unit] : row.sums[0] + row.sums[1];
        const ProductSums start = start_products(-offset * total[i]);
        SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = start;
      }
      const auto add_eight = [&](int eight) __attribute__((always_inline)) {
        if constexpr (!Kind::kWidened) ask_for<kPanels * kBytes / 4>(next + eight * (kPanels * kBytes / 4));
        SF_UNROLL for (int four = 2 * eight; four < 2 * eight + 2; ++four) {
          FourCodes taken[NV];
          SF_UNROLL for (int v = 0; v < NV; ++v) taken[v] =
              four_codes<Kind>(codes + v * W / 16 * w.panel_stride + v * W % 16 * 4, four, w.table);
          SF_UNROLL for (int i = 0; i < MR; ++i) {
            const ActivationBlock& row = x[i * x_stride];
            const CodeWords x0 = word_of(row, word_of_four(four, 0)),
                            x1 = word_of(row, word_of_four(four, 1));
            SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = add_products(sum[i][v], taken[v], x0, x1);
          }
        }
      };
      if constexpr (Kind::kRolled) {
        for (int eight = unit * kEights; eight < (unit + 1) * kEights; ++eight) add_eight(eight);
      } else {
        SF_UNROLL for (int eight = unit * kEights; eight < (unit + 1) * kEights; ++eight) add_eight(eight);
      }
      SF_UNROLL for (int i = 0; i < MR; ++i) {
        const float scale = x[i * x_stride].scale;
        SF_UNROLL for (int v = 0; v < NV; ++v) {
          float* out = tile + i * kSliceColumns + v * W;
          const Vec<float> step = load(scales + v * W) * Vec<float>(scale);
          store(out, mul_add(finish_products(sum[i][v]), step, load(static_cast<const float*>(out))));
        }
        if (minimums == nullptr) continue;
        const Vec<float> shift(scale * static_cast<float>(total[i]));
        SF_UNROLL for (int v = 0; v < NV; ++v) {
          float* out = tile + i * kSliceColumns + v * W;
          store(out, neg_mul_add(load(minimums + v * W), shift, load(static_cast<const float*>(out))));
        }
      }
      scales += kSliceColumns;
      if (minimums != nullptr) minimums += kSliceColumns;
    }
  }
}

// ---- rows and columns -------------------------------------------------------------------------------------

template <class Kind, int MR, int fewest>
SF_INLINE void code_tile(int64_t rows, const ActivationBlock* x, int64_t x_stride, const QuantisedSpan& w,
                         float* tile) {
  if constexpr (MR > fewest) {
    if (rows < MR) return code_tile<Kind, MR - 1, fewest>(rows, x, x_stride, w, tile);
  }
  constexpr int NV = kCodeVectors[MR];
  constexpr int64_t kColumns = NV * kLanes<float>;
  for (int64_t column = 0; column < kSliceColumns; column += kColumns)
    multiply_codes<Kind, MR, NV>(x, x_stride, w, column, tile + column);
}

// Rows are dealt out evenly, to tiles of at most `most`.
template <class Kind, int most, int fewest>
SF_INLINE void code_rows(int64_t rows, const ActivationBlock* x, int64_t x_stride, const QuantisedSpan& w,
                         float* tile) {
  for (int64_t tiles = (rows + most - 1) / most, first = 0; tiles > 0; --tiles) {
    const int64_t count = (rows - first + tiles - 1) / tiles;
    code_tile<Kind, most, fewest>(count, x + first * x_stride, x_stride, w, tile + first * kSliceColumns);
    first += count;
  }
}

// The codes of one panel of a span, taken apart.
template <class Kind>
SF_INLINE void widen_codes(const QuantisedSpan& w, int64_t panel, uint8_t* out) {
  constexpr int kBytes = 64 * Kind::kBits;
  const uint8_t* codes = w.codes + panel * w.panel_stride;
  const uint8_t* next = w.next + panel * w.blocks * kBytes;
  for (int64_t block = 0; block < w.blocks; ++block, codes += kBytes, next += kBytes)
    SF_UNROLL for (int four = 0; four < 8; ++four, out += 64 * kFourWords) {
      if (four % 2 == 0) ask_for<kBytes / 4>(next + four / 2 * (kBytes / 4));
      for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>) {
        const FourCodes taken = four_codes<Kind>(codes + column * 4, four, w.table);
        for (int i = 0; i < kFourWords; ++i)
          taken.words[i].store_unaligned(reinterpret_cast<uint32_t*>(out + i * 64 + column * 4));
      }
    }
}

// From so many rows on codes are widened first: planes are then taken apart once, and not once for every tile
// of rows, which pays for a store and a load. Two planes are more work than one.
template <class Kind>
constexpr int64_t kWidenCodeRows = Kind::kPlanes == 1 ? kWidenCodes : kWidenTwoPlanes;

constexpr int kFewCodeRows = 4, kManyCodeRows = 6;  // of a tile, as codes lie and widened
constexpr int kFewestOfMany = 3;                    // that 5 rows or more make
constexpr int64_t kWidenedPanel = kSpanInputs * 16 * kFourWords;
constexpr int64_t kWidenedBytes = kSlicePanels * kWidenedPanel;

// Of four panels
struct SpanScales {
  alignas(64) float scales[kSpanInputs / 16 * kSliceColumns];
  alignas(64) float minimums[kSpanInputs / 16 * kSliceColumns];
};

// Four panels of a quantised weight, one behind the other, and the four that are wanted next.
struct QuantisedPanels {
  const uint8_t *p, *next;
  int64_t depth;
};

// tile (rows, 64) = x W^T for four panels; widened: kWidenedBytes of scratch.
inline void multiply_quantised(const QuantisedFormat& format, QuantisedPanels panels,
                               const ActivationBlock* x, int64_t rows, float* tile,
                               uint8_t* widened) noexcept {
  SpanScales scratch;
  const int64_t depth = panels.depth, stride = panel_bytes(format, depth), x_stride = depth / kBlockInputs;
  std::memset(tile, 0, static_cast<size_t>(rows * kSliceColumns) * sizeof(float));
  for (int64_t k = 0; k < depth; k += kSpanInputs) {
    const int64_t inputs = min_of(depth - k, kSpanInputs), scales = scale_bytes(format, inputs);
    for (int64_t p = 0; p < kSlicePanels; ++p) {
      for (int64_t line = 0; line < scales; line += 64) ask_for<64>(panels.next + p * scales + line);
      decode_scales(format, panels.p + p * stride, inputs, scratch.scales + p * 16,
                    scratch.minimums + p * 16);
    }
    QuantisedSpan w;
    w.codes = panels.p + scales;
    w.panel_stride = stride;
    w.next = panels.next + kSlicePanels * scales;
    w.scales = scratch.scales;
    w.minimums = format.has_minimum ? scratch.minimums : nullptr;
    w.blocks = inputs / kBlockInputs;
    w.offset = format.offset;
    w.table = format.table;
    with_codes(format, [&](auto codes) __attribute__((always_inline)) {
      using Kind = decltype(codes);
      if (rows < kWidenCodeRows<Kind>) return code_rows<Kind, kFewCodeRows, 1>(rows, x, x_stride, w, tile);
      for (int64_t p = 0; p < kSlicePanels; ++p) widen_codes<Kind>(w, p, widened + p * kWidenedPanel);
      w.codes = widened;
      w.panel_stride = kWidenedPanel;
      code_rows<WideCodes<Kind::kUnit>, kManyCodeRows, kFewestOfMany>(rows, x, x_stride, w, tile);
    });
    panels.p += span_bytes(format, inputs);
    panels.next += kSlicePanels * span_bytes(format, inputs);
    x += kSpanInputs / kBlockInputs;
  }
}

// A span of a panel as floats [inputs][16]: exactly the values that it holds.
inline void dequantise_span(const QuantisedFormat& format, const uint8_t* span, int64_t inputs,
                            float* out) noexcept {
  SpanScales scratch;
  decode_scales(format, span, inputs, scratch.scales, scratch.minimums);
  const uint8_t* codes = span + scale_bytes(format, inputs);
  with_codes(format, [&](auto kind) __attribute__((always_inline)) {
    using Kind = decltype(kind);
    const Vec<float> offset(static_cast<float>(format.offset));
    for (int64_t k = 0; k < inputs; k += 2) {
      const int64_t unit = k / Kind::kUnit, in_block = k % kBlockInputs;
      for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>) {
        const CodeWords pair =
            Kind::pair(codes + k / kBlockInputs * 64 * Kind::kBits + column * 4,
                       static_cast<int>(in_block / 4), static_cast<int>(in_block % 4 / 2), format.table);
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

}  // namespace simdformer::SF_ISA
