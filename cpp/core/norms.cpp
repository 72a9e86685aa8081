#include "core/norms.hpp"

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/parameter.hpp"
#include "core/work.hpp"

namespace simdformer {

void rms_norm(const View& x, const View* weight, double eps, const View& out) {
  if (x.size() == 0) return;
  const Rows rows = rows_of(x);
  const auto read = rows.count <= kFewNormRows ? Parameter::Read::as_x : Parameter::Read::widened;
  const Parameter w(weight, x.dtype, read);
  RmsNormArgs args{rows, rows_of(out), w.data(), w.dtype(), eps};
  args.past_caches = past_caches(args.out, args.x);
  const KernelTable& table = kernels();
  parallel_for(args.x.count, grain_of_rows(args.x.length),
               [&](int64_t begin, int64_t end) { table.rms_norm(args, begin, end); });
}

void layer_norm(const View& x, const View* weight, const View* bias, double eps, const View& out) {
  if (x.size() == 0) return;
  const Parameter w(weight, x.dtype), b(bias, x.dtype);
  LayerNormArgs args{rows_of(x), rows_of(out), w.data(), b.data(), eps};
  args.past_caches = past_caches(args.out, args.x);
  const KernelTable& table = kernels();
  parallel_for(args.x.count, grain_of_rows(args.x.length),
               [&](int64_t begin, int64_t end) { table.layer_norm(args, begin, end); });
}

}  // namespace simdformer
