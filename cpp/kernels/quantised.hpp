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
// Many rows of x first widen a span of codes to 16 bits, which then lie as the microkernel eats them.
#pragma once

#include "core/bounds.hpp"
#include "core/linear_args.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

constexpr int64_t kSlicePanels = kSliceColumns / kPanelColumns;

using CodeWords = Vec<uint32_t>;  // of one column in every lane

// ---- x ----------------------------------------------------------------------------------------------------

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
  SF_UNROLL for (int i = 0; i < kParts; ++i) store_rounded(out->codes + i * W, V(parts[i] * inverse));
  out->scale = (is_zero ? 0.0f : largest / 32512.0f) + sum_lanes(not_finite);
  for (int half = 0; half < 2; ++half) {
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += out->codes[half * 16 + i];
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

// ---- scales -----------------------------------------------------------------------------------------------

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

// Floats [groups][16], of any dtype, as rows of `out`, 64 apart, each for `units` of them.
template <class T>
SF_INLINE void spread_floats(const T* p, int64_t groups, int64_t units, float* out) {
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>) {
      const Vec<float> scale = load(p + group * kPanelColumns + column);
      for (int64_t unit = 0; unit < units; ++unit)
        store(out + (group * units + unit) * kSliceColumns + column, scale);
    }
}

// Bytes [groups / 4][16][4], of which decode(words, 8 i) makes the scales of one group in four,
// times the factors [16], if there are any.
template <class Decode>
SF_INLINE void spread_bytes(const uint8_t* p, const uint8_t* factors, int64_t groups, float* out,
                            Decode decode) {
  for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>) {
    const Vec<float> factor =
        factors == nullptr ? Vec<float>(1.0f) : load(reinterpret_cast<const float16*>(factors) + column);
    for (int64_t group = 0; group < groups; group += 4) {
      const CodeWords words = load_words_at(p + group * kPanelColumns + column * 4);
      SF_UNROLL for (int i = 0; i < 4; ++i) if (group + i < groups)
          store(out + (group + i) * kSliceColumns + column, Vec<float>(factor * decode(words, 8 * i)));
    }
  }
}

// The scales of a span of one panel as floats, a row of columns for every `unit` inputs (16 or 32).
SF_INLINE void decode_scales(const QuantisedFormat& format, const uint8_t* span, int64_t inputs,
                             float* scales, float* minimums) {
  const int64_t groups = inputs / format.group, bytes = (groups + 3) / 4 * 64;
  const int64_t units = format.group <= kBlockInputs ? 1 : format.group / kBlockInputs;
  const auto plain = [&](const auto* p) {
    spread_floats(p, groups, units, scales);
    if (format.has_minimum) spread_floats(p + groups * kPanelColumns, groups, units, minimums);
  };
  switch (format.scales) {
    case ScaleKind::f16:
      return plain(reinterpret_cast<const float16*>(span));
    case ScaleKind::f32:
      return plain(reinterpret_cast<const float*>(span));
    case ScaleKind::power_of_two:
      return spread_bytes(span, nullptr, groups, scales, powers_of_two);
    case ScaleKind::f16_i8:
      return spread_bytes(span + 32, span, groups, scales, signed_bytes);
    case ScaleKind::f16_u8: {
      const uint8_t* integers = span + (format.has_minimum ? 64 : 32);
      spread_bytes(integers, span, groups, scales, unsigned_bytes);
      if (format.has_minimum) spread_bytes(integers + bytes, span + 32, groups, minimums, unsigned_bytes);
      return;
    }
  }
}

// ---- codes ------------------------------------------------------------------------------------------------

// What the microkernel knows of the codes: pair(p, eight, j) are inputs 8 eight + 2 j and the next of the
// block at p, as the lower and the upper 16 bits of a word. kUnit inputs share a scale; kRolled: all eights
// of a block are read alike.

// Something of four inputs 4 four, ... of the plane at p: `bits` bits in each byte of a word, moved to bit
// `to`.
template <int bits>
SF_INLINE CodeWords four_of_plane(const uint8_t* p, int four, int to = 0) {
  constexpr int kFours = 8 / bits;  // to a word
  constexpr uint32_t kMask = 0x01010101u * ((1u << bits) - 1);
  const CodeWords words = load_words_at(p + four / kFours * 64);
  const int from = four % kFours * bits;
  const CodeWords moved = from > to ? words >> (from - to) : from < to ? words << (to - from) : words;
  return moved & CodeWords(kMask << to);
}

// Bytes 0 and 2, or 1 and 3, of a word of four.
SF_INLINE CodeWords pair_of_four(CodeWords four, int odd) {
  return (odd ? four >> 8 : four) & CodeWords(0x00ff00ffu);
}

