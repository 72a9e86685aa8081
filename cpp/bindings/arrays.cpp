#define SIMDFORMER_IMPORTS_NUMPY
#include "bindings/arrays.hpp"

#include <algorithm>
#include <cstring>

#include "base/sizes.hpp"
#include "bindings/dlpack.hpp"
#include "bindings/numpy_api.hpp"
#include "bindings/runtime.hpp"
#include "core/copy.hpp"
#include "core/result_memory.hpp"

namespace simdformer {

// Python 3.11's header declares them as functions of C++.
extern "C" int PyTraceMalloc_Track(unsigned domain, uintptr_t memory, size_t bytes);
extern "C" int PyTraceMalloc_Untrack(unsigned domain, uintptr_t memory);

const Numpy* numpy = nullptr;

void init_arrays() {
  if (PyArray_ImportNumPyAPI() < 0) throw py::error_already_set();
  PyArray_Descr* bfloat16 = nullptr;
  if (!PyArray_DescrConverter(imported("ml_dtypes").attr("bfloat16").ptr(), &bfloat16))
    throw py::error_already_set();
  numpy = new Numpy{imported("numpy.ma").attr("MaskedArray"), imported("numpy").attr("may_share_memory"),
                    bfloat16->type_num};
  Py_DECREF(bfloat16);
}

// ---- dtypes ---------------------------------------------------------------------------------------------

namespace {

SF_INLINE bool dtype_of(int number, Accept accept, DType& dtype) {
  if (accept == Accept::bytes) {
    dtype = DType::boolean;
    return number == NPY_UBYTE;
  }
  if (number == NPY_FLOAT)
    dtype = DType::f32;
  else if (number == numpy->bfloat16_number)
    dtype = DType::bf16;
  else if (number == NPY_HALF)
    dtype = DType::f16;
  else if (number == NPY_DOUBLE)
    dtype = DType::f64;
  else if (number == NPY_BOOL && accept == Accept::floats_and_bool)
    dtype = DType::boolean;
  else
    return false;
  return true;
}

[[noreturn]] void refuse_dtype(const Arg& arg, PyArray_Descr* descr, Accept accept) {
  const char kind = descr->kind;
  const std::string name = arg.name;
  std::string advice = "convert it: np.asarray(" + name + ", np.float32)";
  if (PyDataType_HASFIELDS(descr)) advice = "take one field of it";
  if (accept == Accept::floats_and_bool && (kind == 'i' || kind == 'u'))
    advice = name + ".astype(bool) if 1 stands for True";  // added to scores, 0 and 1 would hide nothing
  if (kind == 'c') advice = "take its .real, or handle .real and .imag one after the other";
  if (kind == 'S' || kind == 'U' || kind == 'T') advice = "pass numbers";
  if (accept == Accept::bytes) advice = "convert it: np.asarray(" + name + ", np.uint8)";
  refuse_type(arg, "has dtype " + dtype_text(descr), names_of(accept), advice);
}

void check_native(const Arg& arg, PyArray_Descr* descr) {
  if (PyArray_ISNBO(descr->byteorder)) return;
  const std::string name = arg.name;
  refuse_type(arg, "is byte-swapped (dtype " + dtype_text(descr) + ")", "the machine's byte order",
              "convert it: " + name + ".astype(" + name + ".dtype.newbyteorder('='))");
}

}  // namespace

const char* names_of(Accept accept) {
  if (accept == Accept::bytes) return "uint8";
  return accept == Accept::floats_and_bool ? "bool, float32, float64, float16 or bfloat16"
                                           : "float32, float64, float16 or bfloat16";
}

DType read_dtype(const Arg& arg, py::handle object, Accept accept) {
  PyArray_Descr* descr = nullptr;
  if (!PyArray_DescrConverter(object.ptr(), &descr)) {
    const py::error_already_set error;
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw error;
    refuse_type(arg, "is " + shown(object), names_of(accept));
  }
  const py::object owner = steal(reinterpret_cast<PyObject*>(descr));
  DType dtype;
  if (!dtype_of(descr->type_num, accept, dtype) || !PyArray_ISNBO(descr->byteorder))
    refuse_type(arg, "is " + dtype_text(descr), names_of(accept));
  return dtype;
}

py::object dtype_object(DType dtype) {
  return steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(number_of(dtype))));
}

