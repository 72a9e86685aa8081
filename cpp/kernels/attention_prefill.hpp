// attention, prefill: out = softmax(q k^T scale + mask) v for many rows (formulas: attention_softmax.hpp)
//
//   q: (rows, D)    k: (S, D)    v: (S, Dv)    out: (rows, Dv)    rows = queries of a block x heads of a group
//
// Keys are taken 256 at a time, packed into panels that all rows of the head use; rows in strips of about 24,
// whose scores stay in the first cache: scores = q panels(k), softmax, out += scores panels(v) (flash
// attention: Dao et al. 2022, arXiv:2205.14135). A strip computes only the keys that it sees: causality and
// windows cost no more than they need. Sums are float32 (float64 for float64): chains of FMAs over at most
// kScoreTerms and kKeyBlock terms, cut at fixed places, so that the bits of a row do not depend on the rows
// beside it.
#pragma once

#include "kernels/attention_softmax.hpp"
#include "kernels/gemm.hpp"
#include "kernels/pack.hpp"
#include "kernels/prefetch.hpp"

namespace simdformer::SF_ISA {

constexpr int64_t kScoreTerms = 256;

// The keys of a block that are packed: up to the last that any query of the head sees.
SF_INLINE int64_t keys_in_block(const AttentionArgs& args, const Head& head, int64_t first_key) {
  return clamp_to(head.visible.end(args.queries - 1) - first_key, 0, kKeyBlock);
}

// Where the block of keys from first_key on lies among the packed ones of the pass.
SF_INLINE int64_t packed_block(const AttentionArgs& args, int64_t head_item, int64_t first_key) {
  const int64_t blocks = (args.last_key - args.first_key + kKeyBlock - 1) / kKeyBlock;
  return (head_item * blocks + (first_key - args.first_key) / kKeyBlock) * packed_block_size(args);
}

// A block of queries of a head, with the rows of its group.
struct Item {
  int64_t head_item;
  Head head;
  int64_t first, queries;

  SF_INLINE int64_t keys_end(const AttentionArgs& args) const {
    return clamp_to(head.visible.end(first + queries - 1), args.first_key, args.last_key);
  }
  // Where the first block of keys of the pass begins that some query sees.
  SF_INLINE int64_t first_block(const AttentionArgs& args) const {
    const int64_t begin = clamp_to(head.visible.begin(first), args.first_key, args.last_key);
    return args.first_key + (begin - args.first_key) / kKeyBlock * kKeyBlock;
  }
};

SF_INLINE Item item_of(const AttentionArgs& args, int64_t index) {
  const int64_t head_item = index / args.blocks;
  const int64_t block = args.first_block + args.blocks - 1 - index % args.blocks;
  const int64_t first = block * args.block_queries;
  return {head_item, head_of(args, args.first_head + head_item), first,
          min_of(args.queries - first, args.block_queries)};
}

// The keys and values of a block as they lie, unless they are packed already.
SF_INLINE void add_block(const AttentionArgs& args, const Item& item, int64_t first_key,
                         Prefetches& prefetches) {
  if (args.packed != nullptr) return;
  const int64_t size = itemsize(args.call->key.dtype);
  const int64_t end = min_of(first_key + kKeyBlock, item.keys_end(args));
  prefetches.add(item.head.keys, first_key, end, args.depth * size);
  prefetches.add(item.head.values, first_key, end, args.value_depth * size);
}

// `columns` of the `keys` rows from first_key on -> panels of 16 columns; true when all are finite
template <class T>
SF_INLINE bool pack_values(const Rows& values, int64_t first_key, int64_t keys, int64_t columns,
                           Acc<T>* panels) {
  using V = Vec<Acc<T>>;
  constexpr int64_t W = kLanes<Acc<T>>;
  const V zero(Acc<T>(0));
  V check = zero;  // becomes NaN, bit by bit: no sum waits for the one before
  for (int64_t first = 0; first < keys; first += kPanelColumns) {
    const int64_t last = min_of(first + kPanelColumns, keys);
    const char* rows = values.row(first_key + first);
    for (int64_t c = 0; c < columns; c += W) {
      Acc<T>* panel = panels + panel_start(c) * kKeyBlock + c % kPanelColumns;
      const char* column = rows + c * static_cast<int64_t>(sizeof(T));
      for (int64_t j = first; j < last; ++j) {
        const T* p = reinterpret_cast<const T*>(column + (j - first) * values.stride);
        const V v = columns - c >= W ? load(p) : load_part(p, columns - c);
        check = check | (v * zero);
        store(panel + j * kPanelColumns, v);
      }
    }
    for (int64_t c = (columns + W - 1) / W * W; c < whole_panels(columns); c += W)
      for (int64_t j = first; j < last; ++j)
        store(panels + panel_start(c) * kKeyBlock + c % kPanelColumns + j * kPanelColumns, zero);
  }
  return sum_lanes(check) == Acc<T>(0);
}

// One block of keys and values -> packed_block_size(args) elements.
template <class T>
void pack_block(const AttentionArgs& args, const Head& head, int64_t first_key, Acc<T>* block) noexcept {
  const int64_t keys = keys_in_block(args, head, first_key);
  Acc<T>* panels = block + kPanelColumns;
  for (int64_t j = 0; j < keys; j += kPanelColumns) {
    const char* rows = head.keys.row(first_key + j);  // so many lie in one page
    const int64_t columns = min_of(keys - j, kPanelColumns);
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (args.pairs) {
        bfloat16* panel = reinterpret_cast<bfloat16*>(panels) + j * even(args.depth);
        pack_panel_16(rows, head.keys.stride, columns, args.depth, panel);
        continue;
      }
    }
    pack_panel<T>(rows, head.keys.stride, columns, args.depth, panels + j * args.depth);
  }
  panels += kKeyBlock * args.depth;
  const bool finite = pack_values<T>(head.values, first_key, keys, args.value_depth, panels);
  if (!finite)
    for (int64_t c = 0; c < args.value_depth; c += kPanelColumns)
      remove_non_finite(panels + c * kKeyBlock, keys * kPanelColumns);
  block[0] = finite ? Acc<T>(0) : Acc<T>(1);
}

