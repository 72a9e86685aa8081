// linear, expert_linear, pack, PackedWeight.
#include "core/linear.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "bindings/numpy_api.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/weights.hpp"

namespace simdformer {

void read_weight(const Arg& arg, py::handle object, const char* axes, Weight& weight) {
  const auto read = [&](const auto& made) { weight.shape[0] = made.rows(), weight.shape[1] = made.cols(); };
  weight.packed = made_or_null<PackedWeight>(arg, object);
  weight.quantized = made_or_null<QuantizedWeight>(arg, object);
  if (weight.packed != nullptr) {
    weight.dtype = weight.packed->dtype();
    read(*weight.packed);
  } else if (weight.quantized != nullptr) {
    read(*weight.quantized);
  } else {
    weight.plain = read_array(arg, object);
    check_rank(arg, weight.plain.view, 2, axes);
    std::copy_n(weight.plain.view.shape, 2, weight.shape);
    weight.dtype = weight.plain.view.dtype;
  }
}

namespace {

using Alias = Output::Alias;

constexpr const char *kLinear = "linear", *kExpertLinear = "expert_linear";
constexpr const char* kAxes = "(O, I): a row for each output";

// ---- packed weights -------------------------------------------------------------------------------------

std::unique_ptr<PackedWeight> pack(py::handle weight_object) {
  const Arg arg{"pack", "weight"};
  Input weight = read_array(arg, weight_object);
  check_rank(arg, weight.view, 2, kAxes);
  unit_last_axis(arg, weight);
  NoGil nogil;
  return std::make_unique<PackedWeight>(weight.view);
}

// A weight that `fill_weight` completes, piece by piece.
std::unique_ptr<PackedWeight> empty_weight(py::handle rows, py::handle cols, py::handle dtype) {
  return std::make_unique<PackedWeight>(read_length({"pack", "rows"}, rows),
                                        read_length({"pack", "columns"}, cols),
                                        read_dtype({"pack", "dtype"}, dtype, Accept::floats));
}

// Rows from `first` on, converted to the weight's dtype.
void fill_weight(PackedWeight& weight, py::handle first_object, py::handle rows_object) {
  const Arg arg{"pack", "rows"};
  const int64_t first = read_integer({"pack", "first"}, first_object);
  Input rows = read_array(arg, rows_object);
  check_rank(arg, rows.view, 2, "(rows, I)");
  check_piece(arg, rows.view.shape[0], first, weight.rows());
  if (rows.view.shape[1] != weight.cols())
    refuse_value(arg, "has shape " + shape_text(rows.view), "rows of " + std::to_string(weight.cols()));
  convert(arg, rows, weight.dtype());
  unit_last_axis(arg, rows);
  NoGil nogil;
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
  Weight weight;
  Input bias;
  bool has_bias = false;
  std::optional<Output> out;
};

void read_weight_and_bias(const char* function, int index, const View& x, py::handle weight_object,
                          py::handle bias_object, Part& part) {
  const Arg arg{function, "weight", index}, bias_arg{function, "bias", index}, x_arg{function, "x"};
  Weight& weight = part.weight;
  read_weight(arg, weight_object, kAxes, weight);
  if (weight.quantized != nullptr && x.dtype == DType::f64)
    refuse_type(arg, "is quantised", "an x of float32, float16 or bfloat16, not float64",
                "weight.dequantize(\"float64\") has all of its values");
  check_parameter_dtype(arg, weight.dtype, x_arg, x.dtype);
  const int64_t needed = x.shape[x.rank - 1];
  if (weight.shape[1] != needed)
    refuse_value(arg, "has shape " + shape_text(2, weight.shape),
                 "(O, " + std::to_string(needed) + ") beside x of shape " + shape_text(x),
                 weight.shape[0] == needed ? "transpose it: weight is (outputs, inputs)"
                                           : "weight is (outputs, inputs)");
  if (bias_object.is_none()) return;
  part.has_bias = true;
  part.bias = read_array(bias_arg, bias_object);
  check_parameter_dtype(bias_arg, part.bias.view.dtype, x_arg, x.dtype);
  check_not_both_16_bit(bias_arg, part.bias.view.dtype, arg, weight.dtype);
  check_vector(bias_arg, part.bias.view, weight.shape[0], "one number for each output");
}

// What a result is written as: x's dtype, or float32 into a float32 array beside 16 bits.
DType dtype_of_result(DType x, py::handle out) {
  const bool takes_sums = itemsize(x) == 2 && is_ndarray(out) &&
                          PyArray_DESCR(as_ndarray(out))->type_num == number_of(DType::f32);
  return takes_sums ? DType::f32 : x;
}

void read_part(int index, const View& x, py::handle weight, py::handle bias, py::handle out, Part& part) {
  read_weight_and_bias(kLinear, index, x, weight, bias, part);
  int64_t shape[kMaxRank];
  for (int axis = 0; axis < x.rank; ++axis) shape[axis] = x.shape[axis];
  shape[x.rank - 1] = part.weight.shape[0];
  part.out.emplace(Arg{kLinear, "out", index}, out, dtype_of_result(x.dtype, out), x.rank, shape);
  part.out->check_overlap({kLinear, "x"}, x, Alias::refused);
}

// No result may lie in what another part of the same pass still reads or writes.
void check_overlaps(const Part* parts, int count) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < count; ++j) {
      const int index = count == 1 ? -1 : j;
      const Output& out = *parts[i].out;
      const Part& other = parts[j];
      if (other.weight.is_plain())
        out.check_overlap({kLinear, "weight", index}, other.weight.plain.view, Alias::refused);
      if (other.has_bias) out.check_overlap({kLinear, "bias", index}, other.bias.view, Alias::refused);
      if (j < i) out.check_overlap({kLinear, "out", index}, other.out->view, Alias::refused);
    }
  }
}

