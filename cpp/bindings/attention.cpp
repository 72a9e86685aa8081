// scaled_dot_product_attention. Letters: H query heads, K key/value heads, L queries, S keys, D and Dv head
// sizes; a sequence is one index of the leading axes.
#include "core/attention.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>
#include <xtensor/xshape.hpp>
#include <xtensor/xstrides.hpp>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "core/copy.hpp"
#include "core/sizes.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

constexpr const char* kAttention = "scaled_dot_product_attention";
constexpr Arg kQuery{kAttention, "query"}, kKey{kAttention, "key"}, kValue{kAttention, "value"};
constexpr Arg kMask{kAttention, "attn_mask"}, kCausalOffset{kAttention, "causal_offset"};
constexpr Arg kWindow{kAttention, "window"}, kKeyLengths{kAttention, "key_lengths"},
    kSinks{kAttention, "sinks"}, kBlockTable{kAttention, "block_table"};
constexpr Arg kOut{kAttention, "out"};

struct Sizes {
  int64_t heads, kv_heads, queries, keys, head_dim, value_dim;
};

// ---- shapes ---------------------------------------------------------------------------------------------

// (L, D) is one head: (1, L, D).
void add_head_axis(View& view) { insert_axis(view, 0, 1, 0); }

// The leading axes of key or value: those of the query, or 1, which becomes a stride of 0.
void broadcast_leading(const Arg& arg, View& view, const View& query) {
  const std::string given = shape_text(view);
  for (int axis = 0; axis + 3 < view.rank; ++axis) {
    if (view.shape[axis] == query.shape[axis]) continue;
    if (view.shape[axis] != 1)
      refuse_value(arg, "has shape " + given, "leading axes equal to the query's, or 1",
                   "query has shape " + shape_text(query));
    view.shape[axis] = query.shape[axis];
    view.strides[axis] = 0;
  }
}

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

// Key and value are pools of pages, and a sequence has a row of the table.
Sizes read_paged_shapes(const View& query, const View& key, const View& value, const Integers& table,
                        bool enable_gqa) {
  if (query.rank != 3 && query.rank != 4)
    refuse_value(kQuery, "has shape " + shape_text(query),
                 "(B, H, L, D), or (H, L, D), beside a block_table");
  for (const auto& [arg, pool] : {std::pair{kKey, &key}, {kValue, &value}})
    if (pool->rank != 4)
      refuse_value(arg, "has shape " + shape_text(*pool),
                   "(pages, K, positions of a page, D) beside a block_table");
  if (table.rank != query.rank - 2 || (query.rank == 4 && table.shape[0] != query.shape[0]))
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
  return sizes;
}

// Checks the three shapes; 2-D views become 3-D.
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
  broadcast_leading(kKey, key, query);
  broadcast_leading(kValue, value, query);
  return sizes;
}

// The mask as a view of the scores' shape, with strides of 0 where it is broadcast.
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

// ---- numbers for each sequence --------------------------------------------------------------------------

// One number for all sequences, or one for each index of the first leading axes, spread out over all
// sequences.
struct PerSequence {
  int64_t one = 0;
  std::vector<int64_t> each;

  const int64_t* data() const { return each.empty() ? nullptr : each.data(); }
};

int64_t sequences_of(const View& query) {
  int64_t sequences = 1;
  for (int axis = 0; axis < query.rank - 3; ++axis) sequences *= query.shape[axis];
  return sequences;
}

void read_per_sequence(const Arg& arg, py::handle object, const View& query, PerSequence& numbers) {
  if (PyLong_Check(object.ptr())) {
    numbers.one = read_integer(arg, object);
    return;
  }
  const Integers given = read_integers(arg, object);
  check_not_wrapped(arg, given);
  if (given.rank == 0) {
    numbers.one = *given.data;
    return;
  }
  const int leading = query.rank - 3;
  if (given.rank > leading || !std::equal(given.shape, given.shape + given.rank, query.shape))
    refuse_value(arg, "has shape " + shape_text(given.rank, given.shape),
                 leading == 0 ? "one integer, as query has no axis of sequences"
                              : "one integer, or one for each of the " + std::to_string(query.shape[0]) +
                                    " entries of query's first axis");
  const int64_t sequences = sequences_of(query);
  if (sequences == 0) return;
  const int64_t repeats = sequences / given.size;
  numbers.each.resize(static_cast<size_t>(sequences));
  for (int64_t i = 0; i < sequences; ++i) numbers.each[static_cast<size_t>(i)] = given.data[i / repeats];
}