template <int bits, int unit>
struct Codes {
  static constexpr int kBits = bits, kUnit = unit;
  static constexpr bool kRolled = bits == 4 || bits == 8;
  static constexpr int kLow = bits == 5 || bits == 6 ? 4 : bits == 3 ? 2 : bits;  // in the first plane
  static constexpr int kPlanes = kLow == bits ? 1 : 2;
  SF_INLINE static CodeWords pair(const uint8_t* p, int eight, int j, const uint8_t*) {
    const int four = 2 * eight + j / 2;
    if constexpr (kPlanes == 1) {  // both steps at once
      constexpr uint32_t kMask = 0x00010001u * ((1u << bits) - 1);
      constexpr int kFours = 8 / bits;
      const CodeWords words = load_words_at(p + four / kFours * 64);
      return (words >> (j % 2 * 8 + four % kFours * bits)) & CodeWords(kMask);
    } else {
      const CodeWords low = four_of_plane<kLow>(p, four);
      return pair_of_four(low | four_of_plane<bits - kLow>(p + 64 * kLow, four, kLow), j % 2);
    }
  }
};

// Four bits that stand for one of 16 numbers
struct TableCodes {
  static constexpr int kBits = 4, kUnit = 32, kPlanes = 1;
  static constexpr bool kRolled = true;
  SF_INLINE static CodeWords pair(const uint8_t* p, int eight, int j, const uint8_t* table) {
    return pair_of_four(look_up_bytes(table, four_of_plane<4>(p, 2 * eight + j / 2)), j % 2);
  }
};

// Already 16 bits wide: [16 pairs][16 columns] words
template <int unit>
struct WideCodes {
  static constexpr int kBits = 16, kUnit = unit;
  static constexpr bool kRolled = true;
  SF_INLINE static CodeWords pair(const uint8_t* p, int eight, int j, const uint8_t*) {
    return load_words_at(p + (eight * 4 + j) * 64);
  }
};

// body(Codes<...>{}) for the codes of a format
template <class Body>
SF_INLINE void with_codes(const QuantisedFormat& format, Body&& body) {
  if (format.table != nullptr) return body(TableCodes{});
  switch (format.bits) {
    case 2:
      return body(Codes<2, 16>{});
    case 3:
      return body(Codes<3, 16>{});
    case 4:
      return body(Codes<4, 32>{});
    case 5:
      return body(Codes<5, 32>{});
    case 6:
      return body(Codes<6, 16>{});
    default:
      return body(Codes<8, 32>{});
  }
}

// ---- microkernel ------------------------------------------------------------------------------------------

// A span of W: where the codes of its first panel and of the others lie, scales and minimums (null: none)
// [units][64].
struct QuantisedSpan {
  const uint8_t* codes;
  int64_t panel_stride;
  const float *scales, *minimums;
  int64_t blocks;
  int offset;
  const uint8_t* table;
};

// What comes after the eight inputs whose codes lie at p: the hardware's prefetchers stop at a page.
template <class Kind>
SF_INLINE void ask_for_codes(const uint8_t* p) {
  constexpr int64_t kAhead = 1536;
  SF_UNROLL for (int line = 0; line < (Kind::kBits + 3) / 4; ++line)
      __builtin_prefetch(p + kAhead + line * 64, 0, 3);
}

