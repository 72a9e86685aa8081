// The part of attention that prefill and decode share: the softmax of a row, and its result.
//
//   s = q.k scale -> softcap tanh(s / softcap) -> + mask        m = max s    l = sum exp(s - m)
//   out = sum exp(s - m) v / l          weights = exp(s - m) / l          lse = m + log l
//
// m, l and the sum run over blocks of keys (online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867);
// where m rises, l and the sum are scaled by exp(m_before - m). A score that is not seen is replaced by -inf,
// never added to; exp(s - m) below the smallest normal number is 0. Arithmetic is float32 (float64 for
// float64). Where the CPU multiplies pairs of bfloat16, bfloat16 queries and keys are multiplied as they are,
// and their scores scaled.
#pragma once

#include "kernels/attention_scores.hpp"
#include "kernels/exp.hpp"

namespace simdformer::SF_ISA {

template <class A>
SF_INLINE A exp_of(A x) {
  return first_lane(vec_exp(Vec<A>(x)));
}

// ---- softmax ----------------------------------------------------------------------------------------------

constexpr int64_t kRowsTogether = 16;  // whose m and l are computed in the lanes of registers

// Softmax of up to this many rows so far: the scores in `columns` become exp(s - m); m, l and the sums follow.
template <class A>
SF_INLINE void softmax_so_far(A* scores, int64_t pitch, KeyRange columns, const Sums<A>& sums, int64_t rows) {
  using V = Vec<A>;
  constexpr int64_t W = kLanes<A>;
  const auto higher = [](V a, V b) { return larger(b, a); };  // a where b is NaN
  A shifts[kRowsTogether], factors[kRowsTogether];
  for (int64_t r = 0; r < rows; ++r) {
    const A* row = scores + r * pitch + columns.begin;
    shifts[r] =
        max_lanes(fold_row(row, columns.end - columns.begin, Vec<A>(kMinusInfinity<A>), higher, higher));
  }
  bool rises = false;
  for (int64_t r = 0; r < rows; r += W) {
    const int64_t n = min_of(rows - r, W);
    const V none(kMinusInfinity<A>), before = load_part(sums.highest + r, n);
    const V highest = larger(load_part(shifts + r, n), before);
    const V shift = larger(highest, V(std::numeric_limits<A>::lowest()));  // -inf - -inf were NaN
    const V factor = xsimd::select(before == none, V(A(1)), weight_exp(before - shift));
    store_part(sums.highest + r, n, highest);
    store_part(sums.total + r, n, load_part(sums.total + r, n) * factor);
    store_part(shifts + r, n, shift);
    store_part(factors + r, n, factor);
    rises |= xsimd::any(first_lanes(n, factor, V(A(1))) != V(A(1)));
  }
  for (int64_t r = 0; r < rows; ++r) {
    const V shift(shifts[r]), factor(factors[r]);
    V sum(A(0));
    each_vector(scores + r * pitch, columns.begin, columns.end, [&](V s, int64_t) {
      const V p = weight_exp(s - shift);
      sum = sum + p;
      return p;
    });
    sums.total[r] += sum_lanes(sum);
    if (rises)
      each_vector(sums.out + r * sums.pitch, 0, sums.pitch, [&](V x, int64_t) { return x * factor; });
  }
}

// q.k of a strip -> exp(s - m), with softcap and mask, 0 where nothing is seen.
template <class A>
void softmax_strip(const AttentionArgs& args, const Head& head, const Strip<A>& strip, A* stage) noexcept {
  const KeyRange columns{panel_start(strip.columns.begin), whole_panels(strip.columns.end)};
  const int64_t rows = strip.queries * args.group;
  if (args.pairs || args.call->softcap > 0 || head.mask || head.scores || head.weights)
    finish_strip(args, head, strip, columns, stage);
  else
    hide_unseen(args, head, strip, columns);
  for (int64_t r = 0; r < rows; r += kRowsTogether)
    softmax_so_far(strip.scores + r * strip.pitch, strip.pitch, columns, strip.sums.at(r),
                   min_of(rows - r, kRowsTogether));
}

// ---- values that are not finite ---------------------------------------------------------------------------

// exp(s - m) is 0 where a key is not seen, but 0 * NaN is not: such values are taken out of the product, as
// zeros, and added afterwards to the rows that do see them.

template <class A>
SF_INLINE bool is_finite(A x) {
  return x - x == A(0);
}

template <class A>
SF_INLINE void remove_non_finite(A* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (!is_finite(values[i])) values[i] = A(0);
}

template <class T>
void add_non_finite(const AttentionArgs& args, const Head& head, const Strip<Acc<T>>& strip) noexcept {
  const View* mask = args.call->mask;
  const bool hides = mask != nullptr && mask->dtype == DType::boolean;
  for (int64_t j = strip.columns.begin; j < strip.columns.end; ++j) {
    const int64_t key = strip.first_key + j;
    const char* v = head.values.row(key);
    bool finite = true;
    for (int64_t d = 0; d < args.value_depth; ++d)
      finite &= is_finite(element<T>(v + d * static_cast<int64_t>(sizeof(T))));
    if (finite) continue;
    int64_t r = 0;
    for (int64_t i = strip.first; i < strip.first + strip.queries; ++i) {
      const KeyRange seen = head.visible.of_block(i, strip.first_key, strip.keys);
      for (int64_t g = 0; g < args.group; ++g, ++r) {
        if (j < seen.begin || j >= seen.end) continue;
        if (hides && !row_of(mask, head.mask, i, g)[key * mask->strides[mask->rank - 1]]) continue;
        for (int64_t d = 0; d < args.value_depth; ++d) {
          const Acc<T> x = element<T>(v + d * static_cast<int64_t>(sizeof(T)));
          if (!is_finite(x))
            strip.sums.out[r * strip.sums.pitch + d] += strip.scores[r * strip.pitch + j] * x;
        }
      }
    }
  }
}

// ---- results ----------------------------------------------------------------------------------------------

// m and l of a row after its sink has joined, and the factor of the sum before.
template <class A>
struct WithSink {
  A highest, total, factor;
};

template <class A>
SF_INLINE WithSink<A> add_sink(const Attention& call, int64_t head, A highest, A total) {
  const A none = kMinusInfinity<A>;
  A sink = none;
  with_storage_of<A>(call.sinks_dtype, [&](auto type) {
    sink = element<decltype(type)>(static_cast<const char*>(call.sinks) +
                                   head * static_cast<int64_t>(sizeof(type)));
  });
  const A before = highest;
  highest = sink > highest ? sink : highest;
  if (highest == none && sink == none) return {highest, total, A(1)};
  const A factor = exp_of(before - highest);
  return {highest, total * factor + exp_of(sink - highest), factor};
}

// After the last key: the sink joins, the sums are multiplied by the reciprocal of l and rounded once.
template <class A>
void finish_rows(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries,
                 const Sums<A>& sums) noexcept {
  using V = Vec<A>;
  const Attention& call = *args.call;
  const auto is_blind = [&](int64_t r) { return sums.total[r] == A(0); };  // the highest score alone adds 1
  const auto with_sink = [&](int64_t g, int64_t r) {
    if (call.sinks == nullptr) return WithSink<A>{sums.highest[r], sums.total[r], A(1)};
    return add_sink(call, head.first + g, sums.highest[r], sums.total[r]);
  };
  with_storage_of<A>(call.out.dtype, [&](auto type) {
    using Out = decltype(type);
    each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t r) {
      const WithSink<A> row = with_sink(g, r);
      const V share(row.factor / row.total);
      Out* out = reinterpret_cast<Out*>(row_of(&call.out, head.out, i, g));
      const A* sum = sums.out + r * sums.pitch;
      if (is_blind(r))
        std::memset(static_cast<void*>(out), 0, static_cast<size_t>(args.value_depth) * sizeof(Out));
      else
        map_row(out, args.value_depth, [&](V x) { return x * share; }, sum);
    });
  });
  if (head.lse != nullptr)
    each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t r) {
      const WithSink<A> row = with_sink(g, r);
      const A lse =
          static_cast<A>(static_cast<double>(row.highest) + __builtin_log(static_cast<double>(row.total)));
      const View& view = *call.lse;
      std::memcpy(head.lse + i * view.strides[view.rank - 1] + g * view.strides[view.rank - 2], &lse,
                  sizeof(A));
    });
  if (head.weights != nullptr)
    each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t r) {
      const WithSink<A> row = with_sink(g, r);
      A* weights = reinterpret_cast<A*>(row_of(call.weights, head.weights, i, g));
      const A* scores = kept_scores<A>(args, head, i, g);
      const V shift(row.highest == kMinusInfinity<A> ? A(0) : row.highest), divisor(row.total);
      if (is_blind(r))
        std::memset(weights, 0, static_cast<size_t>(args.keys) * sizeof(A));
      else
        map_row(weights, args.keys, [&](V s) { return divide(vec_exp(s - shift), divisor); }, scores);
    });
}

}  // namespace simdformer::SF_ISA
