#include "core/attention_segments.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/bounds.hpp"
#include "core/attention_backward.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// `count` places of an axis, from `first` on.
void narrow(View& view, int axis, int64_t first, int64_t count) {
  view.data += first * view.strides[axis];
  view.shape[axis] = count;
}

// One sequence of an array whose last `inner` axes are no leading ones.
View of_sequence(const View& view, int inner, int64_t sequence) {
  View part;
  part.data = view.data;
  part.dtype = view.dtype;
  part.rank = inner;
  const int leading = view.rank - inner;
  for (int axis = leading - 1; axis >= 0; --axis) {
    part.data += sequence % view.shape[axis] * view.strides[axis];
    sequence /= view.shape[axis];
  }
  std::copy_n(view.shape + leading, inner, part.shape);
  std::copy_n(view.strides + leading, inner, part.strides);
  return part;
}

View queries_of(const View& view, const Segment& segment) {
  View part = of_sequence(view, 3, segment.sequence);
  narrow(part, 1, segment.first_query, segment.queries);
  return part;
}

View keys_of(const View& view, const Segment& segment) {
  View part = of_sequence(view, 3, segment.sequence);
  narrow(part, 1, segment.first_key, segment.keys);
  return part;
}

View scores_of(const View& view, const Segment& segment) {
  View part = queries_of(view, segment);
  narrow(part, 2, segment.first_key, segment.keys);
  return part;
}

template <class A>
void fill_outside_as(const View& view, const Segment& segment, A value) {
  const View rows = queries_of(view, segment);
  for (int64_t h = 0; h < rows.shape[0]; ++h)
    for (int64_t i = 0; i < rows.shape[1]; ++i) {
      A* row = reinterpret_cast<A*>(rows.data + h * rows.strides[0] + i * rows.strides[1]);
      std::fill(row, row + segment.first_key, value);
      std::fill(row + segment.first_key + segment.keys, row + rows.shape[2], value);
    }
}

// What the queries of a segment have with the keys of others.
void fill_outside(const View& view, const Segment& segment, double value) {
  if (view.dtype == DType::f64)
    fill_outside_as<double>(view, segment, value);
  else
    fill_outside_as<float>(view, segment, static_cast<float>(value));
}

// One number a query.
View sums_of(const View& view, const Segment& segment) {
  View part = of_sequence(view, 2, segment.sequence);
  narrow(part, 1, segment.first_query, segment.queries);
  return part;
}

// The part of a call that is about a segment, and the memory of what it points to.
struct SegmentCall {
  Attention own;
  View mask, lse;
  int64_t start = 0, length = 0;

  SegmentCall(const Attention& call, const Segment& segment) : own(call) {
    own.query = queries_of(call.query, segment), own.out = queries_of(call.out, segment);
    own.key = keys_of(call.key, segment), own.value = keys_of(call.value, segment);
    if (call.mask != nullptr) mask = scores_of(*call.mask, segment), own.mask = &mask;
    if (call.lse != nullptr) lse = sums_of(*call.lse, segment), own.lse = &lse;
    own.causal_offsets = nullptr;
    own.causal_offset = segment.causal_offset;
    const auto bound = [&](const int64_t* bounds) {
      return clamp_to(bounds[segment.sequence] - segment.first_key, 0, segment.keys);
    };
    if (call.key_starts != nullptr) start = bound(call.key_starts), own.key_starts = &start;
    if (call.key_lengths != nullptr) length = bound(call.key_lengths), own.key_lengths = &length;
  }
  SegmentCall(const SegmentCall&) = delete;
};

void attend(const Attention& call, const Segment& segment) {
  SegmentCall part(call, segment);
  Attention& own = part.own;
  View weights, scores;
  if (call.weights != nullptr) {
    fill_outside(*call.weights, segment, 0);
    weights = scores_of(*call.weights, segment), own.weights = &weights;
  }
  if (call.scores != nullptr) {
    fill_outside(*call.scores, segment, -std::numeric_limits<double>::infinity());
    scores = scores_of(*call.scores, segment), own.scores = &scores;
  }
  attention(own);
}

// Few queries wait for their keys, as eight do.
double nanoseconds_of(const Attention& call, const Segment& segment) {
  const double heads = static_cast<double>(call.query.shape[call.query.rank - 3]);
  const double width =
      static_cast<double>(call.query.shape[call.query.rank - 1] + call.value.shape[call.value.rank - 1]);
  const double pairs = static_cast<double>(std::max<int64_t>(segment.queries, 8)) *
                       static_cast<double>(std::max<int64_t>(segment.keys, 1));
  return heads * pairs * width * cost::product;
}

}  // namespace

// Large segments one after the other on all threads, the small ones side by side.
void attention(const Attention& call, const Segment* segments, int64_t count) {
  std::vector<Segment> small;
  double nanoseconds = 0;
  for (const Segment* segment = segments; segment < segments + count; ++segment) {
    const double here = nanoseconds_of(call, *segment);
    if (here >= kLargeSegment) {
      attend(call, *segment);
    } else {
      small.push_back(*segment);
      nanoseconds += here;
    }
  }
  const auto left = static_cast<int64_t>(small.size());
  parallel_for(left, grain_of(nanoseconds / static_cast<double>(std::max<int64_t>(left, 1))),
               [&](int64_t begin, int64_t end) {
                 for (int64_t s = begin; s < end; ++s) attend(call, small[static_cast<size_t>(s)]);
               });
}

void attention_backward(const AttentionBackward& gradients, const Segment* segments, int64_t count) {
  for (const Segment* segment = segments; segment < segments + count; ++segment) {
    const SegmentCall part(gradients.call, *segment);
    AttentionBackward own = gradients;
    own.call = part.own;
    own.grad = queries_of(gradients.grad, *segment);
    own.delta = sums_of(gradients.delta, *segment);
    View of_lse;
    if (gradients.grad_lse != nullptr)
      of_lse = sums_of(*gradients.grad_lse, *segment), own.grad_lse = &of_lse;
    if (gradients.d_query.data != nullptr) own.d_query = queries_of(gradients.d_query, *segment);
    if (gradients.d_key.data != nullptr) own.d_key = keys_of(gradients.d_key, *segment);
    if (gradients.d_value.data != nullptr) own.d_value = keys_of(gradients.d_value, *segment);
    if (gradients.d_mask.data != nullptr) own.d_mask = scores_of(gradients.d_mask, *segment);
    attention_backward(own);
  }
}

}  // namespace simdformer
