// rope: rotary position embedding.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "bindings/work.hpp"
#include "core/dispatch.hpp"
#include "core/float_mode.hpp"
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

// (rotary_dim / 2) float64 numbers, where they are given; else no data.
Input read_frequencies(py::handle theta_object, py::handle inv_freq_object, int64_t half) {
  Input frequencies;
  if (inv_freq_object.is_none()) return frequencies;
  if (!theta_object.is_none())
    refuse_value(kInvFreq, "is given together with a theta", "only one of the two",
                 "theta is part of inv_freq");
  frequencies = read_array(kInvFreq, inv_freq_object);
  check_vector(kInvFreq, frequencies.view, half, "one frequency for each pair of the rotary_dim");
  if (frequencies.view.dtype != DType::f64) frequencies = converted(kInvFreq, frequencies, DType::f64);
  unit_last_axis(kInvFreq, frequencies);
  return frequencies;
}

// ---- angles -----------------------------------------------------------------------------------------------

// cos and sin at every position, as a table for the kernel, and what they were computed from.
class Angles {
 public:
  // Of the positions, with the frequencies theta^(-i / half), or the given ones where there are any.
  struct Wanted {
    const Positions& positions;
    const double* inv_freq;
    double theta, attention_factor;
    int64_t half;
    DType dtype;
  };

  const void* table() const { return table_.get(); }
  int64_t nbytes() const { return 2 * half() * count() * itemsize(dtype_); }

  // The same bits as a new computation: its instruction set and its rounding count too.
  bool are(const Wanted& wanted) const {
    if (kernels_ != &kernels() || float_mode_ != float_mode()) return false;
    if (dtype_ != wanted.dtype || half() != wanted.half || count() != wanted.positions.count) return false;
    if (attention_factor_ != wanted.attention_factor) return false;
    if (wanted.inv_freq == nullptr ? theta_ != wanted.theta
                                   : !std::equal(inv_freq_.begin(), inv_freq_.end(), wanted.inv_freq))
      return false;
    const int64_t* given = wanted.positions.given.data;
    return given == nullptr ? counted_ && positions_.front() == wanted.positions.offset
                            : std::equal(positions_.begin(), positions_.end(), given);
  }

  void compute(const Wanted& wanted) {
    kernels_ = &kernels();
    float_mode_ = float_mode();
    dtype_ = wanted.dtype;
    theta_ = wanted.inv_freq == nullptr ? wanted.theta : 0;
    attention_factor_ = wanted.attention_factor;
    inv_freq_.resize(static_cast<std::size_t>(wanted.half));
    for (int64_t i = 0; i < half(); ++i)
      inv_freq_[static_cast<std::size_t>(i)] =
          wanted.inv_freq == nullptr ? std::pow(theta_, -static_cast<double>(i) / static_cast<double>(half()))
                                     : wanted.inv_freq[i];
    const int64_t* given = wanted.positions.given.data;
    counted_ = given == nullptr;
    positions_.resize(static_cast<std::size_t>(wanted.positions.count));
    for (int64_t i = 0; i < count(); ++i)
      positions_[static_cast<std::size_t>(i)] = counted_ ? wanted.positions.offset + i : given[i];

    table_.reset(
        static_cast<char*>(std::aligned_alloc(64, static_cast<std::size_t>((nbytes() + 63) / 64 * 64))));
    if (table_ == nullptr) throw std::bad_alloc();
    const RopeTableArgs args{positions_.data(), inv_freq_.data(), half(),
                             attention_factor_, dtype_,           table_.get()};
    constexpr int64_t kCostOfAngle = 16;  // in elements of other row-wise work
    parallel_for(count(), grain_of(kCostOfAngle * half()),
                 [&](int64_t begin, int64_t end) { kernels_->rope_table(args, begin, end); });
  }

 private:
  int64_t half() const { return static_cast<int64_t>(inv_freq_.size()); }
  int64_t count() const { return static_cast<int64_t>(positions_.size()); }

