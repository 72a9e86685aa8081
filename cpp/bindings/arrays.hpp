// Python objects as typed, strided views, and views as new arrays. Everything here needs the GIL, but
// copy_elements.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "core/array.hpp"

namespace simdformer {

namespace py = pybind11;

// Which argument of which function is looked at; for messages, nothing is built before one is needed.
struct Arg {
  const char* function;
  const char* name;
  int index = -1;  // when the argument is a list
};

std::string name_of(const Arg& arg);  // "weight", or "weight[2]"

// What an object (its repr) or an error (its str) of a stranger says, in one short line; the name of its type
// when it says nothing.
std::string shown(py::handle object);
std::string reason_of(const py::error_already_set& error);
std::string one_line(const std::string& text);

// "function: argument found, needs needed; advice". The advice may be empty.
std::string message(const Arg& arg, const std::string& found, const std::string& needed,
                    const std::string& advice);
[[noreturn]] void refuse_type(const Arg& arg, const std::string& found, const std::string& needed,
                              const std::string& advice = "");
[[noreturn]] void refuse_value(const Arg& arg, const std::string& found, const std::string& needed,
                               const std::string& advice = "");
[[noreturn]] void refuse_buffer(const Arg& arg, const std::string& found, const std::string& needed,
                                const std::string& advice = "");

const char* name_of(DType dtype);
std::string shape_text(int rank, const int64_t* shape);  // "(2, 3)", "(4,)", "()"
std::string shape_text(const View& view);

// Looks up numpy and ml_dtypes; called once, at import.
void init_arrays();

// ---- inputs ---------------------------------------------------------------------------------------------

// An argument's memory. `owner` is set when that memory is not kept alive by the caller's own reference.
struct Input {
  View view;
  py::object owner;
};

enum class Accept { floats, floats_and_bool };

// numpy arrays and anything with __dlpack__ on the CPU without a copy, the rest through np.asarray. Raises
// TypeError for a dtype outside `accept`, for byte-swapped, masked, object and structured arrays.
Input read_array(const Arg& arg, py::handle object, Accept accept = Accept::floats);

// The number of elements and of their bytes must fit in 64 bits, unless there are none.
void check_size(const Arg& arg, const View& view);

// Integers of any width: `data` has the elements in order, `array` their shape. They are ours alone: what was
// checked stays so, though `out` may lie over the given array and another thread may write to it. An unsigned
// number from 2**63 on has wrapped to a negative one: the caller refuses those, with check_not_wrapped or in
// its own words.
struct Integers {
  py::array array;
  std::unique_ptr<int64_t[]> copy;  // where `array` is the given one
  const int64_t* data = nullptr;
  bool is_unsigned = false;
};
Integers read_integers(const Arg& arg, py::handle object);
void check_not_wrapped(const Arg& arg, const Integers& integers);
std::string integer_text(const Integers& integers, int64_t value);  // as it was given

// A dtype given by name or object; one of the floats, and bool where accepted.
DType read_dtype(const Arg& arg, py::handle object, Accept accept);
py::object dtype_object(DType dtype);  // as numpy's

SF_INLINE bool has_unit_last_axis(const View& view) {
  return view.rank == 0 || view.shape[view.rank - 1] <= 1 ||
         view.strides[view.rank - 1] == itemsize(view.dtype);
}

// Copies once, inside, if the elements of the last axis do not lie side by side.
void unit_last_axis(const Arg& arg, Input& input);

// The input in another dtype, as a new contiguous array (the kernel's conversion, so one rounding at most).
Input converted(const Arg& arg, const Input& input, DType dtype);

// ---- outputs --------------------------------------------------------------------------------------------

// A new C-contiguous array. Sizes beyond 64 bits are a ValueError.
py::object new_array(const Arg& arg, DType dtype, int rank, const int64_t* shape, View& view);

// Where the result goes: a new array, or the caller's `out`.
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
  py::object stand_in_;  // with its view, and where it is copied in the end
  View from_, to_;
};

// ---- views ----------------------------------------------------------------------------------------------

// The axes from `axis` on are moved up one place and `axis` becomes the last.
void move_axis_last(View& view, int axis);

// Trailing axes that lie one after the other in all of the views become one long last axis.
void merge_last_axes(View* const* views, int count);

// Copies element by element between views of one shape and dtype, whatever their strides. In parallel; no GIL
// needed.
void copy_elements(const View& from, const View& to);

// The same between float dtypes, rounding once. Unit last strides.
void convert_elements(const View& from, const View& to);

}  // namespace simdformer
