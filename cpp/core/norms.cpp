#include "core/norms.hpp"

#include <optional>

#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// A weight or bias as the kernels read it, in the accumulator's type of x: widened once a call where it has another.
class Parameter {
 public:
  Parameter(const View* given, DType x) {
    if (given == nullptr) return;
    data_ = given->data;
    const DType wide = accumulator(x);
    if (given->dtype == wide) return;
    widened_.emplace(given->size() * itemsize(wide));
    data_ = widened_->as<void>();
    ConvertArgs args;
    args.x.data = given->data, args.out.data = widened_->as<char>();
    args.x.dtype = given->dtype, args.out.dtype = wide;
    args.x.count = args.out.count = 1;
    args.x.length = args.out.length = args.segment = given->size();
    kernels().convert(args, 0, 1);
  }

  const void* data() const { return data_; }

 private:
  std::optional<Scratch> widened_;
  const void* data_ = nullptr;
};

}  // namespace

void rms_norm(const View& x, const View* weight, double eps, const View& out) {
  if (x.size() == 0) return;
  const Parameter w(weight, x.dtype);
  RmsNormArgs args{rows_of(x), rows_of(out), w.data(), eps};
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
