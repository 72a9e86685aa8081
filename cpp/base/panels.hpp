// Panels: the form in which a matrix is multiplied. A panel holds 16 of its columns (outputs of a weight,
// keys, channels of values), whatever the instruction set, so that packed weights may travel between
// machines:
//
//   float32, float64, float16   [k][16]          element (k, n) at k * 16 + n % 16 of panel n / 16
//   bfloat16                    [k / 2][16][2]   two successive k side by side in one 32-bit word
//
// Columns past the last one are zero; so is the missing half of the last pair when k is odd.
#pragma once

#include "base/array.hpp"

namespace simdformer {

constexpr int64_t kPanelColumns = 16;
// A slice of a weight, a work item's share of its product: four panels, or what is left of them.
constexpr int64_t kSliceColumns = 4 * kPanelColumns;

SF_INLINE int64_t even(int64_t n) { return n + n % 2; }

// Columns with those that fill the last panel.
SF_INLINE int64_t whole_panels(int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

// The first column of the panel that holds `column`.
SF_INLINE int64_t panel_start(int64_t column) { return column / kPanelColumns * kPanelColumns; }

// Elements from one row of scratch to the next, where rows hold n: an odd number of panels, so that rows
// spread over the cache.
SF_INLINE int64_t pitch_of(int64_t n) { return (whole_panels(n) / kPanelColumns | 1) * kPanelColumns; }

// Elements of one panel.
SF_INLINE int64_t panel_elements(int64_t depth, DType dtype) {
  return (dtype == DType::bf16 ? even(depth) : depth) * kPanelColumns;
}

}  // namespace simdformer
