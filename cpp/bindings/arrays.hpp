// Python objects as typed, strided views, and views as new arrays. Everything here needs the GIL, but for
// Output::finish.
#pragma once

#include <memory>

#include "base/array.hpp"
#include "bindings/messages.hpp"

namespace simdformer {

// Looks up numpy and ml_dtypes; called once, at import.
void init_arrays();

// ---- inputs ---------------------------------------------------------------------------------------------

// Memory of our own, which no Python object shows. What is large is given back without the GIL.
using CopyMemory = std::shared_ptr<char>;
CopyMemory new_memory(int64_t bytes);  // throws std::bad_alloc
// For a contiguous array, which `view` becomes.
CopyMemory new_memory(const Arg& arg, DType dtype, int rank, const int64_t* shape, View& view);

// Bytes from which on moving them is worth letting go of the GIL.
constexpr int64_t kLongMove = int64_t{64} << 10;
inline bool is_long(const View& view) { return view.size() * itemsize(view.dtype) >= kLongMove; }
// The same for sums of so many products each.
inline bool is_long_product(double sums, int64_t products) {
  return sums * static_cast<double>(std::max<int64_t>(products, 1)) >= 2 * kLongMove;
}

// An argument's memory. `owner` or `copy` is set when that memory is not kept alive by the caller's own reference.
struct Input {
  View view;
  py::object owner;
  CopyMemory copy;
};

enum class Accept { floats, floats_and_bool, bytes };  // bytes: uint8, as DType::boolean, which is a byte too
const char* names_of(Accept accept);                   // "float32, float64, ..."

// numpy arrays and anything with __dlpack__ on the CPU without a copy, the rest as np.asarray reads it.
// Raises TypeError for a dtype outside `accept`, for byte-swapped, masked, object and structured arrays.
Input read_array(const Arg& arg, py::handle object, Accept accept = Accept::floats);

// The number of elements and of their bytes must fit in 64 bits, extents of 0 left out.
void check_size(const Arg& arg, const View& view);

// Integers of any width: `data` has the elements in order. They are ours alone: what was checked stays so,
// though `out` may lie over the given array and another thread may write to it. An unsigned number from 2**63
// on has wrapped to a negative one: the caller refuses those, with check_not_wrapped or in its own words.
struct Integers {
  int rank = 0;
  int64_t shape[kMaxRank];
  int64_t size = 0;
  const int64_t* data = nullptr;
  bool is_unsigned = false;

  CopyMemory copy;   // the memory, or
  py::object array;  // its owner
};
Integers read_integers(const Arg& arg, py::handle object);
[[noreturn]] void refuse_not_integers(const Arg& arg, const std::string& found);
void check_not_wrapped(const Arg& arg, const Integers& integers);
std::string integer_text(const Integers& integers, int64_t value);  // as it was given

// A dtype given by name or object; one of the floats, and bool where accepted.
DType read_dtype(const Arg& arg, py::handle object, Accept accept);
py::object dtype_object(DType dtype);  // as numpy's

// Copies once, inside, if the elements of the last axis do not lie side by side; or, if any do not lie in order.
void unit_last_axis(const Arg& arg, Input& input);
void contiguous(const Arg& arg, Input& input);

// Another dtype, as a contiguous copy (the kernel's conversion, so one rounding at most); nothing where it has it.
void convert(const Arg& arg, Input& input, DType dtype);

// ---- outputs --------------------------------------------------------------------------------------------

// A new C-contiguous array. Sizes beyond 64 bits are a ValueError.
py::object new_array(const Arg& arg, DType dtype, int rank, const int64_t* shape, View& view);
// The same of int64 or uint8.
template <class T>
py::object new_integers(const Arg& arg, int rank, const int64_t* shape, T*& data);

// The memory of a contiguous ndarray of uint8, to be written.
View writable_bytes(const Arg& arg, py::handle object);

// Where the result goes: a new array, or the caller's `out`, an ndarray or a tensor of another library.
class Output {
 public:
  Output(const Arg& arg, py::handle out, DType dtype, int rank, const int64_t* shape);

  // out may not share memory with an input, but for being exactly the same array where `same_allowed`.
  enum class Alias { refused, same_allowed };
  void check_overlap(const Arg& input_arg, const View& input, Alias alias) const;

  // Has the kernel write to a contiguous stand-in when the last axis of `view` does not have unit stride.
  void unit_last_axis();
  // Copies a stand-in to where it belongs. The GIL may be released.
  void finish() const;

  py::object array;
  View view;  // what the kernel writes; its axes may be rearranged by the caller

 private:
  Arg arg_;
  bool given_;
  py::object memory_;    // of a tensor of another library
  CopyMemory stand_in_;  // with its view, and where it is copied in the end
  View from_, to_;
};

// A new array whose dtype is not the one that it is computed in. No std::optional where nobody may want it, which
// would clear the memory of three views.
class Computed {
 public:
  Computed() {}
  Computed(const Computed&) = delete;
  explicit operator bool() const { return static_cast<bool>(array); }

  void allocate(const Arg& arg, DType dtype, DType as, int rank, const int64_t* shape);
  // The GIL may be released.
  void finish() const;

  py::object array;
  View computed;  // for the kernel, which may want an axis more

 private:
  View view_, from_;
  CopyMemory stand_in_;
};

}  // namespace simdformer
