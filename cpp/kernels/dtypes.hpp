// From a dtype known when the program runs to a type known when it is compiled.
#pragma once

#include "kernels/vec.hpp"

namespace simdformer::SF_ISA {

// body(T{}) for the type T of `dtype`:
//   with_type(args.x.dtype, [&](auto x) { rows<Arch, decltype(x)>(args, begin, end); });
template <class Body>
SF_INLINE void with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64:
      return body(double{});
    case DType::f16:
      return body(float16{});
    case DType::bf16:
      return body(bfloat16{});
    default:
      return body(float{});
  }
}

// The same for a parameter (weight, bias) beside an x of type X: the mixtures that are allowed, no others.
template <class X, class Body>
SF_INLINE void with_parameter_type(DType dtype, Body&& body) {
  if constexpr (std::is_same_v<X, double>) {
    body(double{});
  } else if constexpr (std::is_same_v<X, float>) {
    switch (dtype) {
      case DType::f16:
        return body(float16{});
      case DType::bf16:
        return body(bfloat16{});
      default:
        return body(float{});
    }
  } else {
    if (dtype == DType::f32) return body(float{});
    body(X{});
  }
}

}  // namespace simdformer::SF_ISA
