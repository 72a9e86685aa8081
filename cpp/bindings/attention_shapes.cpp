// Shapes of scaled_dot_product_attention, checked against each other and stretched to what they have together.
#include <algorithm>
#include <xtensor/xshape.hpp>
#include <xtensor/xstrides.hpp>

#include "base/sizes.hpp"
#include "bindings/attention.hpp"

namespace simdformer {
namespace {

void check_beside_query(const Arg& arg, const View& view, const View& query) {
  if (view.rank != query.rank)
    refuse_value(arg, "has shape " + shape_text(view),
                 "as many axes as query, whose shape is " + shape_text(query));
}

// Checks the sizes against each other.
void check_sizes(const Sizes& sizes, const View& query, const View& key, bool enable_gqa) {
  if (sizes.head_dim == 0) refuse_value(kQuery, "has shape " + shape_text(query), "a head_dim of at least 1");
  if (key.shape[key.rank - 1] != sizes.head_dim)
    refuse_value(
        kKey, "has shape " + shape_text(key),
        "a last axis of " + std::to_string(sizes.head_dim) + ", as query of shape " + shape_text(query));
  if (sizes.heads != sizes.kv_heads && (sizes.kv_heads == 0 || sizes.heads % sizes.kv_heads != 0))
    refuse_value(kKey, "has " + std::to_string(sizes.kv_heads) + " heads",
                 "a number that divides the " + std::to_string(sizes.heads) + " heads of query",
                 "the axis of heads is the third from the end: (..., H, L, D)");
  if (!enable_gqa && sizes.heads != sizes.kv_heads)
    refuse_value({kAttention, "enable_gqa"}, "is False",
                 "True for " + std::to_string(sizes.heads) + " query heads beside " +
                     std::to_string(sizes.kv_heads) + " key/value heads");
}

void stretch(View& view, int axis, int64_t extent) {
  if (view.shape[axis] == extent) return;
  view.shape[axis] = extent;
  view.strides[axis] = 0;
}

// The extent that leading axis `axis` has in all three, as numpy broadcasts them.
int64_t common_extent(int axis, const View& query, const View& key, const View& value) {
  int64_t extent = query.shape[axis];
  for (const auto& [arg, view] : {std::pair{kKey, &key}, {kValue, &value}}) {
    const int64_t here = view->shape[axis];
    if (extent != 1 && here != 1 && here != extent)
      refuse_value(arg, "has shape " + shape_text(*view),
                   "leading axes that fit those of query and key, or 1",
                   "query has shape " + shape_text(query) + ", key " + shape_text(key));
    if (extent == 1) extent = here;
  }
  return extent;
}

void broadcast_leading(View& query, View& key, View& value) {
  int64_t extents[kMaxRank];
  for (int axis = 0; axis + 3 < query.rank; ++axis) extents[axis] = common_extent(axis, query, key, value);
  for (View* view : {&query, &key, &value})
    for (int axis = 0; axis + 3 < query.rank; ++axis) stretch(*view, axis, extents[axis]);
}

}  // namespace

Sizes read_paged_shapes(View& query, const View& key, const View& value, const Integers& table,
                        bool enable_gqa) {
  if (query.rank != 3 && query.rank != 4)
    refuse_value(kQuery, "has shape " + shape_text(query),
                 "(B, H, L, D), or (H, L, D), beside a block_table");
  for (const auto& [arg, pool] : {std::pair{kKey, &key}, {kValue, &value}})
    if (pool->rank != 4)
      refuse_value(arg, "has shape " + shape_text(*pool),
                   "(pages, K, positions of a page, D) beside a block_table");
  const bool shared = query.rank == 4 && query.shape[0] == 1;  // the query, by all sequences
  if (table.rank != query.rank - 2 || (query.rank == 4 && !shared && table.shape[0] != query.shape[0]))
    refuse_value(kBlockTable, "has shape " + shape_text(table.rank, table.shape),
                 query.rank == 4 ? "(B, pages of a sequence) with B = " + std::to_string(query.shape[0])
                                 : "(pages of the sequence,)",
                 "query has shape " + shape_text(query));
  if (key.shape[2] == 0) refuse_value(kKey, "has shape " + shape_text(key), "pages of at least one position");
  if (!std::equal(key.shape, key.shape + 3, value.shape))
    refuse_value(kValue, "has shape " + shape_text(value),
                 "as many pages, heads and positions as key of shape " + shape_text(key));
  const Sizes sizes{query.shape[query.rank - 3], key.shape[1],
                    query.shape[query.rank - 2], bytes_of(table.shape[table.rank - 1], key.shape[2]),
                    query.shape[query.rank - 1], value.shape[3]};
  check_sizes(sizes, query, key, enable_gqa);
  if (shared) stretch(query, 0, table.shape[0]);
  return sizes;
}

Sizes read_shapes(View& query, View& key, View& value, bool enable_gqa) {
  check_rank_at_least(kQuery, query, 2, "(..., H, L, D), or (L, D) for one head");
  check_beside_query(kKey, key, query);
  check_beside_query(kValue, value, query);
  const int rank = query.rank;
  const Sizes sizes{rank > 2 ? query.shape[rank - 3] : 1,
                    rank > 2 ? key.shape[rank - 3] : 1,
                    query.shape[rank - 2],
                    key.shape[rank - 2],
                    query.shape[rank - 1],
                    value.shape[rank - 1]};
  if (value.shape[rank - 2] != sizes.keys || (rank > 2 && value.shape[rank - 3] != sizes.kv_heads))
    refuse_value(kValue, "has shape " + shape_text(value),
                 "as many heads and positions as key of shape " + shape_text(key));
  check_sizes(sizes, query, key, enable_gqa);
  if (rank == 2) add_head_axis(query), add_head_axis(key), add_head_axis(value);
  broadcast_leading(query, key, value);
  return sizes;
}

void broadcast_mask(View& mask, int scores_rank, const int64_t* scores_shape) {
  const std::vector<int64_t> wanted(scores_shape, scores_shape + scores_rank);
  const std::vector<int64_t> given(mask.shape, mask.shape + mask.rank);
  bool fits = given.size() <= wanted.size();
  if (fits) {
    std::vector<int64_t> common(wanted.size(), 1);
    try {
      xt::broadcast_shape(given, common);
      xt::broadcast_shape(wanted, common);
      fits = common == wanted;
    } catch (const xt::broadcast_error&) {
      fits = false;
    }
  }
  if (!fits)
    refuse_value(kMask, "has shape " + shape_text(mask),
                 "one that can be broadcast to the scores, " + shape_text(scores_rank, scores_shape),
                 "axes are lined up at the last: (..., H, L, S)");
  View full;
  full.data = mask.data;
  full.dtype = mask.dtype;
  full.rank = scores_rank;
  const int missing = scores_rank - mask.rank;
  for (int axis = 0; axis < scores_rank; ++axis) {
    full.shape[axis] = scores_shape[axis];
    const bool stretched = axis < missing || mask.shape[axis - missing] != scores_shape[axis];
    full.strides[axis] = stretched ? 0 : mask.strides[axis - missing];
  }
  mask = full;
}

}  // namespace simdformer
