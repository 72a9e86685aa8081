// rope: rotary position embedding.
#include <algorithm>
#include <cmath>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/work.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"

namespace simdformer {

namespace {

using Alias = Output::Alias;

constexpr const char* kRope = "rope";
constexpr Arg kX{kRope, "x"}, kPositions{kRope, "positions"}, kOffset{kRope, "offset"},
    kTheta{kRope, "theta"};
constexpr Arg kInvFreq{kRope, "inv_freq"}, kRotaryDim{kRope, "rotary_dim"}, kOut{kRope, "out"};

int64_t read_rotary_dim(py::handle object, int64_t head_dim) {
  if (head_dim == 0 || head_dim % 2 != 0)
    refuse_value(kX, "has a last axis of " + std::to_string(head_dim), "an even head_dim, at least 2");
  if (object.is_none()) return head_dim;
  const int64_t rotary_dim = read_integer(kRotaryDim, object);
  if (rotary_dim < 2 || rotary_dim > head_dim || rotary_dim % 2 != 0)
    refuse_value(kRotaryDim, "is " + std::to_string(rotary_dim),
                 "an even number from 2 to head_dim = " + std::to_string(head_dim));
  return rotary_dim;
}

// Where the tokens stand: given, or `offset` and the numbers after it. One row of them, or one for each entry
// of the first axis of x.
struct Positions {
  Integers given;
  int64_t offset = 0;
  int64_t count = 0;
  bool per_sequence = false;
};

Positions read_positions(py::handle positions_object, py::handle offset_object, const View& x) {
  Positions positions;
  const int64_t seq_len = x.shape[x.rank - 2];
  positions.offset = read_integer(kOffset, offset_object);
  positions.count = seq_len;
  if (positions_object.is_none()) {
    checked_add(kOffset, positions.offset, seq_len);
    return positions;
  }
  if (positions.offset != 0)
    refuse_value(kPositions, "is given together with an offset", "only one of the two",
                 "add the offset to positions");
  positions.given = read_integers(kPositions, positions_object);
  check_not_wrapped(kPositions, positions.given);
  const py::array& array = positions.given.array;
  positions.per_sequence = array.ndim() == 2 && x.rank > 2;
  const bool fits = positions.per_sequence ? array.shape(0) == x.shape[0] && array.shape(1) == seq_len
                                           : array.ndim() == 1 && array.shape(0) == seq_len;
  if (!fits) {
    const int64_t each[] = {seq_len}, every[] = {x.shape[0], seq_len};
    refuse_value(kPositions, "has shape " + std::string(py::str(array.attr("shape"))),
                 shape_text(1, each) + (x.rank > 2 ? " or " + shape_text(2, every) : "") +
                     " beside x of shape " + shape_text(x));
  }
  positions.count = array.size();
  return positions;
}

// (rotary_dim / 2) float64 numbers: the given ones, or theta^(-2i / rotary_dim).
void read_frequencies(py::handle theta_object, py::handle inv_freq_object, int64_t half, Input& frequencies) {
  if (!inv_freq_object.is_none()) {
    if (!theta_object.is_none())
      refuse_value(kInvFreq, "is given together with a theta", "only one of the two",
                   "theta is part of inv_freq");
    frequencies = read_array(kInvFreq, inv_freq_object);
    check_vector(kInvFreq, frequencies.view, half, "one frequency for each pair of the rotary_dim");
    if (frequencies.view.dtype != DType::f64) frequencies = converted(kInvFreq, frequencies, DType::f64);
    unit_last_axis(kInvFreq, frequencies);
    return;
  }
  const double theta = theta_object.is_none() ? 10000.0 : read_positive(kTheta, theta_object);
  frequencies.owner = new_array(kTheta, DType::f64, 1, &half, frequencies.view);
  auto* const inv_freq = reinterpret_cast<double*>(frequencies.view.data);
  for (int64_t i = 0; i < half; ++i)
    inv_freq[i] = std::pow(theta, -static_cast<double>(2 * i) / static_cast<double>(2 * half));
}

py::object rope(py::handle x_object, py::handle layout_object, py::handle positions_object,
                py::handle offset_object, py::handle theta_object, py::handle inv_freq_object,
                py::handle attention_factor_object, py::handle rotary_dim_object, py::handle out_object) {
  Input x = read_array(kX, x_object);
  check_rank_at_least(kX, x.view, 2, "(..., T, D): positions, then the numbers to rotate");
  static const char* const kLayouts[] = {"half", "interleaved", nullptr};
  const auto layout = static_cast<RopeLayout>(read_name({kRope, "layout"}, layout_object, kLayouts));
  const int64_t half = read_rotary_dim(rotary_dim_object, x.view.shape[x.view.rank - 1]) / 2;
  const Positions positions = read_positions(positions_object, offset_object, x.view);
  Input frequencies;
  read_frequencies(theta_object, inv_freq_object, half, frequencies);
  const double attention_factor = read_finite({kRope, "attention_factor"}, attention_factor_object);
  Output out(kOut, out_object, x.view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(kX, x.view, Alias::same_allowed);
  out.check_overlap(kInvFreq, frequencies.view, Alias::refused);
  if (x.view.size() == 0) return std::move(out.array);

  unit_last_axis(kX, x);
  out.unit_last_axis();
  const DType sum = accumulator(x.view.dtype);
  const int64_t seq_len = x.view.shape[x.view.rank - 2];
  const int64_t table_row = checked_multiply(kX, 2 * half, itemsize(sum));
  const int64_t table_bytes = checked_multiply(kX, positions.count, table_row);
  const Rows rows = rows_of(x.view);
  const int64_t rows_per_sequence = positions.per_sequence ? rows.count / x.view.shape[0] : rows.count;
  {
    NoGil nogil;
    const KernelTable& table = kernels();
    const Scratch angles(table_bytes);
    const Scratch counted(positions.given.data == nullptr ? positions.count * 8 : 0);
    const int64_t* at = positions.given.data;
    if (at == nullptr) {
      for (int64_t i = 0; i < positions.count; ++i) counted.as<int64_t>()[i] = positions.offset + i;
      at = counted.as<int64_t>();
    }
    const RopeTableArgs table_args{at,   reinterpret_cast<const double*>(frequencies.view.data),
                                   half, attention_factor,
                                   sum,  angles.as<void>()};
    constexpr int64_t kCostOfAngle = 16;  // in elements of other row-wise work
    parallel_for(positions.count, grain_of(kCostOfAngle * half),
                 [&](int64_t begin, int64_t end) { table.rope_table(table_args, begin, end); });

    const RopeArgs args{rows,
                        rows_of(out.view),
                        layout,
                        half,
                        seq_len,
                        rows_per_sequence,
                        positions.per_sequence ? seq_len : 0,
                        angles.as<void>()};
    parallel_for(rows.count, grain_of(rows.length),
                 [&](int64_t begin, int64_t end) { table.rope(args, begin, end); });
    out.finish();
  }
  return std::move(out.array);
}

}  // namespace

void bind_rope(py::module_& module) { module.def("rope", &rope); }

}  // namespace simdformer
