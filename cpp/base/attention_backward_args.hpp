// The gradients of attention: one call, and what its kernels are given. Heads and rows are those of
// base/attention_args.hpp.
#pragma once

#include "base/attention_args.hpp"

namespace simdformer {

// `call` is the forward's, with `out` and `lse` as it gave them: inputs here, and `lse` in the accumulator's
// type. `data` is null for what is not wanted. Unit strides on the last axis.
struct AttentionBackward {
  Attention call;
  View grad;                       // (..., H, L, Dv), query's dtype
  const View* grad_lse = nullptr;  // (..., H, L), the accumulator's dtype
  View delta;                      // (..., H, L), the accumulator's: sum(grad out) - grad_lse, written first
  View d_query, d_key,
      d_value;  // as query, key and value; each in the dtype that it has or the accumulator's
  View d_mask;  // (..., H, L, S), the accumulator's; what nobody sees is left as it is
};

constexpr int64_t kBackwardRows = 48;  // of a tile, or those of one query where its group is larger
constexpr int64_t kBackwardKeys = 256;

// Work item = (head, part of its blocks of keys). A part has sums of its own for the gradient of the queries, which
// are added up in the order of the parts.
struct AttentionBackwardArgs {
  const AttentionBackward* gradients;
  AttentionArgs forward;
  int64_t first_head;
  int64_t parts, part_keys;  // of a head; a multiple of kBackwardKeys
  void* d_query;             // (heads of the pass, parts, rows, depth in whole panels)
};

SF_INLINE int64_t backward_tile_rows(const AttentionArgs& args) {
  return whole_panels(args.group >= kBackwardRows ? args.group : kBackwardRows / args.group * args.group);
}

// Scratch of a work item, in elements: keys as panels both ways and values, their sums, the tile's rows of queries
// and gradients as rows and as panels, four tiles and a row of the mask and of the softcap's derivative.
SF_INLINE int64_t backward_scratch(const AttentionArgs& args) {
  const int64_t width = whole_panels(args.depth) + whole_panels(args.value_depth);
  const int64_t rows = backward_tile_rows(args);
  return kBackwardKeys * (3 * width) + kPanelColumns * (pitch_of(args.depth) + pitch_of(args.value_depth)) +
         rows * (pitch_of(args.depth) + pitch_of(args.value_depth) + width) +
         2 * rows * pitch_of(kBackwardKeys) + 2 * kBackwardKeys * pitch_of(rows) + 2 * kBackwardKeys;
}

}  // namespace simdformer
