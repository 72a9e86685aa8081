// Every primitive that isa/isa.hpp names, on every instruction set of this machine, against plain C++: the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "arrays.hpp"
#include "check.hpp"
#include "primitives.hpp"

namespace simdformer::tests {

#define SF_DECLARE(isa) const Primitives* primitives_##isa();
SF_DECLARE(baseline)
SF_DECLARE(avx2)
SF_DECLARE(avx2_vnni)
SF_DECLARE(avx512)
SF_DECLARE(avx512_vnni)
SF_DECLARE(avx512_bf16)
SF_DECLARE(neon)
SF_DECLARE(neon_dotprod)

namespace {

using Lookup = const Primitives* (*)();
const std::map<std::string, Lookup> kCompiled = {
#if defined(SIMDFORMER_WITH_BASELINE)
    {"baseline", primitives_baseline},
#endif
#if defined(SIMDFORMER_WITH_AVX2)
    {"avx2", primitives_avx2},
#endif
#if defined(SIMDFORMER_WITH_AVX2_VNNI)
    {"avx2_vnni", primitives_avx2_vnni},
#endif
#if defined(SIMDFORMER_WITH_AVX512)
    {"avx512", primitives_avx512},
#endif
#if defined(SIMDFORMER_WITH_AVX512_VNNI)
    {"avx512_vnni", primitives_avx512_vnni},
#endif
#if defined(SIMDFORMER_WITH_AVX512_BF16)
    {"avx512_bf16", primitives_avx512_bf16},
#endif
#if defined(SIMDFORMER_WITH_NEON)
    {"neon", primitives_neon},
#endif
#if defined(SIMDFORMER_WITH_NEON_DOTPROD)
    {"neon_dotprod", primitives_neon_dotprod},
#endif
};

template <class Body>
void for_each_table(Body body) {
  for (const std::string& isa : available_isas()) {
    const Note note(words("isa", isa));
    body(*kCompiled.at(isa)());
  }
}

void run(const Primitive* table, const std::string& name, const Operands& operands) {
  for (; *table->name != '\0'; ++table)
    if (name == table->name) return table->run(operands);
  CHECK(!"a primitive of that name");
}

// The same bits, or both NaN.
template <class A>
void check_same(const std::vector<A>& got, const std::vector<A>& wanted) {
  CHECK_EQUAL(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Note note(words("element", i, "got", +got[i], "wanted", +wanted[i]));
    CHECK(std::memcmp(&got[i], &wanted[i], sizeof(A)) == 0 || (got[i] != got[i] && wanted[i] != wanted[i]));
  }
}

// Numbers of all kinds, in an order that depends on the seed; no NaN.
template <class A>
std::vector<A> numbers(int64_t count, int seed) {
  const A all[] = {0,          A(-0.0),    1,        A(-1),        A(0.1),           A(-3.7),
                   A(1.0 / 3), A(1e-3),    A(-2e5),  A(12345.678), A(1.0 + 0x1p-20), A(7),
                   A(-0.5),    A(0x1p-30), A(-9.25), A(1e6),       A(0.7),           A(-1e-2),
                   A(3)};
  std::vector<A> x;
  for (int64_t i = 0; i < count; ++i) x.push_back(all[(i * 7 + seed * 5 + i * i * seed) % 19]);
  return x;
}

constexpr float kInf = std::numeric_limits<float>::infinity();

// One test of a primitive: a, b, c -> out of `size` elements, beginning as sevens.
template <class A>
class Case {
 public:
  using Number = A;

  Case(const Primitives& isa, int seed)
      : isa_(isa),
        lanes(std::is_same_v<A, float> ? isa.floats : isa.doubles),
        a(numbers<A>(4 * lanes, seed)),
        b(numbers<A>(lanes, seed + 1)),
        c(numbers<A>(lanes, seed + 2)) {}

  std::vector<A> run(const std::string& name, int64_t size, int64_t n = 0) const {
    alignas(64) A out[64];
    for (A& x : out) x = A(7);
    tests::run(std::is_same_v<A, float> ? isa_.of_floats : isa_.of_doubles, name,
               {a.data(), b.data(), c.data(), n, out});
    for (int64_t i = size; i < 64; ++i) CHECK_EQUAL(out[i], A(7));
    return std::vector<A>(out, out + size);
  }

  // out[i] = f(i) for all lanes
  template <class F>
  void check(const std::string& name, int64_t size, F f, int64_t n = 0) const {
    const Note note(words("primitive", name, "n", n));
    std::vector<A> wanted;
    for (int64_t i = 0; i < size; ++i) wanted.push_back(f(static_cast<std::size_t>(i)));
    check_same(run(name, size, n), wanted);
  }

