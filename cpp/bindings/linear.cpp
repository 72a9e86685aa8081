// linear, linear_chosen, pack, PackedWeight.
#include "core/linear.hpp"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "core/copy.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

constexpr const char* kLinear = "linear";
constexpr Arg kX{kLinear, "x"};

// ---- packed weights -------------------------------------------------------------------------------------

std::unique_ptr<PackedWeight> pack(py::handle weight_object) {
  const Arg arg{"pack", "weight"};
  Input weight = read_array(arg, weight_object);
  check_rank(arg, weight.view, 2, "(O, I): a row for each output");
  unit_last_axis(arg, weight);
  NoGil nogil;
  return std::make_unique<PackedWeight>(weight.view);
}

// A weight that `fill` completes, piece by piece.
std::unique_ptr<PackedWeight> empty(int64_t rows, int64_t cols, py::handle dtype) {
  return std::make_unique<PackedWeight>(rows, cols, read_dtype({"pack", "dtype"}, dtype, Accept::floats));
}

// Rows from `first` on, converted to the weight's dtype.
void fill(PackedWeight& weight, int64_t first, py::handle rows_object) {
  const Arg arg{"pack", "rows"};
  Input given = read_array(arg, rows_object);
  check_rank(arg, given.view, 2, "(rows, I)");
  check_piece(arg, given.view.shape[0], first, weight.rows());
  if (given.view.shape[1] != weight.cols())
    refuse_value(arg, "has shape " + shape_text(given.view), "rows of " + std::to_string(weight.cols()));
  unit_last_axis(arg, given);
  Input rows = given;
  const bool converts = given.view.dtype != weight.dtype();
  if (converts) rows.owner = new_array(arg, weight.dtype(), 2, given.view.shape, rows.view);
  NoGil nogil;
  if (converts) convert_elements(given.view, rows.view);
  weight.fill(first, rows.view);
}

py::object unpack(const PackedWeight& weight) {
  const int64_t shape[] = {weight.rows(), weight.cols()};
  View view;
  py::object array = new_array({"unpack", "weight"}, weight.dtype(), 2, shape, view);
  {
    NoGil nogil;
    weight.unpack(view);
  }
  return array;
}

std::string describe(const PackedWeight& weight) {
  const int64_t shape[] = {weight.rows(), weight.cols()};
  return "PackedWeight(shape=" + shape_text(2, shape) + ", dtype=" + name_of(weight.dtype()) + ")";
}

// ---- linear ---------------------------------------------------------------------------------------------

// One weight with its bias and its result: what they are, checked, and what keeps them alive.
struct Part {
  Input weight, bias;
  const PackedWeight* packed = nullptr;
  const QuantizedWeight* quantized = nullptr;
  int64_t shape[2];  // of the weight
  DType dtype;       // that the weight is multiplied as
  bool has_bias = false;
  std::optional<Output> out;

  bool is_plain() const { return packed == nullptr && quantized == nullptr; }
};

template <class Weight>
const Weight* read_made(py::handle object, Part& part) {
  const auto* weight = object.cast<const Weight*>();
  part.shape[0] = weight->rows();
  part.shape[1] = weight->cols();
  return weight;
}

void read_weight(const Arg& arg, py::handle object, const View& x, Part& part) {
  if (py::isinstance<PackedWeight>(object)) {
    part.packed = read_made<PackedWeight>(object, part);
    part.dtype = part.packed->dtype();
  } else if (py::isinstance<QuantizedWeight>(object)) {
    part.quantized = read_made<QuantizedWeight>(object, part);
    part.dtype = DType::f32;
    if (x.dtype == DType::f64)
      refuse_type(arg, "is quantized", "an x of float32, float16 or bfloat16, not float64",
                  "weight.dequantize(\"float64\") has all of its values");
  } else {
    part.weight = read_array(arg, object);
    check_rank(arg, part.weight.view, 2, "(O, I): a row for each output");
    std::copy_n(part.weight.view.shape, 2, part.shape);
    part.dtype = part.weight.view.dtype;
  }
  check_parameter_dtype(arg, part.dtype, kX, x.dtype);
  const int64_t needed = x.shape[x.rank - 1];
  if (part.shape[1] == needed) return;
  refuse_value(
      arg, "has shape " + shape_text(2, part.shape),
      "(O, " + std::to_string(needed) + ") beside x of shape " + shape_text(x),
      part.shape[0] == needed ? "transpose it: weight is (outputs, inputs)" : "weight is (outputs, inputs)");
}

