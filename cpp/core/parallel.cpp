#include "core/parallel.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/bounds.hpp"
#include "base/tuning.hpp"
#include "core/bell.hpp"
#include "core/float_mode.hpp"

namespace simdformer {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread looks for news before it sleeps. Calls that follow each other within this time find the
// workers awake; spinning for good would ruin the latency of everybody as soon as another process wants the
// core.
constexpr auto kSpin = std::chrono::microseconds(30);
// How long a worker does after stay_awake(). It yields meanwhile; where that takes so long that another thread
// has run, there is no CPU to spare, and it sleeps.
constexpr auto kAwake = std::chrono::microseconds(300);
constexpr auto kShortYield = std::chrono::microseconds(20);
// Asking for Ctrl-C takes the GIL, for which another Python thread may make us wait 5 ms.
constexpr auto kAskInterval = std::chrono::milliseconds(50);
constexpr auto kPause = std::chrono::milliseconds(500);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void relax() {
  for (int i = 0; i < 16; ++i) pause();
}

std::atomic<int> awake{0};  // stay_awake() without their may_sleep()

// Prefetches memory to the second cache, no faster than it comes. There may be none any more: then nothing happens.
inline void fetch(const Region& region) {
  const Clock::time_point end = Clock::now() + std::chrono::nanoseconds(kErrandNanoseconds);
  for (int64_t byte = 0; byte < region.bytes; byte += kLineBytes)
    __builtin_prefetch(region.data + byte, 0, 2);
  while (Clock::now() < end) pause();
}

// Lets others run; whether none did.
bool yield() {
  const Clock::time_point before = Clock::now();
  sched_yield();
  return Clock::now() - before < kShortYield;
}

// True on a worker for good, and on a caller while it works in the pool: a loop started there is nested.
thread_local bool inside = false;

std::atomic<bool (*)()> interrupt_hook{nullptr};

// Asks the hook when it is due. The due time outlives the loop: a driver may run thousands of short ones. A
// nested loop does not ask: whoever called body is not prepared to be left in the middle.
class Asker {
 public:
  Asker() : hook_(inside ? nullptr : interrupt_hook.load(std::memory_order_relaxed)) {}

  // Before the first chunk: after a long pause nobody has waited, and a short call need not wait for the GIL.
  bool stop_at_start() {
    if (!hook_) return false;
    const Clock::time_point now = Clock::now();
    if (now - due_ > kPause) due_ = now + kAskInterval;
    return now >= due_ && ask();
  }

  bool stop() { return hook_ && Clock::now() >= due_ && ask(); }

 private:
  bool ask() {
    const bool answer = hook_();
    due_ = Clock::now() + kAskInterval;
    return answer;
  }

  static thread_local Clock::time_point due_;
  bool (*hook_)();
};
thread_local Clock::time_point Asker::due_{};

struct Loop {
  int64_t count, grain, chunks;
  detail::ChunkFn fn;
  void* context;
  const Reading* reading;  // or null

  void run(int64_t chunk) const {
    const int64_t begin = chunk * grain;
    fn(context, begin, count - begin <= grain ? count : begin + grain);
  }

  void run_serially(Asker& asker) const {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk > 0 && asker.stop()) throw Interrupted{};
      run(chunk);
    }
  }
};

// The workers and the one loop that they can be in. Only the thread that holds `pool_busy` calls the public
// functions.
//
// `state_` is call number << 32 | free seats << 16 | seated workers. A worker takes part by moving itself
// from the free seats to the seated in one exchange; the caller ends the call by taking away the free seats
// and waits until nobody is seated. A worker that comes late finds no seat and touches nothing of the loop.
//
// Every thread has a lane of its own, chunks side by side, and takes from the others' when that is empty. The
// same rows thus mostly stay with the same core from loop to loop, in its own caches.
class Pool {
 public:
  // Sees to it that there are `wanted` workers, or as many as can be had; returns how many there are.
  int grow(int wanted) noexcept {
    const int present = workers_.load(std::memory_order_relaxed);
    if (present >= wanted || wanted == refused_) return present;
    int made = present;
    while (made < wanted && start_worker()) workers_.store(++made, std::memory_order_relaxed);
    refused_ = made < wanted ? wanted : 0;
    return made;
  }

