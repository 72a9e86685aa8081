// softmax, rms_norm, layer_norm, rope, silu, gelu, relu, swiglu: work on one row, or one element, after the
// other.
#include <algorithm>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/work.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

constexpr const char* kAtLeastOneAxis = "at least one axis";

// ---- element by element ---------------------------------------------------------------------------------

int64_t pieces_of(const Rows& rows) { return rows.count * segments_of(rows.length); }
int64_t grain_of_pieces(const Rows& rows) { return grain_of(std::min(rows.length, kSegment)); }

py::object activation(const char* function, Activation kind, py::handle x_object, py::handle out_object) {
  const Arg x_arg{function, "x"}, out_arg{function, "out"};
  Input x = read_array(x_arg, x_object);
  Output out(out_arg, out_object, x.view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(x_arg, x.view, Alias::same_allowed);
  if (x.view.size() == 0) return std::move(out.array);

  unit_last_axis(x_arg, x);
  out.unit_last_axis();
  View* const views[] = {&x.view, &out.view};
  merge_last_axes(views, 2);
  const ActivationArgs args{rows_of(x.view), rows_of(out.view), kind, kSegment};
  {
    NoGil nogil;
    const KernelTable& table = kernels();
    parallel_for(pieces_of(args.x), grain_of_pieces(args.x),
                 [&](int64_t begin, int64_t end) { table.activation(args, begin, end); });
    out.finish();
  }
  return std::move(out.array);
}

py::object silu(py::handle x, py::handle out) { return activation("silu", Activation::silu, x, out); }
py::object relu(py::handle x, py::handle out) { return activation("relu", Activation::relu, x, out); }

py::object gelu(py::handle x, py::handle approximate, py::handle out) {
  static const char* const kNames[] = {"none", "tanh", nullptr};
  const int kind = read_name({"gelu", "approximate"}, approximate, kNames);
  return activation("gelu", kind == 0 ? Activation::gelu : Activation::gelu_tanh, x, out);
}

py::object swiglu(py::handle gate_object, py::handle up_object, py::handle out_object) {
  const Arg gate_arg{"swiglu", "gate"}, up_arg{"swiglu", "up"}, out_arg{"swiglu", "out"};
  Input gate = read_array(gate_arg, gate_object), up = read_array(up_arg, up_object);
  check_same_dtype(up_arg, up.view.dtype, gate_arg, gate.view.dtype);
  check_same_shape(up_arg, up.view, gate_arg, gate.view);
  Output out(out_arg, out_object, gate.view.dtype, gate.view.rank, gate.view.shape);
  out.check_overlap(gate_arg, gate.view, Alias::same_allowed);
  out.check_overlap(up_arg, up.view, Alias::same_allowed);
  if (gate.view.size() == 0) return std::move(out.array);

  unit_last_axis(gate_arg, gate);
  unit_last_axis(up_arg, up);
  out.unit_last_axis();
  View* const views[] = {&gate.view, &up.view, &out.view};
  merge_last_axes(views, 3);
  const SwigluArgs args{rows_of(gate.view), rows_of(up.view), rows_of(out.view), kSegment};
  {
    NoGil nogil;
    const KernelTable& table = kernels();
    parallel_for(pieces_of(args.out), grain_of_pieces(args.out),
                 [&](int64_t begin, int64_t end) { table.swiglu(args, begin, end); });
    out.finish();
  }
  return std::move(out.array);
}

// ---- row by row -----------------------------------------------------------------------------------------

py::object softmax(py::handle x_object, py::handle axis_object, py::handle temperature_object,
                   py::handle out_object) {
  const Arg x_arg{"softmax", "x"}, out_arg{"softmax", "out"};
  Input x = read_array(x_arg, x_object);
  const int axis = read_axis({"softmax", "axis"}, axis_object, x.view.rank);
  const double temperature = read_positive({"softmax", "temperature"}, temperature_object);
  Output out(out_arg, out_object, x.view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(x_arg, x.view, Alias::same_allowed);
  if (x.view.size() == 0) return std::move(out.array);

  move_axis_last(x.view, axis);
  move_axis_last(out.view, axis);
  unit_last_axis(x_arg, x);
  out.unit_last_axis();
  const SoftmaxArgs args{rows_of(x.view), rows_of(out.view), temperature};
  {
    NoGil nogil;
    const KernelTable& table = kernels();
    parallel_for(args.x.count, grain_of(args.x.length),
                 [&](int64_t begin, int64_t end) { table.softmax(args, begin, end); });
    out.finish();
  }
  return std::move(out.array);
}

// A weight or bias of a norm: a vector along the last axis of x, or None.
struct NormParameter {
  Input input;
  const void* data = nullptr;
  DType dtype = DType::f32;
};

void read_norm_parameter(const Arg& arg, py::handle object, const Arg& x_arg, const View& x,
                         const Output& out, NormParameter& parameter) {
  if (object.is_none()) return;
  parameter.input = read_array(arg, object);
  const View& view = parameter.input.view;
  check_parameter_dtype(arg, view.dtype, x_arg, x.dtype);
  check_vector(arg, view, x.shape[x.rank - 1], "one number for each element of x's last axis");
  out.check_overlap(arg, view, Alias::refused);
  unit_last_axis(arg, parameter.input);
  parameter.data = parameter.input.view.data;
  parameter.dtype = view.dtype;
}

py::object rms_norm(py::handle x_object, py::handle weight_object, py::handle eps_object,
                    py::handle out_object) {
  const Arg x_arg{"rms_norm", "x"}, weight_arg{"rms_norm", "weight"}, out_arg{"rms_norm", "out"};
  Input x = read_array(x_arg, x_object);
  check_rank_at_least(x_arg, x.view, 1, kAtLeastOneAxis);
  const double eps = read_non_negative({"rms_norm", "eps"}, eps_object);
  Output out(out_arg, out_object, x.view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(x_arg, x.view, Alias::same_allowed);
  NormParameter weight;
  read_norm_parameter(weight_arg, weight_object, x_arg, x.view, out, weight);
  if (x.view.size() == 0) return std::move(out.array);

  unit_last_axis(x_arg, x);
  out.unit_last_axis();
  const RmsNormArgs args{rows_of(x.view), rows_of(out.view), weight.data, weight.dtype, eps};
  {
    NoGil nogil;
    const KernelTable& table = kernels();
    parallel_for(args.x.count, grain_of(args.x.length),
                 [&](int64_t begin, int64_t end) { table.rms_norm(args, begin, end); });
    out.finish();
  }
  return std::move(out.array);
}

py::object layer_norm(py::handle x_object, py::handle weight_object, py::handle bias_object,
                      py::handle eps_object, py::handle out_object) {
  const Arg x_arg{"layer_norm", "x"}, weight_arg{"layer_norm", "weight"}, bias_arg{"layer_norm", "bias"};
  const Arg out_arg{"layer_norm", "out"};
  Input x = read_array(x_arg, x_object);
  check_rank_at_least(x_arg, x.view, 1, kAtLeastOneAxis);
  const double eps = read_non_negative({"layer_norm", "eps"}, eps_object);
  Output out(out_arg, out_object, x.view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(x_arg, x.view, Alias::same_allowed);
  NormParameter weight, bias;
  read_norm_parameter(weight_arg, weight_object, x_arg, x.view, out, weight);
  read_norm_parameter(bias_arg, bias_object, x_arg, x.view, out, bias);
  if (weight.data != nullptr && bias.data != nullptr)
    check_not_both_16_bit(bias_arg, bias.dtype, weight_arg, weight.dtype);
  if (x.view.size() == 0) return std::move(out.array);

  unit_last_axis(x_arg, x);
  out.unit_last_axis();
  const LayerNormArgs args{rows_of(x.view), rows_of(out.view), weight.data, weight.dtype,
                           bias.data,       bias.dtype,        eps};
  {
    NoGil nogil;
    const KernelTable& table = kernels();
    parallel_for(args.x.count, grain_of(args.x.length),
                 [&](int64_t begin, int64_t end) { table.layer_norm(args, begin, end); });
    out.finish();
  }
  return std::move(out.array);
}

}  // namespace

void bind_rows(py::module_& module) {
  module.def("silu", &silu);
  module.def("gelu", &gelu);
  module.def("relu", &relu);
  module.def("swiglu", &swiglu);
  module.def("softmax", &softmax);
  module.def("rms_norm", &rms_norm);
  module.def("layer_norm", &layer_norm);
}

}  // namespace simdformer
