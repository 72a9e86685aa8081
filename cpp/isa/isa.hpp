// What the kernels know of the machine. Each instruction set has a header here, named as SF_ISA names it; all
// of them give the same names, and nowhere else stand intrinsics or questions to the preprocessor:
//
//   Vec<T>, kLanes<T>                                     a register of numbers and how many it holds
//   kTileRows ... kWidenTwoPlanes                         how large a piece of work its registers hold
//   mul_add neg_mul_add product_error divide larger       arithmetic that xsimd lacks, or does otherwise
//     smaller where_negative                              in one of its versions from 8.1 to 14
//   settle                                                a sum that keeps its register
//   kTableSize, look_up                                   numbers in a register, by an index in each lane
//   kShifter, scale_one_plus                              the end of an exponential of float64
//   first_lane first_lanes swap_lanes                     single numbers of a register
//   zip unzip zip_lower zip_upper                         two registers mixed
//   load_quarters add_quarters                            its 128-bit parts
//   load_part store_part store_rounded                    to and from memory
//   stream finish_streams                                 to memory, past the caches
//   Bits16, load_bits stream_bits ... narrow_bits         numbers of 16 bits: load, store, widen, narrow
//   narrow_two                                            two registers to bfloat16, in turns
//   kByteDots, kSignedDots                                what codes are multiplied as: bytes, signed ones?
//   DotSums, start_dots add_dots finish_dots              sums of products of 16-bit integers, or of bytes
//   look_up_bytes, store_rounded                          other steps between numbers and small integers
//   kBf16Pairs, Bf16Pairs, load_pairs ... mul_add         products of pairs of bfloat16
//
// A lane is the place of one number in a register, a quarter 128 bits of it (there may be one, two or four).
// None of these names is one of xsimd's, which argument lookup would prefer.
//
// One object per instruction set is compiled from the kernels (kernels/table.cpp). Two objects must never
// share a weak symbol, or the linker may give the baseline a function that was compiled with AVX-512: our
// names live in a namespace called after the instruction set, and xsimd's own namespace is renamed likewise.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/array.hpp"
#include "base/tuning.hpp"

#ifndef SF_ISA
#error "SF_ISA names the instruction set to compile for: a header of cpp/isa"
#endif
#define SF_JOIN_(a, b) a##b
#define SF_JOIN(a, b) SF_JOIN_(a, b)
#define SF_TEXT_(x) #x
#define SF_TEXT(x) SF_TEXT_(x)
#define xsimd SF_JOIN(xsimd_, SF_ISA)
#include <xsimd/xsimd.hpp>

// Before a loop over registers: it leaves no loop behind. And before one that stays a loop, however short.
#if defined(__clang__)
#define SF_UNROLL _Pragma("unroll")
#define SF_ROLLED _Pragma("nounroll")
#else
#define SF_UNROLL _Pragma("GCC unroll 16")
#define SF_ROLLED _Pragma("GCC unroll 1")
#endif

namespace simdformer::SF_ISA {

// The same bits as lanes of another type.
template <class To, class From>
SF_INLINE To lanes_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(static_cast<void*>(&out), static_cast<const void*>(&x), sizeof(To));
  return out;
}

template <class V>
struct Pair {
  V a, b;
};

template <class V>
constexpr bool kIsFloat = std::is_same_v<typename V::value_type, float>;

}  // namespace simdformer::SF_ISA

#define SF_ISA_HEADER SF_TEXT(SF_ISA.hpp)  // beside this one
#include SF_ISA_HEADER

namespace simdformer::SF_ISA {

template <class T>
constexpr int64_t kLanes = static_cast<int64_t>(Vec<T>::size);

// ---- what most of them do alike: the others have functions of their own, which are closer -------------------

// x, as a sum that keeps its register: the compiler has enough of them, see avx2_registers.hpp.
template <class V>
SF_INLINE V settle(V x) {
  return x;
}

// a / b, one rounding
template <class V>
SF_INLINE V divide(V a, V b) {
  return a / b;
}

// a * b - product, exactly, where `product` is a * b rounded
template <class V>
SF_INLINE V product_error(V a, V b, V product) {
  return mul_add(a, b, V(V(typename V::value_type(0)) - product));
}

// a where the sign of x is set, else b. Where x is zero or NaN either may come of it, whatever its sign.
template <class V>
SF_INLINE V where_negative(V x, V a, V b) {
  return xsimd::select(x < V(typename V::value_type(0)), a, b);
}

// The first n lanes of x, and the rest of `other`.
template <class V>
SF_INLINE V first_lanes(int64_t n, V x, V other) {
  using A = typename V::value_type;
  static constexpr A kIndex[] = {0, 1, 2, 3, 4, 5, 6, 7};
  static_assert(sizeof(V) <= 32, "wider registers have masks");
  return xsimd::select(V::load_unaligned(kIndex) < V(static_cast<A>(n)), x, other);
}

// x as bfloat16 in the upper halves of words: one rounding, NaN stays NaN
template <class V>
SF_INLINE Vec<uint32_t> rounded_words(V x) {
  using Words = Vec<uint32_t>;
  const Words bits = lanes_as<Words>(x);
  const Words rounded = bits + Words(0x7fffu) + ((bits >> 16) & Words(1u));
  const Words quiet = bits | Words(0x00400000u);
  return lanes_as<Words>(V(xsimd::select(x == x, lanes_as<V>(rounded), lanes_as<V>(quiet))));
}

// a0 b0 a1 b1 ... as bfloat16
template <class V>
SF_INLINE Vec<uint32_t> narrow_two(V a, V b) {
  using Words = Vec<uint32_t>;
  return (rounded_words(a) >> 16) | (rounded_words(b) & Words(0xffff0000u));
}

// ---- what follows from it ---------------------------------------------------------------------------------

// -|x|: one instruction, where two would be obvious.
template <class V>
SF_INLINE V minus_abs(V x) {
  return x | V(typename V::value_type(-0.0));
}

template <int distance, class V, class Combine>
SF_INLINE V fold_lanes(V x, Combine combine) {
  x = combine(x, swap_lanes<distance>(x));
  if constexpr (distance > 1)
    return fold_lanes<distance / 2>(x, combine);
  else
    return x;
}

// Sum and maximum of the lanes in a fixed tree: the same bits on every call.
template <class V>
SF_INLINE typename V::value_type sum_lanes(V x) {
  return first_lane(fold_lanes<V::size / 2>(x, [](V a, V b) { return V(a + b); }));
}

// For lanes that are numbers: what comes of a NaN is left open.
template <class V>
SF_INLINE typename V::value_type max_lanes(V x) {
  return first_lane(fold_lanes<V::size / 2>(x, [](V a, V b) { return larger(a, b); }));
}

}  // namespace simdformer::SF_ISA