// ---- arrays ---------------------------------------------------------------------------------------------

void check_size(const Arg& arg, const View& view) {
  int64_t bytes = itemsize(view.dtype);
  bool fits = true;
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.shape[axis] != 0) fits &= multiply(bytes, view.shape[axis]);
  if (!fits) refuse_value(arg, "has shape " + shape_text(view), "a size that 64 bits can count");
}

void view_of_ndarray(const Arg& arg, py::handle object, Accept accept, View& view) {
  PyArrayObject* const array = as_ndarray(object);
  PyArray_Descr* const descr = PyArray_DESCR(array);
  if (!dtype_of(descr->type_num, accept, view.dtype)) refuse_dtype(arg, descr, accept);
  check_native(arg, descr);
  view.data = PyArray_BYTES(array);
  view.rank = PyArray_NDIM(array);
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = PyArray_DIM(array, axis);
    view.strides[axis] = PyArray_STRIDE(array, axis);
  }
  check_size(arg, view);
}

void check_not_masked(const Arg& arg, py::handle object) {
  if (PyArray_CheckExact(object.ptr())) return;
  if (PyObject_IsInstance(object.ptr(), numpy->masked_array.ptr()) == 1)
    refuse_type(arg, "is a masked array", "a plain one", "fill it: " + std::string(arg.name) + ".filled(0)");
}

namespace {

// As np.asarray reads it, whose own complaints come under our heading.
py::object as_array(const Arg& arg, py::handle object, const char* needed) {
  if (object.is_none()) refuse_type(arg, "is None", needed);
  PyObject* const array = PyArray_FromAny(object.ptr(), nullptr, 0, 0, NPY_ARRAY_ENSUREARRAY, nullptr);
  if (array != nullptr) return py::reinterpret_steal<py::object>(array);
  const py::error_already_set error;
  if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw error;
  refuse_value(arg, "cannot be read as an array (" + reason_of(error) + ")", needed);
}

}  // namespace

Input read_array(const Arg& arg, py::handle object, Accept accept) {
  Input input;
  if (is_ndarray(object)) {
    check_not_masked(arg, object);
    view_of_ndarray(arg, object, accept, input.view);
  } else if (has_dlpack(object)) {
    return read_dlpack(arg, object, accept);
  } else {
    input.owner = as_array(arg, object, "an array");
    view_of_ndarray(arg, input.owner, accept, input.view);
  }
  return input;
}

// ---- copies ---------------------------------------------------------------------------------------------

namespace {

constexpr unsigned kTraced = 0x51f0;  // of tracemalloc's domains the one that copies are counted in

// What is copied stays until it has been.
void replace(const Arg& arg, Input& input, DType dtype) {
  View copy;
  CopyMemory memory = new_memory(arg, dtype, input.view.rank, input.view.shape, copy);
  {
    const NoGil nogil(is_long(copy));
    convert_elements(input.view, copy);
  }
  input.view = copy;
  input.copy = std::move(memory);
}

bool is_contiguous(const View& view) {
  int64_t stride = itemsize(view.dtype);
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (view.shape[axis] != 1 && view.strides[axis] != stride) return view.size() == 0;
    stride *= view.shape[axis];
  }
  return true;
}

}  // namespace

CopyMemory new_memory(int64_t bytes) {
  void* const memory = take_result(static_cast<size_t>(bytes));
  if (memory == nullptr && bytes > 0) throw std::bad_alloc();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  simdformer::PyTraceMalloc_Track(kTraced, address, static_cast<size_t>(bytes));
  return CopyMemory(static_cast<char*>(memory), [bytes, address](char* memory) {
    simdformer::PyTraceMalloc_Untrack(kTraced, address);
    const NoGil nogil(bytes >= static_cast<int64_t>(kLargeResult));
    give_back_result(memory);
  });
}

