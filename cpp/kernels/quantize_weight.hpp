// quantize_weight: floats -> slices of codes and scales (base/quantized_args.hpp)
//
//   value = scale * code - minimum for every group of inputs of a column
//
//   blocks of 32     the scale comes from the largest number alone; bit for bit what ggml makes
//   blocks of 256    scales are sought that make the sum of (value - number)^2 small, see fit_scales.hpp
//
// A column has a lane of its own, and no product is fused with a sum: what becomes of a block depends on its
// own numbers only, and is the same on every instruction set.
#pragma once

#include "base/bounds.hpp"
#include "kernels/fit_scales.hpp"
#include "kernels/pack.hpp"
#include "kernels/quantized.hpp"

namespace simdformer::SF_ISA {

// What makes codes of the numbers of a group, one of each a column of the slice.
struct GroupFit {
  alignas(64) float inverse[kSliceColumns], minimum[kSliceColumns];
};

// The types below: scales() writes the scales of `inputs` of some columns, which begin at x, into the span's
// fields (at their own columns), and says in `fits` how codes are made; code() makes one of them, as it is
// stored.

SF_INLINE Lanes magnitude(Lanes x) {
  return lanes_as<Lanes>(CodeWords(lanes_as<CodeWords>(x) & CodeWords(0x7fffffffu)));
}
SF_INLINE Lanes negative(Lanes x) {  // of zero too
  return lanes_as<Lanes>(CodeWords(lanes_as<CodeWords>(x) ^ CodeWords(0x80000000u)));
}
SF_INLINE Lanes floor_of(Lanes x) { return xsimd::to_float(xsimd::to_int(x)); }  // x >= 0
SF_INLINE void store_half(uint8_t* fields, int64_t at, Lanes x) {
  store(reinterpret_cast<float16*>(fields) + at, x);
}

// ---- blocks of 32 -----------------------------------------------------------------------------------------

// q8_0: codes -127 ... 127, halves go away from zero
struct FromLargest {
  static constexpr int kBits = 8, kGroup = 32;
  SF_INLINE static void scales(const float* x, int64_t inputs, int64_t column, uint8_t* fields,
                               GroupFit* fits) {
    for (int64_t group = 0; group < inputs / 32; ++group, x += 32 * kPanelColumns) {
      const Lanes scale = divide(magnitude(farthest(x, 32)), Lanes(127.0f));
      store_half(fields, group * kSliceColumns + column, scale);
      store(fits[group].inverse + column, inverse_of(scale));
      store(fits[group].minimum + column, Lanes(0.0f));
    }
  }
  SF_INLINE static Lanes code(Lanes x, Lanes inverse, Lanes) {
    const Lanes scaled = x * inverse, size = clip(magnitude(scaled), 0.0f, 127.0f);
    const Lanes below = floor_of(size), away = below + floor_of(Lanes(2.0f) * (size - below));
    return where_negative(scaled, Lanes(128.0f) - away, Lanes(128.0f) + away);
  }
};

// q4_0, q5_0: codes 0 ... 2 half - 1 stand for -half ... half - 1; the largest number becomes -half
template <int bits>
struct AroundZero {
  static constexpr int kBits = bits, kGroup = 32, kHalf = 1 << (bits - 1);
  SF_INLINE static void scales(const float* x, int64_t inputs, int64_t column, uint8_t* fields,
                               GroupFit* fits) {
    for (int64_t group = 0; group < inputs / 32; ++group, x += 32 * kPanelColumns) {
      const Lanes scale = divide(farthest(x, 32), Lanes(-static_cast<float>(kHalf)));
      store_half(fields, group * kSliceColumns + column, scale);
      store(fits[group].inverse + column, inverse_of(scale));
      store(fits[group].minimum + column, Lanes(0.0f));
    }
  }
  SF_INLINE static Lanes code(Lanes x, Lanes inverse, Lanes) {
    return clip(x * inverse + Lanes(kHalf + 0.5f), 0.0f, 2 * kHalf - 1);
  }
};

// q4_1, q5_1: codes 0 ... top stand for the least to the greatest number
template <int bits>
struct FromLeast {
  static constexpr int kBits = bits, kGroup = 32, kTop = (1 << bits) - 1;
  SF_INLINE static void scales(const float* x, int64_t inputs, int64_t column, uint8_t* fields,
                               GroupFit* fits) {
    const int64_t groups = inputs / 32;
    for (int64_t group = 0; group < groups; ++group, x += 32 * kPanelColumns) {
      Lanes least = load(x), greatest = least;
      for (int k = 1; k < 32; ++k) {
        least = smaller(load(x + k * kPanelColumns), least);
        greatest = larger(load(x + k * kPanelColumns), greatest);
      }
      const Lanes scale = divide(Lanes(greatest - least), Lanes(static_cast<float>(kTop)));
      store_half(fields, group * kSliceColumns + column, scale);
      store_half(fields, (groups + group) * kSliceColumns + column, negative(least));
      store(fits[group].inverse + column, inverse_of(scale));
      store(fits[group].minimum + column, negative(least));
    }
  }
  SF_INLINE static Lanes code(Lanes x, Lanes inverse, Lanes minimum) {
    return clip((x + minimum) * inverse + Lanes(0.5f), 0.0f, kTop);
  }
};

// mxfp4: the largest number of a block lies in [4, 8) steps of its power of two; 6 is the last. `inverse` and
// `minimum` are two factors, because their product may leave the range of floats.
struct PowerOfTwo {
  static constexpr int kBits = 4, kGroup = 32;
  SF_INLINE static void scales(const float* x, int64_t inputs, int64_t column, uint8_t* fields,
                               GroupFit* fits) {
    for (int64_t group = 0; group < inputs / 32; ++group, x += 32 * kPanelColumns) {
      alignas(64) float most[kLanes<float>];
      store(most, magnitude(farthest(x, 32)));
      for (int64_t c = 0; c < kLanes<float>; ++c) {
        const float size = most[c] < 0x1p127f ? most[c] : 0x1p127f;  // infinity is refused by who called
        const int power = size > 0 ? static_cast<int>(__builtin_floorf(__builtin_log2f(size))) : -125;
        const int exponent = static_cast<int>(clamp_to(power + 125, 0, 254)), up = 128 - exponent;
        fields[group / 4 * kWordRow + (column + c) * 4 + group % 4] = static_cast<uint8_t>(exponent);
        fits[group].inverse[column + c] = power_of_two(up >> 1);
        fits[group].minimum[column + c] = power_of_two(up - (up >> 1));
      }
    }
  }
  SF_INLINE static float power_of_two(int n) { return float_of(static_cast<uint32_t>(n + 127) << 23); }
  SF_INLINE static Lanes code(Lanes x, Lanes inverse, Lanes factor) {
    const Lanes halves = magnitude(x) * inverse * factor;  // of a step
    Lanes place(0.0f);
    for (const float between : {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f})  // 0 1 2 3 4 6 8 12
      place = place + xsimd::select(halves > Lanes(between), Lanes(1.0f), Lanes(0.0f));
    const auto below_zero = x < Lanes(0.0f) && place > Lanes(0.0f);
    return place + xsimd::select(below_zero, Lanes(8.0f), Lanes(0.0f));
  }
};

// ---- blocks of 256 ----------------------------------------------------------------------------------------

// Whole numbers of `groups` groups as bytes of words, four groups to a word.
SF_INLINE void store_bytes(const Lanes* integers, int groups, int64_t column, uint8_t* fields) {
  for (int g = 0; g < groups; g += 4, fields += kWordRow) {
    CodeWords word(0u);
    SF_UNROLL for (int i = 0; i < 4; ++i) {
      const auto integer = lanes_as<CodeWords>(xsimd::to_int(integers[g + i]));
      word = word | ((integer & CodeWords(255u)) << 8 * i);
    }
    word.store_unaligned(reinterpret_cast<uint32_t*>(fields + column * 4));
  }
}

// q4_k, q5_k: codes 0 ... top; scales and minimums are integers 0 ... 63 times a factor each
template <int bits>
struct SoughtLine {
  static constexpr int kBits = bits, kGroup = 32, kTop = (1 << bits) - 1, kGroups = 8, kLast = 63;
  SF_INLINE static void scales(const float* x, int64_t, int64_t column, uint8_t* fields, GroupFit* fits) {
    Lanes scales[kGroups], minimums[kGroups];
    Line most{Lanes(0.0f), Lanes(0.0f)};
    for (int g = 0; g < kGroups; ++g) {
      const Line line = fit_line<kTop>(x + g * 32 * kPanelColumns);
      scales[g] = line.scale, minimums[g] = line.minimum;
      most = {larger(line.scale, most.scale), larger(line.minimum, most.minimum)};
    }
    const Lanes last(static_cast<float>(kLast));
    const Line factor{as_half(divide(most.scale, last)), as_half(divide(most.minimum, last))};
    const Line inverse{inverse_of(factor.scale), inverse_of(factor.minimum)};
    for (int g = 0; g < kGroups; ++g) {
      const Line rounded{nearest(clip(scales[g] * inverse.scale, 0, kLast)),
                         nearest(clip(minimums[g] * inverse.minimum, 0, kLast))};
      const Line integers = fit_integers<kTop>(x + g * 32 * kPanelColumns, factor, rounded);
      scales[g] = integers.scale, minimums[g] = integers.minimum;
      store(fits[g].inverse + column, inverse_of(factor.scale * integers.scale));
      store(fits[g].minimum + column, factor.minimum * integers.minimum);
    }
    store_half(fields, column, factor.scale);
    store_half(fields, kSliceColumns + column, factor.minimum);
    store_bytes(scales, kGroups, column, fields + 4 * kSliceColumns);
    store_bytes(minimums, kGroups, column, fields + (4 + kGroups) * kSliceColumns);
  }
  SF_INLINE static Lanes code(Lanes x, Lanes inverse, Lanes minimum) {
    return nearest(clip((x + minimum) * inverse, 0, kTop));
  }
};

// q6_k: codes -32 ... 31; scales are integers -128 ... 127 times a factor
struct SoughtScale {
  static constexpr int kBits = 6, kGroup = 16, kGroups = 16, kHalf = 32;
  SF_INLINE static void scales(const float* x, int64_t, int64_t column, uint8_t* fields, GroupFit* fits) {
    alignas(64) float found[kGroups * kPanelColumns];
    Lanes scales[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      scales[g] = fit_scale<kHalf>(x + g * 16 * kPanelColumns);
      store(found + g * kPanelColumns, scales[g]);
    }
    const Lanes factor = as_half(divide(farthest(found, kGroups), Lanes(-128.0f))),
                inverse = inverse_of(factor);
    for (int g = 0; g < kGroups; ++g) {
      const Lanes rounded = nearest(clip(scales[g] * inverse, -128, 127));
      scales[g] = fit_integer<kHalf>(x + g * 16 * kPanelColumns, factor, rounded);
      store(fits[g].inverse + column, inverse_of(factor * scales[g]));
      store(fits[g].minimum + column, Lanes(0.0f));
    }
    store_half(fields, column, factor);
    store_bytes(scales, kGroups, column, fields + 2 * kSliceColumns);
  }
  SF_INLINE static Lanes code(Lanes x, Lanes inverse, Lanes) {
    return nearest(clip(x * inverse, -kHalf, kHalf - 1)) + Lanes(static_cast<float>(kHalf));
  }
};

// body(type) for what `format` says: no two types that can be written have the same scales and bits
template <class Body>
SF_INLINE void with_fit(const QuantizedFormat& format, Body&& body) {
  const bool four = format.bits == 4;
  switch (format.scales) {
    case ScaleKind::power_of_two:
      return body(PowerOfTwo{});
    case ScaleKind::f16_u8:
      return four ? body(SoughtLine<4>{}) : body(SoughtLine<5>{});
    case ScaleKind::f16_i8:
      return body(SoughtScale{});
    default:
      if (format.bits == 8) return body(FromLargest{});
      if (format.has_minimum) return four ? body(FromLeast<4>{}) : body(FromLeast<5>{});
      return four ? body(AroundZero<4>{}) : body(AroundZero<5>{});
  }
}

// ---- spans ------------------------------------------------------------------------------------------------

// Bits [shift, shift + bits) of so many codes of 16 columns -> their words of a plane
template <int bits, int inputs = kBlockInputs>
SF_INLINE uint8_t* put_plane(const uint32_t* codes, int shift, uint8_t* plane) {
  constexpr int kFours = 8 / bits;
  constexpr uint32_t kMask = 0x01010101u * ((1u << bits) - 1);
  for (int w = 0; w < bits * inputs / 32; ++w, plane += kWordRow)
    for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>) {
      CodeWords word(0u);
      SF_UNROLL for (int r = 0; r < kFours; ++r) {
        const uint32_t* four = codes + (w * kFours + r) * 4 * kPanelColumns + column;
        CodeWords bytes = CodeWords::load_unaligned(four);  // of inputs 0, 2, 1, 3
        bytes = bytes | CodeWords::load_unaligned(four + 2 * kPanelColumns) << 8;
        bytes = bytes | CodeWords::load_unaligned(four + kPanelColumns) << 16;
        bytes = bytes | CodeWords::load_unaligned(four + 3 * kPanelColumns) << 24;
        word = word | (((bytes >> shift) & CodeWords(kMask)) << bits * r);
      }
      word.store_unaligned(reinterpret_cast<uint32_t*>(plane + column * 4));
    }
  return plane;
}

