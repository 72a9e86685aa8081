// fit_scales: the scale, and the minimum, that bring scale * code - minimum nearest to the numbers of a group
//
// Two rules take turns, from several starts: given scale and minimum each number goes to the nearest code;
// given the codes the best scale and minimum are those of least squares. (Lloyd 1957, "Least squares
// quantization in PCM", with the codes on a line.) Where the scales of a block are small integers times a
// factor, the integers around each are tried, with the codes that they lead to.
//
// Relative RMS error on normal numbers, beside that of llama.cpp's own search (b6290): q4_k 7.01 % (7.13),
// q5_k 3.46 % (3.61), q6_k 1.66 % (1.78).
#pragma once

#include "base/panels.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

using Lanes = Vec<float>;  // of one number of as many columns; the next number lies kPanelColumns on

SF_INLINE Lanes clip(Lanes x, float low, float high) { return smaller(larger(x, Lanes(low)), Lanes(high)); }

// To the nearest integer, even where two are as near; |x| < 2^22.
SF_INLINE Lanes nearest(Lanes x) { return (x + Lanes(0x1.8p23f)) - Lanes(0x1.8p23f); }

// 1 / scale, and 0 of what is 0: all codes of such a group are 0.
SF_INLINE Lanes inverse_of(Lanes scale) {
  return xsimd::select(scale == Lanes(0.0f), Lanes(0.0f), divide(Lanes(1.0f), scale));
}

SF_INLINE Lanes as_half(Lanes x) { return widen_bits(float16{}, narrow_bits(float16{}, x)); }

// The number of a group that lies farthest from zero, with its sign.
SF_INLINE Lanes farthest(const float* x, int count) {
  Lanes most = load(x);
  for (int k = 1; k < count; ++k) {
    const Lanes other = load(x + k * kPanelColumns);
    most = xsimd::select(minus_abs(other) < minus_abs(most), other, most);
  }
  return most;
}

// ---- a scale ----------------------------------------------------------------------------------------------

// What codes of a group come to: sums over it.
struct CodeSums {
  Lanes codes, products, squares;  // of codes, of codes and numbers, of codes and codes
};

template <int count>
SF_INLINE CodeSums sums_of_codes(const float* x, Lanes inverse, Lanes minimum, float first, float last) {
  CodeSums sums{Lanes(0.0f), Lanes(0.0f), Lanes(0.0f)};
  for (int k = 0; k < count; ++k) {
    const Lanes number = load(x + k * kPanelColumns);
    const Lanes code = nearest(clip((number + minimum) * inverse, first, last));
    sums.codes = sums.codes + code;
    sums.products = sums.products + code * number;
    sums.squares = sums.squares + code * code;
  }
  return sums;
}

// The two rules take turns so often, from as many starts: the first scale leaves the codes 4 steps short of
// their last one, the next half a step less, and the last goes beyond it. That is where more of either gain
// less than a thousandth of the error.
constexpr int kFitTurns = 3, kFirstStart = -8, kLastStart = 2;
constexpr float kNoError = std::numeric_limits<float>::max();  // yet
// Integers on either side of a scale that are tried.
constexpr int kNeighbours = 2;

// Codes -half ... half - 1 of 16 numbers.
template <int half>
SF_INLINE Lanes fit_scale(const float* x) {
  const Lanes most = farthest(x, 16);
  Lanes best(0.0f), least(0.0f);
  for (int start = kFirstStart - 1; start < kLastStart; ++start) {
    Lanes scale = divide(most, Lanes(-(static_cast<float>(half) + 0.5f * static_cast<float>(start))));
    for (int turn = 0; turn < kFitTurns; ++turn) {
      const CodeSums sums = sums_of_codes<16>(x, inverse_of(scale), Lanes(0.0f), -half, half - 1);
      scale = sums.products * inverse_of(sums.squares);
      const Lanes error =
          Lanes(0.0f) - scale * sums.products;  // less the squares of x, which are always there
      best = xsimd::select(error < least, scale, best);
      least = smaller(error, least);
    }
  }
  return best;
}

