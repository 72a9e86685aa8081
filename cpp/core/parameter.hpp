// A weight or bias as the row-wise kernels read it: in the accumulator's type of x, widened once a call where it has
// another.
#pragma once

#include <optional>

#include "core/dispatch.hpp"
#include "core/parallel.hpp"

namespace simdformer {

class Parameter {
 public:
  Parameter(const View* given, DType x) {
    if (given == nullptr) return;
    data_ = given->data;
    const DType wide = accumulator(x);
    if (given->dtype == wide) return;
    widened_.emplace(given->size() * itemsize(wide));
    data_ = widened_->as<void>();
    ConvertArgs args;
    args.x.data = given->data, args.out.data = widened_->as<char>();
    args.x.dtype = given->dtype, args.out.dtype = wide;
    args.x.count = args.out.count = 1;
    args.x.length = args.out.length = args.segment = given->size();
    kernels().convert(args, 0, 1);
  }

  const void* data() const { return data_; }  // null where there is none

 private:
  std::optional<Scratch> widened_;
  const void* data_ = nullptr;
};

}  // namespace simdformer
