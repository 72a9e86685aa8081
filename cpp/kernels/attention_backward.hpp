// attention's backward: the gradients of out = softmax(q k^T scale + mask) v, from out and lse of the forward
//
//   s = q.k scale    c = softcap tanh(s / softcap), or s    P = exp(c + mask - lse), 0 where a key is not seen
//   delta = sum(dout out) - dlse                            dM = P (dout.v - delta)
//   dv = P^T dout    ds = dM (1 - (c / softcap)^2) scale    dq = ds k    dk = ds^T q    dmask = dM
//
//   q: (rows, D)    k: (S, D)    v: (S, Dv)    out, dout: (rows, Dv)    rows = queries x heads of a group
//
// Saved by the forward: out and lse. Computed again: P, a tile at a time (FlashAttention-2: Dao 2023,
// arXiv:2307.08691). Tiles are turned, keys down and rows across: lse and delta then lie along the registers, P^T and
// ds^T are the left operands of dv and dk as they are, and dq^T = k^T ds^T takes ds^T as panels. A tile has the keys
// of a block that some row of a strip sees: causality and windows cost no more than they need. 16-bit numbers are
// widened when they are packed, all arithmetic is float32 (float64 for float64), and each gradient is rounded once.
// Where the CPU multiplies pairs of bfloat16, q k^T and dout v^T of bfloat16 are made of them as they are.
#pragma once

#include "base/attention_backward_args.hpp"
#include "kernels/attention_prefill.hpp"

namespace simdformer::SF_ISA {

constexpr int64_t kTilePitch = (kBackwardRows / kPanelColumns | 1) * kPanelColumns;
constexpr int64_t kKeyPitch = (kBackwardKeys / kPanelColumns | 1) * kPanelColumns;

// The scratch memory of an item.
template <class A>
struct Workspace {
  // A band of rows. As panels [D][16 rows] for s and dout.v, of bfloat16 where that is multiplied in pairs; as panels
  // [rows][16 columns] for dk and dv.
  A *query_panels, *grad_panels, *query_columns, *grad_columns, *lse, *delta;
  A* d_query;  // (D, rows)
  // A block of keys: as rows, of bfloat16 likewise, and k^T.
  A *stage, *keys, *values, *turned_keys;
  A *d_key, *d_value;  // (keys of the part, pitch)
  // Tiles, (keys, rows): s and then P, dout.v and then ds, the mask, dM. And ds once more, as panels.
  A *weights, *d_scores, *mask, *d_mask, *panels, *mask_row;

