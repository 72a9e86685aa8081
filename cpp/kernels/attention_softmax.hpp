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

#include "kernels/attention_heads.hpp"
#include "kernels/exp.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

template <class A>
constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();

template <class A>
SF_INLINE A exp_of(A x) {
  return first_lane(vec_exp(Vec<A>(x)));
}

template <class T>
SF_INLINE Acc<T> element(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return widen(value);
}

// Where scores are kept for those who asked: for the weights, until they take their place.
template <class A>
SF_INLINE A* kept_scores(const AttentionArgs& args, const Head& head, int64_t i, int64_t g) {
  const Attention& call = *args.call;
  return reinterpret_cast<A*>(head.scores ? row_of(call.scores, head.scores, i, g)
                                          : row_of(call.weights, head.weights, i, g));
}

// ---- strips -----------------------------------------------------------------------------------------------

template <class A>
struct Sums {
  A* out;  // (rows, pitch): sum of exp(s - m) v, zeros past the last column
  int64_t pitch;
  A* highest;  // (rows): m
  A* total;    // (rows): l

  SF_INLINE Sums at(int64_t row) const { return {out + row * pitch, pitch, highest + row, total + row}; }
};

// Sums of `rows` rows in memory of sums_size(args, rows) elements.
template <class A>
SF_INLINE Sums<A> sums_in(A* memory, const AttentionArgs& args, int64_t rows) {
  const int64_t pitch = whole_panels(args.value_depth);
  A* highest = memory + rows * pitch;
  return {memory, pitch, highest, highest + whole_panels(rows)};
}

template <class A>
SF_INLINE void clear(const Sums<A>& sums, int64_t rows) {
  std::memset(sums.out, 0, static_cast<size_t>(rows * sums.pitch) * sizeof(A));
  for (int64_t r = 0; r < rows; ++r) sums.highest[r] = kMinusInfinity<A>, sums.total[r] = A(0);
}

// Some queries of a head, all their rows, against the keys first_key + [0, keys).
template <class A>
struct Strip {
  int64_t first, queries;
  int64_t first_key, keys;
  KeyRange columns;  // that some row sees; what is read of `scores` afterwards
  A* scores;         // (rows, pitch): q.k, which becomes exp(s - m)
  int64_t pitch;
  Sums<A> sums;
};

template <class A>
SF_INLINE void fill(A* row, int64_t begin, int64_t end, A value) {
  for (int64_t j = begin; j < end; ++j) row[j] = value;
}

// f(query, head of the group, row) for all rows of some queries
template <class F>
SF_INLINE void each_row(const AttentionArgs& args, int64_t first, int64_t queries, F f) {
  int64_t r = 0;
  for (int64_t i = first; i < first + queries; ++i)
    for (int64_t g = 0; g < args.group; ++g, ++r) f(i, g, r);
}

// rows (i, g) = query * scale, as sums of type A, zeros in what is left of the last panel
template <class A>
void scale_queries(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries, A* rows,
                   int64_t pitch) noexcept {
  const View& query = args.call->query;
  const Vec<A> scale(static_cast<A>(args.call->scale));
  with_storage_of<A>(query.dtype, [&](auto type) {
    using Q = decltype(type);
    each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t r) {
      A* row = rows + r * pitch;
      const Q* q = reinterpret_cast<const Q*>(row_of(&query, head.query, i, g));
      map_row(row, args.depth, [&](auto x) { return x * scale; }, q);
      fill(row, args.depth, whole_panels(args.depth), A(0));
    });
  });
}

// rows (i, g) = query as it is, for keys that are multiplied in pairs; zeros up to the pitch
SF_INLINE void copy_queries(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries,
                            bfloat16* rows, int64_t pitch) {
  each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t r) {
    bfloat16* row = rows + r * pitch;
    std::memcpy(row, row_of(&args.call->query, head.query, i, g), static_cast<size_t>(args.depth) * 2);
    std::memset(row + args.depth, 0, static_cast<size_t>(pitch - args.depth) * 2);
  });
}

