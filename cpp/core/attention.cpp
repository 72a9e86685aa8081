#include "core/attention.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/attention_args.hpp"
#include "base/visible_keys.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/prefetching.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// Items to a chunk, at `terms` products an item. Beside them an item packs keys and takes exponentials.
int64_t grain_of_terms(double terms) { return grain_of(2 * terms * cost::product); }

// body(scratch, begin, end) on the threads, each chunk with scratch of its own.
template <class Body>
void parallel_with_scratch(int64_t count, int64_t grain, int64_t bytes, const Body& body) {
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    const Scratch scratch(bytes);
    body(scratch.as<void>(), begin, end);
  });
}

// The keys that some query of the call may see.
KeyRange seen_keys(const Attention& call, int64_t sequences, int64_t queries, int64_t keys) {
  KeyRange seen{keys, 0};
  for (int64_t b = 0; b < sequences; ++b) {
    const VisibleKeys visible = visible_keys(call, b, queries, keys);
    const KeyRange here{visible.begin(0), visible.end(queries - 1)};
    if (here.empty()) continue;
    seen.begin = std::min(seen.begin, here.begin);
    seen.end = std::max(seen.end, here.end);
  }
  return seen.empty() ? KeyRange{0, 0} : seen;
}

// Decode, few rows a head: chunks of keys side by side, then their sums are merged.
void decode(AttentionArgs& args, const KernelTable& table, int64_t heads, KeyRange seen, int64_t size) {
  if (args.call->scores || args.call->weights) seen = {0, args.keys};  // all of them are written
  args.first_key = seen.begin / kDecodeChunk * kDecodeChunk;
  args.last_key = seen.end;
  args.chunks = std::max<int64_t>(1, ceil_div(args.last_key - args.first_key, kDecodeChunk));
  const int64_t rows = args.queries * args.group;
  const double width = static_cast<double>(args.depth + args.value_depth);
  const double keys =
      static_cast<double>(std::min(kDecodeChunk, std::max<int64_t>(seen.end - args.first_key, 4)));
  const double key_bytes = width * static_cast<double>(itemsize(args.call->key.dtype));
  // A key costs at least its way from memory, in long rows, which is half of what cost::byte says.
  const double key_cost =
      std::max(2 * static_cast<double>(rows) * width * cost::product, key_bytes * cost::byte / 2);
  // In a forward pass the threads are awake, and all layers have passed through the caches since last time.
  const bool in_pass = are_awake();
  const int64_t grain =
      in_pass ? short_grain_of(key_cost * keys) : fine_grain_of(key_cost * keys, heads * args.chunks);
  const int64_t scratch = bytes_of(decode_scratch(args), size);
  const double bytes = static_cast<double>(heads) * static_cast<double>(seen.end - seen.begin) * key_bytes;
  args.far = in_pass || bytes >= kFarBytes;
  Prefetching prefetching(table, bytes);
  args.goal = prefetching.goal(Prefetched::keys, args.call->key.dtype);
  if (args.chunks == 1) {
    args.first_head = 0;
    args.partials = nullptr;
    return parallel_with_scratch(heads, grain, scratch, [&](void* memory, int64_t begin, int64_t end) {
      table.attention_decode(args, memory, begin, end);
    });
  }
  const int64_t head_bytes = bytes_of(args.chunks, sums_size(args, rows), size);
  const int64_t wave = std::clamp<int64_t>(kAttentionBytes / head_bytes, 1, heads);
  const Scratch partials(bytes_of(wave, head_bytes));
  args.partials = partials.as<void>();
  for (args.first_head = 0; args.first_head < heads; args.first_head += wave) {
    const int64_t count = std::min(wave, heads - args.first_head);
    parallel_with_scratch(count * args.chunks, grain, scratch, [&](void* memory, int64_t begin, int64_t end) {
      table.attention_decode(args, memory, begin, end);
    });
    parallel_for(count, grain_of_terms(static_cast<double>(rows * args.chunks) * width * 4),
                 [&](int64_t begin, int64_t end) { table.attention_merge(args, begin, end); });
  }
}

