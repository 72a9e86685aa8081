// A number that threads wait for: with the kernel's futex, elsewhere with a condition variable.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__) && !defined(SIMDFORMER_NO_FUTEX)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#define SF_FUTEX 1
#else
#include <condition_variable>
#include <mutex>
#define SF_FUTEX 0
#endif

namespace simdformer {

// A counter that threads can sleep on until it moves.
class Bell {
 public:
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  int sleepers() const { return sleepers_.load(); }

  // Sequentially consistent on both sides: either the one who rings sees the sleeper, or the sleeper the new
  // count.
  void ring(int wake) {
    count_.fetch_add(1);
    if (wake > 0 && sleepers_.load() > 0) wake_up(wake);
  }

  // Returns when the count is no longer `seen`, or for no reason.
  void sleep(uint32_t seen) {
    sleepers_.fetch_add(1);
    fall_asleep(seen);
    sleepers_.fetch_sub(1);
  }

 private:
#if SF_FUTEX
  static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
  void wake_up(int n) { syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, n, nullptr, nullptr, 0); }
  void fall_asleep(uint32_t seen) {
    syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
#else
  void wake_up(int n) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < n; ++i) moved_.notify_one();
  }
  void fall_asleep(uint32_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (count_.load() == seen) moved_.wait(lock);
  }
  std::mutex mutex_;
  std::condition_variable moved_;
#endif
  std::atomic<uint32_t> count_{0};
  std::atomic<int> sleepers_{0};
};

}  // namespace simdformer
