// Which experts of a mixture a token goes through, and the sum of what they write. Their products are in
// core/linear.hpp.
#pragma once

#include "base/array.hpp"

namespace simdformer {

// ids (n, k): of each row of logits (n, X) the k largest, the largest first; of equals that of the lower
// number, and NaN as minus infinity. float32 or float64, contiguous, k <= X.
void likeliest(const View& logits, int64_t k, int64_t* ids);

// out (n, E): the sum over j of weights[n, j] x[n, j], of (n, k) and (n, k, E), from the first j to the last.
// All are float32, or float64, and contiguous.
void mix(const View& x, const View& weights, const View& out);

}  // namespace simdformer
