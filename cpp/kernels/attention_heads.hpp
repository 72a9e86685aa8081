// attention: where the arrays of a head lie, and which keys a query sees
#pragma once

#include "core/attention_args.hpp"

namespace simdformer::SF_ISA {

SF_INLINE int64_t clamp_to(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

SF_INLINE int64_t add_saturated(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? INT64_MIN : INT64_MAX;
}

// The keys [begin, end) of a block.
struct Span {
  int64_t begin, end;
};

// Query i sees the keys [i + first, i + last) of [0, keys). Both ends grow with i.
struct Band {
  int64_t first, last, keys;

  SF_INLINE int64_t begin(int64_t i) const { return clamp_to(i + first, 0, keys); }
  SF_INLINE int64_t end(int64_t i) const { return clamp_to(i + last, 0, keys); }
  SF_INLINE Span seen(int64_t i, int64_t first_key, int64_t count) const {
    return {clamp_to(begin(i) - first_key, 0, count), clamp_to(end(i) - first_key, 0, count)};
  }
};

// One key/value head: where its arrays begin, at the first of its query heads.
struct Head {
  const char *query, *key, *value, *mask;
  char *out, *weights, *scores, *lse;
  int64_t first;  // the number of the first query head
  Band band;
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

SF_INLINE Band band_of(const AttentionArgs& args, int64_t sequence) {
  const Attention& call = *args.call;
  // Beyond these bounds a band is empty or whole for every query.
  const int64_t low = -args.queries, high = args.keys;
  Band band{low, high, call.key_lengths ? clamp_to(call.key_lengths[sequence], 0, args.keys) : args.keys};
  if (!call.is_causal) return band;
  const int64_t offset = call.causal_offsets ? call.causal_offsets[sequence] : call.causal_offset;
  band.last = clamp_to(add_saturated(offset, 1), low, high);
  if (call.window > 0) band.first = clamp_to(add_saturated(offset, 1 - call.window), low, high);
  return band;
}

SF_INLINE Head head_of(const AttentionArgs& args, int64_t index) {
  const Attention& call = *args.call;
  const int64_t sequence = index / args.kv_heads, kv_head = index % args.kv_heads,
                first = kv_head * args.group;
  Head head;
  head.query = head_of_view(&call.query, 3, sequence, first);
  head.key = head_of_view(&call.key, 3, sequence, kv_head);
  head.value = head_of_view(&call.value, 3, sequence, kv_head);
  head.mask = head_of_view(call.mask, 3, sequence, first);
  head.out = head_of_view(&call.out, 3, sequence, first);
  head.weights = head_of_view(call.weights, 3, sequence, first);
  head.scores = head_of_view(call.scores, 3, sequence, first);
  head.lse = head_of_view(call.lse, 2, sequence, first);
  head.first = first;
  head.band = band_of(args, sequence);
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
