// Arrays as the library sees them: a dtype, a pointer and strides in bytes. Nothing here owns memory.
//
// This header is read by the baseline code and by every per-ISA kernel file. Whatever a kernel may call is
// SF_INLINE: a plain inline function could be emitted by an AVX-512 object and then be picked by the linker
// for the baseline as well.
#pragma once

#include <cstddef>
#include <cstdint>

#define SF_INLINE inline __attribute__((always_inline))

namespace simdformer {

enum class DType : uint8_t { f32, f64, f16, bf16, boolean };

// The 16-bit formats are storage only: arithmetic on them is float (see kernels/dtypes.hpp).
struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

SF_INLINE int64_t itemsize(DType dtype) {
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : dtype == DType::boolean ? 1 : 2;
}

SF_INLINE bool is_16_bit(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// The type in which a dtype is accumulated: float64 for float64, float32 for the rest.
SF_INLINE DType accumulator(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

constexpr int kMaxRank = 64;  // numpy's

// A strided view of somebody else's memory. Strides are in bytes, may be zero or negative.
struct View {
  char* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];

  View() = default;
  SF_INLINE View(const View& other) { *this = other; }
  SF_INLINE View& operator=(const View& other) {  // only the axes in use: all of them are a kilobyte
    data = other.data;
    dtype = other.dtype;
    rank = other.rank;
    for (int axis = 0; axis < rank; ++axis) {
      shape[axis] = other.shape[axis];
      strides[axis] = other.strides[axis];
    }
    return *this;
  }

  SF_INLINE int64_t size() const {
    int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= shape[axis];
    return count;
  }
};

SF_INLINE bool has_unit_last_axis(const View& view) {
  return view.rank == 0 || view.shape[view.rank - 1] <= 1 ||
         view.strides[view.rank - 1] == itemsize(view.dtype);
}

// The axes from `axis` on are moved up one place and `axis` becomes the last.
void move_axis_last(View& view, int axis);

// A new axis before `axis`, or after all for axis = rank.
void insert_axis(View& view, int axis, int64_t extent, int64_t stride);

// Trailing axes that lie one after the other in all of the views become one long last axis.
void merge_last_axes(View* const* views, int count);

// A view as `count` rows of `length` elements that lie side by side: the last axis taken off, the leading
// axes merged wherever their strides allow. Row i is found without a division by walking a RowCursor.
struct Rows {
  char* data = nullptr;
  DType dtype = DType::f32;
  int64_t count = 0;   // number of rows
  int64_t length = 0;  // elements in a row, unit stride
  int rank = 0;        // leading axes left after merging; 0 = a single row
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
};

// Merges what can be merged in one view. The last axis must have unit stride (or at most one element).
Rows rows_of(const View& view);

// Walks rows in order: `RowCursor row(rows, begin); for (i = begin; i < end; ++i, row.next())
// use(row.get())`.
class RowCursor {
 public:
  SF_INLINE RowCursor(const Rows& rows, int64_t begin) : rows_(&rows), pointer_(rows.data) {
    for (int axis = rows.rank - 1; axis >= 0; --axis) {
      const int64_t extent = rows.shape[axis];
      index_[axis] = begin % extent;
      begin /= extent;
      pointer_ += index_[axis] * rows.strides[axis];
    }
  }

  SF_INLINE char* get() const { return pointer_; }
  template <class T>
  SF_INLINE T* as() const {
    return reinterpret_cast<T*>(pointer_);
  }

  SF_INLINE void next() {
    for (int axis = rows_->rank - 1; axis >= 0; --axis) {
      pointer_ += rows_->strides[axis];
      if (++index_[axis] < rows_->shape[axis]) return;
      pointer_ -= rows_->shape[axis] * rows_->strides[axis];
      index_[axis] = 0;
    }
  }

 private:
  const Rows* rows_;
  char* pointer_;
  int64_t index_[kMaxRank];
};

}  // namespace simdformer
