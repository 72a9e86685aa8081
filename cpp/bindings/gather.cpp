// embedding, repeat_kv, causal_mask; what a cache takes in.
#include "core/gather.hpp"

#include <algorithm>
#include <string>
#include <vector>
#include <xtensor/xstrides.hpp>

#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/weights.hpp"
#include "core/copy.hpp"

namespace simdformer {

namespace {

// ---- embedding ------------------------------------------------------------------------------------------

constexpr Arg kIds{"embedding", "ids"}, kWeight{"embedding", "weight"}, kOut{"embedding", "out"};

void check_ids(const Integers& ids, int64_t rows) {
  const int64_t* const end = ids.data + ids.size;
  const int64_t* bad;
  {
    const NoGil nogil(ids.size * int64_t{sizeof(int64_t)} >= kLongMove);
    bad = std::find_if(ids.data, end, [&](int64_t id) { return id < 0 || id >= rows; });
  }
  if (bad == end) return;
  std::string position;
  if (ids.rank > 0) {
    const std::vector<size_t> shape(ids.shape, ids.shape + ids.rank);
    for (const auto i : xt::unravel_index(static_cast<size_t>(bad - ids.data), shape))
      position += (position.empty() ? "" : ", ") + std::to_string(i);
    position = " at [" + position + "]";
  }
  const bool negative = *bad < 0 && !ids.is_unsigned;
  throw py::index_error(message(
      kIds, "holds " + integer_text(ids, *bad) + position,
      rows == 0 ? "no ids at all, the weight has no rows" : "ids from 0 to " + std::to_string(rows - 1),
      negative ? "negative ids do not count from the end" : ""));
}

py::object embedding_call(py::handle ids_object, py::handle weight_object, py::handle dtype_object,
                          py::handle out_object) {
  const Integers ids = read_integers(kIds, ids_object);
  Weight weight;
  read_weight(kWeight, weight_object, "(V, E): a row for each id", weight);
  const DType dtype = dtype_object.is_none()
                          ? weight.dtype
                          : read_dtype({"embedding", "dtype"}, dtype_object, Accept::floats);
  check_ids(ids, weight.shape[0]);
  if (ids.rank == kMaxRank) refuse_value(kIds, "has 64 axes", "at most 63");
  int64_t shape[kMaxRank];
  *std::copy_n(ids.shape, ids.rank, shape) = weight.shape[1];
  Output out(kOut, out_object, dtype, ids.rank + 1, shape);
  if (weight.is_plain()) out.check_overlap(kWeight, weight.plain.view, Output::Alias::refused);
  if (out.view.size() == 0) return std::move(out.array);

  if (weight.is_plain()) unit_last_axis(kWeight, weight.plain);
  out.unit_last_axis();
  {
    NoGil nogil;
    if (weight.packed != nullptr)
      weight.packed->gather(ids.data, out.view);
    else if (weight.quantized != nullptr)
      weight.quantized->gather(ids.data, out.view);
    else
      embedding(weight.plain.view, ids.data, out.view);
    out.finish();
  }
  return std::move(out.array);
}

// ---- repeat_kv ------------------------------------------------------------------------------------------

py::object repeat_kv_call(py::handle x_object, py::handle n_object, py::handle axis_object) {
  const Arg x_arg{"repeat_kv", "x"}, n_arg{"repeat_kv", "n"};
  const Input x = read_array(x_arg, x_object);
  const int64_t n = read_integer(n_arg, n_object);
  if (n < 1) refuse_value(n_arg, "is " + std::to_string(n), "a number >= 1");
  const int axis = read_axis({"repeat_kv", "axis"}, axis_object, x.view.rank);
  if (x.view.rank == kMaxRank) refuse_value(x_arg, "has 64 axes", "at most 63");
  int64_t shape[kMaxRank];
  std::copy_n(x.view.shape, x.view.rank, shape);
  shape[axis] = checked_multiply(n_arg, shape[axis], n);
  Output out({"repeat_kv", "result"}, py::none(), x.view.dtype, x.view.rank, shape);
  {
    NoGil nogil;
    repeat(x.view, axis, n, out.view);
  }
  return std::move(out.array);
}

// ---- causal_mask ----------------------------------------------------------------------------------------

py::object causal_mask_call(py::handle queries_object, py::handle keys_object, py::handle offset_object,
                            py::handle dtype_object) {
  const Arg queries_arg{"causal_mask", "L"}, keys_arg{"causal_mask", "S"},
      offset_arg{"causal_mask", "offset"};
  const int64_t shape[] = {read_length(queries_arg, queries_object), read_length(keys_arg, keys_object)};
  if (offset_object.is_none() && shape[0] != shape[1])
    refuse_value(
        offset_arg,
        "is not given while L = " + std::to_string(shape[0]) + " and S = " + std::to_string(shape[1]) +
            " differ",
        "to say which key is the last that query 0 may see",
        "offset=0 lines up the first positions (PyTorch), offset=S-L the last (a cache, MLX, flash-attn)");
  const int64_t offset = offset_object.is_none() ? 0 : read_integer(offset_arg, offset_object);
  const DType dtype = read_dtype({"causal_mask", "dtype"}, dtype_object, Accept::floats_and_bool);
  Output out({"causal_mask", "result"}, py::none(), dtype, 2, shape);
  {
    NoGil nogil;
    causal_mask(offset, out.view);
  }
  return std::move(out.array);
}

// ---- convert --------------------------------------------------------------------------------------------

void convert_call(py::handle x_object, py::handle out_object) {
  const Arg x_arg{"convert", "x"}, out_arg{"convert", "out"};
  Input x = read_array(x_arg, x_object);
  Output out(out_arg, out_object, read_array(out_arg, out_object).view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(x_arg, x.view, Output::Alias::refused);
  unit_last_axis(x_arg, x);
  out.unit_last_axis();
  {
    NoGil nogil;
    convert_elements(x.view, out.view);
    out.finish();
  }
}

}  // namespace

void bind_gather(py::module_& module) {
  module.def("embedding", &embedding_call);
  module.def("repeat_kv", &repeat_kv_call);
  module.def("causal_mask", &causal_mask_call);
  module.def("convert", &convert_call);
}

}  // namespace simdformer
