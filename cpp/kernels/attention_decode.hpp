// attention, decode: out = softmax(q k^T scale + mask) v for few rows (formulas: attention_softmax.hpp)
//
//   q: (rows, D)    k: (S, D)    v: (S, Dv)    out: (rows, Dv)    rows = all queries
//   x the heads of a group, <= 16
//
// Bound by memory: keys and values are read once, in place, and every load serves all rows. Scores are dot
// products along D, four keys at a time. A work item takes a chunk of the keys and leaves its sums; they are
// merged in the order of the chunks (flash decoding). Sums are float32 (float64 for float64).
#pragma once

#include "kernels/attention_softmax.hpp"
#include "kernels/gemm.hpp"
#include "kernels/prefetch.hpp"

namespace simdformer::SF_ISA {

// Keys whose dot products share the load of a query; kDotRows rows share that of a key.
constexpr int kSharingKeys = 4;
constexpr int kValueVectors = 4;

// Some keys or values: `count` rows of `columns` numbers. Pointers up to `known` may be prefetched.
struct Positions {
  const char* const* rows;
  int64_t count, known, columns, row_bytes;
  int64_t ahead;  // this many rows are prefetched before they are read; 0: all lie near
  Cache goal;     // to this cache

  SF_INLINE const char* row(int64_t j) const { return rows[j]; }
  SF_INLINE Positions from(int64_t j, int64_t most) const {
    return {rows + j, min_of(count - j, most), known - j, columns, row_bytes, ahead, goal};
  }

  // What is prefetched meanwhile, where every row is read by `readers` rows of queries.
  template <class Ahead>
  SF_INLINE Ahead next(int64_t readers) const {
    return {rows + ahead, rows + known, row_bytes, readers, goal};
  }
};

// Where rows of a head lie: those of a block, and behind them those that a thread will most likely read next.
struct RowPointers {
  const char* rows[kDecodeBlock + kMostKeysAhead];
  int64_t count, known;