  Workspace(const AttentionBackwardArgs& args, A* memory) {
    const int64_t depth = args.heads.depth, value_depth = args.heads.value_depth, rows = args.band_rows;
    const int64_t pitch = pitch_of(depth), value_pitch = pitch_of(value_depth);
    const auto take = [&](int64_t size) {
      A* p = memory;
      memory += size;
      return p;
    };
    query_panels = take(rows * whole_panels(depth)), grad_panels = take(rows * whole_panels(value_depth));
    query_columns = take(rows * whole_panels(depth)), grad_columns = take(rows * whole_panels(value_depth));
    lse = take(rows), delta = take(rows);
    d_query = take(depth * pitch_of(rows));
    stage = take(kPanelColumns * (pitch + value_pitch));
    keys = take(kBackwardKeys * pitch), values = take(kBackwardKeys * value_pitch);
    turned_keys = take(depth * pitch_of(kBackwardKeys));
    d_key = take(args.part_keys * pitch), d_value = take(args.part_keys * value_pitch);
    for (A** tile : {&weights, &d_scores, &mask, &d_mask}) *tile = take(kBackwardKeys * kTilePitch);
    panels = take(kBackwardKeys * kBackwardRows);
    mask_row = take(kBackwardKeys);
  }
};

// Rows [first, first + count) of a head; row r is query r / group of query head r % group. The strips before `begin` see
// no key of the part, and are left out.
struct Band {
  int64_t first, count, begin;
  bool grad_is_finite;
};

// ---- rows that lie anywhere, widened ----------------------------------------------------------------------

// x -> row; the rest of the last panel is zero. False where a number is not finite.
template <class A>
SF_INLINE bool widen_row(DType dtype, const char* from, int64_t n, A* row) {
  using V = Vec<A>;
  V check(A(0));
  with_storage_of<A>(dtype, [&](auto type) {
    map_row(
        row, n,
        [&](V x) {
          check = check | V(x * V(A(0)));
          return x;
        },
        reinterpret_cast<const decltype(type)*>(from));
  });
  fill(row, n, whole_panels(n), A(0));
  return sum_lanes(check) == A(0);
}

// bfloat16 as it is, with zeros up to the next panel
SF_INLINE void copy_row(const char* from, int64_t n, bfloat16* row) {
  std::memcpy(row, from, static_cast<size_t>(n) * 2);
  std::memset(row + n, 0, static_cast<size_t>(whole_panels(n) - n) * 2);
}

// Sixteen rows of a stage -> their place among panels of 16 columns, where what is not finite is zero: it meets the
// zeros of what a row does not see.
template <class A>
SF_INLINE void spread_columns(const A* rows, int64_t pitch, int64_t columns, bool finite, A* to,
                              int64_t panel_stride) {
  for (int64_t c = 0; c < columns; c += kPanelColumns) {
    A* panel = to + c / kPanelColumns * panel_stride;
    for (int64_t r = 0; r < kPanelColumns; ++r)
      std::memcpy(panel + r * kPanelColumns, rows + r * pitch + c, kPanelColumns * sizeof(A));
    if (!finite) remove_non_finite(panel, kPanelColumns * kPanelColumns);
  }
}

template <class A>
SF_INLINE A number_at(const View& view, const char* head, int64_t i, int64_t g) {
  return element<A>(head + i * view.strides[view.rank - 1] + g * view.strides[view.rank - 2]);
}

// Queries and gradients of a band, packed both ways; lse and delta. Rows past the last are zero.
template <class A>
void pack_band(const AttentionBackwardArgs& args, const Head& head, int64_t index, bool keeps_delta,
               const Workspace<A>& work, Band& band) noexcept {
  const AttentionArgs& heads = args.heads;
  const AttentionBackward& call = *args.call;
  const int64_t sequence = index / heads.kv_heads;
  const char* const grad = head_of_view(&call.grad, 3, sequence, head.first);
  const char* const grad_lse = head_of_view(call.grad_lse, 2, sequence, head.first);
  char* const kept = keeps_delta ? head_of_view(call.delta, 2, sequence, head.first) : nullptr;
  const int64_t depth = heads.depth, value_depth = heads.value_depth;
  const int64_t pitch = pitch_of(depth), value_pitch = pitch_of(value_depth);
  A *const queries = work.stage, *const grads = work.stage + kPanelColumns * pitch, *const out = work.values;
  // What is multiplied in pairs; no keys are packed yet.
  bfloat16* const paired_queries = reinterpret_cast<bfloat16*>(work.keys);
  bfloat16* const paired_grads = reinterpret_cast<bfloat16*>(work.values + value_pitch);
  for (int64_t r = band.begin; r < whole_panels(band.count); r += kPanelColumns) {
    bool finite = true, grad_is_finite = true;
    const int64_t own = min_of(band.count - r, kPanelColumns);
    for (int64_t n = 0; n < kPanelColumns; ++n) {
      A *query_row = queries + n * pitch, *grad_row = grads + n * value_pitch;
      if (r + n >= band.count) {
        fill(query_row, 0, pitch, A(0)), fill(grad_row, 0, value_pitch, A(0));
        work.lse[r + n] = work.delta[r + n] = A(0);
        continue;
      }
      const int64_t i = (band.first + r + n) / heads.group, g = (band.first + r + n) % heads.group;
      const View &query = call.forward.query, &result = call.forward.out;
      const char *query_from = row_of(&query, head.query, i, g), *grad_from = row_of(&call.grad, grad, i, g);
      finite &= widen_row(query.dtype, query_from, depth, query_row);
      grad_is_finite &= widen_row(call.grad.dtype, grad_from, value_depth, grad_row);
      if (heads.pairs) {
        copy_row(query_from, depth, paired_queries + n * pitch);
        copy_row(grad_from, value_depth, paired_grads + n * value_pitch);
      }
      widen_row(result.dtype, row_of(&result, head.out, i, g), value_depth, out);
      const auto add = [](Vec<A> sum, Vec<A> a, Vec<A> b) { return mul_add(a, b, sum); };
      A delta = sum_row(static_cast<const A*>(grad_row), value_depth, add, static_cast<const A*>(out));
      if (grad_lse != nullptr) delta -= number_at<A>(*call.grad_lse, grad_lse, i, g);
      work.lse[r + n] = number_at<A>(*call.forward.lse, head.lse, i, g);
      work.delta[r + n] = delta;
      if (kept != nullptr)
        std::memcpy(kept + i * call.delta->strides[call.delta->rank - 1] +
                        g * call.delta->strides[call.delta->rank - 2],
                    &delta, sizeof(A));
    }
    if (heads.pairs) {
      const auto pack_pairs = [&](const bfloat16* rows, int64_t stride, int64_t k, A* panels) {
        pack_panel_16(reinterpret_cast<const char*>(rows), 2 * stride, own, k,
                      reinterpret_cast<bfloat16*>(panels) + r * even(k));
      };
      pack_pairs(paired_queries, pitch, depth, work.query_panels);
      pack_pairs(paired_grads, value_pitch, value_depth, work.grad_panels);
    } else {
      transpose_panel<A>(queries, pitch, depth, work.query_panels + r * depth);
      transpose_panel<A>(grads, value_pitch, value_depth, work.grad_panels + r * value_depth);
    }
    const int64_t stride = args.band_rows * kPanelColumns;
    spread_columns(queries, pitch, depth, finite, work.query_columns + r * kPanelColumns, stride);
    spread_columns(grads, value_pitch, value_depth, grad_is_finite, work.grad_columns + r * kPanelColumns,
                   stride);
    band.grad_is_finite &= grad_is_finite;
  }
}

// The keys [first, first + count) as rows, and turned, with zeros for what is not finite.
template <class A>
void pack_keys(const AttentionBackwardArgs& args, const Head& head, int64_t first, int64_t count,
               const Workspace<A>& work) noexcept {
  const Attention& call = args.call->forward;
  const int64_t depth = args.heads.depth, value_depth = args.heads.value_depth, pitch = pitch_of(depth);
  constexpr int64_t kTaken = 64;
  alignas(64) A panel[kTaken * kPanelColumns];
  for (int64_t j = 0; j < count; j += kPanelColumns) {
    const int64_t columns = min_of(count - j, kPanelColumns);
    A* const keys = args.heads.pairs ? work.stage : work.keys + j * pitch;
    bool finite = true;
    for (int64_t n = j; n < j + columns; ++n) {
      const char *key = head.keys.row(first + n), *value = head.values.row(first + n);
      finite &= widen_row(call.key.dtype, key, depth, keys + (n - j) * pitch);
      if (args.heads.pairs) {
        copy_row(key, depth, reinterpret_cast<bfloat16*>(work.keys) + n * pitch);
        copy_row(value, value_depth, reinterpret_cast<bfloat16*>(work.values) + n * pitch_of(value_depth));
      } else {
        widen_row(call.value.dtype, value, value_depth, work.values + n * pitch_of(value_depth));
      }
    }
    for (int64_t d = 0; d < depth; d += kTaken) {
      const int64_t taken = min_of(depth - d, kTaken);
      pack_panel<A>(reinterpret_cast<const char*>(keys + d), pitch * static_cast<int64_t>(sizeof(A)), columns,
                    taken, panel);
      if (!finite) remove_non_finite(panel, taken * kPanelColumns);
      for (int64_t n = 0; n < taken; ++n)
        std::memcpy(work.turned_keys + (d + n) * kKeyPitch + j, panel + n * kPanelColumns,
                    kPanelColumns * sizeof(A));
    }
  }
}

// ---- a tile -----------------------------------------------------------------------------------------------

// Rows row + [0, rows) of a band against the keys first_key + [keys.begin, keys.end).
struct BackwardTile {
  int64_t row, rows;
  int64_t first_key;
  KeyRange keys;
};

// mask[key][row] of a tile: what is added, -inf where a key is not seen.
template <class A>
SF_INLINE void turn_mask(const AttentionBackwardArgs& args, const Head& head, const Band& band,
                         const BackwardTile& tile, const Workspace<A>& work) {
  const View& mask = *args.call->forward.mask;
  const int64_t first = tile.first_key * mask.strides[mask.rank - 1];
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t row = band.first + tile.row + r;
    stage_mask(mask, row_of(&mask, head.mask, row / args.heads.group, row % args.heads.group) + first,
               tile.keys, work.mask_row);
    for (int64_t j = tile.keys.begin; j < tile.keys.end; ++j)
      work.mask[j * kTilePitch + r] = work.mask_row[j];
  }
  for (int64_t j = tile.keys.begin; j < tile.keys.end; ++j)
    fill(work.mask + j * kTilePitch, tile.rows, whole_panels(tile.rows), A(0));
}

