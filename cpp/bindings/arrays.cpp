#include "bindings/arrays.hpp"

#include <algorithm>
#include <cstring>

#include "bindings/dlpack.hpp"
#include "bindings/numpy_api.hpp"

namespace simdformer {

namespace {

SF_INLINE bool dtype_of(int number, Accept accept, DType& dtype) {
  if (number == npy_api::NPY_FLOAT_)
    dtype = DType::f32;
  else if (number == numpy->bfloat16_number)
    dtype = DType::bf16;
  else if (number == numpy->float16_number)
    dtype = DType::f16;
  else if (number == npy_api::NPY_DOUBLE_)
    dtype = DType::f64;
  else if (number == npy_api::NPY_BOOL_ && accept == Accept::floats_and_bool)
    dtype = DType::boolean;
  else
    return false;
  return true;
}

const char* accepted(Accept accept) {
  return accept == Accept::floats_and_bool ? "bool, float32, float64, float16 or bfloat16"
                                           : "float32, float64, float16 or bfloat16";
}

[[noreturn]] void refuse_dtype(const Arg& arg, const PyObject* descr, Accept accept) {
  const char kind = array_descriptor_proxy(descr)->kind;
  const std::string found = "has dtype " + dtype_text(descr);
  const std::string name = arg.name;
  const bool has_fields = !py::handle(const_cast<PyObject*>(descr)).attr("names").is_none();
  std::string advice = "convert it: np.asarray(" + name + ", np.float32)";
  if (has_fields) advice = "take one field of it";
  if (accept == Accept::floats_and_bool && (kind == 'i' || kind == 'u'))
    advice = name + ".astype(bool) if 1 stands for True";  // added to scores, 0 and 1 would hide nothing
  if (kind == 'c') advice = "take its .real, or handle .real and .imag one after the other";
  if (kind == 'S' || kind == 'U' || kind == 'T') advice = "pass numbers";
  refuse_type(arg, found, accepted(accept), advice);
}

void check_native(const Arg& arg, const PyObject* descr) {
  if (!is_swapped(descr)) return;
  const std::string name = arg.name;
  refuse_type(arg, "is byte-swapped (dtype " + dtype_text(descr) + ")", "the machine's byte order",
              "convert it: " + name + ".astype(" + name + ".dtype.newbyteorder('='))");
}
// np.asarray, whose own complaints come under our heading.
py::object as_array(const Arg& arg, py::handle object, const char* needed) {
  if (object.is_none()) refuse_type(arg, "is None", needed);
  try {
    return numpy->asarray(object);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
    refuse_value(arg, "cannot be read as an array (" + reason_of(error) + ")", needed);
  }
}

}  // namespace

// ---- messages -------------------------------------------------------------------------------------------

std::string one_line(const std::string& text) {
  constexpr size_t kLongest = 200;
  std::string line;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
    if (!blank) line += c;
    if (blank && !line.empty() && line.back() != ' ') line += ' ';
  }
  if (line.size() <= kLongest) return line;
  size_t end = kLongest;
  while (end > 0 && (line[end] & 0xC0) == 0x80) --end;  // not inside a character of UTF-8
  return line.substr(0, end) + "...";
}

