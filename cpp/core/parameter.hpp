// A weight or bias as the row-wise kernels read it: in the accumulator's type of x, widened once a call where it has
// another. For a few rows that is as much work as the rows themselves: a kernel that knows x's type too reads it as x.
#pragma once

#include <optional>

#include "core/dispatch.hpp"
#include "core/parallel.hpp"

namespace simdformer {

class Parameter {
 public:
  enum class Read { widened, as_x };

  Parameter(const View* given, DType x, Read read = Read::widened) : dtype_(accumulator(x)) {
    if (given == nullptr) return;
    data_ = given->data;
    if (read == Read::as_x && given->dtype == x) dtype_ = x;
    if (given->dtype == dtype_) return;
    widened_.emplace(given->size() * itemsize(dtype_));
    data_ = widened_->as<void>();
    ConvertArgs args;
    args.x.data = given->data, args.out.data = widened_->as<char>();
    args.x.dtype = given->dtype, args.out.dtype = dtype_;
    args.x.count = args.out.count = 1;
    args.x.length = args.out.length = args.segment = given->size();
    kernels().convert(args, 0, 1);
  }

  const void* data() const { return data_; }  // null where there is none
  DType dtype() const { return dtype_; }

 private:
  std::optional<Scratch> widened_;
  const void* data_ = nullptr;
  DType dtype_;
};

}  // namespace simdformer
