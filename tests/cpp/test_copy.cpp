// Elements moved: copies between any strides, conversion, rows picked, heads repeated, causal masks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xstrides.hpp>
#include <xtensor/xview.hpp>

#include "arrays.hpp"
#include "check.hpp"
#include "core/copy.hpp"
#include "core/gather.hpp"
#include "core/work.hpp"
#include "threads.hpp"

namespace simdformer::tests {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::boolean};

// The view with two axes in each other's place.
View swapped(View view, int a, int b) {
  std::swap(view.shape[a], view.shape[b]);
  std::swap(view.strides[a], view.strides[b]);
  return view;
}

// Small whole numbers, which the dtype has.
Values counted(const Shape& shape, DType dtype) {
  Values values = Values::from_shape(shape);
  for (std::size_t i = 0; i < values.size(); ++i)
    values.flat(i) = static_cast<double>(i % (dtype == DType::boolean ? 2 : 251));
  return values;
}

}  // namespace

TEST(copies_go_between_any_strides) {
  for (const DType dtype : kAll)
    for (const Shape& shape :
         {Shape{1, 1, 1}, Shape{2, 3, 5}, Shape{3, 1, 4}, Shape{2, 33, 65}, Shape{5, 64, 7}}) {
      const Note note(words("dtype", name_of(dtype), "rows", shape[1], "columns", shape[2]));
      const Array x(counted(shape, dtype), dtype, 2);
      const Array straight = result(shape, dtype);
      copy_elements(x.view(), straight.view());
      CHECK(straight.values() == x.values() && straight.gaps_are_whole());
      for (const int a : {0, 1}) {  // the last axis too: tiles
        const int b = a == 0 ? 2 : 2 - a;
        Shape other = shape;
        std::swap(other[static_cast<std::size_t>(a)], other[static_cast<std::size_t>(b)]);
        const Array turned = result(other, dtype), back = result(shape, dtype);
        copy_elements(swapped(x.view(), a, b), turned.view());
        copy_elements(turned.view(), swapped(back.view(), a, b));
        std::vector<std::size_t> axes{0, 1, 2};
        std::swap(axes[static_cast<std::size_t>(a)], axes[static_cast<std::size_t>(b)]);
        CHECK(turned.values() == Values(xt::transpose(x.values(), axes)));
        CHECK(back.values() == x.values() && back.gaps_are_whole());
      }
    }
}

TEST(long_copies_are_shared_out) {
  const Threads three(3);
  const Array x(normal({300, 500}, 1), DType::f32, 1);
  const Array out = result({300, 500}, DType::f32), turned = result({500, 300}, DType::f32);
  copy_elements(x.view(), out.view());
  CHECK(out.values() == x.values());
  copy_elements(swapped(x.view(), 0, 1), turned.view());
  CHECK(turned.values() == Values(xt::transpose(x.values())));
}

TEST(conversion_rounds_once_to_the_nearest) {
  const Threads two(2);
  for (const DType from : kFloats)
    for (const DType to : kFloats)
      for (const std::size_t n : {1u, 2u, 3u, 5u, 8u, 15u, 16u, 17u, 33u, 64u, 67u, 257u, 1029u, 40001u}) {
        if (n > 2000 && from != DType::f32) continue;
        const Note note(words("from", name_of(from), "to", name_of(to), "n", n));
        const Array x(normal({3, n}, n) * 3, from, 5);
        const Array wanted(x.values(), to, 3);
        for_each_isa([&] {
          const Array out = result({3, n}, to);
          convert_elements(x.view(), out.view());
          CHECK(out.bytes() == wanted.bytes());
          if (from == to) return;
          const Array parts = result({3, n}, to);
          const ConvertArgs args{x.rows(), parts.rows(), 50};
          const int64_t items = 3 * ceil_div(static_cast<int64_t>(n), 50);
          kernels().convert(args, 0, items / 3);
          kernels().convert(args, items / 3, items);
          CHECK(parts.bytes() == wanted.bytes());
        });
      }
}

TEST(embedding_picks_rows_and_rounds_them_once) {
  const std::vector<int64_t> ids{3, 0, 3, 6, 5, 1};
  for (const DType from : kFloats)
    for (const DType to : kFloats)
      for (const std::size_t n : {1u, 7u, 64u, 1029u}) {
        const Note note(words("from", name_of(from), "to", name_of(to), "n", n));
        const Array weight(normal({7, n}, n), from, 2);
        const Values values = weight.values();
        Values picked = Values::from_shape({2, 3, n});
        for (std::size_t i = 0; i < ids.size(); ++i)
          xt::view(picked, i / 3, i % 3) = xt::view(values, static_cast<std::size_t>(ids[i]));
        const Array wanted(picked, to, 3);
        for_each_isa([&] {
          const Array out = result({2, 3, n}, to);
          embedding(weight.view(), ids.data(), out.view());
          CHECK(out.bytes() == wanted.bytes());
        });
      }
}

TEST(each_entry_is_repeated_in_its_place) {
  for (const DType dtype : kAll)
    for (const int axis : {0, 1, 2})
      for (const int64_t n : {1, 2, 5}) {
        const Note note(words("dtype", name_of(dtype), "axis", axis, "n", n));
        const Array x(counted({3, 4, 5}, dtype), dtype, 1);
        Shape shape{3, 4, 5};
        shape[static_cast<std::size_t>(axis)] *= static_cast<std::size_t>(n);
        const Array out = result(shape, dtype);
        repeat(x.view(), axis, n, out.view());
        const Values found = out.values(), given = x.values();
        for (std::size_t i = 0; i < found.size(); ++i) {
          auto index = xt::unravel_index(i, shape);
          const double repeated = found.element(index.begin(), index.end());
          index[static_cast<std::size_t>(axis)] /= n;
          CHECK_EQUAL(repeated, given.element(index.begin(), index.end()));
        }
        CHECK(out.gaps_are_whole());
      }
}

TEST(causal_masks_show_the_keys_up_to_the_diagonal) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : kAll)
    for (const int64_t offset : {INT64_MIN, int64_t{-9}, int64_t{-2}, int64_t{0}, int64_t{3}, INT64_MAX}) {
      const Note note(words("dtype", name_of(dtype), "offset", offset));
      const Array out(Values(Shape{4, 7}, 1.0), dtype);
      causal_mask(offset, out.view());
      const Values found = out.values();
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 7; ++j) {
          const bool seen = static_cast<__int128>(j) <= static_cast<__int128>(i) + offset;
          const double wanted = dtype == DType::boolean ? seen : seen ? 0 : -infinity;
          CHECK_EQUAL(found(static_cast<std::size_t>(i), static_cast<std::size_t>(j)), wanted);
        }
    }
}

TEST(nothing_is_moved_where_there_is_nothing) {
  const Array none(Values(Shape{2, 0, 3}), DType::f32), weight(Values(Shape{0, 3}), DType::f32);
  copy_elements(none.view(), none.view());
  convert_elements(none.view(), Array(Values(Shape{2, 0, 3}), DType::f64).view());
  embedding(weight.view(), nullptr, none.view());
  repeat(none.view(), 1, int64_t{1} << 62, none.view());
  causal_mask(0, Array(Values(Shape{0, 5}), DType::boolean).view());
}

}  // namespace simdformer::tests
