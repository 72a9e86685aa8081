// The gradients of attention: what a call says is in base/attention_backward_args.hpp.
#pragma once

#include "base/attention_backward_args.hpp"
#include "core/attention_segments.hpp"

namespace simdformer {

// The bits do not depend on the number of threads, nor on what else is wanted. Sums over query heads that read a key
// head are made; those over axes along which an array was broadcast are the caller's. Throws std::bad_alloc and
// Interrupted.
void attention_backward(const AttentionBackward& call);

// Over packed sequences, each a call of its own; 0 where a position lies in none.
void attention_backward(const AttentionBackward& call, const Segment* segments, int64_t count);

}  // namespace simdformer