template <class T>
void pack_blocks(const AttentionArgs& args, int64_t begin, int64_t end) noexcept {
  const int64_t blocks = (args.last_key - args.first_key + kKeyBlock - 1) / kKeyBlock;
  for (int64_t item = begin; item < end; ++item) {
    const Head head = head_of(args, args.first_head + item / blocks);
    const int64_t first_key = args.first_key + item % blocks * kKeyBlock;
    if (head.visible.begin(0) < first_key + kKeyBlock && head.visible.end(args.queries - 1) > first_key)
      pack_block<T>(args, head, first_key,
                    static_cast<Acc<T>*>(args.packed) + item * packed_block_size(args));
  }
}

// scores = q k of a strip, for T = the type of the packed keys, or Pairs
template <class T>
SF_INLINE void score_strip(const AttentionArgs& args, const Head& head, const Strip<SumOf<T>>& strip,
                           Matrix<RowOf<T>> q, Panels<ElementOf<T>> keys, SumOf<T> scale,
                           Prefetches& prefetches) {
  each_tile(args, head, strip, [&](int64_t row, int64_t rows, KeyRange columns) {
    const int64_t first = panel_start(columns.begin);
    for (int64_t d = 0; d < args.depth; d += kScoreTerms)
      gemm<T>(rows, columns.end - first, min_of(args.depth - d, kScoreTerms), q.from(row, d),
              keys.from(first, d), {strip.scores + row * strip.pitch + first, strip.pitch, d > 0, scale},
              prefetches);
  });
}

// The rows of some queries as they are multiplied: in place where they lie evenly and need no conversion, else
// in `rows`, where bfloat16 that is multiplied as it is lies in the memory of A.
template <class A>
SF_INLINE Matrix<A> rows_of_queries(const AttentionArgs& args, const Head& head, int64_t first,
                                    int64_t queries, A* rows) {
  constexpr int64_t kSize = sizeof(A);
  const View& query = args.call->query;
  const char* data = row_of(&query, head.query, first, 0);
  const int64_t stride = args.group > 1 ? head_stride(query) : row_stride(query);
  const bool evenly = args.group == 1 || row_stride(query) == args.group * stride;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % kSize == 0 && stride % kSize == 0;
  if (evenly && aligned && accumulator(query.dtype) == query.dtype)
    return {reinterpret_cast<const A*>(data), stride / kSize};
  const int64_t pitch = pitch_of(args.depth);
  prepare_queries(args, head, first, queries, A(1), rows, pitch);
  return {rows, pitch};
}

// A strip against a packed block. q: its rows.
template <class A>
SF_INLINE void attend_strip(const AttentionArgs& args, const Head& head, const Strip<A>& strip, Matrix<A> q,
                            const A* block, A* stage, Prefetches& prefetches) {
  const A *keys = block + kPanelColumns, *values = keys + kKeyBlock * args.depth;
  bool paired = false;
  if constexpr (kBf16Pairs && std::is_same_v<A, float>) {
    paired = args.pairs;
    if (paired)
      score_strip<Pairs>(args, head, strip, {reinterpret_cast<const bfloat16*>(q.p), 2 * q.stride},
                         {reinterpret_cast<const bfloat16*>(keys), even(args.depth) * kPanelColumns}, 1,
                         prefetches);
  }
  if (!paired)
    score_strip<A>(args, head, strip, q, {keys, args.depth * kPanelColumns}, static_cast<A>(args.call->scale),
                   prefetches);
  softmax_strip(args, head, strip, stage);
  each_tile(args, head, strip, [&](int64_t row, int64_t rows, KeyRange columns) {
    gemm<A>(rows, args.value_depth, columns.end - columns.begin,
            Matrix<A>{strip.scores, strip.pitch}.from(row, columns.begin),
            Panels<A>{values, kKeyBlock * kPanelColumns}.from(0, columns.begin),
            {strip.sums.at(row).out, strip.sums.pitch, true}, prefetches);
  });
}

