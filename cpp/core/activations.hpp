// silu, gelu, relu, swiglu and sums, element by element: float32 arithmetic (float64 for float64), rounded once.
#pragma once

#include "base/array.hpp"
#include "base/kernel_table.hpp"

namespace simdformer {

// out = f(x). One shape and dtype, unit last strides; out may be x itself.
void activation(Activation kind, const View& x, const View& out);

// out = silu(gate) * up. One shape and dtype, unit last strides; out may be gate or up itself.
void swiglu(const View& gate, const View& up, const View& out);

// out = x + y, likewise
void add(const View& x, const View& y, const View& out);

}  // namespace simdformer
