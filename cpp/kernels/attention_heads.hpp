// attention: where the arrays of a head lie
#pragma once

#include "base/attention_args.hpp"
#include "base/visible_keys.hpp"

namespace simdformer::SF_ISA {

// The keys or values of a head: `stride` bytes apart, or so within pages that lie `page_stride` bytes apart.
struct Rows {
  const char* data;
  int64_t stride;
  const int64_t* table;  // the pages in order; null: there are none
  int64_t page, page_stride;

  SF_INLINE const char* row(int64_t j) const {
    return table == nullptr ? data + j * stride : data + table[j / page] * page_stride + j % page * stride;
  }
};

// f(row) for rows [first, end), with a division for each page only.
template <class F>
SF_INLINE void each_row(const Rows& all, int64_t first, int64_t end, F f) {
  for (int64_t j = first; j < end;) {
    const int64_t stop = all.table == nullptr ? end : min_of((j / all.page + 1) * all.page, end);
    for (const char* row = all.row(j); j < stop; ++j, row += all.stride) f(row);
  }
}

// One key/value head: where its arrays begin, at the first of its query heads.
struct Head {
  const char *query, *mask;
  Rows keys, values;
  char *out, *weights, *scores, *lse;
  int64_t first;  // the number of the first query head
  VisibleKeys visible;
};

SF_INLINE int64_t head_stride(const View& view) { return view.strides[view.rank - 3]; }
SF_INLINE int64_t row_stride(const View& view) { return view.strides[view.rank - 2]; }

// Where head `head` of a sequence begins; `inner` axes follow the leading ones.
SF_INLINE char* head_of_view(const View* view, int inner, int64_t sequence, int64_t head) {
  if (view == nullptr) return nullptr;
  char* p = view->data + head * view->strides[view->rank - inner];
  for (int axis = view->rank - inner - 1; axis >= 0; --axis) {
    p += sequence % view->shape[axis] * view->strides[axis];
    sequence /= view->shape[axis];
  }
  return p;
}

SF_INLINE Rows rows_of_head(const Attention& call, const View& view, int64_t sequence, int64_t head) {
  if (call.block_table == nullptr)
    return {head_of_view(&view, 3, sequence, head), row_stride(view), nullptr, 0, 0};
  return {view.data + head * head_stride(view), row_stride(view), call.block_table + sequence * call.pages,
          view.shape[2], view.strides[0]};
}

SF_INLINE Head head_of(const AttentionArgs& args, int64_t index) {
  const Attention& call = *args.call;
  const int64_t sequence = index / args.kv_heads, kv_head = index % args.kv_heads,
                first = kv_head * args.group;
  Head head;
  head.query = head_of_view(&call.query, 3, sequence, first);
  head.keys = rows_of_head(call, call.key, sequence, kv_head);
  head.values = rows_of_head(call, call.value, sequence, kv_head);
  head.mask = head_of_view(call.mask, 3, sequence, first);
  head.out = head_of_view(&call.out, 3, sequence, first);
  head.weights = head_of_view(call.weights, 3, sequence, first);
  head.scores = head_of_view(call.scores, 3, sequence, first);
  head.lse = head_of_view(call.lse, 2, sequence, first);
  head.first = first;
  head.visible = visible_keys(call, sequence, args.queries, args.keys);
  return head;
}

// Row (i, g) of an array of the call: null when that is absent.
SF_INLINE const char* row_of(const View* view, const char* head, int64_t i, int64_t g) {
  return head ? head + i * row_stride(*view) + g * head_stride(*view) : nullptr;
}
SF_INLINE char* row_of(const View* view, char* head, int64_t i, int64_t g) {
  return head ? head + i * row_stride(*view) + g * head_stride(*view) : nullptr;
}

}  // namespace simdformer::SF_ISA