void read_weight_and_bias(int index, const View& x, py::handle weight, py::handle bias, Part& part) {
  const Arg weight_arg{kLinear, "weight", index}, bias_arg{kLinear, "bias", index};
  read_weight(weight_arg, weight, x, part);
  if (!bias.is_none()) {
    part.has_bias = true;
    part.bias = read_array(bias_arg, bias);
    check_parameter_dtype(bias_arg, part.bias.view.dtype, kX, x.dtype);
    check_not_both_16_bit(bias_arg, part.bias.view.dtype, weight_arg, part.dtype);
    check_vector(bias_arg, part.bias.view, part.shape[0], "one number for each output");
  }
}

void read_part(int index, const View& x, py::handle weight, py::handle bias, py::handle out, Part& part) {
  const Arg out_arg{kLinear, "out", index};
  read_weight_and_bias(index, x, weight, bias, part);
  int64_t shape[kMaxRank];
  for (int axis = 0; axis < x.rank; ++axis) shape[axis] = x.shape[axis];
  shape[x.rank - 1] = part.shape[0];
  part.out.emplace(out_arg, out, x.dtype, x.rank, shape);
  part.out->check_overlap(kX, x, Alias::refused);
}

// No result may lie in what another part of the same pass still reads or writes.
void check_overlaps(const Part* parts, int count) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < count; ++j) {
      const int index = count == 1 ? -1 : j;
      const Output& out = *parts[i].out;
      const Part& other = parts[j];
      if (other.is_plain()) out.check_overlap({kLinear, "weight", index}, other.weight.view, Alias::refused);
      if (other.has_bias) out.check_overlap({kLinear, "bias", index}, other.bias.view, Alias::refused);
      if (j < i) out.check_overlap({kLinear, "out", index}, other.out->view, Alias::refused);
    }
  }
}

// What core multiplies, while `part` lasts.
LinearOperand operand_of(Part& part, const View& out) {
  LinearOperand operand;
  if (part.is_plain()) unit_last_axis({kLinear, "weight"}, part.weight);
  operand.weight = part.is_plain() ? &part.weight.view : nullptr;
  operand.packed = part.packed;
  operand.quantized = part.quantized;
  operand.bias = part.has_bias ? &part.bias.view : nullptr;
  operand.out = out;
  return operand;
}

// All weights of the call in one pass over x. `parts` have been read.
void run(Input& x, Part* parts, int count, Arithmetic arithmetic) {
  check_overlaps(parts, count);
  unit_last_axis(kX, x);
  const std::unique_ptr<LinearOperand[]> operands(new LinearOperand[static_cast<size_t>(count)]);
  for (int i = 0; i < count; ++i) {
    parts[i].out->unit_last_axis();
    operands[i] = operand_of(parts[i], parts[i].out->view);
  }
  {
    NoGil nogil;
    linear(x.view, operands.get(), count, arithmetic);
    for (int i = 0; i < count; ++i) parts[i].out->finish();
  }
}