// One or the other, in `rows` that are `pitch` elements of A apart.
template <class A>
SF_INLINE void prepare_queries(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries,
                               A* rows, int64_t pitch) {
  if (args.pairs)
    copy_queries(args, head, first, queries, reinterpret_cast<bfloat16*>(rows), 2 * pitch);
  else
    scale_queries(args, head, first, queries, rows, pitch);
}

// A row of the mask as A: what is added, or for a boolean mask 0 where a key is seen and -inf where it is
// not. Finite float64 values beyond float32's range stay finite.
template <class A>
SF_INLINE void stage_mask(const View& mask, const char* row, KeyRange span, A* stage) {
  const int64_t step = mask.strides[mask.rank - 1];
  if (mask.dtype == DType::boolean) {
    for (int64_t j = span.begin; j < span.end; ++j) stage[j] = row[j * step] ? A(0) : kMinusInfinity<A>;
    return;
  }
  with_type(mask.dtype, [&](auto type) {
    for (int64_t j = span.begin; j < span.end; ++j) {
      auto value = element<decltype(type)>(row + j * step);
      if constexpr (sizeof(value) > sizeof(A)) {
        constexpr A kMost = std::numeric_limits<A>::max();
        if (value - value == 0) value = value < -kMost ? -kMost : value > kMost ? kMost : value;
      }
      stage[j] = static_cast<A>(value);
    }
  });
}

// row[j] = f(row[j], j) for whole vectors
template <class A, class F>
SF_INLINE void each_vector(A* row, int64_t begin, int64_t end, F f) {
  for (int64_t j = begin; j < end; j += kLanes<A>) store(row + j, f(load(row + j), j));
}

// -inf in those columns of a row that are not seen.
template <class A>
SF_INLINE void hide(A* row, KeyRange columns, KeyRange seen) {
  constexpr int64_t W = kLanes<A>;
  const Vec<A> none(kMinusInfinity<A>);
  each_vector(row, columns.begin, seen.begin,
              [&](Vec<A> s, int64_t j) { return first_lanes(min_of(seen.begin - j, W), none, s); });
  each_vector(row, seen.end / W * W, columns.end,
              [&](Vec<A> s, int64_t j) { return first_lanes(max_of(seen.end - j, 0), s, none); });
}

// q.k of a row -> scores as softmax reads them: with softcap and mask, -inf where nothing is seen.
template <class A>
SF_INLINE void finish_scores(const AttentionArgs& args, A* s, KeyRange columns, KeyRange seen,
                             const A* mask) {
  using V = Vec<A>;
  const Attention& call = *args.call;
  const V softcap(static_cast<A>(call.softcap)), none(kMinusInfinity<A>), scale(static_cast<A>(call.scale));
  const KeyRange whole{panel_start(seen.begin), whole_panels(seen.end)};
  if (args.pairs) each_vector(s, whole.begin, whole.end, [&](V x, int64_t) { return x * scale; });
  if (call.softcap > 0)
    each_vector(s, whole.begin, whole.end, [&](V x, int64_t) { return softcap * xsimd::tanh(x / softcap); });
  if (mask != nullptr && call.mask->dtype == DType::boolean)
    each_vector(s, whole.begin, whole.end,
                [&](V x, int64_t j) { return xsimd::select(load(mask + j) == V(A(0)), x, none); });
  else if (mask != nullptr)
    each_vector(s, whole.begin, whole.end, [&](V x, int64_t j) { return x + load(mask + j); });
  hide(s, columns, seen);
}

constexpr int64_t kRowsTogether = 16;  // whose m and l are computed in the lanes of registers

// Softmax of up to so many rows so far: the scores in `columns` become exp(s - m); m, l and the sums follow.
template <class A>
SF_INLINE void softmax_so_far(A* scores, int64_t pitch, KeyRange columns, const Sums<A>& sums, int64_t rows) {
  using V = Vec<A>;
  constexpr int64_t W = kLanes<A>;
  const auto higher = [](V a, V b) { return larger(b, a); };  // a where b is NaN
  A shifts[kRowsTogether], factors[kRowsTogether];
  for (int64_t r = 0; r < rows; ++r) {
    const A* row = scores + r * pitch + columns.begin;
    shifts[r] = max_lanes(fold_row(row, columns.end - columns.begin, kMinusInfinity<A>, higher, higher));
  }
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
    if (factors[r] != A(1))
      each_vector(sums.out + r * sums.pitch, 0, sums.pitch, [&](V x, int64_t) { return x * factor; });
  }
}

