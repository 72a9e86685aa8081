#include "core/activations.hpp"

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

void swiglu(const View& gate, const View& up, const View& out) {
  if (gate.size() == 0) return;
  View left = gate, right = up, target = out;
  View* const all[] = {&left, &right, &target};
  merge_last_axes(all, 3);
  SwigluArgs args{rows_of(left), rows_of(right), rows_of(target), kSegment};
  args.past_caches = past_caches(args.out, args.gate, args.up);
  const KernelTable& table = kernels();
  parallel_for(pieces_of(args.out), grain_of_pieces(args.out),
               [&](int64_t begin, int64_t end) { table.swiglu(args, begin, end); });
}

}  // namespace simdformer
