// softmax: y = e^((x - max x) / temperature) / sum     x, y: (rows, n), y may be x
//
// Arithmetic and sum in float32 (float64 for float64), maximum and sum with 4 accumulators, one rounding at
// the store. NaN or +inf in a row makes all of it NaN, and so does a row of -inf, as in PyTorch.
#pragma once

#include "core/dispatch.hpp"
#include "kernels/dtypes.hpp"
#include "kernels/exp.hpp"

namespace simdformer::SF_ISA {

// e^((x - highest) / temperature). A division, because a product with 1 / temperature is not as exact; none
// for 1.
template <class Arch, class A, bool divides>
struct Exponential {
  Vec<Arch, A> highest, temperature;

  SF_INLINE Vec<Arch, A> operator()(Vec<Arch, A> x) const {
    const Vec<Arch, A> above = x - highest;
    if constexpr (divides)
      return vec_exp<Arch>(Vec<Arch, A>(above / temperature));
    else
      return vec_exp<Arch>(above);
  }
};

// out = f(in), and the sum of what is in out then. A block is summed while it is in the L1 cache.
template <class Arch, class Out, class In, class F>
SF_INLINE Acc<In> map_and_sum(Out* out, const In* in, int64_t n, F f) {
  using V = Vec<Arch, Acc<In>>;
  const auto add = [](V a, V b) { return V(a + b); };
  TreeSum<V> total;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const int64_t length = n - i < kSumBlock ? n - i : kSumBlock;
    map_row<Arch>(out + i, length, f, in + i);
    total.add(fold_row<Arch>(static_cast<const Out*>(out + i), length, Acc<In>(0), add, add));
  }
  return sum_lanes(total.total());
}

constexpr int64_t kSoftmaxStage = 4096;  // 16 KiB of stack

template <class Arch, class T, class F>
SF_INLINE void softmax_row(const T* x, T* out, int64_t n, F f) {
  using A = Acc<T>;
  using V = Vec<Arch, A>;
  if constexpr (sizeof(T) == sizeof(A)) {  // exponentials wait in the output
    const V scale(A(1) / map_and_sum<Arch>(out, x, n, f));
    map_row<Arch>(out, n, [&](V e) { return V(e * scale); }, static_cast<const T*>(out));
  } else if (n <= kSoftmaxStage) {  // 16 bits would round them: they wait in float32
    alignas(64) A stage[kSoftmaxStage];
    const V scale(A(1) / map_and_sum<Arch>(static_cast<A*>(stage), x, n, f));
    map_row<Arch>(out, n, [&](V e) { return V(e * scale); }, static_cast<const A*>(stage));
  } else {  // or are taken twice
    const V scale(A(1) / sum_row<Arch>(x, n, [&](V sum, V x) { return V(sum + f(x)); }));
    map_row<Arch>(out, n, [&](V x) { return V(f(x) * scale); }, x);
  }
}

template <class Arch, class T>
void softmax_rows(const SoftmaxArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<Arch, A>;
  const int64_t n = args.x.length;
  // Kept in the accumulator's range: 0 / 0 and inf / inf would be NaN.
  constexpr double kLowest = std::numeric_limits<A>::min(), kHighest = std::numeric_limits<A>::max();
  const double t = args.temperature;
  const A temperature = static_cast<A>(t < kLowest ? kLowest : t > kHighest ? kHighest : t);
  RowCursor x(args.x, begin), out(args.out, begin);
  for (int64_t row = begin; row < end; ++row, x.next(), out.next()) {
    const T* in = x.template as<const T>();
    // A NaN in x is passed over here; e^NaN meets it again.
    const auto higher = [](V a, V x) { return larger(x, a); };
    const V highest(max_lanes(fold_row<Arch>(in, n, -std::numeric_limits<A>::infinity(), higher, higher)));
    if (temperature == A(1))
      softmax_row<Arch>(in, out.template as<T>(), n, Exponential<Arch, A, false>{highest, V(temperature)});
    else
      softmax_row<Arch>(in, out.template as<T>(), n, Exponential<Arch, A, true>{highest, V(temperature)});
  }
}

template <class Arch>
void softmax(const SoftmaxArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) { softmax_rows<Arch, decltype(x)>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
