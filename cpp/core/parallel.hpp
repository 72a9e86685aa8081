// The thread pool: work is cut into chunks, the caller and the workers take them in turn.
//
// Which thread runs a chunk never changes a result: chunk bounds depend on `count` and `grain` alone.
// A nested call, and a call made while another Python thread uses the pool, runs serially on its caller.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "core/ahead.hpp"

namespace simdformer {

// Thrown out of parallel_for on the calling thread when the interrupt hook asked to stop (Ctrl-C).
struct Interrupted {};

constexpr int kMaxThreads = 1024;

int num_threads() noexcept;            // the process's setting, at least 1
void set_num_threads(int n) noexcept;  // 1 <= n <= kMaxThreads; from the next call on
int default_num_threads() noexcept;    // min(affinity mask, cgroup quota), before environment variables

// CPUs that the cgroups (v1 or v2) of this process grant, rounded up; 0 = no limit. `root` stands before
// /proc and /sys, for tests.
int cgroup_cpus(const std::string& root = "");

// Calls follow each other, as those of a model's forward pass do: until as many may_sleep() workers wait for
// the next loop a while longer, and give their CPU to whoever wants it.
void stay_awake() noexcept;
void may_sleep() noexcept;
bool are_awake() noexcept;  // whether some stay_awake() waits for its may_sleep()

// Asked before and between chunks on the calling thread, every 50 ms at most; true = give up.
void set_interrupt_hook(bool (*hook)()) noexcept;

namespace detail {
using ChunkFn = void (*)(void* context, int64_t begin, int64_t end);
void parallel_for(int64_t count, int64_t grain, ChunkFn fn, void* context, const Reading* reading);
}  // namespace detail

// Calls body(begin, end) on [0, count) in chunks of `grain` indices. Make a chunk worth at least ~5 us and at
// most ~50 ms: a loop of one chunk stays on the caller, and Ctrl-C is answered between chunks. The first
// exception that leaves body is rethrown here, when all threads have left the loop. `reading`: memory that the
// loop reads, in the order of its indices, and that a later one will read again.
template <class Body>
void parallel_for(int64_t count, int64_t grain, Body&& body, const Reading* reading = nullptr) {
  using Plain = std::remove_reference_t<Body>;
  detail::parallel_for(
      count, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))), reading);
}

// Scratch memory of the calling thread: 64-byte aligned, kept for the next call, handed out as a stack.
// `Scratch tile(bytes); tile.as<float>()`; released in reverse order. What goes beyond 64 MB is given back on
// release. Throws std::bad_alloc when there is no memory, so take it before a noexcept kernel is entered.
class Scratch {
 public:
  explicit Scratch(int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(pointer_);
  }

 private:
  void* pointer_;
  int64_t bytes_;  // as reserved: a multiple of 64
};

}  // namespace simdformer
