// softmax: out = e^((x - max x) / temperature) / sum, over the last axis.
#pragma once

#include "base/array.hpp"

namespace simdformer {

// One shape and dtype, unit last strides; out may be x itself. temperature > 0. Sums are float32 (float64 for
// float64).
void softmax(const View& x, double temperature, const View& out);

}  // namespace simdformer
