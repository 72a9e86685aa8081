// rope through the thread pool, and the kernels of the rotation and of its table, against xtensor in float64.
#include <cmath>
#include <thread>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include "arrays.hpp"
#include "check.hpp"
#include "core/rope.hpp"
#include "threads.hpp"

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

// rope of x (sequences, heads, positions, n), against turn().
void check_rope(const Array& x, const Rope& call, const std::vector<int64_t>& positions) {
  Values flat = x.values();
  const Shape shape(flat.shape().begin(), flat.shape().end());
  const std::size_t rows = shape[0] * shape[1] * shape[2],
                    half = static_cast<std::size_t>(call.rotary_dim / 2);
  Values inv_freq = Values::from_shape({half});
  for (std::size_t i = 0; i < half; ++i)
    inv_freq(i) = call.inv_freq ? call.inv_freq[i]
                                : std::pow(call.theta, -static_cast<double>(i) / static_cast<double>(half));
  const Array table(table_of(positions, inv_freq, call.attention_factor), accumulator(x.dtype()));
  std::vector<std::size_t> index;
  for (std::size_t row = 0; row < rows; ++row)
    index.push_back(row % shape[2] + (call.by_sequence ? row / (shape[1] * shape[2]) * shape[2] : 0));
  flat.reshape(Shape{rows, shape[3]});
  Turned wanted = turn(flat, table.values(), index, call.layout);
  wanted.out.reshape(shape), wanted.scale.reshape(shape);
  const Array out = result(shape, x.dtype()), same(x.values(), x.dtype(), 3);
  rope(x.view(), call, out.view());
  check_close(out, wanted.out, wanted.scale, 8);
  rope(same.view(), call, same.view());
  CHECK(same.bytes() == out.bytes());
}

TEST(positions_frequencies_and_parts_of_a_head_are_as_the_call_says) {
  const Threads two(2);
  const std::vector<int64_t> counted{5, 6, 7, 8}, given{9, 0, 9, 4000},
      by_sequence{9, 0, 9, 4000, 1, 2, 3, 4};
  const Values frequency = frequencies(40) * 0.7;
  for (const RopeLayout layout : {RopeLayout::half, RopeLayout::interleaved})
    for (const DType dtype : kFloats)
      for (const std::size_t half : {1u, 3u, 8u, 16u, 33u})
        for (const std::size_t rest : {0u, 1u, 2u, 17u}) {
          const Note note(
              words("layout", static_cast<int>(layout), "dtype", name_of(dtype), "half", half, "rest", rest));
          const Array x(normal({2, 3, 4, 2 * half + rest}, half), dtype, 2);
          for_each_isa([&] {
            Rope call;
            call.layout = layout;
            call.rotary_dim = static_cast<int64_t>(2 * half);
            call.offset = 5;
            check_rope(x, call, counted);
            call.positions = given.data();
            call.theta = 5e5;
            check_rope(x, call, given);
            call.positions = by_sequence.data();
            call.by_sequence = true;
            call.inv_freq = frequency.data();
            call.attention_factor = 1.25;
            check_rope(x, call, by_sequence);
          });
        }
}

TEST(angles_are_kept_for_one_call_and_computed_for_another) {
  const Array x(normal({2, 3, 64}, 1), DType::f32);
  Rope near, far;
  near.rotary_dim = far.rotary_dim = 64;
  far.offset = 1000;
  const Array near_alone = result({2, 3, 64}, DType::f32), far_alone = result({2, 3, 64}, DType::f32);
  rope(x.view(), near, near_alone.view());
  rope(x.view(), far, far_alone.view());
  for (int i = 0; i < 4; ++i) {
    const Array out = result({2, 3, 64}, DType::f32);
    rope(x.view(), i % 2 ? far : near, out.view());
    CHECK(out.bytes() == (i % 2 ? far_alone : near_alone).bytes());
    rope(x.view(), i % 2 ? far : near, out.view());
    CHECK(out.bytes() == (i % 2 ? far_alone : near_alone).bytes());
  }
}

TEST(threads_that_rotate_at_the_same_time_do_not_share_angles) {
  constexpr int kThreads = 4, kCalls = 300;
  const Array x(normal({2, 16, 64}, 1), DType::f32);
  std::vector<Array> wanted, found;
  std::vector<Rope> calls(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    calls[static_cast<std::size_t>(i)].rotary_dim = 64;
    calls[static_cast<std::size_t>(i)].offset = 100 * i;
    wanted.push_back(result({2, 16, 64}, DType::f32));
    found.push_back(result({2, 16, 64}, DType::f32));
    rope(x.view(), calls[static_cast<std::size_t>(i)], wanted.back().view());
  }
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < kCalls; ++n) {
        rope(x.view(), calls[i], found[i].view());
        wrong[i] += found[i].bytes() != wanted[i].bytes();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const int n : wrong) CHECK_EQUAL(n, 0);
}

TEST(rope_of_nothing_is_nothing) {
  Rope call;
  call.rotary_dim = 4;
  for (const Shape& shape : {Shape{0, 4}, Shape{3, 0, 8}, Shape{0, 3, 4}}) {
    const Array x(Values::from_shape(shape), DType::f32);
    rope(x.view(), call, x.view());
  }
}

}  // namespace simdformer::tests
