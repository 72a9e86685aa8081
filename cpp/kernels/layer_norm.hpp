// layer_norm: y = (x - mean) / sqrt(var + eps) * weight + bias     x, y: (rows, n), y may be x
//             var = mean((x - mean)^2)                             weight, bias: (n) or none
//
// The mean is subtracted before squares are taken: mean(x^2) - mean^2 would lose what the mean and the spread
// differ in. Sums in float32 (float64 for float64) with 4 accumulators, an exact root and an exact division,
// one rounding at the store. weight and bias each have x's dtype, or 16 bits beside float32, or float32
// beside 16 bits.
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

template <class T, class W, class B>
void layer_norm_rows(const LayerNormArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<A>;
  const int64_t n = args.x.length;
  const W* weight = static_cast<const W*>(args.weight);
  const B* bias = static_cast<const B*>(args.bias);
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
  with_type(args.x.dtype, [&](auto x) {
    using T = decltype(x);
    const DType weight_dtype = args.weight == nullptr ? args.x.dtype : args.weight_dtype;
    const DType bias_dtype = args.bias == nullptr ? weight_dtype : args.bias_dtype;
    with_parameter_type<T>(weight_dtype, [&](auto weight) {
      with_parameter_type<T>(bias_dtype, [&](auto bias) {
        layer_norm_rows<T, decltype(weight), decltype(bias)>(args, begin, end);
      });
    });
  });
}

}  // namespace simdformer::SF_ISA
