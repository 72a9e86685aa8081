// embedding, repeat_kv, causal_mask: rows picked, heads repeated, positions compared. xtensor does the work
// on shapes.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>
#include <xtensor/xadapt.hpp>
#include <xtensor/xstrides.hpp>
#include <xtensor/xview.hpp>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/work.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

// ---- embedding ------------------------------------------------------------------------------------------

constexpr Arg kIds{"embedding", "ids"}, kWeight{"embedding", "weight"}, kOut{"embedding", "out"};

void check_ids(const Integers& ids, int64_t rows) {
  const int64_t count = ids.array.size();
  if (count == 0) return;
  const auto all = xt::adapt(ids.data, static_cast<size_t>(count), xt::no_ownership(),
                             std::vector<size_t>{static_cast<size_t>(count)});
  const auto bad = std::find_if(all.begin(), all.end(), [&](int64_t id) { return id < 0 || id >= rows; });
  if (bad == all.end()) return;
  std::vector<size_t> shape(ids.array.shape(), ids.array.shape() + ids.array.ndim());
  std::string position;
  if (!shape.empty()) {
    const auto index = xt::unravel_index(static_cast<size_t>(bad - all.begin()), shape);
    for (const auto i : index) position += (position.empty() ? "" : ", ") + std::to_string(i);
    position = " at [" + position + "]";
  }
  const bool negative = *bad < 0 && !ids.is_unsigned;
  throw py::index_error(message(
      kIds, "holds " + integer_text(ids, *bad) + position,
      rows == 0 ? "no ids at all, the weight has no rows" : "ids from 0 to " + std::to_string(rows - 1),
      negative ? "negative ids do not count from the end" : ""));
}

// out[i] = weight[ids[i]], in out's dtype
void gather_rows(const View& weight, const int64_t* ids, int64_t count, const View& out) {
  const KernelTable& table = kernels();
  const Rows target = rows_of(out);
  const int64_t length = weight.shape[1];
  parallel_for(count, grain_of(length), [&](int64_t begin, int64_t end) {
    RowCursor row(target, begin);
    ConvertArgs one;
    one.x.dtype = weight.dtype, one.out.dtype = out.dtype;
    one.x.count = one.out.count = 1;
    one.x.length = one.out.length = one.segment = length;
    for (int64_t i = begin; i < end; ++i, row.next()) {
      one.x.data = weight.data + ids[i] * weight.strides[0];
      one.out.data = row.get();
      if (weight.dtype == out.dtype)
        std::memcpy(one.out.data, one.x.data, static_cast<size_t>(length * itemsize(weight.dtype)));
      else
        table.convert(one, 0, 1);
    }
  });
}

py::object embedding(py::handle ids_object, py::handle weight_object, py::handle dtype_object,
                     py::handle out_object) {
  const Integers ids = read_integers(kIds, ids_object);
  Input weight = read_array(kWeight, weight_object);
  check_rank(kWeight, weight.view, 2, "(V, E): a row for each id");
  const DType dtype = dtype_object.is_none()
                          ? weight.view.dtype
                          : read_dtype({"embedding", "dtype"}, dtype_object, Accept::floats);
  check_ids(ids, weight.view.shape[0]);
  int64_t shape[kMaxRank];
  const int rank = static_cast<int>(ids.array.ndim()) + 1;
  if (rank > kMaxRank) refuse_value(kIds, "has 64 axes", "at most 63");
  std::copy(ids.array.shape(), ids.array.shape() + rank - 1, shape);
  shape[rank - 1] = weight.view.shape[1];
  Output out(kOut, out_object, dtype, rank, shape);
  out.check_overlap(kWeight, weight.view, Alias::refused);
  if (out.view.size() == 0) return std::move(out.array);

  unit_last_axis(kWeight, weight);
  out.unit_last_axis();
  {
    NoGil nogil;
    gather_rows(weight.view, ids.data, ids.array.size(), out.view);
    out.finish();
  }
  return std::move(out.array);
}

// ---- repeat_kv ------------------------------------------------------------------------------------------

