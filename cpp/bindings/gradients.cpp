// The gradients of row-wise operations, of embedding and of the cross entropy; log_softmax, cross_entropy, AdamW.
// python/simdformer/backward.py says what they mean.
#include "core/gradients.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/row_wise.hpp"
#include "core/activations.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

// ---- element by element ---------------------------------------------------------------------------------

py::object activation_backward_call(const char* function, Activation kind, py::handle grad, py::handle x,
                                    py::handle out) {
  return pair_wise(
      {function, "x"}, x, {function, "grad"}, grad, out, last_axis,
      [&](const View& x, const View& grad, const View& out) { activation_backward(kind, grad, x, out); });
}

py::object gelu_backward_call(py::handle grad, py::handle x, py::handle approximate, py::handle out) {
  static const char* const kNames[] = {"none", "tanh", nullptr};
  const bool exact = read_name({"backward.gelu", "approximate"}, approximate, kNames) == 0;
  return activation_backward_call("backward.gelu", exact ? Activation::gelu : Activation::gelu_tanh, grad, x,
                                  out);
}

py::tuple swiglu_backward_call(py::handle grad_object, py::handle gate_object, py::handle up_object,
                               py::handle gate_out, py::handle up_out) {
  static constexpr const char* kFunction = "backward.swiglu";
  const Arg grad_arg{kFunction, "grad"}, gate_arg{kFunction, "gate"}, up_arg{kFunction, "up"};
  Input gate = read_array(gate_arg, gate_object);
  Input up = read_like(up_arg, up_object, gate_arg, gate.view);
  Input grad = read_like(grad_arg, grad_object, gate_arg, gate.view);
  const View& x = gate.view;
  const Arg out_args[] = {{kFunction, "out", 0}, {kFunction, "out", 1}};
  Output d_gate(out_args[0], gate_out, x.dtype, x.rank, x.shape);
  Output d_up(out_args[1], up_out, x.dtype, x.rank, x.shape);
  for (const Output* out : {&d_gate, &d_up}) {
    out->check_overlap(grad_arg, grad.view, Alias::same_allowed);
    out->check_overlap(gate_arg, gate.view, Alias::same_allowed);
    out->check_overlap(up_arg, up.view, Alias::same_allowed);
  }
  d_up.check_overlap(out_args[0], d_gate.view, Alias::refused);
  unit_last_axis(gate_arg, gate);
  unit_last_axis(up_arg, up);
  unit_last_axis(grad_arg, grad);
  d_gate.unit_last_axis();
  d_up.unit_last_axis();
  {
    NoGil nogil;
    swiglu_backward(grad.view, gate.view, up.view, d_gate.view, d_up.view);
    d_gate.finish();
    d_up.finish();
  }
  return py::make_tuple(d_gate.array, d_up.array);
}

// ---- softmax --------------------------------------------------------------------------------------------

py::object log_softmax_call(py::handle x, py::handle axis_object, py::handle out) {
  return row_wise(
      {"log_softmax", "x"}, x, out, {},
      [&](const View& x) { return read_axis({"log_softmax", "axis"}, axis_object, x.rank); },
      [&](const View& x, const View& out) { log_softmax(x, out); });
}

py::object softmax_backward_call(const char* function, bool is_log, py::handle grad, py::handle output,
                                 py::handle axis_object, py::handle temperature_object, py::handle out) {
  double temperature = 1;
  return pair_wise(
      {function, "output"}, output, {function, "grad"}, grad, out,
      [&](const View& output) {
        const int axis = read_axis({function, "axis"}, axis_object, output.rank);
        if (!is_log) temperature = read_positive({function, "temperature"}, temperature_object);
        return axis;
      },
      [&](const View& output, const View& grad, const View& out) {
        softmax_backward(grad, output, temperature, is_log, out);
      });
}

// ---- norms ----------------------------------------------------------------------------------------------

// A vector of zeros of the accumulator's type, where it is wanted.
struct Vector {
  py::object array = py::none();
  View view;

