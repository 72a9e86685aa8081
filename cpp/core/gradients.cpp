#include "core/gradients.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/sizes.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/parameter.hpp"
#include "core/work.hpp"

namespace simdformer {

// ---- element by element -----------------------------------------------------------------------------------

void activation_backward(Activation kind, const View& grad, const View& x, const View& out) {
  if (x.size() == 0) return;
  View dy = grad, source = x, target = out;
  View* const all[] = {&dy, &source, &target};
  merge_last_axes(all, 3);
  ActivationBackwardArgs args{rows_of(dy), rows_of(source), rows_of(target), kind, kSegment};
  args.past_caches = past_caches(args.out, args.grad, args.x);
  const KernelTable& table = kernels();
  parallel_for(pieces_of(args.x), grain_of_pieces(args.x),
               [&](int64_t begin, int64_t end) { table.activation_backward(args, begin, end); });
}

void swiglu_backward(const View& grad, const View& gate, const View& up, const View& d_gate,
                     const View& d_up) {
  if (grad.size() == 0) return;
  View views[] = {grad, gate, up, d_gate, d_up};
  View* const all[] = {&views[0], &views[1], &views[2], &views[3], &views[4]};
  merge_last_axes(all, 5);
  const SwigluBackwardArgs args{rows_of(views[0]), rows_of(views[1]), rows_of(views[2]),
                                rows_of(views[3]), rows_of(views[4]), kSegment};
  const KernelTable& table = kernels();
  parallel_for(pieces_of(args.grad), grain_of_pieces(args.grad),
               [&](int64_t begin, int64_t end) { table.swiglu_backward(args, begin, end); });
}

// ---- row by row -------------------------------------------------------------------------------------------

void log_softmax(const View& x, const View& out) {
  if (x.size() == 0) return;
  const LogSoftmaxArgs args{rows_of(x), rows_of(out)};
  const KernelTable& table = kernels();
  parallel_for(args.x.count, grain_of_rows(2 * args.x.length),
               [&](int64_t begin, int64_t end) { table.log_softmax(args, begin, end); });
}

void softmax_backward(const View& grad, const View& y, double temperature, bool is_log, const View& out) {
  if (y.size() == 0) return;
  const SoftmaxBackwardArgs args{rows_of(grad), rows_of(y), rows_of(out), temperature, is_log};
  const KernelTable& table = kernels();
  parallel_for(args.y.count, grain_of_rows(args.y.length),
               [&](int64_t begin, int64_t end) { table.softmax_backward(args, begin, end); });
}

// ---- sums over rows ---------------------------------------------------------------------------------------

namespace {

int64_t blocks_of(int64_t rows) { return ceil_div(rows, kGradientRows); }

// Rows `first`, first + 2 step, ... of (blocks, n), contiguous.
Rows every_other(char* sums, DType dtype, int64_t n, int64_t first, int64_t step, int64_t count) {
  const int64_t row = n * itemsize(dtype);
  Rows rows;
  rows.data = sums + first * row;
  rows.dtype = dtype;
  rows.count = count;
  rows.length = n;
  rows.rank = 1;
  rows.shape[0] = count;
  rows.strides[0] = 2 * step * row;
  return rows;
}

// Row 0 of sums (blocks, n) becomes the sum of all, in pairs, the pairs in pairs and so on; then `out` is that.
void add_up(char* sums, int64_t blocks, const View& out) {
  const int64_t n = out.shape[0];
  const KernelTable& table = kernels();
  for (int64_t step = 1; step < blocks; step *= 2) {
    const int64_t pairs = ceil_div(blocks - step, 2 * step);
    PairArgs args;
    args.x = args.out = every_other(sums, out.dtype, n, 0, step, pairs);
    args.y = every_other(sums, out.dtype, n, step, step, pairs);
    args.segment = kSegment;
    parallel_for(pieces_of(args.x), grain_of_pieces(args.x),
                 [&](int64_t begin, int64_t end) { table.add(args, begin, end); });
  }
  std::memcpy(out.data, sums, static_cast<size_t>(n * itemsize(out.dtype)));
}

}  // namespace

void norm_backward(const NormBackward& call) {
  if (call.x.size() == 0) return;
  const Parameter weight(call.weight, call.x.dtype);
  NormBackwardArgs args{};
  args.grad = rows_of(call.grad);
  args.x = rows_of(call.x);
  args.out = rows_of(call.dx);
  args.weight = weight.data();
  args.eps = call.eps;
  args.centred = call.centred;
  const int64_t blocks = blocks_of(args.x.count);
  const int64_t bytes = bytes_of(blocks, args.x.length, itemsize(accumulator(call.x.dtype)));
  const Scratch of_weight(call.d_weight != nullptr ? bytes : 0), of_bias(call.d_bias != nullptr ? bytes : 0);
  args.d_weight = call.d_weight != nullptr ? of_weight.as<void>() : nullptr;
  args.d_bias = call.d_bias != nullptr ? of_bias.as<void>() : nullptr;
  const KernelTable& table = kernels();
  parallel_for(blocks, grain_of_rows(2 * kGradientRows * args.x.length),
               [&](int64_t begin, int64_t end) { table.norm_backward(args, begin, end); });
  if (call.d_weight != nullptr) add_up(of_weight.as<char>(), blocks, *call.d_weight);
  if (call.d_bias != nullptr) add_up(of_bias.as<char>(), blocks, *call.d_bias);
}

void sum_over_rows(const View& x, const View& out) {
  if (x.size() == 0) {
    std::memset(out.data, 0, static_cast<size_t>(out.size() * itemsize(out.dtype)));
    return;
  }
  SumRowsArgs args{};
  args.x = rows_of(x);
  args.stride = args.x.length;
  const int64_t blocks = blocks_of(args.x.count);
  const Scratch sums(bytes_of(blocks, args.x.length, itemsize(out.dtype)));
  args.out = sums.as<void>();
  std::vector<int64_t> starts(static_cast<size_t>(blocks) + 1);
  for (int64_t b = 0; b <= blocks; ++b)
    starts[static_cast<size_t>(b)] = std::min(b * kGradientRows, args.x.count);
  args.starts = starts.data();
  const KernelTable& table = kernels();
  parallel_for(blocks, grain_of_rows(kGradientRows * args.x.length),
               [&](int64_t begin, int64_t end) { table.sum_rows(args, begin, end); });
  add_up(sums.as<char>(), blocks, out);
}

void embedding_backward(const View& grad, const int64_t* ids, int64_t count, const View& out) {
  if (grad.size() == 0) return;
  std::vector<int64_t> places(static_cast<size_t>(count)), starts, targets;
  std::iota(places.begin(), places.end(), int64_t{0});
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) { return ids[a] < ids[b]; });
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = ids[places[static_cast<size_t>(i)]];
    if (!targets.empty() && targets.back() == id) continue;
    targets.push_back(id);
    starts.push_back(i);
  }
  starts.push_back(count);
  SumRowsArgs args{};
  args.x = rows_of(grad);
  args.places = places.data();
  args.starts = starts.data();
  args.targets = targets.data();
  args.out = out.data;
  args.stride = out.strides[0] / itemsize(out.dtype);
  args.accumulate = true;
  const auto distinct = static_cast<int64_t>(targets.size());
  const KernelTable& table = kernels();
  parallel_for(distinct, grain_of_rows(args.x.length * ceil_div(count, distinct)),
               [&](int64_t begin, int64_t end) { table.sum_rows(args, begin, end); });
}

