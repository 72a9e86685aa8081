// attention, backwards, from its output and the logarithm of its sums:
//
//   s = q.k scale    c = softcap tanh(s / softcap), or s    p = exp(c + mask - lse) where seen, else 0
//   delta = sum(do o) - dlse      dm = p (do.v - delta)     ds = dm (1 - (c / softcap)^2)
//   dq = scale ds k     dk = scale ds^T q     dv = p^T do     d_mask = dm
//
// The weights are computed again, tile by tile (FlashAttention-2: Dao 2023, arXiv:2307.08691): a block of 256 keys
// passes by strips of 48 rows, and a strip computes only the keys that some row of it sees. Five products of packed
// panels a tile, all in float32 (float64 for float64): 16-bit numbers are widened when they are packed. Chains of
// FMAs are cut at fixed places, and tiles are added in a fixed order.
#pragma once

#include "base/attention_backward_args.hpp"
#include "kernels/attention_softmax.hpp"
#include "kernels/gemm.hpp"
#include "kernels/pack.hpp"

namespace simdformer::SF_ISA {

// rows of `length` elements of any dtype that is computed in A -> rows of A, zeros up to the pitch
template <class A>
SF_INLINE void widen_row(DType dtype, const char* row, int64_t length, int64_t padded, A* out) {
  with_storage_of<A>(dtype, [&](auto type) {
    map_row(out, length, [](auto x) { return x; }, reinterpret_cast<const decltype(type)*>(row));
  });
  fill(out, length, padded, A(0));
}

template <class A>
SF_INLINE void narrow_row(DType dtype, const A* row, int64_t length, char* out) {
  with_storage_of<A>(dtype, [&](auto type) {
    map_row(reinterpret_cast<decltype(type)*>(out), length, [](auto x) { return x; }, row);
  });
}

template <class A>
SF_INLINE bool are_finite(const A* row, int64_t n) {
  using V = Vec<A>;
  return sum_row(row, n, [](V sum, V x) { return mul_add(x, V(A(0)), sum); }) == A(0);
}

// A row of `columns` numbers as row j of panels of 16 columns, `stride` elements from one panel to the next.
template <class A>
SF_INLINE void row_into_panels(const A* row, int64_t columns, int64_t j, A* panels, int64_t stride) {
  for (int64_t c = 0; c < columns; c += kPanelColumns)
    std::memcpy(panels + c / kPanelColumns * stride + j * kPanelColumns, row + c, kPanelColumns * sizeof(A));
}

// c = or += scale a b over long k, cut as the forward cuts it.
template <class A>
SF_INLINE void multiply_long(int64_t m, int64_t n, int64_t k, Matrix<A> a, Panels<A> b, Tile<A> c) {
  Nothing nothing;
  if (k == 0) gemm<A>(m, n, 0, a, b, c, nothing);
  for (int64_t first = 0; first < k; first += 256) {
    gemm<A>(m, n, min_of(k - first, 256), a.from(0, first), b.from(0, first), c, nothing);
    c.accumulate = true;
  }
}

template <class A>
void attention_delta_as(const AttentionBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  const AttentionBackward& of = *args.gradients;
  const AttentionArgs& forward = args.forward;
  for (int64_t item = begin; item < end; ++item) {
    const Head head = head_of(forward, item);
    const int64_t sequence = item / forward.kv_heads;
    const char* grad = head_of_view(&of.grad, 3, sequence, head.first);
    char* delta = head_of_view(&of.delta, 2, sequence, head.first);
    const char* of_lse = head_of_view(of.grad_lse, 2, sequence, head.first);
    const auto at = [](const View& view, auto* p, int64_t i, int64_t g) {
      return p + i * view.strides[view.rank - 1] + g * view.strides[view.rank - 2];
    };
    each_row(forward, 0, forward.queries, [&](int64_t i, int64_t g, int64_t) {
      A sum(0);
      with_storage_of<A>(of.grad.dtype, [&](auto type) {
        using T = decltype(type);
        using V = Vec<A>;
        const T* dy = reinterpret_cast<const T*>(row_of(&of.grad, grad, i, g));
        const T* y = reinterpret_cast<const T*>(row_of(&of.call.out, head.out, i, g));
        sum = sum_row(
            dy, forward.value_depth,
            [](V sum, V dy, V y) { return V(sum + xsimd::select(dy == V(A(0)), V(A(0)), V(dy * y))); }, y);
      });
      if (of_lse != nullptr) sum -= element<A>(at(*of.grad_lse, of_lse, i, g));
      std::memcpy(at(of.delta, delta, i, g), &sum, sizeof(A));
    });
  }
}

// The memory of a work item, and the head that it is about.
template <class A>
struct BackwardItem {
  Head head;
  const char *grad, *delta;
  char* d_mask;
  int64_t depth, value_depth, depth_pitch, value_pitch, tile_pitch, turned_pitch;
  A *keys_turned, *values_turned, *keys, *stage_k, *stage_v, *d_key, *d_value;
  A *q, *dy, *q_panels, *dy_panels, *p, *ds, *p_turned, *ds_turned, *mask, *slope;
  int64_t rows;  // of a tile, in whole panels

