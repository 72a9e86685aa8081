// The gradients of scaled_dot_product_attention. python/simdformer/backward.py says what they mean.
#include "core/attention_backward.hpp"

#include <algorithm>

#include "bindings/attention.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

// What the forward gave, or the gradient of it: exactly of that shape and dtype.
Input read_given(const char* name, py::handle object, DType dtype, int rank, const int64_t* shape,
                 const char* what) {
  const Arg arg{kAttention, name};
  Input input = read_array(arg, object);
  if (input.view.dtype != dtype)
    refuse_type(arg, std::string("has dtype ") + name_of(input.view.dtype), name_of(dtype), what);
  if (input.view.rank != rank || !std::equal(shape, shape + rank, input.view.shape))
    refuse_value(arg, "has shape " + shape_text(input.view), shape_text(rank, shape), what);
  return input;
}

// A gradient that is wanted: of the dtype of the array it belongs to or, where that was broadcast, before it is
// summed, of the accumulator's.
struct Gradient {
  py::object array = py::none();
  View view;
  const View* wanted = nullptr;

  void make(const Arg& arg, DType dtype, int rank, const int64_t* shape, bool no_heads) {
    array = new_array(arg, dtype, rank, shape, view);
    if (no_heads) insert_axis(view, 0, 1, 0);
    wanted = &view;
  }
};

// Gives (of query, of key, of value, of the mask, delta), with None for what is not wanted.
py::tuple attention_backward_call(py::handle grad_object, py::handle query_object, py::handle key_object,
                                  py::handle value_object, py::handle out_object, py::handle lse_object,
                                  py::handle mask_object, py::handle dropout_p, py::handle is_causal,
                                  py::handle scale, py::handle enable_gqa, py::handle causal_offset,
                                  py::handle window, py::handle chunk, py::handle key_starts,
                                  py::handle key_lengths, py::handle segment_ids, py::handle cu_seqlens,
                                  py::handle softcap, py::handle sinks_object, py::handle grad_lse_object,
                                  py::handle query_flag, py::handle key_flag, py::handle value_flag,
                                  py::handle mask_flag, py::handle delta_flag) {
  AttentionInputs inputs({query_object, key_object, value_object, mask_object, dropout_p, is_causal, scale,
                          enable_gqa, causal_offset, window, chunk, key_starts, key_lengths, segment_ids,
                          cu_seqlens, softcap, sinks_object, py::none()});
  const Arg needs{kAttention, "needs"};
  const bool wants_query = read_flag(needs, query_flag), wants_key = read_flag(needs, key_flag);
  const bool wants_value = read_flag(needs, value_flag), wants_mask = read_flag(needs, mask_flag);
  const bool wants_delta = read_flag(needs, delta_flag), no_heads = inputs.no_heads;
  const DType dtype = inputs.query.view.dtype, sum = accumulator(dtype);
  if (wants_mask && inputs.call.mask == nullptr)
    refuse_value(needs, "has 'attn_mask'", "an attn_mask for that");
  if (wants_mask && inputs.call.mask->dtype == DType::boolean)
    refuse_type(kMask, "is boolean", "a mask that is added, to have a gradient",
                "take \"attn_mask\" out of needs");

  const int rank = inputs.rank;
  int64_t* const shape = inputs.shape;
  AttentionBackward call;
  call.forward = inputs.call;
  shape[rank - 1] = inputs.sizes.value_dim;
  Input out = read_given("out", out_object, dtype, rank, shape, "what the forward gave");
  Input grad = read_given("grad", grad_object, dtype, rank, shape, "the gradient of out");
  Input lse = read_given("lse", lse_object, sum, rank - 1, shape,
                         "out, lse = scaled_dot_product_attention(..., return_lse=True)");
  Input grad_lse;
  if (!grad_lse_object.is_none())
    grad_lse = read_given("grad_lse", grad_lse_object, sum, rank - 1, shape, "the gradient of lse");
  unit_last_axis({kAttention, "out"}, out), unit_last_axis({kAttention, "grad"}, grad);
  if (no_heads)
    for (Input* input : {&out, &grad, &lse, &grad_lse}) insert_axis(input->view, 0, 1, 0);
  call.forward.out = out.view, call.forward.lse = &lse.view, call.grad = grad.view;
  if (!grad_lse_object.is_none()) call.grad_lse = &grad_lse.view;

  Gradient d_query, d_key, d_value, d_mask, delta;
  const auto of_array = [&](Gradient& gradient, const Arg& arg, bool wants, int64_t given_size,
                            const View& full) {
    if (!wants) return;
    gradient.make(arg, given_size == full.size() ? full.dtype : sum, rank, full.shape + (no_heads ? 1 : 0),
                  no_heads);
  };
  of_array(d_query, kQuery, wants_query, inputs.given_sizes[0], inputs.query.view);
  of_array(d_key, kKey, wants_key, inputs.given_sizes[1], inputs.key.view);
  of_array(d_value, kValue, wants_value, inputs.given_sizes[2], inputs.value.view);
  if (wants_delta) delta.make({kAttention, "sinks"}, sum, rank - 1, shape, no_heads);
  shape[rank - 1] = inputs.sizes.keys;
  if (wants_mask) d_mask.make(kMask, sum, rank, shape, no_heads);
  call.d_query = d_query.wanted, call.d_key = d_key.wanted, call.d_value = d_value.wanted;
  call.d_mask = d_mask.wanted, call.delta = delta.wanted;
  {
    NoGil nogil;
    const std::vector<Segment>& segments = inputs.positions.segments;
    if (segments.empty())
      attention_backward(call);
    else
      attention_backward(call, segments.data(), static_cast<int64_t>(segments.size()));
  }
  return py::make_tuple(d_query.array, d_key.array, d_value.array, d_mask.array, delta.array);
}

}  // namespace

void bind_attention_backward(py::module_& module) {
  module.def("scaled_dot_product_attention_backward", &attention_backward_call);
}

}  // namespace simdformer
