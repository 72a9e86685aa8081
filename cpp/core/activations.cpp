#include "core/activations.hpp"

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {

void activation(Activation kind, const View& x, const View& out) {
  if (x.size() == 0) return;
  View source = x, target = out;
  View* const both[] = {&source, &target};
  merge_last_axes(both, 2);
  ActivationArgs args{rows_of(source), rows_of(target), kind, kSegment};
  args.past_caches = past_caches(args.out, args.x);
  const KernelTable& table = kernels();
  parallel_for(pieces_of(args.x), grain_of_pieces(args.x),
               [&](int64_t begin, int64_t end) { table.activation(args, begin, end); });
}

namespace {

// out = kernel(x, y)
void join(const View& x, const View& y, const View& out, decltype(KernelTable::swiglu) kernel) {
  if (x.size() == 0) return;
  View left = x, right = y, target = out;
  View* const all[] = {&left, &right, &target};
  merge_last_axes(all, 3);
  PairArgs args{rows_of(left), rows_of(right), rows_of(target), kSegment};
  args.past_caches = past_caches(args.out, args.x, args.y);
  parallel_for(pieces_of(args.out), grain_of_pieces(args.out),
               [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

}  // namespace

void swiglu(const View& gate, const View& up, const View& out) { join(gate, up, out, kernels().swiglu); }

void add(const View& x, const View& y, const View& out) { join(x, y, out, kernels().add); }

}  // namespace simdformer