  SF_INLINE BackwardItem(const AttentionBackwardArgs& args, int64_t index, A* memory)
      : head(head_of(args.forward, index)) {
    const AttentionBackward& of = *args.gradients;
    const AttentionArgs& forward = args.forward;
    const int64_t sequence = index / forward.kv_heads;
    grad = head_of_view(&of.grad, 3, sequence, head.first);
    delta = head_of_view(&of.delta, 2, sequence, head.first);
    d_mask = of.d_mask.data ? head_of_view(&of.d_mask, 3, sequence, head.first) : nullptr;
    depth = whole_panels(forward.depth), value_depth = whole_panels(forward.value_depth);
    depth_pitch = pitch_of(forward.depth), value_pitch = pitch_of(forward.value_depth);
    rows = backward_tile_rows(forward);
    tile_pitch = pitch_of(kBackwardKeys), turned_pitch = pitch_of(rows);
    const auto take = [&](int64_t count) {
      A* const p = memory;
      memory += count;
      return p;
    };
    keys_turned = take(kBackwardKeys * depth), values_turned = take(kBackwardKeys * value_depth);
    keys = take(kBackwardKeys * depth);
    d_key = take(kBackwardKeys * depth), d_value = take(kBackwardKeys * value_depth);
    stage_k = take(kPanelColumns * depth_pitch), stage_v = take(kPanelColumns * value_pitch);
    q = take(rows * depth_pitch), dy = take(rows * value_pitch);
    q_panels = take(rows * depth), dy_panels = take(rows * value_depth);
    p = take(rows * tile_pitch), ds = take(rows * tile_pitch);
    p_turned = take(kBackwardKeys * turned_pitch), ds_turned = take(kBackwardKeys * turned_pitch);
    mask = take(kBackwardKeys), slope = take(kBackwardKeys);
  }
};

// Keys and values of a block as panels; true when all keys are finite.
template <class A>
bool pack_backward_keys(const AttentionBackwardArgs& args, const BackwardItem<A>& item, int64_t first_key,
                        int64_t count) noexcept {
  const AttentionArgs& forward = args.forward;
  const DType dtype = forward.call->key.dtype;
  bool finite = true;
  for (int64_t j = 0; j < whole_panels(count); j += kPanelColumns) {
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      A *k = item.stage_k + c * item.depth_pitch, *v = item.stage_v + c * item.value_pitch;
      if (j + c < count) {
        widen_row(dtype, item.head.keys.row(first_key + j + c), forward.depth, item.depth, k);
        widen_row(dtype, item.head.values.row(first_key + j + c), forward.value_depth, item.value_depth, v);
        finite &= are_finite(k, forward.depth);
      } else {
        fill(k, 0, item.depth, A(0)), fill(v, 0, item.value_depth, A(0));
      }
      row_into_panels(k, item.depth, j + c, item.keys, kBackwardKeys * kPanelColumns);
    }
    transpose_panel(static_cast<const A*>(item.stage_k), item.depth_pitch, forward.depth,
                    item.keys_turned + j * forward.depth);
    transpose_panel(static_cast<const A*>(item.stage_v), item.value_pitch, forward.value_depth,
                    item.values_turned + j * forward.value_depth);
  }
  return finite;
}

