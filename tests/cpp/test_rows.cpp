// What works row by row, or element by element: activations, swiglu, softmax, the norms. Each through the
// thread pool against xtensor in float64, for every instruction set, dtype, and length around the widths of
// vectors; and the kernels themselves on parts of their work.
#include <cmath>
#include <xtensor/xmath.hpp>

#include "arrays.hpp"
#include "check.hpp"
#include "core/activations.hpp"
#include "core/norms.hpp"
#include "core/softmax.hpp"
#include "core/work.hpp"
#include "threads.hpp"

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

Values softmax_of(const Values& x) {
  const Values highest = xt::amax(x, {1}, xt::keep_dims);
  const Values e = xt::exp(x - highest);
  return e / row_sum(e);
}

}  // namespace

struct ActivationCase {
  Activation kind;
  const char* name;
  Values (*reference)(const Values&);
};
const ActivationCase kActivations[] = {
    {Activation::silu, "silu", [](const Values& x) -> Values { return x / (1 + xt::exp(-x)); }},
    {Activation::gelu, "gelu", [](const Values& x) -> Values { return x * xt::erfc(-x / std::sqrt(2)) / 2; }},
    {Activation::gelu_tanh, "gelu_tanh",
     [](const Values& x) -> Values {
       return x / (1 + xt::exp(-2 * std::sqrt(2 / std::acos(-1)) * (x + 0.044715 * x * x * x)));
     }},
    {Activation::relu, "relu", [](const Values& x) -> Values { return xt::maximum(x, 0.0); }},
};

TEST(activations_are_what_xtensor_computes) {
  for (const ActivationCase& c : kActivations)
    for_each_case([&](DType dtype, const Array& x) {
      const Note note(c.name);
      const Values values = x.values(), wanted = c.reference(values);
      for_each_isa([&] {
        const Array out = result({kRows, values.shape(1)}, dtype);
        activation(c.kind, x.view(), out.view());
        check_close(out, wanted, xt::abs(values), 8);
      });
    });
}

TEST(pieces_of_a_row_may_end_anywhere) {
  for (const ActivationCase& c : kActivations)
    for_each_case([&](DType dtype, const Array& x) {
      const Note note(c.name);
      const Values values = x.values(), wanted = c.reference(values);
      const auto n = static_cast<int64_t>(values.shape(1));
      for (const int64_t segment : {n, int64_t{7}, n + 1})
        for_each_isa([&] {
          const Array out = result({kRows, values.shape(1)}, dtype);
          run(kernels().activation, ActivationArgs{x.rows(), out.rows(), c.kind, segment},
              static_cast<int64_t>(kRows) * ceil_div(n, segment));
          check_close(out, wanted, xt::abs(values), 8);
        });
    });
}

TEST(long_rows_are_shared_out_in_pieces) {
  const Threads three(3);
  for (const DType dtype : kFloats)
    for (const std::size_t n :
         {std::size_t{kSegment}, std::size_t{kSegment} + 1, 5 * std::size_t{kSegment} + 77}) {
      const Note note(words("dtype", name_of(dtype), "n", n));
      const Array x(normal({2, n}, n), dtype, 3), up(normal({2, n}, n + 1), dtype, 1);
      const Values v = x.values(), wanted = v / (1 + xt::exp(-v));
      for_each_isa([&] {
        const Array out = result({2, n}, dtype);
        activation(Activation::silu, x.view(), out.view());
        check_close(out, wanted, xt::abs(v), 8);
        swiglu(x.view(), up.view(), out.view());
        check_close(out, wanted * up.values(), xt::abs(wanted * up.values()), 8);
      });
    }
}

TEST(swiglu_is_silu_of_gate_times_up) {
  for_each_case([&](DType dtype, const Array& gate) {
    const Values g = gate.values();
    const Array up(normal({kRows, g.shape(1)}, 99), dtype, 1);
    const Values wanted = g / (1 + xt::exp(-g)) * up.values();
    const auto n = static_cast<int64_t>(g.shape(1));
    for_each_isa([&] {
      const Array out = result({kRows, g.shape(1)}, dtype), parts = result({kRows, g.shape(1)}, dtype);
      swiglu(gate.view(), up.view(), out.view());
      check_close(out, wanted, xt::abs(wanted), 8);
      run(kernels().swiglu, PairArgs{gate.rows(), up.rows(), parts.rows(), 100},
          static_cast<int64_t>(kRows) * ceil_div(n, 100));
      CHECK(parts.bytes() == out.bytes());
    });
  });
}

TEST(softmax_is_what_xtensor_computes) {
  for_each_case([&](DType dtype, const Array& x) {
    for (const double temperature : {1.0, 0.7, 3.0}) {
      const Values wanted = softmax_of(x.values() / temperature);
      for_each_isa([&] {
        const Array out = result({kRows, wanted.shape(1)}, dtype);
        softmax(x.view(), temperature, out.view());
        check_close(out, wanted, wanted, 64);
        const Array parts = result({kRows, wanted.shape(1)}, dtype);
        run(kernels().softmax, SoftmaxArgs{x.rows(), parts.rows(), temperature}, kRows);
        CHECK(parts.bytes() == out.bytes());
      });
    }
  });
}