bool is_list(py::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

// The items that belong to `count` weights: of a list, or as many None.
class Items {
 public:
  Items(const Arg& arg, py::handle object, int count) {
    if (object.is_none()) return;
    if (!is_list(object)) refuse_type(arg, type_of(object), "a list, because weight is one");
    items_ = py::reinterpret_steal<py::object>(PySequence_Fast(object.ptr(), ""));
    const auto found = PySequence_Fast_GET_SIZE(items_.ptr());
    if (found != count)
      refuse_value(arg, "has " + std::to_string(found) + " items",
                   std::to_string(count) + ", one for each weight (None for one that has none)");
  }
  py::handle operator[](int index) const {
    return items_ ? PySequence_Fast_GET_ITEM(items_.ptr(), index) : Py_None;
  }

 private:
  py::object items_;
};

py::object linear_list(Input& x, py::handle weights, py::handle biases, Arithmetic arithmetic,
                       py::handle outs) {
  const py::tuple all = py::reinterpret_steal<py::tuple>(PySequence_Tuple(weights.ptr()));
  const int count = static_cast<int>(all.size());
  const Items bias({kLinear, "bias"}, biases, count), out({kLinear, "out"}, outs, count);
  const std::unique_ptr<Part[]> parts(new Part[all.size()]);
  py::list results(all.size());
  for (int i = 0; i < count; ++i) {
    read_part(i, x.view, all[static_cast<size_t>(i)], bias[i], out[i], parts[i]);
    results[static_cast<size_t>(i)] = parts[i].out->array;
  }
  run(x, parts.get(), count, arithmetic);
  return std::move(results);
}

Arithmetic read_arithmetic(py::handle name) {
  static constexpr const char* kNames[] = {"int16", "float32", nullptr};
  return static_cast<Arithmetic>(read_name({kLinear, "arithmetic"}, name, kNames));
}

py::object linear_call(py::handle x_object, py::handle weight, py::handle bias, py::handle arithmetic_name,
                       py::handle out) {
  Input x = read_array(kX, x_object);
  const auto arithmetic = read_arithmetic(arithmetic_name);
  check_rank_at_least(kX, x.view, 1, "at least one axis");
  if (is_list(weight)) return linear_list(x, weight, bias, arithmetic, out);
  Part part;
  read_part(-1, x.view, weight, bias, out, part);
  run(x, &part, 1, arithmetic);
  return std::move(part.out->array);
}

// ---- linear_chosen --------------------------------------------------------------------------------------

// The rows of a result in the order of the experts that make them: those of expert e are
// rows[starts[e] ... starts[e + 1]). Ids that name none are left out.
struct ByExpert {
  std::vector<int64_t> starts, rows;

  ByExpert(const int64_t* ids, int64_t count, size_t experts) : starts(experts + 1) {
    const auto place = [&](int64_t id) -> int64_t* {
      return static_cast<uint64_t>(id) < experts ? &starts[static_cast<size_t>(id)] : nullptr;
    };
    for (int64_t i = 0; i < count; ++i)
      if (int64_t* const own = place(ids[i])) ++own[1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    rows.resize(static_cast<size_t>(starts.back()));
    for (int64_t i = 0; i < count; ++i)  // each start becomes the next one ...
      if (int64_t* const own = place(ids[i])) rows[static_cast<size_t>((*own)++)] = i;
    std::rotate(starts.begin(), starts.end() - 1, starts.end());  // ... and goes back to its place
    starts.front() = 0;
  }
};

// x (n, 1 or k, I), ids (n, k); for each result a list of weights, one an expert, and one of biases or None.
// Row (i, j) of a result (n, k, O) is that of x times the weight of expert ids[i, j]; 0 where there is none.
py::list linear_chosen_call(py::handle x_object, const py::array_t<int64_t, py::array::c_style>& ids,
                            const py::tuple& weights, const py::tuple& biases, py::handle arithmetic_name) {
  Input x = read_array(kX, x_object);
  const Arithmetic arithmetic = read_arithmetic(arithmetic_name);
  check_rank(kX, x.view, 3, "(n, 1 or k, I)");
  unit_last_axis(kX, x);
  const size_t results = weights.size();
  std::vector<py::tuple> of_experts;
  std::vector<Items> of_biases;
  for (size_t r = 0; r < results; ++r) {
    of_experts.push_back(py::reinterpret_steal<py::tuple>(PySequence_Tuple(weights[r].ptr())));
    of_biases.emplace_back(Arg{kLinear, "bias"}, biases[r], static_cast<int>(of_experts[r].size()));
  }
  const ByExpert sorted(ids.data(), ids.size(), of_experts.front().size());
  std::vector<size_t> asked;
  for (size_t expert = 0; expert + 1 < sorted.starts.size(); ++expert)
    if (sorted.starts[expert] < sorted.starts[expert + 1]) asked.push_back(expert);
  if (asked.empty()) asked.push_back(0);  // for the shape of nothing

  const std::unique_ptr<Part[]> parts(new Part[asked.size() * results]);
  std::vector<LinearOperand> operands;
  std::vector<View> views(results);
  py::list made;
  for (size_t i = 0; i < asked.size(); ++i) {
    for (size_t r = 0; r < results; ++r) {
      const size_t expert = asked[i];
      const int index = static_cast<int>(expert);
      Part& part = parts[i * results + r];
      read_weight_and_bias(index, x.view, of_experts[r][expert], of_biases[r][index], part);
      if (i == 0) {
        const int64_t shape[] = {ids.shape(0), ids.shape(1), part.shape[0]};
        made.append(new_array({kLinear, "out"}, x.view.dtype, 3, shape, views[r]));
        if (static_cast<int64_t>(sorted.rows.size()) < ids.size())
          std::memset(views[r].data, 0, static_cast<size_t>(views[r].size() * itemsize(x.view.dtype)));
      }
      if (part.shape[0] != views[r].shape[2])
        refuse_value({kLinear, "weight", index}, "has shape " + shape_text(2, part.shape),
                     std::to_string(views[r].shape[2]) + " outputs, as the other experts");
      operands.push_back(operand_of(part, views[r]));
      operands.back().begin = sorted.starts[expert];
      operands.back().end = sorted.starts[expert + 1];
    }
  }
  const auto count = static_cast<int64_t>(sorted.rows.size());
  if (count > 0) {
    NoGil nogil;
    linear_chosen(x.view, operands.data(), static_cast<int>(operands.size()),
                  {sorted.rows.data(), count, ids.shape(1) / x.view.shape[1]}, arithmetic);
  }
  return made;
}

}  // namespace

void bind_linear(py::module_& module) {
  module.def("linear", &linear_call);
  module.def("linear_chosen", &linear_chosen_call);
  module.def("pack", &pack);
  py::class_<PackedWeight>(module, "PackedWeight",
                           R"(A weight (O, I) repacked once for speed; made by `pack`, taken by `linear`.

It cannot be changed. Its pickle holds the weight as it was, so that it can be read on any machine.)")
      .def(py::init([](const py::args&, const py::kwargs&) -> std::unique_ptr<PackedWeight> {
        throw py::type_error("PackedWeight: is called, needs to be made from an array; use pack(weight)");
      }))
      .def_property_readonly(
          "shape", [](const PackedWeight& weight) { return py::make_tuple(weight.rows(), weight.cols()); },
          "(O, I): outputs and inputs")
      .def_property_readonly(
          "dtype", [](const PackedWeight& weight) { return dtype_object(weight.dtype()); },
          "numpy dtype of the elements")
      .def_property_readonly(
          "nbytes", [](const PackedWeight& weight) { return weight.nbytes(); },
          "bytes it takes, with its padding")
      .def_static("_empty", &empty)
      .def("_fill", &fill)
      .def("unpack", &unpack, "The weight (O, I) as a new array, bit for bit what was packed.")
      .def("__repr__", &describe)
      .def("__reduce__",
           [](const py::object& self) {
             return py::make_tuple(py::module_::import("simdformer").attr("pack"),
                                   py::make_tuple(unpack(self.cast<const PackedWeight&>())));
           })
      .def("__copy__", [](const py::object& self) { return self; })
      .def("__deepcopy__", [](const py::object& self, const py::object&) { return self; });
}

}  // namespace simdformer
