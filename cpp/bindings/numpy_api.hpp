// numpy and ml_dtypes as the bindings see them: looked up once, at import. For arrays.cpp and output.cpp.
#pragma once

#include "bindings/arrays.hpp"

namespace simdformer {

using py::detail::array_descriptor_proxy;
using py::detail::array_proxy;
using py::detail::npy_api;

// Never freed: it has to outlive every module that may still call us at exit.
struct Numpy {
  PyTypeObject* ndarray;
  py::object masked_array, asarray, from_dlpack, may_share_memory, dtype, int64;
  int float16_number, bfloat16_number;
};
extern const Numpy* numpy;

SF_INLINE int number_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return npy_api::NPY_FLOAT_;
    case DType::f64:
      return npy_api::NPY_DOUBLE_;
    case DType::f16:
      return numpy->float16_number;
    case DType::bf16:
      return numpy->bfloat16_number;
    case DType::boolean:
      break;
  }
  return npy_api::NPY_BOOL_;
}

SF_INLINE bool is_swapped(const PyObject* descr) { return array_descriptor_proxy(descr)->byteorder == '>'; }

inline std::string dtype_text(const PyObject* descr) {
  return one_line(py::str(py::handle(const_cast<PyObject*>(descr))));
}

SF_INLINE py::object steal(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

static_assert(sizeof(Py_intptr_t) == sizeof(int64_t), "64-bit machines only");
SF_INLINE const Py_intptr_t* extents(const int64_t* shape) {
  return reinterpret_cast<const Py_intptr_t*>(shape);
}

// A masked array is an ndarray too, but its mask would be ignored.
void check_not_masked(const Arg& arg, py::handle object);

// The view of an ndarray in native byte order whose dtype is accepted; TypeError otherwise.
void view_of_ndarray(const Arg& arg, PyObject* object, Accept accept, View& view);

}  // namespace simdformer
