// Attention on arrays: what a call says is in base/attention_call.hpp.
#pragma once

#include "base/attention_call.hpp"

namespace simdformer {

// The bits of a result do not depend on the number of threads, on the other sequences and heads, nor on what
// else is wanted. With pages they depend neither on which pages hold the keys nor on the queries beside it, as
// long as there are several of them. Throws std::bad_alloc and Interrupted.
void attention(const Attention& call);

}  // namespace simdformer
