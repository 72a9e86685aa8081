// softmax: y = e^((x - max x) / temperature) / sum     x, y: (rows, n), y may be x
//
// Arithmetic and sum in float32 (float64 for float64), maximum and sum with 4 accumulators, one rounding at
// the store. NaN or +inf in a row makes all of it NaN, and so does a row of -inf, as in PyTorch.
#pragma once

#include "base/kernel_table.hpp"
#include "kernels/exp.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

// e^((x - highest) / temperature), up to a factor. A division, because a product with 1 / temperature is not as
// exact; none for 1.
template <class A, bool divides>
struct Exponential {
  Vec<A> highest, temperature;

  SF_INLINE Vec<A> operator()(Vec<A> x) const {
    const Vec<A> above = x - highest;
    if constexpr (divides)
      return softmax_exp(divide(above, temperature));
    else
      return softmax_exp(above);
  }
};

// The highest numbers of a row. A NaN is passed over here; e^NaN meets it again.
template <class T>
SF_INLINE Vec<Acc<T>> highest_of(const T* row, int64_t n) {
  using V = Vec<Acc<T>>;
  const auto higher = [](V a, V x) { return larger(x, a); };
  return fold_row(row, n, V(-std::numeric_limits<Acc<T>>::infinity()), higher, higher);
}

// out = f(in), and its sum: the bits that sum_row would give for out, without another pass over it. `highest`
// becomes that of the row `next`, which is as long: exponentials leave time to find it, and it is prefetched to
// `goal`. (A function of its own: with sanitizers the caller takes many minutes to compile otherwise.)
template <class A, class In, class F>
__attribute__((noinline)) A map_and_sum(A* out, const In* in, const In* next, int64_t n, Vec<A>& highest,
                                        Cache goal, F f) {
  using V = Vec<A>;
  constexpr int64_t W = kLanes<A>;
  TreeSum<V> total;
  V most(-std::numeric_limits<A>::infinity());  // in a register: `highest` lies in memory
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = n - begin < kSumBlock ? n : begin + kSumBlock;
    V sum[4] = {V(A(0)), V(A(0)), V(A(0)), V(A(0))};
    const auto map = [&](int64_t i, V& sum) __attribute__((always_inline)) {
      const V y = f(load(in + i));
      prefetch_to(goal, reinterpret_cast<const char*>(next + i) + kSoftmaxBytesAhead);
      most = larger(load(next + i), most);
      store(out + i, y);
      sum = sum + y;
    };
    int64_t i = begin;
    for (; i + 4 * W <= end; i += 4 * W) {
      map(i, sum[0]);
      map(i + W, sum[1]);
      map(i + 2 * W, sum[2]);
      map(i + 3 * W, sum[3]);
    }
    for (; i + W <= end; i += W) map(i, sum[0]);
    if (i < end) {
      const V y = f(load_part(in + i, end - i));
      const V last = larger(load_part(next + i, end - i), most);
      store_part(out + i, end - i, y);
      sum[1] = first_lanes(end - i, V(sum[1] + y), sum[1]);
      most = first_lanes(end - i, last, most);
    }
    total.add((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  highest = most;
  return sum_lanes(total.total());
}

constexpr int64_t kSoftmaxStage = 4096;  // 16 KiB of stack

// Returns the highest numbers of the row `next`.
template <class T, class F>
__attribute__((noinline)) Vec<Acc<T>> softmax_row(const T* x, T* out, const T* next, int64_t n,
                                                  bool past_caches, Cache goal, F f) {
  using A = Acc<T>;
  using V = Vec<A>;
  constexpr bool kRounds = sizeof(T) != sizeof(A);
  V highest;
  if (n <= kSoftmaxStage && (kRounds || past_caches)) {  // exponentials wait as they are
    alignas(64) A stage[kSoftmaxStage];
    const V scale(A(1) / map_and_sum(static_cast<A*>(stage), x, next, n, highest, goal, f));
    write_row(past_caches, out, n, 0, [&](V e) { return V(e * scale); }, static_cast<const A*>(stage));
  } else if constexpr (kRounds) {  // or are taken twice
    const V scale(A(1) / sum_row(x, n, [&](V sum, V x) { return V(sum + f(x)); }));
    write_row(past_caches, out, n, 0, [&](V x) { return V(f(x) * scale); }, x);
    highest = highest_of(next, n);
  } else {  // or wait in the output
    const V scale(A(1) / map_and_sum(out, x, next, n, highest, goal, f));
    map_row<4>(out, n, [&](V e) { return V(e * scale); }, static_cast<const T*>(out));
  }
  return highest;
}

template <class T>
void softmax_rows(const SoftmaxArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<A>;
  const int64_t n = args.x.length;
  // Kept in the accumulator's range: 0 / 0 and inf / inf would be NaN.
  constexpr double kLowest = std::numeric_limits<A>::min(), kHighest = std::numeric_limits<A>::max();
  const double t = args.temperature;
  const A temperature = static_cast<A>(t < kLowest ? kLowest : t > kHighest ? kHighest : t);
  RowCursor x(args.x, begin), next(x), out(args.out, begin);
  V highest = highest_of(x.template as<const T>(), n);
  for (int64_t row = begin; row < end; ++row, x.next(), out.next()) {
    if (row + 1 < end) next.next();  // the last row looks at itself
    const auto normalise = [&](auto exponential) __attribute__((always_inline)) {
      return softmax_row(x.template as<const T>(), out.template as<T>(), next.template as<const T>(), n,
                         args.past_caches, args.goal, exponential);
    };
    const V most(max_lanes(highest));
    if (temperature == A(1))
      highest = normalise(Exponential<A, false>{most, V(temperature)});
    else
      highest = normalise(Exponential<A, true>{most, V(temperature)});
  }
  if (args.past_caches) finish_streams();
}

inline void softmax(const SoftmaxArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) { softmax_rows<decltype(x)>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
