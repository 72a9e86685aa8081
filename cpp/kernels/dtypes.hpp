// Dtypes as they lie in memory, and the arithmetic type Acc<T> of each: float64 for float64, float32 for the
// rest.
//
//   load(const T*)            a register of Acc<T> from kLanes numbers, any alignment
//   store(T*, register)       one rounding, to nearest even; NaN stays NaN; subnormals are kept
//   stream(T*, register)      the same past the caches, aligned to itself; finish_streams() after the last
//   load_two, store_two       two registers of neighbours, in an order of their own: bfloat16 in turns
//   load_part, store_part     the first n <= kLanes of them; nothing beyond is touched
//   with_type(dtype, body)    from a dtype known when the program runs to a type known when it is compiled
#pragma once

#include "isa/isa.hpp"

namespace simdformer::SF_ISA {

template <class T>
using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

// ---- one number -------------------------------------------------------------------------------------------

SF_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

SF_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

SF_INLINE float widen(float value) { return value; }
SF_INLINE double widen(double value) { return value; }
SF_INLINE float widen(bfloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

// float16's exponent is moved to float32's bias; a subnormal is an integer times 2^-24.
SF_INLINE float widen(float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude < 0x400u) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
  const uint32_t bias = magnitude < 0x7c00u ? 0x38000000u : 0x70000000u;
  return float_of(sign | ((magnitude << 13) + bias));
}

// One element; its address need not be aligned.
template <class T>
SF_INLINE Acc<T> element(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return static_cast<Acc<T>>(widen(value));
}

// ---- registers --------------------------------------------------------------------------------------------

template <class T>
SF_INLINE Vec<Acc<T>> load(const T* p) {
  if constexpr (sizeof(T) == 2)
    return widen_bits(T{}, load_bits(p));
  else
    return Vec<T>::load_unaligned(p);
}

// No template over T: argument lookup also finds xsimd::store, which needs alignment, and would prefer it.
SF_INLINE void store(float* p, Vec<float> x) { x.store_unaligned(p); }
SF_INLINE void store(double* p, Vec<double> x) { x.store_unaligned(p); }
SF_INLINE void store(float16* p, Vec<float> x) { store_bits(p, narrow_bits(float16{}, x)); }
SF_INLINE void store(bfloat16* p, Vec<float> x) { store_bits(p, narrow_bits(bfloat16{}, x)); }

SF_INLINE void stream(float16* p, Vec<float> x) { stream_bits(p, narrow_bits(float16{}, x)); }
SF_INLINE void stream(bfloat16* p, Vec<float> x) { stream_bits(p, narrow_bits(bfloat16{}, x)); }

template <class T>
SF_INLINE Pair<Vec<Acc<T>>> load_two(const T* p) {
  return {load(p), load(p + kLanes<Acc<T>>)};
}
SF_INLINE Pair<Vec<float>> load_two(const bfloat16* p) {
  using Words = Vec<uint32_t>;
  const Words words = Words::load_unaligned(reinterpret_cast<const uint32_t*>(p));
  return {lanes_as<Vec<float>>(Words(words << 16)), lanes_as<Vec<float>>(Words(words & Words(0xffff0000u)))};
}

template <class T>
SF_INLINE void store_two(T* p, Vec<Acc<T>> a, Vec<Acc<T>> b) {
  store(p, a), store(p + kLanes<Acc<T>>, b);
}
SF_INLINE void store_two(bfloat16* p, Vec<float> a, Vec<float> b) {
  narrow_two(a, b).store_unaligned(reinterpret_cast<uint32_t*>(p));
}

// Whether the order is the same for both.
template <class T, class U>
constexpr bool kComeInTwosAlike = std::is_same_v<T, bfloat16> == std::is_same_v<U, bfloat16>;

// For float and double the instruction set has them.
SF_INLINE Vec<float> load_part(const float16* p, int64_t n) {
  return widen_bits(float16{}, load_bits_part(p, n));
}
SF_INLINE Vec<float> load_part(const bfloat16* p, int64_t n) {
  return widen_bits(bfloat16{}, load_bits_part(p, n));
}
SF_INLINE void store_part(float16* p, int64_t n, Vec<float> x) {
  store_bits_part(p, n, narrow_bits(float16{}, x));
}
SF_INLINE void store_part(bfloat16* p, int64_t n, Vec<float> x) {
  store_bits_part(p, n, narrow_bits(bfloat16{}, x));
}

// ---- the choice -------------------------------------------------------------------------------------------

// body(T{}) for the type T of `dtype`:
//   with_type(args.x.dtype, [&](auto x) { softmax_rows<decltype(x)>(args, begin, end); });
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

// The same for anything whose arithmetic is done in A.
template <class A, class Body>
SF_INLINE void with_storage_of(DType dtype, Body&& body) {
  if constexpr (std::is_same_v<A, double>) {
    body(double{});
  } else {
    static_assert(std::is_same_v<A, float>);
    switch (dtype) {
      case DType::f16:
        return body(float16{});
      case DType::bf16:
        return body(bfloat16{});
      default:
        return body(float{});
    }
  }
}

}  // namespace simdformer::SF_ISA