// Rows of queries and of the gradient, as rows and as panels; true when all are finite.
template <class A>
bool pack_backward_rows(const AttentionBackwardArgs& args, const BackwardItem<A>& item, int64_t first,
                        int64_t queries) noexcept {
  const AttentionArgs& forward = args.forward;
  const View &query = forward.call->query, &grad = args.gradients->grad;
  bool finite = true;
  each_row(forward, first, queries, [&](int64_t i, int64_t g, int64_t r) {
    A *q = item.q + r * item.depth_pitch, *dy = item.dy + r * item.value_pitch;
    widen_row(query.dtype, row_of(&query, item.head.query, i, g), forward.depth, item.depth, q);
    widen_row(grad.dtype, row_of(&grad, item.grad, i, g), forward.value_depth, item.value_depth, dy);
    finite &= are_finite(q, forward.depth) && are_finite(dy, forward.value_depth);
    row_into_panels(q, item.depth, r, item.q_panels, item.rows * kPanelColumns);
    row_into_panels(dy, item.value_depth, r, item.dy_panels, item.rows * kPanelColumns);
  });
  return finite;
}

// q.k and do.v of a tile -> p and ds, 0 where nothing is seen. With `mark_hidden`, hidden places have p = -1: there a
// product is left out and not multiplied by 0.
template <class A>
void weights_of_tile(const AttentionBackwardArgs& args, const BackwardItem<A>& item, int64_t first,
                     int64_t queries, int64_t first_key, int64_t count, KeyRange columns,
                     bool mark_hidden) noexcept {
  using V = Vec<A>;
  const AttentionArgs& forward = args.forward;
  const AttentionBackward& of = *args.gradients;
  const Attention& call = *forward.call;
  const V none(kMinusInfinity<A>), zero(A(0)), one(A(1)), cap(static_cast<A>(call.softcap));
  const V hidden(mark_hidden ? A(-1) : A(0));
  each_row(forward, first, queries, [&](int64_t i, int64_t g, int64_t r) {
    A *s = item.p + r * item.tile_pitch, *d = item.ds + r * item.tile_pitch;
    KeyRange seen = item.head.visible.of_block(i, first_key, count);
    const auto number = [&](const View& view, const char* p) {
      return element<A>(p + i * view.strides[view.rank - 1] + g * view.strides[view.rank - 2]);
    };
    const A lse = number(*call.lse, item.head.lse);
    const V shift(lse), delta(number(of.delta, item.delta));
    if (seen.empty() || lse == kMinusInfinity<A>) seen = {columns.begin, columns.begin};
    const A* mask = nullptr;
    if (call.mask != nullptr && !seen.empty()) {
      const char* row = row_of(call.mask, item.head.mask, i, g);
      stage_mask(*call.mask, row + first_key * call.mask->strides[call.mask->rank - 1], seen, item.mask);
      mask = item.mask;
    }
    if (call.softcap > 0)
      for (int64_t j = columns.begin; j < columns.end; j += kLanes<A>) {
        const V t = xsimd::tanh(divide(load(static_cast<const A*>(s) + j), cap));
        store(item.slope + j, V(one - t * t));
      }
    finish_scores(forward, s, columns, seen, mask);
    for (int64_t j = columns.begin; j < columns.end; j += kLanes<A>) {
      const V score = load(static_cast<const A*>(s) + j);
      const V p = vec_exp(V(score - shift));
      const auto unseen = score == none;
      store(s + j, xsimd::select(unseen, hidden, p));
      store(d + j, xsimd::select(unseen, zero, V(p * (load(static_cast<const A*>(d) + j) - delta))));
    }
    if (item.d_mask != nullptr && !seen.empty())
      std::memcpy(
          row_of(&of.d_mask, item.d_mask, i, g) + (first_key + seen.begin) * static_cast<int64_t>(sizeof(A)),
          d + seen.begin, static_cast<size_t>(seen.end - seen.begin) * sizeof(A));
    if (call.softcap > 0)
      for (int64_t j = columns.begin; j < columns.end; j += kLanes<A>)
        store(d + j, xsimd::select(load(static_cast<const A*>(s) + j) == hidden, zero,
                                   V(load(static_cast<const A*>(d) + j) *
                                     load(static_cast<const A*>(item.slope) + j))));
  });
}

