#include "core/array.hpp"

namespace simdformer {

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