// tile (MR, NV vectors) += x W^T over a span. x: the blocks of MR rows.
template <class Kind, int MR, int NV>
__attribute__((noinline)) void multiply_codes(const ActivationBlock* x, int64_t x_stride,
                                              const QuantisedSpan& w, int64_t column, float* tile) noexcept {
  constexpr int W = static_cast<int>(kLanes<float>), kUnits = 32 / Kind::kUnit, kEights = 4 / kUnits;
  constexpr int64_t kBytes = 64 * Kind::kBits;  // of a block of a panel
  const uint8_t* codes = w.codes + column / 16 * w.panel_stride + column % 16 * 4;
  const float *scales = w.scales + column, *minimums = w.minimums == nullptr ? nullptr : w.minimums + column;
  for (int64_t block = 0; block < w.blocks; ++block, ++x, codes += kBytes) {
    SF_UNROLL for (int unit = 0; unit < kUnits; ++unit) {
      DotSums sum[MR][NV];
      int32_t total[MR];  // of the codes of x
      SF_UNROLL for (int i = 0; i < MR; ++i) {
        const ActivationBlock& row = x[i * x_stride];
        total[i] = kUnits == 2 ? row.sums[unit] : row.sums[0] + row.sums[1];
        const DotSums start = start_dots(-w.offset * total[i]);
        SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = start;
      }
      const auto add_eight = [&](int eight) __attribute__((always_inline)) {
        if constexpr (Kind::kBits < 16)
          SF_UNROLL for (int panel = 0; panel < (NV * W + 15) / 16; ++panel)
              ask_for_codes<Kind>(codes + panel * w.panel_stride + eight * (kBytes / 4));
        SF_UNROLL for (int j = 0; j < 4; ++j) {
          CodeWords pair[NV];
          SF_UNROLL for (int v = 0; v < NV; ++v) pair[v] =
              Kind::pair(codes + v * W / 16 * w.panel_stride + v * W % 16 * 4, eight, j, w.table);
          SF_UNROLL for (int i = 0; i < MR; ++i) {
            uint32_t two;
            std::memcpy(&two, x[i * x_stride].codes + eight * 8 + j * 2, 4);
            const CodeWords row(two);
            SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = add_dots(sum[i][v], pair[v], row);
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
          store(out, mul_add(finish_dots(sum[i][v]), step, load(static_cast<const float*>(out))));
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

// The codes of a span of a panel, 16 bits wide.
template <class Kind>
SF_INLINE void widen_codes(const uint8_t* codes, int64_t blocks, const uint8_t* table, uint8_t* out) {
  constexpr int64_t kBytes = 64 * Kind::kBits;
  for (int64_t block = 0; block < blocks; ++block, codes += kBytes)
    SF_UNROLL for (int eight = 0; eight < 4; ++eight) {
      ask_for_codes<Kind>(codes + eight * (kBytes / 4));
      SF_UNROLL for (int j = 0; j < 4; ++j, out += 64) for (int64_t column = 0; column < kPanelColumns;
                                                            column += kLanes<float>)
          Kind::pair(codes + column * 4, eight, j, table)
              .store_unaligned(reinterpret_cast<uint32_t*>(out + column * 4));
    }
}

// From so many rows on codes are widened first: planes are then taken apart once, and not once for every tile
// of rows, which pays for a store and a load of 16 bits. Two planes are more work than one.
template <class Kind>
constexpr int64_t kWidenCodeRows = Kind::kPlanes == 1 ? kWidenCodes : 5;

constexpr int kFewCodeRows = 4, kManyCodeRows = 6;  // of a tile, as codes lie and widened
constexpr int kFewestOfMany = 3;                    // that 5 rows or more make
constexpr int64_t kWidenedBytes = kSlicePanels * kSpanInputs * 32;

// Of four panels
struct SpanScales {
  alignas(64) float scales[kSpanInputs / 16 * kSliceColumns];
  alignas(64) float minimums[kSpanInputs / 16 * kSliceColumns];
};

// Panels of a quantised weight, `stride` bytes apart.
struct QuantisedPanels {
  const uint8_t* p;
  int64_t stride, depth;
};

// tile (rows, 64) = x W^T for four panels; widened: kWidenedBytes of scratch.
inline void multiply_quantised(const QuantisedFormat& format, QuantisedPanels panels,
                               const ActivationBlock* x, int64_t rows, float* tile,
                               uint8_t* widened) noexcept {
  SpanScales scratch;
  const int64_t depth = panels.depth, x_stride = depth / kBlockInputs;
  std::memset(tile, 0, static_cast<size_t>(rows * kSliceColumns) * sizeof(float));
  for (int64_t k = 0; k < depth; k += kSpanInputs) {
    const int64_t inputs = min_of(depth - k, kSpanInputs);
    for (int64_t p = 0; p < kSlicePanels; ++p)
      decode_scales(format, panels.p + p * panels.stride, inputs, scratch.scales + p * 16,
                    scratch.minimums + p * 16);
    QuantisedSpan w;
    w.codes = panels.p + scale_bytes(format, inputs);
    w.panel_stride = panels.stride;
    w.scales = scratch.scales;
    w.minimums = format.has_minimum ? scratch.minimums : nullptr;
    w.blocks = inputs / kBlockInputs;
    w.offset = format.offset;
    w.table = format.table;
    with_codes(format, [&](auto codes) __attribute__((always_inline)) {
      using Kind = decltype(codes);
      if (rows < kWidenCodeRows<Kind>) return code_rows<Kind, kFewCodeRows, 1>(rows, x, x_stride, w, tile);
      for (int64_t p = 0; p < kSlicePanels; ++p)
        widen_codes<Kind>(w.codes + p * panels.stride, w.blocks, w.table, widened + p * kSpanInputs * 32);
      w.codes = widened;
      w.panel_stride = kSpanInputs * 32;
      code_rows<WideCodes<Kind::kUnit>, kManyCodeRows, kFewestOfMany>(rows, x, x_stride, w, tile);
    });
    panels.p += span_bytes(format, inputs);
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
                       static_cast<int>(in_block / 8), static_cast<int>(in_block % 8 / 2), format.table);
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
