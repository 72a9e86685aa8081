#include "primitives.hpp"

#include "kernels/dtypes.hpp"
#include "kernels/loops.hpp"

namespace simdformer::SF_ISA {

using tests::Operands;
using tests::Primitive;

template <class A>
SF_INLINE Vec<A> a_of(const Operands& o, int64_t registers = 0) {
  return load(static_cast<const A*>(o.a) + registers * kLanes<A>);
}
template <class A>
SF_INLINE Vec<A> b_of(const Operands& o) {
  return load(static_cast<const A*>(o.b));
}
template <class A>
SF_INLINE Vec<A> c_of(const Operands& o) {
  return load(static_cast<const A*>(o.c));
}
template <class A>
SF_INLINE void put(const Operands& o, Vec<A> x) {
  store(static_cast<A*>(o.out), x);
}
template <class A>
SF_INLINE void put(const Operands& o, Pair<Vec<A>> x) {
  store(static_cast<A*>(o.out), x.a);
  store(static_cast<A*>(o.out) + kLanes<A>, x.b);
}

template <class A, int distance>
void swap(const Operands& o) {
  if constexpr (distance < kLanes<A>) put<A>(o, swap_lanes<distance>(a_of<A>(o)));
}

template <class A>
constexpr Primitive kOfNumbers[] = {
    {"mul_add", [](const Operands& o) { put<A>(o, mul_add(a_of<A>(o), b_of<A>(o), c_of<A>(o))); }},
    {"neg_mul_add", [](const Operands& o) { put<A>(o, neg_mul_add(a_of<A>(o), b_of<A>(o), c_of<A>(o))); }},
    {"product_error",
     [](const Operands& o) {
       const Vec<A> a = a_of<A>(o), b = b_of<A>(o);
       put<A>(o, product_error(a, b, Vec<A>(a * b)));
     }},
    {"divide", [](const Operands& o) { put<A>(o, divide(a_of<A>(o), b_of<A>(o))); }},
    {"larger", [](const Operands& o) { put<A>(o, larger(a_of<A>(o), b_of<A>(o))); }},
    {"smaller", [](const Operands& o) { put<A>(o, smaller(a_of<A>(o), b_of<A>(o))); }},
    {"where_negative",
     [](const Operands& o) { put<A>(o, where_negative(a_of<A>(o), b_of<A>(o), c_of<A>(o))); }},
    {"settle", [](const Operands& o) { put<A>(o, settle(a_of<A>(o))); }},
    {"minus_abs", [](const Operands& o) { put<A>(o, minus_abs(a_of<A>(o))); }},
    {"first_lane", [](const Operands& o) { *static_cast<A*>(o.out) = first_lane(a_of<A>(o)); }},
    {"first_lanes", [](const Operands& o) { put<A>(o, first_lanes(o.n, a_of<A>(o), b_of<A>(o))); }},
    {"swap_lanes 1", swap<A, 1>},
    {"swap_lanes 2", swap<A, 2>},
    {"swap_lanes 4", swap<A, 4>},
    {"swap_lanes 8", swap<A, 8>},
    {"sum_lanes", [](const Operands& o) { *static_cast<A*>(o.out) = sum_lanes(a_of<A>(o)); }},
    {"max_lanes", [](const Operands& o) { *static_cast<A*>(o.out) = max_lanes(a_of<A>(o)); }},
    {"zip", [](const Operands& o) { put<A>(o, zip(Pair<Vec<A>>{a_of<A>(o), b_of<A>(o)})); }},
    {"unzip", [](const Operands& o) { put<A>(o, unzip(a_of<A>(o), b_of<A>(o))); }},
    {"zip_lower", [](const Operands& o) { put<A>(o, zip_lower(a_of<A>(o), b_of<A>(o))); }},
    {"zip_upper", [](const Operands& o) { put<A>(o, zip_upper(a_of<A>(o), b_of<A>(o))); }},
    {"load_quarters", [](const Operands& o) { put<A>(o, load_quarters(static_cast<const A*>(o.a), o.n)); }},
    {"add_quarters", [](const Operands& o) { add_quarters(a_of<A>(o), static_cast<A*>(o.out)); }},
    {"sum_four",
     [](const Operands& o) {
       const Vec<A> x[] = {a_of<A>(o), a_of<A>(o, 1), a_of<A>(o, 2), a_of<A>(o, 3)};
       sum_four(x, static_cast<A*>(o.out));
     }},
    {"load_part", [](const Operands& o) { put<A>(o, load_part(static_cast<const A*>(o.a), o.n)); }},
    {"store_part", [](const Operands& o) { store_part(static_cast<A*>(o.out), o.n, a_of<A>(o)); }},
    {"stream",
     [](const Operands& o) {
       stream(static_cast<A*>(o.out), a_of<A>(o));
       finish_streams();
     }},
    {"", nullptr},
};

// Numbers of 16 bits, T at a and out.
template <class T>
struct Short {
  static void load_bits_of(const Operands& o) { put<float>(o, widen_bits(T{}, load_bits(o.a))); }
  static void load_part_of(const Operands& o) { put<float>(o, widen_bits(T{}, load_bits_part(o.a, o.n))); }
  static void store_bits_of(const Operands& o) { store_bits(o.out, narrow_bits(T{}, a_of<float>(o))); }
  static void stream_bits_of(const Operands& o) {
    stream_bits(o.out, narrow_bits(T{}, a_of<float>(o)));
    finish_streams();
  }
  static void store_part_of(const Operands& o) {
    store_bits_part(o.out, o.n, narrow_bits(T{}, a_of<float>(o)));
  }
};

using Words = Vec<uint32_t>;
SF_INLINE Words words_at(const void* p) { return Words::load_unaligned(static_cast<const uint32_t*>(p)); }

template <bool has_table>
SF_INLINE void look_up_number(const Operands& o) {
  if constexpr (has_table) put<float>(o, look_up(static_cast<const float*>(o.b), a_of<float>(o)));
}

template <bool has_pairs>
SF_INLINE void add_pairs(const Operands& o, bool part) {
  if constexpr (has_pairs) {
    const auto* a = static_cast<const bfloat16*>(o.a);
    const auto x = part ? load_pairs_part(a, o.n) : load_pairs(a);
    put<float>(o, mul_add(x, splat_pair(static_cast<const bfloat16*>(o.b)), c_of<float>(o)));
  }
}

constexpr Primitive kOthers[] = {
    {"scale_one_plus",
     [](const Operands& o) { put<double>(o, scale_one_plus(a_of<double>(o), b_of<double>(o))); }},
    {"store_rounded float",
     [](const Operands& o) { store_rounded(static_cast<float*>(o.out), a_of<double>(o)); }},
    {"store_rounded int16",
     [](const Operands& o) { store_rounded(static_cast<int16_t*>(o.out), a_of<float>(o)); }},
    {"look_up", [](const Operands& o) { look_up_number<kTableSize != 0>(o); }},
    {"look_up_bytes",
     [](const Operands& o) {
       look_up_bytes(static_cast<const uint8_t*>(o.b), words_at(o.a))
           .store_unaligned(static_cast<uint32_t*>(o.out));
     }},
    {"dots",
     [](const Operands& o) {
       const DotSums sums = start_dots(static_cast<int32_t>(o.n));
       put<float>(o, finish_dots(add_dots(add_dots(sums, words_at(o.a), words_at(o.b)), words_at(o.b),
                                          words_at(o.c))));
     }},
    {"pairs", [](const Operands& o) { add_pairs<kBf16Pairs>(o, false); }},
    {"pairs part", [](const Operands& o) { add_pairs<kBf16Pairs>(o, true); }},
    {"f16 load_bits", Short<float16>::load_bits_of},
    {"f16 load_bits_part", Short<float16>::load_part_of},
    {"f16 store_bits", Short<float16>::store_bits_of},
    {"f16 stream_bits", Short<float16>::stream_bits_of},
    {"f16 store_bits_part", Short<float16>::store_part_of},
    {"bf16 load_bits", Short<bfloat16>::load_bits_of},
    {"bf16 load_bits_part", Short<bfloat16>::load_part_of},
    {"bf16 store_bits", Short<bfloat16>::store_bits_of},
    {"bf16 stream_bits", Short<bfloat16>::stream_bits_of},
    {"bf16 store_bits_part", Short<bfloat16>::store_part_of},
    {"bf16 load_two", [](const Operands& o) { put<float>(o, load_two(static_cast<const bfloat16*>(o.a))); }},
    {"bf16 narrow_two",
     [](const Operands& o) {
       narrow_two(a_of<float>(o), b_of<float>(o)).store_unaligned(static_cast<uint32_t*>(o.out));
     }},
    {"bf16 store_two",
     [](const Operands& o) { store_two(static_cast<bfloat16*>(o.out), a_of<float>(o), b_of<float>(o)); }},
    {"", nullptr},
};

// With one rounding 1 + 2^-12 times itself, less 1 + 2^-11, is 2^-24, with two it is 0.
inline bool rounds_once() {
  const Vec<float> x(1.0f + 0x1p-12f);
  return first_lane(mul_add(x, x, Vec<float>(-1.0f - 0x1p-11f))) != 0.0f;
}

}  // namespace simdformer::SF_ISA

namespace simdformer::tests {

const Primitives* SF_JOIN(primitives_, SF_ISA)() {
  using namespace SF_ISA;
  static const Primitives kTable{SF_TEXT(SF_ISA), kLanes<float>,     kLanes<double>,     rounds_once(),
                                 kByteDots,       kSignedDots,       kBf16Pairs,         kTableSize,
                                 kShifter,        kOfNumbers<float>, kOfNumbers<double>, kOthers};
  return &kTable;
}

}  // namespace simdformer::tests