  const View* made(const Arg& arg, DType x, int64_t length) {
    array = new_array(arg, accumulator(x), 1, &length, view);
    std::memset(view.data, 0, static_cast<size_t>(length * itemsize(view.dtype)));
    return &view;
  }
};

py::tuple norm_backward_call(const char* function, bool centred, py::handle grad_object, py::handle x_object,
                             py::handle weight_object, py::handle bias_object, py::handle eps_object,
                             py::handle out) {
  const Arg x_arg{function, "x"};
  Operand grad({function, "grad"}, Alias::same_allowed), weight({function, "weight"}),
      bias({function, "bias"});
  Vector of_weight, of_bias;
  NormBackward call;
  call.centred = centred;
  py::object of_x = row_wise(
      x_arg, x_object, out, {&grad, &weight, &bias},
      [&](const View& x) {
        check_rank_at_least(x_arg, x, 1, "at least one axis");
        call.eps = read_non_negative({function, "eps"}, eps_object);
        grad.given = true;
        grad.input = read_like(grad.arg, grad_object, x_arg, x);
        read_norm_parameter(weight, weight_object, x_arg, x);
        read_norm_parameter(bias, bias_object, x_arg, x);
        const int64_t n = x.shape[last_axis(x)];
        if (weight.given) call.d_weight = of_weight.made(weight.arg, x.dtype, n);
        if (bias.given) call.d_bias = of_bias.made(bias.arg, x.dtype, n);
        return last_axis(x);
      },
      [&](const View& x, const View& out) {
        call.grad = grad.input.view, call.x = x, call.dx = out;
        call.weight = weight.view();
        norm_backward(call);
      });
  return py::make_tuple(of_x, of_weight.array, of_bias.array);
}

// ---- embedding ------------------------------------------------------------------------------------------

// Adds into `total` (V, E), whose dtype is the accumulator's.
void embedding_backward_call(py::handle grad_object, py::handle ids_object, py::handle total_object) {
  static constexpr const char* kFunction = "backward.embedding";
  const Arg grad_arg{kFunction, "grad"}, ids_arg{kFunction, "ids"}, total_arg{kFunction, "accumulate"};
  Input grad = read_array(grad_arg, grad_object);
  const Integers ids = read_integers(ids_arg, ids_object);
  check_rank_at_least(grad_arg, grad.view, 1, "(..., E): a row for each id");
  if (grad.view.rank != ids.rank + 1 || !std::equal(ids.shape, ids.shape + ids.rank, grad.view.shape))
    refuse_value(grad_arg, "has shape " + shape_text(grad.view),
                 "a row for each id, as ids have shape " + shape_text(ids.rank, ids.shape));
  const Input known = read_array(total_arg, total_object);
  check_rank(total_arg, known.view, 2, "(V, E)");
  const int64_t shape[] = {known.view.shape[0], grad.view.shape[grad.view.rank - 1]};
  Output total(total_arg, total_object, accumulator(grad.view.dtype), 2, shape);
  total.check_overlap(grad_arg, grad.view, Alias::refused);
  const int64_t* const end = ids.data + ids.size;
  const int64_t* const bad =
      std::find_if(ids.data, end, [&](int64_t id) { return id < 0 || id >= shape[0]; });
  if (bad != end)
    throw py::index_error(message(ids_arg, "holds " + integer_text(ids, *bad),
                                  "ids from 0 to " + std::to_string(shape[0] - 1), ""));
  if (!has_unit_last_axis(total.view))
    refuse_value(total_arg, "has a strided last axis", "rows whose elements lie side by side");
  unit_last_axis(grad_arg, grad);
  NoGil nogil;
  embedding_backward(grad.view, ids.data, ids.size, total.view);
}

// ---- cross entropy --------------------------------------------------------------------------------------

