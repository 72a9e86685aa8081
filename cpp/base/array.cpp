#include "base/array.hpp"

#include <algorithm>
#include <stdexcept>

namespace simdformer {

void move_axis_last(View& view, int axis) {
  std::rotate(view.shape + axis, view.shape + axis + 1, view.shape + view.rank);
  std::rotate(view.strides + axis, view.strides + axis + 1, view.strides + view.rank);
}

void insert_axis(View& view, int axis, int64_t extent, int64_t stride) {
  if (view.rank == kMaxRank)
    throw std::length_error("simdformer: an array has 64 axes, needs at most 63 here");
  std::copy_backward(view.shape + axis, view.shape + view.rank, view.shape + view.rank + 1);
  std::copy_backward(view.strides + axis, view.strides + view.rank, view.strides + view.rank + 1);
  ++view.rank;
  view.shape[axis] = extent;
  view.strides[axis] = stride;
}

void merge_last_axes(View* const* views, int count) {
  // An axis of one element may have any stride, and what is merged with it would inherit that.
  for (int i = 0; i < count; ++i) {
    View& view = *views[i];
    if (view.rank > 0 && view.shape[view.rank - 1] == 1) view.strides[view.rank - 1] = itemsize(view.dtype);
  }
  const auto one_after_the_other = [&](int axis) {
    return std::all_of(views, views + count, [&](const View* view) {
      return view->shape[axis - 1] == 1 || view->strides[axis - 1] == view->shape[axis] * view->strides[axis];
    });
  };
  while (views[0]->rank > 1 && one_after_the_other(views[0]->rank - 1)) {
    for (int i = 0; i < count; ++i) {
      View& view = *views[i];
      --view.rank;
      view.shape[view.rank - 1] *= view.shape[view.rank];
      view.strides[view.rank - 1] = view.strides[view.rank];
    }
  }
}

Rows rows_of(const View& view) {
  Rows rows;
  rows.data = view.data;
  rows.dtype = view.dtype;
  rows.length = view.rank > 0 ? view.shape[view.rank - 1] : 1;
  rows.count = 1;
  for (int axis = 0; axis + 1 < view.rank; ++axis) {
    const int64_t extent = view.shape[axis], stride = view.strides[axis];
    rows.count *= extent;
    if (extent == 1) continue;
    const int last = rows.rank - 1;
    if (last >= 0 && rows.strides[last] == extent * stride) {  // the outer axis steps over exactly this one
      rows.shape[last] *= extent;
      rows.strides[last] = stride;
    } else {
      rows.shape[rows.rank] = extent;
      rows.strides[rows.rank++] = stride;
    }
  }
  return rows;
}

}  // namespace simdformer
