#include "core/prefetching.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "base/tuning.hpp"
#include "core/parallel.hpp"

namespace simdformer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Cache kCaches[] = {Cache::first, Cache::second};
constexpr SliceAhead kSliceAheads[] = {{kSliceBytesAhead, Cache::first},
                                       {kSliceBytesAhead, Cache::second},
                                       {kSliceBytesAhead / 2, Cache::second},
                                       {0, Cache::first}};
// Several rows multiply for longer than the hardware looks ahead.
constexpr int kGoals = std::size(kCaches), kAheads = std::size(kSliceAheads), kAheadsOfRows = 2;
constexpr int kNotKnown = -1;

}  // namespace

// The times of the first calls of a kind, each with another of some choices, and then which choice was the best.
class PrefetchTrials {
 public:
  int best() const { return best_.load(std::memory_order_relaxed); }

  // The number of the next trial; kNotKnown: enough have begun.
  int begin(int choices) {
    const int trial = begun_.fetch_add(1, std::memory_order_relaxed), trials = choices * kTrialsOfEach;
    if (trial < trials) return trial;
    begun_.store(trials, std::memory_order_relaxed);
    return kNotKnown;
  }

  // Every choice has its turn with each of the four products of a layer.
  static int choice_of(int trial, int choices) { return (trial + trial / 4) % choices; }

  void end(int trial, int choices, double time) {
    times_[trial].store(time, std::memory_order_relaxed);
    if (trial == choices * kTrialsOfEach - 1) best_.store(fastest(choices), std::memory_order_relaxed);
  }

  void forget() {
    best_.store(kNotKnown, std::memory_order_relaxed);
    begun_.store(0, std::memory_order_relaxed);
    for (auto& time : times_) time.store(0, std::memory_order_relaxed);
  }

 private:
  // By the lower quartiles of the times: what disturbs a call makes it longer.
  int fastest(int choices) const {
    int best = 0;
    double shortest = 0;
    for (int choice = 0; choice < choices; ++choice) {
      double times[kMostTrials];
      int count = 0;
      for (int trial = 0; trial < choices * kTrialsOfEach; ++trial) {
        const double time = times_[trial].load(std::memory_order_relaxed);
        if (choice_of(trial, choices) == choice && time > 0) times[count++] = time;
      }
      if (count == 0) continue;
      std::nth_element(times, times + count / 4, times + count);
      if (shortest == 0 || times[count / 4] < shortest) best = choice, shortest = times[count / 4];
    }
    return best;
  }

  static constexpr int kMostTrials = kAheads * kTrialsOfEach;
  std::atomic<int> best_{kNotKnown}, begun_{0};
  std::atomic<double> times_[kMostTrials] = {};  // for each byte; 0: the call is not done
};

// Calls that read from the last cache, and those that read from memory.
struct TrialsOfKind {
  PrefetchTrials near, far;
};

namespace {

constexpr int kKinds = 5, kDTypes = 4, kScaleKinds = 5, kMostBits = 8;
TrialsOfKind trials_of_goals[kKinds][kDTypes];
TrialsOfKind trials_of_slices[kScaleKinds][2][kMostBits + 1][2];  // by one row, and by several
std::atomic<const KernelTable*> tried_with{nullptr};

// What was found with other kernels counts no more.
void forget_others(const KernelTable& table) {
  if (tried_with.load(std::memory_order_relaxed) == &table) return;
  if (tried_with.exchange(&table, std::memory_order_relaxed) == nullptr) return;  // nothing was
  const auto forget = [](TrialsOfKind& kind) { kind.near.forget(), kind.far.forget(); };
  for (auto& dtypes : trials_of_goals) std::for_each(std::begin(dtypes), std::end(dtypes), forget);
  for (auto& scales : trials_of_slices)
    for (auto& minimums : scales)
      for (auto& rows : minimums) std::for_each(std::begin(rows), std::end(rows), forget);
}

}  // namespace

Prefetching::Prefetching(const KernelTable& table, double bytes)
    : bytes_(bytes),
      far_(are_awake() || bytes >= kFarthestBytes),
      tries_(bytes >= (far_ ? kFarBytes / 4 : kFarBytes)) {
  forget_others(table);
}

Prefetching::~Prefetching() {
  if (trials_ == nullptr) return;
  trials_->end(trial_, choices_, std::chrono::duration<double>(Clock::now() - begin_).count() / bytes_);
}

// The best of so many; where that is not known, the one whose turn it is, or without a trial the first.
int Prefetching::choice(TrialsOfKind& kind, int choices) {
  PrefetchTrials& trials = far_ ? kind.far : kind.near;
  const int best = trials.best();
  if (best != kNotKnown) return best;
  if (tries_ && trials_ == nullptr) {
    trial_ = trials.begin(choices);
    if (trial_ != kNotKnown) trials_ = &trials, choices_ = choices, begin_ = Clock::now();
  }
  return trials_ == &trials ? PrefetchTrials::choice_of(trial_, choices) : 0;
}

Cache Prefetching::goal(Prefetched what, DType dtype) {
  return kCaches[choice(trials_of_goals[static_cast<int>(what)][static_cast<int>(dtype)], kGoals)];
}

SliceAhead Prefetching::slice_ahead(const QuantizedFormat& format, int64_t rows) {
  TrialsOfKind* const kinds =
      trials_of_slices[static_cast<int>(format.scales)][format.has_minimum][format.bits];
  return kSliceAheads[rows > 1 ? choice(kinds[1], kAheadsOfRows) : choice(kinds[0], kAheads)];
}

}  // namespace simdformer
