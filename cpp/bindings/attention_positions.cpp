// Where queries and keys of scaled_dot_product_attention stand: causality, windows, chunks, where each sequence
// begins and ends, pages.
#include <algorithm>

#include "bindings/attention.hpp"

namespace simdformer {
namespace {

constexpr Arg kIsCausal{kAttention, "is_causal"}, kWindow{kAttention, "window"}, kChunk{kAttention, "chunk"},
    kKeyStarts{kAttention, "key_starts"}, kKeyLengths{kAttention, "key_lengths"};

// Far beyond any array, so that positions, windows and chunks stay within 64 bits.
constexpr int64_t kFar = int64_t{1} << 61;

// ---- numbers for each sequence --------------------------------------------------------------------------

void read_per_sequence(const Arg& arg, py::handle object, const View& query, PerSequence& numbers) {
  if (PyLong_Check(object.ptr())) {
    numbers.one = read_integer(arg, object);
    return;
  }
  const Integers given = read_integers(arg, object);
  check_not_wrapped(arg, given);
  if (given.rank == 0) {
    numbers.one = *given.data;
    return;
  }
  const int leading = query.rank - 3;
  if (given.rank > leading || !std::equal(given.shape, given.shape + given.rank, query.shape))
    refuse_value(arg, "has shape " + shape_text(given.rank, given.shape),
                 leading == 0 ? "one integer, as query has no axis of sequences"
                              : "one integer, or one for each of the " + std::to_string(query.shape[0]) +
                                    " entries of the first axis");
  const int64_t sequences = sequences_of(query);
  if (sequences == 0) return;
  const int64_t repeats = sequences / given.size;
  numbers.each.resize(static_cast<size_t>(sequences));
  for (int64_t i = 0; i < sequences; ++i) numbers.each[static_cast<size_t>(i)] = given.data[i / repeats];
}

void check_between(const Arg& arg, const PerSequence& numbers, int64_t low, int64_t high,
                   const char* needed) {
  const auto check = [&](int64_t number) {
    if (number < low || number > high) refuse_value(arg, "is or holds " + std::to_string(number), needed);
  };
  check(numbers.one);
  for (const int64_t number : numbers.each) check(number);
}

// Where each sequence begins or ends: its keys, and null where that is not given.
const int64_t* read_bounds(const Arg& arg, py::handle object, const View& query, int64_t keys,
                           PerSequence& numbers) {
  if (object.is_none()) return nullptr;
  read_per_sequence(arg, object, query, numbers);
  check_between(arg, numbers, 0, keys, "numbers from 0 to S, the number of keys");
  if (numbers.each.empty()) numbers.each.assign(static_cast<size_t>(sequences_of(query)), numbers.one);
  return numbers.data();
}

// ---- causality, windows, chunks -------------------------------------------------------------------------

int64_t read_above_0(const Arg& arg, py::handle object) {
  const int64_t number = read_integer(arg, object);
  if (number <= 0) refuse_value(arg, "is " + std::to_string(number), "a number > 0");
  return std::min(number, 2 * kFar);
}

// How far a query sees to one side.
int64_t read_side(const Arg& arg, py::handle object) {
  if (object.is_none()) return kUnbounded;
  const int64_t side = read_integer(arg, object);
  if (side < 0) refuse_value(arg, "is " + std::to_string(side), "a number >= 0, or None for no bound");
  return std::min(side, 2 * kFar);
}

// (left, right), or one number for `window` keys with the query's own position on each side.
void read_window(py::handle window, Attention& call) {
  const bool is_pair = PyTuple_Check(window.ptr()) || PyList_Check(window.ptr());
  if (!is_pair) {
    call.left = call.right = read_above_0(kWindow, window) - 1;
    return;
  }
  const py::tuple pair(py::reinterpret_borrow<py::object>(window));  // which nobody can shorten
  if (pair.size() != 2)
    refuse_value(kWindow, "has " + std::to_string(pair.size()) + " entries",
                 "one number, or two: how far a query sees to the left and to the right");
  call.left = read_side({kAttention, "window", 0}, py::object(pair[0]));
  call.right = read_side({kAttention, "window", 1}, py::object(pair[1]));
}

// Where query 0 stands among the keys.
void read_offset(py::handle offset, bool is_causal, const View& query, const Sizes& sizes, Attention& call,
                 PerSequence& offsets) {
  if (!offset.is_none()) {
    read_offsets(offset, query, offsets);
    call.causal_offset = offsets.one;
    call.causal_offsets = offsets.data();
  } else if (sizes.queries != sizes.keys) {
    refuse_value(kCausalOffset,
                 "is not given while L = " + std::to_string(sizes.queries) +
                     " and S = " + std::to_string(sizes.keys) + " differ",
                 is_causal ? "to say which key is the last that query 0 may see"
                           : "to say at which key query 0 stands",
                 "0 lines up the first positions (top-left, PyTorch), S - L = " +
                     std::to_string(sizes.keys - sizes.queries) +
                     " the last (bottom-right: decoding with a cache, MLX, flash-attn)");
  }
}

}  // namespace

int64_t sequences_of(const View& query) {
  int64_t sequences = 1;
  for (int axis = 0; axis < query.rank - 3; ++axis) sequences *= query.shape[axis];
  return sequences;
}

void read_offsets(py::handle offset, const View& query, PerSequence& offsets) {
  read_per_sequence(kCausalOffset, offset, query, offsets);
  check_between(kCausalOffset, offsets, -kFar, kFar, "numbers within 2**61");
}

void read_positions(const PositionArguments& given, const View& query, const Sizes& sizes, Attention& call,
                    Positions& positions) {
  const bool is_causal = read_flag(kIsCausal, given.is_causal);
  if (!given.window.is_none()) read_window(given.window, call);
  if (is_causal) call.right = 0;
  if (!given.chunk.is_none()) call.chunk = read_above_0(kChunk, given.chunk);
  call.key_starts = read_bounds(kKeyStarts, given.key_starts, query, sizes.keys, positions.starts);
  call.key_lengths = read_bounds(kKeyLengths, given.key_lengths, query, sizes.keys, positions.lengths);

  const bool positions_count = call.left != kUnbounded || call.right != kUnbounded || call.chunk > 0;
  if (!positions_count && !given.causal_offset.is_none())
    refuse_value(kCausalOffset, "is given",
                 "is_causal=True, a window or a chunk, without which it has no meaning");
  if (!given.segment_ids.is_none() || !given.cu_seqlens.is_none())
    read_segments(given, positions_count, query, sizes, positions);
  else if (positions_count)
    read_offset(given.causal_offset, is_causal, query, sizes, call, positions.offsets);
}

std::vector<int64_t> read_pages(const Integers& table, const View& key, const Positions& positions) {
  check_not_wrapped(kBlockTable, table);
  const auto &starts = positions.starts.each, &lengths = positions.lengths.each;
  std::vector<int64_t> pages(table.data, table.data + table.size);
  const int64_t row = table.shape[table.rank - 1], size = key.shape[2];
  for (int64_t i = 0; i < table.size; ++i) {
    int64_t& page = pages[static_cast<size_t>(i)];
    const auto sequence = static_cast<size_t>(i / row);
    const int64_t first = i % row * size;
    const bool unused = (!lengths.empty() && first >= lengths[sequence]) ||
                        (!starts.empty() && first + size <= starts[sequence]);
    if (unused)
      page = 0;
    else if (page < 0 || page >= key.shape[0])
      refuse_value(
          kBlockTable, "holds " + std::to_string(page),
          "pages from 0 to " + std::to_string(key.shape[0] - 1) + " of key of shape " + shape_text(key),
          "what lies behind key_lengths may be anything");
  }
  return pages;
}

}  // namespace simdformer
