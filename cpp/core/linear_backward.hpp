// The gradients of y = x W^T + b, from dy:     dx = dy W     dW = dy^T x     db: sum_over_rows (core/gradients.hpp)
//
// Both are products of core/linear.hpp. What differs is how their right operand is packed: W and x are read across
// their rows, a panel at a time, and nothing of them is transposed; dy is, for dW. How work is cut depends on sizes
// alone. Throws std::bad_alloc and Interrupted.
#pragma once

#include "core/linear.hpp"

namespace simdformer {

// One weight of a call, as LinearOperand has it, and the gradient of its result.
struct LinearGradient {
  View grad;                                   // (..., O), x's dtype, unit last stride
  const View* weight = nullptr;                // (O, I), any leading stride, unit last stride
  const PackedWeight* packed = nullptr;        // instead of weight
  const QuantizedWeight* quantized = nullptr;  // instead of both
};

// out (..., I) = the sum over all weights of grad W. Sums are float32 (float64 for float64), rounded once.
void linear_backward_x(const LinearGradient* gradients, int count, const View& out);

// outs[j] (O, I), contiguous, of the accumulator's type = grad_j^T x for x (..., I), x's rows packed once.
void linear_backward_weight(const LinearGradient* gradients, int count, const View& x, const View* outs);

}  // namespace simdformer
