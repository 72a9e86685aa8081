// convert: y = x in another float dtype     x, y: any shape, rows cut into pieces
//
// Every conversion rounds once, to nearest even, float64 to 16 bits included. NaN stays NaN, subnormals are
// kept.
#pragma once

#include "core/dispatch.hpp"
#include "kernels/activation.hpp"
#include "kernels/dtypes.hpp"

namespace simdformer::SF_ISA {

// float64 -> float32, rounded to the odd neighbour when inexact, so that a second rounding to fewer bits is
// right.
SF_INLINE float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  uint32_t bits = bits_of(nearest);
  if (back == value || value != value) return nearest;
  if (std::fabs(back) > std::fabs(value)) --bits;
  return float_of(bits | 1u);
}

template <class Arch, class In, class Out>
SF_INLINE void convert_piece(const In* x, Out* out, int64_t n) {
  constexpr int64_t kStage = 64;
  if constexpr (std::is_same_v<In, double> && std::is_same_v<Out, float>) {
    for (int64_t i = 0; i < n; ++i) {
      double value;
      std::memcpy(&value, x + i, 8);
      const float rounded = static_cast<float>(value);
      std::memcpy(out + i, &rounded, 4);
    }
  } else if constexpr (std::is_same_v<In, double> && sizeof(Out) == 2) {
    float stage[kStage];
    for (int64_t begin = 0; begin < n; begin += kStage) {
      const int64_t length = n - begin < kStage ? n - begin : kStage;
      for (int64_t i = 0; i < length; ++i) {
        double value;
        std::memcpy(&value, x + begin + i, 8);
        stage[i] = round_to_odd(value);
      }
      map_row<Arch>(
          out + begin, length, [](Vec<Arch, float> v) { return v; }, static_cast<const float*>(stage));
    }
  } else if constexpr (std::is_same_v<Out, double> && !std::is_same_v<In, double>) {
    float stage[kStage];
    for (int64_t begin = 0; begin < n; begin += kStage) {
      const int64_t length = n - begin < kStage ? n - begin : kStage;
      map_row<Arch>(static_cast<float*>(stage), length, [](Vec<Arch, float> v) { return v; }, x + begin);
      for (int64_t i = 0; i < length; ++i) {
        const double wide = static_cast<double>(stage[i]);
        std::memcpy(out + begin + i, &wide, 8);
      }
    }
  } else {
    map_row<Arch>(out, n, [](Vec<Arch, Acc<Out>> v) { return v; }, x);
  }
}

template <class Arch>
void convert(const ConvertArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto from) {
    with_type(args.out.dtype, [&](auto to) {
      using In = decltype(from);
      using Out = decltype(to);
      for_each_piece(
          begin, end, args.x.length, args.segment,
          [&](int64_t offset, int64_t n, const char* x, char* out) {
            convert_piece<Arch>(reinterpret_cast<const In*>(x) + offset, reinterpret_cast<Out*>(out) + offset,
                                n);
          },
          args.x, args.out);
    });
  });
}

}  // namespace simdformer::SF_ISA