// What core multiplies, while `part` lasts.
LinearOperand operand_of(Part& part, const View& out) {
  LinearOperand operand;
  Weight& weight = part.weight;
  if (weight.is_plain()) unit_last_axis({kLinear, "weight"}, weight.plain);
  operand.weight = weight.is_plain() ? &weight.plain.view : nullptr;
  operand.packed = weight.packed;
  operand.quantized = weight.quantized;
  operand.bias = part.has_bias ? &part.bias.view : nullptr;
  operand.out = out;
  return operand;
}

// All weights of the call in one pass over x. `parts` have been read.
void run(Input& x, Part* parts, int count, Arithmetic arithmetic) {
  check_overlaps(parts, count);
  unit_last_axis({kLinear, "x"}, x);
  const std::unique_ptr<LinearOperand[]> operands(new LinearOperand[static_cast<size_t>(count)]);
  for (int i = 0; i < count; ++i) {
    parts[i].out->unit_last_axis();
    operands[i] = operand_of(parts[i], parts[i].out->view);
  }
  double numbers = 0;
  for (int i = 0; i < count; ++i) numbers += static_cast<double>(parts[i].out->view.size());
  {
    NoGil nogil(is_long_product(numbers, x.view.shape[x.view.rank - 1]));
    linear(x.view, operands.get(), count, arithmetic);
    for (int i = 0; i < count; ++i) parts[i].out->finish();
  }
}