 private:
  const Primitives& isa_;

 public:
  int64_t lanes;
  std::vector<A> a, b, c;
};

template <class Body>
void for_each_case(Body body) {
  for_each_table([&](const Primitives& isa) {
    for (int seed = 0; seed < 20; ++seed) {
      body(isa, Case<float>(isa, seed));
      body(isa, Case<double>(isa, seed));
    }
  });
}

template <class A>
A fold(std::vector<A> x, std::function<A(A, A)> combine) {  // halves, then quarters ...
  for (std::size_t n = x.size() / 2; n > 0; n /= 2)
    for (std::size_t i = 0; i < n; ++i) x[i] = combine(x[i], x[i + n]);
  return x[0];
}

}  // namespace

TEST(arithmetic_of_registers_is_that_of_numbers) {
  for_each_case([](const Primitives& isa, auto t) {
    using A = typename decltype(t)::Number;
    const bool fused = isa.has_fma;
    t.check("mul_add", t.lanes,
            [&](auto i) { return fused ? std::fma(t.a[i], t.b[i], t.c[i]) : A(t.a[i] * t.b[i]) + t.c[i]; });
    t.check("neg_mul_add", t.lanes,
            [&](auto i) { return fused ? std::fma(-t.a[i], t.b[i], t.c[i]) : t.c[i] - A(t.a[i] * t.b[i]); });
    t.check("divide", t.lanes, [&](auto i) { return t.a[i] / t.b[i]; });
    t.check("settle", t.lanes, [&](auto i) { return t.a[i]; });
    t.check("minus_abs", t.lanes, [&](auto i) { return -std::fabs(t.a[i]); });
    const std::vector<A> errors = t.run("product_error", t.lanes);
    for (std::size_t i = 0; i < errors.size(); ++i)  // equal, but perhaps for the sign of zero
      CHECK_EQUAL(errors[i], std::fma(t.a[i], t.b[i], -A(t.a[i] * t.b[i])));
  });
}

TEST(choices_of_registers_are_those_of_numbers) {
  for_each_case([](const Primitives&, auto t) {
    using A = typename decltype(t)::Number;
    const A nan = std::numeric_limits<A>::quiet_NaN();
    for (const A special : {nan, A(kInf), A(-kInf), A(1)}) {
      t.a[0] = special, t.b[1] = special;
      t.check("larger", t.lanes, [&](auto i) { return t.a[i] > t.b[i] ? t.a[i] : t.b[i]; });
      t.check("smaller", t.lanes, [&](auto i) { return t.a[i] < t.b[i] ? t.a[i] : t.b[i]; });
    }
    for (A& x : t.a) x = x == 0 ? A(2) : x;
    t.check("where_negative", t.lanes, [&](auto i) { return t.a[i] < 0 ? t.b[i] : t.c[i]; });
    for (int64_t n = 0; n <= t.lanes; ++n)
      t.check(
          "first_lanes", t.lanes, [&](auto i) { return static_cast<int64_t>(i) < n ? t.a[i] : t.b[i]; }, n);
  });
}

TEST(lanes_go_where_they_should) {
  for_each_case([](const Primitives&, auto t) {
    using A = typename decltype(t)::Number;
    const auto lanes = static_cast<std::size_t>(t.lanes);
    constexpr std::size_t kQuarter = 16 / sizeof(A);
    t.check("first_lane", 1, [&](auto) { return t.a[0]; });
    for (const std::size_t distance : {1u, 2u, 4u, 8u})
      if (distance < lanes)
        t.check(words("swap_lanes", distance), t.lanes, [&](auto i) { return t.a[i ^ distance]; });
    t.check("zip", 2 * t.lanes, [&](auto i) { return (i % 2 ? t.b : t.a)[i / 2]; });
    const auto both = [&](std::size_t i) { return i < lanes ? t.a[i] : t.b[i - lanes]; };
    t.check("unzip", 2 * t.lanes, [&](auto i) { return both(i < lanes ? 2 * i : 2 * (i - lanes) + 1); });
    const auto of_quarter = [&](std::size_t i, std::size_t first) {
      return (i % 2 ? t.b : t.a)[i / kQuarter * kQuarter + first + i % kQuarter / 2];
    };
    t.check("zip_lower", t.lanes, [&](auto i) { return of_quarter(i, 0); });
    t.check("zip_upper", t.lanes, [&](auto i) { return of_quarter(i, kQuarter / 2); });
    for (const std::size_t stride : {kQuarter, kQuarter + 1})
      if (lanes / kQuarter * stride + kQuarter <= t.a.size())
        t.check(
            "load_quarters", t.lanes, [&](auto i) { return t.a[i / kQuarter * stride + i % kQuarter]; },
            static_cast<int64_t>(stride));
  });
}

TEST(sums_of_lanes_are_trees) {
  for_each_case([](const Primitives&, auto t) {
    using A = typename decltype(t)::Number;
    constexpr std::size_t kQuarter = 16 / sizeof(A);
    const auto lanes = static_cast<std::size_t>(t.lanes);
    const auto add = [](A x, A y) { return A(x + y); };
    const std::vector<A> first(t.a.begin(), t.a.begin() + t.lanes);
    t.check("sum_lanes", 1, [&](auto) { return fold<A>(first, add); });
    t.check("max_lanes", 1, [&](auto) { return *std::max_element(first.begin(), first.end()); });
    t.check("add_quarters", kQuarter, [&](auto i) {
      std::vector<A> same;
      for (std::size_t at = i; at < lanes; at += kQuarter) same.push_back(first[at]);
      return fold<A>(same, add);
    });
    for (A& x : t.a) x = std::nearbyint(x);  // sums are exact: their order is left open
    t.check("sum_four", 4, [&](auto i) {
      const auto begin = t.a.begin() + static_cast<int64_t>(i * lanes);
      return fold<A>(std::vector<A>(begin, begin + t.lanes), add);
    });
  });
}

TEST(parts_of_registers_touch_nothing_else) {
  for_each_case([](const Primitives&, auto t) {
    using A = typename decltype(t)::Number;
    t.check("stream", t.lanes, [&](auto i) { return t.a[i]; });
    for (int64_t n = 0; n <= t.lanes; ++n) {
      t.check("store_part", n, [&](auto i) { return t.a[i]; }, n);
      auto exact = t;  // memory of n elements, of which AddressSanitizer sees the end
      exact.a = std::vector<A>(t.a.begin(), t.a.begin() + n);
      exact.check(
          "load_part", t.lanes, [&](auto i) { return static_cast<int64_t>(i) < n ? t.a[i] : A(0); }, n);
    }
  });
}

TEST(sixteen_bits_are_widened_and_narrowed_with_one_rounding) {
  for_each_table([](const Primitives& isa) {
    const auto lanes = static_cast<std::size_t>(isa.floats);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const Note note(name_of(dtype));
      const std::string prefix = dtype == DType::f16 ? "f16 " : "bf16 ";
      for (uint32_t first = 0; first < 65536; first += static_cast<uint32_t>(lanes)) {
        alignas(64) uint16_t bits[32], back[32] = {};
        std::vector<float> got(lanes), wanted;
        for (uint32_t i = 0; i < lanes; ++i) {
          bits[i] = static_cast<uint16_t>(first + i);
          wanted.push_back(static_cast<float>(decode(bits[i], dtype)));
        }
        run(isa.others, prefix + "load_bits", {bits, nullptr, nullptr, 0, got.data()});
        check_same(got, wanted);
        for (const char* const store : {"store_bits", "stream_bits"}) {
          run(isa.others, prefix + store, {got.data(), nullptr, nullptr, 0, back});
          for (std::size_t i = 0; i < lanes; ++i) CHECK(back[i] == bits[i] || got[i] != got[i]);
        }
        // And everything between one number and the next: halves, and what is just beside them.
        for (const float share : {0.25f, 0.5f, 0.75f}) {
          std::vector<float> between;
          for (std::size_t i = 0; i < lanes; ++i) {
            const double next = decode((bits[i] + 1u) & 0xffffu, dtype);
            between.push_back(
                static_cast<float>(wanted[i] + (next - wanted[i]) * static_cast<double>(share)));
          }
          run(isa.others, prefix + "store_bits", {between.data(), nullptr, nullptr, 0, back});
          for (std::size_t i = 0; i < lanes; ++i) {
            const double number = static_cast<double>(between[i]);
            if (number == number) CHECK_EQUAL(back[i], encode(number, dtype));
          }
        }
      }
      const std::vector<float> x = numbers<float>(isa.floats, 3);
      for (std::size_t n = 0; n <= lanes; ++n) {
        alignas(64) uint16_t out[32];
        for (uint16_t& bits : out) bits = 7;
        run(isa.others, prefix + "store_bits_part",
            {x.data(), nullptr, nullptr, static_cast<int64_t>(n), out});
        for (std::size_t i = 0; i < 32; ++i)
          CHECK_EQUAL(out[i], i < n ? encode(static_cast<double>(x[i]), dtype) : 7u);
        const std::vector<uint16_t> exact(out, out + n);
        std::vector<float> got(lanes), wanted(lanes, 0.0f);
        for (std::size_t i = 0; i < n; ++i) wanted[i] = static_cast<float>(decode(out[i], dtype));
        run(isa.others, prefix + "load_bits_part",
            {exact.data(), nullptr, nullptr, static_cast<int64_t>(n), got.data()});
        check_same(got, wanted);
      }
    }
  });
}

