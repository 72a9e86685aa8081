#include "core/rope.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "core/dispatch.hpp"
#include "core/float_mode.hpp"
#include "core/memory.hpp"
#include "core/parallel.hpp"
#include "core/prefetching.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// cos and sin at every position, as a table for the kernel, and what they were computed from.
class Angles {
 public:
  const void* table() const { return table_.get(); }
  int64_t nbytes() const { return nbytes_; }

  // Whether they are those of `count` positions of a call, bit for bit: its instruction set and its rounding
  // count too.
  bool serve(const Rope& call, int64_t count, DType dtype) const {
    if (kernels_ != &kernels() || float_mode_ != float_mode()) return false;
    if (dtype_ != dtype || 2 * half() != call.rotary_dim || this->count() != count) return false;
    if (attention_factor_ != call.attention_factor || backward_ != call.backward) return false;
    if (call.inv_freq == nullptr
            ? theta_ != call.theta
            : !std::equal(given_.begin(), given_.end(), call.inv_freq, call.inv_freq + half()))
      return false;
    return call.positions == nullptr ? counted_ && positions_.front() == call.offset
                                     : std::equal(positions_.begin(), positions_.end(), call.positions);
  }

  void compute(const Rope& call, int64_t count, DType dtype) {
    nbytes_ = bytes_of(count, call.rotary_dim, itemsize(dtype));
    kernels_ = &kernels();
    float_mode_ = float_mode();
    dtype_ = dtype;
    theta_ = call.inv_freq == nullptr ? call.theta : 0;
    attention_factor_ = call.attention_factor;
    backward_ = call.backward;
    given_.assign(call.inv_freq, call.inv_freq == nullptr ? nullptr : call.inv_freq + call.rotary_dim / 2);
    inv_freq_.resize(static_cast<std::size_t>(call.rotary_dim / 2));
    for (int64_t i = 0; i < half(); ++i)
      inv_freq_[static_cast<std::size_t>(i)] =
          call.inv_freq == nullptr ? std::pow(theta_, -static_cast<double>(i) / static_cast<double>(half()))
                                   : call.inv_freq[i];
    if (backward_)
      for (double& frequency : inv_freq_) frequency = -frequency;
    counted_ = call.positions == nullptr;
    positions_.resize(static_cast<std::size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      positions_[static_cast<std::size_t>(i)] = counted_ ? call.offset + i : call.positions[i];

    table_ = allocate(nbytes_);
    const RopeTableArgs args{positions_.data(), inv_freq_.data(), half(),
                             attention_factor_, dtype_,           table_.get()};
    parallel_for(count, grain_of(cost::angle * static_cast<double>(half())),
                 [&](int64_t begin, int64_t end) { kernels_->rope_table(args, begin, end); });
  }

 private:
  int64_t half() const { return static_cast<int64_t>(inv_freq_.size()); }
  int64_t count() const { return static_cast<int64_t>(positions_.size()); }

  const KernelTable* kernels_ = nullptr;
  uint64_t float_mode_ = 0;
  DType dtype_ = DType::f32;
  double attention_factor_ = 0;
  double theta_ = 0;  // 0: the frequencies were given
  bool backward_ = false;
  std::vector<double> given_;     // as the call had them
  std::vector<double> inv_freq_;  // (half), negative to turn back
  std::vector<int64_t> positions_;
  bool counted_ = false;  // positions are an offset and the numbers after it
  int64_t nbytes_ = 0;
  Memory table_;
};

constexpr int64_t kMostAnglesKept = int64_t{1} << 20;  // bytes: 2048 positions of a head_dim of 128

// The angles of the last call, or null while a call uses them: whoever takes them has them alone, be it
// beside another thread, in a signal handler's call or after a fork. Never freed: threads may be in a call at
// exit.
std::atomic<Angles*> kept_angles{nullptr};

}  // namespace

void rope(const View& x, const Rope& call, const View& out) {
  if (x.size() == 0) return;
  const int64_t seq_len = x.shape[x.rank - 2];
  const int64_t count = call.by_sequence ? x.shape[0] * seq_len : seq_len;
  const DType sum = accumulator(x.dtype);
  std::unique_ptr<Angles> angles(kept_angles.exchange(nullptr));
  if (angles == nullptr) angles = std::make_unique<Angles>();
  if (!angles->serve(call, count, sum)) angles->compute(call, count, sum);

  const int64_t rows = x.size() / x.shape[x.rank - 1];
  RopeArgs args{rows_of(x),
                rows_of(out),
                call.layout,
                call.rotary_dim / 2,
                seq_len,
                call.by_sequence ? rows / x.shape[0] : rows,
                call.by_sequence ? seq_len : 0,
                angles->table()};
  args.past_caches = lines_past_caches(args.out, args.x);
  const KernelTable& table = kernels();
  Prefetching prefetching(table, static_cast<double>(bytes_in(args.x)));
  if (args.past_caches) args.goal = prefetching.goal(Prefetched::rope_rows, args.x.dtype);
  parallel_for(rows, grain_of_rows(args.x.length),
               [&](int64_t begin, int64_t end) { table.rope(args, begin, end); });
  if (angles->nbytes() <= kMostAnglesKept) angles.reset(kept_angles.exchange(angles.release()));
}

}  // namespace simdformer
