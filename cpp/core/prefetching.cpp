#include "core/prefetching.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "base/attention_args.hpp"
#include "base/bounds.hpp"
#include "base/linear_args.hpp"
#include "base/tuning.hpp"
#include "core/memory.hpp"
#include "core/parallel.hpp"

namespace simdformer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNotMeasured = -1;
constexpr Cache kCaches[] = {Cache::first, Cache::second};

constexpr SliceAhead kSliceAheads[] = {{0, Cache::first},
                                       {kSliceBytesAhead, Cache::first},
                                       {kSliceBytesAhead, Cache::second},
                                       {kSliceBytesAhead / 2, Cache::second}};
constexpr int kAheads = std::size(kSliceAheads), kTrials = kAheads * kTrialsOfEach;

}  // namespace

// What is known of a format: the times of the first products, each with another choice, and then which was the best.
class SliceTrials {
 public:
  int best() const { return best_.load(std::memory_order_relaxed); }

  // The number of the next trial, or kTrials: enough have begun.
  int begin() {
    const int trial = begun_.fetch_add(1, std::memory_order_relaxed);
    if (trial < kTrials) return trial;
    begun_.store(kTrials, std::memory_order_relaxed);
    return kTrials;
  }

  // Products come in the order of a layer, so that every choice has its turn with each of them.
  static int choice_of(int trial) { return (trial + trial / kAheads) % kAheads; }

  void end(int trial, double time) {
    times_[trial].store(time, std::memory_order_relaxed);
    if (trial == kTrials - 1) best_.store(fastest(), std::memory_order_relaxed);
  }

  void forget() {
    best_.store(kNotMeasured, std::memory_order_relaxed);
    begun_.store(0, std::memory_order_relaxed);
    for (auto& time : times_) time.store(0, std::memory_order_relaxed);
  }

 private:
  // By the lower quartiles of the times: what disturbs a product makes it longer.
  int fastest() const {
    double times[kAheads][kTrialsOfEach], quartiles[kAheads];
    int counts[kAheads] = {};
    for (int trial = 0; trial < kTrials; ++trial) {
      const int choice = choice_of(trial);
      const double time = times_[trial].load(std::memory_order_relaxed);
      if (time > 0) times[choice][counts[choice]++] = time;
    }
    for (int choice = 0; choice < kAheads; ++choice) {
      double* const own = times[choice];
      std::sort(own, own + counts[choice]);
      quartiles[choice] =
          counts[choice] == 0 ? std::numeric_limits<double>::infinity() : own[counts[choice] / 4];
    }
    return static_cast<int>(std::min_element(quartiles, quartiles + kAheads) - quartiles);
  }

  std::atomic<int> best_{kNotMeasured}, begun_{0};
  std::atomic<double> times_[kTrials] = {};  // for each byte; 0: the product is not done
};

namespace {

constexpr int kScaleKinds = 5, kMostBits = 8;
SliceTrials trials_of_formats[kScaleKinds][2][kMostBits + 1];
std::atomic<const KernelTable*> measured_with{nullptr};
std::atomic<int> best_goal{kNotMeasured};

// What was measured with other kernels counts no more.
void forget_others(const KernelTable& table) {
  if (measured_with.load(std::memory_order_relaxed) == &table) return;
  if (measured_with.exchange(&table, std::memory_order_relaxed) == nullptr) return;  // nothing was
  best_goal.store(kNotMeasured, std::memory_order_relaxed);
  for (auto& kind : trials_of_formats)
    for (auto& formats : kind)
      for (SliceTrials& trials : formats) trials.forget();
}

// Whether so many bytes come from memory: all weights pass through the caches between two tokens.
bool is_far(double bytes) { return bytes >= (are_awake() ? kFarBytes : kFarthestBytes); }

// Memory in huge pages, as what is large has it, out of all caches where a program can see to that.
class Evicted {
 public:
  explicit Evicted(int64_t bytes) : memory_(allocate(std::max(bytes, kHuge))), bytes_(bytes) {
    std::memset(memory_.get(), 0, static_cast<std::size_t>(bytes));
  }
  char* get() const { return memory_.get(); }
  bool evict() const {
#if defined(__x86_64__)
    for (int64_t byte = 0; byte < bytes_; byte += kLineBytes) __builtin_ia32_clflush(get() + byte);
    __builtin_ia32_mfence();
    return true;
#else
    return false;
#endif
  }

