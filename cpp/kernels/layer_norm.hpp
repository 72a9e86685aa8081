// layer_norm: y = (x - mean) / sqrt(var + eps) * weight + bias     x, y: (rows, n), y may be x
//             var = mean((x - mean)^2)                             weight, bias: (n) or none
//
// The mean is subtracted before squares are taken: mean(x^2) - mean^2 would lose what the mean and the spread
// differ in. Sums in float32 (float64 for float64) with 4 accumulators, an exact root and an exact division,
// one rounding at the store. weight and bias have the type of that arithmetic.
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

template <class T>
void layer_norm_rows(const LayerNormArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<A>;
  const int64_t n = args.x.length;
  const A *weight = static_cast<const A*>(args.weight), *bias = static_cast<const A*>(args.bias);
  RowCursor x(args.x, begin), out(args.out, begin);
  for (int64_t row = begin; row < end; ++row, x.next(), out.next()) {
    const T* in = x.template as<const T>();
    T* y = out.template as<T>();
    const V mean(sum_row(in, n, [](V sum, V x) { return V(sum + x); }) / static_cast<A>(n));
    const A squares = sum_row(in, n, [&](V sum, V x) { return mul_add(V(x - mean), V(x - mean), sum); });
    const V scale(A(1) / std::sqrt(squares / static_cast<A>(n) + static_cast<A>(args.eps)));
    const auto normed = [&](V x) { return V((x - mean) * scale); };
    if (weight == nullptr && bias == nullptr)
      write_row(args.past_caches, y, n, n, normed, in);
    else if (bias == nullptr)
      write_row(args.past_caches, y, n, n, [&](V x, V w) { return V(normed(x) * w); }, in, weight);
    else if (weight == nullptr)
      write_row(args.past_caches, y, n, n, [&](V x, V b) { return V(normed(x) + b); }, in, bias);
    else
      write_row(
          args.past_caches, y, n, n, [&](V x, V w, V b) { return mul_add(normed(x), w, b); }, in, weight,
          bias);
  }
  if (args.past_caches) finish_streams();
}

inline void layer_norm(const LayerNormArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) { layer_norm_rows<decltype(x)>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