  void open(const Loop& loop, int seats) noexcept {
    loop_ = loop;
    float_mode_ = float_mode();
    if (loop.reading != nullptr && loop.reading->count() > 0 && are_awake()) {
      next_reading_ = successors_.follow(*loop.reading);
      ++errands_;
    }
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    lanes_ = seats + 1;
    const int64_t each = loop.chunks / lanes_, rest = loop.chunks % lanes_;
    for (int64_t i = 0, begin = 0; i < lanes_; ++i) {
      lane_[i].next.store(begin, std::memory_order_relaxed);
      lane_[i].end = begin += each + (i < rest ? 1 : 0);
    }
    state_.store((++calls_ << 32) | static_cast<uint64_t>(seats) << 16);
    bell_.ring(seats - (workers_.load(std::memory_order_relaxed) - bell_.sleepers()));
  }

  // Works through chunks until none is left, those of lane `first` before others. `stop` is asked after each.
  template <class Stop>
  void take_chunks(int first, Stop&& stop) noexcept {
    for (int i = 0; i < lanes_; ++i) {
      Lane& lane = lane_[(first + i) % lanes_];
      for (;;) {
        const int64_t chunk = lane.next.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= lane.end) break;
        try {
          loop_.run(chunk);
        } catch (...) {
          if (!failed_.exchange(true)) error_ = std::current_exception();
          return empty_lanes();
        }
        if (stop()) return empty_lanes();
      }
    }
  }

  // Waits until the workers have left; returns what body has thrown.
  std::exception_ptr close() noexcept {
    state_.fetch_and(~kSeats);
    const Clock::time_point spin_until = Clock::now() + kSpin;
    for (;;) {
      const uint32_t seen = left_.count();
      if ((state_.load(std::memory_order_acquire) & kSeated) == 0) return std::exchange(error_, nullptr);
      if (Clock::now() < spin_until) {
        relax();
      } else {
        left_.sleep(seen);
      }
    }
  }

 private:
  static constexpr uint64_t kSeats = 0xffff0000, kSeated = 0xffff, kOneSeat = 0x10000, kOneSeated = 1;
  static_assert(kMaxThreads <= 0xffff);

  struct alignas(64) Lane {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void empty_lanes() noexcept {
    for (int i = 0; i < lanes_; ++i) lane_[i].next.store(lane_[i].end, std::memory_order_relaxed);
  }

  bool take_seat(uint64_t& last_call) noexcept {
    uint64_t state = state_.load(std::memory_order_acquire);
    while ((state >> 32) != last_call && (state & kSeats) != 0) {
      if (state_.compare_exchange_weak(state, state - kOneSeat + kOneSeated, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        last_call = state >> 32;
        return true;
      }
    }
    return false;
  }

  void leave_seat() noexcept {
    const uint64_t state = state_.fetch_sub(kOneSeated);
    if ((state & kSeated) == 1 && (state & kSeats) == 0) left_.ring(1);
  }

  // More workers are awake than loops may have: set_num_threads() has made the pool smaller.
  bool spare() const noexcept {
    return workers_.load(std::memory_order_relaxed) - bell_.sleepers() > num_threads() - 1;
  }

  void work() noexcept {
    inside = true;
    const int lane = 1 + started_.fetch_add(1, std::memory_order_relaxed);  // the caller's is 0
    uint64_t last_call = 0, last_errand = 0;
    Errand errand;
    for (;;) {
      const uint32_t rung = bell_.count();
      if (take_seat(last_call)) {
        set_float_mode(float_mode_);
        take_chunks(lane, [] { return false; });
        if (std::exchange(last_errand, errands_) != errands_)
          errand = Errand(next_reading_, lane % lanes_, lanes_);
        leave_seat();
      }
      while (bell_.count() == rung && !errand.done()) fetch(errand.next());
      const Clock::time_point begin = Clock::now();
      while (bell_.count() == rung) {
        const Clock::duration waited = Clock::now() - begin;
        if (!spare() && waited < kSpin) {
          relax();
        } else if (spare() || waited > kAwake || awake.load(std::memory_order_relaxed) == 0 || !yield()) {
          bell_.sleep(rung);
        }
      }
    }
  }

  static void* worker_main(void* pool) {
    static_cast<Pool*>(pool)->work();
    return nullptr;
  }

  bool start_worker() noexcept {
    // Detached, and never told to end: joining at exit would hang where a worker is gone or in the middle of
    // a call. All signals are blocked, so that the kernel hands them to Python's threads.
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const bool started = pthread_create(&thread, &attributes, &Pool::worker_main, this) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
#if defined(__linux__)
    if (started) pthread_setname_np(thread, "simdformer");
#endif
    return started;
  }

  // One cache line each for what all threads write, and what they only read.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) Bell bell_;
  alignas(64) Bell left_;
  Lane lane_[kMaxThreads];
  alignas(64) Loop loop_{};
  uint64_t float_mode_ = 0;  // the caller's
  int lanes_ = 0;
  std::atomic<int> workers_{0};  // threads that exist
  std::atomic<int> started_{0};  // threads that have begun to run
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  uint64_t calls_ = 0;
  Successors successors_;
  Reading next_reading_;  // of the call that will most likely come next
  uint64_t errands_ = 0;  // so many calls have told what they read
  int refused_ = 0;       // the number of workers that could not be had; not tried again at every call
};

// The pool is never destroyed: daemon threads may be in a loop while the process exits.
Pool* pool = nullptr;  // belongs to the holder of pool_busy
std::atomic<bool> pool_busy{false};
std::atomic<uint32_t> forks{0};  // that lie between this process and the first one
std::atomic<int> thread_setting{0};

// The child of a fork has none of the workers, and the pool may have been in the middle of a call of another
// thread. It forgets the pool, memory included: a lock in it may be held by a thread that is not there.
void start_afresh() {
  pool = nullptr;
  pool_busy.store(false);
  awake.store(0);
  forks.fetch_add(1);
}

[[maybe_unused]] const int starts_afresh_at_fork = pthread_atfork(nullptr, nullptr, &start_afresh);

void run_in_pool(const Loop& loop, int threads, Asker& asker) {
  if (!pool) pool = new (std::nothrow) Pool;
  const int workers = pool ? pool->grow(threads - 1) : 0;
  const int seats = workers < threads - 1 ? workers : threads - 1;
  if (seats == 0) {
    pool_busy.store(false, std::memory_order_release);
    return loop.run_serially(asker);
  }

  Pool* const mine = pool;
  const uint32_t forks_before = forks.load();
  bool interrupted = false, forked = false;
  inside = true;
  mine->open(loop, seats);
  mine->take_chunks(0, [&] {
    interrupted = asker.stop();
    forked = forks.load(std::memory_order_relaxed) != forks_before;
    return interrupted || forked;
  });
  inside = false;
  if (forked) {  // a signal handler forked, and this is the child: the chunks of the workers are lost
    if (interrupted) throw Interrupted{};
    throw std::runtime_error(
        "simdformer: a signal handler forked the process in a call; the child has no result");
  }
  std::exception_ptr error = mine->close();
  pool_busy.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
  if (interrupted) throw Interrupted{};
}

}  // namespace