// Prefill, many rows a head: blocks of queries side by side, over as many keys at a time as keep an item
// short. Large blocks pack the keys and values that they see themselves, a few at a time, which then are in
// the caches of their core. Where there would be too few of them, blocks are small, and the keys of a head are
// packed once for all.
void prefill(AttentionArgs& args, const KernelTable& table, int64_t heads, KeyRange seen, int64_t size) {
  const int64_t width = args.depth + args.value_depth, rows = args.queries * args.group;
  const int64_t most = std::clamp<int64_t>((kMostBlockRows * 256) / width, kStripRows, kMostBlockRows);
  const int64_t whole_passes = kItemTerms / width / std::max<int64_t>(seen.end - seen.begin, 1);
  const int64_t own_rows = std::min((kOwnRows * 256) / width, whole_passes);
  const bool own = own_rows > most && heads * ceil_div(rows, own_rows) >= kAttentionItems;
  const int64_t wanted =
      own ? own_rows
          : std::clamp<int64_t>(heads * rows / kAttentionItems, std::min(kFewestAttentionRows, most), most);
  args.block_queries =
      ceil_div(args.queries, ceil_div(args.queries, std::max<int64_t>(wanted / args.group, 1)));
  const int64_t blocks = ceil_div(args.queries, args.block_queries);
  const int64_t block_rows = args.block_queries * args.group;

  const int64_t begin = seen.begin / kKeyBlock * kKeyBlock;
  const int64_t pass_blocks =
      std::clamp<int64_t>(kItemTerms / (block_rows * width * kKeyBlock), 1,
                          std::max<int64_t>(ceil_div(seen.end - begin, kKeyBlock), 1));
  const int64_t pass = pass_blocks * kKeyBlock;
  const bool several_passes = seen.end - begin > pass;

  const int64_t packed_bytes = blocks > 1 && !own ? bytes_of(pass_blocks, packed_block_size(args), size) : 0;
  const int64_t state_bytes = several_passes ? bytes_of(sums_size(args, block_rows), size) : 0;
  const int64_t wave_blocks =
      std::clamp<int64_t>(kAttentionBytes / std::max<int64_t>(state_bytes, 1), 1, blocks);
  const int64_t head_bytes = packed_bytes + wave_blocks * state_bytes;
  const int64_t wave = std::clamp<int64_t>(kAttentionBytes / std::max<int64_t>(head_bytes, 1), 1, heads);
  const Scratch packed(wave * packed_bytes), state(bytes_of(wave * wave_blocks, state_bytes));
  args.packed = packed_bytes > 0 ? packed.as<void>() : nullptr;
  args.state = state_bytes > 0 ? state.as<void>() : nullptr;
  const int64_t scratch = bytes_of(prefill_scratch(args), size);

  for (args.first_head = 0; args.first_head < heads; args.first_head += wave) {
    const int64_t count = std::min(wave, heads - args.first_head);
    for (args.first_block = 0; args.first_block < blocks; args.first_block += wave_blocks) {
      args.blocks = std::min(wave_blocks, blocks - args.first_block);
      args.first_key = begin;
      do {
        args.last_key = std::min(args.first_key + pass, std::max(seen.end, begin));
        args.first_pass = args.first_key == begin;
        args.last_pass = args.last_key >= seen.end;
        args.items = count * args.blocks;
        if (args.packed != nullptr)
          parallel_for(count * ceil_div(args.last_key - args.first_key, kKeyBlock),
                       grain_of_terms(static_cast<double>(width * kKeyBlock) * 12),
                       [&](int64_t b, int64_t e) { table.attention_pack(args, b, e); });
        const double keys = static_cast<double>(std::max<int64_t>(args.last_key - args.first_key, 16));
        parallel_with_scratch(
            args.items, grain_of_terms(static_cast<double>(block_rows * width) * keys), scratch,
            [&](void* memory, int64_t b, int64_t e) { table.attention_prefill(args, memory, b, e); });
        args.first_key += pass;
      } while (args.first_key < seen.end);
    }
  }
}

// What else is wanted does not depend on the value: the first column of the keys stands in, and its sums go
// nowhere.
void attend_without_value(const Attention& call) {
  if (call.weights == nullptr && call.scores == nullptr && call.lse == nullptr) return;
  const int last = call.out.rank - 1;
  Attention stand_in = call;
  stand_in.value = call.key;
  stand_in.value.shape[stand_in.value.rank - 1] = stand_in.out.shape[last] = 1;
  int64_t stride = itemsize(call.out.dtype);
  for (int axis = last; axis >= 0; --axis) {
    stand_in.out.strides[axis] = stride;
    stride = bytes_of(stride, stand_in.out.shape[axis]);
  }
  const Scratch nowhere(stride);
  stand_in.out.data = nowhere.as<char>();
  attention(stand_in);
}