  // The block begins at row `first`; of this head it ends at `end` at the latest. The head has rows up to `seen`.
  SF_INLINE void find(const Rows& all, int64_t first, int64_t end, int64_t seen, int64_t ahead) {
    count = min_of(end - first, kDecodeBlock);
    known = 0;
    append(all, first, min_of(seen, first + count + ahead));
  }
  SF_INLINE void append(const Rows& all, int64_t first, int64_t end) {
    each_row(all, first, end, [&](const char* row) __attribute__((always_inline)) { rows[known++] = row; });
  }
  SF_INLINE Positions positions(int64_t columns, int64_t size, int64_t ahead, Cache goal) const {
    return {rows, count, known, columns, columns * size, ahead, goal};
  }
};

// ---- scores -----------------------------------------------------------------------------------------------

// What a dot product takes at a time: kStep numbers of a query, of type Row, and of a key of type Key.
template <class T>
struct DotOf {
  using Key = T;
  using Row = Acc<T>;
  static constexpr int64_t kStep = kLanes<Acc<T>>;
  SF_INLINE static Vec<Acc<T>> row(const Row* p) { return load(p); }
  SF_INLINE static Vec<Acc<T>> key(const T* p) { return load(p); }
  SF_INLINE static Vec<Acc<T>> key_part(const T* p, int64_t n) { return load_part(p, n); }
};

template <>
struct DotOf<Pairs> {
  using Key = bfloat16;
  using Row = bfloat16;
  static constexpr int64_t kStep = 2 * kLanes<float>;
  SF_INLINE static Bf16Pairs row(const bfloat16* p) { return load_pairs(p); }
  SF_INLINE static Bf16Pairs key(const bfloat16* p) { return load_pairs(p); }
  SF_INLINE static Bf16Pairs key_part(const bfloat16* p, int64_t n) { return load_pairs_part(p, n); }
};

// scores[r][n] = q[r] . k[n] for MR rows and four keys. q is padded with zeros to whole steps.
template <class T, int MR, class Ahead, class Dot = DotOf<T>>
SF_INLINE void score_tile(Matrix<RowOf<T>> q, const ElementOf<T>* const* keys, int64_t depth, Ahead& ahead,
                          Tile<SumOf<T>> scores) {
  using Key = ElementOf<T>;
  using V = Vec<SumOf<T>>;
  constexpr int64_t kSize = sizeof(Key), kLine = max_of(kLineBytes / kSize, Dot::kStep);
  V sum[MR][kSharingKeys];
  SF_UNROLL for (int r = 0; r < MR; ++r) SF_UNROLL for (int n = 0; n < kSharingKeys; ++n) sum[r][n] =
      V(SumOf<T>(0));
  const auto step = [&](int64_t d, auto load_key) __attribute__((always_inline)) {
    decltype(load_key(keys[0])) k[kSharingKeys];
    SF_UNROLL for (int n = 0; n < kSharingKeys; ++n) k[n] = load_key(keys[n] + d);
    SF_UNROLL for (int r = 0; r < MR; ++r) {
      const auto x = Dot::row(q.row(r) + d);
      SF_UNROLL for (int n = 0; n < kSharingKeys; ++n) sum[r][n] = mul_add(x, k[n], sum[r][n]);
    }
  };
  const auto whole = [](const Key* p) { return Dot::key(p); };
  int64_t d = 0;
  for (; d + kLine <= depth; d += kLine) {
    ahead.follow(kSharingKeys * kLine * kSize, MR);
    SF_UNROLL for (int64_t i = 0; i < kLine; i += Dot::kStep) step(d + i, whole);
  }
  ahead.follow(kSharingKeys * (depth - d) * kSize, MR);
  for (; d + Dot::kStep <= depth; d += Dot::kStep) step(d, whole);
  if (d < depth) step(d, [&](const Key* p) { return Dot::key_part(p, depth - d); });
  SF_UNROLL for (int r = 0; r < MR; ++r) sum_four(sum[r], scores.p + r * scores.stride);
}

// Scores of all rows with the keys, and of no meaning up to the next multiple of four.
template <class T, class Ahead>
void score_keys(int64_t rows, Matrix<RowOf<T>> q, const Positions& keys, Tile<SumOf<T>> scores) noexcept {
  auto ahead = keys.next<Ahead>(rows);
  for (int64_t j = 0; j < keys.count; j += kSharingKeys) {
    const ElementOf<T>* tile[kSharingKeys];
    for (int64_t n = 0; n < kSharingKeys; ++n)
      tile[n] = reinterpret_cast<const ElementOf<T>*>(keys.row(min_of(j + n, keys.count - 1)));
    each_power<kDotRows>(rows, [&](int64_t r, auto count) __attribute__((always_inline)) {
      score_tile<T, decltype(count)::value>(q.from(r), tile, keys.columns, ahead, scores.from(r, j));
    });
  }
}

// ---- values -----------------------------------------------------------------------------------------------

// out[r] += sum_j p[r][j] v[j] for MR rows and NV vectors of columns, the last one possibly of `part` columns
// only
template <class T, int MR, int NV, bool kPart, class Ahead>
SF_INLINE void sum_tile(Matrix<Acc<T>> p, const Positions& values, int64_t column, Ahead& ahead,
                        const Sums<Acc<T>>& sums) {
  using V = Vec<Acc<T>>;
  constexpr int64_t W = kLanes<Acc<T>>;
  V sum[MR][NV];
  SF_UNROLL for (int r = 0; r < MR; ++r) SF_UNROLL for (int v = 0; v < NV; ++v) sum[r][v] = V(Acc<T>(0));
  const int64_t bytes = (kPart ? values.columns - column : NV * W) * static_cast<int64_t>(sizeof(T));
  for (int64_t j = 0; j < values.count; ++j) {
    const T* row = reinterpret_cast<const T*>(values.row(j)) + column;
    ahead.follow(bytes, MR);
    V x[NV];
    SF_UNROLL for (int v = 0; v < NV; ++v) {
      if constexpr (kPart)
        x[v] = load_part(row + v * W, values.columns - column - v * W);
      else
        x[v] = load(row + v * W);
    }
    SF_UNROLL for (int r = 0; r < MR; ++r) {
      const V weight(p.row(r)[j]);
      SF_UNROLL for (int v = 0; v < NV; ++v) sum[r][v] = mul_add(weight, x[v], sum[r][v]);
    }
  }
  SF_UNROLL for (int r = 0; r < MR; ++r) SF_UNROLL for (int v = 0; v < NV; ++v) {
    Acc<T>* out = sums.out + r * sums.pitch + column + v * W;
    store(out, load(static_cast<const Acc<T>*>(out)) + sum[r][v]);
  }
}

// out += p v
template <class T, class Ahead>
void add_values(int64_t rows, Matrix<Acc<T>> p, const Positions& values, const Sums<Acc<T>>& sums) noexcept {
  constexpr int64_t W = kLanes<Acc<T>>;
  auto ahead = values.next<Ahead>(rows);
  for (int64_t first = 0; first < values.count; first += kValueKeys) {
    const Positions some = values.from(first, kValueKeys);
    const Matrix<Acc<T>> weights = p.from(0, first);
    const auto sum_rows = [&](int64_t column, auto vectors, auto is_part) __attribute__((always_inline)) {
      each_power<kDotRows>(rows, [&](int64_t r, auto count) __attribute__((always_inline)) {
        sum_tile<T, decltype(count)::value, decltype(vectors)::value, decltype(is_part)::value>(
            weights.from(r), some, column, ahead, sums.at(r));
      });
    };
    int64_t c = 0;
    for (; c + kValueVectors * W <= values.columns; c += kValueVectors * W)
      sum_rows(c, Count<kValueVectors>(), std::false_type());
    for (; c + W <= values.columns; c += W) sum_rows(c, Count<1>(), std::false_type());
    if (c < values.columns) sum_rows(c, Count<1>(), std::true_type());
  }
}

// A finite copy of the values, rows `pitch` apart; true when something had to be replaced.
template <class T>
bool copy_finite(const Positions& values, Acc<T>* copy, int64_t pitch) noexcept {
  bool replaced = false;
  for (int64_t j = 0; j < values.count; ++j) {
    Acc<T>* row = copy + j * pitch;
    map_row(row, values.columns, [](auto x) { return x; }, reinterpret_cast<const T*>(values.row(j)));
    for (int64_t c = 0; c < values.columns; ++c) replaced |= !is_finite(row[c]);
    remove_non_finite(row, values.columns);
  }
  return replaced;
}

// Whether a strip holds keys that one of its rows does not see.
template <class A>
SF_INLINE bool hides_keys(const AttentionArgs& args, const Head& head, const Strip<A>& strip) {
  const View* mask = args.call->mask;
  if (mask != nullptr && mask->dtype == DType::boolean) return true;
  const KeyRange first = head.visible.of_block(strip.first, strip.first_key, strip.keys);
  const KeyRange last = head.visible.of_block(strip.first + strip.queries - 1, strip.first_key, strip.keys);
  return last.begin > 0 || first.end < strip.keys;
}

// ---- chunks -----------------------------------------------------------------------------------------------

// What a thread most likely reads after the keys of a chunk: `end` is that of this head, then comes another.
struct Following {
  int64_t end;
  Rows keys, values;
  int64_t first, count;  // rows of the other head, none after the last one
};

SF_INLINE Following following(const AttentionArgs& args, const Head& head, int64_t index, int64_t ahead) {
  Following next{head.visible.end(args.queries - 1), {}, {}, 0, 0};
  if (ahead == 0 || index + 1 >= args.heads) return next;
  const Head other = head_of(args, index + 1);
  next.keys = other.keys, next.values = other.values;
  next.first = other.visible.begin(0);
  next.count = min_of(ahead, other.visible.end(args.queries - 1) - next.first);
  return next;
}

// All rows of a head against the keys [begin, end). Values are summed block by block: short chains of additions
// round less than a long one.
template <class T, class Ahead>
void attend_chunk(const AttentionArgs& args, const Head& head, int64_t begin, int64_t end,
                  const Following& next, int64_t ahead, const Sums<Acc<T>>& sums, Acc<T>* scratch) noexcept {
  using A = Acc<T>;
  const int64_t rows = args.queries * args.group, size = sizeof(T);
  const int64_t q_pitch = pitch_of(args.depth), pitch = pitch_of(kDecodeBlock);
  A *q = scratch, *scores = q + rows * q_pitch, *stage = scores + rows * pitch, *copy = stage + kDecodeBlock;
  A* const apart = copy + kDecodeBlock * sums.pitch;
  prepare_queries(args, head, 0, args.queries, static_cast<A>(args.call->scale), q, q_pitch);
  RowPointers key_rows, value_rows;
  for (int64_t first = begin; first < end; first += kDecodeBlock) {
    key_rows.find(head.keys, first, end, next.end, ahead);
    value_rows.find(head.values, first, end, next.end, ahead);
    const int64_t count = key_rows.count, missing = min_of(count + ahead - key_rows.known, next.count);
    key_rows.append(next.keys, next.first, next.first + missing);
    value_rows.append(next.values, next.first, next.first + missing);
    const Positions keys = key_rows.positions(args.depth, size, ahead, args.goal);
    const Positions values = value_rows.positions(args.value_depth, size, ahead, args.goal);
    const Strip<A> strip{0, args.queries, first, count, {0, count}, scores, pitch, sums};
    const Tile<A> tile{scores, pitch, false};
    bool paired = false;
    if constexpr (kBf16Pairs && std::is_same_v<T, bfloat16>) {
      paired = args.pairs;
      if (paired)
        score_keys<Pairs, Ahead>(rows, {reinterpret_cast<const bfloat16*>(q), 2 * q_pitch}, keys, tile);
    }
    if (!paired) score_keys<T, Ahead>(rows, {q, q_pitch}, keys, tile);
    softmax_strip(args, head, strip, stage);
    const Sums<A> block = first == begin ? sums : Sums<A>{apart, sums.pitch, sums.highest, sums.total};
    if (first != begin) std::memset(apart, 0, static_cast<size_t>(rows * sums.pitch) * sizeof(A));
    if (hides_keys(args, head, strip) && copy_finite<T>(values, copy, sums.pitch)) {
      const int64_t bytes = sums.pitch * static_cast<int64_t>(sizeof(A));
      value_rows.find({reinterpret_cast<const char*>(copy), bytes, nullptr, 0, 0}, 0, count, count, 0);
      add_values<A, NothingAhead>(rows, {scores, pitch},
                                  value_rows.positions(args.value_depth, sizeof(A), 0, Cache::first), block);
      add_non_finite<T>(args, head, strip);
    } else {
      add_values<T, Ahead>(rows, {scores, pitch}, values, block);
    }
    if (first != begin)
      map_row(sums.out, rows * sums.pitch, [](auto a, auto b) { return a + b; }, sums.out, apart);
  }
}

template <class T>
void attend_chunks(const AttentionArgs& args, Acc<T>* scratch, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  const int64_t rows = args.queries * args.group, size = sums_size(args, rows);
  const int64_t key_bytes = max_of(args.depth, args.value_depth) * static_cast<int64_t>(sizeof(T));
  const int64_t ahead = args.far ? clamp_to(kKeyBytesAhead / key_bytes, kSharingKeys, kMostKeysAhead) : 0;
  const auto attend = ahead != 0 ? attend_chunk<T, LinesAhead> : attend_chunk<T, NothingAhead>;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t index = args.first_head + item / args.chunks;
    const Head head = head_of(args, index);
    const int64_t first = args.first_key + item % args.chunks * kDecodeChunk;
    const int64_t last = min_of(first + kDecodeChunk, args.last_key);
    const int64_t first_seen = clamp_to(head.visible.begin(0), first, last);
    const int64_t last_seen = clamp_to(head.visible.end(args.queries - 1), first, last);
    A* memory = args.partials != nullptr ? static_cast<A*>(args.partials) + item * size : scratch;
    const Sums<A> sums = sums_in(memory, args, rows);
    clear(sums, rows);
    hide_scores<A>(args, head, 0, args.queries, {first, last});
    if (first_seen < last_seen)
      attend(args, head, first_seen, last_seen, following(args, head, index, ahead), ahead, sums,
             scratch + (args.partials != nullptr ? 0 : size));
    if (args.partials == nullptr) finish_rows(args, head, 0, args.queries, sums);
  }
}