  const KernelTable* kernels_ = nullptr;
  uint64_t float_mode_ = 0;
  DType dtype_ = DType::f32;
  double attention_factor_ = 0;
  double theta_ = 0;              // 0: the frequencies were given
  std::vector<double> inv_freq_;  // (half)
  std::vector<int64_t> positions_;
  bool counted_ = false;  // positions are an offset and the numbers after it
  std::unique_ptr<char, void (*)(void*)> table_{nullptr, std::free};
};

// The angles of the last call: a model turns the queries and keys of all its layers by the same. They are
// taken out while a call uses them, so that a second one, in another thread or in a signal handler, does not
// meet them. Guarded by the GIL.
Angles& kept_angles() {
  static Angles* const kept = new Angles;  // never destroyed: threads may be in a call at exit
  return *kept;
}
constexpr int64_t kMostKept = int64_t{1} << 20;  // bytes: 2048 positions of a head_dim of 128

// ---- the call ---------------------------------------------------------------------------------------------

py::object rope(py::handle x_object, py::handle layout_object, py::handle positions_object,
                py::handle offset_object, py::handle theta_object, py::handle inv_freq_object,
                py::handle attention_factor_object, py::handle rotary_dim_object, py::handle out_object) {
  Input x = read_array(kX, x_object);
  check_rank_at_least(kX, x.view, 2, "(..., T, D): positions, then the numbers to rotate");
  static const char* const kLayouts[] = {"half", "interleaved", nullptr};
  const auto layout = static_cast<RopeLayout>(read_name({kRope, "layout"}, layout_object, kLayouts));
  const int64_t half = read_rotary_dim(rotary_dim_object, x.view.shape[x.view.rank - 1]) / 2;
  const Positions positions = read_positions(positions_object, offset_object, x.view);
  const Input frequencies = read_frequencies(theta_object, inv_freq_object, half);
  const double theta = theta_object.is_none() ? 10000.0 : read_positive(kTheta, theta_object);
  const double attention_factor = read_finite({kRope, "attention_factor"}, attention_factor_object);
  Output out(kOut, out_object, x.view.dtype, x.view.rank, x.view.shape);
  out.check_overlap(kX, x.view, Alias::same_allowed);
  if (!inv_freq_object.is_none()) out.check_overlap(kInvFreq, frequencies.view, Alias::refused);
  if (x.view.size() == 0) return std::move(out.array);

  unit_last_axis(kX, x);
  out.unit_last_axis();
  const DType sum = accumulator(x.view.dtype);
  checked_multiply(kX, positions.count, checked_multiply(kX, 2 * half, itemsize(sum)));
  const Angles::Wanted wanted{
      positions, reinterpret_cast<const double*>(frequencies.view.data), theta, attention_factor, half, sum};
  Angles angles = std::exchange(kept_angles(), Angles());
  const int64_t seq_len = x.view.shape[x.view.rank - 2];
  const Rows rows = rows_of(x.view);
  const int64_t rows_per_sequence = positions.per_sequence ? rows.count / x.view.shape[0] : rows.count;
  {
    NoGil nogil;
    if (!angles.are(wanted)) angles.compute(wanted);
    const RopeArgs args{rows,
                        rows_of(out.view),
                        layout,
                        half,
                        seq_len,
                        rows_per_sequence,
                        positions.per_sequence ? seq_len : 0,
                        angles.table()};
    const KernelTable& table = kernels();
    parallel_for(rows.count, grain_of(rows.length),
                 [&](int64_t begin, int64_t end) { table.rope(args, begin, end); });
    out.finish();
  }
  if (angles.nbytes() <= kMostKept) kept_angles() = std::move(angles);
  return std::move(out.array);
}

}  // namespace

void bind_rope(py::module_& module) { module.def("rope", &rope); }

}  // namespace simdformer