// How many queries are multiplied by the columns that one of them sees: one tile of the microkernel where they
// do not all see the same, so that little is computed that nobody sees.
SF_INLINE int64_t queries_together(const AttentionArgs& args, KeyRange first, KeyRange last) {
  if (first.begin == last.begin && first.end == last.end) return 0;
  return kTileRows > args.group ? kTileRows / args.group : 1;
}

// About how many times something is prefetched while a strip is multiplied.
template <class A>
SF_INLINE int64_t pauses_of(const AttentionArgs& args, const Strip<A>& strip) {
  constexpr int64_t kColumns = kTileVectors[kTileRows] * kLanes<A>;
  const int64_t tiles = (strip.queries * args.group + kTileRows - 1) / kTileRows;
  const int64_t keys = strip.columns.end - strip.columns.begin;
  return tiles * keys * (args.depth + args.value_depth) / (kColumns * kStepsBetween) + 1;
}

// The rows of an item against the keys of the pass.
template <class T>
void attend_item(const AttentionArgs& args, const Item& item, const Item& next, Acc<T>* scratch) noexcept {
  using A = Acc<T>;
  const int64_t rows = item.queries * args.group, strip_rows = strip_queries(args) * args.group;
  const Head& head = item.head;
  A* q = scratch;
  A* scores = q + strip_rows * pitch_of(args.depth);
  A* stage = scores + strip_rows * pitch_of(kKeyBlock);
  A* own_block = stage + kKeyBlock;
  A* memory = own_block + packed_block_size(args);
  if (args.state != nullptr) {
    const int64_t item_size = sums_size(args, args.block_queries * args.group);
    memory = static_cast<A*>(args.state) +
             (item.head_item * args.blocks + item.first / args.block_queries - args.first_block) * item_size;
  }
  const Sums<A> sums = sums_in(memory, args, rows);

  if (args.first_pass)
    clear(sums, rows), hide_scores<A>(args, head, item.first, item.queries, {0, args.keys});
  const int64_t begin = item.first_block(args), end = item.keys_end(args);
  for (int64_t first_key = begin; first_key < end; first_key += kKeyBlock) {
    const int64_t keys = keys_in_block(args, head, first_key);
    const A* block = own_block;
    if (args.packed != nullptr)
      block = static_cast<const A*>(args.packed) + packed_block(args, item.head_item, first_key);
    else
      pack_block<T>(args, head, first_key, own_block);
    Prefetches prefetches;
    if (first_key + kKeyBlock < end) {
      add_block(args, item, first_key + kKeyBlock, prefetches);
    } else {
      prefetches.add(args.call->out, head.out, args.group, item.first, item.queries);
      prefetches.add(args.call->query, next.head.query, args.group, next.first, next.queries);
      add_block(args, next, next.first_block(args), prefetches);
    }
    for (int64_t i = 0, count; i < item.queries; i += count) {
      count = min_of(item.queries - i, strip_queries(args));
      const KeyRange one = head.visible.of_block(item.first + i, first_key, keys);
      const KeyRange other = head.visible.of_block(item.first + i + count - 1, first_key, keys);
      const Strip<A> strip{item.first + i,
                           count,
                           first_key,
                           keys,
                           {one.begin, other.end},
                           scores,
                           pitch_of(kKeyBlock),
                           sums.at(i * args.group),
                           queries_together(args, one, other)};
      if (strip.columns.empty()) continue;
      prefetches.deal_out(count, item.queries - i, pauses_of(args, strip));
      attend_strip<A>(args, head, strip, rows_of_queries(args, head, strip.first, count, q), block, stage,
                      prefetches);
      if (block[0] != A(0)) add_non_finite<T>(args, head, strip);
    }
  }
  if (args.last_pass) finish_rows(args, head, item.first, item.queries, sums);
}

template <class T>
void attend_items(const AttentionArgs& args, Acc<T>* scratch, int64_t begin, int64_t end) noexcept {
  for (int64_t i = begin; i < end; ++i) {
    const Item item = item_of(args, i);
    const Item next = item_of(args, min_of(i + 1, args.items - 1));  // mostly of this thread, too
    attend_item<T>(args, item, next, scratch);
  }
}

// ---- entries of the table ---------------------------------------------------------------------------------

inline void attention_pack(const AttentionArgs& args, int64_t begin, int64_t end) noexcept {
  with_type(args.call->key.dtype, [&](auto type) { pack_blocks<decltype(type)>(args, begin, end); });
}

inline void attention_prefill(const AttentionArgs& args, void* scratch, int64_t begin, int64_t end) noexcept {
  with_type(args.call->key.dtype, [&](auto type) {
    using T = decltype(type);
    attend_items<T>(args, static_cast<Acc<T>*>(scratch), begin, end);
  });
}

}  // namespace simdformer::SF_ISA
