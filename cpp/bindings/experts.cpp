// top_k, combine_experts: what a mixture of experts does beside its products.
#include "core/experts.hpp"

#include <algorithm>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

// The result is ids (..., k) of logits (..., X).
py::object top_k_call(py::handle logits_object, py::handle k_object) {
  const Arg logits_arg{"top_k", "logits"}, k_arg{"top_k", "k"};
  Input logits = read_array(logits_arg, logits_object);
  check_rank_at_least(logits_arg, logits.view, 1, "(..., X): a number for each expert");
  const int last = logits.view.rank - 1;
  const int64_t k = read_integer(k_arg, k_object), experts = logits.view.shape[last];
  if (k < 1 || k > experts)
    refuse_value(k_arg, "is " + std::to_string(k),
                 "a number from 1 to " + std::to_string(experts) + ", as many as logits has experts");
  convert(logits_arg, logits, accumulator(logits.view.dtype));
  unit_last_axis(logits_arg, logits);
  int64_t shape[kMaxRank];
  std::copy_n(logits.view.shape, last, shape);
  shape[last] = k;
  int64_t* ids;
  py::object result = new_integers({"top_k", "result"}, last + 1, shape, ids);
  {
    NoGil nogil;
    top_k(logits.view, k, ids);
  }
  return result;
}

// x (..., k, E), weights (..., k) -> (..., E), of x's dtype.
py::object combine_experts_call(py::handle x_object, py::handle weights_object) {
  const Arg x_arg{"combine_experts", "x"}, weights_arg{"combine_experts", "weights"};
  Input x = read_array(x_arg, x_object), weights = read_array(weights_arg, weights_object);
  check_rank_at_least(x_arg, x.view, 2, "(..., k, E): what k experts write");
  const DType dtype = x.view.dtype, sum = accumulator(dtype);
  const int rank = x.view.rank - 1;
  if (weights.view.rank != rank || !std::equal(x.view.shape, x.view.shape + rank, weights.view.shape))
    refuse_value(weights_arg, "has shape " + shape_text(weights.view),
                 shape_text(rank, x.view.shape) + " beside x of shape " + shape_text(x.view));
  int64_t shape[kMaxRank];
  std::copy_n(x.view.shape, rank, shape);
  shape[rank - 1] = x.view.shape[rank];
  Computed out;
  out.allocate({"combine_experts", "result"}, dtype, sum, rank, shape);
  convert(x_arg, x, sum), convert(weights_arg, weights, sum);
  unit_last_axis(x_arg, x), unit_last_axis(weights_arg, weights);
  {
    NoGil nogil;
    combine_experts(x.view, weights.view, out.computed);
    out.finish();
  }
  return std::move(out.array);
}

}  // namespace

void bind_experts(py::module_& module) {
  module.def("top_k", &top_k_call);
  module.def("combine_experts", &combine_experts_call);
}

}  // namespace simdformer
