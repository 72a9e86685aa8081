// rope and its table against xtensor in float64.
#include <cmath>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include "arrays.hpp"
#include "check.hpp"

namespace simdformer::tests {
namespace {

// cos and sin, (positions, 2, half), of angles that are float64 products.
Values table_of(const std::vector<int64_t>& positions, const Values& inv_freq, double factor) {
  Values table = Values::from_shape({positions.size(), 2, inv_freq.size()});
  for (std::size_t p = 0; p < positions.size(); ++p) {
    const Values angle = static_cast<double>(positions[p]) * inv_freq;
    xt::view(table, p, 0) = factor * xt::cos(angle);
    xt::view(table, p, 1) = factor * xt::sin(angle);
  }
  return table;
}

// Row r of x (rows, n) turned by table[index[r]]; also how large the products are that are added.
struct Turned {
  Values out, scale;
};
Turned turn(const Values& x, const Values& table, const std::vector<std::size_t>& index, RopeLayout layout) {
  const std::size_t half = table.shape(2);
  Turned turned{x, xt::abs(x)};
  for (std::size_t row = 0; row < x.shape(0); ++row)
    for (std::size_t i = 0; i < half; ++i) {
      const std::size_t ia = layout == RopeLayout::half ? i : 2 * i;
      const std::size_t ib = layout == RopeLayout::half ? half + i : 2 * i + 1;
      const double a = x(row, ia), b = x(row, ib), cos = table(index[row], 0, i),
                   sin = table(index[row], 1, i);
      turned.out(row, ia) = a * cos - b * sin;
      turned.out(row, ib) = b * cos + a * sin;
      turned.scale(row, ia) = turned.scale(row, ib) = std::fabs(a) + std::fabs(b);
    }
  return turned;
}

Values frequencies(std::size_t half) {
  Values inv_freq = Values::from_shape({half});
  for (std::size_t i = 0; i < half; ++i)
    inv_freq(i) = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
  return inv_freq;
}

constexpr std::size_t kHalves[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 32, 33, 64};

}  // namespace

TEST(the_table_holds_cos_and_sin_of_every_angle) {
  const std::vector<int64_t> positions{0, 1, 2, 100, -7, 8191, 1000003, int64_t{1} << 40};
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::size_t half : kHalves) {
      const Note note(words("dtype", name_of(dtype), "half", half));
      const Array inv_freq(frequencies(half), DType::f64);
      const Values wanted = table_of(positions, inv_freq.values(), 1.25);
      for_each_isa([&] {
        const Array table(Values(Shape{positions.size(), 2, half}, std::nan("")), dtype);
        const RopeTableArgs args{positions.data(),
                                 static_cast<const double*>(inv_freq.data()),
                                 static_cast<int64_t>(half),
                                 1.25,
                                 dtype,
                                 table.data()};
        kernels().rope_table(args, 0, 3);
        kernels().rope_table(args, 3, static_cast<int64_t>(positions.size()));
        check_close(table, wanted, xt::ones_like(wanted), 4);
      });
    }
}

TEST(every_pair_is_turned_by_its_angle) {
  constexpr int64_t kSequences = 2, kHeads = 3, kPositions = 4, kRowCount = kSequences * kHeads * kPositions;
  std::vector<int64_t> positions;
  for (int64_t p = 0; p < kSequences * kPositions; ++p) positions.push_back(p * p);
  for (const RopeLayout layout : {RopeLayout::half, RopeLayout::interleaved})
    for (const DType dtype : kFloats)
      for (const std::size_t half : kHalves)
        for (const bool by_sequence : {false, true})
          for (const std::size_t rest : {0u, 3u}) {
            const Note note(words("layout", static_cast<int>(layout), "dtype", name_of(dtype), "half", half,
                                  "rest", rest, "by_sequence", by_sequence));
            const std::size_t n = 2 * half + rest;
            const Array x(normal({kRowCount, n}, half), dtype, 2);
            const Array table(table_of(positions, frequencies(half), 1), accumulator(dtype));
            std::vector<std::size_t> index;  // the position of each row of (sequences, heads, positions)
            for (int64_t row = 0; row < kRowCount; ++row)
              index.push_back(static_cast<std::size_t>(
                  row % kPositions + (by_sequence ? row / (kHeads * kPositions) * kPositions : 0)));
            const Turned wanted = turn(x.values(), table.values(), index, layout);
            for_each_isa([&] {
              const Array out = result({kRowCount, n}, dtype);
              const RopeArgs args{x.rows(),
                                  out.rows(),
                                  layout,
                                  static_cast<int64_t>(half),
                                  kPositions,
                                  by_sequence ? kHeads * kPositions : kRowCount,
                                  by_sequence ? kPositions : 0,
                                  table.data()};
              kernels().rope(args, 0, 5);  // items may begin in the middle of a sequence
              kernels().rope(args, 5, kRowCount);
              check_close(out, wanted.out, wanted.scale, 3);

              const Array same(x.values(), dtype, 3);
              kernels().rope(RopeArgs{same.rows(), same.rows(), layout, args.half, args.seq_len,
                                      args.rows_per_sequence, args.sequence_stride, args.table},
                             0, kRowCount);
              CHECK(same.bytes() == out.bytes());
            });
          }
}

}  // namespace simdformer::tests
