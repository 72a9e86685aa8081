// cross_entropy, forwards and backwards, over rows of V logits z, capped to c = softcap tanh(z / softcap):
//   lse = log sum e^c           loss = lse - (1 - e) c[label] - e mean(c) + z_loss lse^2     (e: label_smoothing)
//   p = e^(c - lse)             dz = scale (p (1 + 2 z_loss lse) - (1 - e) [label] - e / V) (1 - (c / softcap)^2)
//
// Sums in float32 (float64 for float64); lse and loss are float64. At the label p - 1 is computed as such, and is
// not what is left of a rounded p. Rows that do not count have a loss and a gradient of 0. dz may be z.
#pragma once

#include "kernels/softmax_backward.hpp"

namespace simdformer::SF_ISA {

template <class A>
struct Capped {
  Vec<A> softcap;
  bool caps;

  SF_INLINE Vec<A> operator()(Vec<A> z) const {
    return caps ? Vec<A>(softcap * xsimd::tanh(divide(z, softcap))) : z;
  }
  SF_INLINE double of(double z) const {
    const auto cap = static_cast<double>(first_lane(softcap));
    return caps ? cap * std::tanh(z / cap) : z;
  }
};

template <class T>
void cross_entropy_rows(const CrossEntropyArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<A>;
  const int64_t n = args.logits.length;
  const Capped<A> capped{V(static_cast<A>(args.softcap)), args.softcap != 0};
  RowCursor logits(args.logits, begin);
  for (int64_t row = begin; row < end; ++row, logits.next()) {
    const T* z = logits.template as<const T>();
    const auto [highest, log_sum] = log_sum_exp(z, n, capped);
    const double lse = static_cast<double>(highest) + static_cast<double>(log_sum);
    args.lse[row] = lse;
    const int64_t label = args.labels[row];
    if (label < 0) {
      args.loss[row] = 0;
      continue;
    }
    double loss = lse - (1 - args.label_smoothing) * capped.of(static_cast<double>(element<T>(z + label)));
    if (args.label_smoothing != 0)
      loss -= args.label_smoothing *
              static_cast<double>(sum_row(z, n, [&](V sum, V x) { return V(sum + capped(x)); })) /
              static_cast<double>(n);
    args.loss[row] = loss + args.z_loss * lse * lse;
  }
}

inline void cross_entropy(const CrossEntropyArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.logits.dtype, [&](auto x) { cross_entropy_rows<decltype(x)>(args, begin, end); });
}

template <class T>
void cross_entropy_backward_rows(const CrossEntropyArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  using V = Vec<A>;
  const int64_t n = args.logits.length;
  const Capped<A> capped{V(static_cast<A>(args.softcap)), args.softcap != 0};
  const double uniform = args.label_smoothing / static_cast<double>(args.vocabulary);
  RowCursor logits(args.logits, begin), out(args.out, begin);
  for (int64_t row = begin; row < end; ++row, logits.next(), out.next()) {
    const T* z = logits.template as<const T>();
    T* dz = out.template as<T>();
    const int64_t label = args.labels[row];
    const double scale = args.scales != nullptr ? args.scales[row] : args.scale;
    if (label == kNotCounted) {
      map_row(dz, n, [](V) { return V(A(0)); }, z);
      continue;
    }
    const double lse = args.lse[row], more = 2 * args.z_loss * lse;
    // At the label, before its place is taken: dz may be z.
    double slope = 0;
    if (label >= 0) {
      const double c = capped.of(static_cast<double>(element<T>(z + label)));
      slope = std::expm1(c - lse) * (1 + more) + more + args.label_smoothing - uniform;
      if (capped.caps) slope *= 1 - (c / args.softcap) * (c / args.softcap);
    }
    const V shift(static_cast<A>(lse)), times(static_cast<A>(scale * (1 + more))),
        less(static_cast<A>(scale * uniform));
    if (capped.caps)
      map_row(
          dz, n,
          [&](V z) {
            const V t = xsimd::tanh(divide(z, capped.softcap)), c = capped.softcap * t;
            return V((vec_exp(V(c - shift)) * times - less) * neg_mul_add(t, t, V(A(1))));
          },
          z);
    else
      map_row<2>(dz, n, [&](V z) { return V(vec_exp(V(z - shift)) * times - less); }, z);
    if (label < 0) continue;
    const A value = static_cast<A>(scale * slope);
    map_row(dz + label, 1, [&](V) { return V(value); }, static_cast<const T*>(dz + label));
  }
}

inline void cross_entropy_backward(const CrossEntropyArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.logits.dtype, [&](auto x) { cross_entropy_backward_rows<decltype(x)>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
