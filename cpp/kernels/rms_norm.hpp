// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight     x, y: (rows, n), y may be x     weight: (n) or none
//
// Sum of squares in float32 (float64 for float64) with 4 accumulators, an exact root and an exact division,
// one rounding at the store. weight has the type of x or of that
// arithmetic.
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

template <class T, class W>
void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<A>;
  const int64_t n = args.x.length;
  const W* weight = static_cast<const W*>(args.weight);
  RowCursor x(args.x, begin), out(args.out, begin);
  for (int64_t row = begin; row < end; ++row, x.next(), out.next()) {
    const T* in = x.template as<const T>();
    T* y = out.template as<T>();
    const A squares = sum_row(in, n, [](V sum, V x) { return mul_add(x, x, sum); });
    const V scale(A(1) / std::sqrt(squares / static_cast<A>(n) + static_cast<A>(args.eps)));
    if (weight == nullptr)
      write_row(args.past_caches, y, n, n, [&](V x) { return V(x * scale); }, in);
    else
      write_row(args.past_caches, y, n, n, [&](V x, V w) { return V(x * scale * w); }, in, weight);
  }
  if (args.past_caches) finish_streams();
}

inline void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) {
    using T = decltype(x);
    if (args.weight_dtype == args.x.dtype)
      rms_norm_rows<T, T>(args, begin, end);
    else
      rms_norm_rows<T, Acc<T>>(args, begin, end);
  });
}

}  // namespace simdformer::SF_ISA
