#include "bindings/checks.hpp"

#include <algorithm>
#include <cmath>

#include "base/panels.hpp"
#include "base/sizes.hpp"
#include "bindings/numpy_api.hpp"

namespace simdformer {

namespace {

std::string number_text(double value) { return py::repr(py::float_(value)); }

std::string convert_advice(const Arg& arg, const Arg& to) {
  return "convert one of them: np.asarray(" + name_of(arg) + ", " + name_of(to) + ".dtype)";
}

bool is_array_with_axes(py::handle object) {
  return is_ndarray(object) && PyArray_NDIM(as_ndarray(object)) > 0;
}

}  // namespace

// ---- numbers --------------------------------------------------------------------------------------------

double read_real(const Arg& arg, py::handle object) {
  if (PyFloat_CheckExact(object.ptr())) return PyFloat_AS_DOUBLE(object.ptr());
  if (PyBool_Check(object.ptr()) || is_array_with_axes(object))
    refuse_type(arg, type_of(object), "a real number");
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError);
    if (!too_large && !PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError))
      throw py::error_already_set();
    PyErr_Clear();
    if (too_large) refuse_value(arg, "is too large for a float64", "a real number");
    refuse_type(arg, type_of(object), "a real number");
  }
  return value;
}

double read_finite(const Arg& arg, py::handle object) {
  const double value = read_real(arg, object);
  if (!std::isfinite(value)) refuse_value(arg, "is " + number_text(value), "a finite number");
  return value;
}

double read_positive(const Arg& arg, py::handle object) {
  const double value = read_real(arg, object);
  if (!(value > 0) || std::isinf(value)) refuse_value(arg, "is " + number_text(value), "a finite number > 0");
  return value;
}

double read_non_negative(const Arg& arg, py::handle object) {
  const double value = read_real(arg, object);
  if (!(value >= 0) || std::isinf(value))
    refuse_value(arg, "is " + number_text(value), "a finite number >= 0");
  return value;
}

int64_t read_integer(const Arg& arg, py::handle object) {
  PyObject* const given = object.ptr();
  if (PyBool_Check(given) || !PyIndex_Check(given) || is_array_with_axes(object))
    refuse_type(arg, type_of(object), "an integer");
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(given));
  if (!index) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();
    refuse_type(arg, type_of(object), "an integer");
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) refuse_value(arg, "is " + shown(index), "an integer of 64 bits");
  return value;
}

int64_t read_length(const Arg& arg, py::handle object) {
  const int64_t length = read_integer(arg, object);
  if (length < 0) refuse_value(arg, "is " + std::to_string(length), "a length >= 0");
  return length;
}

bool read_flag(const Arg& arg, py::handle object) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  if (!PyArray_IsScalar(object.ptr(), Bool)) refuse_type(arg, type_of(object), "True or False");
  return PyObject_IsTrue(object.ptr()) == 1;
}

int read_name(const Arg& arg, py::handle object, const char* const* names) {
  const bool is_text = PyUnicode_Check(object.ptr());
  std::string choices;
  for (int i = 0; names[i] != nullptr; ++i) {
    if (is_text && PyUnicode_CompareWithASCIIString(object.ptr(), names[i]) == 0) return i;
    choices += std::string(i == 0 ? "\"" : " or \"") + names[i] + "\"";
  }
  if (!is_text) refuse_type(arg, type_of(object), choices);
  refuse_value(arg, "is " + shown(object), choices);
}

int read_axis(const Arg& arg, py::handle object, int rank) {
  const int64_t axis = read_integer(arg, object);
  if (rank == 0)
    refuse_value(arg, "is " + std::to_string(axis), "an array with axes", "x is a single number");
  if (axis < -rank || axis >= rank)
    refuse_value(arg, "is " + std::to_string(axis),
                 "an axis of x, from " + std::to_string(-rank) + " to " + std::to_string(rank - 1));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

int64_t checked_add(const Arg& arg, int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) refuse_value(arg, "is too large", "a sum that fits in 64 bits");
  return sum;
}

int64_t checked_multiply(const Arg& arg, int64_t a, int64_t b) {
  if (!multiply(a, b)) refuse_value(arg, "is too large", "a size that 64 bits can count");
  return a;
}

// ---- dtypes ---------------------------------------------------------------------------------------------

void check_parameter_dtype(const Arg& arg, DType dtype, const Arg& x_arg, DType x) {
  if (dtype == x || (x == DType::f32 && is_16_bit(dtype)) || (is_16_bit(x) && dtype == DType::f32)) return;
  const std::string needed = x == DType::f64   ? "float64"
                             : x == DType::f32 ? "float32, float16 or bfloat16"
                                               : std::string(name_of(x)) + " or float32";
  refuse_type(arg, std::string("has dtype ") + name_of(dtype),
              needed + " beside " + x_arg.name + " of dtype " + name_of(x), convert_advice(arg, x_arg));
}

void check_not_both_16_bit(const Arg& arg, DType dtype, const Arg& other_arg, DType other) {
  if (!is_16_bit(dtype) || !is_16_bit(other) || dtype == other) return;
  refuse_type(
      arg, std::string("has dtype ") + name_of(dtype),
      std::string(name_of(other)) + " or float32 beside " + other_arg.name + " of dtype " + name_of(other),
      convert_advice(arg, other_arg));
}

void check_same_dtype(const Arg& arg, DType dtype, const Arg& other_arg, DType other) {
  if (dtype == other) return;
  refuse_type(arg, std::string("has dtype ") + name_of(dtype),
              std::string(name_of(other)) + ", the dtype of " + other_arg.name,
              convert_advice(arg, other_arg));
}

// ---- shapes ---------------------------------------------------------------------------------------------

void check_rank_at_least(const Arg& arg, const View& view, int rank, const char* axes) {
  if (view.rank < rank) refuse_value(arg, "has shape " + shape_text(view), axes);
}

void check_rank(const Arg& arg, const View& view, int rank, const char* axes) {
  if (view.rank != rank) refuse_value(arg, "has shape " + shape_text(view), axes);
}

void check_same_shape(const Arg& arg, const View& view, const Arg& other_arg, const View& other) {
  if (view.rank == other.rank && std::equal(view.shape, view.shape + view.rank, other.shape)) return;
  refuse_value(arg, "has shape " + shape_text(view), shape_text(other) + ", the shape of " + other_arg.name);
}

void check_vector(const Arg& arg, const View& view, int64_t length, const char* why) {
  if (view.rank == 1 && view.shape[0] == length) return;
  refuse_value(arg, "has shape " + shape_text(view), shape_text(1, &length) + ", " + why);
}

void check_piece(const Arg& arg, int64_t count, int64_t first, int64_t rows) {
  const bool inside = first >= 0 && first <= rows && count <= rows - first;
  if (inside && first % kPanelColumns == 0 && (count % kPanelColumns == 0 || first + count == rows)) return;
  refuse_value(arg, "are " + std::to_string(count) + " from " + std::to_string(first) + " on",
               "whole panels of " + std::to_string(kPanelColumns) + " of " + std::to_string(rows) + " rows");
}

}  // namespace simdformer