 private:
  Memory memory_;
  int64_t bytes_;
};

// (heads, rows, columns) of float32, side by side.
View view_of(char* data, int64_t heads, int64_t rows, int64_t columns) {
  View view;
  view.data = data;
  view.rank = 3;
  view.shape[0] = heads, view.shape[1] = rows, view.shape[2] = columns;
  view.strides[2] = itemsize(view.dtype);
  view.strides[1] = columns * view.strides[2], view.strides[0] = rows * view.strides[1];
  return view;
}

// Attention of one query a head, on this thread.
int measured_goal(const KernelTable& table) {
  constexpr int64_t kHeads = 8, kKeys = kDecodeBlock, kDepth = 128;
  const Evicted memory(2 * kHeads * kKeys * kDepth * itemsize(DType::f32));
  std::vector<float> query(kHeads * kDepth), out(kHeads * kDepth);
  Attention call;
  call.query = view_of(reinterpret_cast<char*>(query.data()), kHeads, 1, kDepth);
  call.out = view_of(reinterpret_cast<char*>(out.data()), kHeads, 1, kDepth);
  call.key = view_of(memory.get(), kHeads, kKeys, kDepth);
  call.value = view_of(memory.get() + kHeads * call.key.strides[0], kHeads, kKeys, kDepth);
  AttentionArgs args{};
  args.call = &call;
  args.kv_heads = args.heads = kHeads;
  args.group = args.queries = args.chunks = 1;
  args.keys = args.last_key = kKeys;
  args.depth = args.value_depth = kDepth;
  args.far = true;
  const Scratch scratch(decode_scratch(args) * itemsize(DType::f32));
  Clock::duration best[] = {Clock::duration::max(), Clock::duration::max()};
  for (int turn = 0; turn < kProbeTurns; ++turn)
    for (const int goal : {0, 1}) {
      if (!memory.evict()) return 0;
      args.goal = kCaches[goal];
      const Clock::time_point begin = Clock::now();
      table.attention_decode(args, scratch.as<void>(), 0, kHeads);
      best[goal] = std::min(best[goal], Clock::now() - begin);
    }
  return best[1] < best[0];
}

}  // namespace

Cache cache_goal(const KernelTable& table, double bytes) {
  forget_others(table);
  int best = best_goal.load(std::memory_order_relaxed);
  if (best == kNotMeasured) {
    if (!is_far(bytes)) return kCaches[0];
    best = measured_goal(table);
    best_goal.store(best, std::memory_order_relaxed);
  }
  return kCaches[best];
}

SliceAhead SlicePrefetching::ahead(const KernelTable& table, const QuantizedFormat& format, int64_t rows,
                                   double bytes) {
  const Cache goal = cache_goal(table, bytes);
  // Several rows multiply for longer than the hardware looks ahead; and from the last cache it is never faster.
  if (rows > 1 || !is_far(bytes)) return {kSliceBytesAhead, goal};
  SliceTrials& trials = trials_of_formats[static_cast<int>(format.scales)][format.has_minimum][format.bits];
  const int best = trials.best();
  if (best != kNotMeasured) return kSliceAheads[best];
  if (trials_ == nullptr) {
    trial_ = trials.begin();
    if (trial_ < kTrials) trials_ = &trials, bytes_ = bytes, begin_ = Clock::now();
  }
  if (trials_ == &trials) return kSliceAheads[SliceTrials::choice_of(trial_)];
  return {kSliceBytesAhead, goal};
}

SlicePrefetching::~SlicePrefetching() {
  if (trials_ == nullptr) return;
  trials_->end(trial_, std::chrono::duration<double>(Clock::now() - begin_).count() / bytes_);
}

}  // namespace simdformer