CopyMemory new_memory(const Arg& arg, DType dtype, int rank, const int64_t* shape, View& view) {
  view.dtype = dtype;
  view.rank = rank;
  std::copy_n(shape, rank, view.shape);
  check_size(arg, view);
  int64_t stride = itemsize(dtype);
  for (int axis = rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    if (shape[axis] != 0) stride *= shape[axis];
  }
  CopyMemory memory = new_memory(view.size() * itemsize(dtype));
  view.data = memory.get();
  return memory;
}

void unit_last_axis(const Arg& arg, Input& input) {
  if (!has_unit_last_axis(input.view)) replace(arg, input, input.view.dtype);
}

void contiguous(const Arg& arg, Input& input) {
  if (!is_contiguous(input.view)) replace(arg, input, input.view.dtype);
}

void convert(const Arg& arg, Input& input, DType dtype) {
  if (input.view.dtype == dtype) return;
  unit_last_axis(arg, input);
  replace(arg, input, dtype);
}

// ---- integers -------------------------------------------------------------------------------------------

Integers read_integers(const Arg& arg, py::handle object) {
  py::object given = py::reinterpret_borrow<py::object>(object);
  bool chosen = true;  // whether somebody chose the dtype: that of an empty list is float64
  if (is_ndarray(object)) {
    check_not_masked(arg, object);
  } else if (has_dlpack(object)) {
    given = integers_of_dlpack(arg, object);
  } else {
    given = as_array(arg, object, "integers");
    chosen = false;
  }
  PyArrayObject* array = as_ndarray(given);
  PyArray_Descr* const descr = PyArray_DESCR(array);
  const bool is_unsigned = descr->kind == 'u';
  Integers integers;
  integers.is_unsigned = is_unsigned;
  integers.size = PyArray_SIZE(array);
  integers.rank = PyArray_NDIM(array);
  std::copy_n(PyArray_DIMS(array), integers.rank, integers.shape);
  if (descr->kind != 'i' && !is_unsigned && (chosen || integers.size > 0))
    refuse_not_integers(arg, "has dtype " + dtype_text(descr));
  check_native(arg, descr);

  constexpr int kInOrder = NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST;
  PyArray_Descr* const int64 = PyArray_DescrFromType(NPY_INT64);
  integers.array = steal(PyArray_FromArray(array, int64, kInOrder));  // the given one, where it is like that
  integers.data = static_cast<const int64_t*>(PyArray_DATA(as_ndarray(integers.array)));
  if (integers.array.is(given)) {
    const auto bytes = static_cast<size_t>(integers.size) * sizeof(int64_t);
    integers.copy = new_memory(static_cast<int64_t>(bytes));
    const NoGil nogil(static_cast<int64_t>(bytes) >= kLongMove);
    if (bytes > 0) std::memcpy(integers.copy.get(), integers.data, bytes);
    integers.data = reinterpret_cast<const int64_t*>(integers.copy.get());
  }
  return integers;
}

void refuse_not_integers(const Arg& arg, const std::string& found) {
  refuse_type(arg, found, "integers", "convert it: np.asarray(" + std::string(arg.name) + ", np.int64)");
}

std::string integer_text(const Integers& integers, int64_t value) {
  return integers.is_unsigned ? std::to_string(static_cast<uint64_t>(value)) : std::to_string(value);
}

void check_not_wrapped(const Arg& arg, const Integers& integers) {
  if (!integers.is_unsigned) return;
  const int64_t* const end = integers.data + integers.size;
  const int64_t* const wrapped = std::find_if(integers.data, end, [](int64_t value) { return value < 0; });
  if (wrapped != end) refuse_value(arg, "holds " + integer_text(integers, *wrapped), "numbers below 2**63");
}

}  // namespace simdformer
