// linear and packed weights, through the thread pool, against xtensor in float64.
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include "arrays.hpp"
#include "check.hpp"
#include "core/linear.hpp"
#include "core/parallel.hpp"

namespace simdformer::tests {
namespace {

struct Mixture {
  DType x, weight, bias;
};
constexpr Mixture kMixtures[] = {
    {DType::f32, DType::f32, DType::f32},   {DType::f32, DType::f16, DType::f32},
    {DType::f32, DType::bf16, DType::bf16}, {DType::f64, DType::f64, DType::f64},
    {DType::f16, DType::f16, DType::f16},   {DType::f16, DType::f32, DType::f16},
    {DType::bf16, DType::bf16, DType::f32}, {DType::bf16, DType::f32, DType::bf16},
};

struct Sizes {
  std::size_t rows, columns, depth;
};
// Rows: dot products up to 6, whole and broken tiles, widened panels from 24 or 128 on. Columns: panels of
// 16, groups of 64. Depth: pairs, lines of 16, blocks of 256.
constexpr Sizes kSizes[] = {
    {1, 1, 1},     {1, 16, 16},    {1, 65, 257}, {2, 7, 33},   {3, 5, 0},    {4, 33, 7},
    {5, 3, 300},   {6, 64, 64},    {7, 15, 31},  {8, 17, 129}, {9, 1, 255},  {13, 130, 2},
    {23, 48, 515}, {24, 63, 17},   {25, 66, 5},  {31, 20, 96}, {40, 40, 40}, {127, 9, 19},
    {130, 70, 3},  {200, 33, 259}, {0, 5, 5},    {5, 0, 5},
};

}  // namespace

TEST(linear_is_what_xtensor_computes) {
  for (const Mixture& mixture : kMixtures)
    for (const Sizes& size : kSizes) {
      const Array x(normal({size.rows, size.depth}, 1), mixture.x, 1);
      const Array weight(normal({size.columns, size.depth}, 2), mixture.weight, 3);
      const Array bias(normal({size.columns}, 3), mixture.bias);
      const Values plain = product(x.values(), weight.values());
      const Values magnitude = product(xt::abs(x.values()), xt::abs(weight.values()));
      const View weight_view = weight.view(), bias_view = bias.view();
      for (const bool packed : {false, true})
        for (const bool biased : {false, true}) {
          const Note note(words("x", name_of(mixture.x), "weight", name_of(mixture.weight), "rows", size.rows,
                                "columns", size.columns, "depth", size.depth, "packed", packed, "biased",
                                biased));
          Values wanted = plain, scale = magnitude;
          if (biased) {
            wanted += bias.values();
            scale += xt::abs(bias.values());
          }
          for_each_isa([&] {
            const PackedWeight panels(weight_view);
            const Array out = result({size.rows, size.columns}, mixture.x);
            LinearOperand operand;
            if (packed)
              operand.packed = &panels;
            else
              operand.weight = &weight_view;
            operand.bias = biased ? &bias_view : nullptr;
            operand.out = out.view();
            linear(x.view(), &operand, 1);
            check_close(out, wanted, scale, 4);
          });
        }
    }
}

TEST(several_weights_share_one_pass_over_x) {
  for (const DType dtype : kFloats)
    for (const std::size_t rows : {1u, 6u, 30u}) {
      const Note note(words("dtype", name_of(dtype), "rows", rows));
      const Array x(normal({rows, 70}, 1), dtype);
      const std::size_t columns[] = {65, 1, 0, 130};
      std::vector<Array> weights, biases;
      for (const std::size_t n : columns) {
        weights.emplace_back(normal({n, 70}, n), dtype);
        biases.emplace_back(normal({n}, n + 1), dtype);
      }
      for_each_isa([&] {
        std::vector<PackedWeight> packed;
        std::vector<View> views, bias_views;
        std::vector<Array> outs;
        for (std::size_t i = 0; i < 4; ++i) {
          views.push_back(weights[i].view());
          packed.emplace_back(views.back());
          bias_views.push_back(biases[i].view());
          outs.push_back(result({rows, columns[i]}, dtype));
        }
        std::vector<LinearOperand> operands(4);
        for (std::size_t i = 0; i < 4; ++i) {
          if (i % 2 == 0)
            operands[i].packed = &packed[i];
          else
            operands[i].weight = &views[i];
          if (i > 0) operands[i].bias = &bias_views[i];
          operands[i].out = outs[i].view();
        }
        linear(x.view(), operands.data(), 4);
        for (std::size_t i = 0; i < 4; ++i) {
          Values wanted = product(x.values(), weights[i].values());
          Values scale = product(xt::abs(x.values()), xt::abs(weights[i].values()));
          if (i > 0) wanted += biases[i].values(), scale += xt::abs(biases[i].values());
          check_close(outs[i], wanted, scale, 4);
        }
      });
    }
}

TEST(a_bias_may_have_any_stride) {
  const Array x(normal({9, 20}, 1), DType::f32), weight(normal({33, 20}, 2), DType::f32);
  const Array bias(normal({33, 1}, 3), DType::bf16, 4);  // four elements between two of the bias
  const Values wanted = product(x.values(), weight.values()) + xt::view(bias.values(), xt::all(), 0);
  View weight_view = weight.view(), bias_view = bias.view();
  bias_view.rank = 1;
  for_each_isa([&] {
    const Array out = result({9, 33}, DType::f32);
    LinearOperand operand;
    operand.weight = &weight_view;
    operand.bias = &bias_view;
    operand.out = out.view();
    linear(x.view(), &operand, 1);
    check_close(out, wanted, Values(wanted.shape(), 40.0), 4);
  });
}

TEST(packing_changes_no_bit) {
  for (const DType dtype : kFloats)
    for (const Sizes& size : kSizes) {
      const Note note(words("dtype", name_of(dtype), "columns", size.columns, "depth", size.depth));
      const Array weight(normal({size.columns, size.depth}, 5), dtype, 3);
      std::string panels;
      for_each_isa([&] {
        const PackedWeight packed(weight.view());
        CHECK_EQUAL(packed.rows(), static_cast<int64_t>(size.columns));
        CHECK_EQUAL(packed.cols(), static_cast<int64_t>(size.depth));
        const Array back = result({size.columns, size.depth}, dtype);
        packed.unpack(back.view());
        CHECK(back.bytes() == weight.bytes());
        const std::string bytes(packed.data() == nullptr ? "" : packed.data(),
                                static_cast<std::size_t>(packed.nbytes()));
        if (panels.empty()) panels = bytes;
        CHECK(panels == bytes);  // the same on every instruction set
      });
    }
}

TEST(the_bits_do_not_depend_on_threads_nor_those_of_a_packed_row_on_the_others) {
  const int before = num_threads();
  for (const DType dtype : kFloats) {
    const Array x(normal({150, 300}, 1), dtype), weight(normal({333, 300}, 2), dtype);
    const View weight_view = weight.view();
    for_each_isa([&] {
      const PackedWeight panels(weight_view);
      for (const bool packed : {false, true}) {
        const Note note(words("dtype", name_of(dtype), "packed", packed));
        const auto run = [&](const View& rows, const Array& out) {
          LinearOperand operand;
          if (packed)
            operand.packed = &panels;
          else
            operand.weight = &weight_view;
          operand.out = out.view();
          linear(rows, &operand, 1);
        };
        set_num_threads(1);
        const Array alone = result({150, 333}, dtype);
        run(x.view(), alone);
        set_num_threads(3);
        const Array together = result({150, 333}, dtype);
        run(x.view(), together);
        CHECK(alone.bytes() == together.bytes());

        View last = x.view();
        last.data += 149 * last.strides[0];
        last.shape[0] = 1;
        const Array single = result({1, 333}, dtype);
        run(last, single);
        const std::string bytes = single.bytes();
        if (packed)
          CHECK(alone.bytes().compare(alone.bytes().size() - bytes.size(), bytes.size(), bytes) == 0);
      }
    });
  }
  set_num_threads(before);
}

}  // namespace simdformer::tests
