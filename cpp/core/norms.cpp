#include "core/norms.hpp"

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

const void* data_of(const View* parameter) { return parameter == nullptr ? nullptr : parameter->data; }
DType dtype_of(const View* parameter) { return parameter == nullptr ? DType::f32 : parameter->dtype; }

}  // namespace

void rms_norm(const View& x, const View* weight, double eps, const View& out) {
  if (x.size() == 0) return;
  RmsNormArgs args{rows_of(x), rows_of(out), data_of(weight), dtype_of(weight), eps};
  args.past_caches = past_caches(args.out, args.x);
  const KernelTable& table = kernels();
  parallel_for(args.x.count, grain_of_rows(args.x.length),
               [&](int64_t begin, int64_t end) { table.rms_norm(args, begin, end); });
}

void layer_norm(const View& x, const View* weight, const View* bias, double eps, const View& out) {
  if (x.size() == 0) return;
  LayerNormArgs args{rows_of(x),     rows_of(out), data_of(weight), dtype_of(weight), data_of(bias),
                     dtype_of(bias), eps};
  args.past_caches = past_caches(args.out, args.x);
  const KernelTable& table = kernels();
  parallel_for(args.x.count, grain_of_rows(args.x.length),
               [&](int64_t begin, int64_t end) { table.layer_norm(args, begin, end); });
}

}  // namespace simdformer
