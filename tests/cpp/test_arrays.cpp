// Views, rows, the dtypes of the tests themselves, and the choice of an instruction set.
#include <cctype>
#include <cmath>
#include <cstring>
#include <vector>

#include "arrays.hpp"
#include "check.hpp"

namespace simdformer::tests {
namespace {

// A view of floats with strides in elements.
View view_of(float* data, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  View view;
  view.data = reinterpret_cast<char*>(data);
  view.rank = static_cast<int>(shape.size());
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = shape[static_cast<std::size_t>(axis)];
    view.strides[axis] = strides[static_cast<std::size_t>(axis)] * 4;
  }
  return view;
}

// Offsets of all rows in elements, by the definition.
std::vector<int64_t> row_offsets(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  std::vector<int64_t> offsets{0};
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) {
    std::vector<int64_t> next;
    for (const int64_t offset : offsets)
      for (int64_t i = 0; i < shape[axis]; ++i) next.push_back(offset + i * strides[axis]);
    offsets = next;
  }
  return offsets;
}

}  // namespace

TEST(rows_are_those_of_the_view_merged_where_strides_allow) {
  struct Case {
    std::vector<int64_t> shape, strides;
    int rank;  // of the merged leading axes
  };
  const Case cases[] = {
      {{}, {}, 0},
      {{5}, {1}, 0},
      {{3, 5}, {5, 1}, 1},
      {{1, 5}, {77, 1}, 0},                       // one row: its stride is of no interest
      {{2, 3, 4}, {12, 4, 1}, 1},                 // contiguous
      {{2, 3, 4}, {30, 10, 1}, 1},                // gaps after each row
      {{2, 3, 4}, {40, 10, 1}, 2},                // and after each three
      {{2, 3, 4}, {4, 8, 1}, 2},                  // transposed
      {{2, 3, 4}, {0, 0, 1}, 1},                  // one row, six times
      {{2, 3, 4}, {0, 4, 1}, 2},                  // three rows, twice
      {{2, 3, 4}, {-12, -4, 1}, 1},               // backwards
      {{2, 1, 3, 1, 4}, {12, 99, 4, -99, 1}, 1},  // axes of one element
      {{2, 2, 2, 2, 3}, {24, 12, 6, 3, 1}, 1},    // five axes
      {{2, 2, 2, 2, 3}, {48, 12, 6, 3, 1}, 2},
      {{2, 0, 4}, {12, 4, 1}, 1},
      {{3, 0}, {0, 1}, 1},
  };
  std::vector<float> memory(400);
  float* const middle = memory.data() + 200;
  for (const Case& c : cases) {
    const Note note(words("case", &c - cases));
    const Rows rows = rows_of(view_of(middle, c.shape, c.strides));
    const std::vector<int64_t> offsets = row_offsets(c.shape, c.strides);
    CHECK_EQUAL(rows.count, static_cast<int64_t>(offsets.size()));
    CHECK_EQUAL(rows.length, c.shape.empty() ? 1 : c.shape.back());
    if (rows.count > 0) CHECK_EQUAL(rows.rank, c.rank);
    for (int64_t begin = 0; begin < rows.count; ++begin) {  // a cursor may start at every row
      RowCursor row(rows, begin);
      for (int64_t i = begin; i < rows.count; ++i, row.next())
        CHECK_EQUAL(row.as<float>() - middle, offsets[static_cast<std::size_t>(i)]);
    }
  }
}

TEST(views_count_their_elements) {
  float one = 0;
  CHECK_EQUAL(view_of(&one, {}, {}).size(), 1);
  CHECK_EQUAL(view_of(&one, {7}, {0}).size(), 7);
  CHECK_EQUAL(view_of(&one, {2, 3, 0, 5}, {0, 0, 0, 0}).size(), 0);
  CHECK_EQUAL(view_of(&one, {1 << 20, 1 << 20, 1 << 20}, {0, 0, 0}).size(), int64_t{1} << 60);
}

