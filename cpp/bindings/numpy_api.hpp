// numpy's C API, and ml_dtypes' bfloat16. For arrays.cpp, output.cpp, dlpack.cpp and checks.cpp; the others
// see arrays as views.
#pragma once

#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL simdformer_numpy_api
#ifndef SIMDFORMER_IMPORTS_NUMPY  // defined where the table of functions lives, in arrays.cpp
#define NO_IMPORT_ARRAY
#endif

#include "bindings/arrays.hpp"
// after Python.h
#include <numpy/arrayobject.h>

namespace simdformer {

// Looked up once, at import, and never freed: it has to outlive every module that may still call us at exit.
struct Numpy {
  py::object masked_array, may_share_memory;
  int bfloat16_number;
};
extern const Numpy* numpy;

SF_INLINE int number_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return NPY_FLOAT;
    case DType::f64:
      return NPY_DOUBLE;
    case DType::f16:
      return NPY_HALF;
    case DType::bf16:
      return numpy->bfloat16_number;
    case DType::boolean:
      break;
  }
  return NPY_BOOL;
}

SF_INLINE bool is_ndarray(py::handle object) { return PyArray_Check(object.ptr()); }
SF_INLINE PyArrayObject* as_ndarray(py::handle object) {
  return reinterpret_cast<PyArrayObject*>(object.ptr());
}

SF_INLINE py::object steal(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

static_assert(sizeof(npy_intp) == sizeof(int64_t), "64-bit machines only");

// A new array of a type's number: over the memory `data` with strides in bytes, or over its own for null.
inline py::object make_ndarray(int number, int rank, const int64_t* shape, const int64_t* strides = nullptr,
                               char* data = nullptr) {
  return steal(PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(number), rank,
                                    reinterpret_cast<const npy_intp*>(shape),
                                    reinterpret_cast<const npy_intp*>(strides), data, 0, nullptr));
}

inline std::string dtype_text(PyArray_Descr* descr) { return text_of(reinterpret_cast<PyObject*>(descr)); }

// A masked array is an ndarray too, but its mask would be ignored.
void check_not_masked(const Arg& arg, py::handle object);

// The view of an ndarray in native byte order whose dtype is accepted; TypeError otherwise.
void view_of_ndarray(const Arg& arg, py::handle object, Accept accept, View& view);

}  // namespace simdformer