// The sums of a tile number by number, where some factor is not finite: what a row does not see has no part in it.
template <class A>
void add_seen(const AttentionBackwardArgs& args, const BackwardItem<A>& item, int64_t rows, int64_t count,
              KeyRange columns, A* dq) noexcept {
  const AttentionArgs& forward = args.forward;
  const A scale = static_cast<A>(forward.call->scale);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = columns.begin; j < min_of(columns.end, count); ++j) {
      const A p = item.p[r * item.tile_pitch + j], ds = scale * item.ds[r * item.tile_pitch + j];
      if (p == A(-1)) continue;
      for (int64_t d = 0; d < forward.depth; ++d) {
        const A k = item.keys[(d / kPanelColumns * kBackwardKeys + j) * kPanelColumns + d % kPanelColumns];
        dq[r * item.depth + d] += ds * k;
        item.d_key[j * item.depth + d] += ds * item.q[r * item.depth_pitch + d];
      }
      for (int64_t d = 0; d < forward.value_depth; ++d)
        item.d_value[j * item.value_depth + d] += p * item.dy[r * item.value_pitch + d];
    }
}

// A tile: `queries` of the head from `first` on against the columns of a block of keys.
template <class A>
void backward_tile(const AttentionBackwardArgs& args, const BackwardItem<A>& item, int64_t first,
                   int64_t queries, int64_t first_key, int64_t count, KeyRange seen, bool finite,
                   A* dq) noexcept {
  const AttentionArgs& forward = args.forward;
  const AttentionBackward& of = *args.gradients;
  const int64_t rows = queries * forward.group, begin = panel_start(seen.begin);
  const KeyRange columns{begin, whole_panels(seen.end)};
  const int64_t keys = columns.end - begin;
  const A scale = static_cast<A>(forward.call->scale);
  finite &= pack_backward_rows(args, item, first, queries);

  multiply_long<A>(rows, keys, forward.depth, {item.q, item.depth_pitch},
                   Panels<A>{item.keys_turned, forward.depth * kPanelColumns}.from(begin, 0),
                   {item.p + begin, item.tile_pitch, false, scale});
  multiply_long<A>(rows, keys, forward.value_depth, {item.dy, item.value_pitch},
                   Panels<A>{item.values_turned, forward.value_depth * kPanelColumns}.from(begin, 0),
                   {item.ds + begin, item.tile_pitch, false});
  weights_of_tile(args, item, first, queries, first_key, count, columns, !finite);
  if (!finite) return add_seen(args, item, rows, count, columns, dq);

  const auto turn = [&](const A* tile, A* turned) {
    for (int64_t r = 0; r < rows; r += kPanelColumns)
      transpose_panel(tile + r * item.tile_pitch + begin, item.tile_pitch, keys, turned + r,
                      item.turned_pitch);
  };
  if (of.d_query.data != nullptr)
    multiply_long<A>(rows, forward.depth, keys, {item.ds + begin, item.tile_pitch},
                     {item.keys + begin * kPanelColumns, kBackwardKeys * kPanelColumns},
                     {dq, item.depth, true, scale});
  if (of.d_key.data != nullptr) {
    turn(item.ds, item.ds_turned);
    multiply_long<A>(keys, forward.depth, rows, {item.ds_turned, item.turned_pitch},
                     {item.q_panels, item.rows * kPanelColumns},
                     {item.d_key + begin * item.depth, item.depth, true, scale});
  }
  if (of.d_value.data != nullptr) {
    turn(item.p, item.p_turned);
    multiply_long<A>(keys, forward.value_depth, rows, {item.p_turned, item.turned_pitch},
                     {item.dy_panels, item.rows * kPanelColumns},
                     {item.d_value + begin * item.value_depth, item.value_depth, true});
  }
}

