// Quantized weights: their bytes, and their product with x, against float64.
#include <cmath>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include "arrays.hpp"
#include "base/tuning.hpp"
#include "check.hpp"
#include "core/linear.hpp"
#include "core/parallel.hpp"
#include "core/quantized.hpp"
#include "core/slice_ahead.hpp"

namespace simdformer::tests {
namespace {

constexpr const char* kTypes[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4",
                                  "q4_k", "q5_k", "q6_k", "q3_k", "q2_k", "iq4_xs"};

// Bytes at random, of which half-precision numbers are not too large: bits 6 of all bytes are 0, so that no
// exponent is beyond 2^0.
std::vector<uint8_t> blocks_of(const QuantizedType& type, std::size_t rows, std::size_t depth) {
  const std::size_t blocks = rows * depth / static_cast<std::size_t>(type.block);
  std::vector<uint8_t> bytes(blocks * static_cast<std::size_t>(type.nbytes));
  uint64_t state = 88172645463325252u;
  for (uint8_t& byte : bytes) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    byte = static_cast<uint8_t>(state) & 0xbf;
  }
  return bytes;
}

QuantizedWeight weight_of(const QuantizedType& type, const std::vector<uint8_t>& blocks, std::size_t rows,
                          std::size_t depth) {
  QuantizedWeight weight(type, static_cast<int64_t>(rows), static_cast<int64_t>(depth));
  weight.fill(blocks.data(), 0, weight.rows());
  return weight;
}

Values values_of(const QuantizedWeight& weight, std::size_t rows, std::size_t depth) {
  const Array values = result({rows, depth}, DType::f32);
  weight.dequantize(values.view());
  CHECK(values.gaps_are_whole());
  return values.values();
}

}  // namespace

TEST(blocks_are_read_and_written_without_loss) {
  for (const char* name : kTypes) {
    const Note note(name);
    const QuantizedType& type = *quantized_type(name);
    for (const std::size_t rows : {0u, 1u, 16u, 37u, 64u, 130u}) {
      const std::size_t depth = 512;
      const std::vector<uint8_t> bytes = blocks_of(type, rows, depth);
      const QuantizedWeight weight = weight_of(type, bytes, rows, depth);
      std::vector<uint8_t> again(bytes.size());
      weight.write_blocks(again.data());
      CHECK(again == bytes);
    }
  }
  CHECK(quantized_type("q9_0") == nullptr);
}

TEST(quantizing_says_what_it_loses_and_does_so_alike_on_every_isa) {
  constexpr std::size_t rows = 85, depth = 768;
  const std::pair<const char*, double> most[] = {{"q8_0", 0.006}, {"q4_0", 0.09},  {"q4_1", 0.085},
                                                 {"q5_0", 0.045}, {"q5_1", 0.04},  {"mxfp4", 0.12},
                                                 {"q4_k", 0.072}, {"q5_k", 0.036}, {"q6_k", 0.018}};
  for (const auto& [name, bound] : most) {
    const Note note(name);
    const QuantizedType& type = *quantized_type(name);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Array x(normal({rows, depth}, 7), dtype, 1);
      std::vector<uint8_t> first;
      for_each_isa([&] {
        const QuantizedWeight weight(type, x.view());
        const Values missed = values_of(weight, rows, depth) - x.values();
        const double lost = xt::sum(missed * missed)(), all = xt::sum(x.values() * x.values())();
        CHECK(std::sqrt(lost / all) < bound);
        CHECK(std::abs(weight.loss().missed / lost - 1) < 1e-5);
        CHECK(std::abs(weight.loss().squares / all - 1) < 1e-5);
        std::vector<uint8_t> blocks(rows * depth / static_cast<std::size_t>(type.block) *
                                    static_cast<std::size_t>(type.nbytes));
        weight.write_blocks(blocks.data());
        if (first.empty()) first = blocks;
        CHECK(blocks == first);
      });
    }
  }
}

