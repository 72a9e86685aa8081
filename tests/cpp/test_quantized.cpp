// Quantized weights: their bytes, and their product with x, against float64.
#include <cmath>
#include <set>
#include <utility>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include "arrays.hpp"
#include "base/tuning.hpp"
#include "check.hpp"
#include "core/linear.hpp"
#include "core/parallel.hpp"
#include "core/prefetching.hpp"
#include "core/quantized.hpp"

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
  for (const auto& [name, most_lost] : most) {
    const Note note(name);
    const QuantizedType& type = *quantized_type(name);
    const double bound = most_lost;  // what a lambda may hold
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

TEST(how_to_prefetch_is_tried_by_the_first_products_and_changes_no_bits) {
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
    const Values before = product_with(small), all = product_with(large);
    CHECK(xt::all(xt::equal(before, Values(xt::view(all, xt::all(), xt::range(0, 64))))));
    stay_awake();
    for (int trial = 0; trial < 4 * kTrialsOfEach + 1; ++trial)
      CHECK(xt::all(xt::equal(product_with(large), all)));
    may_sleep();
    CHECK(xt::all(xt::equal(product_with(small), before)));
  });
}

TEST(all_ways_to_prefetch_have_their_turn_with_each_product_of_a_layer_and_one_stays) {
  using Way = std::pair<int64_t, Cache>;
  const QuantizedWeight weight = weight_of(*quantized_type("q4_k"), {}, 0, 256);
  const QuantizedFormat& format = weight.format();
  for_each_isa([&] {
    const auto slice = [&](int64_t rows, double bytes) {
      Prefetching call(kernels(), bytes);
      const SliceAhead ahead = call.slice_ahead(format, rows);
      CHECK_EQUAL(call.slice_ahead(format, rows).bytes, ahead.bytes);  // for all weights of a call
      return Way{ahead.bytes, ahead.goal};
    };
    const auto keys = [&](int64_t, double bytes) {
      return Way{0, Prefetching(kernels(), bytes).goal(Prefetched::keys, DType::f16)};
    };
    const auto try_all = [&](const auto& way, int64_t rows, std::size_t choices, double bytes) {
      const Way untried = way(rows, kFarBytes - 1);
      std::set<Way> of_product[4];
      for (std::size_t trial = 0; trial < choices * kTrialsOfEach; ++trial)
        of_product[trial % 4].insert(way(rows, bytes));
      for (const std::set<Way>& ways : of_product) CHECK_EQUAL(ways.size(), choices);
      CHECK_EQUAL(of_product[0].count(untried), std::size_t{1});
      const Way best = way(rows, bytes);
      CHECK_EQUAL(of_product[0].count(best), std::size_t{1});
      for (int again = 0; again < 8; ++again) CHECK(way(rows, bytes) == best);
      return best;
    };
    for (const int64_t rows : {1, 4}) {
      const std::size_t choices = rows == 1 ? 4 : 2;
      const Way near = try_all(slice, rows, choices, kFarBytes);
      CHECK(slice(rows, 1) == near);  // few bytes, as more do
      const Way far = try_all(slice, rows, choices, kFarthestBytes);
      stay_awake();
      CHECK(slice(rows, 1) == far);  // in a pass all are far
      may_sleep();
    }
    try_all(keys, 1, 2, kFarthestBytes);
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