TEST(two_registers_of_bfloat16_are_those_of_one_in_turns) {
  for_each_table([](const Primitives& isa) {
    const auto lanes = static_cast<std::size_t>(isa.floats);
    for (uint32_t first = 0; first < 65536; first += static_cast<uint32_t>(2 * lanes)) {
      alignas(64) uint16_t bits[32], back[32] = {}, one[2][32] = {};
      std::vector<float> x[2];
      for (uint32_t i = 0; i < 2 * lanes; ++i) {
        bits[i] = static_cast<uint16_t>(first + i);
        x[i % 2].push_back(static_cast<float>(decode(bits[i], DType::bf16)));
      }
      std::vector<float> got(2 * lanes), wanted(x[0]);
      wanted.insert(wanted.end(), x[1].begin(), x[1].end());
      run(isa.others, "bf16 load_two", {bits, nullptr, nullptr, 0, got.data()});
      check_same(got, wanted);
      for (const float share : {0.0f, 0.25f, 0.5f, 0.75f}) {  // and what lies between
        for (int k = 0; k < 2; ++k) {
          for (float& number : x[k]) number *= 1.0f + share * 0x1p-7f;
          run(isa.others, "bf16 store_bits", {x[k].data(), nullptr, nullptr, 0, one[k]});
        }
        for (const char* way : {"bf16 narrow_two", "bf16 store_two"}) {
          run(isa.others, way, {x[0].data(), x[1].data(), nullptr, 0, back});
          for (std::size_t i = 0; i < 2 * lanes; ++i) CHECK_EQUAL(back[i], one[i % 2][i / 2]);
        }
      }
    }
  });
}

