#include "core/memory.hpp"

#include <pthread.h>

#include <mutex>
#include <new>

#include "base/bounds.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace simdformer {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kBlock = int64_t{64} << 20;  // what smaller weights share
constexpr int64_t kSmall = int64_t{64} << 10;  // below this they do not pay

int64_t round_up(int64_t bytes, int64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

std::mutex block_mutex;
// What the next small weight goes into; it goes with the last one.
union Block {
  std::weak_ptr<char> last;
  constexpr Block() : last() {}
  ~Block() {}  // it stays: daemon threads may load a model while the process exits
} block;
int64_t block_used = 0;

// A fork while another thread holds the mutex would leave the child without it.
[[maybe_unused]] const int keeps_block_at_fork =
    pthread_atfork([] { block_mutex.lock(); }, [] { block_mutex.unlock(); }, [] { block_mutex.unlock(); });

#if defined(__linux__)
// The whole pages among these bytes, back to the system.
void give_back(char* memory, int64_t bytes) {
  const auto address = reinterpret_cast<intptr_t>(memory);
  const int64_t first = round_up(address, kPage), end = (address + bytes) / kPage * kPage;
  if (first < end) madvise(memory + (first - address), static_cast<std::size_t>(end - first), MADV_DONTNEED);
}
#else
void give_back(char*, int64_t) {}
#endif

}  // namespace

Memory allocate(int64_t bytes) {
  const bool huge = bytes >= kHuge;
  const int64_t alignment = huge ? kHugePage : kLineBytes;
  if (bytes < 0 || bytes > INT64_MAX - alignment) throw std::bad_alloc();
  const auto rounded = in_huge_pages(static_cast<std::size_t>(huge ? bytes : round_up(bytes, alignment)));
  Memory memory(static_cast<char*>(std::aligned_alloc(static_cast<std::size_t>(alignment), rounded)));
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Fewer TLB misses. A wish: refusal costs speed only.
  if (huge) madvise(memory.get(), rounded, MADV_HUGEPAGE);
#endif
  return memory;
}

WeightMemory allocate_weight(int64_t bytes) {
  if (SF_ASAN || bytes < kSmall || bytes >= kHuge) return allocate(bytes);
  const std::lock_guard<std::mutex> lock(block_mutex);
  std::shared_ptr<char> shared = block.last.lock();
  if (shared == nullptr || bytes > kBlock - block_used) {
    shared = allocate(kBlock);
    block.last = shared;
    block_used = 0;
  }
  char* const memory = shared.get() + block_used;
  block_used += round_up(bytes, kLineBytes);
  return WeightMemory(memory, [shared, bytes](char* own) { give_back(own, bytes); });
}

}  // namespace simdformer