int num_threads() noexcept {
  int n = thread_setting.load(std::memory_order_relaxed);
  if (n > 0) return n;
  const int wanted = default_num_threads();
  return thread_setting.compare_exchange_strong(n, wanted) ? wanted : n;
}

void set_num_threads(int n) noexcept { thread_setting.store(n < 1 ? 1 : n > kMaxThreads ? kMaxThreads : n); }

void stay_awake() noexcept { awake.fetch_add(1); }
bool are_awake() noexcept { return awake.load(std::memory_order_relaxed) > 0; }

void may_sleep() noexcept {
  int scopes = awake.load();  // none in the child of a fork
  while (scopes > 0 && !awake.compare_exchange_weak(scopes, scopes - 1)) {
  }
}

void set_interrupt_hook(bool (*hook)()) noexcept { interrupt_hook.store(hook); }

void detail::parallel_for(int64_t count, int64_t grain, ChunkFn fn, void* context, const Reading* reading) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  const Loop loop{count, grain, (count - 1) / grain + 1, fn, context, reading};
  Asker asker;
  if (asker.stop_at_start()) throw Interrupted{};
  int threads = loop.chunks == 1 ? 1 : num_threads();
  if (threads > loop.chunks) threads = static_cast<int>(loop.chunks);
  if (inside || threads == 1 || pool_busy.exchange(true, std::memory_order_acquire)) {
    loop.run_serially(asker);
  } else {
    run_in_pool(loop, threads, asker);
  }
}

}  // namespace simdformer
