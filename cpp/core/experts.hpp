// Which experts of a mixture a token goes through, and the sum of what they write. Their products are in
// core/linear.hpp.
#pragma once

#include "base/array.hpp"

namespace simdformer {

// ids (..., k), contiguous: the k largest of each row of logits (..., X), the largest first; among equals the lower
// number comes first, and NaN counts as minus infinity. float32 or float64, unit last stride, 1 <= k <= X.
void top_k(const View& logits, int64_t k, int64_t* ids);

// out (..., E): the sum over j of weights[..., j] x[..., j, :], of (..., k) and (..., k, E), from the first j to the
// last. All are float32, or float64, with unit last strides.
void combine_experts(const View& x, const View& weights, const View& out);

}  // namespace simdformer