TEST(long_rows_of_16_bits_take_another_way_through_softmax) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::size_t n : {4096u, 4097u, 9001u}) {
      const Array x(normal({1, n}, n) * 2, dtype);
      const Values wanted = softmax_of(x.values());
      for_each_isa([&] {
        const Array out = result({1, n}, dtype);
        softmax(x.view(), 1.0, out.view());
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
        const Array wide(weight.values(), accumulator(mixture.x));  // as the kernels read it
        const View weight_view = weight.view();
        const Values v = x.values(), root = xt::sqrt(row_sum(v * v) / static_cast<double>(n) + 1e-5);
        Values wanted = v / root;
        if (weighted) wanted *= weight.values();
        for_each_isa([&] {
          const Array out = result({kRows, length}, mixture.x), parts = result({kRows, length}, mixture.x);
          rms_norm(x.view(), weighted ? &weight_view : nullptr, 1e-5, out.view());
          check_close(out, wanted, xt::abs(wanted), 6);
          const RmsNormArgs args{x.rows(), parts.rows(), weighted ? wide.data() : nullptr,
                                 accumulator(mixture.x), 1e-5};
          run(kernels().rms_norm, args, kRows);
          CHECK(parts.bytes() == out.bytes());
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
        const View weight_view = weight.view(), bias_view = bias.view();
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
          layer_norm(x.view(), affine ? &weight_view : nullptr, affine ? &bias_view : nullptr, 1e-5,
                     out.view());
          check_close(out, wanted, scale, 8);
        });
      }
}

TEST(the_other_parameter_of_a_norm_may_be_absent) {
  const Array x(normal({kRows, 67}, 1), DType::f32), parameter(normal({67}, 2), DType::bf16);
  const View view = parameter.view();
  const Values v = x.values(), mean = row_sum(v) / 67.0, centred = v - mean;
  const Values wanted = centred / xt::sqrt(row_sum(centred * centred) / 67.0);
  for_each_isa([&] {
    const Array out = result({kRows, 67}, DType::f32);
    layer_norm(x.view(), &view, nullptr, 0, out.view());
    check_close(out, wanted * parameter.values(), xt::ones_like(v) * 4, 8);
    layer_norm(x.view(), nullptr, &view, 0, out.view());
    check_close(out, wanted + parameter.values(), xt::ones_like(v) * 4, 8);
  });
}

TEST(arrays_without_elements_are_left_alone) {
  for (const Shape& shape : {Shape{2, 0}, Shape{0, 3}, Shape{0}})
    for_each_isa([&] {
      const Array x(Values::from_shape(shape), DType::f32), out(Values::from_shape(shape), DType::f32);
      activation(Activation::silu, x.view(), out.view());
      swiglu(x.view(), x.view(), out.view());
      softmax(x.view(), 1.0, out.view());
      rms_norm(x.view(), nullptr, 1e-5, out.view());
      layer_norm(x.view(), nullptr, nullptr, 1e-5, out.view());
    });
}

TEST(results_may_take_the_place_of_the_input) {
  for_each_case([&](DType dtype, const Array& x) {
    const std::size_t n = x.values().shape(1);
    const Array other(normal({kRows, n}, 5), dtype, 3);
    const auto in_place = [&](auto compute) {
      const Array apart = result({kRows, n}, dtype), same(x.values(), dtype, 3);
      compute(x.view(), apart.view());
      compute(same.view(), same.view());
      CHECK(apart.bytes() == same.bytes());
    };
    for_each_isa([&] {
      in_place([](const View& x, const View& out) { softmax(x, 1.0, out); });
      in_place([](const View& x, const View& out) { activation(Activation::gelu, x, out); });
      in_place([](const View& x, const View& out) { rms_norm(x, nullptr, 1e-5, out); });
      in_place([](const View& x, const View& out) { layer_norm(x, nullptr, nullptr, 1e-5, out); });
      in_place([&](const View& x, const View& out) { swiglu(x, other.view(), out); });
    });
  });
}

TEST(rows_of_any_strides_give_the_same) {
  const Array x(normal({4, 3, 33}, 7), DType::f32, 2);
  View swapped = x.view(), backwards = x.view();
  std::swap(swapped.shape[0], swapped.shape[1]);
  std::swap(swapped.strides[0], swapped.strides[1]);
  backwards.data += 3 * backwards.strides[0];
  backwards.strides[0] = -backwards.strides[0];
  for_each_isa([&] {
    const Array out = result({4, 3, 33}, DType::f32), other = result({3, 4, 33}, DType::f32);
    softmax(x.view(), 0.5, out.view());
    softmax(swapped, 0.5, other.view());
    CHECK(other.values() == Values(xt::transpose(out.values(), {1, 0, 2})));
    const Array last_first = result({4, 3, 33}, DType::f32);
    softmax(backwards, 0.5, last_first.view());
    CHECK(last_first.values() == Values(xt::flip(out.values(), 0)));
  });
}

TEST(chunks_are_worth_their_threads) {
  CHECK_EQUAL(grain_of_rows(0), 32768);
  CHECK_EQUAL(grain_of_rows(1), 32768);
  for (const int64_t length : {64, 1024, 4096, 32768}) CHECK_EQUAL(grain_of_rows(length), 32768 / length);
  CHECK_EQUAL(grain_of_rows(int64_t{1} << 40), 1);
  CHECK_EQUAL(grain_of(0), 32768);
  CHECK_EQUAL(grain_of(1e300), 1);
}

}  // namespace simdformer::tests
