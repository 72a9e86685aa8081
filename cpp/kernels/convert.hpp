// convert: y = x in another float dtype     x, y: any shape, rows cut into pieces
//
// Each rounds once, to nearest even, float64 to 16 bits included. NaN stays NaN, subnormals are kept.
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

// float64 -> float32, to the odd neighbour when inexact, so that a second rounding to fewer bits is right.
SF_INLINE float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  uint32_t bits = bits_of(nearest);
  if (back == value || value != value) return nearest;
  if (std::fabs(back) > std::fabs(value)) --bits;
  return float_of(bits | 1u);
}

template <class In, class Out>
SF_INLINE void convert_piece(const In* x, Out* out, int64_t n) {
  const auto same = [](auto v) { return v; };
  if constexpr (std::is_same_v<Acc<In>, Acc<Out>>) {
    map_row(out, n, same, x);
  } else {  // between float and double, whose batches differ in length: by way of the stack
    constexpr int64_t kStage = 64;
    alignas(64) Acc<In> from[kStage];
    alignas(64) Acc<Out> to[kStage];
    for (; n > 0; n -= kStage, x += kStage, out += kStage) {
      const int64_t length = n < kStage ? n : kStage;
      map_row(from, length, same, x);
      for (int64_t i = 0; i < length; ++i) {
        if constexpr (std::is_same_v<In, double> && sizeof(Out) == 2)
          to[i] = round_to_odd(from[i]);
        else
          to[i] = static_cast<Acc<Out>>(from[i]);
      }
      map_row(out, length, same, to);
    }
  }
}

inline void convert(const ConvertArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto from) {
    with_type(args.out.dtype, [&](auto to) {
      using In = decltype(from);
      using Out = decltype(to);
      const auto piece = [&](int64_t offset, int64_t n, const char* x, char* out) {
        convert_piece(reinterpret_cast<const In*>(x) + offset, reinterpret_cast<Out*>(out) + offset, n);
      };
      if constexpr (!std::is_same_v<In, Out>)
        each_piece(begin, end, args.x.length, args.segment, piece, args.x, args.out);
    });
  });
}

}  // namespace simdformer::SF_ISA
