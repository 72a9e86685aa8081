// y = h weight (+ bias), g = dy weight, all over rows of n numbers:
//   rms_norm     h = x r,            r = 1 / sqrt(mean(x^2) + eps)     dx = r (g - h mean(g h))
//   layer_norm   h = (x - mean) r,   r = 1 / sqrt(var + eps)           dx = r (g - mean(g) - h mean(g h))
//   d weight = sum dy h, d bias = sum dy over all rows
//
// r and the mean are computed again from x, as the forward does; nothing else is kept of it. Arithmetic and sums
// in float32 (float64 for float64). Sums over rows are partial ones, of kGradientRows rows each.
#pragma once

#include "base/gradient_args.hpp"
#include "kernels/counts.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

// What a row is read for once its mean is known: the sums of g, of g x and of x^2, with x less the mean.
template <class V>
struct NormSums {
  using value_type = typename V::value_type;
  V g, along, squares;

  NormSums() = default;
  SF_INLINE NormSums(V g, V along, V squares) : g(g), along(along), squares(squares) {}
  SF_INLINE explicit NormSums(value_type all) : g(all), along(all), squares(all) {}
};
template <class V>
SF_INLINE NormSums<V> operator+(NormSums<V> a, NormSums<V> b) {
  return {V(a.g + b.g), V(a.along + b.along), V(a.squares + b.squares)};
}
template <class V>
SF_INLINE NormSums<V> first_lanes(int64_t n, NormSums<V> x, NormSums<V> other) {
  return {first_lanes(n, x.g, other.g), first_lanes(n, x.along, other.along),
          first_lanes(n, x.squares, other.squares)};
}

// Rows that are written together. Four share more loads, and lose a fifth where rows come from the last cache (Zen 4).
constexpr int kNormRows = 2;

// A row and what its gradient takes of all its elements. dx may be dy or x.
template <class T>
struct NormRow {
  using V = Vec<Acc<T>>;
  const T *dy, *x;
  T* dx;
  V mean, mean_g, scale, along;  // along: h mean(g h) = (x - mean) along
};

template <class V, class... W>
SF_INLINE V norm_gradient(V dy, W... weight) {  // g
  return V((dy * ... * weight));
}

template <bool centred, class T, class... Weight>
SF_INLINE void read_norm_row(int64_t n, Acc<T> eps, NormRow<T>& row, const Weight*... weight) {
  using A = Acc<T>;
  using V = Vec<A>;
  const auto mean_of = [&](A sum) { return sum / static_cast<A>(n); };
  V mean(A(0));
  if constexpr (centred) mean = V(mean_of(sum_row(row.x, n, [](V sum, V x) { return V(sum + x); })));
  const auto add = [&](NormSums<V> sums, V dy, V x, auto... w) {
    const V g = norm_gradient(dy, w...), own = centred ? V(x - mean) : x;
    return NormSums<V>{centred ? V(sums.g + g) : sums.g, mul_add(g, own, sums.along),
                       mul_add(own, own, sums.squares)};
  };
  const NormSums<V> sums = sums_of_row<NormSums<V>>(row.dy, n, add, row.x, weight...);
  const A r = A(1) / std::sqrt(mean_of(sum_lanes(sums.squares)) + eps);
  row.mean = mean;
  row.mean_g = V(centred ? mean_of(sum_lanes(sums.g)) : A(0));
  row.scale = V(r);
  row.along = V(mean_of(sum_lanes(sums.along)) * r * r);
}

