// Elements moved between views of one shape.
#pragma once

#include "base/array.hpp"

namespace simdformer {

// Bit by bit, in one dtype, whatever the strides.
void copy_elements(const View& from, const View& to);

// Between float dtypes, rounded once, to nearest even; NaN stays NaN. Unit last strides where the dtypes
// differ.
void convert_elements(const View& from, const View& to);

}  // namespace simdformer