// `inputs` numbers of 16 columns, [inputs][16] -> those from `first` on of a span
template <class Fit>
SF_INLINE void quantize_span(const float* x, int64_t inputs, const QuantizedFormat& format, int64_t first,
                             uint8_t* span) {
  GroupFit fits[kSpanInputs / Fit::kGroup];
  for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>)
    Fit::scales(x + column, inputs, first + column, span, fits);
  span += scale_bytes(format, inputs) + first * 4;
  for (int64_t block = 0; block < inputs; block += kBlockInputs) {
    alignas(64) uint32_t codes[kBlockInputs * kPanelColumns];
    for (int64_t k = 0; k < kBlockInputs; ++k)
      for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>) {
        const GroupFit& fit = fits[(block + k) / Fit::kGroup];
        const Lanes code = Fit::code(load(x + (block + k) * kPanelColumns + column),
                                     load(static_cast<const float*>(fit.inverse) + first + column),
                                     load(static_cast<const float*>(fit.minimum) + first + column));
        xsimd::to_int(code).store_unaligned(reinterpret_cast<int32_t*>(codes) + k * kPanelColumns + column);
      }
    if constexpr (Fit::kBits == 6) {
      for (int half = 0; half < 32; half += 16) {
        span = put_plane<4, 16>(codes + half * kPanelColumns, 0, span);
        span = put_plane<2, 16>(codes + half * kPanelColumns, 4, span);
      }
    } else {
      constexpr int kLow = Fit::kBits == 8 ? 8 : 4;
      span = put_plane<kLow>(codes, 0, span);
      if constexpr (Fit::kBits > kLow) span = put_plane<Fit::kBits - kLow>(codes, kLow, span);
    }
  }
}