// What both directions share: logits, labels as the kernels take them, options. Logits may be columns [first, first +
// V) of a vocabulary.
struct LossCall {
  const char* function;
  Input logits;
  std::vector<int64_t> labels;
  int64_t counted = 0;
  CrossEntropy call;

  LossCall(const char* function, py::handle logits_object, py::handle labels_object, py::handle ignore_object,
           py::handle smoothing_object, py::handle z_loss_object, py::handle softcap_object, int64_t first,
           int64_t vocabulary)
      : function(function) {
    const Arg logits_arg{function, "logits"}, labels_arg{function, "labels"};
    logits = read_array(logits_arg, logits_object);
    check_rank_at_least(logits_arg, logits.view, 1, "(..., V)");
    const Integers given = read_integers(labels_arg, labels_object);
    const int leading = logits.view.rank - 1;
    if (given.rank != leading || !std::equal(given.shape, given.shape + given.rank, logits.view.shape))
      refuse_value(labels_arg, "has shape " + shape_text(given.rank, given.shape),
                   shape_text(leading, logits.view.shape) + ", one for each row of logits");
    const int64_t ignored = read_integer({function, "ignore_index"}, ignore_object);
    const int64_t columns = logits.view.shape[leading], all = vocabulary > 0 ? vocabulary : columns;
    labels.resize(static_cast<size_t>(given.size));
    for (int64_t i = 0; i < given.size; ++i) {
      const int64_t label = given.data[i];
      int64_t& kept = labels[static_cast<size_t>(i)];
      kept = kNotCounted;
      if (label == ignored) continue;
      ++counted;
      if (label < 0 || label >= all)
        throw py::index_error(message(labels_arg, "holds " + integer_text(given, label),
                                      "labels from 0 to " + std::to_string(all - 1) + ", or ignore_index (" +
                                          std::to_string(ignored) + ")",
                                      ""));
      kept = label >= first && label < first + columns ? label - first : kElsewhere;
    }
    const Arg smoothing_arg{function, "label_smoothing"};
    call.label_smoothing = read_non_negative(smoothing_arg, smoothing_object);
    if (call.label_smoothing > 1)
      refuse_value(smoothing_arg, "is " + shown(smoothing_object), "a number from 0 to 1");
    call.z_loss = read_non_negative({function, "z_loss"}, z_loss_object);
    if (!softcap_object.is_none()) call.softcap = read_positive({function, "softcap"}, softcap_object);
    unit_last_axis(logits_arg, logits);
    call.logits = logits.view;
    call.labels = labels.data();
    call.vocabulary = all;
  }

  int64_t rows() const { return static_cast<int64_t>(labels.size()); }
  const int64_t* row_shape() const { return logits.view.shape; }

  // One number a row, of the accumulator's type.
  py::object array_of(const std::vector<double>& numbers) const {
    View view;
    py::object array = new_array({function, "result"}, accumulator(logits.view.dtype), logits.view.rank - 1,
                                 row_shape(), view);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (view.dtype == DType::f64)
        reinterpret_cast<double*>(view.data)[i] = numbers[i];
      else
        reinterpret_cast<float*>(view.data)[i] = static_cast<float>(numbers[i]);
    }
    return array;
  }

  // The other way: an array of one float a row.
  std::vector<double> numbers_of(const char* name, py::handle object) const {
    const Arg arg{function, name};
    Input given = read_array(arg, object);
    if (given.view.rank != logits.view.rank - 1 ||
        !std::equal(given.view.shape, given.view.shape + given.view.rank, row_shape()))
      refuse_value(arg, "has shape " + shape_text(given.view),
                   shape_text(logits.view.rank - 1, row_shape()) + ", one for each row of logits");
    std::vector<double> numbers(labels.size());
    contiguous(arg, given);
    convert(arg, given, DType::f64);
    if (!numbers.empty()) std::memcpy(numbers.data(), given.view.data, numbers.size() * sizeof(double));
    return numbers;
  }
};