TEST(exponents_are_scaled_and_doubles_rounded) {
  for_each_table([](const Primitives& isa) {
    const auto lanes = static_cast<std::size_t>(isa.doubles);
    for (const int n : {-1060, -1000, -30, -1, 0, 1}) {
      std::vector<double> rest, shifted(lanes, isa.shifter + n), got(lanes), wanted;
      for (std::size_t i = 0; i < lanes; ++i) {
        rest.push_back(-0.25 + 0.0625 * static_cast<double>(i));
        wanted.push_back(std::ldexp(1 + rest[i], n));
      }
      run(isa.others, "scale_one_plus", {rest.data(), shifted.data(), nullptr, 0, got.data()});
      check_same(got, wanted);
    }
    for (const double scale : {1.0, 1e-40, 1e38, 1e300}) {
      std::vector<double> x;
      std::vector<float> got(lanes), wanted;
      for (std::size_t i = 0; i < lanes; ++i) {
        x.push_back((1.0 / 3 + static_cast<double>(i)) * scale);
        wanted.push_back(static_cast<float>(x[i]));
      }
      run(isa.others, "store_rounded float", {x.data(), nullptr, nullptr, 0, got.data()});
      check_same(got, wanted);
    }
  });
}

TEST(small_integers_are_looked_up_rounded_and_multiplied) {
  for_each_table([](const Primitives& isa) {
    const auto lanes = static_cast<std::size_t>(isa.floats);
    alignas(64) float table[16];
    uint8_t bytes[16];
    for (int i = 0; i < 16; ++i)
      table[i] = static_cast<float>(i * i), bytes[i] = static_cast<uint8_t>(250 - 3 * i);
    for (uint32_t seed = 0; seed < 16; ++seed) {
      std::vector<uint32_t> index, places, found(lanes), wanted_bytes;
      std::vector<float> halves, got(lanes), wanted;
      std::vector<int16_t> rounded(lanes), wanted_rounded;
      for (uint32_t i = 0; i < lanes; ++i) {
        index.push_back(0x4b400000u + (i * 5 + seed));  // as adding a shifter leaves them
        wanted.push_back(isa.table_size == 0 ? 0
                                             : table[(i * 5 + seed) % static_cast<uint32_t>(isa.table_size)]);
        places.push_back(((i + seed) * 0x01030507u) & 0x0f0f0f0fu);
        uint32_t word = 0;
        for (int shift = 0; shift < 32; shift += 8) word |= uint32_t{bytes[places[i] >> shift & 15]} << shift;
        wanted_bytes.push_back(word);
        halves.push_back((static_cast<float>(i) - 4.0f) * (static_cast<float>(seed) + 0.5f));
        wanted_rounded.push_back(static_cast<int16_t>(std::nearbyint(halves[i])));
      }
      if (isa.table_size != 0) {
        run(isa.others, "look_up", {index.data(), table, nullptr, 0, got.data()});
        check_same(got, wanted);
      }
      run(isa.others, "look_up_bytes", {places.data(), bytes, nullptr, 0, found.data()});
      check_same(found, wanted_bytes);
      run(isa.others, "store_rounded int16", {halves.data(), nullptr, nullptr, 0, rounded.data()});
      check_same(rounded, wanted_rounded);
    }
  });
}