// What a span lost is added: sums over the columns, each block measured by its own largest number, so that
// squares of the smallest and of the largest floats stay within them.
SF_INLINE void add_losses(const float* x, const float* values, int64_t inputs, QuantizingLoss& loss) {
  for (int64_t block = 0; block < inputs;
       block += kBlockInputs, x += kBlockInputs * kPanelColumns, values += kBlockInputs * kPanelColumns) {
    alignas(64) float most[kPanelColumns], missed[kPanelColumns], squares[kPanelColumns];
    for (int64_t column = 0; column < kPanelColumns; column += kLanes<float>) {
      const Lanes largest = magnitude(farthest(x + column, kBlockInputs));
      const Lanes inverse = smaller(divide(Lanes(1.0f), largest), Lanes(0x1p126f));
      Lanes lost(0.0f), all(0.0f);
      for (int64_t k = 0; k < kBlockInputs; ++k) {
        const Lanes number = load(x + k * kPanelColumns + column);
        const Lanes a = number * inverse;
        const Lanes b = (load(values + k * kPanelColumns + column) - number) * inverse;
        all = all + a * a, lost = lost + b * b;
      }
      store(most + column, largest), store(missed + column, lost), store(squares + column, all);
    }
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const double size = static_cast<double>(most[c]) * static_cast<double>(most[c]);
      loss.missed += static_cast<double>(missed[c]) * size;
      loss.squares += static_cast<double>(squares[c]) * size;
      loss.largest = most[c] > loss.largest ? most[c] : loss.largest;
    }
  }
}