namespace {

std::string said(PyObject* (*say)(PyObject*), py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(say(object.ptr()));
  const auto bytes = py::reinterpret_steal<py::object>(
      text ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  if (!bytes) {  // an object may fail at this, too; an int does from 4300 digits on
    PyErr_Clear();
    return one_line(std::string("of type ") + Py_TYPE(object.ptr())->tp_name);
  }
  return one_line(std::string(PyBytes_AS_STRING(bytes.ptr()), PyBytes_GET_SIZE(bytes.ptr())));
}

}  // namespace

std::string shown(py::handle object) { return said(PyObject_Repr, object); }

std::string reason_of(const py::error_already_set& error) { return said(PyObject_Str, error.value()); }

std::string name_of(const Arg& arg) {
  return arg.index < 0 ? arg.name : std::string(arg.name) + "[" + std::to_string(arg.index) + "]";
}

std::string message(const Arg& arg, const std::string& found, const std::string& needed,
                    const std::string& advice) {
  const std::string text =
      std::string(arg.function) + ": " + name_of(arg) + " " + found + ", needs " + needed;
  return advice.empty() ? text : text + "; " + advice;
}

void refuse_type(const Arg& arg, const std::string& found, const std::string& needed,
                 const std::string& advice) {
  throw py::type_error(message(arg, found, needed, advice));
}
void refuse_value(const Arg& arg, const std::string& found, const std::string& needed,
                  const std::string& advice) {
  throw py::value_error(message(arg, found, needed, advice));
}
void refuse_buffer(const Arg& arg, const std::string& found, const std::string& needed,
                   const std::string& advice) {
  throw py::buffer_error(message(arg, found, needed, advice));
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::boolean:
      break;
  }
  return "bool";
}

std::string shape_text(int rank, const int64_t* shape) {
  std::string text = "(";
  for (int axis = 0; axis < rank; ++axis) text += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  return text + (rank == 1 ? ",)" : ")");
}
std::string shape_text(const View& view) { return shape_text(view.rank, view.shape); }

const Numpy* numpy = nullptr;

void init_arrays() {
  const py::module_ np = py::module_::import("numpy");
  const py::object bfloat16 = py::module_::import("ml_dtypes").attr("bfloat16");
  numpy = new Numpy{npy_api::get().PyArray_Type_,
                    py::module_::import("numpy.ma").attr("MaskedArray"),
                    np.attr("asarray"),
                    np.attr("from_dlpack"),
                    np.attr("may_share_memory"),
                    np.attr("dtype"),
                    np.attr("int64"),
                    np.attr("dtype")("float16").attr("num").cast<int>(),
                    np.attr("dtype")(bfloat16).attr("num").cast<int>()};
}

// ---- inputs ---------------------------------------------------------------------------------------------

void check_size(const Arg& arg, const View& view) {
  int64_t bytes = itemsize(view.dtype);
  bool overflow = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return;
    overflow |= __builtin_mul_overflow(bytes, view.shape[axis], &bytes);
  }
  if (overflow) refuse_value(arg, "has shape " + shape_text(view), "a size that 64 bits can count");
}

void view_of_ndarray(const Arg& arg, PyObject* object, Accept accept, View& view) {
  const auto* array = array_proxy(object);
  if (!dtype_of(array_descriptor_proxy(array->descr)->type_num, accept, view.dtype))
    refuse_dtype(arg, array->descr, accept);
  check_native(arg, array->descr);
  view.data = array->data;
  view.rank = array->nd;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = array->dimensions[axis];
    view.strides[axis] = array->strides[axis];
  }
  check_size(arg, view);
}

void check_not_masked(const Arg& arg, py::handle object) {
  if (PyObject_IsInstance(object.ptr(), numpy->masked_array.ptr()) == 1)
    refuse_type(arg, "is a masked array", "a plain one", "fill it: " + std::string(arg.name) + ".filled(0)");
}

Input read_array(const Arg& arg, py::handle object, Accept accept) {
  Input input;
  if (Py_TYPE(object.ptr()) == numpy->ndarray) {
    view_of_ndarray(arg, object.ptr(), accept, input.view);
  } else if (PyObject_TypeCheck(object.ptr(), numpy->ndarray)) {
    check_not_masked(arg, object);
    view_of_ndarray(arg, object.ptr(), accept, input.view);
  } else if (has_dlpack(object)) {
    return read_dlpack(arg, object, accept);
  } else {
    input.owner = as_array(arg, object, "an array");
    view_of_ndarray(arg, input.owner.ptr(), accept, input.view);
  }
  return input;
}

