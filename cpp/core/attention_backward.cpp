#include "core/attention_backward.hpp"

#include <algorithm>

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {

void attention_backward(const AttentionBackward& gradients) {
  const Attention& call = gradients.call;
  const int rank = call.query.rank;
  AttentionBackwardArgs args{};
  AttentionArgs& forward = args.forward;
  args.gradients = &gradients;
  forward.call = &call;
  forward.queries = call.query.shape[rank - 2];
  forward.depth = call.query.shape[rank - 1];
  forward.kv_heads = call.key.shape[rank - 3];
  forward.keys = call.key.shape[rank - 2];
  forward.value_depth = call.value.shape[rank - 1];
  int64_t sequences = 1;
  for (int axis = 0; axis < rank - 3; ++axis) sequences *= call.query.shape[axis];
  const int64_t heads = forward.heads = sequences * forward.kv_heads;
  if (heads == 0 || call.query.shape[rank - 3] == 0 || forward.queries == 0) return;
  forward.group = call.query.shape[rank - 3] / forward.kv_heads;

  const KernelTable& table = kernels();
  const int64_t rows = forward.queries * forward.group;
  const auto of_rows = [&](int64_t length) {
    return static_cast<double>(rows) * static_cast<double>(length);
  };
  parallel_for(heads, grain_of(of_rows(forward.value_depth + 8) * cost::element),
               [&](int64_t begin, int64_t end) { table.attention_delta(args, begin, end); });

  // Few heads are cut into parts, so that there is work for several threads.
  const int64_t blocks = std::max<int64_t>(ceil_div(forward.keys, kBackwardKeys), 1);
  const int64_t wanted = std::clamp<int64_t>(ceil_div(kAttentionItems, heads), 1, blocks);
  args.part_keys = ceil_div(blocks, wanted) * kBackwardKeys;
  args.parts = std::max<int64_t>(ceil_div(forward.keys, args.part_keys), 1);
  const int64_t size = itemsize(accumulator(call.query.dtype));
  const int64_t head_bytes = bytes_of(args.parts, rows, whole_panels(forward.depth), size);
  const int64_t wave = std::clamp<int64_t>(kAttentionBytes / std::max<int64_t>(head_bytes, 1), 1, heads);
  const Scratch sums(bytes_of(wave, head_bytes));
  args.d_query = sums.as<void>();
  const int64_t scratch = bytes_of(backward_scratch(forward), size);
  const double terms = of_rows(std::min(args.part_keys, forward.keys)) *
                       static_cast<double>(3 * forward.depth + 2 * forward.value_depth);
  for (args.first_head = 0; args.first_head < heads; args.first_head += wave) {
    const int64_t count = std::min(wave, heads - args.first_head);
    parallel_for(count * args.parts, fine_grain_of(2 * terms * cost::product, count * args.parts),
                 [&](int64_t begin, int64_t end) {
                   const Scratch memory(scratch);
                   table.attention_backward(args, memory.as<void>(), begin, end);
                 });
    if (gradients.d_query.data != nullptr)
      parallel_for(count * rows, grain_of_rows(forward.depth * args.parts),
                   [&](int64_t begin, int64_t end) { table.attention_backward_queries(args, begin, end); });
  }
}

}  // namespace simdformer