// q.k of a strip -> exp(s - m), with softcap and mask, 0 where nothing is seen. `stage` holds a row of the
// mask.
template <class A>
void softmax_strip(const AttentionArgs& args, const Head& head, const Strip<A>& strip, A* stage) noexcept {
  const Attention& call = *args.call;
  const KeyRange columns{panel_start(strip.columns.begin), whole_panels(strip.columns.end)};
  const int64_t rows = strip.queries * args.group;
  const char* staged = nullptr;
  each_row(args, strip.first, strip.queries, [&](int64_t i, int64_t g, int64_t r) {
    A* s = strip.scores + r * strip.pitch;
    const KeyRange seen = head.visible.of_block(i, strip.first_key, strip.keys);
    if (seen.empty()) return hide(s, columns, {columns.begin, columns.begin});
    const char* mask = row_of(call.mask, head.mask, i, g);
    if (mask != nullptr) {
      mask += strip.first_key * call.mask->strides[call.mask->rank - 1];
      if (g == 0 || mask != staged) stage_mask(*call.mask, mask, seen, stage);
      staged = mask;
    }
    finish_scores(args, s, columns, seen, mask != nullptr ? stage : nullptr);
    if (A* kept = kept_scores<A>(args, head, i, g))
      std::memcpy(kept + strip.first_key + seen.begin, s + seen.begin,
                  static_cast<size_t>(seen.end - seen.begin) * sizeof(A));
  });
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

// Before the first of these keys: what no strip will write.
template <class A>
SF_INLINE void hide_scores(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries,
                           KeyRange keys) {
  if (!head.scores && !head.weights) return;
  each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t) {
    fill(kept_scores<A>(args, head, i, g), keys.begin, keys.end, kMinusInfinity<A>);
  });
}

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

// After the last key: the sink joins, the sums are divided and rounded once.
template <class A>
void finish_rows(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries,
                 const Sums<A>& sums) noexcept {
  using V = Vec<A>;
  const Attention& call = *args.call;
  each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t r) {
    WithSink<A> row{sums.highest[r], sums.total[r], A(1)};
    const bool blind = row.total == A(0);  // the highest score seen alone adds 1
    if (call.sinks != nullptr) row = add_sink(call, head.first + g, row.highest, row.total);
    const V scale(row.factor), divisor(row.total);
    with_storage_of<A>(call.out.dtype, [&](auto type) {
      using Out = decltype(type);
      Out* out = reinterpret_cast<Out*>(row_of(&call.out, head.out, i, g));
      const A* sum = sums.out + r * sums.pitch;
      if (blind)
        std::memset(static_cast<void*>(out), 0, static_cast<size_t>(args.value_depth) * sizeof(Out));
      else
        map_row(out, args.value_depth, [&](V x) { return x * scale / divisor; }, sum);
    });
    if (head.lse != nullptr) {
      const A lse =
          static_cast<A>(static_cast<double>(row.highest) + __builtin_log(static_cast<double>(row.total)));
      const View& view = *call.lse;
      std::memcpy(head.lse + i * view.strides[view.rank - 1] + g * view.strides[view.rank - 2], &lse,
                  sizeof(A));
    }
    if (head.weights != nullptr) {
      A* weights = reinterpret_cast<A*>(row_of(call.weights, head.weights, i, g));
      const A* scores = kept_scores<A>(args, head, i, g);
      const V shift(row.highest == kMinusInfinity<A> ? A(0) : row.highest);
      if (blind)
        std::memset(weights, 0, static_cast<size_t>(args.keys) * sizeof(A));
      else
        map_row(weights, args.keys, [&](V s) { return vec_exp(s - shift) / divisor; }, scores);
    }
  });
}

}  // namespace simdformer::SF_ISA
