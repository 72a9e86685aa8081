#include "core/softmax.hpp"

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/prefetching.hpp"
#include "core/work.hpp"

namespace simdformer {

void softmax(const View& x, double temperature, const View& out) {
  if (x.size() == 0) return;
  SoftmaxArgs args{rows_of(x), rows_of(out), temperature};
  args.past_caches = past_caches(args.out, args.x);
  const KernelTable& table = kernels();
  Prefetching prefetching(table, static_cast<double>(bytes_in(args.x)));
  args.goal = prefetching.goal(Prefetched::softmax_rows, args.x.dtype);
  parallel_for(args.x.count, grain_of_rows(args.x.length),
               [&](int64_t begin, int64_t end) { table.softmax(args, begin, end); });
}

}  // namespace simdformer
