#include <algorithm>
#include <cstdlib>

#include "bindings/dlpack.hpp"
#include "bindings/numpy_api.hpp"
#include "bindings/result_memory.hpp"
#include "core/copy.hpp"
#include "core/result_memory.hpp"

namespace simdformer {

py::object new_array(const Arg& arg, DType dtype, int rank, const int64_t* shape, View& view) {
  view.dtype = dtype;
  view.rank = rank;
  std::copy_n(shape, rank, view.shape);
  check_size(arg, view);
  const InResultMemory memory(static_cast<std::size_t>(view.size() * itemsize(dtype)) >= kLargeResult);
  py::object array = make_ndarray(number_of(dtype), rank, shape);
  view.data = PyArray_BYTES(as_ndarray(array));
  std::copy_n(PyArray_STRIDES(as_ndarray(array)), rank, view.strides);
  return array;
}

template <class T>
py::object new_integers(const Arg& arg, int rank, const int64_t* shape, T*& data) {
  View view;  // for its size
  view.dtype = sizeof(T) == 8 ? DType::f64 : DType::boolean;
  view.rank = rank;
  std::copy_n(shape, rank, view.shape);
  check_size(arg, view);
  py::object array = make_ndarray(sizeof(T) == 8 ? NPY_INT64 : NPY_UINT8, rank, shape);
  data = reinterpret_cast<T*>(PyArray_BYTES(as_ndarray(array)));
  return array;
}
template py::object new_integers(const Arg&, int, const int64_t*, int64_t*&);
template py::object new_integers(const Arg&, int, const int64_t*, uint8_t*&);

View writable_bytes(const Arg& arg, py::handle object) {
  if (!is_ndarray(object)) refuse_type(arg, type_of(object), "a numpy array of uint8");
  View view;
  check_not_masked(arg, object);
  view_of_ndarray(arg, object, Accept::bytes, view);
  if (!PyArray_ISWRITEABLE(as_ndarray(object)) || !PyArray_IS_C_CONTIGUOUS(as_ndarray(object)))
    refuse_value(arg, "is read-only or has gaps", "a writable contiguous array");
  return view;
}

namespace {

// Whether two elements of one view may lie on each other: sorted by stride, each axis has to step over all of
// the smaller ones. Every slice of an array does; np.broadcast_to and most of as_strided's tricks do not.
bool overlaps_itself(const View& view) {
  int order[kMaxRank], axes = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return false;
    if (view.shape[axis] > 1) order[axes++] = axis;
  }
  std::sort(order, order + axes,
            [&](int a, int b) { return std::abs(view.strides[a]) < std::abs(view.strides[b]); });
  int64_t reach = itemsize(view.dtype);
  for (int i = 0; i < axes; ++i) {
    const int64_t stride = std::abs(view.strides[order[i]]);
    if (stride < reach) return true;
    reach += stride * (view.shape[order[i]] - 1);
  }
  return false;
}

// An ndarray over a view's memory, which it does not keep alive.
py::object borrowed_array(const View& view) {
  return make_ndarray(number_of(view.dtype), view.rank, view.shape, view.strides, view.data);
}

struct Bounds {
  uintptr_t begin, end;
};

Bounds bounds_of(const View& view) {
  Bounds bounds{reinterpret_cast<uintptr_t>(view.data), reinterpret_cast<uintptr_t>(view.data)};
  for (int axis = 0; axis < view.rank; ++axis) {
    const int64_t reach = view.strides[axis] * (view.shape[axis] - 1);
    (reach < 0 ? bounds.begin : bounds.end) += static_cast<uintptr_t>(reach);
  }
  bounds.end += static_cast<uintptr_t>(itemsize(view.dtype));
  return bounds;
}

bool same_elements(const View& a, const View& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.shape[axis] != b.shape[axis] || (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis]))
      return false;
  return true;
}

}  // namespace

Output::Output(const Arg& arg, py::handle out, DType dtype, int rank, const int64_t* shape)
    : arg_(arg), given_(!out.is_none()) {
  if (!given_) {
    array = new_array(arg, dtype, rank, shape, view);
    return;
  }
  if (is_ndarray(out)) {
    check_not_masked(arg, out);
    PyArray_Descr* const descr = PyArray_DESCR(as_ndarray(out));
    if (descr->type_num != number_of(dtype) || !PyArray_ISNBO(descr->byteorder))
      refuse_type(arg, "has dtype " + dtype_text(descr), name_of(dtype),
                  "make it with np.empty(" + shape_text(rank, shape) +
                      (dtype == DType::bf16 ? ", ml_dtypes." : ", np.") + name_of(dtype) + ")");
    view_of_ndarray(arg, out, Accept::floats, view);
  } else if (has_dlpack(out)) {
    Input tensor = read_dlpack(arg, out, Accept::floats, Access::write);
    if (tensor.view.dtype != dtype)
      refuse_type(arg, std::string("has dtype ") + name_of(tensor.view.dtype), name_of(dtype));
    view = tensor.view;
    memory_ = std::move(tensor.owner);
  } else {
    refuse_type(arg, type_of(out), "a numpy array or a tensor on the CPU", "leave it out to get a new one");
  }
  if (rank != view.rank || !std::equal(shape, shape + rank, view.shape))
    refuse_value(arg, "has shape " + shape_text(view), shape_text(rank, shape));
  if (is_ndarray(out) && !PyArray_ISWRITEABLE(as_ndarray(out)))
    refuse_value(arg, "is read-only", "a writable array");
  if (overlaps_itself(view))
    refuse_value(arg, "has elements that lie on each other (a stride of 0, for instance)",
                 "a place for each of them",
                 "copy it: " + name_of(arg) + (is_ndarray(out) ? ".copy()" : ".clone()"));
  array = py::reinterpret_borrow<py::object>(out);
}

void Output::check_overlap(const Arg& input_arg, const View& input, Alias alias) const {
  if (!given_ || view.size() == 0 || input.size() == 0) return;
  const Bounds ours = bounds_of(view), theirs = bounds_of(input);
  if (ours.end <= theirs.begin || theirs.end <= ours.begin) return;
  if (alias == Alias::same_allowed && same_elements(view, input)) return;
  // Bounds that overlap are common where both are columns of one buffer. numpy solves it exactly within this
  // budget, beyond which it supposes the worst.
  constexpr int kMaxWork = 10000;
  if (!numpy->may_share_memory(borrowed_array(view), borrowed_array(input), py::arg("max_work") = kMaxWork)
           .cast<bool>())
    return;
  const std::string other = name_of(input_arg);
  refuse_value(
      arg_, "shares memory with " + other,
      alias == Alias::same_allowed ? "memory of its own, or to be exactly " + other : "memory of its own");
}

void Output::unit_last_axis() {
  if (has_unit_last_axis(view)) return;
  to_ = view;
  stand_in_ = new_memory(arg_, to_.dtype, to_.rank, to_.shape, view);
  from_ = view;
}

void Output::finish() const {
  if (stand_in_) copy_elements(from_, to_);
}

void Computed::allocate(const Arg& arg, DType dtype, DType as, int rank, const int64_t* shape) {
  array = new_array(arg, dtype, rank, shape, view_);
  if (dtype == as)
    computed = view_;
  else
    stand_in_ = new_memory(arg, as, rank, shape, computed);
  from_ = computed;
}

void Computed::finish() const {
  if (stand_in_) convert_elements(from_, view_);
}

}  // namespace simdformer
