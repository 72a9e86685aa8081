// Arrays of every dtype for the tests, their values as float64, and the comparison of results with those.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include <xtensor/xarray.hpp>

#include "base/array.hpp"
#include "core/dispatch.hpp"

namespace simdformer::tests {

using Values = xt::xarray<double>;
using Shape = std::vector<std::size_t>;

const char* name_of(DType dtype);
double epsilon(DType dtype);  // from 1 to the next number

// The number of a dtype that is nearest to a value, as bits, and the value that bits stand for.
uint64_t encode(double value, DType dtype);
double decode(uint64_t bits, DType dtype);

// Normally distributed, the same in every run.
Values normal(const Shape& shape, uint64_t seed);

// x W^T: (rows, depth), (columns, depth) -> (rows, columns).
Values product(const Values& x, const Values& w);

// An array in memory of its own, not a byte larger than its elements, so that AddressSanitizer sees every
// step beyond. `gap` elements that are NaN, whatever the dtype, lie between two rows of the last axis.
class Array {
 public:
  Array(const Values& values, DType dtype, int64_t gap = 0);

  View view() const;
  Rows rows() const { return rows_of(view()); }
  void* data() const { return memory_.get(); }
  DType dtype() const { return dtype_; }

  Values values() const;        // what the elements are, once rounded to the dtype
  std::string bytes() const;    // elements and gaps
  bool gaps_are_whole() const;  // nobody has written into them

 private:
  template <class Visit>
  void for_each(Visit visit) const;  // visit(index, pointer)

  Shape shape_;
  DType dtype_;
  int64_t gap_, nbytes_;
  std::unique_ptr<char[]> memory_;
};

// An array for results: of the given shape, filled with NaN, with a gap after each row.
Array result(const Shape& shape, DType dtype);

// Every number of `got` is wanted's, or as far away as `ulps` units of the arithmetic (float64 for float64,
// float32 for the rest) times `scale`, and half a unit of the dtype itself. Gaps must be whole.
void check_close(const Array& got, const Values& wanted, const Values& scale, double ulps);

// body() with each instruction set of this machine chosen, and noted.
template <class Body>
void for_each_isa(Body body);

constexpr DType kFloats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

}  // namespace simdformer::tests

#include "check.hpp"

template <class Body>
void simdformer::tests::for_each_isa(Body body) {
  const std::string before = current_isa();
  for (const std::string& isa : available_isas()) {
    const Note note(words("isa", isa));
    CHECK(set_isa(isa));
    body();
  }
  CHECK(set_isa(before));
}
