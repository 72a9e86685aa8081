// likeliest, mix: what a mixture of experts does beside its products. simdformer.experts has checked shapes.
#include "core/experts.hpp"

#include <pybind11/numpy.h>

#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

template <class T>
using Contiguous = py::array_t<T, py::array::c_style>;

template <class T>
View view_of(const Contiguous<T>& array) {
  View view;
  view.data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(array.data())));
  view.dtype = sizeof(T) == 8 ? DType::f64 : DType::f32;
  view.rank = static_cast<int>(array.ndim());
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = array.shape(axis);
    view.strides[axis] = array.strides(axis);
  }
  return view;
}

template <class T>
void bind_for(py::module_& module) {
  module.def("likeliest", [](const Contiguous<T>& logits, int64_t k) {
    Contiguous<int64_t> ids({static_cast<int64_t>(logits.shape(0)), k});
    int64_t* const data = ids.mutable_data();
    NoGil nogil;
    likeliest(view_of(logits), k, data);
    return ids;
  });
  module.def("mix", [](const Contiguous<T>& x, const Contiguous<T>& weights) {
    Contiguous<T> out({x.shape(0), x.shape(2)});
    const View view = view_of(out);
    NoGil nogil;
    mix(view_of(x), view_of(weights), view);
    return out;
  });
}

}  // namespace

void bind_experts(py::module_& module) {
  bind_for<float>(module);
  bind_for<double>(module);
}

}  // namespace simdformer
