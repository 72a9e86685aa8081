// What works row by row: activations, swiglu, softmax, the norms, conversion. Each against xtensor in
// float64, for every instruction set, dtype, and length around the widths of vectors.
#include <cmath>
#include <xtensor/xmath.hpp>

#include "arrays.hpp"
#include "check.hpp"

namespace simdformer::tests {
namespace {

constexpr int64_t kLengths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67, 257, 1029};
constexpr std::size_t kRows = 3;

// The same, with 16-bit parameters beside float32 and the other way round.
struct Mixture {
  DType x, parameter;
};
constexpr Mixture kMixtures[] = {
    {DType::f32, DType::f32}, {DType::f32, DType::f16}, {DType::f32, DType::bf16},  {DType::f64, DType::f64},
    {DType::f16, DType::f16}, {DType::f16, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
};

// body(dtype, x of kRows rows with gaps) for each case.
template <class Body>
void for_each_case(Body body) {
  for (const DType dtype : kFloats)
    for (const int64_t n : kLengths) {
      const Note note(words("dtype", name_of(dtype), "n", n));
      const Shape shape{kRows, static_cast<std::size_t>(n)};
      body(dtype, Array(normal(shape, static_cast<uint64_t>(n)) * 3, dtype, 5));
    }
}

// kernel(args, 0, items), cut in two: no item knows what the others are.
template <class Kernel, class Args>
void run(Kernel kernel, const Args& args, int64_t items) {
  const int64_t cut = items / 3;
  kernel(args, 0, cut);
  kernel(args, cut, items);
}

Values row_sum(const Values& x) { return xt::sum(x, {1}, xt::keep_dims); }

Values softmax(const Values& x) {
  const Values highest = xt::amax(x, {1}, xt::keep_dims);
  const Values e = xt::exp(x - highest);
  return e / row_sum(e);
}

}  // namespace

TEST(activations_are_what_xtensor_computes) {
  struct Case {
    Activation kind;
    const char* name;
    Values (*reference)(const Values&);
  };
  const Case cases[] = {
      {Activation::silu, "silu", [](const Values& x) -> Values { return x / (1 + xt::exp(-x)); }},
      {Activation::gelu, "gelu",
       [](const Values& x) -> Values { return x * xt::erfc(-x / std::sqrt(2)) / 2; }},
      {Activation::gelu_tanh, "gelu_tanh",
       [](const Values& x) -> Values {
         return x / (1 + xt::exp(-2 * std::sqrt(2 / std::acos(-1)) * (x + 0.044715 * x * x * x)));
       }},
      {Activation::relu, "relu", [](const Values& x) -> Values { return xt::maximum(x, 0.0); }},
  };
  for (const Case& c : cases)
    for_each_case([&](DType dtype, const Array& x) {
      const Note note(c.name);
      const Values values = x.values(), wanted = c.reference(values);
      const auto n = static_cast<int64_t>(values.shape(1));
      for (const int64_t segment : {n, int64_t{7}, n + 1})  // pieces of a row may end anywhere
        for_each_isa([&] {
          const Array out = result({kRows, values.shape(1)}, dtype);
          run(kernels().activation, ActivationArgs{x.rows(), out.rows(), c.kind, segment},
              static_cast<int64_t>(kRows) * ((n + segment - 1) / segment));
          check_close(out, wanted, xt::abs(values), 8);
        });
    });
}

TEST(swiglu_is_silu_of_gate_times_up) {
  for_each_case([&](DType dtype, const Array& gate) {
    const Values g = gate.values();
    const Array up(normal({kRows, g.shape(1)}, 99), dtype, 1);
    const Values wanted = g / (1 + xt::exp(-g)) * up.values();
    const auto n = static_cast<int64_t>(g.shape(1));
    for_each_isa([&] {
      const Array out = result({kRows, g.shape(1)}, dtype);
      run(kernels().swiglu, SwigluArgs{gate.rows(), up.rows(), out.rows(), 100},
          static_cast<int64_t>(kRows) * ((n + 99) / 100));
      check_close(out, wanted, xt::abs(wanted), 8);
    });
  });
}

TEST(softmax_is_what_xtensor_computes) {
  for_each_case([&](DType dtype, const Array& x) {
    for (const double temperature : {1.0, 0.7, 3.0}) {
      const Values wanted = softmax(x.values() / temperature);
      for_each_isa([&] {
        const Array out = result({kRows, wanted.shape(1)}, dtype);
        run(kernels().softmax, SoftmaxArgs{x.rows(), out.rows(), temperature}, kRows);
        check_close(out, wanted, wanted, 64);
      });
    }
  });
}

TEST(long_rows_of_16_bits_take_another_way_through_softmax) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::size_t n : {4096u, 4097u, 9001u}) {
      const Array x(normal({1, n}, n) * 2, dtype);
      const Values wanted = softmax(x.values());
      for_each_isa([&] {
        const Array out = result({1, n}, dtype);
        kernels().softmax(SoftmaxArgs{x.rows(), out.rows(), 1.0}, 0, 1);
        check_close(out, wanted, wanted, 64);
      });
    }
}