// (sequences, K, S, columns), contiguous and without memory, for what the pages of a pool hold.
View gathered_view(const Attention& call, const View& pool, int64_t sequences) {
  View view = pool;
  view.shape[0] = sequences, view.shape[2] = bytes_of(call.pages, pool.shape[2]);
  int64_t stride = itemsize(pool.dtype);
  for (int axis = pool.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride = bytes_of(stride, view.shape[axis]);
  }
  return view;
}

void gather(const Attention& call, const View& pool, const View& view) {
  if (pool.shape[0] == 0) return;  // no page is looked at
  const int64_t heads = pool.shape[1], page = pool.shape[2], keys = view.shape[2], row = view.strides[2];
  parallel_for(view.shape[0] * heads, grain_of(cost::byte * static_cast<double>(2 * view.strides[1])),
               [&](int64_t begin, int64_t end) {
                 for (int64_t item = begin; item < end; ++item) {
                   const int64_t* table = call.block_table + item / heads * call.pages;
                   const char* head = pool.data + item % heads * pool.strides[1];
                   for (int64_t j = 0; j < keys; ++j)
                     std::memcpy(view.data + item * view.strides[1] + j * row,
                                 head + table[j / page] * pool.strides[0] + j % page * pool.strides[2],
                                 static_cast<size_t>(row));
                 }
               });
}

// A panel of keys lies in one page. Where pages are too small for that, each sequence becomes a page.
void attend_gathered(const Attention& call, int64_t sequences) {
  Attention stand_in = call;
  stand_in.key = gathered_view(call, call.key, sequences);
  stand_in.value = gathered_view(call, call.value, sequences);
  const Scratch key(bytes_of(stand_in.key.strides[0], sequences));
  const Scratch value(bytes_of(stand_in.value.strides[0], sequences));
  stand_in.key.data = key.as<char>(), stand_in.value.data = value.as<char>();
  gather(call, call.key, stand_in.key), gather(call, call.value, stand_in.value);
  std::vector<int64_t> table(static_cast<size_t>(sequences));
  std::iota(table.begin(), table.end(), int64_t{0});
  stand_in.block_table = table.data();
  stand_in.pages = 1;
  attention(stand_in);
}

}  // namespace

void attention(const Attention& call) {
  if (call.value.shape[call.value.rank - 1] == 0) return attend_without_value(call);
  AttentionArgs args{};
  const int rank = call.query.rank;
  args.call = &call;
  args.queries = call.query.shape[rank - 2];
  args.depth = call.query.shape[rank - 1];
  const bool paged = call.block_table != nullptr;
  args.kv_heads = call.key.shape[call.key.rank - 3];
  args.keys = call.key.shape[call.key.rank - 2] * (paged ? call.pages : 1);
  args.value_depth = call.value.shape[call.value.rank - 1];
  int64_t sequences = 1;
  for (int axis = 0; axis < rank - 3; ++axis) sequences *= call.query.shape[axis];
  const int64_t heads = args.heads = sequences * args.kv_heads;
  if (heads == 0 || call.query.shape[rank - 3] == 0 || args.queries == 0) return;
  args.group = call.query.shape[rank - 3] / args.kv_heads;
  if (paged && call.pages > 1 && call.key.shape[2] % kPanelColumns != 0)
    return attend_gathered(call, sequences);

  const KernelTable& table = kernels();
  args.pairs = table.bf16_pairs && call.query.dtype == DType::bf16 && call.key.dtype == DType::bf16;
  const KeyRange seen = seen_keys(call, sequences, args.queries, args.keys);
  const int64_t size = itemsize(accumulator(call.query.dtype));
  // Prompts are read from pages in pieces of any length, as batches come, and with the same bits.
  const bool few_rows = args.queries * args.group <= kDecodeRows && (!paged || args.queries == 1);
  if (few_rows)
    decode(args, table, heads, seen, size);
  else
    prefill(args, table, heads, seen, size);
}

}  // namespace simdformer
