// The gradients of attention on arrays: what a call says is in base/attention_backward_args.hpp.
#pragma once

#include "base/attention_backward_args.hpp"
#include "core/attention_segments.hpp"

namespace simdformer {

// The bits do not depend on the number of threads, nor on the other sequences and heads. What no query sees gets 0,
// but in d_mask, and where there are no queries. Throws std::bad_alloc and Interrupted.
void attention_backward(const AttentionBackward& gradients);

// The same for packed sequences: each segment is a call of its own. Keys of no segment are left as they are.
void attention_backward(const AttentionBackward& gradients, const Segment* segments, int64_t count);

}  // namespace simdformer