Integers read_integers(const Arg& arg, py::handle object) {
  Integers integers;
  py::object array = py::reinterpret_borrow<py::object>(object);
  bool chosen = true;  // whether somebody chose the dtype: that of an empty list is float64
  if (PyObject_TypeCheck(object.ptr(), numpy->ndarray)) {
    if (Py_TYPE(object.ptr()) != numpy->ndarray) check_not_masked(arg, object);
  } else if (has_dlpack(object)) {
    check_cpu(arg, object);
    try {
      array = numpy->from_dlpack(object);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
      refuse_buffer(arg, "does not hand out its memory (" + reason_of(error) + ")", "integers on the CPU");
    }
  } else {
    array = as_array(arg, object, "integers");
    chosen = false;
  }
  const PyObject* descr = array_proxy(array.ptr())->descr;
  const char kind = array_descriptor_proxy(descr)->kind;
  integers.array = py::reinterpret_borrow<py::array>(array);
  if (kind != 'i' && kind != 'u' && (chosen || integers.array.size() > 0))
    refuse_type(arg, "has dtype " + dtype_text(descr), "integers",
                "convert it: np.asarray(" + std::string(arg.name) + ", np.int64)");
  check_native(arg, descr);
  constexpr int kOrdered = npy_api::NPY_ARRAY_C_CONTIGUOUS_ | npy_api::NPY_ARRAY_ALIGNED_;
  if (array_descriptor_proxy(descr)->type_num != npy_api::NPY_INT64_ ||
      (integers.array.flags() & kOrdered) != kOrdered)
    integers.array = integers.array.attr("astype")(numpy->int64, "C");
  integers.data = static_cast<const int64_t*>(integers.array.data());
  if (integers.array.ptr() == array.ptr()) {
    const size_t count = static_cast<size_t>(integers.array.size());
    integers.copy.reset(new int64_t[count]);
    std::memcpy(integers.copy.get(), integers.data, count * sizeof(int64_t));
    integers.data = integers.copy.get();
  }
  integers.is_unsigned = kind == 'u';
  return integers;
}

std::string integer_text(const Integers& integers, int64_t value) {
  return integers.is_unsigned ? std::to_string(static_cast<uint64_t>(value)) : std::to_string(value);
}

void check_not_wrapped(const Arg& arg, const Integers& integers) {
  if (!integers.is_unsigned) return;
  const int64_t* const end = integers.data + integers.array.size();
  const int64_t* const wrapped = std::find_if(integers.data, end, [](int64_t value) { return value < 0; });
  if (wrapped != end) refuse_value(arg, "holds " + integer_text(integers, *wrapped), "numbers below 2**63");
}

DType read_dtype(const Arg& arg, py::handle object, Accept accept) {
  py::object descr;
  try {
    descr = numpy->dtype(object);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    refuse_type(arg, "is " + shown(object), accepted(accept));
  }
  DType dtype;
  if (!dtype_of(array_descriptor_proxy(descr.ptr())->type_num, accept, dtype) || is_swapped(descr.ptr()))
    refuse_type(arg, "is " + dtype_text(descr.ptr()), accepted(accept));
  return dtype;
}

py::object dtype_object(DType dtype) {
  return steal(npy_api::get().PyArray_DescrFromType_(number_of(dtype)));
}

void unit_last_axis(const Arg& arg, Input& input) {
  if (has_unit_last_axis(input.view)) return;
  View copy;
  py::object owner = new_array(arg, input.view.dtype, input.view.rank, input.view.shape, copy);
  copy_elements(input.view, copy);
  input.view = copy;
  input.owner = std::move(owner);
}

Input converted(const Arg& arg, const Input& input, DType dtype) {
  Input plain = input, result;
  unit_last_axis(arg, plain);
  result.owner = new_array(arg, dtype, plain.view.rank, plain.view.shape, result.view);
  convert_elements(plain.view, result.view);
  return result;
}

}  // namespace simdformer
