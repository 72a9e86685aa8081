// backward.scaled_dot_product_attention: the forward's arguments are read as it reads them.
#include "core/attention_backward.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bindings/attention.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

constexpr const char* kBackward = "backward.scaled_dot_product_attention";

// A gradient of a whole view, zeros at first: in its own dtype, or in the accumulator's where the caller will still
// add up axes along which the input was stretched.
py::object new_gradient(const Arg& arg, const View& view, bool stretched, View& gradient) {
  const DType dtype = stretched ? accumulator(view.dtype) : view.dtype;
  py::object array = new_array(arg, dtype, view.rank, view.shape, gradient);
  if (gradient.size() > 0)
    std::memset(gradient.data, 0, static_cast<size_t>(gradient.size() * itemsize(dtype)));
  return array;
}

// An input beside `out`, of this shape.
Input read_beside(const char* name, py::handle object, DType dtype, int rank, const int64_t* shape) {
  const Arg arg{kBackward, name};
  Input input = read_array(arg, object);
  check_same_dtype(arg, input.view.dtype, kQuery, dtype);
  if (input.view.rank != rank || !std::equal(shape, shape + rank, input.view.shape))
    refuse_value(arg, "has shape " + shape_text(input.view),
                 shape_text(rank, shape) + ", that of the forward");
  unit_last_axis(arg, input);
  return input;
}

// Gives the gradients of query, key, value and mask, None where they are not wanted, and delta (..., H, L). Those of
// arrays that were stretched have the shape that all have together, in the accumulator's dtype.
py::tuple attend_backward(py::handle grad_object, py::handle query_object, py::handle key_object,
                          py::handle value_object, py::handle out_object, py::handle lse_object,
                          py::handle mask_object, py::handle dropout_p, py::handle is_causal,
                          py::handle scale, py::handle enable_gqa, py::handle causal_offset,
                          py::handle window, py::handle chunk, py::handle key_starts, py::handle key_lengths,
                          py::handle segment_ids, py::handle cu_seqlens, py::handle softcap,
                          py::handle grad_lse_object, py::handle query_flag, py::handle key_flag,
                          py::handle value_flag, py::handle mask_flag) {
  Input query = read_array(kQuery, query_object), key = read_array(kKey, key_object);
  Input value = read_array(kValue, value_object);
  const DType dtype = query.view.dtype, sum = accumulator(dtype);
  check_parameter_dtype(kKey, key.view.dtype, kQuery, dtype);
  check_same_dtype(kValue, value.view.dtype, kKey, key.view.dtype);
  if (read_real({kBackward, "dropout_p"}, dropout_p) != 0)
    refuse_value({kBackward, "dropout_p"}, "is " + shown(dropout_p), "0",
                 "attention is computed without dropout");

  const int rank = query.view.rank;
  const View given[] = {query.view, key.view, value.view};
  const Sizes sizes =
      read_shapes(query.view, key.view, value.view, read_flag({kBackward, "enable_gqa"}, enable_gqa));
  const bool no_heads = rank == 2;
  int64_t shape[kMaxRank];
  std::copy_n(query.view.shape + (no_heads ? 1 : 0), rank, shape);

  AttentionBackward gradients;
  Attention& call = gradients.call;
  Positions positions;
  read_positions(
      {is_causal, causal_offset, window, chunk, key_starts, key_lengths, segment_ids, cu_seqlens, false},
      query.view, sizes, call, positions);
  call.scale = scale.is_none() ? 1 / std::sqrt(static_cast<double>(sizes.head_dim))
                               : read_finite({kBackward, "scale"}, scale);
  if (!softcap.is_none()) call.softcap = read_positive({kBackward, "softcap"}, softcap);
  Input mask, of_lse;
  if (!mask_object.is_none()) {
    mask = read_array(kMask, mask_object, Accept::floats_and_bool);
    shape[rank - 1] = sizes.keys;
    broadcast_mask(mask.view, rank, shape);
    if (no_heads) add_head_axis(mask.view);
    call.mask = &mask.view;
  }
  shape[rank - 1] = sizes.value_dim;
  Input grad = read_beside("grad", grad_object, dtype, rank, shape);
  Input out = read_beside("out", out_object, dtype, rank, shape);
  Input lse = read_beside("lse", lse_object, sum, rank - 1, shape);
  if (!grad_lse_object.is_none()) of_lse = read_beside("grad_lse", grad_lse_object, sum, rank - 1, shape);
  unit_last_axis(kQuery, query), unit_last_axis(kKey, key), unit_last_axis(kValue, value);
  if (no_heads) add_head_axis(grad.view), add_head_axis(out.view), add_head_axis(lse.view);
  if (no_heads && !grad_lse_object.is_none()) add_head_axis(of_lse.view);
  call.query = query.view, call.key = key.view, call.value = value.view, call.out = out.view;
  call.lse = &lse.view;
  gradients.grad = grad.view;
  if (!grad_lse_object.is_none()) gradients.grad_lse = &of_lse.view;

  const auto wanted = [&](const char* name, py::handle flag, const View& before, const View& view,
                          View& gradient) {
    if (!read_flag({kBackward, "needs"}, flag)) return py::object(py::none());
    return new_gradient({kBackward, name}, view, before.size() != view.size(), gradient);
  };
  const py::object d_query = wanted("query", query_flag, given[0], query.view, gradients.d_query);
  const py::object d_key = wanted("key", key_flag, given[1], key.view, gradients.d_key);
  const py::object d_value = wanted("value", value_flag, given[2], value.view, gradients.d_value);
  py::object d_mask = py::none();
  const View& rows = query.view;
  View scores = rows;
  scores.shape[rows.rank - 1] = sizes.keys;
  scores.dtype = sum;
  if (read_flag({kBackward, "needs"}, mask_flag))
    d_mask = new_gradient({kBackward, "attn_mask"}, scores, false, gradients.d_mask);
  const py::object delta = new_array({kBackward, "lse"}, sum, rows.rank - 1, rows.shape, gradients.delta);
  if (query.view.size() > 0) {
    NoGil nogil;
    if (positions.segments.empty())
      attention_backward(gradients);
    else
      attention_backward(gradients, positions.segments.data(),
                         static_cast<int64_t>(positions.segments.size()));
  }
  return py::make_tuple(d_query, d_key, d_value, d_mask, delta);
}

}  // namespace

void bind_attention_backward(py::module_& module) {
  module.def("scaled_dot_product_attention_backward", &attend_backward);
}

}  // namespace simdformer
