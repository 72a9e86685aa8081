// What scaled_dot_product_attention and its backward are given alike: read, checked and lined up.
#include <cmath>

#include "bindings/attention.hpp"

namespace simdformer {

AttentionInputs::AttentionInputs(const AttentionArguments& given)
    : query(read_array(kQuery, given.query)),
      key(read_array(kKey, given.key)),
      value(read_array(kValue, given.value)),
      given_sizes{query.view.size(), key.view.size(), value.view.size()} {
  const DType dtype = query.view.dtype;
  check_parameter_dtype(kKey, key.view.dtype, kQuery, dtype);
  check_same_dtype(kValue, value.view.dtype, kKey, key.view.dtype);
  if (read_real({kAttention, "dropout_p"}, given.dropout_p) != 0)
    refuse_value({kAttention, "dropout_p"}, "is " + shown(given.dropout_p), "0",
                 "there is no training here, and dropout is for training");

  rank = query.view.rank;
  const bool gqa = read_flag({kAttention, "enable_gqa"}, given.enable_gqa),
             paged = !given.block_table.is_none();
  Integers table;
  if (paged) table = read_integers(kBlockTable, given.block_table);
  sizes = paged ? read_paged_shapes(query.view, key.view, value.view, table, gqa)
                : read_shapes(query.view, key.view, value.view, gqa);
  no_heads = rank == 2;
  const int64_t* const query_shape = query.view.shape + (no_heads ? 1 : 0);
  std::copy(query_shape, query_shape + rank, shape);

  read_positions({given.is_causal, given.causal_offset, given.window, given.chunk, given.key_starts,
                  given.key_lengths, given.segment_ids, given.cu_seqlens, paged},
                 query.view, sizes, call, positions);
  if (paged) {
    pages = read_pages(table, key.view, positions);
    call.block_table = pages.data();
    call.pages = table.shape[table.rank - 1];
  }
  call.scale = given.scale.is_none() ? 1 / std::sqrt(static_cast<double>(sizes.head_dim))
                                     : read_finite({kAttention, "scale"}, given.scale);
  if (!given.softcap.is_none()) call.softcap = read_positive({kAttention, "softcap"}, given.softcap);

  if (!given.mask.is_none()) {
    mask = read_array(kMask, given.mask, Accept::floats_and_bool);
    shape[rank - 1] = sizes.keys;
    broadcast_mask(mask.view, rank, shape);
    if (no_heads) add_head_axis(mask.view);
    call.mask = &mask.view;
  }
  if (!given.sinks.is_none()) {
    sinks = read_array(kSinks, given.sinks);
    check_parameter_dtype(kSinks, sinks.view.dtype, kQuery, dtype);
    check_not_both_16_bit(kSinks, sinks.view.dtype, kKey, key.view.dtype);
    check_vector(kSinks, sinks.view, sizes.heads, "one number for each query head");
    unit_last_axis(kSinks, sinks);
    call.sinks = sinks.view.data;
    call.sinks_dtype = sinks.view.dtype;
  }
  unit_last_axis(kQuery, query), unit_last_axis(kKey, key), unit_last_axis(kValue, value);
  call.query = query.view, call.key = key.view, call.value = value.view;
}

}  // namespace simdformer
