// The arguments of scaled_dot_product_attention: shapes, and where queries and keys stand. Letters: H query
// heads, K key/value heads, L queries, S keys, D and Dv head sizes; a sequence is one index of the leading
// axes.
#pragma once

#include <vector>

#include "bindings/checks.hpp"
#include "core/attention_segments.hpp"

namespace simdformer {

constexpr const char* kAttention = "scaled_dot_product_attention";
constexpr Arg kQuery{kAttention, "query"}, kKey{kAttention, "key"}, kValue{kAttention, "value"};
constexpr Arg kMask{kAttention, "attn_mask"}, kBlockTable{kAttention, "block_table"},
    kCausalOffset{kAttention, "causal_offset"}, kSinks{kAttention, "sinks"};

struct Sizes {
  int64_t heads, kv_heads, queries, keys, head_dim, value_dim;
};

// (L, D) is one head: (1, L, D).
inline void add_head_axis(View& view) { insert_axis(view, 0, 1, 0); }

// ---- shapes: attention_shapes.cpp -----------------------------------------------------------------------

// Checks the three shapes. The leading axes of each become those that all have together, with strides of 0
// where one is stretched; 2-D views become 3-D.
Sizes read_shapes(View& query, View& key, View& value, bool enable_gqa);

// The same where key and value are pools of pages, and a sequence has a row of the table.
Sizes read_paged_shapes(View& query, const View& key, const View& value, const Integers& table,
                        bool enable_gqa);

// The mask as a view of the scores' shape, with strides of 0 where it is broadcast.
void broadcast_mask(View& mask, int scores_rank, const int64_t* scores_shape);

// ---- positions: attention_positions.cpp, attention_segments.cpp -----------------------------------------

// One number for all sequences, or one for each index of the first leading axes, spread out over all
// sequences.
struct PerSequence {
  int64_t one = 0;
  std::vector<int64_t> each;

  const int64_t* data() const { return each.empty() ? nullptr : each.data(); }
};

// The arguments that say which keys a query sees, as they were given.
struct PositionArguments {
  py::handle is_causal, causal_offset, window, chunk, key_starts, key_lengths, segment_ids, cu_seqlens;
  bool paged;
};

// The memory of what `Attention` points to, and the segments: none where sequences are not packed.
struct Positions {
  PerSequence offsets, starts, lengths;
  std::vector<Segment> segments;
};

int64_t sequences_of(const View& query);
void read_offsets(py::handle offset, const View& query, PerSequence& offsets);  // checked

// Fills what `call` knows of positions. `query` has the leading axes of the call.
void read_positions(const PositionArguments& arguments, const View& query, const Sizes& sizes,
                    Attention& call, Positions& positions);

// The texts that are packed into each sequence, by ids or by cumulative lengths. With `positions_count` each
// has an offset: the given one, or 0 where it has as many keys as queries.
void read_segments(const PositionArguments& arguments, bool positions_count, const View& query,
                   const Sizes& sizes, Positions& positions);

// The pages of the table, 0 for entries that lie outside of a sequence: nothing is read there.
std::vector<int64_t> read_pages(const Integers& table, const View& key, const Positions& positions);

// ---- all of it: attention_inputs.cpp --------------------------------------------------------------------

// What a call and its backward are given alike.
struct AttentionArguments {
  py::handle query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, causal_offset, window, chunk,
      key_starts, key_lengths, segment_ids, cu_seqlens, softcap, sinks, block_table;
};

// The same, checked: `call` lacks its results alone. What it points to lies here.
struct AttentionInputs {
  explicit AttentionInputs(const AttentionArguments& given);
  AttentionInputs(const AttentionInputs&) = delete;

  Input query, key, value, mask, sinks;
  int64_t given_sizes[3];  // of query, key and value, before they are stretched
  Sizes sizes;
  Positions positions;
  std::vector<int64_t> pages;
  bool no_heads;            // the arrays have two axes
  int rank;                 // of the result, as the caller sees it
  int64_t shape[kMaxRank];  // of the result; its last axis dropped: of lse; replaced by S: of the scores
  Attention call;
};

}  // namespace simdformer
