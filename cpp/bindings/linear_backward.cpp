// The gradients of linear: of x, of weights, of biases.
#include "core/linear_backward.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/weights.hpp"
#include "core/gradients.hpp"

namespace simdformer {

namespace {

constexpr const char* kLinearBackward = "backward.linear";
constexpr Arg kX{kLinearBackward, "x"};

// One weight with the gradient of its result, checked, and what keeps them alive.
struct GradientPart {
  Input grad;
  Weight weight;
  LinearGradient call;
  int64_t outputs = 0;

  GradientPart(int index, py::handle grad_object, py::handle weight_object, const View& x) {
    const Arg grad_arg{kLinearBackward, "grad", index}, weight_arg{kLinearBackward, "weight", index};
    const int last = std::max(x.rank, 1) - 1;  // it has one axis at least, which compilers do not know
    const int64_t inputs = x.shape[last];
    read_weight(weight_arg, weight_object, "(O, I): a row for each output", weight);
    if (weight.quantized != nullptr && x.dtype == DType::f64)
      refuse_type(weight_arg, "is quantised", "an x of float32, float16 or bfloat16, not float64");
    check_parameter_dtype(weight_arg, weight.dtype, kX, x.dtype);
    if (weight.is_plain()) unit_last_axis(weight_arg, weight.plain);
    const int64_t* const shape = weight.shape;
    if (shape[1] != inputs)
      refuse_value(weight_arg, "has shape " + shape_text(2, shape),
                   "(O, " + std::to_string(inputs) + ") beside x of shape " + shape_text(x),
                   shape[0] == inputs ? "transpose it: weight is (outputs, inputs)" : "");
    outputs = shape[0];
    grad = read_array(grad_arg, grad_object);
    check_same_dtype(grad_arg, grad.view.dtype, kX, x.dtype);
    int64_t wanted[kMaxRank];
    std::copy_n(x.shape, x.rank, wanted);
    wanted[last] = outputs;
    if (grad.view.rank != x.rank || !std::equal(wanted, wanted + x.rank, grad.view.shape))
      refuse_value(grad_arg, "has shape " + shape_text(grad.view),
                   shape_text(x.rank, wanted) + ", that of the result");
    unit_last_axis(grad_arg, grad);
    call.grad = grad.view;
    call.packed = weight.packed;
    call.quantized = weight.quantized;
    if (weight.is_plain()) call.weight = &weight.plain.view;
  }
  GradientPart(const GradientPart&) = delete;
};

// grads and weights: tuples of one length. Gives (of x, [of each weight], [of each bias]), with None for what is not
// wanted. `as_sums`: of x as float32 beside 16 bits, for a caller who adds it up. `weight_out`: a tuple of arrays that
// become those of the weights, or None.
py::tuple linear_backward_call(py::handle grads_object, py::handle x_object, py::handle weights_object,
                               py::handle is_list_flag, py::handle x_flag, py::handle weight_flag,
                               py::handle bias_flag, py::handle sums_flag, py::handle weight_out) {
  const auto several = [](const char* name, py::handle object) {
    if (!PyTuple_Check(object.ptr())) refuse_type({kLinearBackward, name}, type_of(object), "a tuple");
    return py::reinterpret_borrow<py::tuple>(object);
  };
  const py::tuple grads = several("grad", grads_object), weights = several("weight", weights_object);
  const Arg needs{kLinearBackward, "needs"};
  const bool is_list = read_flag(needs, is_list_flag), wants_x = read_flag(needs, x_flag);
  const bool wants_weight = read_flag(needs, weight_flag), wants_bias = read_flag(needs, bias_flag);
  const bool as_sums = read_flag(needs, sums_flag);
  Input x = read_array(kX, x_object);
  check_rank_at_least(kX, x.view, 1, "at least one axis");
  const py::tuple outs = weight_out.is_none() ? py::tuple() : several("weight_out", weight_out);
  const auto one_for_each_weight = [&](const char* name, const py::tuple& items) {
    if (items.size() != weights.size())
      refuse_value({kLinearBackward, name}, "has " + std::to_string(items.size()) + " items",
                   std::to_string(weights.size()) + ", one for each weight");
  };
  one_for_each_weight("grad", grads);
  if (!weight_out.is_none()) one_for_each_weight("weight_out", outs);
  unit_last_axis(kX, x);
  std::vector<std::unique_ptr<GradientPart>> parts;
  for (size_t j = 0; j < weights.size(); ++j)
    parts.push_back(
        std::make_unique<GradientPart>(is_list ? static_cast<int>(j) : -1, grads[j], weights[j], x.view));
  std::vector<LinearGradient> calls;
  for (const auto& part : parts) calls.push_back(part->call);

  const DType sum = accumulator(x.view.dtype);
  const int64_t inputs = x.view.shape[x.view.rank - 1];
  View dx;
  py::object of_x = py::none();
  if (wants_x) of_x = new_array(kX, as_sums ? sum : x.view.dtype, x.view.rank, x.view.shape, dx);
  py::list of_weights, of_biases;
  const char* const of_weight = weight_out.is_none() ? "weight" : "weight_out";
  std::vector<Output> d_weights;
  std::vector<View> d_biases(parts.size());
  for (size_t j = 0; j < parts.size(); ++j) {
    const int64_t shape[] = {parts[j]->outputs, inputs};
    if (wants_weight) {
      const py::object out = weight_out.is_none() ? py::none() : py::object(outs[j]);
      d_weights.emplace_back(Arg{kLinearBackward, of_weight, is_list ? static_cast<int>(j) : -1}, out, sum, 2,
                             shape);
      of_weights.append(d_weights[j].array);
    }
    if (wants_bias) of_biases.append(new_array({kLinearBackward, "bias"}, sum, 1, shape, d_biases[j]));
  }
  // Each is written while x, the gradients and those written before are still wanted.
  std::vector<View> written;
  for (size_t j = 0; j < d_weights.size(); ++j) {
    Output& out = d_weights[j];
    out.check_overlap(kX, x.view, Output::Alias::refused);
    for (const auto& part : parts)
      out.check_overlap({kLinearBackward, "grad"}, part->grad.view, Output::Alias::refused);
    for (size_t i = 0; i < j; ++i)
      out.check_overlap({kLinearBackward, of_weight, static_cast<int>(i)}, d_weights[i].view,
                        Output::Alias::refused);
    out.unit_last_axis();
    written.push_back(out.view);
  }
  {
    NoGil nogil;
    const int count = static_cast<int>(calls.size());
    if (wants_x) linear_backward_x(calls.data(), count, dx);
    if (wants_weight) linear_backward_weight(calls.data(), count, x.view, written.data());
    for (const Output& out : d_weights) out.finish();
    for (size_t j = 0; wants_bias && j < calls.size(); ++j) sum_over_rows(calls[j].grad, d_biases[j]);
  }
  return py::make_tuple(of_x, of_weights, of_biases);
}

}  // namespace

void bind_linear_backward(py::module_& module) { module.def("linear_backward", &linear_backward_call); }

}  // namespace simdformer