// The integer that serves best as the scale, which is `factor` times it; 16 numbers.
template <int half>
SF_INLINE Lanes fit_integer(const float* x, Lanes factor, Lanes integer) {
  Lanes best = integer, least(kNoError);
  for (int step = -kNeighbours; step <= kNeighbours; ++step) {
    const Lanes tried = clip(integer + Lanes(static_cast<float>(step)), -128, 127), scale = factor * tried;
    const CodeSums sums = sums_of_codes<16>(x, inverse_of(scale), Lanes(0.0f), -half, half - 1);
    const Lanes error = scale * (scale * sums.squares - Lanes(2.0f) * sums.products);
    best = xsimd::select(error < least, tried, best);
    least = smaller(error, least);
  }
  return best;
}

// ---- a scale and a minimum --------------------------------------------------------------------------------

struct Line {
  Lanes scale, minimum;
};

// The sum of (scale * code - minimum - number)^2 over 32 numbers, less the squares of the numbers, which are
// always there; total: of the numbers.
SF_INLINE Lanes error_of(Line line, const CodeSums& sums, Lanes total) {
  const Lanes two(2.0f), &scale = line.scale, &minimum = line.minimum;
  return scale * (scale * sums.squares - two * sums.products) +
         minimum * (Lanes(32.0f) * minimum - two * scale * sums.codes + two * total);
}

// The minimum is not below zero. Codes 0 ... top of 32 numbers.
template <int top>
SF_INLINE Line fit_line(const float* x) {
  Lanes lowest(0.0f), highest = load(x), total(0.0f);
  for (int k = 0; k < 32; ++k) {
    const Lanes number = load(x + k * kPanelColumns);
    lowest = smaller(number, lowest);
    highest = larger(number, highest);
    total = total + number;
  }
  const Lanes count(32.0f), zero(0.0f);
  Line best{zero, zero - lowest};
  Lanes least = error_of(best, CodeSums{zero, zero, zero}, total);  // all codes 0
  for (int start = kFirstStart; start <= kLastStart; ++start) {
    Line line{
        divide(Lanes(highest - lowest), Lanes(static_cast<float>(top) + 0.5f * static_cast<float>(start))),
        zero - lowest};
    for (int turn = 0; turn < kFitTurns; ++turn) {
      const CodeSums sums = sums_of_codes<32>(x, inverse_of(line.scale), line.minimum, 0, top);
      const Lanes spread = count * sums.squares - sums.codes * sums.codes;
      line.scale = (count * sums.products - sums.codes * total) * inverse_of(spread);
      line.minimum = (line.scale * sums.codes - total) * Lanes(1.0f / 32.0f);
      const auto through_zero = line.minimum < zero || line.scale <= zero;
      const Lanes slope = larger(sums.products, zero) * inverse_of(sums.squares);
      line.scale = xsimd::select(through_zero, slope, line.scale);
      line.minimum = xsimd::select(through_zero, zero, line.minimum);
      const Lanes error = error_of(line, sums, total);
      best.scale = xsimd::select(error < least, line.scale, best.scale);
      best.minimum = xsimd::select(error < least, line.minimum, best.minimum);
      least = smaller(error, least);
    }
  }
  return best;
}

// The integers that serve best as scale and minimum, which are `factor` times them; 32 numbers. Each scale is
// tried with two minimums: the one there is, and the one that suits its codes best.
template <int top>
SF_INLINE Line fit_integers(const float* x, Line factor, Line integers) {
  Lanes total(0.0f), least(kNoError);
  for (int k = 0; k < 32; ++k) total = total + load(x + k * kPanelColumns);
  const Lanes inverse_factor = inverse_of(factor.minimum);
  Line best = integers;
  for (int step = -kNeighbours; step <= kNeighbours; ++step) {
    Line tried{clip(integers.scale + Lanes(static_cast<float>(step)), 0, 63), integers.minimum};
    for (int turn = 0; turn < 2; ++turn) {
      const Line line{factor.scale * tried.scale, factor.minimum * tried.minimum};
      const CodeSums sums = sums_of_codes<32>(x, inverse_of(line.scale), line.minimum, 0, top);
      const Lanes error = error_of(line, sums, total);
      best.scale = xsimd::select(error < least, tried.scale, best.scale);
      best.minimum = xsimd::select(error < least, tried.minimum, best.minimum);
      least = smaller(error, least);
      const Lanes minimum = (line.scale * sums.codes - total) * Lanes(1.0f / 32.0f);
      tried.minimum = nearest(clip(minimum * inverse_factor, 0, 63));
    }
  }
  return best;
}

}  // namespace simdformer::SF_ISA
