#include "core/attention_segments.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/bounds.hpp"
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

// The call that a segment is: its parts of the arrays, with bounds of its own.
struct SegmentCall {
  Attention call;
  View mask, weights, scores, lse;
  int64_t start, length;

  SegmentCall(const Attention& whole, const Segment& segment) : call(whole) {
    call.query = queries_of(whole.query, segment), call.out = queries_of(whole.out, segment);
    call.key = keys_of(whole.key, segment), call.value = keys_of(whole.value, segment);
    if (whole.mask != nullptr) mask = scores_of(*whole.mask, segment), call.mask = &mask;
    if (whole.weights != nullptr) weights = scores_of(*whole.weights, segment), call.weights = &weights;
    if (whole.scores != nullptr) scores = scores_of(*whole.scores, segment), call.scores = &scores;
    if (whole.lse != nullptr) lse = rows_of_queries(*whole.lse, segment), call.lse = &lse;
    call.causal_offsets = nullptr;
    call.causal_offset = segment.causal_offset;
    const auto bound = [&](const int64_t* bounds) {
      return clamp_to(bounds[segment.sequence] - segment.first_key, 0, segment.keys);
    };
    if (whole.key_starts != nullptr) start = bound(whole.key_starts), call.key_starts = &start;
    if (whole.key_lengths != nullptr) length = bound(whole.key_lengths), call.key_lengths = &length;
  }
  SegmentCall(const SegmentCall&) = delete;
};

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

View rows_of_queries(const View& view, const Segment& segment) {
  View part = of_sequence(view, 2, segment.sequence);
  narrow(part, 1, segment.first_query, segment.queries);
  return part;
}

void for_each_segment(const Attention& call, const Segment* segments, int64_t count,
                      const std::function<void(const Attention&, const Segment&)>& body) {
  std::vector<Segment> small;
  double nanoseconds = 0;
  for (const Segment* segment = segments; segment < segments + count; ++segment) {
    const double here = nanoseconds_of(call, *segment);
    if (here >= kLargeSegment) {
      body(SegmentCall(call, *segment).call, *segment);
    } else {
      small.push_back(*segment);
      nanoseconds += here;
    }
  }
  const auto left = static_cast<int64_t>(small.size());
  parallel_for(left, grain_of(nanoseconds / static_cast<double>(std::max<int64_t>(left, 1))),
               [&](int64_t begin, int64_t end) {
                 for (int64_t s = begin; s < end; ++s) {
                   const Segment& segment = small[static_cast<size_t>(s)];
                   body(SegmentCall(call, segment).call, segment);
                 }
               });
}

void attention(const Attention& call, const Segment* segments, int64_t count) {
  for_each_segment(call, segments, count, [&](const Attention& own, const Segment& segment) {
    if (call.weights != nullptr) fill_outside(*call.weights, segment, 0);
    if (call.scores != nullptr) fill_outside(*call.scores, segment, -std::numeric_limits<double>::infinity());
    attention(own);
  });
}

}  // namespace simdformer
