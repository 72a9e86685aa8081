// What the kernels of attention are given. A "head" is one key/value head of one sequence with the `group` of
// query heads that read it; heads are counted sequence * kv_heads + head. Row r of a head is query r / group
// of its query head r % group: neighbours see nearly the same keys.
#pragma once

#include "base/attention_call.hpp"
#include "base/cache.hpp"
#include "base/panels.hpp"
#include "base/tuning.hpp"

namespace simdformer {

constexpr int64_t kKeyBlock = 256;     // prefill: keys whose scores are held at a time
constexpr int64_t kDecodeChunk = 512;  // keys of a work item there
constexpr int64_t kDecodeBlock = 256;  // keys whose scores are held at a time there

struct AttentionArgs {
  const Attention* call;
  int64_t kv_heads, group;
  int64_t heads;               // of all sequences
  int64_t queries, keys;       // L, S
  int64_t depth, value_depth;  // D, Dv
  // Queries and keys are bfloat16 and multiplied as such; `scale` is for the scores then.
  bool pairs;
  int64_t first_head;           // items count from here
  int64_t first_key, last_key;  // the keys of this pass: multiples of the block or chunk, or the end

  // Prefill, many rows: work item = (head, block of queries), the last block of a head first.
  int64_t block_queries;  // queries of a block
  int64_t first_block, blocks;
  int64_t items;  // of this pass
  void* packed;   // keys and values of the pass as panels, or null: the item packs them itself
  void* state;    // sums of the rows between passes, or null: there is one pass
  bool first_pass, last_pass;

  // Decode, few rows: work item = (head, chunk of keys).
  int64_t chunks;
  void* partials;  // one Sums for each item, or null: there is one chunk, which finishes
  bool far;        // keys and values do not stay near
  Cache goal;      // of those
};

SF_INLINE int64_t strip_queries(const AttentionArgs& args) {
  return args.group >= kStripRows ? 1 : kStripRows / args.group;
}

// A block of packed keys and values, in elements: a start of 16 whose first says whether a value is not
// finite, K as panels [depth][16 keys], V as panels [256 keys][16 columns].
SF_INLINE int64_t packed_block_size(const AttentionArgs& args) {
  return kPanelColumns + kKeyBlock * (args.depth + whole_panels(args.value_depth));
}

// The running sums of `rows` rows: weighted values, maximum of the scores, sum of the exponentials.
SF_INLINE int64_t sums_size(const AttentionArgs& args, int64_t rows) {
  return rows * whole_panels(args.value_depth) + 2 * whole_panels(rows);
}

// Scratch of one work item, in elements.
SF_INLINE int64_t prefill_scratch(const AttentionArgs& args) {
  const int64_t rows = args.block_queries * args.group;
  return strip_queries(args) * args.group * (pitch_of(args.depth) + pitch_of(kKeyBlock)) + kKeyBlock +
         packed_block_size(args) + sums_size(args, rows);
}

SF_INLINE int64_t decode_scratch(const AttentionArgs& args) {
  const int64_t rows = args.queries * args.group;
  return rows * pitch_of(args.depth) + sums_size(args, rows) + kDecodeBlock + rows * pitch_of(kDecodeBlock) +
         (kDecodeBlock + rows) * whole_panels(args.value_depth);
}

}  // namespace simdformer