// The functions that read a loss, which errors name.
const char* read_function(py::handle name) {
  static const char* const kNames[] = {"cross_entropy", "backward.cross_entropy", "linear_cross_entropy",
                                       nullptr};
  return kNames[read_name({"cross_entropy", "function"}, name, kNames)];
}

// (loss of each row, lse, sum of the losses, how many labels count)
py::tuple cross_entropy_call(py::handle function, py::handle logits, py::handle labels,
                             py::handle ignore_index, py::handle label_smoothing, py::handle z_loss,
                             py::handle softcap) {
  LossCall given(read_function(function), logits, labels, ignore_index, label_smoothing, z_loss, softcap, 0,
                 0);
  std::vector<double> lse(given.labels.size()), loss(given.labels.size());
  double sum = 0;
  {
    NoGil nogil;
    cross_entropy(given.call, lse.data(), loss.data());
    for (const double one : loss) sum += one;
  }
  return py::make_tuple(given.array_of(loss), given.array_of(lse), sum, given.counted);
}

// grad: a number for all rows, divided by the number of labels that count where `mean`; or one a row.
py::object cross_entropy_backward_call(py::handle name, py::handle logits, py::handle labels,
                                       py::handle ignore_index, py::handle label_smoothing, py::handle z_loss,
                                       py::handle softcap, py::handle grad_object, py::handle grads,
                                       py::handle lse_object, py::handle out_object, py::handle first,
                                       py::handle vocabulary) {
  const char* const function = read_function(name);
  const double grad = read_real({function, "grad"}, grad_object);
  LossCall given(function, logits, labels, ignore_index, label_smoothing, z_loss, softcap,
                 read_integer({function, "first"}, first),
                 read_integer({function, "vocabulary"}, vocabulary));
  const Arg logits_arg{function, "logits"};
  std::vector<double> scales, lse(given.labels.size());
  if (!grads.is_none()) scales = given.numbers_of("grad", grads);
  const bool known = !lse_object.is_none();
  if (known) lse = given.numbers_of("lse", lse_object);
  const View& view = given.call.logits;
  Output out({function, "out"}, out_object, view.dtype, view.rank, view.shape);
  out.check_overlap(logits_arg, view, Alias::same_allowed);
  out.unit_last_axis();
  {
    NoGil nogil;
    if (!known) {
      std::vector<double> loss(lse.size());
      cross_entropy(given.call, lse.data(), loss.data());
    }
    cross_entropy_backward(given.call, lse.data(), scales.empty() ? nullptr : scales.data(), grad, out.view);
    out.finish();
  }
  return std::move(out.array);
}

// ---- optimiser ------------------------------------------------------------------------------------------

