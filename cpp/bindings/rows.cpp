// silu, gelu, relu, swiglu, softmax, rms_norm, layer_norm: one element, or one row, after the other.
#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/row_wise.hpp"
#include "core/activations.hpp"
#include "core/norms.hpp"
#include "core/softmax.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

// ---- element by element ---------------------------------------------------------------------------------

py::object activation_call(const char* function, Activation kind, py::handle x, py::handle out) {
  return row_wise({function, "x"}, x, out, {}, last_axis,
                  [&](const View& x, const View& out) { activation(kind, x, out); });
}

py::object silu_call(py::handle x, py::handle out) {
  return activation_call("silu", Activation::silu, x, out);
}

py::object relu_call(py::handle x, py::handle out) {
  return activation_call("relu", Activation::relu, x, out);
}

py::object gelu_call(py::handle x, py::handle approximate, py::handle out) {
  static const char* const kNames[] = {"none", "tanh", nullptr};
  const bool exact = read_name({"gelu", "approximate"}, approximate, kNames) == 0;
  return activation_call("gelu", exact ? Activation::gelu : Activation::gelu_tanh, x, out);
}

py::object swiglu_call(py::handle gate, py::handle up, py::handle out) {
  return pair_wise({"swiglu", "gate"}, gate, {"swiglu", "up"}, up, out, last_axis, swiglu);
}

py::object add_call(py::handle x, py::handle y) {
  return pair_wise({"add", "x"}, x, {"add", "y"}, y, py::none(), last_axis, add);
}

py::object add_to_call(py::handle total, py::handle y) {
  return pair_wise({"add_to", "total"}, total, {"add_to", "y"}, y, total, last_axis, add);
}

// ---- row by row -----------------------------------------------------------------------------------------

py::object softmax_call(py::handle x, py::handle axis_object, py::handle temperature_object, py::handle out) {
  double temperature = 1;
  return row_wise(
      {"softmax", "x"}, x, out, {},
      [&](const View& x) {
        const int axis = read_axis({"softmax", "axis"}, axis_object, x.rank);
        temperature = read_positive({"softmax", "temperature"}, temperature_object);
        return axis;
      },
      [&](const View& x, const View& out) { softmax(x, temperature, out); });
}

py::object rms_norm_call(py::handle x, py::handle weight_object, py::handle eps_object, py::handle out) {
  const Arg x_arg{"rms_norm", "x"};
  Operand weight{{"rms_norm", "weight"}};
  double eps = 0;
  return row_wise(
      x_arg, x, out, {&weight},
      [&](const View& x) {
        check_rank_at_least(x_arg, x, 1, "at least one axis");
        eps = read_non_negative({"rms_norm", "eps"}, eps_object);
        read_norm_parameter(weight, weight_object, x_arg, x);
        return last_axis(x);
      },
      [&](const View& x, const View& out) { rms_norm(x, weight.view(), eps, out); });
}

py::object layer_norm_call(py::handle x, py::handle weight_object, py::handle bias_object,
                           py::handle eps_object, py::handle out) {
  const Arg x_arg{"layer_norm", "x"};
  Operand weight{{"layer_norm", "weight"}}, bias{{"layer_norm", "bias"}};
  double eps = 0;
  return row_wise(
      x_arg, x, out, {&weight, &bias},
      [&](const View& x) {
        check_rank_at_least(x_arg, x, 1, "at least one axis");
        eps = read_non_negative({"layer_norm", "eps"}, eps_object);
        read_norm_parameter(weight, weight_object, x_arg, x);
        read_norm_parameter(bias, bias_object, x_arg, x);
        if (weight.given && bias.given)
          check_not_both_16_bit(bias.arg, bias.input.view.dtype, weight.arg, weight.input.view.dtype);
        return last_axis(x);
      },
      [&](const View& x, const View& out) { layer_norm(x, weight.view(), bias.view(), eps, out); });
}

}  // namespace

void bind_rows(py::module_& module) {
  module.def("silu", &silu_call);
  module.def("gelu", &gelu_call);
  module.def("relu", &relu_call);
  module.def("swiglu", &swiglu_call);
  module.def("add", &add_call);
  module.def("add_to", &add_to_call);
  module.def("softmax", &softmax_call);
  module.def("rms_norm", &rms_norm_call);
  module.def("layer_norm", &layer_norm_call);
}

}  // namespace simdformer