template <class A>
SF_INLINE void keep_d_mask(const AttentionBackwardArgs& args, const Head& head, int64_t index,
                           const Band& band, const BackwardTile& tile, const Workspace<A>& work) {
  const View& view = *args.call->d_mask;
  char* const d_mask = head_of_view(&view, 3, index / args.heads.kv_heads, head.first);
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t row = band.first + tile.row + r;
    A* to = reinterpret_cast<A*>(row_of(&view, d_mask, row / args.heads.group, row % args.heads.group));
    for (int64_t j = tile.keys.begin; j < tile.keys.end; ++j)
      to[tile.first_key + j] = work.d_mask[j * kTilePitch + r];
  }
}

// s and dout.v of a tile -> P and ds, dM where it is wanted. `plain`: there is neither softcap nor mask.
template <bool plain, class A>
void weigh_tile(const AttentionBackwardArgs& args, const Head& head, const Band& band,
                const BackwardTile& tile, const Workspace<A>& work) noexcept {
  using V = Vec<A>;
  constexpr int64_t W = kLanes<A>;
  const Attention& call = args.call->forward;
  const int64_t group = args.heads.group, first = band.first + tile.row, last = first + tile.rows - 1;
  const V zero(A(0)), none(kMinusInfinity<A>), scale(static_cast<A>(call.scale));
  const V most(A(sizeof(A) == 8 ? 709 : 88));  // exp's highest; a right lse stays at about 0
  const V softcap(static_cast<A>(call.softcap));
  const A *lse = work.lse + tile.row, *delta = work.delta + tile.row;
  const bool caps = call.softcap > 0, masks = call.mask != nullptr;
  const bool hides = masks && call.mask->dtype == DType::boolean;  // a hidden score may be NaN
  // The queries that see a key lie side by side, and later keys are seen by later queries.
  int64_t from = first / group, to = from;
  for (int64_t j = tile.keys.begin; j < tile.keys.end; ++j) {
    const int64_t key = tile.first_key + j;
    while (from <= last / group && head.visible.end(from) <= key) ++from;
    while (to <= last / group && head.visible.begin(to) <= key) ++to;
    const int64_t begin = clamp_to(from * group - first, 0, tile.rows);
    const int64_t end = clamp_to(to * group - first, begin, tile.rows);
    A *s = work.weights + j * kTilePitch, *d = work.d_scores + j * kTilePitch;
    for (int64_t r = 0; r < whole_panels(tile.rows); r += W) {
      A* panel = work.panels + panel_start(r) * kBackwardKeys + j * kPanelColumns + r % kPanelColumns;
      if (r >= end || r + W <= begin) {
        store(s + r, zero), store(d + r, zero), store(panel, zero);
        if constexpr (!plain) store(work.d_mask + j * kTilePitch + r, zero);
        continue;
      }
      V score = load(static_cast<const A*>(s + r)), slope = scale;
      if constexpr (!plain) {
        if (caps) {
          const V t = xsimd::tanh(divide(score, softcap));
          score = softcap * t;
          slope = scale * neg_mul_add(t, t, V(A(1)));
        }
        if (masks) score = score + load(static_cast<const A*>(work.mask + j * kTilePitch + r));
      }
      V weight = weight_exp(smaller(most, V(score - load(lse + r))));
      V d_masked = weight * (load(static_cast<const A*>(d + r)) - load(delta + r));
      V d_score = d_masked * slope;
      const auto keep = [&](const auto& choose) {
        weight = choose(weight), d_masked = choose(d_masked), d_score = choose(d_score);
      };
      if constexpr (!plain) {
        auto hidden = score == none;
        if (hides) hidden = hidden | (load(static_cast<const A*>(work.mask + j * kTilePitch + r)) == none);
        keep([&](V x) { return V(xsimd::select(hidden, zero, x)); });
      }
      if (r < begin || r + W > end) {
        const int64_t before = max_of(begin - r, 0), until = min_of(end - r, W);
        keep([&](V x) { return V(first_lanes(before, zero, first_lanes(until, x, zero))); });
      }
      if constexpr (!plain) store(work.d_mask + j * kTilePitch + r, d_masked);
      store(s + r, weight), store(d + r, d_score), store(panel, d_score);
    }
  }
}