// The sums of all chunks of a head -> its result. The first chunk's memory takes the total.
template <class A>
void merge_heads(const AttentionArgs& args, int64_t begin, int64_t end) noexcept {
  using V = Vec<A>;
  const int64_t rows = args.queries * args.group, size = sums_size(args, rows);
  for (int64_t item = begin; item < end; ++item) {
    A* memory = static_cast<A*>(args.partials) + item * args.chunks * size;
    const Sums<A> all = sums_in(memory, args, rows);
    for (int64_t r = 0; r < rows; ++r) {
      const Sums<A> merged = all.at(r);
      A highest = kMinusInfinity<A>, total(0);
      for (int64_t c = 0; c < args.chunks; ++c) {
        const A x = *sums_in(memory + c * size, args, rows).at(r).highest;
        highest = x > highest ? x : highest;
      }
      for (int64_t c = 0; c < args.chunks; ++c) {
        const Sums<A> part = sums_in(memory + c * size, args, rows).at(r);
        if (*part.total == A(0)) continue;  // it saw nothing
        const A factor = exp_of(*part.highest - (highest == kMinusInfinity<A> ? A(0) : highest));
        total += *part.total * factor;
        const V scale(factor);
        if (c == 0)
          each_vector(merged.out, 0, merged.pitch, [&](V x, int64_t) { return x * scale; });
        else
          each_vector(merged.out, 0, merged.pitch, [&](V x, int64_t j) {
            return mul_add(load(static_cast<const A*>(part.out + j)), scale, x);
          });
      }
      *merged.highest = highest;
      *merged.total = total;
    }
    finish_rows(args, head_of(args, args.first_head + item), 0, args.queries, all);
  }
}

// ---- entries of the table ---------------------------------------------------------------------------------

inline void attention_decode(const AttentionArgs& args, void* scratch, int64_t begin, int64_t end) noexcept {
  with_type(args.call->key.dtype, [&](auto type) {
    using T = decltype(type);
    attend_chunks<T>(args, static_cast<Acc<T>*>(scratch), begin, end);
  });
}

inline void attention_merge(const AttentionArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.call->key.dtype, [&](auto type) { merge_heads<Acc<decltype(type)>>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
