// AdamW, step t from 1, over n numbers:     g = scale gradient     w -= lr weight_decay w
//   m = beta1 m + (1 - beta1) g     v = beta2 v + (1 - beta2) g^2
//   w -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// float32 or float64, one pass: a float32 number takes 16 bytes of reading and 12 of writing. And sums of squares, for
// clipping: float32 in trees, handed on as float64.
#pragma once

#include "base/gradient_args.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

template <class A>
void adamw_pieces(const AdamWArgs& args, int64_t begin, int64_t end) noexcept {
  using V = Vec<A>;
  const auto splat = [](double x) { return V(static_cast<A>(x)); };
  const V scale = splat(args.scale), kept = splat(1 - args.lr * args.weight_decay);
  const V beta1 = splat(args.beta1), beta2 = splat(args.beta2);
  const V rest1 = splat(1 - args.beta1), rest2 = splat(1 - args.beta2);
  const V root = splat(std::sqrt(args.correction2)), eps = splat(args.eps);
  const V step = splat(args.lr / args.correction1);
  A *const weight = static_cast<A*>(args.weight), *const exp_avg = static_cast<A*>(args.exp_avg);
  A* const exp_avg_sq = static_cast<A*>(args.exp_avg_sq);
  const A* const gradient = static_cast<const A*>(args.gradient);
  const int64_t first = begin * args.segment, last = min_of(end * args.segment, args.count);
  const auto update = [&](int64_t place, auto read, auto write) __attribute__((always_inline)) {
    const int64_t i = first + place;
    const V g = read(gradient + i) * scale;
    const V m = mul_add(beta1, read(exp_avg + i), V(rest1 * g));
    const V v = mul_add(beta2, read(exp_avg_sq + i), V(rest2 * g * g));
    const V length = divide(V(xsimd::sqrt(v)), root) + eps;
    write(exp_avg + i, m);
    write(exp_avg_sq + i, v);
    write(weight + i, neg_mul_add(step, divide(m, length), V(read(weight + i) * kept)));
  };
  each_register<A>(last - first, update);
}

inline void adamw(const AdamWArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.dtype == DType::f64)
    adamw_pieces<double>(args, begin, end);
  else
    adamw_pieces<float>(args, begin, end);
}

inline void sum_squares(const SumSquaresArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using V = Vec<Acc<T>>;
    each_piece(
        begin, end, args.x.length, args.segment,
        [&, item = begin](int64_t offset, int64_t n, const char* x) mutable {
          args.sums[item++] = static_cast<double>(sum_row(reinterpret_cast<const T*>(x) + offset, n,
                                                          [](V sum, V x) { return mul_add(x, x, sum); }));
        },
        args.x);
  });
}

}  // namespace simdformer::SF_ISA