// What of dout is not finite, added to the values of the keys that its rows see.
template <class A>
void add_non_finite_grad(const AttentionBackwardArgs& args, const Band& band, const BackwardTile& tile,
                         const Head& head, int64_t index, const Workspace<A>& work, A* d_value,
                         int64_t pitch) noexcept {
  const View& view = args.call->grad;
  const char* grad = head_of_view(&view, 3, index / args.heads.kv_heads, head.first);
  A* row = work.stage;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t at = band.first + tile.row + r;
    const char* from = row_of(&view, grad, at / args.heads.group, at % args.heads.group);
    if (widen_row(view.dtype, from, args.heads.value_depth, row)) continue;
    for (int64_t j = tile.keys.begin; j < tile.keys.end; ++j) {
      const A weight = work.weights[j * kTilePitch + r];
      if (weight == A(0)) continue;
      for (int64_t c = 0; c < args.heads.value_depth; ++c)
        if (!is_finite(row[c])) d_value[j * pitch + c] += weight * row[c];
    }
  }
}

// ---- an item ----------------------------------------------------------------------------------------------

template <class A>
SF_INLINE void clear(A* numbers, int64_t count) {
  std::memset(static_cast<void*>(numbers), 0, static_cast<size_t>(count) * sizeof(A));
}

