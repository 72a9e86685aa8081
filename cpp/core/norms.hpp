// rms_norm and layer_norm over the last axis: float32 arithmetic (float64 for float64), rounded once.
//
// x and out: one shape and dtype, unit last strides; out may be x itself. weight and bias: contiguous (n),
// null when absent; x's dtype, or 16-bit beside float32, or float32 beside 16-bit.
#pragma once

#include "base/array.hpp"

namespace simdformer {

// out = x / sqrt(mean(x^2) + eps) * weight
void rms_norm(const View& x, const View* weight, double eps, const View& out);

// out = (x - mean) / sqrt(var + eps) * weight + bias
void layer_norm(const View& x, const View* weight, const View* bias, double eps, const View& out);

}  // namespace simdformer