bool is_list(py::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

// The items of a list, in a tuple: reading one of them may run a stranger's code, which may shorten the list.
py::tuple items_of(const Arg& arg, py::handle list, const char* needed) {
  auto items = py::reinterpret_steal<py::object>(PySequence_Tuple(list.ptr()));
  if (items) return items;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
  PyErr_Clear();
  refuse_type(arg, type_of(list), needed);
}

// Those that belong to `count` weights: a list's items, or as many None.
py::tuple items_beside(const Arg& arg, py::handle list, size_t count) {
  if (list.is_none()) {
    py::tuple none(count);
    for (size_t i = 0; i < count; ++i) none[i] = py::none();
    return none;
  }
  if (!is_list(list)) refuse_type(arg, type_of(list), "a list, because weight is one");
  py::tuple items = items_of(arg, list, "a list");
  if (items.size() != count)
    refuse_value(arg, "has " + std::to_string(items.size()) + " items",
                 std::to_string(count) + ", one for each weight (None for one that has none)");
  return items;
}

py::object linear_list(Input& x, py::handle weights, py::handle biases, Arithmetic arithmetic,
                       py::handle outs) {
  const py::tuple all = items_of({kLinear, "weight"}, weights, "a list");
  const size_t count = all.size();
  const py::tuple bias = items_beside({kLinear, "bias"}, biases, count);
  const py::tuple out = items_beside({kLinear, "out"}, outs, count);
  const std::unique_ptr<Part[]> parts(new Part[count]);
  py::list results(count);
  for (size_t i = 0; i < count; ++i) {
    read_part(static_cast<int>(i), x.view, all[i], bias[i], out[i], parts[i]);
    results[i] = parts[i].out->array;
  }
  run(x, parts.get(), static_cast<int>(count), arithmetic);
  return std::move(results);
}

Arithmetic read_arithmetic(const char* function, py::handle name) {
  static constexpr const char* kNames[] = {"int16", "float32", nullptr};
  return static_cast<Arithmetic>(read_name({function, "arithmetic"}, name, kNames));
}

py::object linear_call(py::handle x_object, py::handle weight, py::handle bias, py::handle arithmetic_name,
                       py::handle out) {
  Input x = read_array({kLinear, "x"}, x_object);
  const auto arithmetic = read_arithmetic(kLinear, arithmetic_name);
  check_rank_at_least({kLinear, "x"}, x.view, 1, "at least one axis");
  if (is_list(weight)) return linear_list(x, weight, bias, arithmetic, out);
  Part part;
  read_part(-1, x.view, weight, bias, out, part);
  run(x, &part, 1, arithmetic);
  return std::move(part.out->array);
}

// ---- expert_linear --------------------------------------------------------------------------------------

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

// How many results read the same row of x (..., 1 or k, I) beside ids (..., k): 1 or k.
int64_t read_share(const View& x, const Integers& ids) {
  const int leading = x.rank - 2;
  const int64_t k = ids.rank == 0 ? 0 : ids.shape[ids.rank - 1];
  const bool fits = ids.rank == leading + 1 && std::equal(x.shape, x.shape + leading, ids.shape);
  if (!fits || (x.shape[leading] != 1 && x.shape[leading] != k))
    refuse_value({kExpertLinear, "ids"}, "has shape " + shape_text(ids.rank, ids.shape),
                 "(..., k) beside x (..., 1, I) or (..., k, I), which has shape " + shape_text(x));
  return x.shape[leading] == 1 ? std::max<int64_t>(k, 1) : 1;
}

// The weights of each expert, or their biases: for every result a tuple with `experts` of them. 0: as many as the first.
std::vector<py::tuple> read_of_experts(const Arg& arg, const py::tuple& lists, size_t experts) {
  std::vector<py::tuple> read;
  const char* const needed = "a list, one item for each expert";
  for (size_t r = 0; r < lists.size(); ++r) {
    const Arg own{arg.function, arg.name, static_cast<int>(r)};
    py::tuple items = experts > 0 && lists[r].is_none() ? items_beside(own, py::none(), experts)
                                                        : items_of(own, lists[r], needed);
    if (experts == 0) experts = items.size();
    if (items.size() != experts || experts == 0)
      refuse_value(own, "has " + std::to_string(items.size()) + " items",
                   experts == 0 ? "at least one" : std::to_string(experts) + ", one for each expert");
    read.push_back(std::move(items));
  }
  return read;
}

// x (..., 1 or k, I), ids (..., k); for each result a list of weights, one an expert, and one of biases or None.
// Row (..., j) of a result (..., k, O) is that of x times the weight of expert ids[..., j]; 0 where there is none.
py::list expert_linear_call(py::handle x_object, py::handle ids_object, py::handle weights_object,
                            py::handle biases_object, py::handle arithmetic_name) {
  const Arg x_arg{kExpertLinear, "x"}, weights_arg{kExpertLinear, "weights"},
      biases_arg{kExpertLinear, "biases"};
  Input x = read_array(x_arg, x_object);
  const Integers ids = read_integers({kExpertLinear, "ids"}, ids_object);
  const Arithmetic arithmetic = read_arithmetic(kExpertLinear, arithmetic_name);
  check_rank_at_least(x_arg, x.view, 2, "(..., 1, I) or (..., k, I)");
  const int64_t share = read_share(x.view, ids);
  const py::tuple lists = items_of(weights_arg, weights_object, "a list of weights for each result");
  const size_t results = lists.size();
  py::list made;
  if (results == 0) return made;
  const auto weights = read_of_experts(weights_arg, lists, 0);
  const auto biases =
      read_of_experts(biases_arg, items_beside(biases_arg, biases_object, results), weights[0].size());
  unit_last_axis(x_arg, x);

  const ByExpert sorted(ids.data, ids.size, weights[0].size());
  std::vector<size_t> asked;
  for (size_t expert = 0; expert + 1 < sorted.starts.size(); ++expert)
    if (sorted.starts[expert] < sorted.starts[expert + 1]) asked.push_back(expert);
  if (asked.empty()) asked.push_back(0);  // for the shape of nothing

  const std::unique_ptr<Part[]> parts(new Part[asked.size() * results]);
  std::vector<LinearOperand> operands;
  std::vector<View> views(results);
  for (size_t i = 0; i < asked.size(); ++i) {
    for (size_t r = 0; r < results; ++r) {
      const size_t expert = asked[i];
      const int index = static_cast<int>(expert);
      Part& part = parts[i * results + r];
      read_weight_and_bias(kExpertLinear, index, x.view, weights[r][expert], biases[r][expert], part);
      const int64_t outputs = part.weight.shape[0];
      if (i == 0) {
        int64_t shape[kMaxRank];
        *std::copy_n(ids.shape, ids.rank, shape) = outputs;
        made.append(new_array({kExpertLinear, "result"}, x.view.dtype, x.view.rank, shape, views[r]));
      }
      if (outputs != views[r].shape[x.view.rank - 1])
        refuse_value({kExpertLinear, "weight", index}, "has shape " + shape_text(2, part.weight.shape),
                     std::to_string(views[r].shape[x.view.rank - 1]) + " outputs, as the other experts");
      operands.push_back(operand_of(part, views[r]));
      operands.back().begin = sorted.starts[expert];
      operands.back().end = sorted.starts[expert + 1];
    }
  }
  const auto count = static_cast<int64_t>(sorted.rows.size());
  {
    NoGil nogil;
    if (count < ids.size)
      for (const View& view : views)
        std::memset(view.data, 0, static_cast<size_t>(view.size() * itemsize(view.dtype)));
    if (count > 0)
      expert_linear(x.view, operands.data(), static_cast<int>(operands.size()),
                    {sorted.rows.data(), count, share}, arithmetic);
  }
  return made;
}

}  // namespace

void bind_linear(py::module_& module) {
  module.def("linear", &linear_call);
  module.def("expert_linear", &expert_linear_call);
  module.def("pack", &pack);
  py::class_<PackedWeight>(module, "PackedWeight",
                           R"(A weight (O, I) repacked once for speed; made by `pack`, taken by `linear`.

It cannot be changed. Its pickle holds the weight as it was, so that it can be read on any machine.)")
      .def(py::init([](const py::args&, const py::kwargs&) -> std::unique_ptr<PackedWeight> {
        throw py::type_error("PackedWeight: is called, needs to be made from an array; use pack(weight)");
      }))
      .def_property_readonly("shape", &shape_of<PackedWeight>, "(O, I): outputs and inputs")
      .def_property_readonly(
          "dtype", [](const PackedWeight& weight) { return dtype_object(weight.dtype()); },
          "numpy dtype of the elements")
      .def_property_readonly(
          "nbytes", [](const PackedWeight& weight) { return weight.nbytes(); },
          "bytes it takes, with its padding")
      .def_static("_empty", &empty_weight)
      .def("_fill", &fill_weight)
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