// A band against the block of keys from first_key on, of which `keys` are packed.
//
// Where some rows of a strip see fewer keys than others, each share of them, as wide as a tile of registers, is
// multiplied by the keys that it sees alone. What is left out are zeros.
template <class A>
void pass_block(const AttentionBackwardArgs& args, const Head& head, int64_t index, const Band& band,
                int64_t first_key, KeyRange keys, int64_t part_begin, const Workspace<A>& work) noexcept {
  constexpr int64_t kColumns = kTileVectors[kTileRows] * kLanes<A>;
  constexpr int64_t kShare = kColumns < kPanelColumns ? kPanelColumns : kColumns;
  const AttentionBackward& call = *args.call;
  const int64_t depth = args.heads.depth, value_depth = args.heads.value_depth, group = args.heads.group;
  const int64_t pitch = pitch_of(depth), value_pitch = pitch_of(value_depth);
  const int64_t columns_stride = args.band_rows * kPanelColumns;
  const bool plain = call.forward.softcap == 0 && call.forward.mask == nullptr;
  Nothing none;
  const auto seen_by = [&](int64_t row, int64_t rows) {
    const int64_t first = (band.first + row) / group, last = (band.first + row + rows - 1) / group;
    return KeyRange{max_of(head.visible.begin(first) - first_key, keys.begin),
                    min_of(head.visible.end(last) - first_key, keys.end)};
  };
  for (int64_t row = band.begin; row < band.count; row += kBackwardRows) {
    const int64_t rows = min_of(band.count - row, kBackwardRows);
    const KeyRange seen = seen_by(row, rows);
    if (seen.empty()) continue;
    const BackwardTile tile{row, rows, first_key, seen};
    // Both ends grow with the rows.
    const bool alike = rows <= kShare || (seen_by(row, kShare).end == seen.end &&
                                          seen_by(row + (rows - 1) / kShare * kShare, 1).begin == seen.begin);
    const int64_t share = alike ? rows : kShare;
    // f(r, n, what they see of the keys), for the rows row + r + [0, n)
    const auto each_share_of_rows = [&](const auto& f) __attribute__((always_inline)) {
      for (int64_t r = 0; r < rows; r += share) {
        const int64_t n = min_of(rows - r, share);
        const KeyRange own = alike ? seen : seen_by(row + r, n);
        if (!own.empty()) f(r, n, own);
      }
    };
    // The packed keys begin with keys.begin.
    const auto product_of = [&](auto type, int64_t k, const A* packed, int64_t p, const A* panels, A scale,
                                A* to) {
      using T = decltype(type);
      const int64_t stride = (std::is_same_v<T, A> ? k : even(k)) * kPanelColumns;
      each_share_of_rows([&](int64_t r, int64_t n, KeyRange own) {
        for (int64_t d = 0; d < k; d += kScoreTerms)
          gemm<T>(
              own.end - own.begin, n, min_of(k - d, kScoreTerms),
              Matrix<RowOf<T>>{reinterpret_cast<const RowOf<T>*>(packed), p}.from(own.begin - keys.begin, d),
              Panels<ElementOf<T>>{reinterpret_cast<const ElementOf<T>*>(panels), stride}.from(row + r, d),
              Tile<A>{to + own.begin * kTilePitch + r, kTilePitch, d > 0, scale}, none);
      });
    };
    const auto product = [&](auto... operands) {
      if constexpr (kBf16Pairs && std::is_same_v<A, float>) {
        if (args.heads.pairs) return product_of(Pairs(), operands...);
      }
      product_of(A(), operands...);
    };
    product(depth, work.keys, pitch, work.query_panels, static_cast<A>(call.forward.scale), work.weights);
    if (value_depth == 0)
      clear(work.d_scores + seen.begin * kTilePitch, (seen.end - seen.begin) * kTilePitch);
    product(value_depth, work.values, value_pitch, work.grad_panels, A(1), work.d_scores);
    if (call.forward.mask != nullptr) turn_mask(args, head, band, tile, work);
    if (plain)
      weigh_tile<true>(args, head, band, tile, work);
    else
      weigh_tile<false>(args, head, band, tile, work);
    if (call.d_mask != nullptr) keep_d_mask(args, head, index, band, tile, work);
    const int64_t first_sum = first_key - part_begin;  // among d_key and d_value
    // sums += tile columns: a key's rows are those from the first share on that sees it.
    const auto add_rows = [&](const A* weights, const A* columns, int64_t n, A* sums, int64_t stride) {
      int64_t key = seen.begin;
      each_share_of_rows([&](int64_t r, int64_t, KeyRange own) {
        if (own.end <= key) return;
        gemm<A>(own.end - key, n, rows - r, Matrix<A>{weights + key * kTilePitch + r, kTilePitch},
                Panels<A>{columns, columns_stride}.from(0, row + r),
                Tile<A>{sums + (first_sum + key) * stride, stride, true}, none);
        key = own.end;
      });
    };
    if (call.d_value != nullptr) {
      add_rows(work.weights, work.grad_columns, value_depth, work.d_value, value_pitch);
      if (!band.grad_is_finite)
        add_non_finite_grad(args, band, tile, head, index, work, work.d_value + first_sum * value_pitch,
                            value_pitch);
    }
    if (call.d_key != nullptr) add_rows(work.d_scores, work.query_columns, depth, work.d_key, pitch);
    if (call.d_query != nullptr)
      each_share_of_rows([&](int64_t r, int64_t n, KeyRange own) {
        gemm<A>(depth, n, own.end - own.begin,
                Matrix<A>{work.turned_keys, kKeyPitch}.from(0, own.begin - keys.begin),
                Panels<A>{work.panels, kBackwardKeys * kPanelColumns}.from(r, own.begin),
                Tile<A>{work.d_query + row + r, pitch_of(args.band_rows), true}, none);
      });
  }
}