TEST(dtypes_have_their_sizes) {
  CHECK_EQUAL(itemsize(DType::f64), 8);
  CHECK_EQUAL(itemsize(DType::f32), 4);
  CHECK_EQUAL(itemsize(DType::f16), 2);
  CHECK_EQUAL(itemsize(DType::bf16), 2);
  CHECK_EQUAL(itemsize(DType::boolean), 1);
  for (const DType dtype : kFloats) CHECK(accumulator(dtype) == (dtype == DType::f64 ? dtype : DType::f32));
}

TEST(the_tests_round_to_each_dtype_as_the_compiler_does) {
  CHECK_EQUAL(encode(1.0, DType::f16), 0x3c00u);
  CHECK_EQUAL(encode(-2.0, DType::bf16), 0xc000u);
  CHECK_EQUAL(encode(65504.0, DType::f16), 0x7bffu);
  CHECK_EQUAL(encode(65520.0, DType::f16), 0x7c00u);  // halfway to 65536, and even
  CHECK_EQUAL(encode(0x1p-24, DType::f16), 1u);
  CHECK_EQUAL(encode(0x1p-25, DType::f16), 0u);  // halfway to nothing
  for (const DType dtype : {DType::f16, DType::bf16})
    for (uint64_t bits = 0; bits < 0x10000; ++bits)
      if (const double value = decode(bits, dtype); !std::isnan(value))
        CHECK_EQUAL(encode(value, dtype), bits);
  for (double value : {0.1, 1e-40, 3e38, 1e300, -1e-46, 0.0, -0.0}) {
    const float narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    CHECK_EQUAL(encode(value, DType::f32), bits);
    CHECK_EQUAL(decode(bits, DType::f32), static_cast<double>(narrow));
    CHECK_EQUAL(decode(encode(value, DType::f64), DType::f64), value);
  }
}

TEST(each_instruction_set_has_a_full_table_of_its_own) {
  std::vector<const KernelTable*> tables;
  for_each_isa([&] {
    const KernelTable& table = kernels();
    CHECK_EQUAL(std::string(table.isa), current_isa());
    for (const KernelTable* other : tables) CHECK(other != &table && other->linear != table.linear);
    tables.push_back(&table);
    CHECK(table.activation && table.swiglu && table.softmax && table.rms_norm && table.layer_norm);
    CHECK(table.rope_table && table.rope && table.convert && table.pack && table.unpack && table.pack_rows);
    CHECK(table.linear && table.attention_pack && table.attention_prefill && table.attention_decode &&
          table.attention_merge && table.fma_chains && table.read_memory);
    CHECK(table.flops_per_step > 0);
  });
  CHECK(!tables.empty());
}

TEST(the_best_instruction_set_is_the_default_and_names_come_in_any_case) {
  const std::vector<std::string> here = available_isas(), compiled = compiled_isas();
  CHECK(!here.empty() && compiled.size() >= here.size());
  CHECK_EQUAL(current_isa(), here.back());
  for (std::string name : here) {
    name[0] = static_cast<char>(std::toupper(name[0]));
    CHECK(set_isa(name));
  }
  for (const char* name : {"", "sse9", "avx", "avx22", " avx2", "neo"}) CHECK(!set_isa(name));
  CHECK_EQUAL(current_isa(), here.back());
}

TEST(the_limits_of_the_machine_are_computed_by_each_instruction_set) {
  std::vector<float> ones(10007, 1.0f);
  for_each_isa([&] {
    for (const int64_t n : {0, 1, 5, 64, 1000, 10007}) {
      float sum = 1;
      kernels().read_memory(ones.data(), &sum, 0, n);
      CHECK_EQUAL(sum, static_cast<float>(n + 1));
    }
    float sink = 0;
    kernels().fma_chains(&sink, 0, 1000);
    const auto lanes = static_cast<double>(kernels().flops_per_step) / 2;  // all chains near 0.5
    CHECK(std::fabs(static_cast<double>(sink) - lanes / 2) < lanes * 1e-3);
  });
}

}  // namespace simdformer::tests
