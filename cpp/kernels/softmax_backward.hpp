// softmax from its output p:         dx = p (dp - sum(p dp)) / temperature
// log_softmax                        y = x - max x - log sum e^(x - max x)
//   and backwards from its output:   dx = dy - e^y sum(dy)
//
// x, y, dx: (rows, n), dx may be one of the inputs. Arithmetic and sums in float32 (float64 for float64), one
// rounding at the store.
#pragma once

#include "base/gradient_args.hpp"
#include "base/tuning.hpp"
#include "kernels/exp.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

// dx = f(dy, y) over a row, while the next one is prefetched.
template <class T, class F>
SF_INLINE void write_softmax_row(T* dx, int64_t n, const T* dy, const T* y, const T* next_dy, const T* next_y,
                                 F f) {
  constexpr int64_t kStep = 2 * kLanes<Acc<T>>;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    __builtin_prefetch(next_dy + i, 0, 2), __builtin_prefetch(next_y + i, 0, 2);
    map_row<2>(dx + i, kStep, f, dy + i, y + i);
  }
  map_row(dx + i, n - i, f, dy + i, y + i);
}

template <class T>
void softmax_backward_rows(const SoftmaxBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<A>;
  const int64_t n = args.grad.length;
  const V scale(static_cast<A>(1 / args.temperature));
  const bool ahead = n * static_cast<int64_t>(sizeof(T)) <= kMostBytesAhead;
  RowCursor grad(args.grad, begin), y(args.y, begin), out(args.out, begin);
  for (int64_t row = begin; row < end; ++row, out.next()) {
    const T *dy = grad.template as<const T>(), *of = y.template as<const T>();
    T* dx = out.template as<T>();
    grad.next(), y.next();
    const auto write = [&](auto f) {
      if (ahead)
        write_softmax_row(dx, n, dy, of, grad.template as<const T>(), y.template as<const T>(), f);
      else
        map_row<2>(dx, n, f, dy, of);
    };
    if (args.is_log) {
      const V sum(sum_row(dy, n, [](V sum, V dy) { return V(sum + dy); }));
      write([&](V dy, V y) { return neg_mul_add(vec_exp(y), sum, dy); });
    } else {
      const V sum(dot_row(dy, of, n));
      if (args.temperature == 1)
        write([&](V dy, V p) { return V(p * (dy - sum)); });
      else
        write([&](V dy, V p) { return V(p * (dy - sum) * scale); });
    }
  }
}

inline void softmax_backward(const SoftmaxBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.grad.dtype, [&](auto x) { softmax_backward_rows<decltype(x)>(args, begin, end); });
}

// The highest number of a row, and the logarithm of the sum of e^(x - highest); f is applied to x first. A row
// of -inf has a sum of 0, and one that holds NaN or +inf gives NaN.
template <class T, class F>
SF_INLINE Pair<Acc<T>> log_sum_exp(const T* x, int64_t n, F f) {
  using A = Acc<T>;
  using V = Vec<A>;
  const auto higher = [](V a, V b) { return larger(b, a); };
  const V most = fold_row(
      x, n, V(-std::numeric_limits<A>::infinity()), [&](V a, V x) { return larger(f(x), a); }, higher);
  const A highest = max_lanes(most);
  const V shift(highest);
  const A sum = sum_row(x, n, [&](V sum, V x) { return V(sum + vec_exp(V(f(x) - shift))); });
  return {highest, std::log(sum)};
}

template <class T>
void log_softmax_rows(const LogSoftmaxArgs& args, int64_t begin, int64_t end) noexcept {
  using V = Vec<Acc<T>>;
  const int64_t n = args.x.length;
  RowCursor x(args.x, begin), out(args.out, begin);
  for (int64_t row = begin; row < end; ++row, x.next(), out.next()) {
    const T* in = x.template as<const T>();
    const auto [highest, log_sum] = log_sum_exp(in, n, [](V x) { return x; });
    const V shift(highest), rest(log_sum);
    map_row(out.template as<T>(), n, [&](V x) { return V(V(x - shift) - rest); }, in);
  }
}

inline void log_softmax(const LogSoftmaxArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) { log_softmax_rows<decltype(x)>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
