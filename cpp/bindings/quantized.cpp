// QuantizedPanels, of which simdformer.QuantizedWeight is made. That class says more about what is wrong.
#include "core/quantized.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/weights.hpp"

namespace simdformer {

namespace {

constexpr const char *kQuantize = "quantize", *kQuantizedWeight = "QuantizedWeight";

const QuantizedType& read_type(py::handle name) {
  const Arg arg{kQuantizedWeight, "type"};
  if (!PyUnicode_Check(name.ptr())) refuse_type(arg, type_of(name), "the name of one");
  const QuantizedType* const type = quantized_type(text_of(name).c_str());
  if (type == nullptr) refuse_value(arg, "is " + shown(name), "a name of quantization_types()");
  return *type;
}

void check_divides(const Arg& arg, const QuantizedType& type, int64_t inputs) {
  if (inputs % type.block != 0)
    refuse_value(arg, "has " + std::to_string(inputs) + " inputs",
                 "a multiple of " + std::to_string(type.block) + ", the block of " + type.name);
}

// (O, I) of a type: two extents.
struct Extents {
  const QuantizedType& type;
  int64_t rows, inputs;

  Extents(py::handle name, py::handle rows, py::handle inputs)
      : type(read_type(name)),
        rows(read_length({kQuantizedWeight, "rows"}, rows)),
        inputs(read_length({kQuantizedWeight, "inputs"}, inputs)) {
    check_divides({kQuantizedWeight, "a row"}, type, this->inputs);
  }
};

// A weight that `fill_quantized` completes, piece by piece.
std::unique_ptr<QuantizedWeight> empty_quantized(py::handle type, py::handle rows, py::handle inputs) {
  const Extents extents(type, rows, inputs);
  return std::make_unique<QuantizedWeight>(extents.type, extents.rows, extents.inputs);
}

int64_t size_of(py::handle type, py::handle rows, py::handle inputs) {
  const Extents extents(type, rows, inputs);
  return QuantizedWeight::size_of(extents.type.format, extents.rows, extents.inputs);
}

// The type of a weight that was made from blocks, and not from groups.
const QuantizedType& type_of_blocks(const QuantizedWeight& weight) {
  if (weight.type() == nullptr) refuse_value({kQuantizedWeight, "weight"}, "was made from groups", "blocks");
  return *weight.type();
}

int64_t row_bytes_of(const QuantizedWeight& weight) {
  const QuantizedType& type = type_of_blocks(weight);
  return weight.cols() / type.block * type.nbytes;
}

// blocks: bytes (rows, bytes of a row)
void fill_quantized(QuantizedWeight& weight, py::handle first_object, py::handle blocks_object) {
  const Arg arg{kQuantizedWeight, "blocks"};
  const int64_t first = read_integer({kQuantizedWeight, "first"}, first_object),
                row_bytes = row_bytes_of(weight);
  Input blocks = read_array(arg, blocks_object, Accept::bytes);
  check_rank(arg, blocks.view, 2, "(rows, bytes of a row)");
  const int64_t count = blocks.view.shape[0];
  check_piece(arg, count, first, weight.rows());
  if (blocks.view.shape[1] != row_bytes)
    refuse_value(arg, "has shape " + shape_text(blocks.view),
                 "rows of " + std::to_string(row_bytes) + " bytes");
  contiguous(arg, blocks);
  NoGil nogil;
  weight.fill(reinterpret_cast<const uint8_t*>(blocks.view.data), first, count);
}

Input read_group_numbers(const Arg& arg, py::handle object, const Input* like) {
  Input numbers = read_array(arg, object);
  check_rank(arg, numbers.view, 2, "(O, I / group)");
  if (numbers.view.dtype != DType::f32)
    refuse_type(arg, std::string("has dtype ") + name_of(numbers.view.dtype), "float32");
  if (like != nullptr) check_same_shape(arg, numbers.view, {kQuantizedWeight, "scales"}, like->view);
  contiguous(arg, numbers);
  return numbers;
}

std::unique_ptr<QuantizedWeight> from_groups(py::handle codes_object, py::handle scales_object,
                                             py::handle minimums_object, py::handle bits_object) {
  const Arg codes_arg{kQuantizedWeight, "codes"}, scales_arg{kQuantizedWeight, "scales"},
      bits_arg{kQuantizedWeight, "bits"};
  Input codes = read_array(codes_arg, codes_object, Accept::bytes);
  check_rank(codes_arg, codes.view, 2, "(O, I)");
  contiguous(codes_arg, codes);
  const Input scales = read_group_numbers(scales_arg, scales_object, nullptr);
  const bool has_minimums = !minimums_object.is_none();
  Input minimums;
  if (has_minimums) minimums = read_group_numbers({kQuantizedWeight, "minimums"}, minimums_object, &scales);
  const int64_t rows = codes.view.shape[0], inputs = codes.view.shape[1], groups = scales.view.shape[1];
  const int64_t group = groups == 0 ? 0 : inputs / groups, bits = read_integer(bits_arg, bits_object);
  if (scales.view.shape[0] != rows || group * groups != inputs ||
      (group != 32 && group != 64 && group != 128))
    refuse_value(
        scales_arg, "has shape " + shape_text(scales.view),
        "(O, I / group) with groups of 32, 64 or 128 beside codes of shape " + shape_text(codes.view));
  if (bits != 4 && bits != 8) refuse_value(bits_arg, "is " + std::to_string(bits), "4 or 8");
  const auto floats = [](const Input& input) { return reinterpret_cast<const float*>(input.view.data); };
  const QuantizedWeight::Groups parts{static_cast<int>(bits), static_cast<int>(group),
                                      reinterpret_cast<const uint8_t*>(codes.view.data), floats(scales),
                                      has_minimums ? floats(minimums) : nullptr};
  NoGil nogil;
  return std::make_unique<QuantizedWeight>(parts, rows, inputs);
}

std::unique_ptr<QuantizedWeight> from_floats(py::handle type_name, py::handle weight) {
  const Arg arg{kQuantize, "weight"};
  const QuantizedType& type = read_type(type_name);
  Input input = read_array(arg, weight);
  check_rank(arg, input.view, 2, "(O, I): a row for each output");
  check_divides(arg, type, input.view.shape[1]);
  if (input.view.dtype == DType::f64) convert(arg, input, DType::f32);
  unit_last_axis(arg, input);
  std::unique_ptr<QuantizedWeight> made;
  {
    NoGil nogil;
    made = std::make_unique<QuantizedWeight>(type, input.view);
  }
  if (!std::isfinite(made->loss().squares))
    refuse_value(arg, "holds NaN, infinity or what is beyond float32", "finite numbers");
  if (!std::isfinite(made->loss().missed)) {
    char largest[32];
    std::snprintf(largest, sizeof(largest), "%.3g", static_cast<double>(made->loss().largest));
    refuse_value(arg,
                 "holds " + std::string(largest) + ", too large for the scale of a block of " + type.name,
                 "numbers whose scale a float16 can hold");
  }
  return made;
}

// Relative and RMS; 0 where nothing was to lose.
double error_of(const QuantizedWeight& weight) {
  const QuantizingLoss& loss = weight.loss();
  return loss.squares > 0 ? std::sqrt(loss.missed / loss.squares) : 0.0;
}

py::object blocks_of(const QuantizedWeight& weight) {
  const int64_t shape[] = {weight.rows(), row_bytes_of(weight)};
  uint8_t* data;
  py::object blocks = new_integers({"blocks", "weight"}, 2, shape, data);
  {
    NoGil nogil;
    weight.write_blocks(data);
  }
  return blocks;
}

py::tuple groups_of(const QuantizedWeight& weight) {
  const Arg arg{"dequantize", "weight"};
  const int64_t shape[] = {weight.rows(), weight.cols()};
  const int64_t of_groups[] = {weight.rows(), weight.cols() / weight.format().group};
  uint8_t* codes_data;
  View scales_view, minimums_view;
  py::object codes = new_integers(arg, 2, shape, codes_data);
  py::object scales = new_array(arg, DType::f32, 2, of_groups, scales_view), minimums = py::none();
  if (weight.format().has_minimum) minimums = new_array(arg, DType::f32, 2, of_groups, minimums_view);
  {
    NoGil nogil;
    weight.write_groups(codes_data, reinterpret_cast<float*>(scales_view.data),
                        reinterpret_cast<float*>(minimums_view.data));
  }
  return py::make_tuple(codes, scales, minimums);
}

py::object values_of(const QuantizedWeight& weight) {
  const int64_t shape[] = {weight.rows(), weight.cols()};
  View view;
  py::object values = new_array({"dequantize", "weight"}, DType::f32, 2, shape, view);
  {
    NoGil nogil;
    weight.dequantize(view);
  }
  return values;
}

py::object name_of_type(const QuantizedWeight& weight) {
  return weight.type() == nullptr ? py::object(py::none()) : py::str(weight.type()->name);
}

}  // namespace

void bind_quantized(py::module_& module) {
  py::class_<QuantizedWeight>(module, "QuantizedPanels",
                              "A weight (O, I) in few bits, as the kernels read it; see QuantizedWeight.")
      .def(py::init(&from_floats), py::arg("type"), py::arg("weight"))
      .def(py::init(&empty_quantized), py::arg("type"), py::arg("rows"), py::arg("inputs"))
      .def(py::init(&from_groups), py::arg("codes"), py::arg("scales"), py::arg("minimums"), py::arg("bits"))
      .def_property_readonly("shape", &shape_of<QuantizedWeight>, "(O, I): outputs and inputs")
      .def_property_readonly(
          "nbytes", [](const QuantizedWeight& weight) { return weight.nbytes(); },
          "bytes it takes, with its padding")
      .def_property_readonly("_group", [](const QuantizedWeight& weight) { return weight.format().group; })
      .def_property_readonly("_bits", [](const QuantizedWeight& weight) { return weight.format().bits; })
      .def_property_readonly("_type", &name_of_type)
      .def_static("_size_of", &size_of)
      .def("_fill", &fill_quantized)
      .def_property_readonly("_error", &error_of)
      .def("_blocks", &blocks_of)
      .def("_groups", &groups_of)
      .def("_values", &values_of);
}

}  // namespace simdformer
