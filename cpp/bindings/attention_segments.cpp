// Sequences packed one behind the other, for scaled_dot_product_attention: who belongs to whom, by ids or by
// cumulative lengths.
#include <algorithm>
#include <map>
#include <string>

#include "bindings/attention.hpp"

namespace simdformer {
namespace {

constexpr Arg kSegmentIds{kAttention, "segment_ids"}, kCuSeqlens{kAttention, "cu_seqlens"};

// One side of an argument that is a tuple of two, for queries and keys, or an array for both.
struct Side {
  Arg arg;
  Integers numbers;
  int64_t length;      // L or S
  const char* letter;  // "L" or "S"
};

Side read_side(Arg arg, py::handle object, int side, const Sizes& sizes) {
  const bool is_pair = PyTuple_Check(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == 2;
  if (!is_pair && sizes.queries != sizes.keys)
    refuse_value(arg,
                 "is one array while L = " + std::to_string(sizes.queries) +
                     " and S = " + std::to_string(sizes.keys) + " differ",
                 "a tuple of two, for the queries and for the keys");
  if (is_pair) {
    arg.index = side;
    object = PyTuple_GET_ITEM(object.ptr(), side);
  }
  Side read{arg, read_integers(arg, object), side == 0 ? sizes.queries : sizes.keys, side == 0 ? "L" : "S"};
  check_not_wrapped(arg, read.numbers);
  return read;
}

// `count` positions of a sequence that have an id together.
struct Run {
  int64_t id, first, count;
};

// ---- ids ------------------------------------------------------------------------------------------------

// (..., length) with the leading axes of the query, or (length) for all sequences.
void check_ids(const Side& side, const View& query) {
  const Integers& ids = side.numbers;
  const int leading = query.rank - 3;
  int64_t wanted[kMaxRank];
  std::copy(query.shape, query.shape + leading, wanted);
  wanted[leading] = side.length;
  const bool for_each = ids.rank == leading + 1 && std::equal(wanted, wanted + ids.rank, ids.shape);
  const bool for_all = ids.rank == 1 && ids.shape[0] == side.length;
  if (!for_each && !for_all)
    refuse_value(side.arg, "has shape " + shape_text(ids.rank, ids.shape), shape_text(leading + 1, wanted),
                 std::string("an id for each of the ") + side.letter + " positions");
}

using Runs = std::map<int64_t, Run>;  // by id

Runs find_runs(const Side& side, int64_t sequence) {
  const int64_t* const ids = side.numbers.data + (side.numbers.rank == 1 ? 0 : sequence * side.length);
  Runs runs;
  for (int64_t end, first = 0; first < side.length; first = end) {
    for (end = first + 1; end < side.length && ids[end] == ids[first];) ++end;
    if (!runs.insert({ids[first], {ids[first], first, end - first}}).second)
      refuse_value(side.arg,
                   "holds " + std::to_string(ids[first]) + " again at position " + std::to_string(first) +
                       " of sequence " + std::to_string(sequence),
                   "the positions of a segment side by side", "attn_mask takes any pattern");
  }
  return runs;
}

void segments_by_id(py::handle segment_ids, const View& query, const Sizes& sizes,
                    std::vector<Segment>& segments) {
  const Side queries = read_side(kSegmentIds, segment_ids, 0, sizes);
  const Side keys = read_side(kSegmentIds, segment_ids, 1, sizes);
  check_ids(queries, query), check_ids(keys, query);
  for (int64_t b = 0; b < sequences_of(query); ++b) {
    const Runs of_keys = find_runs(keys, b);
    for (const auto& [id, run] : find_runs(queries, b)) {
      const auto found = of_keys.find(id);
      const Run seen = found == of_keys.end() ? Run{id, 0, 0} : found->second;
      segments.push_back({b, run.first, run.count, seen.first, seen.count, 0});
    }
  }
}

// ---- cumulative lengths ---------------------------------------------------------------------------------

// What is wrong with them; empty: nothing.
std::string fault_of(const Side& side) {
  const Integers& ends = side.numbers;
  if (ends.rank != 1 || ends.size == 0) return "has shape " + shape_text(ends.rank, ends.shape);
  const int64_t *const begin = ends.data, *const end = begin + ends.size;
  if (begin[0] != 0) return "begins with " + std::to_string(begin[0]);
  const int64_t* const falls = std::is_sorted_until(begin, end);
  if (falls != end) return "falls from " + std::to_string(falls[-1]) + " to " + std::to_string(*falls);
  return end[-1] == side.length ? "" : "ends with " + std::to_string(end[-1]);
}

void check_cumulative(const Side& side) {
  const std::string fault = fault_of(side);
  if (!fault.empty())
    refuse_value(
        side.arg, fault,
        std::string("(N + 1,) numbers from 0 up to ") + side.letter + " = " + std::to_string(side.length),
        "segment n has the positions from cu_seqlens[n] to cu_seqlens[n + 1]");
}

void segments_by_length(py::handle cu_seqlens, const View& query, const Sizes& sizes,
                        std::vector<Segment>& segments) {
  if (sequences_of(query) != 1)
    refuse_value(kCuSeqlens, "is given beside " + std::to_string(sequences_of(query)) + " sequences",
                 "one, in which all others are packed", "segment_ids packs each sequence of a batch");
  const Side queries = read_side(kCuSeqlens, cu_seqlens, 0, sizes);
  const Side keys = read_side(kCuSeqlens, cu_seqlens, 1, sizes);
  check_cumulative(queries), check_cumulative(keys);
  if (queries.numbers.size != keys.numbers.size)
    refuse_value(kCuSeqlens,
                 "has " + std::to_string(queries.numbers.size) + " numbers for the queries and " +
                     std::to_string(keys.numbers.size) + " for the keys",
                 "as many for the ones as for the others");
  const int64_t *q = queries.numbers.data, *k = keys.numbers.data;
  for (int64_t n = 0; n + 1 < queries.numbers.size; ++n)
    segments.push_back({0, q[n], q[n + 1] - q[n], k[n], k[n + 1] - k[n], 0});
}

// ---- offsets --------------------------------------------------------------------------------------------

void check_lengths_agree(const std::vector<Segment>& segments) {
  for (const Segment& segment : segments)
    if (segment.queries != segment.keys && segment.queries > 0 && segment.keys > 0)
      refuse_value(
          kCausalOffset,
          "is not given while L = " + std::to_string(segment.queries) +
              " and S = " + std::to_string(segment.keys) + " differ in a segment",
          "to say at which of its keys the first query of a segment stands",
          "0 lines up the first positions, the number of keys less that of queries the last (flash-attn)");
}

}  // namespace

void read_segments(const PositionArguments& given, bool positions_count, const View& query,
                   const Sizes& sizes, Positions& positions) {
  std::vector<Segment>& segments = positions.segments;
  const bool by_id = !given.segment_ids.is_none();
  if (by_id && !given.cu_seqlens.is_none())
    refuse_value(kSegmentIds, "is given beside cu_seqlens", "one of them");
  if (given.paged)
    refuse_value(by_id ? kSegmentIds : kCuSeqlens, "is given beside a block_table",
                 "keys that lie one behind the other", "a sequence of its own for each text has pages");
  if (by_id)
    segments_by_id(given.segment_ids, query, sizes, segments);
  else
    segments_by_length(given.cu_seqlens, query, sizes, segments);
  if (!positions_count) return;
  if (given.causal_offset.is_none()) return check_lengths_agree(segments);

  PerSequence& offsets = positions.offsets;
  View counted = query;  // of cumulative lengths it is the segments that may have an offset each
  if (!by_id && query.rank == kMaxRank)
    refuse_value(kQuery, "has 64 axes", "at most 63 beside cu_seqlens and an offset");
  if (!by_id) insert_axis(counted, 0, static_cast<int64_t>(segments.size()), 0);
  read_offsets(given.causal_offset, counted, offsets);
  for (size_t n = 0; n < segments.size(); ++n) {
    const size_t place = by_id ? static_cast<size_t>(segments[n].sequence) : n;
    segments[n].causal_offset = offsets.each.empty() ? offsets.one : offsets.each[place];
  }
}

}  // namespace simdformer