py::object repeat_kv(py::handle x_object, py::handle n_object, py::handle axis_object) {
  const Arg x_arg{"repeat_kv", "x"}, n_arg{"repeat_kv", "n"};
  const Input x = read_array(x_arg, x_object);
  const int64_t n = read_integer(n_arg, n_object);
  if (n < 1) refuse_value(n_arg, "is " + std::to_string(n), "a number >= 1");
  const int axis = read_axis({"repeat_kv", "axis"}, axis_object, x.view.rank);
  if (x.view.rank == kMaxRank) refuse_value(x_arg, "has 64 axes", "at most 63");

  View repeated = x.view;  // (..., K, n, ...): n times the same head, by a stride of 0
  std::copy_backward(x.view.shape + axis, x.view.shape + x.view.rank, repeated.shape + x.view.rank + 1);
  std::copy_backward(x.view.strides + axis, x.view.strides + x.view.rank, repeated.strides + x.view.rank + 1);
  ++repeated.rank;
  repeated.shape[axis] = x.view.shape[axis];
  repeated.strides[axis] = x.view.strides[axis];
  repeated.shape[axis + 1] = n;
  repeated.strides[axis + 1] = 0;
  int64_t shape[kMaxRank];
  std::copy(x.view.shape, x.view.shape + x.view.rank, shape);
  shape[axis] = checked_multiply(n_arg, shape[axis], n);
  Output out({"repeat_kv", "result"}, py::none(), x.view.dtype, x.view.rank, shape);
  View split = out.view;  // the same memory with K * n as two axes
  std::copy(repeated.shape, repeated.shape + repeated.rank, split.shape);
  split.rank = repeated.rank;
  int64_t stride = itemsize(split.dtype);
  for (int i = split.rank - 1; i >= 0; --i) split.strides[i] = stride, stride *= split.shape[i];
  {
    NoGil nogil;
    copy_elements(repeated, split);
  }
  return std::move(out.array);
}

// ---- causal_mask ----------------------------------------------------------------------------------------

// Key j <= i + offset is visible: True, or 0 beside -inf. Written for the bits of each dtype.
template <class Bits>
void fill_causal(const View& out, int64_t offset, Bits visible, Bits hidden) {
  const auto rows = static_cast<size_t>(out.shape[0]), columns = static_cast<size_t>(out.shape[1]);
  auto mask = xt::adapt(reinterpret_cast<Bits*>(out.data), rows * columns, xt::no_ownership(),
                        std::array<size_t, 2>{rows, columns});
  parallel_for(out.shape[0], grain_of(out.shape[1]), [&](int64_t begin, int64_t end) {
    for (int64_t query = begin; query < end; ++query) {
      const int64_t seen = std::clamp<int64_t>(query + offset + 1, 0, out.shape[1]);
      xt::view(mask, query, xt::range(0, seen)).fill(visible);
      xt::view(mask, query, xt::range(seen, out.shape[1])).fill(hidden);
    }
  });
}

py::object causal_mask(py::handle queries_object, py::handle keys_object, py::handle offset_object,
                       py::handle dtype_object) {
  const Arg queries_arg{"causal_mask", "L"}, keys_arg{"causal_mask", "S"},
      offset_arg{"causal_mask", "offset"};
  int64_t shape[] = {read_integer(queries_arg, queries_object), read_integer(keys_arg, keys_object)};
  if (shape[0] < 0) refuse_value(queries_arg, "is " + std::to_string(shape[0]), "a length >= 0");
  if (shape[1] < 0) refuse_value(keys_arg, "is " + std::to_string(shape[1]), "a length >= 0");
  if (offset_object.is_none() && shape[0] != shape[1])
    refuse_value(
        offset_arg,
        "is not given while L = " + std::to_string(shape[0]) + " and S = " + std::to_string(shape[1]) +
            " differ",
        "to say which key is the last that query 0 may see",
        "offset=0 lines up the first positions (PyTorch), offset=S-L the last (a cache, MLX, flash-attn)");
  // Beyond -L and S an offset changes nothing more, and sums stay within 64 bits.
  int64_t offset = offset_object.is_none() ? 0 : read_integer(offset_arg, offset_object);
  offset = std::max(-shape[0], std::min(offset, shape[1]));
  const DType dtype = read_dtype({"causal_mask", "dtype"}, dtype_object, Accept::floats_and_bool);
  Output out({"causal_mask", "result"}, py::none(), dtype, 2, shape);
  if (out.view.size() == 0) return std::move(out.array);
  {
    NoGil nogil;
    switch (dtype) {
      case DType::boolean:
        fill_causal<uint8_t>(out.view, offset, 1, 0);
        break;
      case DType::f32:
        fill_causal<float>(out.view, offset, 0, -std::numeric_limits<float>::infinity());
        break;
      case DType::f64:
        fill_causal<double>(out.view, offset, 0, -std::numeric_limits<double>::infinity());
        break;
      case DType::f16:
        fill_causal<uint16_t>(out.view, offset, 0, 0xfc00);
        break;
      case DType::bf16:
        fill_causal<uint16_t>(out.view, offset, 0, 0xff80);
        break;
    }
  }
  return std::move(out.array);
}

}  // namespace

void bind_gather(py::module_& module) {
  module.def("embedding", &embedding);
  module.def("repeat_kv", &repeat_kv);
  module.def("causal_mask", &causal_mask);
}

}  // namespace simdformer
