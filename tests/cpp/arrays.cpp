#include "arrays.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "check.hpp"

namespace simdformer::tests {
namespace {

struct Format {
  const char* name;
  int mantissa, bias;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {"float64", 52, 1023};
    case DType::f32:
      return {"float32", 23, 127};
    case DType::f16:
      return {"float16", 10, 15};
    case DType::bf16:
      return {"bfloat16", 7, 127};
    default:
      return {"bool", 0, 0};
  }
}

}  // namespace

const char* name_of(DType dtype) { return format_of(dtype).name; }
double epsilon(DType dtype) { return std::ldexp(1.0, -format_of(dtype).mantissa); }

// In units of the last place, which are those of the smallest normal number for all below it, a number is an
// integer. Added to the exponent's field it carries into it where rounding reaches the next power of two.
uint64_t encode(double value, DType dtype) {
  if (dtype == DType::boolean) return value != 0;
  const Format format = format_of(dtype);
  const uint64_t infinity = (2 * static_cast<uint64_t>(format.bias) + 1) << format.mantissa;
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (8 * itemsize(dtype) - 1) : 0;
  if (std::isnan(value)) return sign | infinity | (uint64_t{1} << (format.mantissa - 1));
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  int exponent = 0;
  std::frexp(value, &exponent);
  exponent = std::max(exponent - 1, 1 - format.bias);
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa - exponent));
  const uint64_t field = static_cast<uint64_t>(exponent + format.bias - 1) << format.mantissa;
  return sign | std::min(field + static_cast<uint64_t>(units), infinity);
}

double decode(uint64_t bits, DType dtype) {
  if (dtype == DType::boolean) return static_cast<double>(bits);
  const Format format = format_of(dtype);
  const int sign_bit = static_cast<int>(8 * itemsize(dtype)) - 1;
  const uint64_t magnitude = bits & ((uint64_t{1} << sign_bit) - 1);
  const uint64_t fraction = magnitude & ((uint64_t{1} << format.mantissa) - 1);
  const int field = static_cast<int>(magnitude >> format.mantissa);
  double value;
  if (field == 2 * format.bias + 1)
    value = fraction == 0 ? HUGE_VAL : std::nan("");
  else if (field == 0)
    value = std::ldexp(static_cast<double>(fraction), 1 - format.bias - format.mantissa);
  else
    value = std::ldexp(static_cast<double>(fraction | (uint64_t{1} << format.mantissa)),
                       field - format.bias - format.mantissa);
  return bits >> sign_bit ? -value : value;
}

Values normal(const Shape& shape, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> draw;
  Values values = Values::from_shape(shape);
  for (double& value : values) value = draw(engine);
  return values;
}

Values product(const Values& x, const Values& w) {
  const std::size_t depth = x.shape(1);
  Values y = Values::from_shape({x.shape(0), w.shape(0)});
  for (std::size_t i = 0; i < y.shape(0); ++i)
    for (std::size_t j = 0; j < y.shape(1); ++j)
      y(i, j) =
          std::inner_product(x.data() + i * depth, x.data() + (i + 1) * depth, w.data() + j * depth, 0.0);
  return y;
}

// ---- arrays -----------------------------------------------------------------------------------------------

Array::Array(const Values& values, DType dtype, int64_t gap)
    : shape_(values.shape().begin(), values.shape().end()), dtype_(dtype), gap_(gap) {
  const int64_t count = static_cast<int64_t>(values.size());
  const int64_t length = shape_.empty() ? 1 : static_cast<int64_t>(shape_.back());
  const int64_t rows = length == 0 ? 0 : count / length;
  nbytes_ = itemsize(dtype) * (rows == 0 ? 0 : count + (rows - 1) * gap);
  memory_.reset(new char[static_cast<std::size_t>(nbytes_)]);
  std::memset(memory_.get(), 0xff, static_cast<std::size_t>(nbytes_));
  for_each([&](int64_t i, char* element) {
    const uint64_t bits = encode(values.flat(static_cast<std::size_t>(i)), dtype_);
    std::memcpy(element, &bits,
                static_cast<std::size_t>(itemsize(dtype_)));  // little-endian, as all we run on
  });
}

template <class Visit>
void Array::for_each(Visit visit) const {
  const int64_t length = shape_.empty() ? 1 : static_cast<int64_t>(shape_.back());
  int64_t count = 1;
  for (const std::size_t extent : shape_) count *= static_cast<int64_t>(extent);
  for (int64_t i = 0; i < count; ++i) visit(i, memory_.get() + itemsize(dtype_) * (i + i / length * gap_));
}

View Array::view() const {
  View view;
  view.data = memory_.get();
  view.dtype = dtype_;
  view.rank = static_cast<int>(shape_.size());
  int64_t stride = itemsize(dtype_);
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.shape[axis] = static_cast<int64_t>(shape_[static_cast<std::size_t>(axis)]);
    view.strides[axis] = stride;
    stride *= view.shape[axis];
    if (axis == view.rank - 1) stride += itemsize(dtype_) * gap_;
  }
  return view;
}

Values Array::values() const {
  Values values = Values::from_shape(shape_);
  for_each([&](int64_t i, const char* element) {
    uint64_t bits = 0;
    std::memcpy(&bits, element, static_cast<std::size_t>(itemsize(dtype_)));
    values.flat(static_cast<std::size_t>(i)) = decode(bits, dtype_);
  });
  return values;
}

std::string Array::bytes() const { return std::string(memory_.get(), static_cast<std::size_t>(nbytes_)); }

bool Array::gaps_are_whole() const {
  std::string rest = bytes();
  for_each([&](int64_t, const char* element) {
    std::memset(&rest[static_cast<std::size_t>(element - memory_.get())], 0xff,
                static_cast<std::size_t>(itemsize(dtype_)));
  });
  return std::all_of(rest.begin(), rest.end(), [](char byte) { return byte == '\xff'; });
}

Array result(const Shape& shape, DType dtype) { return Array(Values(shape, std::nan("")), dtype, 3); }

// ---- comparison -------------------------------------------------------------------------------------------

void check_close(const Array& got, const Values& wanted, const Values& scale, double ulps) {
  const Values found = got.values();
  CHECK(found.shape() == wanted.shape() && found.shape() == scale.shape());
  CHECK(got.gaps_are_whole());
  const DType dtype = got.dtype();
  const double arithmetic = epsilon(accumulator(dtype));
  const double least = decode(1, dtype);  // the smallest subnormal: numbers stop getting finer there
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double a = found.flat(i), b = wanted.flat(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double rounding = is_16_bit(dtype) ? std::fabs(b) * epsilon(dtype) / 2 : 0;
    const double allowed = ulps * arithmetic * scale.flat(i) + rounding + least;
    if (std::fabs(a - b) <= allowed) continue;
    std::ostringstream out;
    out.precision(17);
    out << name_of(dtype) << " element " << i << " of " << found.size() << " is " << a << ", wanted " << b
        << ", error " << std::fabs(a - b) << ", allowed " << allowed;
    fail(__FILE__, __LINE__, out.str());
  }
}

}  // namespace simdformer::tests
