// Registers of 128 bits, which are one quarter: what is simpler there. Read at the end of the headers of such
// instruction sets, which have neither masks nor a lookup of 32-bit numbers.
#pragma once

#include "isa/words.hpp"

namespace simdformer::SF_ISA {

// No table fits a register: kTableSize is looked at before anything else is.
constexpr int kTableSize = 0;
template <class T>
Vec<T> look_up(const T* table, Vec<float> index);

// all a, all b -> a0 b0 a1 b1 ... in two registers; the way back is unzip
template <class V>
SF_INLINE Pair<V> zip(Pair<V> x) {
  return {zip_lower(x.a, x.b), zip_upper(x.a, x.b)};
}

// Quarter q = the 16 bytes at p + q * stride.
template <class A>
SF_INLINE Vec<A> load_quarters(const A* p, int64_t) {
  return Vec<A>::load_unaligned(p);
}

// out = the sum of the quarters of x
template <class A>
SF_INLINE void add_quarters(Vec<A> x, A* out) {
  x.store_unaligned(out);
}

// The first n <= kLanes numbers at p, the other lanes zero, and the way back: nothing beyond is touched.
template <class A>
SF_INLINE Vec<A> load_part(const A* p, int64_t n) {
  return lanes_as<Vec<A>>(load_words(p, n * static_cast<int64_t>(sizeof(A))));
}
SF_INLINE void store_part(float* p, int64_t n, Vec<float> x) { store_words(p, 4 * n, lanes_as<Bits128>(x)); }
SF_INLINE void store_part(double* p, int64_t n, Vec<double> x) {
  store_words(p, 8 * n, lanes_as<Bits128>(x));
}

}  // namespace simdformer::SF_ISA
