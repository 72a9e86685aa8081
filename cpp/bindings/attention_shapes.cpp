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

using Shape = xt::dynamic_shape<int64_t>;

// `common` becomes what it and another shape have together, as numpy broadcasts them; false where they do not fit.
bool broadcast(int rank, const int64_t* shape, Shape& common) {
  const Shape given(shape, shape + rank);
  if (given.size() > common.size()) return false;
  try {
    xt::broadcast_shape(given, common);
  } catch (const xt::broadcast_error&) {
    return false;
  }
  return true;
}

// The view in a shape that it fits, axes lined up at the last: strides of 0 where it is stretched.
void stretch(View& view, int rank, const int64_t* shape) {
  View full;
  full.data = view.data;
  full.dtype = view.dtype;
  full.rank = rank;
  const int missing = rank - view.rank;
  for (int axis = 0; axis < rank; ++axis) {
    full.shape[axis] = shape[axis];
    const bool stretched = axis < missing || view.shape[axis - missing] != shape[axis];
    full.strides[axis] = stretched ? 0 : view.strides[axis - missing];
  }
  view = full;
}

void broadcast_leading(View& query, View& key, View& value) {
  const int leading = query.rank - 3;
  Shape common(query.shape, query.shape + leading);
  for (const auto& [arg, view] : {std::pair{kKey, &key}, {kValue, &value}})
    if (!broadcast(leading, view->shape, common))
      refuse_value(arg, "has shape " + shape_text(*view),
                   "leading axes that fit those of query and key, or 1",
                   "query has shape " + shape_text(query) + ", key " + shape_text(key));
  for (View* view : {&query, &key, &value}) {
    int64_t shape[kMaxRank];
    std::copy_n(view->shape, view->rank, shape);
    std::copy(common.begin(), common.end(), shape);
    stretch(*view, view->rank, shape);
  }
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
  if (shared) {
    const int64_t shape[] = {table.shape[0], query.shape[1], query.shape[2], query.shape[3]};
    stretch(query, 4, shape);
  }
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
  const Shape wanted(scores_shape, scores_shape + scores_rank);
  Shape common(wanted.size(), 1);
  const bool fits = broadcast(mask.rank, mask.shape, common) &&
                    broadcast(scores_rank, scores_shape, common) && common == wanted;
  if (!fits)
    refuse_value(kMask, "has shape " + shape_text(mask),
                 "one that can be broadcast to the scores, " + shape_text(scores_rank, scores_shape),
                 "axes are lined up at the last: (..., H, L, S)");
  stretch(mask, scores_rank, scores_shape);
}

}  // namespace simdformer
