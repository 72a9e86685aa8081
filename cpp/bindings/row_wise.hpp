// The frame of all operations whose result has the shape and the dtype of x and may take its place.
#pragma once

#include <initializer_list>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/checks.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

// An input beside x, which may be absent.
struct Operand {
  explicit Operand(const Arg& arg, Output::Alias alias = Output::Alias::refused) : arg(arg), alias(alias) {}

  Arg arg;
  Output::Alias alias;
  bool given = false;
  Input input;

  const View* view() const { return given ? &input.view : nullptr; }
};

// check(x) reads the other arguments, the operands among them, raises what is wrong, and returns the axis
// along which the rows lie. compute(x, out) runs without the GIL, where it takes longer than letting go of that; rows are
// the last axis then, of unit stride.
template <class Check, class Compute>
py::object row_wise(const Arg& x_arg, py::handle x_object, py::handle out_object,
                    std::initializer_list<Operand*> operands, Check check, Compute compute) {
  Input x = read_array(x_arg, x_object);
  const int axis = check(std::as_const(x.view));
  Output out({x_arg.function, "out"}, out_object, x.view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(x_arg, x.view, Output::Alias::same_allowed);
  for (const Operand* operand : operands)
    if (operand->given) out.check_overlap(operand->arg, operand->input.view, operand->alias);
  if (x.view.size() == 0) return std::move(out.array);

  const auto put_in_rows = [&](const Arg& arg, Input& input) {
    if (axis + 1 < input.view.rank) move_axis_last(input.view, axis);
    unit_last_axis(arg, input);
  };
  put_in_rows(x_arg, x);
  for (Operand* operand : operands)
    if (operand->given) put_in_rows(operand->arg, operand->input);
  if (axis + 1 < x.view.rank) move_axis_last(out.view, axis);
  out.unit_last_axis();
  {
    NoGil nogil(is_long(x.view));
    compute(std::as_const(x.view), std::as_const(out.view));
    out.finish();
  }
  return std::move(out.array);
}

inline int last_axis(const View& x) { return x.rank - 1; }

// An array of the shape and the dtype of x.
inline Input read_like(const Arg& arg, py::handle object, const Arg& x_arg, const View& x) {
  Input y = read_array(arg, object);
  check_same_dtype(arg, y.view.dtype, x_arg, x.dtype);
  check_same_shape(arg, y.view, x_arg, x);
  return y;
}

// The weight or bias of a norm: a vector along the last axis of x, or None.
inline void read_norm_parameter(Operand& parameter, py::handle object, const Arg& x_arg, const View& x) {
  if (object.is_none()) return;
  parameter.given = true;
  parameter.input = read_array(parameter.arg, object);
  check_parameter_dtype(parameter.arg, parameter.input.view.dtype, x_arg, x.dtype);
  check_vector(parameter.arg, parameter.input.view, x.shape[x.rank - 1],
               "one number for each element of x's last axis");
}

// row_wise of two arrays of one shape and dtype, each of whose places the result may take.
template <class Check, class Compute>
py::object pair_wise(const Arg& x_arg, py::handle x_object, const Arg& y_arg, py::handle y_object,
                     py::handle out_object, Check check, Compute compute) {
  Operand y{y_arg, Output::Alias::same_allowed};
  return row_wise(
      x_arg, x_object, out_object, {&y},
      [&](const View& x) {
        y.given = true;
        y.input = read_like(y.arg, y_object, x_arg, x);
        return check(x);
      },
      [&](const View& x, const View& out) { compute(x, std::as_const(y.input.view), out); });
}

}  // namespace simdformer