// start + a.b + b.c in every lane, where a lane is two integers of 16 bits, or four bytes.
TEST(products_of_small_integers_are_added_exactly) {
  for_each_table([](const Primitives& isa) {
    const auto lanes = static_cast<std::size_t>(isa.floats);
    const int64_t bits = isa.byte_dots ? 8 : 16;
    std::vector<uint32_t> words[3];
    const auto part = [&](int which, std::size_t lane, int64_t shift, bool is_signed) {
      const auto raw = static_cast<int64_t>(words[which][lane] >> shift & ((1u << bits) - 1));
      return is_signed && raw >> (bits - 1) != 0 ? raw - (int64_t{1} << bits) : raw;
    };
    for (uint32_t i = 0; i < lanes;
         ++i)  // bytes of the first operand stay below 128 where those are unsigned
      for (uint32_t which = 0; which < 3; ++which)
        words[which].push_back((i * 0x9e3779b9u + which * 0x85ebca6bu) &
                               (isa.byte_dots ? 0x7f3f7f7fu : 0x8fff0fffu));
    std::vector<float> got(lanes), wanted;
    for (std::size_t i = 0; i < lanes; ++i) {
      int64_t sum = -12345;
      for (int64_t shift = 0; shift < 32; shift += bits)
        sum += part(0, i, shift, !isa.byte_dots) * part(1, i, shift, true) +
               part(1, i, shift, !isa.byte_dots) * part(2, i, shift, true);
      wanted.push_back(static_cast<float>(sum));
    }
    run(isa.others, "dots", {words[0].data(), words[1].data(), words[2].data(), -12345, got.data()});
    check_same(got, wanted);
  });
}

TEST(negative_bytes_are_multiplied_as_the_instruction_set_says) {
  for_each_table([](const Primitives& isa) {
    if (!isa.byte_dots) return;
    const auto lanes = static_cast<std::size_t>(isa.floats);
    const std::vector<uint32_t> first(lanes, 0x80ff0102u), second(lanes, 0xff80fe03u), none(lanes, 0u);
    const int64_t a[] = {2, 1, isa.signed_dots ? -1 : 255, isa.signed_dots ? -128 : 128},
                  b[] = {3, -2, -128, -1};
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += a[i] * b[i];
    std::vector<float> got(lanes);
    run(isa.others, "dots", {first.data(), second.data(), none.data(), 0, got.data()});
    check_same(got, std::vector<float>(lanes, static_cast<float>(sum)));
  });
}

TEST(pairs_of_bfloat16_are_multiplied_and_added) {
  for_each_table([](const Primitives& isa) {
    if (!isa.bf16_pairs) return;
    const auto lanes = static_cast<std::size_t>(isa.floats);
    const auto bits = [](int x) { return static_cast<uint16_t>(encode(x, DType::bf16)); };
    std::vector<uint16_t> x;
    for (std::size_t i = 0; i < 2 * lanes; ++i) x.push_back(bits(static_cast<int>(i) - 9));
    const uint16_t pair[] = {bits(3), bits(-5)};
    const std::vector<float> sum(lanes, 100.0f);
    for (std::size_t n = 0; n <= 2 * lanes; ++n) {
      const bool part = n < 2 * lanes;
      const std::vector<uint16_t> exact(x.begin(), x.begin() + static_cast<int64_t>(n));
      std::vector<float> got(lanes), wanted;
      for (std::size_t i = 0; i < lanes; ++i) {
        const auto of = [&](std::size_t j) { return j < n ? static_cast<float>(j) - 9 : 0.0f; };
        wanted.push_back(100 + 3 * of(2 * i) - 5 * of(2 * i + 1));
      }
      run(isa.others, part ? "pairs part" : "pairs",
          {exact.data(), pair, sum.data(), static_cast<int64_t>(n), got.data()});
      check_same(got, wanted);
    }
  });
}

}  // namespace simdformer::tests