template <class A>
void attention_backward_as(const AttentionBackwardArgs& args, A* scratch, int64_t begin,
                           int64_t end) noexcept {
  const AttentionBackward& of = *args.gradients;
  const AttentionArgs& forward = args.forward;
  const int64_t tile_queries = max_of(kBackwardRows / forward.group, 1);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t place = args.first_head + index / args.parts, part = index % args.parts;
    const int64_t sequence = place / forward.kv_heads, kv_head = place % forward.kv_heads;
    const BackwardItem<A> item(args, place, scratch);
    const int64_t sums = forward.queries * forward.group * item.depth;
    A* const dq = static_cast<A*>(args.d_query) + index * sums;
    std::memset(dq, 0, static_cast<size_t>(sums) * sizeof(A));
    const int64_t last = min_of(forward.keys, (part + 1) * args.part_keys);
    for (int64_t first_key = part * args.part_keys; first_key < last; first_key += kBackwardKeys) {
      const int64_t count = min_of(last - first_key, kBackwardKeys);
      std::memset(item.d_key, 0, static_cast<size_t>(whole_panels(count) * item.depth) * sizeof(A));
      std::memset(item.d_value, 0, static_cast<size_t>(whole_panels(count) * item.value_depth) * sizeof(A));
      bool packed = false, finite = true;
      for (int64_t i = 0; i < forward.queries; i += tile_queries) {
        const int64_t queries = min_of(forward.queries - i, tile_queries);
        const KeyRange seen{item.head.visible.of_block(i, first_key, count).begin,
                            item.head.visible.of_block(i + queries - 1, first_key, count).end};
        if (seen.empty()) continue;
        if (!packed) finite = pack_backward_keys(args, item, first_key, count), packed = true;
        backward_tile(args, item, i, queries, first_key, count, seen, finite,
                      dq + i * forward.group * item.depth);
      }
      const auto give = [&](const View& view, const A* rows, int64_t length, int64_t pitch) {
        if (view.data == nullptr) return;
        char* out = head_of_view(&view, 3, sequence, kv_head) + first_key * row_stride(view);
        for (int64_t j = 0; j < count; ++j)
          narrow_row(view.dtype, rows + j * pitch, length, out + j * row_stride(view));
      };
      give(of.d_key, item.d_key, forward.depth, item.depth);
      give(of.d_value, item.d_value, forward.value_depth, item.value_depth);
    }
  }
}

// The sums of the parts -> the gradient of the queries. Work items are the rows of the heads of the pass.
template <class A>
void attention_backward_queries_as(const AttentionBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  const View& view = args.gradients->d_query;
  const AttentionArgs& forward = args.forward;
  const int64_t depth = whole_panels(forward.depth), rows = forward.queries * forward.group;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t place = item / rows, row = item % rows, head = args.first_head + place;
    A* sum = static_cast<A*>(args.d_query) + (place * args.parts * rows + row) * depth;
    for (int64_t part = 1; part < args.parts; ++part)
      map_row(
          sum, forward.depth, [](auto a, auto b) { return a + b; }, static_cast<const A*>(sum),
          static_cast<const A*>(sum + part * rows * depth));
    char* out = head_of_view(&view, 3, head / forward.kv_heads, head % forward.kv_heads * forward.group);
    narrow_row<A>(view.dtype, sum, forward.depth,
                  row_of(&view, out, row / forward.group, row % forward.group));
  }
}

// ---- entries of the table ---------------------------------------------------------------------------------

template <class Body>
SF_INLINE void with_sums_of(const AttentionBackwardArgs& args, Body body) {
  if (args.gradients->grad.dtype == DType::f64)
    body(double{});
  else
    body(float{});
}

inline void attention_delta(const AttentionBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  with_sums_of(args, [&](auto sum) { attention_delta_as<decltype(sum)>(args, begin, end); });
}

inline void attention_backward(const AttentionBackwardArgs& args, void* scratch, int64_t begin,
                               int64_t end) noexcept {
  with_sums_of(
      args, [&](auto sum) { attention_backward_as(args, static_cast<decltype(sum)*>(scratch), begin, end); });
}

inline void attention_backward_queries(const AttentionBackwardArgs& args, int64_t begin,
                                       int64_t end) noexcept {
  with_sums_of(args, [&](auto sum) { attention_backward_queries_as<decltype(sum)>(args, begin, end); });
}

}  // namespace simdformer::SF_ISA