// ---- cross entropy ----------------------------------------------------------------------------------------

namespace {

CrossEntropyArgs args_of(const CrossEntropy& call) {
  CrossEntropyArgs args{};
  args.logits = rows_of(call.logits);
  args.labels = call.labels;
  args.vocabulary = call.vocabulary;
  args.label_smoothing = call.label_smoothing;
  args.z_loss = call.z_loss;
  args.softcap = call.softcap;
  return args;
}

}  // namespace

void cross_entropy(const CrossEntropy& call, double* lse, double* loss) {
  if (call.logits.size() == 0) return;
  CrossEntropyArgs args = args_of(call);
  args.lse = lse;
  args.loss = loss;
  const KernelTable& table = kernels();
  parallel_for(args.logits.count, grain_of_rows(2 * args.logits.length),
               [&](int64_t begin, int64_t end) { table.cross_entropy(args, begin, end); });
}

void cross_entropy_backward(const CrossEntropy& call, const double* lse, const double* scales, double scale,
                            const View& out) {
  if (call.logits.size() == 0) return;
  CrossEntropyArgs args = args_of(call);
  args.out = rows_of(out);
  args.lse = const_cast<double*>(lse);
  args.scales = scales;
  args.scale = scale;
  const KernelTable& table = kernels();
  parallel_for(args.logits.count, grain_of_rows(args.logits.length),
               [&](int64_t begin, int64_t end) { table.cross_entropy_backward(args, begin, end); });
}

// ---- optimiser --------------------------------------------------------------------------------------------

void adamw(const AdamWArgs& args) {
  const KernelTable& table = kernels();
  parallel_for(ceil_div(args.count, args.segment), grain_of_rows(2 * args.segment),
               [&](int64_t begin, int64_t end) { table.adamw(args, begin, end); });
}

double sum_of_squares(const View& x) {
  if (x.size() == 0) return 0;
  View merged = x;
  View* const one[] = {&merged};
  merge_last_axes(one, 1);
  SumSquaresArgs args{rows_of(merged), kSegment, nullptr};
  const int64_t pieces = pieces_of(args.x);
  const Scratch sums(bytes_of(pieces, sizeof(double)));
  args.sums = sums.as<double>();
  const KernelTable& table = kernels();
  parallel_for(pieces, grain_of_pieces(args.x),
               [&](int64_t begin, int64_t end) { table.sum_squares(args, begin, end); });
  return std::accumulate(args.sums, args.sums + pieces, 0.0);
}

}  // namespace simdformer
