// QuantizedPanels, of which simdformer.QuantizedWeight is made. That class has checked what arrives here:
// dtypes, shapes, and that blocks and groups divide the inputs.
#include "core/quantized.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {

namespace {

template <class T>
using Contiguous = py::array_t<T, py::array::c_style>;

std::unique_ptr<QuantizedWeight> from_blocks(const std::string& type, const Contiguous<uint8_t>& blocks,
                                             int64_t inputs) {
  const QuantizedType& found = *quantized_type(type.c_str());
  const int64_t rows = blocks.shape(0);
  const uint8_t* data = blocks.data();
  NoGil nogil;
  return std::make_unique<QuantizedWeight>(found, data, rows, inputs);
}

// A weight that `fill` completes, piece by piece.
std::unique_ptr<QuantizedWeight> empty(const std::string& type, int64_t rows, int64_t inputs) {
  return std::make_unique<QuantizedWeight>(*quantized_type(type.c_str()), rows, inputs);
}

void fill(QuantizedWeight& weight, int64_t first, const Contiguous<uint8_t>& blocks) {
  const QuantizedType& type = *weight.type();
  const int64_t count = blocks.shape(0);
  const Arg arg{"QuantizedWeight", "blocks"};
  check_piece(arg, count, first, weight.rows());
  const int64_t row_bytes = weight.cols() / type.block * type.nbytes;
  if (blocks.size() != count * row_bytes)
    refuse_value(arg, "has " + std::to_string(blocks.size()) + " bytes", std::to_string(count * row_bytes));
  const uint8_t* data = blocks.data();
  NoGil nogil;
  weight.fill(data, first, count);
}

int64_t size_of(const std::string& type, int64_t rows, int64_t inputs) {
  return QuantizedWeight::size_of(quantized_type(type.c_str())->format, rows, inputs);
}

std::unique_ptr<QuantizedWeight> from_groups(const Contiguous<uint8_t>& codes,
                                             const Contiguous<float>& scales,
                                             const std::optional<Contiguous<float>>& minimums, int bits) {
  const int64_t rows = codes.shape(0), inputs = codes.shape(1);
  const int group = static_cast<int>(inputs / scales.shape(1));
  const QuantizedWeight::Groups groups{bits, group, codes.data(), scales.data(),
                                       minimums ? minimums->data() : nullptr};
  NoGil nogil;
  return std::make_unique<QuantizedWeight>(groups, rows, inputs);
}

std::unique_ptr<QuantizedWeight> from_floats(const std::string& type, py::handle weight) {
  const Arg arg{"quantize", "weight"};
  Input input = read_array(arg, weight);
  if (input.view.dtype == DType::f64) input = converted(arg, input, DType::f32);
  unit_last_axis(arg, input);
  const QuantizedType& found = *quantized_type(type.c_str());
  std::unique_ptr<QuantizedWeight> made;
  {
    NoGil nogil;
    made = std::make_unique<QuantizedWeight>(found, input.view);
  }
  if (!std::isfinite(made->loss().squares))
    refuse_value(arg, "holds NaN, infinity or what is beyond float32", "finite numbers");
  if (!std::isfinite(made->loss().missed)) {
    char largest[32];
    std::snprintf(largest, sizeof(largest), "%.3g", static_cast<double>(made->loss().largest));
    refuse_value(arg, "holds " + std::string(largest) + ", too large for the scale of a block of " + type,
                 "numbers whose scale a float16 can hold");
  }
  return made;
}

// Relative and RMS; 0 where nothing was to lose.
double error_of(const QuantizedWeight& weight) {
  const QuantizingLoss& loss = weight.loss();
  return loss.squares > 0 ? std::sqrt(loss.missed / loss.squares) : 0.0;
}

Contiguous<uint8_t> blocks_of(const QuantizedWeight& weight) {
  const QuantizedType& type = *weight.type();
  Contiguous<uint8_t> blocks({weight.rows(), weight.cols() / type.block * type.nbytes});
  uint8_t* data = blocks.mutable_data();
  NoGil nogil;
  weight.write_blocks(data);
  return blocks;
}

py::tuple groups_of(const QuantizedWeight& weight) {
  const int64_t rows = weight.rows(), groups = weight.cols() / weight.format().group;
  Contiguous<uint8_t> codes({rows, weight.cols()});
  Contiguous<float> scales({rows, groups});
  std::optional<Contiguous<float>> minimums;
  if (weight.format().has_minimum) minimums.emplace(std::vector<int64_t>{rows, groups});
  uint8_t* codes_data = codes.mutable_data();
  float *scales_data = scales.mutable_data(), *minimums_data = minimums ? minimums->mutable_data() : nullptr;
  {
    NoGil nogil;
    weight.write_groups(codes_data, scales_data, minimums_data);
  }
  return py::make_tuple(std::move(codes), std::move(scales), std::move(minimums));
}

py::object values_of(const QuantizedWeight& weight) {
  const int64_t shape[] = {weight.rows(), weight.cols()};
  View view;
  py::object values = new_array({"dequantize", "weight"}, DType::f32, 2, shape, view);
  NoGil nogil;
  weight.dequantize(view);
  return values;
}

}  // namespace

void bind_quantized(py::module_& module) {
  py::class_<QuantizedWeight>(module, "QuantizedPanels",
                              "A weight (O, I) in few bits, as the kernels read it; see QuantizedWeight.")
      .def(py::init(&from_floats), py::arg("type"), py::arg("weight"))
      .def(py::init(&from_blocks), py::arg("type"), py::arg("blocks"), py::arg("inputs"))
      .def(py::init(&empty), py::arg("type"), py::arg("rows"), py::arg("inputs"))
      .def(py::init(&from_groups), py::arg("codes"), py::arg("scales"), py::arg("minimums"), py::arg("bits"))
      .def_property_readonly(
          "shape", [](const QuantizedWeight& weight) { return py::make_tuple(weight.rows(), weight.cols()); },
          "(O, I): outputs and inputs")
      .def_property_readonly(
          "nbytes", [](const QuantizedWeight& weight) { return weight.nbytes(); },
          "bytes it takes, with its padding")
      .def_property_readonly("_group", [](const QuantizedWeight& weight) { return weight.format().group; })
      .def_property_readonly("_bits", [](const QuantizedWeight& weight) { return weight.format().bits; })
      .def_property_readonly("_type",
                             [](const QuantizedWeight& weight) -> std::optional<std::string> {
                               if (weight.type() == nullptr) return std::nullopt;
                               return weight.type()->name;
                             })
      .def_static("_size_of", &size_of)
      .def("_fill", &fill)
      .def_property_readonly("_error", &error_of)
      .def("_blocks", &blocks_of)
      .def("_groups", &groups_of)
      .def("_values", &values_of);
}

}  // namespace simdformer