// Writable, float32 or float64, all of one shape and in one piece.
void adamw_call(py::handle weight_object, py::handle gradient_object, py::handle exp_avg_object,
                py::handle exp_avg_sq_object, py::handle lr, py::handle beta1, py::handle beta2,
                py::handle eps, py::handle weight_decay, py::handle correction1, py::handle correction2,
                py::handle scale) {
  static constexpr const char* kFunction = "adamw_";
  const Arg weight_arg{kFunction, "weight"}, gradient_arg{kFunction, "gradient"};
  const Input like = read_array(weight_arg, weight_object);
  const View& x = like.view;
  if (x.dtype != DType::f32 && x.dtype != DType::f64)
    refuse_type(weight_arg, std::string("has dtype ") + name_of(x.dtype), "float32 or float64",
                "keep a float32 master copy of 16-bit weights");
  Output weight(weight_arg, weight_object, x.dtype, x.rank, x.shape);
  Output exp_avg({kFunction, "exp_avg"}, exp_avg_object, x.dtype, x.rank, x.shape);
  Output exp_avg_sq({kFunction, "exp_avg_sq"}, exp_avg_sq_object, x.dtype, x.rank, x.shape);
  Input gradient = read_array(gradient_arg, gradient_object);
  check_same_dtype(gradient_arg, gradient.view.dtype, weight_arg, x.dtype);
  check_same_shape(gradient_arg, gradient.view, weight_arg, x);
  for (const Output* out : {&weight, &exp_avg, &exp_avg_sq})
    out->check_overlap(gradient_arg, gradient.view, Alias::refused);
  weight.check_overlap({kFunction, "exp_avg"}, exp_avg.view, Alias::refused);
  weight.check_overlap({kFunction, "exp_avg_sq"}, exp_avg_sq.view, Alias::refused);
  exp_avg.check_overlap({kFunction, "exp_avg_sq"}, exp_avg_sq.view, Alias::refused);
  View all[] = {weight.view, exp_avg.view, exp_avg_sq.view, gradient.view};
  View* const views[] = {&all[0], &all[1], &all[2], &all[3]};
  merge_last_axes(views, 4);
  for (const View& view : all)
    if (x.size() > 0 && (view.rank > 1 || !has_unit_last_axis(view)))
      refuse_value(weight_arg, "or what belongs to it is strided", "arrays in C order",
                   "np.ascontiguousarray(x) makes one");
  AdamWArgs args{};
  args.dtype = x.dtype;
  args.weight = all[0].data, args.exp_avg = all[1].data, args.exp_avg_sq = all[2].data;
  args.gradient = all[3].data;
  args.count = x.size();
  args.segment = int64_t{1} << 14;
  const auto number = [&](const char* name, py::handle object) {
    return read_finite({kFunction, name}, object);
  };
  args.lr = number("lr", lr), args.eps = number("eps", eps);
  args.beta1 = number("betas", beta1), args.beta2 = number("betas", beta2);
  args.weight_decay = number("weight_decay", weight_decay), args.scale = number("scale", scale);
  args.correction1 = number("step", correction1), args.correction2 = number("step", correction2);
  NoGil nogil;
  adamw(args);
}

double sum_of_squares_call(py::handle x_object) {
  const Arg x_arg{"clip_grad_norm_", "gradients"};
  Input x = read_array(x_arg, x_object);
  unit_last_axis(x_arg, x);
  NoGil nogil;
  return sum_of_squares(x.view);
}

}  // namespace

void bind_gradients(py::module_& module) {
  module.def("silu_backward", [](py::handle grad, py::handle x, py::handle out) {
    return activation_backward_call("backward.silu", Activation::silu, grad, x, out);
  });
  module.def("relu_backward", [](py::handle grad, py::handle x, py::handle out) {
    return activation_backward_call("backward.relu", Activation::relu, grad, x, out);
  });
  module.def("gelu_backward", &gelu_backward_call);
  module.def("swiglu_backward", &swiglu_backward_call);
  module.def("log_softmax", &log_softmax_call);
  module.def("softmax_backward",
             [](py::handle grad, py::handle output, py::handle axis, py::handle temperature, py::handle out) {
               return softmax_backward_call("backward.softmax", false, grad, output, axis, temperature, out);
             });
  module.def("log_softmax_backward", [](py::handle grad, py::handle output, py::handle axis, py::handle out) {
    return softmax_backward_call("backward.log_softmax", true, grad, output, axis, py::none(), out);
  });
  module.def("rms_norm_backward",
             [](py::handle grad, py::handle x, py::handle weight, py::handle eps, py::handle out) {
               return norm_backward_call("backward.rms_norm", false, grad, x, weight, py::none(), eps, out);
             });
  module.def("layer_norm_backward", [](py::handle grad, py::handle x, py::handle weight, py::handle bias,
                                       py::handle eps, py::handle out) {
    return norm_backward_call("backward.layer_norm", true, grad, x, weight, bias, eps, out);
  });
  module.def("embedding_backward", &embedding_backward_call);
  module.def("cross_entropy", &cross_entropy_call);
  module.def("cross_entropy_backward", &cross_entropy_backward_call);
  module.def("adamw", &adamw_call);
  module.def("sum_of_squares", &sum_of_squares_call);
}

}  // namespace simdformer
