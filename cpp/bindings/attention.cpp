// scaled_dot_product_attention: its arguments are read, its results allocated, core is called.
#include "bindings/attention.hpp"

#include <cmath>

#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

constexpr Arg kSinks{kAttention, "sinks"}, kOut{kAttention, "out"};

py::object attend(py::handle query_object, py::handle key_object, py::handle value_object,
                  py::handle mask_object, py::handle dropout_p, py::handle is_causal, py::handle scale,
                  py::handle enable_gqa, py::handle causal_offset, py::handle window, py::handle chunk,
                  py::handle key_starts, py::handle key_lengths, py::handle segment_ids,
                  py::handle cu_seqlens, py::handle softcap, py::handle sinks_object, py::handle table_object,
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
  Positions positions;
  read_positions(
      {is_causal, causal_offset, window, chunk, key_starts, key_lengths, segment_ids, cu_seqlens, paged},
      query.view, sizes, call, positions);
  std::vector<int64_t> pages;
  if (paged) {
    pages = read_pages(table, key.view, positions);
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

  Computed weights, scores, lse;  // beside `out`, if they are wanted
  const auto wanted = [&](const char* option, py::handle flag, Computed& result, const View*& view, DType as,
                          int axes) {
    if (!read_flag({kAttention, option}, flag)) return;
    result.allocate({kAttention, option}, as, sum, axes, shape);
    if (no_heads) add_head_axis(result.computed);
    view = &result.computed;
  };
  shape[rank - 1] = sizes.keys;
  wanted("return_weights", return_weights, weights, call.weights, dtype, rank);
  wanted("return_scores", return_scores, scores, call.scores, dtype, rank);
  wanted("return_lse", return_lse, lse, call.lse, sum, rank - 1);

  if (call.query.size() > 0) {  // what is wanted besides has elements though the value may have no columns
    NoGil nogil;
    if (positions.segments.empty())
      attention(call);
    else
      attention(call, positions.segments.data(), static_cast<int64_t>(positions.segments.size()));
    out.finish();
    if (weights) weights.finish();
    if (scores) scores.finish();
  }
  if (!weights && !scores && !lse) return std::move(out.array);
  py::list results;
  results.append(out.array);
  if (weights) results.append(weights.array);
  if (scores) results.append(scores.array);
  if (lse) results.append(lse.array);
  return py::tuple(results);
}

}  // namespace

void bind_attention(py::module_& module) { module.def("scaled_dot_product_attention", &attend); }

}  // namespace simdformer