// One row of sums -> a row of the result.
template <class A>
SF_INLINE void store_row(const View& view, char* to, const A* row, int64_t n) {
  with_storage_of<A>(view.dtype, [&](auto type) {
    map_row(reinterpret_cast<decltype(type)*>(to), n, [](Vec<A> x) { return x; }, row);
  });
}

// The band's part of d_query: among the partial sums, or the result.
template <class A>
void store_band(const AttentionBackwardArgs& args, const Head& head, int64_t index, int64_t item,
                const Band& band, const Workspace<A>& work) noexcept {
  const AttentionArgs& heads = args.heads;
  const int64_t pitch = whole_panels(heads.depth), turned = pitch_of(args.band_rows);
  const View& view = *args.call->d_query;
  char* const out = head_of_view(&view, 3, index / heads.kv_heads, head.first);
  A* const partial = args.partials == nullptr
                         ? nullptr
                         : static_cast<A*>(args.partials) + (item * query_rows(heads) + band.first) * pitch;
  constexpr int64_t kTaken = 64;
  A* const rows = work.query_columns;  // no longer needed: rows of all columns
  alignas(64) A panel[kTaken * kPanelColumns];
  for (int64_t first = 0; first < band.count; first += kTaken) {
    const int64_t count = min_of(band.count - first, kTaken);
    for (int64_t d = 0; d < heads.depth; d += kPanelColumns) {
      pack_panel<A>(reinterpret_cast<const char*>(work.d_query + d * turned + first),
                    turned * static_cast<int64_t>(sizeof(A)), min_of(heads.depth - d, kPanelColumns), count,
                    panel);
      for (int64_t r = 0; r < count; ++r)
        std::memcpy(rows + r * pitch + d, panel + r * kPanelColumns, kPanelColumns * sizeof(A));
    }
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = band.first + first + r;
      if (partial != nullptr)
        std::memcpy(partial + (first + r) * pitch, rows + r * pitch, static_cast<size_t>(pitch) * sizeof(A));
      else
        store_row(view, row_of(&view, out, row / heads.group, row % heads.group), rows + r * pitch,
                  heads.depth);
    }
  }
}