// Some rows, which add to the sums over rows one after the other. All that is read of dy and x at a place is read
// before it is written. Those of the next rows are prefetched, as if they lay behind these side by side.
template <bool centred, int count, class T, class... Weight>
SF_INLINE void write_norm_rows(int64_t n, const NormRow<T>* rows, const T* next_dy, const T* next_x,
                               Acc<T>* d_weight, Acc<T>* d_bias, const Weight*... weight) {
  using A = Acc<T>;
  using V = Vec<A>;
  NormRow<T> row[count];
  SF_UNROLL for (int r = 0; r < count; ++r) row[r] = rows[r];
  const auto write_all = [&](int64_t i, auto read, auto write) __attribute__((always_inline)) {
    V of_weight(A(0)), of_bias(A(0));
    if (d_weight != nullptr) of_weight = read(d_weight + i);
    if (d_bias != nullptr) of_bias = read(d_bias + i);
    const auto add = [&](auto... w) __attribute__((always_inline)) {
      SF_UNROLL for (int r = 0; r < count; ++r) {
        const int64_t ahead = i * count + r * kLanes<A>;
        __builtin_prefetch(next_dy + ahead, 0, 2), __builtin_prefetch(next_x + ahead, 0, 2);
        const V y = read(row[r].dy + i), x = read(row[r].x + i), own = centred ? V(x - row[r].mean) : x;
        const V all = norm_gradient(y, w...), g = centred ? V(all - row[r].mean_g) : all;
        of_weight = mul_add(y, V(own * row[r].scale), of_weight);
        of_bias = of_bias + y;
        write(row[r].dx + i, V(row[r].scale * neg_mul_add(own, row[r].along, g)));
      }
    };
    add(read(weight + i)...);
    if (d_weight != nullptr) write(d_weight + i, of_weight);
    if (d_bias != nullptr) write(d_bias + i, of_bias);
  };
  each_register<A>(n, write_all);
}

template <class T, bool centred>
void norm_backward_blocks(const NormBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  const int64_t n = args.x.length;
  const A eps = static_cast<A>(args.eps);
  const A* const weight = static_cast<const A*>(args.weight);
  const auto partial = [&](void* sums, int64_t block) -> A* {
    if (sums == nullptr) return nullptr;
    A* const own = static_cast<A*>(sums) + block * n;
    std::memset(own, 0, static_cast<size_t>(n) * sizeof(A));
    return own;
  };
  const int64_t first = begin * kGradientRows;
  RowCursor grad(args.grad, first), x(args.x, first), out(args.out, first);
  for (int64_t block = begin; block < end; ++block) {
    A *const d_weight = partial(args.d_weight, block), *const d_bias = partial(args.d_bias, block);
    const int64_t last = min_of((block + 1) * kGradientRows, args.x.count);
    for (int64_t row = block * kGradientRows, count; row < last; row += count) {
      count = last - row >= kNormRows ? kNormRows : 1;
      const auto of_rows = [&](const auto*... weight) {
        NormRow<T> rows[kNormRows];
        for (int64_t r = 0; r < count; ++r, grad.next(), x.next(), out.next()) {
          rows[r].dy = grad.template as<const T>();
          rows[r].x = x.template as<const T>();
          rows[r].dx = out.template as<T>();
          read_norm_row<centred>(n, eps, rows[r], weight...);
        }
        const auto write = [&](auto together) {
          write_norm_rows<centred, decltype(together)::value>(
              n, rows, grad.template as<const T>(), x.template as<const T>(), d_weight, d_bias, weight...);
        };
        count == kNormRows ? write(Count<kNormRows>()) : write(Count<1>());
      };
      weight != nullptr ? of_rows(weight) : of_rows();
    }
  }
}

inline void norm_backward(const NormBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto x) {
    using T = decltype(x);
    if (args.centred)
      norm_backward_blocks<T, true>(args, begin, end);
    else
      norm_backward_blocks<T, false>(args, begin, end);
  });
}

// out[b] (+)= the sum of some rows of x, in order
inline void sum_rows(const SumRowsArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using A = Acc<T>;
    using V = Vec<A>;
    const int64_t n = args.x.length;
    for (int64_t b = begin; b < end; ++b) {
      A* const out =
          static_cast<A*>(args.out) + (args.targets != nullptr ? args.targets[b] : b) * args.stride;
      if (!args.accumulate) std::memset(out, 0, static_cast<size_t>(n) * sizeof(A));
      RowCursor row(args.x, args.places != nullptr ? 0 : args.starts[b]);
      for (int64_t i = args.starts[b]; i < args.starts[b + 1]; ++i) {
        if (args.places != nullptr) row = RowCursor(args.x, args.places[i]);
        map_row(
            out, n, [](V sum, V x) { return V(sum + x); }, static_cast<const A*>(out),
            row.template as<const T>());
        if (args.places == nullptr) row.next();
      }
    }
  });
}

}  // namespace simdformer::SF_ISA