TEST(rms_norm_is_what_xtensor_computes) {
  for (const Mixture& mixture : kMixtures)
    for (const int64_t n : kLengths)
      for (const bool weighted : {true, false}) {
        const Note note(words("x", name_of(mixture.x), "weight", name_of(mixture.parameter), "n", n));
        const auto length = static_cast<std::size_t>(n);
        const Array x(normal({kRows, length}, 1), mixture.x, 2);
        const Array weight(normal({length}, 2), mixture.parameter);
        const Values v = x.values(), root = xt::sqrt(row_sum(v * v) / static_cast<double>(n) + 1e-5);
        Values wanted = v / root;
        if (weighted) wanted *= weight.values();
        for_each_isa([&] {
          const Array out = result({kRows, length}, mixture.x);
          const RmsNormArgs args{x.rows(), out.rows(), weighted ? weight.data() : nullptr, mixture.parameter,
                                 1e-5};
          run(kernels().rms_norm, args, kRows);
          check_close(out, wanted, xt::abs(wanted), 6);
        });
      }
}

TEST(layer_norm_is_what_xtensor_computes) {
  for (const Mixture& mixture : kMixtures)
    for (const int64_t n : kLengths)
      for (const bool affine : {true, false}) {
        const Note note(words("x", name_of(mixture.x), "weight", name_of(mixture.parameter), "n", n));
        const auto length = static_cast<std::size_t>(n);
        const Array x(normal({kRows, length}, 1) + 0.5, mixture.x, 2);
        const Array weight(normal({length}, 2), mixture.parameter), bias(normal({length}, 3), mixture.x);
        const Values v = x.values(), mean = row_sum(v) / static_cast<double>(n), centred = v - mean;
        const Values root = xt::sqrt(row_sum(centred * centred) / static_cast<double>(n) + 1e-5);
        Values wanted = centred / root,
               scale = (xt::abs(centred) + row_sum(xt::abs(v)) / static_cast<double>(n)) / root;
        if (affine) {
          wanted = wanted * weight.values() + bias.values();
          scale = scale * xt::abs(weight.values()) + xt::abs(bias.values());
        }
        for_each_isa([&] {
          const Array out = result({kRows, length}, mixture.x);
          const LayerNormArgs args{x.rows(),
                                   out.rows(),
                                   affine ? weight.data() : nullptr,
                                   mixture.parameter,
                                   affine ? bias.data() : nullptr,
                                   mixture.x,
                                   1e-5};
          run(kernels().layer_norm, args, kRows);
          check_close(out, wanted, scale, 8);
        });
      }
}

TEST(conversion_rounds_once_to_the_nearest) {
  for_each_case([&](DType from, const Array& x) {
    const Values values = x.values();
    const auto n = static_cast<int64_t>(values.shape(1));
    for (const DType to : kFloats) {
      if (from == to) continue;
      const Note note(words("to", name_of(to)));
      const Array wanted(values, to, 3);
      for_each_isa([&] {
        const Array out = result({kRows, values.shape(1)}, to);
        run(kernels().convert, ConvertArgs{x.rows(), out.rows(), 50},
            static_cast<int64_t>(kRows) * ((n + 49) / 50));
        CHECK(out.bytes() == wanted.bytes());
      });
    }
  });
}

TEST(rows_without_elements_are_left_alone) {
  for_each_isa([&] {
    const Array x(Values(Shape{2, 0}), DType::f32), out(Values(Shape{2, 0}), DType::f32);
    kernels().activation(ActivationArgs{x.rows(), out.rows(), Activation::silu, 16}, 0, 0);
    kernels().softmax(SoftmaxArgs{x.rows(), out.rows(), 1.0}, 0, 2);
    kernels().rms_norm(RmsNormArgs{x.rows(), out.rows(), nullptr, DType::f32, 1e-5}, 0, 2);
  });
}

TEST(results_may_take_the_place_of_the_input) {
  for_each_case([&](DType dtype, const Array& x) {
    for_each_isa([&] {
      const Array apart = result({kRows, x.values().shape(1)}, dtype);
      const Array same(x.values(), dtype, 3);
      kernels().softmax(SoftmaxArgs{x.rows(), apart.rows(), 1.0}, 0, kRows);
      kernels().softmax(SoftmaxArgs{same.rows(), same.rows(), 1.0}, 0, kRows);
      CHECK(apart.bytes() == same.bytes());
    });
  });
}

}  // namespace simdformer::tests