// Some keys of a head: their own gradients, and what they add to those of the queries.
template <class A>
void backward_item(const AttentionBackwardArgs& args, int64_t item, A* memory) noexcept {
  const AttentionArgs& heads = args.heads;
  const AttentionBackward& call = *args.call;
  const Workspace<A> work(args, memory);
  const int64_t index = heads.first_head + item / args.parts, part = args.first_part + item % args.parts;
  const Head head = head_of(heads, index);
  const int64_t depth = heads.depth, value_depth = heads.value_depth;
  const int64_t pitch = pitch_of(depth), value_pitch = pitch_of(value_depth);
  const int64_t begin = part * args.part_keys, end = min_of(begin + args.part_keys, heads.keys);
  clear(work.d_key, (end - begin) * pitch), clear(work.d_value, (end - begin) * value_pitch);
  const bool keeps_delta = part == 0;  // of all rows, which it packs therefore
  for (int64_t first = 0; first < query_rows(heads); first += args.band_rows) {
    const int64_t count = min_of(args.band_rows, query_rows(heads) - first);
    Band band{first, count, 0, true};
    const auto sees_nothing_yet = [&](int64_t row) {
      return head.visible.end((first + min_of(row + kBackwardRows, count) - 1) / heads.group) <= begin;
    };
    if (!keeps_delta)
      while (band.begin < count && sees_nothing_yet(band.begin)) band.begin += kBackwardRows;
    const int64_t last = (first + count - 1) / heads.group;
    const KeyRange seen{max_of(head.visible.begin((first + band.begin) / heads.group), begin),
                        min_of(head.visible.end(last), end)};
    clear(work.d_query, depth * pitch_of(args.band_rows));
    if (!seen.empty() || keeps_delta) pack_band(args, head, index, keeps_delta, work, band);
    for (int64_t block = begin; block < seen.end; block += kBackwardKeys) {
      const KeyRange keys{max_of(seen.begin - block, 0), min_of(seen.end - block, kBackwardKeys)};
      if (keys.empty()) continue;
      pack_keys(args, head, block + keys.begin, keys.end - keys.begin, work);
      pass_block(args, head, index, band, block, keys, begin, work);
    }
    if (call.d_query != nullptr) store_band(args, head, index, item, band, work);
  }
  const int64_t sequence = index / heads.kv_heads, kv_head = index % heads.kv_heads;
  const auto finish = [&](const View* view, const A* sums, int64_t stride, int64_t columns) {
    if (view == nullptr) return;
    char* const out = head_of_view(view, 3, sequence, kv_head);
    for (int64_t j = begin; j < end; ++j)
      store_row(*view, out + j * row_stride(*view), sums + (j - begin) * stride, columns);
  };
  finish(call.d_key, work.d_key, pitch, depth);
  finish(call.d_value, work.d_value, value_pitch, value_depth);
}

