// scaled_dot_product_attention: its arguments are read, its results allocated, core is called.
#include "bindings/attention.hpp"

#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

constexpr Arg kAttentionOut{kAttention, "out"};

py::object attend(py::handle query_object, py::handle key_object, py::handle value_object,
                  py::handle mask_object, py::handle dropout_p, py::handle is_causal, py::handle scale,
                  py::handle enable_gqa, py::handle causal_offset, py::handle window, py::handle chunk,
                  py::handle key_starts, py::handle key_lengths, py::handle segment_ids,
                  py::handle cu_seqlens, py::handle softcap, py::handle sinks_object, py::handle table_object,
                  py::handle return_weights, py::handle return_scores, py::handle return_lse,
                  py::handle out_object) {
  AttentionInputs inputs({query_object, key_object, value_object, mask_object, dropout_p, is_causal, scale,
                          enable_gqa, causal_offset, window, chunk, key_starts, key_lengths, segment_ids,
                          cu_seqlens, softcap, sinks_object, table_object});
  auto& [query, key, value, mask, sinks, given_sizes, sizes, positions, pages, no_heads, rank, shape, call] =
      inputs;
  const DType dtype = query.view.dtype, sum = accumulator(dtype);

  shape[rank - 1] = sizes.value_dim;
  Output out(kAttentionOut, out_object, dtype, rank, shape);
  out.check_overlap(kQuery, query.view, Alias::refused);
  out.check_overlap(kKey, key.view, Alias::refused);
  out.check_overlap(kValue, value.view, Alias::refused);
  if (!mask_object.is_none()) out.check_overlap(kMask, mask.view, Alias::refused);
  if (!sinks_object.is_none()) out.check_overlap(kSinks, sinks.view, Alias::refused);

  out.unit_last_axis();
  call.out = out.view;
  if (no_heads) add_head_axis(call.out);

  Computed weights, scores, lse;  // beside `out`, if they are wanted
  const auto wanted = [&](const char* option, py::handle flag, Computed& result, const View*& view, DType as,
                          int axes) {
    if (!read_flag({kAttention, option}, flag)) return;
    result.allocate({kAttention, option}, as, sum, axes, inputs.shape);
    if (inputs.no_heads) add_head_axis(result.computed);
    view = &result.computed;
  };
  shape[rank - 1] = sizes.keys;
  wanted("return_weights", return_weights, weights, call.weights, dtype, rank);
  wanted("return_scores", return_scores, scores, call.scores, dtype, rank);
  wanted("return_lse", return_lse, lse, call.lse, sum, rank - 1);

  if (call.query.size() > 0) {  // what is wanted besides has elements though the value may have no columns
    const auto numbers = static_cast<double>(call.query.size() + call.out.size());
    NoGil nogil(is_long_product(numbers, sizes.keys));
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