void check_between(const Arg& arg, const PerSequence& numbers, int64_t low, int64_t high,
                   const char* needed) {
  const auto check = [&](int64_t number) {
    if (number < low || number > high) refuse_value(arg, "is or holds " + std::to_string(number), needed);
  };
  check(numbers.one);
  for (const int64_t number : numbers.each) check(number);
}

// The pages of the table, 0 for entries that lie behind a sequence's length: nothing is read there.
std::vector<int64_t> read_pages(const Integers& table, const View& key, const PerSequence& lengths) {
  check_not_wrapped(kBlockTable, table);
  std::vector<int64_t> pages(table.data, table.data + table.size);
  const int64_t row = table.shape[table.rank - 1];
  for (int64_t i = 0; i < table.size; ++i) {
    int64_t& page = pages[static_cast<size_t>(i)];
    const bool unused =
        !lengths.each.empty() && i % row * key.shape[2] >= lengths.each[static_cast<size_t>(i / row)];
    if (unused)
      page = 0;
    else if (page < 0 || page >= key.shape[0])
      refuse_value(
          kBlockTable, "holds " + std::to_string(page),
          "pages from 0 to " + std::to_string(key.shape[0] - 1) + " of key of shape " + shape_text(key),
          "what lies behind key_lengths may be anything");
  }
  return pages;
}
// ---- the call -------------------------------------------------------------------------------------------

// Far beyond any array, so that i + offset - window stays within 64 bits.
constexpr int64_t kFar = int64_t{1} << 61;

void read_causality(py::handle is_causal, py::handle offset, py::handle window, const View& query,
                    const Sizes& sizes, Attention& call, PerSequence& offsets) {
  call.is_causal = read_flag({kAttention, "is_causal"}, is_causal);
  if (!call.is_causal) {
    if (!offset.is_none())
      refuse_value(kCausalOffset, "is given", "is_causal=True, without which it has no meaning");
    if (!window.is_none())
      refuse_value(kWindow, "is given", "is_causal=True, without which it has no meaning");
    return;
  }
  if (!offset.is_none()) {
    read_per_sequence(kCausalOffset, offset, query, offsets);
    check_between(kCausalOffset, offsets, -kFar, kFar, "numbers within 2**61");
    call.causal_offset = offsets.one;
    call.causal_offsets = offsets.data();
  } else if (sizes.queries != sizes.keys) {
    refuse_value(kCausalOffset,
                 "is not given while L = " + std::to_string(sizes.queries) +
                     " and S = " + std::to_string(sizes.keys) + " differ",
                 "to say which key is the last that query 0 may see",
                 "0 lines up the first positions (top-left, PyTorch), S - L = " +
                     std::to_string(sizes.keys - sizes.queries) +
                     " the last (bottom-right: decoding with a cache, MLX, flash-attn)");
  }
  if (!window.is_none()) {
    call.window = read_integer(kWindow, window);
    if (call.window <= 0) refuse_value(kWindow, "is " + std::to_string(call.window), "a number > 0");
    call.window = std::min(call.window, 2 * kFar);
  }
}

// A result beside `out`: computed in the accumulator's dtype, given in the query's.
class Extra {
 public:
  Extra(const char* name, DType dtype, DType sum, int rank, const int64_t* shape) {
    const Arg arg{kAttention, name};
    array = new_array(arg, dtype, rank, shape, view_);
    if (dtype == sum) {
      computed = view_;
    } else {
      stand_in_ = new_array(arg, sum, rank, shape, computed);
    }
    given_ = computed;
  }

  // The GIL may be released.
  void finish() const {
    if (stand_in_) convert_elements(given_, view_);
  }

  py::object array;
  View computed;  // for the kernel, which may want an axis more

 private:
  View view_, given_;
  py::object stand_in_;
};

