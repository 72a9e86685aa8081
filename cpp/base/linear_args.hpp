// What the kernels of kernels/linear.hpp and kernels/pack.hpp are given.
#pragma once

#include "base/array.hpp"
#include "base/cache.hpp"
#include "base/panels.hpp"
#include "base/quantized_args.hpp"

namespace simdformer {

constexpr int64_t kDepthBlock = 256;  // inputs that are widened or packed at a time

// Rows [16 p, 16 p + 16) of a weight -> panel p. Work items are panels.
struct PackArgs {
  const char* weight;  // (columns, depth), unit stride along depth
  int64_t row_stride;  // in bytes
  DType dtype;
  int64_t columns, depth;
  char* panels;  // 64-byte aligned
};

// The same rows, of float32 or a 16-bit dtype -> their columns of a quantized weight, and what that lost. Its scales
// and codes are sought; see kernels/quantize_weight.hpp for what can be written.
struct QuantizeWeightArgs {
  PackArgs weight;
  const QuantizedFormat* format;
  QuantizingLoss* losses;  // one a panel
};

// Rows of a quantized weight, those in `rows` or all in order -> rows of `out`, of any float dtype.
struct DequantizeArgs {
  const QuantizedFormat* format;
  const uint8_t* slices;
  int64_t depth;
  const int64_t* rows;
  Rows out;
};

// Panel p -> rows [16 p, 16 p + 16) of a weight. Work items are panels.
struct UnpackArgs {
  const char* panels;
  DType dtype;
  int64_t columns, depth;
  char* weight;
  int64_t row_stride;
};

// Rows [first + begin, first + end) of x -> rows [begin, end) of `out` as x's accumulator, or as the bfloat16
// they are, with zeros up to `stride`; for quantized weights as ActivationBlocks, `stride` of them a row.
struct PackRowsArgs {
  Rows x;
  int64_t first;
  void* out;
  int64_t stride;  // in elements, even
  bool pairs;      // as bfloat16, for weights that are multiplied in pairs
};

// One weight of a call, with what is added to its product and where that goes.
struct LinearWeight {
  const char* weight;  // plain: (columns, depth), row_stride bytes apart; packed: panels one after the other
  int64_t row_stride;
  DType dtype;
  bool packed;
  const QuantizedFormat*
      format;        // null unless it is quantized, in slices; then it is packed and its dtype f32
  SliceAhead ahead;  // when it is quantized and x_blocks are multiplied
  int64_t columns;
  int64_t sum_terms;  // of a partial sum; 0: as many as the depth has by itself
  const char* bias;   // (columns), bias_stride bytes apart; null when absent
  int64_t bias_stride;
  DType bias_dtype;
  Rows out;            // all rows of the call
  int64_t begin, end;  // the rows of the call that it multiplies
  int64_t row, rows;   // those of them that the block has, counted from its first
  int64_t chunks;      // that these are cut into
  int64_t first_item;  // work items of the weights before this one
};

// out = x W^T + bias for one block of rows of x. Work item = (weight, slice, chunk of rows), counted in this
// order.
struct LinearArgs {
  // (rows, depth), packed: the accumulator's type, zeros from depth to x_stride
  const void* x;
  // The same as bfloat16, for packed bfloat16 weights where the CPU multiplies pairs; null otherwise
  const bfloat16* x_pairs;
  // The same as integers, for quantized weights; null when these are multiplied in float32
  const ActivationBlock* x_blocks;
  int64_t x_stride;  // in elements
  Cache goal;        // of weights that few rows of x prefetch
  // The rows of the results that those of the block go to; null: `first` and those after it.
  const int64_t* places;
  int64_t first;
  int64_t depth;
  int64_t chunk_rows;
  const LinearWeight* weights;
  int count;
};

// Scratch of one work item: the slice of the bias, a block of widened panels and a tile of sums.
SF_INLINE int64_t linear_scratch_bytes(int64_t chunk_rows, DType accumulator) {
  return itemsize(accumulator) * kSliceColumns * (chunk_rows + 1 + kDepthBlock);
}

}  // namespace simdformer