// ---- entries of the table ---------------------------------------------------------------------------------

inline void attention_backward(const AttentionBackwardArgs& args, void* scratch, int64_t begin,
                               int64_t end) noexcept {
  for (int64_t item = begin; item < end; ++item) {
    if (args.call->forward.query.dtype == DType::f64)
      backward_item(args, item, static_cast<double*>(scratch));
    else
      backward_item(args, item, static_cast<float*>(scratch));
  }
}

// d_query of a head's parts, added up in their order. Work items are (head, row).
template <class A>
void add_parts(const AttentionBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  const AttentionArgs& heads = args.heads;
  const int64_t rows = query_rows(heads), pitch = whole_panels(heads.depth);
  const View& view = *args.call->d_query;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t head = item / rows, row = item % rows, index = heads.first_head + head;
    A* first = static_cast<A*>(args.partials) + (head * args.parts * rows + row) * pitch;
    A* sum = args.sums == nullptr ? first : static_cast<A*>(args.sums) + item * pitch;
    int64_t part = 0;
    if (args.sums == nullptr || args.first_pass) {
      if (sum != first) std::memcpy(sum, first, static_cast<size_t>(pitch) * sizeof(A));
      part = 1;
    }
    for (; part < args.parts; ++part)
      map_row(
          sum, pitch, [](Vec<A> a, Vec<A> b) { return Vec<A>(a + b); }, static_cast<const A*>(sum),
          static_cast<const A*>(first + part * rows * pitch));
    if (!args.last_pass) continue;
    char* const out = head_of_view(&view, 3, index / heads.kv_heads, index % heads.kv_heads * heads.group);
    store_row(view, row_of(&view, out, row / heads.group, row % heads.group), static_cast<const A*>(sum),
              heads.depth);
  }
}

inline void attention_backward_merge(const AttentionBackwardArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.call->forward.query.dtype == DType::f64)
    add_parts<double>(args, begin, end);
  else
    add_parts<float>(args, begin, end);
}

}  // namespace simdformer::SF_ISA
