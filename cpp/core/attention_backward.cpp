#include "core/attention_backward.hpp"

#include <algorithm>
#include <cstring>

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// Rows of a band: packed four times they take a megabyte, half of a second cache.
int64_t band_rows_of(int64_t rows, int64_t width) {
  constexpr int64_t kElements = int64_t{1} << 17;
  const int64_t most =
      std::clamp<int64_t>(kElements / width / kBackwardRows * kBackwardRows, kBackwardRows, 2048);
  const int64_t bands = ceil_div(rows, most);
  return ceil_div(ceil_div(rows, bands), kBackwardRows) * kBackwardRows;
}

void clear(const View* view) {
  if (view != nullptr && view->size() > 0)
    std::memset(view->data, 0, static_cast<size_t>(bytes_of(view->size(), itemsize(view->dtype))));
}

// Everything but clearing: each key and each query of the call is written.
void backward(const AttentionBackward& call) {
  AttentionBackwardArgs args{};
  AttentionArgs& heads = args.heads;
  const Attention& forward = call.forward;
  const int rank = forward.query.rank;
  args.call = &call;
  heads.call = &forward;
  heads.queries = forward.query.shape[rank - 2];
  heads.depth = forward.query.shape[rank - 1];
  heads.kv_heads = forward.key.shape[rank - 3];
  heads.keys = forward.key.shape[rank - 2];
  heads.value_depth = forward.value.shape[rank - 1];
  int64_t sequences = 1;
  for (int axis = 0; axis < rank - 3; ++axis) sequences *= forward.query.shape[axis];
  heads.heads = sequences * heads.kv_heads;
  if (heads.heads == 0 || forward.query.shape[rank - 3] == 0) return;
  heads.group = forward.query.shape[rank - 3] / heads.kv_heads;
  const int64_t rows = query_rows(heads), width = heads.depth + heads.value_depth;
  if (rows == 0 || heads.keys == 0) return;

  // Parts of the keys: enough of them for all threads, and none that takes long.
  const int64_t most_keys = std::max<int64_t>(kBackwardTerms / (rows * width), 1);
  const int64_t wanted = std::max(ceil_div(kAttentionItems, heads.heads), ceil_div(heads.keys, most_keys));
  const int64_t parts = std::clamp<int64_t>(wanted, 1, ceil_div(heads.keys, 2 * kBackwardKeys));
  args.part_keys = ceil_div(ceil_div(heads.keys, parts), kBackwardKeys) * kBackwardKeys;
  const int64_t all_parts = ceil_div(heads.keys, args.part_keys);
  args.band_rows = band_rows_of(rows, width);
  const auto is_bf16 = [](const View& view) { return view.dtype == DType::bf16; };
  heads.pairs = kernels().bf16_pairs && is_bf16(forward.query) && is_bf16(forward.key);

  const int64_t size = itemsize(accumulator(forward.query.dtype));
  const int64_t row_bytes = bytes_of(whole_panels(heads.depth), size);
  const bool merges = all_parts > 1 && call.d_query != nullptr;
  const int64_t item_bytes = merges ? bytes_of(rows, row_bytes) : 0;
  const int64_t together =
      merges ? std::clamp<int64_t>(kBackwardBytes / item_bytes, 1, bytes_of(heads.heads, all_parts))
             : bytes_of(heads.heads, all_parts);
  const int64_t wave_parts = std::min(together, all_parts),
                wave = std::clamp<int64_t>(together / wave_parts, 1, heads.heads);
  const bool several = wave_parts < all_parts;
  const Scratch partials(bytes_of(wave * wave_parts, item_bytes));
  const Scratch sums(merges && several ? bytes_of(wave, item_bytes) : 0);
  args.partials = merges ? partials.as<void>() : nullptr;
  args.sums = merges && several ? sums.as<void>() : nullptr;

  const KernelTable& table = kernels();
  const int64_t scratch_bytes = bytes_of(backward_scratch(args), size);
  const double item_terms = 2.5 * static_cast<double>(rows * width) * static_cast<double>(args.part_keys);
  const double row_cost = cost::element * static_cast<double>(heads.depth * wave_parts);
  for (heads.first_head = 0; heads.first_head < heads.heads; heads.first_head += wave) {
    const int64_t count = std::min(wave, heads.heads - heads.first_head);
    for (args.first_part = 0; args.first_part < all_parts; args.first_part += wave_parts) {
      args.parts = std::min(wave_parts, all_parts - args.first_part);
      args.first_pass = args.first_part == 0;
      args.last_pass = args.first_part + args.parts == all_parts;
      parallel_for(count * args.parts, grain_of(item_terms * cost::product), [&](int64_t begin, int64_t end) {
        const Scratch scratch(scratch_bytes);
        table.attention_backward(args, scratch.as<void>(), begin, end);
      });
      if (merges)
        parallel_for(count * rows, grain_of(row_cost),
                     [&](int64_t begin, int64_t end) { table.attention_backward_merge(args, begin, end); });
    }
  }
}

bool is_empty(const AttentionBackward& call) {
  return call.forward.query.size() == 0 || call.forward.key.size() == 0;
}

}  // namespace

void attention_backward(const AttentionBackward& call) {
  clear(call.d_mask);  // hidden tiles are left out
  if (is_empty(call))
    for (const View* view : {call.d_query, call.d_key, call.d_value, call.delta}) clear(view);
  else
    backward(call);
}

void attention_backward(const AttentionBackward& call, const Segment* segments, int64_t count) {
  for (const View* view : {call.d_query, call.d_key, call.d_value, call.d_mask, call.delta}) clear(view);
  if (is_empty(call)) return;
  for_each_segment(call.forward, segments, count, [&](const Attention& own, const Segment& segment) {
    AttentionBackward part = call;
    part.forward = own;
    part.grad = queries_of(call.grad, segment);
    View grad_lse, d_query, d_key, d_value, d_mask, delta;
    const auto of = [&](const View* whole, View& view, View (*narrowed)(const View&, const Segment&)) {
      return whole == nullptr ? nullptr : &(view = narrowed(*whole, segment));
    };
    part.grad_lse = of(call.grad_lse, grad_lse, rows_of_queries);
    part.delta = of(call.delta, delta, rows_of_queries);
    part.d_query = of(call.d_query, d_query, queries_of);
    part.d_key = of(call.d_key, d_key, keys_of);
    part.d_value = of(call.d_value, d_value, keys_of);
    part.d_mask = of(call.d_mask, d_mask, scores_of);
    if (!is_empty(part)) backward(part);
  });
}

}  // namespace simdformer
