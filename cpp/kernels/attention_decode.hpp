// attention: out = softmax(q k^T scale + mask) v, few rows (the formulas are in attention_rows.hpp)
//
//   q: (rows, D)    k: (S, D)    v: (S, Dv)    out: (rows, Dv)    rows = all queries x the heads of a group,
//   <= 16
//
// Bound by memory: keys and values are read once, in place, and every load serves all rows. Scores are dot
// products along D, four keys at a time. A work item takes a chunk of the keys and leaves its sums; they are
// merged in the order of the chunks (flash decoding). Sums are float32 (float64 for float64).
#pragma once

#include "kernels/attention_rows.hpp"

namespace simdformer::SF_ISA {

// Keys whose dot products share the load of a query; kDotRows rows share that of a key.
constexpr int kSharingKeys = 4;
constexpr int kValueVectors = 4;

// Keys or values as they lie: rows of `columns` elements, `stride` bytes apart.
struct Matrix {
  const char* data;
  int64_t stride, columns, row_bytes;

  SF_INLINE const char* row(int64_t j) const { return data + j * stride; }
  SF_INLINE Matrix from(int64_t j) const { return {row(j), stride, columns, row_bytes}; }

  // Asks for row j, which need not exist, to be in the second cache soon.
  SF_INLINE void prefetch(int64_t j) const {
    const uintptr_t p = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(j * stride);
    for (int64_t b = 0; b < row_bytes; b += 64)
      __builtin_prefetch(reinterpret_cast<const void*>(p + static_cast<uintptr_t>(b)), 0, 2);
  }
};

// ---- scores -----------------------------------------------------------------------------------------------

// out[n] = sum of the lanes of x[n], n < 4
template <class A>
SF_INLINE void sum_four(const Vec<A>* x, A* out) {
  using V = Vec<A>;
  if constexpr (std::is_same_v<A, float>) {
    using Twos = Vec<double>;  // two floats move as one
    const Twos a = lanes_as<Twos>(V(zip_lower(x[0], x[1]) + zip_upper(x[0], x[1])));
    const Twos b = lanes_as<Twos>(V(zip_lower(x[2], x[3]) + zip_upper(x[2], x[3])));
    add_quarters(V(lanes_as<V>(zip_lower(a, b)) + lanes_as<V>(zip_upper(a, b))), out);
  } else {
    add_quarters(V(zip_lower(x[0], x[1]) + zip_upper(x[0], x[1])), out);
    add_quarters(V(zip_lower(x[2], x[3]) + zip_upper(x[2], x[3])), out + 2);
  }
}

// What a dot product takes at a time: kStep elements of a query, of type Row, and of a key of type T.
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
template <class T, int MR, class Dot = DotOf<T>>
SF_INLINE void dot_tile_of(const typename Dot::Row* q, int64_t q_pitch, const typename Dot::Key* const* keys,
                           int64_t depth, SumOf<T>* scores, int64_t pitch) {
  using Key = typename Dot::Key;
  using V = Vec<SumOf<T>>;
  V sum[MR][kSharingKeys];
  SF_UNROLL for (int r = 0; r < MR; ++r) SF_UNROLL for (int n = 0; n < kSharingKeys; ++n) sum[r][n] =
      V(SumOf<T>(0));
  const auto step = [&](int64_t d, auto load_key) __attribute__((always_inline)) {
    decltype(load_key(keys[0])) k[kSharingKeys];
    SF_UNROLL for (int n = 0; n < kSharingKeys; ++n) k[n] = load_key(keys[n] + d);
    SF_UNROLL for (int r = 0; r < MR; ++r) {
      const auto x = Dot::row(q + r * q_pitch + d);
      SF_UNROLL for (int n = 0; n < kSharingKeys; ++n) sum[r][n] = add_product(x, k[n], sum[r][n]);
    }
  };
  int64_t d = 0;
  for (; d + Dot::kStep <= depth; d += Dot::kStep) step(d, [](const Key* p) { return Dot::key(p); });
  if (d < depth) step(d, [&](const Key* p) { return Dot::key_part(p, depth - d); });
  SF_UNROLL for (int r = 0; r < MR; ++r) sum_four(sum[r], scores + r * pitch);
}

template <class T, int MR = kDotRows, class Dot = DotOf<T>>
SF_INLINE void dot_rows_of(int64_t rows, const typename Dot::Row* q, int64_t q_pitch,
                           const typename Dot::Key* const* keys, int64_t depth, SumOf<T>* scores,
                           int64_t pitch) {
  for (; rows >= MR; rows -= MR, q += MR * q_pitch, scores += MR * pitch)
    dot_tile_of<T, MR>(q, q_pitch, keys, depth, scores, pitch);
  if constexpr (MR > 1) dot_rows_of<T, MR / 2>(rows, q, q_pitch, keys, depth, scores, pitch);
}

// Scores of all rows with `keys` keys, and of no meaning up to the next multiple of four. The values of these
// keys are asked for meanwhile, when they are far away.
template <class T, class Dot = DotOf<T>>
void score_keys(int64_t rows, const typename Dot::Row* q, int64_t q_pitch, const Matrix& key, int64_t keys,
                const Matrix& value, bool far, SumOf<T>* scores, int64_t pitch) noexcept {
  using Key = typename Dot::Key;
  for (int64_t j = 0; j < keys; j += kSharingKeys) {
    const Key* tile[kSharingKeys];
    for (int64_t n = 0; n < kSharingKeys; ++n) {
      tile[n] = reinterpret_cast<const Key*>(key.row(j + n < keys ? j + n : keys - 1));
      if (far) value.prefetch(j + n);
    }
    dot_rows_of<T>(rows, q, q_pitch, tile, key.columns, scores + j, pitch);
  }
}

// ---- values -----------------------------------------------------------------------------------------------

// out[r] += sum_j p[r][j] v[j] for MR rows and NV vectors of columns, the last one possibly of `part` columns
// only
template <class T, int MR, int NV, bool kPart>
SF_INLINE void sum_tile(const Acc<T>* p, int64_t pitch, const Matrix& value, int64_t keys, int64_t column,
                        const Sums<Acc<T>>& sums) {
  using V = Vec<Acc<T>>;
  constexpr int64_t W = kLanes<Acc<T>>;
  V sum[MR][NV];
  SF_UNROLL for (int r = 0; r < MR; ++r) SF_UNROLL for (int v = 0; v < NV; ++v) sum[r][v] = V(Acc<T>(0));
  for (int64_t j = 0; j < keys; ++j) {
    const T* row = reinterpret_cast<const T*>(value.row(j)) + column;
    V x[NV];
    SF_UNROLL for (int v = 0; v < NV; ++v) {
      if constexpr (kPart)
        x[v] = load_part(row + v * W, value.columns - column - v * W);
      else
        x[v] = load(row + v * W);
    }
    SF_UNROLL for (int r = 0; r < MR; ++r) {
      const V weight(p[r * pitch + j]);
      SF_UNROLL for (int v = 0; v < NV; ++v) sum[r][v] = mul_add(weight, x[v], sum[r][v]);
    }
  }
  SF_UNROLL for (int r = 0; r < MR; ++r) SF_UNROLL for (int v = 0; v < NV; ++v) {
    Acc<T>* out = sums.out + r * sums.pitch + column + v * W;
    store(out, load(static_cast<const Acc<T>*>(out)) + sum[r][v]);
  }
}

template <class T, int NV, bool kPart, int MR = kDotRows>
SF_INLINE void sum_rows_of(int64_t rows, const Acc<T>* p, int64_t pitch, const Matrix& value, int64_t keys,
                           int64_t column, Sums<Acc<T>> sums) {
  for (; rows >= MR; rows -= MR, p += MR * pitch, sums = sums.at(MR))
    sum_tile<T, MR, NV, kPart>(p, pitch, value, keys, column, sums);
  if constexpr (MR > 1) sum_rows_of<T, NV, kPart, MR / 2>(rows, p, pitch, value, keys, column, sums);
}

// out += p v. The keys after these are asked for meanwhile, when they are far away.
template <class T>
void add_values(int64_t rows, const Acc<T>* p, int64_t pitch, const Matrix& value, int64_t keys,
                const Matrix& next, bool far, const Sums<Acc<T>>& sums) noexcept {
  constexpr int64_t W = kLanes<Acc<T>>, kStep = 32;
  for (int64_t first = 0; first < keys; first += kStep) {
    const int64_t count = keys - first < kStep ? keys - first : kStep;
    for (int64_t j = first; far && j < first + count; ++j) next.prefetch(j);
    const Matrix some = value.from(first);
    int64_t c = 0;
    for (; c + kValueVectors * W <= value.columns; c += kValueVectors * W)
      sum_rows_of<T, kValueVectors, false>(rows, p + first, pitch, some, count, c, sums);
    for (; c + W <= value.columns; c += W)
      sum_rows_of<T, 1, false>(rows, p + first, pitch, some, count, c, sums);
    if (c < value.columns) sum_rows_of<T, 1, true>(rows, p + first, pitch, some, count, c, sums);
  }
}

// A finite copy of `keys` rows of values, (keys, pitch); true when something had to be replaced.
template <class T>
bool copy_finite(const Matrix& value, int64_t keys, Acc<T>* copy, int64_t pitch) noexcept {
  bool replaced = false;
  for (int64_t j = 0; j < keys; ++j) {
    Acc<T>* row = copy + j * pitch;
    map_row(row, value.columns, [](auto x) { return x; }, reinterpret_cast<const T*>(value.row(j)));
    for (int64_t c = 0; c < value.columns; ++c) replaced |= !is_finite(row[c]);
    remove_non_finite(row, value.columns);
  }
  return replaced;
}

// Whether a strip holds keys that one of its rows does not see.
template <class A>
SF_INLINE bool hides_keys(const AttentionArgs& args, const Head& head, const Strip<A>& strip) {
  const View* mask = args.call->mask;
  if (mask != nullptr && mask->dtype == DType::boolean) return true;
  const Span first = head.band.seen(strip.first, strip.first_key, strip.keys);
  const Span last = head.band.seen(strip.first + strip.queries - 1, strip.first_key, strip.keys);
  return last.begin > 0 || first.end < strip.keys;
}

// ---- chunks -----------------------------------------------------------------------------------------------

// All rows of a head against the keys [begin, end).
template <class T>
void attend_chunk(const AttentionArgs& args, const Head& head, int64_t begin, int64_t end,
                  const Sums<Acc<T>>& sums, Acc<T>* scratch) noexcept {
  using A = Acc<T>;
  const View &key = args.call->key, &value = args.call->value;
  const int64_t rows = args.queries * args.group, q_pitch = pitch_of(args.depth), pitch = pitch_of(kFewBlock);
  const int64_t size = sizeof(T), key_stride = row_stride(key), value_stride = row_stride(value);
  A *q = scratch, *scores = q + rows * q_pitch, *stage = scores + rows * pitch, *copy = stage + kFewBlock;
  prepare_queries(args, head, 0, args.queries, q, q_pitch);
  for (int64_t first = begin; first < end; first += kFewBlock) {
    const int64_t count = end - first < kFewBlock ? end - first : kFewBlock;
    const Matrix keys{head.key + first * key_stride, key_stride, args.depth, args.depth * size};
    const Matrix values{head.value + first * value_stride, value_stride, args.value_depth,
                        args.value_depth * size};
    const Matrix next = keys.from(kFewBlock);
    const Strip<A> strip{0, args.queries, first, count, {0, count}, scores, pitch, sums};
    bool paired = false;
    if constexpr (kBf16Pairs && std::is_same_v<T, bfloat16>) {
      paired = args.pairs;
      if (paired)
        score_keys<Pairs>(rows, reinterpret_cast<const bfloat16*>(q), 2 * q_pitch, keys, count, values,
                          args.far, scores, pitch);
    }
    if (!paired) score_keys<T>(rows, q, q_pitch, keys, count, values, args.far, scores, pitch);
    softmax_strip(args, head, strip, stage);
    if (hides_keys(args, head, strip) && copy_finite<T>(values, count, copy, sums.pitch)) {
      const int64_t bytes = sums.pitch * static_cast<int64_t>(sizeof(A));
      const Matrix finite{reinterpret_cast<const char*>(copy), bytes, args.value_depth, bytes};
      add_values<A>(rows, scores, pitch, finite, count, next, args.far, sums);
      add_non_finite<T>(args, head, strip);
    } else {
      add_values<T>(rows, scores, pitch, values, count, next, args.far, sums);
    }
  }
}

template <class T>
void attend_chunks(const AttentionArgs& args, Acc<T>* scratch, int64_t begin, int64_t end) noexcept {
  using A = Acc<T>;
  const int64_t rows = args.queries * args.group, size = sums_size(args, rows);
  for (int64_t item = begin; item < end; ++item) {
    const Head head = head_of(args, args.first_head + item / args.chunks);
    const int64_t first = args.first_key + item % args.chunks * kFewKeys;
    const int64_t last = first + kFewKeys < args.last_key ? first + kFewKeys : args.last_key;
    const int64_t first_seen = clamp_to(head.band.begin(0), first, last);
    const int64_t last_seen = clamp_to(head.band.end(args.queries - 1), first, last);
    A* memory = args.partials != nullptr ? static_cast<A*>(args.partials) + item * size : scratch;
    const Sums<A> sums = sums_in(memory, args, rows);
    clear(sums, rows);
    hide_scores<A>(args, head, 0, args.queries, {first, last});
    if (first_seen < last_seen)
      attend_chunk<T>(args, head, first_seen, last_seen, sums,
                      scratch + (args.partials != nullptr ? 0 : size));
    if (args.partials == nullptr) finish(args, head, 0, args.queries, sums);
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
    finish(args, head_of(args, args.first_head + item), 0, args.queries, all);
  }
}

// ---- entries of the table ---------------------------------------------------------------------------------

inline void attention_few(const AttentionArgs& args, void* scratch, int64_t begin, int64_t end) noexcept {
  with_type(args.call->key.dtype, [&](auto type) {
    using T = decltype(type);
    attend_chunks<T>(args, static_cast<Acc<T>*>(scratch), begin, end);
  });
}

inline void attention_merge(const AttentionArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.call->key.dtype == DType::f64)
    merge_heads<double>(args, begin, end);
  else
    merge_heads<float>(args, begin, end);
}

}  // namespace simdformer::SF_ISA