py::object attend(py::handle query_object, py::handle key_object, py::handle value_object,
                  py::handle mask_object, py::handle dropout_p, py::handle is_causal, py::handle scale,
                  py::handle enable_gqa, py::handle causal_offset, py::handle window, py::handle key_lengths,
                  py::handle softcap, py::handle sinks_object, py::handle table_object,
                  py::handle return_weights, py::handle return_scores, py::handle return_lse,
                  py::handle out_object) {
  Input query = read_array(kQuery, query_object), key = read_array(kKey, key_object);
  Input value = read_array(kValue, value_object);
  const DType dtype = query.view.dtype, sum = accumulator(dtype);
  check_parameter_dtype(kKey, key.view.dtype, kQuery, dtype);
  check_same_dtype(kValue, value.view.dtype, kKey, key.view.dtype);
  if (read_real({kAttention, "dropout_p"}, dropout_p) != 0)
    refuse_value({kAttention, "dropout_p"}, "is " + shown(dropout_p), "0",
                 "there is no training here, and dropout is for training");

  const int rank = query.view.rank;
  const bool gqa = read_flag({kAttention, "enable_gqa"}, enable_gqa), paged = !table_object.is_none();
  Integers table;
  if (paged) table = read_integers(kBlockTable, table_object);
  const Sizes sizes = paged ? read_paged_shapes(query.view, key.view, value.view, table, gqa)
                            : read_shapes(query.view, key.view, value.view, gqa);
  const bool no_heads = rank == 2;
  int64_t shape[kMaxRank];  // of the result; its last axis dropped: of lse; replaced by S: of the scores
  const int64_t* const query_shape = query.view.shape + (no_heads ? 1 : 0);
  std::copy(query_shape, query_shape + rank, shape);

  Attention call;
  PerSequence offsets, lengths;
  read_causality(is_causal, causal_offset, window, query.view, sizes, call, offsets);
  if (!key_lengths.is_none()) {
    read_per_sequence(kKeyLengths, key_lengths, query.view, lengths);
    check_between(kKeyLengths, lengths, 0, sizes.keys, "numbers from 0 to S, the number of keys");
    if (lengths.each.empty()) lengths.each.assign(static_cast<size_t>(sequences_of(query.view)), lengths.one);
    call.key_lengths = lengths.data();
  }
  std::vector<int64_t> pages;
  if (paged) {
    pages = read_pages(table, key.view, lengths);
    call.block_table = pages.data();
    call.pages = table.shape[table.rank - 1];
  }
  call.scale = scale.is_none() ? 1 / std::sqrt(static_cast<double>(sizes.head_dim))
                               : read_finite({kAttention, "scale"}, scale);
  if (!softcap.is_none()) call.softcap = read_positive({kAttention, "softcap"}, softcap);

  Input mask, sinks;
  if (!mask_object.is_none()) {
    mask = read_array(kMask, mask_object, Accept::floats_and_bool);
    shape[rank - 1] = sizes.keys;
    broadcast_mask(mask.view, rank, shape);
    if (no_heads) add_head_axis(mask.view);
    call.mask = &mask.view;
  }
  if (!sinks_object.is_none()) {
    sinks = read_array(kSinks, sinks_object);
    check_parameter_dtype(kSinks, sinks.view.dtype, kQuery, dtype);
    check_not_both_16_bit(kSinks, sinks.view.dtype, kKey, key.view.dtype);
    check_vector(kSinks, sinks.view, sizes.heads, "one number for each query head");
  }

  shape[rank - 1] = sizes.value_dim;
  Output out(kOut, out_object, dtype, rank, shape);
  out.check_overlap(kQuery, query.view, Alias::refused);
  out.check_overlap(kKey, key.view, Alias::refused);
  out.check_overlap(kValue, value.view, Alias::refused);
  if (!mask_object.is_none()) out.check_overlap(kMask, mask.view, Alias::refused);
  if (!sinks_object.is_none()) out.check_overlap(kSinks, sinks.view, Alias::refused);

  unit_last_axis(kQuery, query), unit_last_axis(kKey, key), unit_last_axis(kValue, value);
  out.unit_last_axis();
  call.query = query.view, call.key = key.view, call.value = value.view, call.out = out.view;
  if (!sinks_object.is_none()) {
    unit_last_axis(kSinks, sinks);
    call.sinks = sinks.view.data;
    call.sinks_dtype = sinks.view.dtype;
  }
  if (no_heads) add_head_axis(call.out);

  std::optional<Extra> weights, scores, lse;
  const auto wanted = [&](const char* option, py::handle flag, std::optional<Extra>& extra, const View*& view,
                          DType as, int axes) {
    if (!read_flag({kAttention, option}, flag)) return;
    extra.emplace(option, as, sum, axes, shape);
    if (no_heads) add_head_axis(extra->computed);
    view = &extra->computed;
  };
  shape[rank - 1] = sizes.keys;
  wanted("return_weights", return_weights, weights, call.weights, dtype, rank);
  wanted("return_scores", return_scores, scores, call.scores, dtype, rank);
  wanted("return_lse", return_lse, lse, call.lse, sum, rank - 1);

  if (call.query.size() > 0) {  // what is wanted besides has elements though the value may have no columns
    NoGil nogil;
    attention(call);
    out.finish();
    if (weights) weights->finish();
    if (scores) scores->finish();
  }
  if (!weights && !scores && !lse) return std::move(out.array);
  py::list results;
  results.append(out.array);
  if (weights) results.append(weights->array);
  if (scores) results.append(scores->array);
  if (lse) results.append(lse->array);
  return py::tuple(results);
}

}  // namespace

void bind_attention(py::module_& module) { module.def("scaled_dot_product_attention", &attend); }

}  // namespace simdformer
