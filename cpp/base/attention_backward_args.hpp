// attention's backward: a call, and what its kernels are given (formulas: kernels/attention_backward.hpp).
#pragma once

#include "base/attention_args.hpp"
#include "base/tuning.hpp"

namespace simdformer {

// One call. Its arrays have the leading axes that query, key and value have together.
struct AttentionBackward {
  Attention forward;               // inputs, `out` and `lse` of the forward; no pages, no weights, no scores
  View grad;                       // (..., H, L, Dv), of `out`: its dtype, unit stride on the last axis
  const View* grad_lse = nullptr;  // (..., H, L), of `lse`, in the accumulator's dtype; any strides

  // What is wanted, or null. Contiguous; the dtype is any whose arithmetic is query's.
  const View* d_query = nullptr;  // (..., H, L, D)
  const View* d_key = nullptr;    // (..., K, S, D)
  const View* d_value = nullptr;  // (..., K, S, Dv)
  // In the accumulator's dtype:
  const View* d_mask = nullptr;  // (..., H, L, S), of a mask that is added
  const View* delta = nullptr;  // (..., H, L): sum(grad out) - grad_lse, of which the sinks' gradient is made
};

// Work items are (head, part of its keys). Rows are taken a band at a time, keys a block at a time.
struct AttentionBackwardArgs {
  AttentionArgs heads;  // where the arrays of a head lie; items count from its first_head
  const AttentionBackward* call;
  int64_t first_part, parts;  // of this pass
  int64_t part_keys;          // whole blocks
  int64_t band_rows;          // whole strips
  // d_query of each item, (rows, whole_panels(D)), or null: there is one part, which writes the result.
  void* partials;
  void* sums;  // of the passes before, the same for each head, or null: there is one pass
  bool first_pass, last_pass;
};

SF_INLINE int64_t query_rows(const AttentionArgs& args) { return args.queries * args.group; }

// Scratch of one work item, in elements: the parts of Workspace in kernels/attention_backward.hpp.
SF_INLINE int64_t backward_scratch(const AttentionBackwardArgs& args) {
  const int64_t depth = args.heads.depth, value_depth = args.heads.value_depth, rows = args.band_rows;
  const int64_t width = pitch_of(depth) + pitch_of(value_depth);
  const int64_t tile = kBackwardKeys * pitch_of(kBackwardRows);
  return 2 * rows * (whole_panels(depth) + whole_panels(value_depth)) +
         2 * rows +                // queries, grad; lse, delta
         depth * pitch_of(rows) +  // d_query
         kPanelColumns * width + kBackwardKeys * width +
         depth * pitch_of(kBackwardKeys) +                          // stage; a block of keys
         args.part_keys * width +                                   // d_key, d_value
         4 * tile + kBackwardKeys * kBackwardRows + kBackwardKeys;  // tiles; mask's row
}

}  // namespace simdformer