TEST(linear_is_the_product_with_the_values_of_a_quantized_weight) {
  for (const char* name : kTypes) {
    const Note note(name);
    const QuantizedType& type = *quantized_type(name);
    const std::size_t columns = 70, depth = type.block == 256 ? 512 : 352;
    const std::vector<uint8_t> bytes = blocks_of(type, columns, depth);
    const QuantizedWeight weight = weight_of(type, bytes, columns, depth);
    const Values values = values_of(weight, columns, depth);
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::size_t rows : {1u, 2u, 3u, 4u, 20u}) {
        const Array x(normal({rows, depth}, rows), dtype, 1);
        const Values wanted = product(x.values(), values);
        const Values magnitude = product(xt::abs(x.values()), xt::abs(values));
        for_each_isa([&] {
          for (const Arithmetic arithmetic : {Arithmetic::int16, Arithmetic::float32}) {
            const Array out = result({rows, columns}, dtype);
            LinearOperand operand;
            operand.quantized = &weight;
            operand.out = out.view();
            linear(x.view(), &operand, 1, arithmetic);
            // 16 bits: half a step of max |x| / 32512 an input, which is far above float32's own rounding
            check_close(out, wanted, magnitude, arithmetic == Arithmetic::int16 ? 2000 : 8);
          }
        });
      }
  }
}

TEST(how_far_ahead_to_prefetch_is_measured_and_changes_no_bits) {
  constexpr std::size_t rows = 4096, depth = 512;
  const QuantizedType& type = *quantized_type("q8_0");
  const std::vector<uint8_t> bytes = blocks_of(type, rows, depth);
  const QuantizedWeight large = weight_of(type, bytes, rows, depth);  // 2 MB
  const QuantizedWeight small = weight_of(type, bytes, 64, depth);    // its first rows
  const Array x(normal({1, depth}, 3), DType::f32, 1);
  for_each_isa([&] {
    const auto product_with = [&](const QuantizedWeight& weight) {
      const Array out = result({1, static_cast<std::size_t>(weight.rows())}, DType::f32);
      LinearOperand operand;
      operand.quantized = &weight;
      operand.out = out.view();
      linear(x.view(), &operand, 1, Arithmetic::int16);
      return out.values();
    };
    stay_awake();
    const Values before = product_with(small), all = product_with(large), after = product_with(small);
    const int64_t ahead = slice_ahead(kernels(), 0);
    CHECK(ahead == 0 || ahead == kSliceBytesAhead);
    may_sleep();
    CHECK_EQUAL(slice_ahead(kernels(), 2 << 20),
                kSliceBytesAhead);  // near, where nobody says that more comes
    CHECK_EQUAL(slice_ahead(kernels(), 2.0 * kFarthestBytes), ahead);
    CHECK(xt::all(xt::equal(before, after)));
    CHECK(xt::all(xt::equal(before, Values(xt::view(all, xt::all(), xt::range(0, 64))))));
  });
}

TEST(rows_of_a_quantized_weight_are_its_values) {
  const QuantizedType& type = *quantized_type("q4_k");
  const std::vector<uint8_t> bytes = blocks_of(type, 20, 512);
  const QuantizedWeight weight = weight_of(type, bytes, 20, 512);
  const Values values = values_of(weight, 20, 512);
  const int64_t ids[] = {19, 0, 7};
  for (const DType dtype : kFloats) {
    const Array out = result({3, 512}, dtype);
    weight.gather(ids, out.view());
    for (std::size_t i = 0; i < 3; ++i) {
      const Values row = xt::view(values, xt::range(ids[i], ids[i] + 1), xt::all());
      const Values got = xt::view(out.values(), xt::range(i, i + 1), xt::all());
      CHECK(xt::all(xt::equal(got, Array(row, dtype).values())));
    }
  }
}

}  // namespace simdformer::tests
