// The frame of all operations whose result has the shape and the dtype of x and may take its place.
#pragma once

#include <initializer_list>
#include <utility>

#include "bindings/arrays.hpp"
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
// along which the rows lie. compute(x, out) runs without the GIL; rows are the last axis then, of unit
// stride.
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

  if (axis + 1 < x.view.rank) move_axis_last(x.view, axis), move_axis_last(out.view, axis);
  unit_last_axis(x_arg, x);
  for (Operand* operand : operands)
    if (operand->given) unit_last_axis(operand->arg, operand->input);
  out.unit_last_axis();
  {
    NoGil nogil;
    compute(std::as_const(x.view), std::as_const(out.view));
    out.finish();
  }
  return std::move(out.array);
}

inline int last_axis(const View& x) { return x.rank - 1; }

}  // namespace simdformer
