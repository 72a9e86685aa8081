// attention: the rows of a head that pass together, and their scores, from q.k to what the softmax reads
// (formulas: attention_softmax.hpp).
#pragma once

#include "kernels/attention_heads.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

template <class A>
constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();

// Where scores are kept if the caller wants them, or weights: these take their place later.
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
  int64_t together = 0;  // so many queries are multiplied by the columns that one of them sees; 0: all
};

// f(row, rows, columns): rows of a strip and the columns that they are multiplied by
template <class A, class F>
SF_INLINE void each_tile(const AttentionArgs& args, const Head& head, const Strip<A>& strip, F f) {
  if (strip.together == 0) return f(0, strip.queries * args.group, strip.columns);
  const auto seen_by = [&](int64_t i) { return head.visible.of_block(i, strip.first_key, strip.keys); };
  for (int64_t i = 0; i < strip.queries; i += strip.together) {
    const int64_t n = min_of(strip.together, strip.queries - i);
    const KeyRange columns{seen_by(strip.first + i).begin, seen_by(strip.first + i + n - 1).end};
    if (!columns.empty()) f(i * args.group, n * args.group, columns);
  }
}

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

// ---- queries ----------------------------------------------------------------------------------------------

// rows (i, g) = query * scale, as sums of type A, zeros in what is left of the last panel
template <class A>
void scale_queries(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries, A scaled_by,
                   A* rows, int64_t pitch) noexcept {
  const View& query = args.call->query;
  const Vec<A> scale(scaled_by);
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
                               A scaled_by, A* rows, int64_t pitch) {
  if (args.pairs)
    copy_queries(args, head, first, queries, reinterpret_cast<bfloat16*>(rows), 2 * pitch);
  else
    scale_queries(args, head, first, queries, scaled_by, rows, pitch);
}

// ---- scores -----------------------------------------------------------------------------------------------

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
    each_vector(s, whole.begin, whole.end,
                [&](V x, int64_t) { return softcap * xsimd::tanh(divide(x, softcap)); });
  if (mask != nullptr && call.mask->dtype == DType::boolean)
    each_vector(s, whole.begin, whole.end,
                [&](V x, int64_t j) { return xsimd::select(load(mask + j) == V(A(0)), x, none); });
  else if (mask != nullptr)
    each_vector(s, whole.begin, whole.end, [&](V x, int64_t j) { return x + load(mask + j); });
  hide(s, columns, seen);
}

// -inf where a row of the strip does not see one of the columns.
template <class A>
SF_INLINE void hide_unseen(const AttentionArgs& args, const Head& head, const Strip<A>& strip,
                           KeyRange columns) {
  const auto seen_by = [&](int64_t i) { return head.visible.of_block(i, strip.first_key, strip.keys); };
  const int64_t last = strip.first + strip.queries - 1;
  if (seen_by(last).begin <= columns.begin && seen_by(strip.first).end >= columns.end) return;
  A* s = strip.scores;
  for (int64_t i = strip.first; i <= last; ++i) {
    KeyRange seen = seen_by(i);
    if (seen.empty()) seen = {columns.begin, columns.begin};
    for (int64_t g = 0; g < args.group; ++g, s += strip.pitch) hide(s, columns, seen);
  }
}

// Scores of a strip as softmax reads them, where the call wants more than to hide. `stage` holds a row of
// the mask.
template <class A>
SF_INLINE void finish_strip(const AttentionArgs& args, const Head& head, const Strip<A>& strip,
                            KeyRange columns, A* stage) {
  const Attention& call = *args.call;
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
}

// Before the first of these keys: what no strip will write.
template <class A>
SF_INLINE void hide_scores(const AttentionArgs& args, const Head& head, int64_t first, int64_t queries,
                           KeyRange keys) {
  if (!head.scores && !head.weights) return;
  each_row(args, first, queries, [&](int64_t i, int64_t g, int64_t) {
    fill(kept_scores<A>(args, head, i, g), keys.begin, keys.end, kMinusInfinity<A>);
  });
}

}  // namespace simdformer::SF_ISA
