// rope: rotary position embedding.
#include "core/rope.hpp"

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/row_wise.hpp"

namespace simdformer {

namespace {

// The arguments as errors name them: of rope, or of its backward.
struct Names {
  bool backward;

  Arg of(const char* name) const { return {backward ? "backward.rope" : "rope", name}; }
  Arg x() const { return of(backward ? "grad" : "x"); }
};

int64_t read_rotary_dim(const Names& names, py::handle object, int64_t head_dim) {
  if (object.is_none()) {
    if (head_dim == 0 || head_dim % 2 != 0)
      refuse_value(names.x(), "has a last axis of " + std::to_string(head_dim),
                   "an even head_dim, at least 2",
                   head_dim > 2 ? "rotary_dim turns only the first elements" : "");
    return head_dim;
  }
  const int64_t rotary_dim = read_integer(names.of("rotary_dim"), object);
  if (rotary_dim < 2 || rotary_dim > head_dim || rotary_dim % 2 != 0)
    refuse_value(names.of("rotary_dim"), "is " + std::to_string(rotary_dim),
                 "an even number from 2 to head_dim = " + std::to_string(head_dim));
  return rotary_dim;
}

// Where the tokens stand: given, as one row or one for each entry of the first axis of x, or an offset and
// the numbers after it.
void read_positions(const Names& names, py::handle positions_object, py::handle offset_object, const View& x,
                    Integers& positions, Rope& call) {
  const int64_t seq_len = x.shape[x.rank - 2];
  call.offset = read_integer(names.of("offset"), offset_object);
  if (positions_object.is_none()) {
    checked_add(names.of("offset"), call.offset, seq_len);
    return;
  }
  if (call.offset != 0)
    refuse_value(names.of("positions"), "is given together with an offset", "only one of the two",
                 "add the offset to positions");
  positions = read_integers(names.of("positions"), positions_object);
  check_not_wrapped(names.of("positions"), positions);
  call.positions = positions.data;
  call.by_sequence = positions.rank == 2 && x.rank > 2;
  const bool fits = call.by_sequence ? positions.shape[0] == x.shape[0] && positions.shape[1] == seq_len
                                     : positions.rank == 1 && positions.shape[0] == seq_len;
  if (fits) return;
  const int64_t each[] = {seq_len}, every[] = {x.shape[0], seq_len};
  refuse_value(names.of("positions"), "has shape " + shape_text(positions.rank, positions.shape),
               shape_text(1, each) + (x.rank > 2 ? " or " + shape_text(2, every) : "") +
                   std::string(" beside ") + names.x().name + " of shape " + shape_text(x));
}

// (rotary_dim / 2) numbers as float64, or theta in their place.
void read_frequencies(const Names& names, py::handle theta, py::handle inv_freq_object, Operand& inv_freq,
                      Rope& call) {
  if (!theta.is_none()) call.theta = read_positive(names.of("theta"), theta);
  if (inv_freq_object.is_none()) return;
  if (!theta.is_none())
    refuse_value(names.of("inv_freq"), "is given together with a theta", "only one of the two",
                 "theta is part of inv_freq");
  inv_freq.given = true;
  inv_freq.input = read_array(names.of("inv_freq"), inv_freq_object);
  const View& view = inv_freq.input.view;
  check_vector(names.of("inv_freq"), view, call.rotary_dim / 2,
               "one frequency for each pair of the rotary_dim");
  convert(names.of("inv_freq"), inv_freq.input, DType::f64);
}

py::object rope_call(py::handle backward, py::handle x, py::handle layout, py::handle positions_object,
                     py::handle offset, py::handle theta, py::handle inv_freq_object,
                     py::handle attention_factor, py::handle rotary_dim, py::handle out) {
  static const char* const kLayouts[] = {"half", "interleaved", nullptr};
  const Names names{read_flag({"rope", "backward"}, backward)};
  Rope call;
  call.backward = names.backward;
  Integers positions;
  Operand inv_freq(names.of("inv_freq"));
  return row_wise(
      names.x(), x, out, {&inv_freq},
      [&](const View& x) {
        check_rank_at_least(names.x(), x, 2, "(..., T, D): positions, then the numbers to rotate");
        call.layout = static_cast<RopeLayout>(read_name(names.of("layout"), layout, kLayouts));
        call.rotary_dim = read_rotary_dim(names, rotary_dim, x.shape[x.rank - 1]);
        read_positions(names, positions_object, offset, x, positions, call);
        read_frequencies(names, theta, inv_freq_object, inv_freq, call);
        call.attention_factor = read_finite(names.of("attention_factor"), attention_factor);
        return last_axis(x);
      },
      [&](const View& x, const View& out) {
        if (inv_freq.given) call.inv_freq = reinterpret_cast<const double*>(inv_freq.input.view.data);
        rope(x, call, out);
      });
}

}  // namespace

void bind_rope(py::module_& module) { module.def("rope", &rope_call); }

}  // namespace simdformer