// Rows of a weight, one a column -> [inputs][16] floats
SF_INLINE void stage_span(const PackArgs& w, int64_t panel, int64_t first, int64_t inputs, float* x) {
  const int64_t column = panel * kPanelColumns, columns = clamp_to(w.columns - column, 0, kPanelColumns);
  with_storage_of<float>(w.dtype, [&](auto type) {
    using T = decltype(type);
    const char* rows = w.weight + column * w.row_stride + first * static_cast<int64_t>(sizeof(T));
    pack_panel<T>(rows, w.row_stride, columns, inputs, x);
  });
}

// An entry of the table.
inline void quantize_weight(const QuantizeWeightArgs& args, int64_t begin, int64_t end) noexcept {
  const QuantizedFormat& format = *args.format;
  const int64_t depth = args.weight.depth;
  alignas(64) float x[kSpanInputs * kPanelColumns], values[kSpanInputs * kPanelColumns];
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t column = panel * kPanelColumns, first = column % kSliceColumns;
    auto* span =
        reinterpret_cast<uint8_t*>(args.weight.panels) + column / kSliceColumns * slice_bytes(format, depth);
    QuantizingLoss loss{0, 0, 0};
    for (int64_t k = 0; k < depth; k += kSpanInputs) {
      const int64_t inputs = min_of(depth - k, kSpanInputs);
      stage_span(args.weight, panel, k, inputs, x);
      with_fit(format, [&](auto fit) { quantize_span<decltype(fit)>(x, inputs, format, first, span); });
      dequantize_span(format, span, inputs, {first, kPanelColumns}, values);
      add_losses(x, values, inputs, loss);
      span += span_bytes(format, inputs);
    }
    args.losses[panel] = loss;
  }
}

}  // namespace simdformer::SF_ISA
